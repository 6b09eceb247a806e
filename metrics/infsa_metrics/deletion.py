"""Deletion curves: what happens to a prediction as patches are taken away in a map's order.

Patches are ranked once, by the map. MoRF removes the most relevant first, LeRF the least relevant
first. The two read in opposite senses, which is the classic trap: a faithful map makes p fall
*early* under MoRF (low area under the curve, high ``aoc``) and *late* under LeRF (high area, low
``aoc``). ``srg`` folds both into one figure for which higher is better.

Sources: MoRF, Samek et al. 2017 (arXiv:1509.06321); the raw area (deletion AUC), Petsiuk et al.
2018, RISE (arXiv:1806.07421); SRG, Blücher et al. 2024 (arXiv:2401.06654).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from infsa_metrics.arrays import Array, to_tensor

#: ``None``, one patch a step; a number of steps, or ``"few"``; or counts of removed patches.
Steps = int | Literal["few"] | Sequence[int] | None
#: ``"few"``, where that costs at most a quarter of all patches one by one; fewer than 12 patches
#: are removed in 2 steps.
FEW_STEPS = 24
#: ``predict_masked(images (B, C, H, W), removed (B, gh, gw) bool) -> probabilities (B, K)``
PredictMasked = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class DeletionCurve:
    """One deletion curve per image; float64 on the CPU.

    Attributes:
        fractions: (S+1,), share of patches removed, strictly increasing, from 0 to 1 inclusive.
        probabilities: (B, S+1), p_s in [0, 1], probability of the target after each removal.
        tied: (B,) in [0, 1], share of patches whose score equals another patch's score; those
            were put in order by a random draw.
        order: ``"morf"`` or ``"lerf"``.
        top_share: (B, S+1) in [0, 1], 1/k where the target is one of the k classes that share the
            largest probability, so 1 where it alone has it; 0 where another class has a larger
            one. NaN where no classes can be compared: features, a single class, or a NaN among
            the other classes. ``None`` for a curve that was not made by :func:`deletion_curve`.
    """

    fractions: Tensor
    probabilities: Tensor
    tied: Tensor
    order: Literal["morf", "lerf"]
    top_share: Tensor | None = None

    def aoc(self, floor: float = 0.0) -> Tensor:
        """Area over the normalised curve, 1 − ∫ p_s / p_0: (B,), by the trapezoid rule.

        Under MoRF higher is better; under LeRF lower is better. 0 for a model that never reacts,
        negative when removal raises p, and at most 1 − f_1 / 2 with f_1 the first step's share
        of the patches: 1 − 1/(2S) for one patch a step.

        Args:
            floor: in [0, 1); images with p_0 <= floor (so always those with p_0 = 0) give NaN.

        Raises:
            ValueError: if ``floor`` is out of range.

        Example:
            >>> steps, p = torch.tensor([0.0, 0.5, 1.0]), torch.tensor([[0.8, 0.4, 0.0]])
            >>> DeletionCurve(steps, p, torch.zeros(1), "morf").aoc()
            tensor([0.5000])
        """
        _require(0 <= floor < 1, "floor", "a probability in [0, 1)", floor)
        p_0 = self.probabilities[:, :1].where(self.probabilities[:, :1] > floor, torch.nan)
        return 1 - torch.trapezoid(self.probabilities / p_0, self.fractions)

    def auc(self) -> Tensor:
        """Raw area under the curve, ∫ p_s: (B,) in [0, 1], by the trapezoid rule.

        Under MoRF (RISE's deletion score) lower is better; under LeRF higher is better.

        Example:
            >>> steps, p = torch.tensor([0.0, 0.5, 1.0]), torch.tensor([[0.8, 0.4, 0.0]])
            >>> DeletionCurve(steps, p, torch.zeros(1), "morf").auc()
            tensor([0.4000])
        """
        return torch.trapezoid(self.probabilities, self.fractions)

    def predicted(self, *, independent: bool = False) -> Tensor:
        """Whether the target is still the predicted class after each removal: (B, S+1) in [0, 1].

        The mean over images is the accuracy curve under deletion. Under MoRF lower is better;
        under LeRF higher is better. With the label as target, its first point is the accuracy on
        clean images.

        Args:
            independent: how the probabilities are read. ``False``: one class is right (softmax);
                the predicted class is the one with the largest probability. Where k classes share
                it, each of them counts 1/k, what a random draw among them gives on average.
                ``True``: each label is right or wrong on its own (sigmoid); a label is predicted
                where its probability is above 1/2, and counts 1/2 where it equals 1/2. The label
                with the largest probability on the clean image may be below 1/2; it then starts
                at 0.

        Returns:
            1 where the target is predicted, 0 where it is not, a share between them in a tie;
            float64. NaN where ``top_share`` is NaN or ``None``, unless ``independent``.

        Example:
            >>> steps, p = torch.tensor([0.0, 0.5, 1.0]), torch.tensor([[0.8, 0.5, 0.3]])
            >>> top_share = torch.tensor([[1.0, 0.5, 1.0]])  # a tie of two, then three classes
            >>> curve = DeletionCurve(steps, p, torch.zeros(1), "morf", top_share)
            >>> curve.predicted().tolist(), curve.predicted(independent=True).tolist()
            ([[1.0, 0.5, 1.0]], [[1.0, 0.5, 0.0]])
        """
        if independent:
            return torch.heaviside(self.probabilities.double() - 0.5, torch.tensor(0.5).double())
        if self.top_share is None:
            return torch.full_like(self.probabilities, torch.nan, dtype=torch.float64)
        return self.top_share.double()

    def predicted_auc(self, *, independent: bool = False) -> Tensor:
        """Area under :meth:`predicted`: (B,) in [0, 1], by the trapezoid rule.

        The mean over images is the area under the accuracy curve. Under MoRF lower is better;
        under LeRF higher is better. 1 for a target that every removal leaves predicted.

        Args:
            independent: as for :meth:`predicted`.

        Returns:
            (B,) float64; NaN where a point of :meth:`predicted` is NaN.

        Example:
            >>> steps, p = torch.tensor([0.0, 0.5, 1.0]), torch.tensor([[0.8, 0.7, 0.3]])
            >>> top_share = torch.tensor([[1.0, 1.0, 0.0]])
            >>> DeletionCurve(steps, p, torch.zeros(1), "morf", top_share).predicted_auc()
            tensor([0.7500], dtype=torch.float64)
        """
        predicted = self.predicted(independent=independent)
        return torch.trapezoid(predicted, self.fractions.double())


def srg(morf: DeletionCurve, lerf: DeletionCurve) -> Tensor:
    """Symmetric relevance gain, AUC(LeRF) − AUC(MoRF): (B,) in [−1, 1], higher is better.

    Zero on average for a map that knows nothing. Blücher et al. 2024 (arXiv:2401.06654).

    Raises:
        ValueError: if the curves are swapped, or differ in their images or steps.

    Example:
        >>> steps, tied = torch.tensor([0.0, 0.5, 1.0]), torch.zeros(1)
        >>> morf = DeletionCurve(steps, torch.tensor([[1.0, 0.2, 0.0]]), tied, "morf")
        >>> lerf = DeletionCurve(steps, torch.tensor([[1.0, 0.8, 0.0]]), tied, "lerf")
        >>> srg(morf, lerf)
        tensor([0.3000])
    """
    _require(morf.order == "morf", "morf", "a curve of order 'morf'", repr(morf.order))
    _require(lerf.order == "lerf", "lerf", "a curve of order 'lerf'", repr(lerf.order))
    same = morf.probabilities.shape == lerf.probabilities.shape
    same = same and torch.equal(morf.fractions, lerf.fractions)
    got = f"{tuple(morf.probabilities.shape)} and {tuple(lerf.probabilities.shape)}"
    _require(same, "morf, lerf", "curves of the same images at the same fractions", got)
    return lerf.auc() - morf.auc()


def rank_patches(patch_scores: Array, seeds: Sequence[int | str] | None = None) -> Tensor:
    """Rank patches from the highest score to the lowest, ties in random order.

    Args:
        patch_scores: (B, gh, gw), any finite values.
        seeds: B image identities; each seeds the draw that breaks its own image's ties, so that
            the ranking does not depend on the image's place in a batch. ``None`` takes the place,
            0 to B−1. The number 7 and the string "7" are the same identity.

    Returns:
        (B, gh·gw) long, on the CPU: row-major patch indices, most relevant first.

    Raises:
        ValueError: for scores that are not finite or not (B, gh, gw), or unusable seeds.

    Example:
        >>> rank_patches(torch.tensor([[[0.1, 0.7], [0.4, 0.2]]]))
        tensor([[1, 2, 3, 0]])
    """
    scores = _flat_scores(patch_scores)
    seeds = range(len(scores)) if seeds is None else seeds
    proper = not isinstance(seeds, str) and all(isinstance(s, (Integral, str)) for s in seeds)
    _require(proper, "seeds", "a sequence of ints or strings", repr(seeds)[:80])
    _require(
        len(seeds) == len(scores),
        "seeds",
        f"{len(scores)} identities, one for each image",
        len(seeds),
    )
    ranking = torch.empty(scores.shape, dtype=torch.long)
    for row, image_scores, seed in zip(ranking, scores, seeds, strict=True):
        digest = hashlib.sha256(str(seed).encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))
        shuffled = torch.randperm(len(row), generator=generator)
        row[:] = shuffled[image_scores[shuffled].argsort(descending=True, stable=True)]
    return ranking


@torch.no_grad()
def deletion_curve(
    predict_masked: PredictMasked,
    images: Array,
    targets: Array,
    patch_scores: Array,
    *,
    order: Literal["morf", "lerf"] = "morf",
    steps: Steps = None,
    seeds: Sequence[int | str] | None = None,
    batch_size: int = 64,
) -> DeletionCurve:
    """Remove patches in the order of their scores and follow the target's probability.

    Args:
        predict_masked: gives the class probabilities (n, K) of n images with some patches removed;
            or features (n, D), of a model without a classifier.
        images: (B, C, H, W), never changed; or what else ``predict_masked`` takes for B images,
            in four dimensions, such as what it has computed of them once.
        targets: (B,) integer, the class to follow: usually the one predicted on the clean image.
            Or (B, D) float, the features to stay close to: usually the clean image's own. What is
            followed then is the cosine of the features, or 0 where that is negative.
        patch_scores: (B, gh, gw), finite; ranked once, higher is more relevant.
        order: ``"morf"`` removes the most relevant first; ``"lerf"`` walks the same ranking
            backwards.
        steps: ``None``, one patch a step; 2 <= S <= P = gh·gw, S steps that are a little denser
            early, where curves bend (the count removed after step s is P (s/S)^1.25, rounded,
            raised where needed so that every step removes a patch); ``"few"``, 24 of them, or as
            many as cost a quarter of ``None`` if that is fewer, but at least 2; or the counts
            themselves, from 0 up to P. A curve of one step is the same for every map: nothing is
            removed, then everything.
        seeds: B image identities, for breaking ties; see :func:`rank_patches`.
        batch_size: most masked images shown to the model at once. (Step, image) pairs fill the
            batches, all images at one step before the next, so that memory does not grow with the
            number of steps.

    Returns:
        The curves, with both ends: nothing removed and everything removed. The same forward
        passes tell whether the target is still the predicted class
        (:meth:`DeletionCurve.predicted`).

    Raises:
        ValueError: for an argument of the wrong shape, type or range, scores that are not finite,
            or a ``predict_masked`` whose answer is not n rows of probabilities.

    Example:
        A model whose p is the share of patches left falls in a straight line, whatever the map:

        >>> def predict_masked(images, removed):
        ...     return (~removed).double().mean((1, 2))[:, None]
        >>> images, targets = torch.zeros(1, 3, 8, 8), torch.tensor([0])
        >>> curve = deletion_curve(predict_masked, images, targets, torch.rand(1, 2, 2))
        >>> curve.probabilities.tolist(), curve.aoc().tolist()
        ([[1.0, 0.75, 0.5, 0.25, 0.0]], [0.5])
    """
    images, targets = to_tensor("images", images), to_tensor("targets", targets)
    patch_scores = to_tensor("patch_scores", patch_scores)
    _require(images.ndim == 4, "images", "of shape (B, C, H, W)", tuple(images.shape))
    _require(order in ("morf", "lerf"), "order", "'morf' or 'lerf'", repr(order))
    is_size = _is_int(batch_size) and batch_size >= 1
    _require(is_size, "batch_size", "an integer of at least 1", repr(batch_size))
    size = len(images)
    scores = _flat_scores(patch_scores)
    _require(len(scores) == size, "patch_scores", f"{size} maps, one for each image", len(scores))
    targets = checked_targets(targets, size)

    ranking = rank_patches(patch_scores, seeds)
    if order == "lerf":
        ranking = ranking.flip(1)
    place = ranking.argsort(1)  # (B, P): when each patch goes; it is gone once place < count
    counts = removed_counts(steps, scores.shape[1])

    probabilities = torch.empty(size, len(counts), dtype=torch.float64)
    top_share = torch.empty_like(probabilities)
    pairs = torch.cartesian_prod(torch.arange(len(counts)), torch.arange(size))
    for start in range(0, len(pairs), batch_size):
        step, image = pairs[start : start + batch_size].unbind(1)
        removed = (place[image] < counts[step, None]).reshape(-1, *patch_scores.shape[1:])
        p = predict_masked(images[image.to(images.device)], removed.to(images.device))
        probabilities[image, step] = target_probability(p, targets[image])
        top_share[image, step] = _top_share(p, targets[image])

    fractions = counts.double() / scores.shape[1]
    return DeletionCurve(fractions, probabilities, _tied_share(scores), order, top_share)


def removed_counts(steps: Steps, patches: int) -> Tensor:
    """Return how many patches are gone at each point of the curve: (S+1,), from 0 to all."""
    _require(patches > 1, "patch_scores", "maps of several patches, to be put in order", patches)
    if steps is None:
        return torch.arange(patches + 1)
    if isinstance(steps, str) and steps == "few":
        steps = max(2, min(FEW_STEPS, patches // 4 - 1))
    if not isinstance(steps, Iterable):
        valid = _is_int(steps) and 2 <= steps <= patches
        expected = f"None, 'few', 2 to {patches} steps, or a sequence of counts"
        alike = ", with which the curves of all maps are alike" if steps == 1 else ""
        _require(valid, "steps", expected, f"{steps}{alike}")
        s = torch.arange(steps + 1)
        removed = (patches * (s.double() / steps) ** 1.25).round().long()
        return (removed - s).cummax(0).values + s  # at least one patch a step
    counts = [int(count) for count in steps if _is_int(count)]
    rises = all(a < b for a, b in zip(counts, counts[1:], strict=False))
    valid = len(counts) == len(steps) and rises and counts[:1] == [0] and counts[-1] == patches
    expected = f"counts that rise from 0 to all {patches} patches, with one between them"
    _require(valid and len(counts) > 2, "steps", expected, steps)
    return torch.tensor(counts)


def _flat_scores(patch_scores: Array) -> Tensor:
    patch_scores = to_tensor("patch_scores", patch_scores)
    shape = tuple(patch_scores.shape)
    _require(len(shape) == 3 and 0 not in shape[1:], "patch_scores", "of shape (B, gh, gw)", shape)
    _require(not patch_scores.is_complex(), "patch_scores", "real scores", patch_scores.dtype)
    scores = patch_scores.detach().to("cpu", torch.float64).flatten(1)
    bad = int((~scores.isfinite()).sum())
    _require(bad == 0, "patch_scores", "finite scores", f"{bad} that are NaN or infinite")
    return scores


def _tied_share(scores: Tensor) -> Tensor:
    """Return the share of patches whose score equals another's: (B, P) -> (B,)."""
    ordered = scores.sort(1).values
    equal = ordered[:, 1:] == ordered[:, :-1]
    left, right = (torch.nn.functional.pad(equal, pad) for pad in ((1, 0), (0, 1)))
    return (left | right).double().mean(1)


def checked_targets(targets: Tensor, size: int) -> Tensor:
    """Targets on the CPU: (B,) long, classes, or (B, D) float64, features."""
    if targets.ndim == 2 and targets.is_floating_point():
        shape = tuple(targets.shape)
        _require(len(targets) == size, "targets", f"features of shape ({size}, D)", shape)
        usable = bool((targets.isfinite().all(-1) & (targets != 0).any(-1)).all())
        _require(usable, "targets", "features that are finite and not all zero", "others")
        return targets.detach().to("cpu", torch.float64)
    whole = not (targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool)
    _require(whole, "targets", "class indices of an integer dtype", targets.dtype)
    _require(targets.shape == (size,), "targets", f"of shape ({size},)", tuple(targets.shape))
    targets = targets.to("cpu", torch.long)
    _require(bool((targets >= 0).all()), "targets", "class indices from 0", targets.tolist())
    return targets


def target_probability(p: Array, targets: Tensor) -> Tensor:
    """What is followed of the answers of ``predict_masked``, (n, K) -> (n,).

    The probability of each row's class, or the cosine of each row's features, at least 0.
    """
    answer = "the result of predict_masked"
    is_array = isinstance(p, (Tensor, np.ndarray))
    proper = is_array and p.ndim == 2 and len(p) == len(targets)
    shape = tuple(p.shape) if is_array else type(p).__name__
    _require(proper, answer, f"probabilities of shape ({len(targets)}, K)", shape)
    p = to_tensor(answer, p)
    if targets.ndim == 2:
        expected = f"features of shape ({len(targets)}, {targets.shape[1]})"
        _require(p.shape == targets.shape, answer, expected, shape)
        _require(
            bool(p.isfinite().all()),
            answer,
            "finite features",
            "NaN or infinity",
        )
        similarity = torch.cosine_similarity(p.to("cpu", torch.float64), targets)
        return similarity.clamp(0, 1)
    largest = int(targets.max())
    _require(largest < p.shape[1], "targets", f"indices below K = {p.shape[1]}", largest)
    p_target = p.to("cpu", torch.float64).gather(1, targets[:, None]).squeeze(1)
    valid = bool(((p_target >= 0) & (p_target <= 1 + 1e-3)).all())
    got = f"{p_target.min().item():.4g} to {p_target.max().item():.4g}"
    _require(valid, answer, "probabilities in [0, 1], not logits or NaN", got)
    return p_target


def _top_share(p: Array, targets: Tensor) -> Tensor:
    """Return 1/k where the target is one of k classes with the largest p, else 0: (n, K) -> (n,).

    ``p`` was checked by :func:`target_probability`. NaN for features, one class, or a NaN in p.
    """
    if targets.ndim == 2 or p.shape[1] == 1:
        return torch.full((len(targets),), torch.nan, dtype=torch.float64)
    p = to_tensor("the result of predict_masked", p).to("cpu", torch.float64)
    largest = p == p.amax(1, keepdim=True)
    share = largest.double().gather(1, targets[:, None]).squeeze(1) / largest.sum(1)
    return share.where(~p.isnan().any(1), torch.nan)


def _is_int(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _require(valid: bool, argument: str, expected: str, got: object) -> None:
    if not valid:
        raise ValueError(f"{argument} must be {expected}, got {got}")
