"""Any image as RGB pixels: Pillow's, numpy's or torch's, told apart by type, shape and range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .data.decode import to_rgb

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["AnyArray", "AnyImage", "to_array", "to_pixels"]

AnyArray: TypeAlias = "NDArray[Any] | Tensor"
AnyImage: TypeAlias = "Image.Image | NDArray[Any] | Tensor"

#: Float images may leave [0, 1] by this much: about one grey level, for 16-bit floats.
SLACK = 5e-3


def to_pixels(
    image: AnyImage, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> NDArray[np.uint8]:
    """Any image as RGB pixels; it is not changed.

    Args:
        image: a Pillow image of any mode, an (H, W, 3) array, or a (3, H, W) tensor on any
            device; uint8, or float in [0, 1].
        mean: with ``std``, undoes the normalisation of a float image, one value a channel.
        std: see ``mean``.

    Returns:
        (H, W, 3) uint8, contiguous.

    Raises:
        ValueError: for another shape or type, or a float image outside [0, 1]: one that is
            normalised needs ``mean`` and ``std``, which cannot be told from its values.

    >>> to_pixels(np.full((1, 1, 3), 0.2)).tolist()
    [[[51, 51, 51]]]
    >>> to_pixels(np.full((1, 1, 3), -0.6), mean=(0.5,) * 3, std=(0.5,) * 3).tolist()
    [[[51, 51, 51]]]
    """
    if isinstance(image, Image.Image):
        array: NDArray[Any] = to_rgb(image)
    else:
        array = to_array(image)
        layout, channels = ("(H, W, 3)", 2) if isinstance(image, np.ndarray) else ("(3, H, W)", 0)
        if array.ndim != 3 or array.shape[channels] != 3 or not array.size:
            raise ValueError(f"image must be {layout}, RGB, got {array.shape}")
        array = np.moveaxis(array, channels, 2)
    if (mean is None) != (std is None):
        raise ValueError("mean and std go together, got one of them")
    if np.issubdtype(array.dtype, np.floating):
        array = array.astype(np.float64)
        if mean is not None:
            array = array * np.asarray(std, dtype=float) + np.asarray(mean, dtype=float)
        if not (array.min() >= -SLACK and array.max() <= 1 + SLACK):  # NaN fails too
            raise ValueError(
                f"a float image must lie in [0, 1], got [{array.min():.3g}, {array.max():.3g}]; "
                "denormalise it, or pass the mean and std it was normalised with; values to 255 "
                "are for uint8"
            )
        array = np.rint(255 * np.clip(array, 0, 1)).astype(np.uint8)
    elif mean is not None:
        raise ValueError(f"mean and std are for float images, got {array.dtype}")
    elif array.dtype != np.uint8:
        raise ValueError(f"image must be uint8, or float in [0, 1], got {array.dtype}")
    return np.ascontiguousarray(array)


def to_array(value: AnyArray) -> NDArray[Any]:
    """An array of a tensor on any device, with or without gradient, or of an array."""
    if not isinstance(value, np.ndarray) and hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value).numpy()
    return np.asarray(value)
