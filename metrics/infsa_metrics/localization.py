"""Does a map lie on the object: maps and masks of pixels in, one value per image out.

Average precision, ROC-AUC, rank accuracy, the pointing game and the IoU at the best threshold read
a map as a ranking of its pixels: only the order of the scores matters. Mass accuracy and the IoU at
the mean threshold depend on the values.

Pixels tie if their scores are equal up to rounding, 8 ε of their size, with the ε of their dtype:
interpolation leaves such differences between equal pixels. A threshold takes all tied pixels or
none of them. Where only some can be taken, the value is the expectation over a random choice. So a
constant map has an average precision equal to the prevalence and a ROC-AUC of 0.5, also after it
was upsampled.

All of them read high when the object is large or sits where maps are high anyway: see
:func:`prevalence`, and compare with a map of the centre. An image whose mask is empty, or has
every pixel, has nothing to be told apart, and all its values are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from infsa_metrics.arrays import Array, to_tensor

__all__ = [
    "average_precision",
    "box_mask",
    "iou_at_best",
    "iou_at_mean",
    "mass_accuracy",
    "pointing_game",
    "precision_at_recall",
    "prevalence",
    "rank_accuracy",
    "roc_auc",
]

_BLOCK_PIXELS = 2**16  # taken at once on a CPU: a map of 224×224, whose arrays fit its cache

_Measure = TypeVar("_Measure", bound=Callable[..., Tensor])


def _measure(formula: _Measure) -> _Measure:
    """Check the maps and masks for a formula, apply it block by block, and put NaN where undefined.

    Scores narrower than float32 become float32, which holds every one of their values and which
    NumPy has.
    """

    @wraps(formula)
    def measure(scores: Array, mask: Array, **options: Any) -> Tensor:
        scores, mask = to_tensor("scores", scores), to_tensor("mask", mask)
        if scores.shape != mask.shape:
            got = f"{tuple(scores.shape)} and {tuple(mask.shape)}"
            raise ValueError(f"scores, mask must be of equal shapes, got {got}")
        _check_mask(mask)
        if not scores.is_floating_point():
            raise ValueError(f"scores must be of a floating dtype, got {scores.dtype}")
        scores, mask = scores.detach(), mask.to(scores.device)
        finite = scores.amin((1, 2)).isfinite() & scores.amax((1, 2)).isfinite()
        if not finite.all():
            maps = (~finite).nonzero()[:, 0].tolist()
            raise ValueError(f"scores must be finite values, got NaN or infinity in maps {maps}")

        scores = scores.float() if scores.dtype.itemsize < 4 else scores
        on_cpu = scores.device.type == "cpu"
        block = _BLOCK_PIXELS // scores.shape[1:].numel() if on_cpu else len(scores)
        blocks = zip(*(torch.split(x, max(1, block)) for x in (scores, mask)), strict=True)
        with _one_thread():
            return _defined(torch.cat([formula(*block, **options) for block in blocks]), mask)

    return cast(_Measure, measure)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep PyTorch to one thread: a block is so little work that more would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _check_mask(mask: Tensor) -> None:
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool, got {mask.dtype}")
    if mask.ndim != 3 or 0 in mask.shape[1:]:
        raise ValueError(f"mask must be of shape (B, H, W), got {tuple(mask.shape)}")


def _defined(values: Tensor, mask: Tensor) -> Tensor:
    """NaN where the mask has no pixel or all: (B, ...)."""
    positives = mask.sum((1, 2))
    defined = (positives > 0) & (positives < mask.shape[1:].numel())
    return values.where(defined.view(-1, *[1] * (values.ndim - 1)), torch.nan)


@_measure
def average_precision(scores: Tensor, mask: Tensor) -> Tensor:
    """Area under the precision-recall curve, Σ (R_t − R_{t−1}) P_t; higher is better.

    The step-wise sum of scikit-learn's ``average_precision_score``, over thresholds t from the
    highest score down: no interpolation, which would flatter tied scores.

    Args:
        scores: (B, H, W), finite, of a floating dtype and any range; higher is more relevant.
        mask: (B, H, W) bool, true on the object.

    Returns:
        (B,) float64 in (0, 1], on the device of ``scores``; by chance the prevalence. NaN where
        the mask has no pixel, or all.

    Raises:
        ValueError: if the shapes differ or are not (B, H, W), ``scores`` are not finite or not
            floating, or ``mask`` is not bool.

    Example:
        >>> scores = torch.tensor([[[0.9, 0.8], [0.7, 0.1]]])
        >>> average_precision(scores, torch.tensor([[[True, False], [True, False]]]))
        tensor([0.8333], dtype=torch.float64)
    """
    hits, taken = _thresholds(scores, mask)
    precision = hits.double() / taken.clamp(min=1)
    return (hits.diff(dim=1) * precision[:, 1:]).sum(1) / hits[:, -1]


@_measure
def precision_at_recall(scores: Tensor, mask: Tensor, *, recalls: Sequence[float]) -> Tensor:
    """The precision-recall curve at given recalls; higher is better.

    At recall r it is the precision of the highest threshold whose recall is at least r: a point of
    scikit-learn's ``precision_recall_curve``, not interpolated.

    Args and errors as in :func:`average_precision`, and
        recalls: R numbers in (0, 1].

    Returns:
        (B, R) float64 in (0, 1], on the device of ``scores``. NaN where the mask has no pixel, or
        all.

    Example:
        >>> scores = torch.tensor([[[0.9, 0.8], [0.7, 0.1]]])
        >>> mask = torch.tensor([[[True, False], [True, False]]])
        >>> precision_at_recall(scores, mask, recalls=[0.5, 1.0])
        tensor([[1.0000, 0.6667]], dtype=torch.float64)
    """
    if not all(0 < recall <= 1 for recall in recalls):
        raise ValueError(f"recalls must be numbers in (0, 1], got {list(recalls)}")
    hits, taken = _thresholds(scores, mask)
    found = hits.double() / hits[:, -1:].clamp(min=1)
    levels = torch.tensor(list(recalls), dtype=torch.float64, device=found.device)
    levels = levels.expand(len(found), -1) - 1e-12  # rounding
    at = torch.searchsorted(found, levels.contiguous()).clamp(max=hits.shape[1] - 1)
    return hits.gather(1, at).double() / taken.gather(1, at).clamp(min=1)


@_measure
def roc_auc(scores: Tensor, mask: Tensor) -> Tensor:
    """Area under the ROC curve: the chance that an object pixel outranks another; higher is better.

    A tie of the two counts half (mid-ranks), as in scikit-learn's ``roc_auc_score``.

    Args and errors as in :func:`average_precision`.

    Returns:
        (B,) float64 in [0, 1], on the device of ``scores``; 0.5 by chance. NaN where the mask has
        no pixel, or all.

    Example:
        >>> scores = torch.tensor([[[0.9, 0.8], [0.7, 0.1]]])
        >>> roc_auc(scores, torch.tensor([[[True, False], [True, False]]]))
        tensor([0.7500], dtype=torch.float64)
    """
    hits, taken = _thresholds(scores, mask)
    hits, others = hits.double(), (taken - hits).double()
    return torch.trapezoid(hits, others) / (hits[:, -1] * others[:, -1])


@_measure
def pointing_game(scores: Tensor, mask: Tensor, *, tolerance: float = 15) -> Tensor:
    """Whether the map's maximum lies on the object, or near it; higher is better.

    Where several pixels share the maximum, the value is the share of them that hit: the hit rate
    expected of one drawn at random. A constant map so has the share of the image that is near the
    object.

    Args:
        scores: (B, H, W), finite, of a floating dtype and any range; higher is more relevant.
        mask: (B, H, W) bool, true on the object.
        tolerance: in pixels, at least 0; the maximum hits if its centre is at most this far from
            the centre of a pixel of the mask. The usual 15 belongs to images of about 224 pixels
            a side; scale it with the image.

    Returns:
        (B,) float64 in [0, 1], on the device of ``scores``; 0 or 1 where the maximum is a single
        pixel. NaN where the mask has no pixel, or all.

    Raises:
        ValueError: as in :func:`average_precision`, or for a negative or infinite ``tolerance``.

    Source:
        Zhang et al. 2018, Top-down neural attention by excitation backprop (arXiv:1608.00507).

    Example:
        >>> scores = torch.tensor([[[0.1, 0.9, 0.3, 0.2]]])
        >>> mask = torch.tensor([[[False, False, False, True]]])
        >>> pointing_game(scores, mask, tolerance=1), pointing_game(scores, mask, tolerance=2)
        (tensor([0.], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    """
    if not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance must be a finite number of at least 0, got {tolerance}")
    highest = ~_above(scores.amax((1, 2), keepdim=True), scores)
    hits = highest & _dilated(mask, min(tolerance, math.hypot(*mask.shape[1:])))
    return hits.sum((1, 2)).double() / highest.sum((1, 2))


@_measure
def mass_accuracy(scores: Tensor, mask: Tensor) -> Tensor:
    """Share of the map's positive relevance that lies on the object; higher is better.

    Args and errors as in :func:`average_precision`. The measure is made for non-negative maps:
    negative scores count as zero.

    Returns:
        (B,) float64 in [0, 1], on the device of ``scores``; the prevalence for a constant map.
        NaN where no score is positive, or the mask has no pixel, or all.

    Source:
        Arras et al. 2022, CLEVR-XAI (arXiv:2003.07258), relevance mass accuracy.

    Example:
        >>> scores = torch.tensor([[[3.0, 0.5], [0.5, -2.0]]])
        >>> mass_accuracy(scores, torch.tensor([[[True, False], [False, False]]]))
        tensor([0.7500], dtype=torch.float64)
    """
    relevance = scores.double().clamp(min=0)
    return (relevance * mask).sum((1, 2)) / relevance.sum((1, 2))


@_measure
def rank_accuracy(scores: Tensor, mask: Tensor) -> Tensor:
    """Share of the K highest pixels that lie on the object, of K pixels; higher is better.

    Where pixels tie for the last places, the value is the expectation over which of them get one.

    Args and errors as in :func:`average_precision`.

    Returns:
        (B,) float64 in [0, 1], on the device of ``scores``; by chance the prevalence. NaN where
        the mask has no pixel, or all.

    Source:
        Arras et al. 2022, CLEVR-XAI (arXiv:2003.07258), relevance rank accuracy.

    Example:
        The object has two pixels; the highest is one of them, and two tie for the second place.

        >>> scores = torch.tensor([[[0.9, 0.5], [0.5, 0.1]]])
        >>> rank_accuracy(scores, torch.tensor([[[True, True], [False, False]]]))
        tensor([0.7500], dtype=torch.float64)
    """
    scores, mask = scores.flatten(1), mask.flatten(1)
    places = mask.sum(1, keepdim=True)
    lowest = -_sort(-scores).gather(1, (places - 1).clamp(min=0))
    above, below = _above(scores, lowest), _above(lowest, scores)
    tied = ~(above | below)
    chance = (places - above.sum(1, keepdim=True)) / tied.sum(1, keepdim=True).double()
    expected = (above & mask).sum(1) + chance[:, 0] * (tied & mask).sum(1)
    return expected / places[:, 0]


@_measure
def iou_at_mean(scores: Tensor, mask: Tensor) -> Tensor:
    """Intersection over union of the object and the pixels above the map's mean; higher is better.

    Args and errors as in :func:`average_precision`. No pixel of a constant map is above its mean.

    Returns:
        (B,) float64 in [0, 1], on the device of ``scores``. NaN where the mask has no pixel, or
        all.

    Source:
        The segmentation test of Chefer et al. 2021 (arXiv:2012.09838).

    Example:
        >>> scores = torch.tensor([[[0.9, 0.8], [0.7, 0.1]]])  # mean 0.625
        >>> iou_at_mean(scores, torch.tensor([[[True, False], [True, False]]]))
        tensor([0.6667], dtype=torch.float64)
    """
    scores, mask = scores.flatten(1), mask.flatten(1)
    above = _above(scores, scores.mean(1, keepdim=True, dtype=torch.float64).to(scores.dtype))
    return (above & mask).sum(1).double() / (above | mask).sum(1)


@_measure
def iou_at_best(scores: Tensor, mask: Tensor) -> Tensor:
    """Intersection over union of the object and the map at its best threshold; higher is better.

    The threshold is chosen for each image with its mask in view: an upper bound of what the map
    could do, never below the prevalence, which the threshold that takes every pixel has.

    Args and errors as in :func:`average_precision`.

    Returns:
        (B,) float64 in [prevalence, 1], on the device of ``scores``. NaN where the mask has no
        pixel, or all.

    Source:
        Choe et al. 2020 (arXiv:2001.07437) on thresholds chosen with the masks.

    Example:
        >>> scores = torch.tensor([[[0.9, 0.8], [0.7, 0.1]]])
        >>> iou_at_best(scores, torch.tensor([[[True, False], [False, False]]]))
        tensor([1.], dtype=torch.float64)
    """
    hits, taken = _thresholds(scores, mask)
    union = taken + hits[:, -1:] - hits
    return (hits.double() / union).amax(1)


def prevalence(mask: Array) -> Tensor:
    """Share of the pixels that lie on the object: what most measures here are worth by chance.

    Args:
        mask: (B, H, W) bool, true on the object.

    Returns:
        (B,) float64 in (0, 1). NaN where the mask has no pixel, or all, so that a mean over images
        covers the same images as the measures beside it.

    Raises:
        ValueError: if ``mask`` is not bool or not (B, H, W).

    Example:
        >>> prevalence(torch.tensor([[[True, False], [False, False]]]))
        tensor([0.2500], dtype=torch.float64)
    """
    mask = to_tensor("mask", mask)
    _check_mask(mask)
    return _defined(mask.double().mean((1, 2)), mask)


def box_mask(boxes: Array, height: int, width: int) -> Tensor:
    """Pixels of an image that lie in any of its boxes.

    Args:
        boxes: (n, 4), x0, y0, x1, y1 in pixel edges, so that the whole image is 0, 0, W, H; each
            box is half-open, [x0, x1) × [y0, y1), and may reach beyond the image or be empty.
        height: H, at least 1.
        width: W, at least 1.

    Returns:
        (H, W) bool, on the device of ``boxes``: true where the pixel's centre, at half-integers,
        is in a box.

    Raises:
        ValueError: if ``boxes`` are not (n, 4), not finite, or reversed (x1 < x0 or y1 < y0), or
            the image has no pixel.

    Example:
        >>> box_mask(torch.tensor([[0.5, 0.0, 2.0, 1.0]]), 2, 3)
        tensor([[ True,  True, False],
                [False, False, False]])
    """
    if not (isinstance(height, int) and isinstance(width, int)) or min(height, width) < 1:
        raise ValueError(f"height, width must be at least 1, got {height} and {width}")
    boxes = to_tensor("boxes", boxes)
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"boxes must be of shape (n, 4), got {tuple(boxes.shape)}")
    x0, y0, x1, y1 = boxes.detach().double().T[..., None]  # (n, 1) each
    if not (boxes.isfinite().all() and (x0 <= x1).all() and (y0 <= y1).all()):
        expected = "finite x0, y0, x1, y1 with x0 <= x1 and y0 <= y1"
        raise ValueError(f"boxes must be {expected}, got {boxes.tolist()}")
    x = torch.arange(width, device=boxes.device) + 0.5
    y = torch.arange(height, device=boxes.device) + 0.5
    columns, rows = (x0 <= x) & (x < x1), (y0 <= y) & (y < y1)
    inside: Tensor = rows[:, :, None] & columns[:, None, :]  # (n, H, W)
    return inside.any(0)


def _above(a: Tensor, b: Tensor) -> Tensor:
    """Where a is higher than b and does not tie with it; bool.

    Scores a ≥ b tie if a − b ≤ 8 ε max(|a|, |b|), with the ε of their dtype.
    """
    return a - b > 8 * torch.finfo(a.dtype).eps * torch.maximum(a.abs(), b.abs())


def _thresholds(scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Count the pixels at or above every threshold, and the mask's among them: (B, P+1) each.

    Entry k is about the k highest pixels if the k-th is the last of its ties, and else repeats the
    entry before those ties. So differences along a row are zero except from threshold to threshold.
    """
    falling, hit = _by_falling_score(scores.flatten(1), mask.flatten(1))
    hits = pad(hit.cumsum(1), (1, 0))
    taken = torch.arange(hits.shape[1], device=hits.device).repeat(len(hits), 1)
    taken[:, 1:-1] *= _above(falling[:, :-1], falling[:, 1:])
    taken = taken.cummax(1).values
    return hits.gather(1, taken), taken


def _by_falling_score(scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Scores from the highest down, and whether each belongs to the mask: (B, P) each."""
    if scores.dtype == torch.float64:
        order = _argsort(-scores)
        return scores.gather(1, order), mask.gather(1, order)
    # A float32 leaves the last bits of a float64 empty. With the mask in the last one, values are
    # sorted instead of indices, in half the time.
    tagged = _sort(((-scores.double()).view(torch.int64) | mask).view(torch.float64))
    return -tagged.float(), tagged.view(torch.int64) & 1


def _sort(x: Tensor) -> Tensor:
    """Each row from the lowest up: (B, P). On a CPU NumPy is several times as fast as PyTorch."""
    on_cpu = x.device.type == "cpu"
    return torch.from_numpy(np.sort(x.numpy(), axis=1)) if on_cpu else x.sort(1).values


def _argsort(x: Tensor) -> Tensor:
    """Indices that sort each row, ties in no particular order: (B, P). See ``_sort``."""
    on_cpu = x.device.type == "cpu"
    return torch.from_numpy(np.argsort(x.numpy(), axis=1)) if on_cpu else x.argsort(1)


def _dilated(mask: Tensor, radius: float) -> Tensor:
    """Pixels whose centre is at most ``radius`` from that of a pixel of the mask: (B, H, W)."""
    height, width = mask.shape[1:]
    reach = int(radius)
    count = pad(mask, (reach + 1, reach, reach, reach)).cumsum(2, dtype=torch.int32)
    near = torch.zeros_like(mask)
    for dy in range(-reach, reach + 1):
        half = math.isqrt(int(radius**2 - dy**2))  # of the disc's chord in this row
        rows = count[:, reach + dy :][:, :height]
        right, left = rows[..., reach + 1 + half :], rows[..., reach - half :]
        near |= right[..., :width] > left[..., :width]
    return near
