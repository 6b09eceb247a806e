"""The items of a data set, and the protocol that all data sets follow."""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["ImageData", "Sample", "readable"]


class Sample(NamedTuple):
    """One image with its annotation.

    Attributes:
        image: (H, W, 3) uint8 RGB.
        label: class index, or None if unknown.
        boxes: (K, 4) float32, x0, y0, x1, y1 in pixel edges, half-open; (0, 4) without boxes.
        image_id: identifies the image across runs and machines; seeds its random draws.
        box_labels: (K,) int64, class index of each box, -1 if unknown; None if all boxes have the
            image's own class.
        own: (K,) bool, which boxes have the image's own class, for a sample whose labels were
            removed; None if the labels determine it.
        cluster: what images share that are not independent of one another: a handwriting, a video,
            a subject. None for an image that is independent of all others.
    """

    image: NDArray[np.uint8]
    label: int | None
    boxes: NDArray[np.float32]
    image_id: str
    box_labels: NDArray[np.int64] | None = None
    own: NDArray[np.bool_] | None = None
    cluster: str | None = None

    @property
    def is_own(self) -> NDArray[np.bool_]:
        """Which boxes have the image's own class, (K,); none if its label is unknown."""
        if self.own is not None:
            return self.own
        if self.label is None or self.box_labels is None:
            return np.full(len(self.boxes), self.label is not None)
        return np.equal(self.box_labels, self.label)

    @property
    def own_boxes(self) -> NDArray[np.float32]:
        """The boxes of the image's own class, (K', 4); see :attr:`is_own`.

        >>> boxes = np.array([[0, 0, 2, 2], [1, 1, 3, 3]], dtype=np.float32)
        >>> image = np.zeros((4, 4, 3), dtype=np.uint8)
        >>> Sample(image, 5, boxes, "a", np.array([7, 5])).own_boxes.tolist()
        [[1.0, 1.0, 3.0, 3.0]]
        """
        selected = self.is_own
        return self.boxes if selected.all() else self.boxes[selected]


def readable(path: PurePath | str) -> str:
    """A path in POSIX form as valid Unicode; bytes that are not UTF-8 are escaped.

    >>> readable(PurePath("a", "b\\udcff.png"))  # Python's form of a name with the byte FF
    'a/b\\\\xff.png'
    """
    text = path if isinstance(path, str) else path.as_posix()
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")


class ImageData(Protocol):
    """A data set: a sequence of samples with class names and a fingerprint."""

    name: str
    classes: list[str]

    def __len__(self) -> int: ...

    def __getitem__(self, i: int, /) -> Sample: ...

    def fingerprint(self) -> str: ...
