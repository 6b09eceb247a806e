"""What a data set yields."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["ImageData", "Sample"]


class Sample(NamedTuple):
    """One image with what is known of it.

    Attributes:
        image: (H, W, 3) uint8 RGB.
        label: class index, or None where it is not known.
        boxes: (K, 4) float32, x0, y0, x1, y1 in pixel edges, half-open; (0, 4) without boxes.
        image_id: names the image across runs and machines; seeds its random draws.
    """

    image: NDArray[np.uint8]
    label: int | None
    boxes: NDArray[np.float32]
    image_id: str


class ImageData(Protocol):
    """A data set of the toolkit: a sequence of samples with class names and a fingerprint."""

    name: str
    classes: list[str]

    def __len__(self) -> int: ...

    def __getitem__(self, i: int, /) -> Sample: ...

    def fingerprint(self) -> str: ...
