"""Subsets of data sets."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..ranges import SEEDS
from .samples import ImageData, Sample

__all__ = ["Subset", "known_labels", "limited"]


class Subset:
    """The samples of a data set at some indices; name, classes and image ids are unchanged."""

    def __init__(self, data: ImageData, indices: Sequence[int]) -> None:
        self.name, self.classes = data.name, data.classes
        self.wnids: list[str] = getattr(data, "wnids", [])
        self.labelled_by: str | None = getattr(data, "labelled_by", None)
        self.numbered: bool = getattr(data, "numbered", False)
        self.data, self.indices = data, list(indices)

    @property
    def labels(self) -> list[int | None]:
        """Label of every sample."""
        return _labels(self)

    @property
    def box_counts(self) -> list[int] | None:
        """Number of boxes of every sample; None if decoding is needed to know it."""
        counts: list[int] | None = getattr(self.data, "box_counts", None)
        return None if counts is None else [counts[i] for i in self.indices]

    @property
    def dropped_boxes(self) -> dict[str, int]:
        """Number of boxes left out of these samples, by reason; see :class:`FileImages`."""
        return dict(Counter(reason for reasons in self.dropped for reason in reasons))

    @property
    def dropped(self) -> list[tuple[str, ...]]:
        """For every sample the reasons of the boxes that were left out."""
        dropped = getattr(self.data, "dropped", None)
        return [() if dropped is None else dropped[i] for i in self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> Sample:
        if not 0 <= i < len(self):
            raise IndexError(i)
        return self.data[self.indices[i]]

    def fingerprint(self) -> str:
        """Hex digest of the data set's fingerprint and the indices."""
        content = json.dumps([self.data.fingerprint(), self.indices])
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def limited(data: ImageData, limit: int, seed: int = 0) -> ImageData:
    """A random subset with equal numbers of all classes, as far as possible, in the data's order.

    Args:
        data: a data set. Images are decoded only if the labels are not known otherwise.
        limit: number of samples, at least 1. If it is not below ``len(data)``, ``data`` is
            returned.
        seed: chooses the subset. With the same seed, smaller subsets are part of larger ones.

    Returns:
        The subset.

    Raises:
        ValueError: if ``limit`` is below 1, or ``seed`` is out of range.

    >>> from infsa_explain.data import PhotoDigits
    >>> data = PhotoDigits("val", size=5)
    >>> sorted(sample.label for sample in data), sorted(sample.label for sample in limited(data, 4))
    ([2, 2, 4, 6, 8], [2, 4, 6, 8])
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    SEEDS.require("seed", seed)
    if limit >= len(data):
        return data
    labels = _labels(data)
    counts: Counter[int | None] = Counter()
    rounds = []  # first one image of every class, then a second one, ...
    for place, i in enumerate(np.random.default_rng(seed).permutation(len(data)).tolist()):
        rounds.append((counts[labels[i]], place, i))
        counts[labels[i]] += 1
    return Subset(data, sorted(i for _, _, i in sorted(rounds)[:limit]))


def known_labels(data: ImageData) -> list[int | None] | None:
    """Label of every sample, or None if decoding is needed to know them."""
    if isinstance(data, Subset):
        labels = known_labels(data.data)
        return None if labels is None else [labels[i] for i in data.indices]
    return getattr(data, "labels", None)


def _labels(data: ImageData) -> list[int | None]:
    labels = known_labels(data)
    return [data[i].label for i in range(len(data))] if labels is None else labels
