"""Infidelity and sensitivity of maps, by Captum: is a map true to the model, and is it steady.

Infidelity asks whether the scores of removed patches add up to what the model loses; sensitivity,
how far a map moves when its image hardly does. They belong together: a map that looks at nothing
has the best sensitivity, 0, and a poor infidelity.

Source: Yeh et al. 2019, On the (In)fidelity and Sensitivity of Explanations (arXiv:1901.09392).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from infsa_metrics.arrays import Array, to_tensor
from infsa_metrics.deletion import (
    PredictMasked,
    _flat_scores,
    _is_int,
    _require,
    checked_targets,
    target_probability,
)

__all__ = ["Explain", "infidelity", "sensitivity_max"]

#: ``explain(images (n, C, H, W), targets (n,)) -> maps (n, ...)``
Explain = Callable[[Tensor, Tensor], Tensor]


def infidelity(
    predict_masked: PredictMasked,
    images: Array,
    targets: Array,
    patch_scores: Array,
    *,
    normalize: bool = True,
    samples: int | None = 100,
    seeds: Sequence[int | str] | None = None,
    batch_size: int = 64,
) -> Tensor:
    """Mean squared error of a map as a prediction of what the model loses, over removed squares.

    With I the square as zeros and ones over patches, p the target's probability and φ the scores:
    E_I (β Σ I φ − (p(x) − p(x without I)))². The squares are those of 1 to ⌈min(gh, gw)/2⌉ patches
    a side at every place, all as likely, as the authors take squares of 1 to 10 pixels.

    Args:
        predict_masked: gives the class probabilities (n, K) of n images with some patches removed,
            or features (n, D).
        images: (B, C, H, W), never changed.
        targets: (B,) integer, the class that the maps explain; or (B, D) float, features, as
            :func:`~infsa_metrics.deletion_curve` takes them.
        patch_scores: (B, gh, gw), finite.
        normalize: whether β is the factor that makes the error least, one per image, as the
            authors and Captum have it: scores then need no units, nor a sign, as β may be
            negative. Else β = 1, and the scores must be losses of probability.
        samples: squares per image, at most, drawn without repetition; None for all there are.
        seeds: B image identities; each seeds its own image's draw. ``None`` takes the place.
        batch_size: most masked images shown to the model at once.

    Returns:
        (B,) float64, on the CPU; lower is better. 0 for scores in proportion to the losses;
        normalised at most E (p(x) − p(x without I))², which is what a map of zeros has. Losses
        grow with area, so a constant map is a better yardstick than that.

    Raises:
        ValueError: for an argument of the wrong shape, type or range, scores that are not finite,
            or a ``predict_masked`` whose answer is not n rows of probabilities.

    Example:
        A model whose p is the share of patches left loses ¼ with each of four:

        >>> def predict_masked(images, removed):
        ...     return (~removed).double().mean((1, 2))[:, None]
        >>> images, targets = torch.zeros(1, 3, 8, 8), torch.tensor([0])
        >>> constant, corner = torch.ones(1, 2, 2), torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
        >>> infidelity(predict_masked, images, targets, constant)
        tensor([0.], dtype=torch.float64)
        >>> infidelity(predict_masked, images, targets, corner)  # ¾ of (¼)²
        tensor([0.0469], dtype=torch.float64)
    """
    from captum.metrics import infidelity as captum_infidelity

    images, targets, seeds = _checked(images, targets, seeds, batch_size)
    _require(samples is None or _positive(samples), "samples", "None or an integer from 1", samples)
    scores = _flat_scores(patch_scores).reshape(np.shape(patch_scores))
    _require(len(scores) == len(images), "patch_scores", f"{len(images)} maps", len(scores))
    every = _squares(*scores.shape[1:])

    def of_image(i: int) -> Tensor:
        squares = every[torch.randperm(len(every), generator=_generator(seeds[i]))[:samples]]
        to_come = iter(squares)

        def probability(kept: Tensor) -> Tensor:
            shown = images[i].expand(len(kept), *images.shape[1:])
            p = predict_masked(shown, (kept == 0).to(images.device))
            return target_probability(p, targets[i : i + 1].expand(len(kept), *targets.shape[1:]))

        def remove(kept: Tensor) -> tuple[Tensor, Tensor]:
            square = torch.stack(list(islice(to_come, len(kept))))
            return square, kept - square

        value: Tensor = captum_infidelity(
            probability,
            remove,
            torch.ones_like(scores[i : i + 1]),
            scores[i : i + 1],
            n_perturb_samples=len(squares),
            max_examples_per_batch=min(batch_size, len(squares)),
            normalize=normalize,
        )
        return value.clamp(min=0)  # rounding

    return torch.cat([of_image(i) for i in range(len(images))])


def sensitivity_max(
    explain: Explain,
    images: Array,
    targets: Array,
    *,
    radius: float = 0.02,
    samples: int = 10,
    seeds: Sequence[int | str] | None = None,
    batch_size: int = 64,
) -> Tensor:
    """Largest relative change of a map under noise, max ‖φ(x + δ) − φ(x)‖₂ / ‖φ(x)‖₂.

    δ is uniform in [−radius, radius] at every pixel and channel, drawn ``samples`` times.

    Args:
        explain: gives the maps (n, ...) of n images for n classes, without gradients enabled. A
            method that draws should draw alike for every image, or its own noise counts too.
        images: (B, C, H, W), never changed.
        targets: (B,) integer, the class to explain, or (B, D) float, features; the same with noise
            and without.
        radius: above 0, in the units of ``images``.
        samples: noisy copies per image.
        seeds: B image identities; each seeds its own image's noise. ``None`` takes the place.
        batch_size: most noisy images explained at once.

    Returns:
        (B,) float64, on the CPU, at least 0; lower is steadier. It is no virtue on its own: a map
        that does not look at the image has 0. NaN where a map is all zero or has a NaN.

    Raises:
        ValueError: for an argument of the wrong shape, type or range, or an ``explain`` whose
            answer is not n maps.

    Example:
        >>> def brightness(images, targets):
        ...     return images.mean(1)
        >>> images, targets = torch.ones(1, 3, 8, 8), torch.tensor([0])
        >>> bool(0 < sensitivity_max(brightness, images, targets, radius=0.1) < 0.1)
        True
        >>> sensitivity_max(lambda images, targets: 0 * images + 5, images, targets)
        tensor([0.], dtype=torch.float64)
    """
    from captum.metrics import sensitivity_max as captum_sensitivity_max

    images, targets, seeds = _checked(images, targets, seeds, batch_size)
    _require(_positive(samples), "samples", "an integer from 1", samples)
    _require(0 < radius < math.inf, "radius", "a number above 0", radius)

    def of_image(i: int) -> Tensor:
        generator = _generator(seeds[i])

        def maps(shown: Tensor | tuple[Tensor]) -> tuple[Tensor]:
            batch = shown if isinstance(shown, Tensor) else shown[0]
            target = targets[i : i + 1].to(batch.device)
            found = explain(batch, target.expand(len(batch), *targets.shape[1:]))
            is_array = isinstance(found, (Tensor, np.ndarray))
            proper = is_array and found.ndim > 1 and len(found) == len(batch)
            got = tuple(found.shape) if is_array else type(found).__name__
            _require(proper, "the result of explain", f"maps of shape ({len(batch)}, ...)", got)
            flat = to_tensor("explain", found).detach().to("cpu", torch.float64).flatten(1)
            return (flat.where((flat != 0).any(1, keepdim=True), torch.nan),)

        def shake(batch: Tensor) -> Tensor:
            draws = [
                torch.rand(batch.shape[1:], generator=generator, dtype=torch.float32) for _ in batch
            ]
            return batch + (radius * (2 * torch.stack(draws) - 1)).to(batch)

        value: Tensor = captum_sensitivity_max(
            maps,
            images[i : i + 1],
            shake,
            n_perturb_samples=samples,
            max_examples_per_batch=min(batch_size, samples),
        )
        return value

    return torch.cat([of_image(i) for i in range(len(images))])


def _squares(gh: int, gw: int) -> Tensor:
    """Every square of 1 to ⌈min(gh, gw)/2⌉ patches a side: (K, gh, gw) of zeros and ones."""
    placed = [
        (side, top, left)
        for side in range(1, (min(gh, gw) + 1) // 2 + 1)
        for top in range(gh - side + 1)
        for left in range(gw - side + 1)
    ]
    squares = torch.zeros(len(placed), gh, gw, dtype=torch.float64)
    for square, (side, top, left) in zip(squares, placed, strict=True):
        square[top : top + side, left : left + side] = 1
    return squares


def _checked(
    images: Array, targets: Array, seeds: Sequence[int | str] | None, batch_size: int
) -> tuple[Tensor, Tensor, Sequence[int | str]]:
    """Images, targets as (B,) long on the CPU, and one seed per image."""
    images, targets = to_tensor("images", images), to_tensor("targets", targets)
    _require(images.ndim == 4, "images", "of shape (B, C, H, W)", tuple(images.shape))
    _require(_positive(batch_size), "batch_size", "an integer from 1", batch_size)
    size = len(images)
    targets = checked_targets(targets, size)
    seeds = range(size) if seeds is None else seeds
    proper = not isinstance(seeds, str) and len(seeds) == size
    _require(proper, "seeds", f"a sequence of {size} identities", repr(seeds)[:80])
    return images, targets, seeds


def _positive(value: object) -> bool:
    return _is_int(value) and value >= 1  # type: ignore[operator]


def _generator(seed: int | str) -> torch.Generator:
    """Seeded by an image's identity; 7 and "7" are the same."""
    digest = hashlib.sha256(f"faithfulness of {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))
