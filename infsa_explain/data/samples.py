"""What a data set yields."""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["ImageData", "Sample", "readable"]


class Sample(NamedTuple):
    """One image with what is known of it.

    Attributes:
        image: (H, W, 3) uint8 RGB.
        label: class index, or None where it is not known.
        boxes: (K, 4) float32, x0, y0, x1, y1 in pixel edges, half-open; (0, 4) without boxes.
        image_id: names the image across runs and machines; seeds its random draws.
        box_labels: (K,) int64, class index of what is in each box, -1 where it is not known;
            None where every box is of the image's own class.
        own: (K,) bool, which boxes are of the image's own class, for a sample whose labels were
            taken away; None where the labels tell.
    """

    image: NDArray[np.uint8]
    label: int | None
    boxes: NDArray[np.float32]
    image_id: str
    box_labels: NDArray[np.int64] | None = None
    own: NDArray[np.bool_] | None = None

    @property
    def is_own(self) -> NDArray[np.bool_]:
        """Which boxes are of the image's own class, (K,); none where its label is not known."""
        if self.own is not None:
            return self.own
        if self.label is None or self.box_labels is None:
            return np.full(len(self.boxes), self.label is not None)
        return np.equal(self.box_labels, self.label)

    @property
    def own_boxes(self) -> NDArray[np.float32]:
        """The boxes of the image's own class, (K', 4), as :attr:`is_own` tells them.

        >>> boxes = np.array([[0, 0, 2, 2], [1, 1, 3, 3]], dtype=np.float32)
        >>> image = np.zeros((4, 4, 3), dtype=np.uint8)
        >>> Sample(image, 5, boxes, "a", np.array([7, 5])).own_boxes.tolist()
        [[1.0, 1.0, 3.0, 3.0]]
        """
        return self.boxes if (own := self.is_own).all() else self.boxes[own]


def readable(path: PurePath | str) -> str:
    """A path in POSIX form as text that can be encoded; bytes of it that are not are escaped.

    >>> readable(PurePath("a", "b\\udcff.png"))  # a name with the byte FF, as Python has it
    'a/b\\\\xff.png'
    """
    text = path if isinstance(path, str) else path.as_posix()
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")


class ImageData(Protocol):
    """A data set of the toolkit: a sequence of samples with class names and a fingerprint."""

    name: str
    classes: list[str]

    def __len__(self) -> int: ...

    def __getitem__(self, i: int, /) -> Sample: ...

    def fingerprint(self) -> str: ...
