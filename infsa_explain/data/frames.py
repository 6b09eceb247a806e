"""Boxes in the frame of the upright image, from the frame in which they were annotated.

An annotation states the size of the image it was made on, or not; an image is stored as it is,
or to be turned by its EXIF orientation. One rule, in :func:`upright_boxes`, brings both together;
another, in :func:`flaw`, says which boxes are of no use.
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

#: Two sizes whose aspect ratios differ by less than this count as one image at two scales.
ASPECT = 0.01

#: EXIF orientation → whether axes are swapped, then x mirrored, then y mirrored, to turn upright.
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
    """The first reason why a box cannot be used, or None for a sound box.

    Args:
        box: x0, y0, x1, y1.
        size: width and height of its frame, where it is known. A box that lies partly within is
            sound.

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
    """Boxes in the frame of the upright image.

    They are in the frame of the size that their annotation states:

    1. no stated size, or the size shown: in the frame of the upright image.
    2. the size stored, before the EXIF orientation turned it: they are turned with it.
    3. another size with one of these aspect ratios, to 1%: they are scaled as well.
    4. any other size: they are of another image, and refused.

    Where a half turn or a mirror leaves the size as it is, the first holds.

    Args:
        boxes: (K, 4) in the frame of the annotation.
        stated: width and height that the annotation states.
        shown: width and height of the upright image.
        orientation: EXIF orientation that turned it upright, 1 to 8.

    Returns:
        (K, 4) in pixel edges of the upright image; not cut at its border.

    Raises:
        ImageError: the stated size is of another image.

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
