"""Some of the images of a data set."""

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
    """Some samples of a data set, by index; name, classes and image ids are the data set's."""

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
        """Number of boxes of every sample, where the data set tells without decoding."""
        counts: list[int] | None = getattr(self.data, "box_counts", None)
        return None if counts is None else [counts[i] for i in self.indices]

    @property
    def dropped_boxes(self) -> dict[str, int]:
        """Number of boxes left out of these samples, by reason, as :class:`FileImages` has it."""
        return dict(Counter(reason for reasons in self.dropped for reason in reasons))

    @property
    def dropped(self) -> list[tuple[str, ...]]:
        """For every sample the flaws of its boxes that were left out."""
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
    """A random subset with as equal a share of every class as there is, in the data's order.

    Args:
        data: a data set; where its labels are known without decoding, nothing is decoded.
        limit: number of samples, at least 1; from ``len(data)`` on, ``data`` itself returns.
        seed: chooses the subset; with the same seed, smaller ones lie within larger ones.

    Raises:
        ValueError: ``limit`` is below 1, or ``seed`` out of range.

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
    seen: Counter[int | None] = Counter()
    rounds = []  # the first of every class, then the second of every class, ...
    for place, i in enumerate(np.random.default_rng(seed).permutation(len(data)).tolist()):
        rounds.append((seen[labels[i]], place, i))
        seen[labels[i]] += 1
    return Subset(data, sorted(i for _, _, i in sorted(rounds)[:limit]))


def known_labels(data: ImageData) -> list[int | None] | None:
    """Label of every sample, or None where they are not known without decoding images."""
    if isinstance(data, Subset):
        labels = known_labels(data.data)
        return None if labels is None else [labels[i] for i in data.indices]
    return getattr(data, "labels", None)


def _labels(data: ImageData) -> list[int | None]:
    known = known_labels(data)
    return [data[i].label for i in range(len(data))] if known is None else known
