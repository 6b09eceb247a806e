"""Boxes: conversion from the frame of the annotation to the upright image, and their flaws.

An annotation may state the size of the image it was made for, and an image may have an EXIF
orientation. :func:`upright_boxes` combines both. :func:`flaw` finds boxes that cannot be used.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .decode import ImageError

__all__ = ["Box", "Size", "flaw", "upright_boxes"]

#: x0, y0, x1, y1 in pixel edges, half-open.
Box = tuple[float, float, float, float]
#: Width and height in pixels.
Size = tuple[int, int]

#: Sizes whose aspect ratios differ by less than this share belong to one image at two scales.
ASPECT = 0.01

#: EXIF orientation → steps to turn an image upright: swap axes, then mirror x, then mirror y.
TURNS = {
    1: (False, False, False),
    2: (False, True, False),
    3: (False, True, True),
    4: (False, False, True),
    5: (True, False, False),
    6: (True, True, False),
    7: (True, True, True),
    8: (True, False, True),
}


def flaw(box: Sequence[float], size: Size | None = None) -> str | None:
    """The reason why a box cannot be used, or None if it can.

    Args:
        box: x0, y0, x1, y1.
        size: width and height of its frame, if known. A box that lies partly inside is usable.

    >>> flaw((5, 5, 3, 9)), flaw((5, 5, 5, 9)), flaw((8, 8, 9, 9), size=(8, 8)), flaw((0, 0, 9, 9))
    ('reversed', 'without area', 'outside the image', None)
    """
    if not np.isfinite(box).all():
        return "not finite"
    x0, y0, x1, y1 = box
    if x1 < x0 or y1 < y0:
        return "reversed"
    if x1 == x0 or y1 == y0:
        return "without area"
    if size is not None and (x1 <= 0 or y1 <= 0 or x0 >= size[0] or y0 >= size[1]):
        return "outside the image"
    return None


def upright_boxes(
    boxes: ArrayLike, stated: Size | None, shown: Size, orientation: int = 1
) -> NDArray[np.float64]:
    """Convert boxes to the frame of the upright image.

    The size that the annotation states determines the frame of the boxes:

    1. No size, or the size of the upright image: the boxes are unchanged.
    2. The size of the stored image, before the EXIF orientation: the boxes are turned like it.
    3. A size with the aspect ratio of one of these, up to 1%: the boxes are scaled as well.
    4. Any other size: the annotation belongs to another image, and is refused.

    If the orientation keeps the size (a half turn or a mirror), rule 1 applies.

    Args:
        boxes: (K, 4) in the frame of the annotation.
        stated: width and height that the annotation states.
        shown: width and height of the upright image.
        orientation: EXIF orientation of the stored image, 1 to 8.

    Returns:
        (K, 4) in pixel edges of the upright image; not clipped at its border.

    Raises:
        ImageError: if the stated size is that of another image.

    >>> upright_boxes([[0, 0, 30, 10]], (40, 20), (20, 40), orientation=6).tolist()
    [[10.0, 0.0, 20.0, 30.0]]
    >>> upright_boxes([[0, 0, 30, 10]], (40, 20), (80, 40)).tolist()
    [[0.0, 0.0, 60.0, 20.0]]
    """
    edges = np.array(boxes, dtype=np.float64).reshape(-1, 4)
    if stated is None:
        return edges
    stored = shown[::-1] if TURNS[orientation][0] else shown
    for tolerance in (0, ASPECT):
        for size, turn in ((shown, 1), (stored, orientation)):
            across, down = size[0] / stated[0], size[1] / stated[1]
            if stated == size or abs(across / down - 1) < tolerance:
                return _turned(edges * [across, down, across, down], size, turn)
    raise ImageError(
        f"is {shown[0]}x{shown[1]}, but its annotation is for an image of "
        f"{stated[0]}x{stated[1]}; put the right image or annotation in place"
    )


def _turned(edges: NDArray[np.float64], size: Size, orientation: int) -> NDArray[np.float64]:
    swap, mirror_x, mirror_y = TURNS[orientation]
    width, height = size[::-1] if swap else size
    x0, y0, x1, y1 = edges.T
    if swap:
        x0, y0, x1, y1 = y0, x0, y1, x1
    if mirror_x:
        x0, x1 = width - x1, width - x0
    if mirror_y:
        y0, y1 = height - y1, height - y0
    return np.stack([x0, y0, x1, y1], axis=1)
