"""Conversion of images to RGB pixels: from files, Pillow images, arrays and tensors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from .decode import read_image, to_rgb

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "CHANNELS",
    "AnyArray",
    "AnyImage",
    "Region",
    "channels_last",
    "holds_colours",
    "is_array",
    "separate",
    "to_array",
    "to_pixels",
]

AnyArray: TypeAlias = "NDArray[Any] | Tensor"
AnyImage: TypeAlias = "str | os.PathLike[str] | Image.Image | NDArray[Any] | Tensor"
#: Left, top, right and bottom of a rectangle, in pixel edges of an image.
Region: TypeAlias = tuple[float, float, float, float]

#: Tolerance of the range [0, 1] of float images: about one grey level, for 16-bit floats.
SLACK = 5e-3
#: Numbers of channels: grey, RGB, and RGB with an alpha channel.
CHANNELS = (1, 3, 4)


def to_pixels(
    image: AnyImage, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> NDArray[np.uint8]:
    """Convert an image to RGB pixels; the image is not changed.

    Args:
        image: the path of an image file, a Pillow image of any mode, an array or a tensor on any
            device. Files and Pillow images are turned upright by their EXIF orientation. Arrays and
            tensors are (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels. If the shape is
            ambiguous, channels are last in an array and first in a tensor. Values are uint8, float
            in [0, 1], or float with whole numbers up to 255. Transparent pixels are blended with
            white.
        mean, std: undo the normalisation of a float image, one value per channel.

    Returns:
        (H, W, 3) uint8, contiguous.

    Raises:
        ValueError: if the shape or type is another, or the values of a float image are neither in
            [0, 1] nor whole numbers up to 255. A normalised image needs ``mean`` and ``std``, which
            its values do not reveal. :class:`~infsa_explain.data.ImageError`, a ValueError, if a
            file cannot be read.

    >>> to_pixels(np.full((1, 1, 3), 0.2)).tolist()
    [[[51, 51, 51]]]
    >>> to_pixels(np.full((1, 1), 51.0)).tolist()  # grey, whole numbers up to 255
    [[[51, 51, 51]]]
    >>> to_pixels(np.full((1, 1, 3), -0.6), mean=(0.5,) * 3, std=(0.5,) * 3).tolist()
    [[[51, 51, 51]]]
    """
    if (mean is None) != (std is None):
        raise ValueError("mean and std go together, got one of them")
    if isinstance(image, (str, os.PathLike)):
        array: NDArray[Any] = read_image(image)
    elif isinstance(image, Image.Image):
        with suppress(Exception):  # with damaged EXIF data, keep the pixels as stored
            image = ImageOps.exif_transpose(image)
        array = to_rgb(image)
    else:
        array = channels_last(image)
    if np.issubdtype(array.dtype, np.floating):
        array = _whole_levels(array.astype(np.float64), mean, std)
    elif mean is not None:
        raise ValueError(f"mean and std are for float images, got {array.dtype}")
    elif array.dtype != np.uint8:
        raise ValueError(f"image must be uint8, or float in [0, 1], got {array.dtype}")
    if array.shape[2] == 4:
        array = to_rgb(Image.fromarray(np.ascontiguousarray(array)))
    return np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:2], 3)))


def channels_last(image: AnyArray) -> NDArray[Any]:
    """Convert one image to an (H, W, C) array with 1, 3 or 4 channels.

    Raises:
        ValueError: if the shape is not that of one image.
    """
    array = to_array(image)
    if array.ndim == 2 and array.size:
        return array[..., None]
    if array.ndim == 3 and array.size:
        first, last = (array.shape[axis] in CHANNELS for axis in (0, 2))
        if last and (isinstance(image, np.ndarray) or not first):
            return array
        if first:
            return np.moveaxis(array, 0, 2)
    got = f"{array.shape}" if array.ndim else f"{type(image).__name__} {image!r:.40}"
    raise ValueError(
        f"image must be (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels, got {got}"
    )


def is_array(image: object) -> TypeGuard[NDArray[Any] | Tensor]:
    """Whether an object is an array or a tensor."""
    return hasattr(image, "ndim") and hasattr(image, "dtype")


def holds_colours(array: NDArray[Any]) -> bool:
    """Whether the values of a float array are colours: in [0, 1], or whole numbers up to 255."""
    low, high = array.min(), array.max()
    if low >= -SLACK and high <= 1 + SLACK:  # false for NaN
        return True
    return bool(low >= 0 and high <= 255 and (array == np.rint(array)).all())


def separate(images: AnyImage | Iterable[AnyImage]) -> list[AnyImage]:
    """A list of the images in a batch, in a sequence, or of a single image.

    Raises:
        ValueError: if there is no image, or the object is neither an image nor a sequence.
    """
    if isinstance(images, (str, os.PathLike, Image.Image)):
        return [images]
    singles: list[AnyImage]
    if is_array(images):
        singles = list(images) if images.ndim == 4 else [images]
    elif isinstance(images, Iterable) and not isinstance(images, (bytes, Mapping)):
        singles = list(images)
    else:
        kind = type(images).__name__
        raise ValueError(f"images must be paths, Pillow images, arrays or tensors, got {kind}")
    if not singles:
        raise ValueError("images must hold at least one image, got none")
    return singles


def _whole_levels(
    array: NDArray[np.float64], mean: Sequence[float] | None, std: Sequence[float] | None
) -> NDArray[np.uint8]:
    """Convert a float image to uint8, after undoing its normalisation if ``mean`` is given."""
    if mean is not None:
        array = array * np.asarray(std, dtype=float) + np.asarray(mean, dtype=float)
    low, high = array.min(), array.max()
    if not holds_colours(array) or (mean is not None and high > 1 + SLACK):
        raise ValueError(
            f"a float image must lie in [0, 1], got [{low:.3g}, {high:.3g}]; denormalise it, or "
            "pass the mean and std it was normalised with; values to 255 are for uint8, or must be "
            "whole numbers"
        )
    top = 1 if high <= 1 + SLACK else 255
    return np.rint(255 / top * np.clip(array, 0, top)).astype(np.uint8)


def to_array(value: AnyArray) -> NDArray[Any]:
    """Convert a tensor on any device, with or without gradient, or an array to an array."""
    if not isinstance(value, np.ndarray) and hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value).numpy()
    return np.asarray(value)
