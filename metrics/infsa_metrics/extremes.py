"""The best and the worst order of removing patches: what a deletion curve can reach at all.

A model that any deletion confuses gives every map a high area over the curve, so areas of different
models cannot be compared. NAOPC can: it says where the area of a map lies between that of the worst
and of the best order of the same image and model.

Source: Edin et al. 2024, Normalized AOPC (arXiv:2408.08137).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infsa_metrics.arrays import Array, to_tensor
from infsa_metrics.deletion import (
    PredictMasked,
    Steps,
    checked_targets,
    removed_counts,
    target_probability,
)

__all__ = ["ExtremeOrders", "extreme_orders", "naopc"]

#: Up to so many patches all their sets are tried: 4,096 masked images.
EXACT_PATCHES = 12
#: Areas that differ by no more are equal.
ROUNDING = 1e-6
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ExtremeOrders:
    """The orders with the largest and the smallest area over the curve, image by image.

    Attributes:
        best, worst: (B, P) long, row-major patch indices in the order of their removal.
        best_aoc, worst_aoc: (B,) float64, their areas over the curve, as of
            :meth:`infsa_metrics.DeletionCurve.aoc`; NaN where p_0 is 0.
        exact: whether no order is better or worse. Else the search found a lower bound of the
            largest area and an upper bound of the smallest.
        passes: masked images that were shown to the model.
    """

    best: Tensor
    worst: Tensor
    best_aoc: Tensor
    worst_aoc: Tensor
    exact: bool
    passes: int


@torch.no_grad()
def extreme_orders(
    predict_masked: PredictMasked,
    images: Array,
    targets: Array,
    grid: tuple[int, int],
    *,
    steps: Steps = None,
    beam: int = 5,
    batch_size: int = 64,
) -> ExtremeOrders:
    """Search the orders of removal with the largest and the smallest area over the curve.

    Up to 12 patches the answer is exact: the area of an order depends only on the sets of patches
    that are gone at the points of the curve, so all sets are tried, and the best chain of them is
    found by dynamic programming. Beyond, it is a beam search. In each step every patch that is left
    is removed on its own. The patches that lower the probability most (for the worst order, least)
    are then removed together, as many as the step removes. Of all candidates those with the best
    area so far are kept.

    Args:
        predict_masked, images, targets, steps, batch_size: as for
            :func:`infsa_metrics.deletion_curve`. Areas are comparable only with the same steps.
        grid: (gh, gw), the patch grid, of P = gh·gw patches.
        beam: candidates that are kept after each step, at least 1. The search makes about
            beam × P × steps passes an image.

    Returns:
        :class:`ExtremeOrders`.

    Raises:
        ValueError: as :func:`infsa_metrics.deletion_curve`, or if ``beam`` or ``grid`` is out of
            range.

    Example:
        Patches that weigh 1, 2 and 3 of 6; p is the share that is left:

        >>> weights = torch.tensor([[1.0, 2.0, 3.0]])
        >>> def predict_masked(images, removed):
        ...     return (weights * ~removed).sum((1, 2), dtype=torch.float64)[:, None] / 6
        >>> found = extreme_orders(predict_masked, torch.zeros(1, 1, 1, 3), [0], (1, 3))
        >>> found.best.tolist(), found.worst.tolist(), found.exact
        ([[2, 1, 0]], [[0, 1, 2]], True)
        >>> found.best_aoc, found.worst_aoc  # 1 - (1/2 + 3/6 + 1/6) / 3, 1 - (1/2 + 5/6 + 3/6) / 3
        (tensor([0.6111], dtype=torch.float64), tensor([0.3889], dtype=torch.float64))
    """
    images, targets = to_tensor("images", images), to_tensor("targets", targets)
    if images.ndim != 4:
        raise ValueError(f"images must be of shape (B, C, H, W), got {tuple(images.shape)}")
    patches = _patches(grid)
    for name, value in (("beam", beam), ("batch_size", batch_size)):
        if not _is_count(value):
            raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    targets = checked_targets(targets, len(images))
    counts = removed_counts(steps, patches).tolist()
    exact = patches <= EXACT_PATCHES
    found: list[tuple[_Order, _Order]] = []
    passes = 0
    for i in range(len(images)):
        image = _Image(predict_masked, images, targets, i, grid, batch_size)
        if exact:
            found.append(_exact(image, counts, patches))
        else:
            found.append(tuple(_beam(image, counts, patches, beam, s) for s in (1, -1)))  # type: ignore[arg-type]
        passes += image.passes
    best, worst = [best for best, _ in found], [worst for _, worst in found]
    return ExtremeOrders(
        torch.tensor([order.patches for order in best], dtype=torch.long).view(-1, patches),
        torch.tensor([order.patches for order in worst], dtype=torch.long).view(-1, patches),
        torch.tensor([order.aoc for order in best], dtype=torch.float64),
        torch.tensor([order.aoc for order in worst], dtype=torch.float64),
        exact,
        passes,
    )


def naopc(aoc: Array, extremes: ExtremeOrders) -> Tensor:
    """The area of a map between those of the worst and the best order, (B,) float64.

    Args:
        aoc: (B,) areas over the curve under MoRF, made with the steps of ``extremes``.
        extremes: of the same images, model and steps.

    Returns:
        0 for the worst order and 1 for the best; higher is better. It may leave [0, 1] where the
        orders are not exact, and is not cut there: a map that does better than the search shows
        how good the search is. NaN where the area is undefined, or the best and the worst differ
        by no more than 1e-6, which float32 probabilities do by rounding alone.

    Raises:
        ValueError: if there is not one area for each image.

    Example:
        >>> nan = torch.zeros(2, 3)
        >>> areas = torch.tensor([0.9, 0.4]), torch.tensor([0.1, 0.4])
        >>> naopc([0.5, 0.4], ExtremeOrders(nan, nan, *areas, True, 0))
        tensor([0.5000,    nan], dtype=torch.float64)
    """
    areas = to_tensor("aoc", aoc).detach().to("cpu", torch.float64)
    if areas.shape != extremes.best_aoc.shape:
        raise ValueError(
            f"aoc must be of shape {tuple(extremes.best_aoc.shape)}, got {tuple(areas.shape)}"
        )
    best, worst = extremes.best_aoc.double(), extremes.worst_aoc.double()
    width = best - worst
    return (areas - worst) / width.where(width > ROUNDING, torch.nan)


def _is_count(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _patches(grid: tuple[int, int]) -> int:
    """How many patches a grid has, at least 2."""
    proper = isinstance(grid, Sequence) and len(grid) == 2 and all(map(_is_count, grid))
    if not proper or grid[0] * grid[1] < 2:
        raise ValueError(f"grid must be (gh, gw), integers of several patches, got {grid!r}")
    return grid[0] * grid[1]


@dataclass(frozen=True)
class _Order:
    """An order of removal and its area over the curve."""

    patches: list[int]
    aoc: float


class _Image:
    """One image: the probability of its target with sets of patches removed, each asked once."""

    def __init__(
        self,
        predict_masked: PredictMasked,
        images: Tensor,
        targets: Tensor,
        index: int,
        grid: tuple[int, int],
        batch_size: int,
    ) -> None:
        self._predict, self._images, self._targets = predict_masked, images, targets
        self._index, self._grid, self._batch_size = index, grid, batch_size
        self._known: dict[bytes, float] = {}
        self.passes = 0

    def probabilities(self, masks: Mask) -> NDArray[np.float64]:
        """p of masks (n, P) of removed patches, (n,)."""
        keys = [mask.tobytes() for mask in np.packbits(masks, axis=1)]
        new = {key: i for i, key in enumerate(keys) if key not in self._known}
        places = list(new.values())
        for start in range(0, len(places), self._batch_size):
            chosen = places[start : start + self._batch_size]
            removed = torch.from_numpy(masks[chosen]).reshape(-1, *self._grid)
            index = torch.full((len(chosen),), self._index)
            device = self._images.device
            p = self._predict(self._images[index.to(device)], removed.to(device))
            values = target_probability(p, self._targets[index]).tolist()
            self._known.update(zip((keys[i] for i in chosen), values, strict=True))
            self.passes += len(chosen)
        return np.array([self._known[key] for key in keys])


def _weights(counts: list[int], patches: int) -> NDArray[np.float64]:
    """Weights of the trapezoid rule for the points of the curve."""
    widths = np.diff(counts) / patches
    return np.append(widths, 0) / 2 + np.append(0, widths) / 2


def _area(total: float, first: float) -> float:
    return 1 - total / first if first > 0 else np.nan


def _exact(image: _Image, counts: list[int], patches: int) -> tuple[_Order, _Order]:
    """Both orders, from all sets of patches. A set is a number, whose bits are its patches."""
    sets = np.arange(2**patches)
    bits = (sets[:, None] >> np.arange(patches)) & 1
    size = bits.sum(1)
    seen = np.isin(size, counts)
    weight_of_size = np.zeros(patches + 1)
    weight_of_size[counts] = _weights(counts, patches)
    added = np.zeros(len(sets))  # what a set adds to the integral of p
    added[seen] = weight_of_size[size[seen]] * image.probabilities(bits[seen].astype(bool))
    first = float(image.probabilities(np.zeros((1, patches), dtype=bool))[0])
    return tuple(  # type: ignore[return-value]
        _chain(added, bits.astype(bool), size, first, sign) for sign in (1.0, -1.0)
    )


def _chain(
    added: NDArray[np.float64], bits: Mask, size: NDArray[np.int_], first: float, sign: float
) -> _Order:
    """The chain of growing sets with the smallest integral of p; with sign −1, the largest."""
    patches = bits.shape[1]
    totals = np.full(len(added), np.inf)
    totals[0] = sign * added[0]
    last = np.zeros(len(added), dtype=int)  # the patch that was removed last
    for count in range(1, patches + 1):
        sets = np.flatnonzero(size == count)
        before = np.full((len(sets), patches), np.inf)
        for patch in range(patches):
            with_patch = bits[sets, patch]
            before[with_patch, patch] = totals[sets[with_patch] ^ (1 << patch)]
        last[sets] = before.argmin(1)
        totals[sets] = before.min(1) + sign * added[sets]
    order, current = [], len(added) - 1
    while current:
        order.append(int(last[current]))
        current ^= 1 << order[-1]
    return _Order(order[::-1], _area(sign * float(totals[-1]), first))


@dataclass(frozen=True)
class _State:
    """A candidate of the beam search: patches in the order of removal, and the integral so far."""

    order: tuple[int, ...]
    mask: Mask
    total: float


def _beam(image: _Image, counts: list[int], patches: int, beam: int, sign: int) -> _Order:
    """The order with the smallest integral of p that is found; with sign −1, the largest."""
    weights = _weights(counts, patches)
    nothing = np.zeros(patches, dtype=bool)
    first = float(image.probabilities(nothing[None])[0])
    states = [_State((), nothing, sign * weights[0] * first)]
    for weight, more in zip(weights[1:], np.diff(counts).tolist(), strict=True):
        candidates: dict[bytes, tuple[_State, Mask, tuple[int, ...]]] = {}
        for state in states:  # the best first, which keeps a set that several lead to
            for mask, removed in _candidates(image, state, more, beam, sign):
                candidates.setdefault(mask.tobytes(), (state, mask, removed))
        masks = np.array([mask for _, mask, _ in candidates.values()])
        totals = [
            state.total + sign * weight * p
            for (state, *_), p in zip(
                candidates.values(), image.probabilities(masks).tolist(), strict=True
            )
        ]
        ranked = sorted(
            zip(totals, candidates.items(), strict=True), key=lambda item: (item[0], item[1][0])
        )
        states = [
            _State((*state.order, *removed), mask, total)
            for total, (_, (state, mask, removed)) in ranked[:beam]
        ]
    return _Order(list(states[0].order), _area(sign * states[0].total, first))


def _candidates(
    image: _Image, state: _State, more: int, beam: int, sign: int
) -> Iterator[tuple[Mask, tuple[int, ...]]]:
    """Sets of ``more`` further patches to remove: by their effect alone, and with another last."""
    left = np.flatnonzero(~state.mask)
    if len(left) > more:
        alone = np.repeat(state.mask[None], len(left), axis=0)
        alone[np.arange(len(left)), left] = True
        left = left[np.argsort(sign * image.probabilities(alone), kind="stable")]
    variants = len(left) - more + 1
    for last in range(variants if more == 1 else min(beam, variants)):
        removed = (*left[: more - 1].tolist(), int(left[more - 1 + last]))
        mask = state.mask.copy()
        mask[list(removed)] = True
        yield mask, removed
