"""Decoding image files to RGB pixels."""

from __future__ import annotations

import os
import stat
import warnings
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

__all__ = ["DecodedImage", "ImageError", "decode_image", "read_image", "to_rgb"]


#: Accepted formats. Others that Pillow reads are refused; for EPS it would run Ghostscript.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")


class ImageError(ValueError):
    """An image cannot be used; the message is one line with the file and what to do."""


class DecodedImage(NamedTuple):
    """Pixels, and the EXIF orientation that was applied to them.

    Attributes:
        pixels: (H, W, 3) uint8 RGB, upright, contiguous and writable.
        orientation: the EXIF orientation that was applied, 1 to 8; 1 if there is none.
    """

    pixels: NDArray[np.uint8]
    orientation: int


def read_image(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """Read an image file as RGB, upright according to its EXIF orientation.

    The formats are JPEG, PNG, WebP, GIF, BMP, TIFF, PPM, AVIF and JPEG 2000, with any file name.
    All modes are converted as in :func:`to_rgb`. Animations give their first frame. Colour profiles
    are not applied.

    Args:
        path: an image file.

    Returns:
        (H, W, 3) uint8 RGB, contiguous and writable.

    Raises:
        ImageError: if the file is missing, a folder, empty, not an image, damaged, truncated, not
            readable, of a depth without a defined range, or larger than Pillow's limit
            (``PIL.Image.MAX_IMAGE_PIXELS``).
    """
    return decode_image(path).pixels


def decode_image(path: str | os.PathLike[str]) -> DecodedImage:
    """As :func:`read_image`, with the orientation, which also applies to the image's boxes.

    Raises:
        ImageError: as :func:`read_image`.
    """
    file = Path(path)
    name = f"image {str(file)!r}"
    try:
        _require_content(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=_formats()) as image:
                tags = getattr(image, "tag_v2", {})  # Pillow turns TIFF images while loading
                orientation: int | None = tags.get(ExifTags.Base.Orientation)
                image.load()
                with suppress(Exception):  # with damaged EXIF data, keep the pixels as stored
                    orientation = orientation or image.getexif().get(ExifTags.Base.Orientation)
                    ImageOps.exif_transpose(image, in_place=True)
                valid = [o for o in range(1, 9) if o == orientation]
                return DecodedImage(to_rgb(image), valid[0] if valid else 1)
    except ImageError as error:
        raise ImageError(f"{name} {error}") from None
    except PermissionError:
        raise ImageError(f"{name} may not be read; change its permissions") from None
    except MemoryError:
        raise ImageError(f"{name} does not fit into memory; scale it down") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ImageError(
            f"{name} has more than {Image.MAX_IMAGE_PIXELS} pixels; scale it down"
        ) from None
    except UnidentifiedImageError:
        raise ImageError(
            f"{name} is cut short, or in a format that Pillow cannot read safely; convert it to "
            "PNG or JPEG"
        ) from None
    except Exception as error:  # for damaged files Pillow raises many types of exceptions
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ImageError(
            f"{name} is damaged or truncated ({reason}); copy or download it again"
        ) from None


def _formats() -> list[str]:
    """Those of ``FORMATS`` that the installed Pillow supports."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _require_content(file: Path) -> None:
    """Refuse a path that is not a file, or an empty file; the message is without the name."""
    try:
        status = file.stat()
    except PermissionError:
        raise
    except (OSError, ValueError) as error:  # ValueError: an impossible file name
        if os.path.islink(file):
            raise ImageError("is a link to a file that does not exist; repair the link") from None
        missing = isinstance(error, (FileNotFoundError, ValueError))
        reason = "" if missing else f" ({error.strerror})"  # type: ignore[union-attr]
        raise ImageError(f"does not exist{reason}; check the path") from None
    if stat.S_ISDIR(status.st_mode):
        raise ImageError("is a folder; give the path of one image file")
    if not stat.S_ISREG(status.st_mode):
        raise ImageError("is not a regular file; save the image to disk first")
    if not status.st_size:
        raise ImageError("is empty (0 bytes); copy or download it again")


def to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    """Convert a Pillow image of any mode to RGB pixels.

    Transparent pixels are blended with white. 16-bit grey is scaled from [0, 65535] to [0, 255] and
    rounded. CMYK is converted by Pillow's formula, without a profile.

    Args:
        image: a Pillow image; it is not changed.

    Returns:
        (H, W, 3) uint8 RGB, a copy.

    Raises:
        ImageError: if the mode has no defined range (32-bit integers and floats), or cannot be
            converted.

    >>> to_rgb(Image.new("LA", (1, 1), (0, 51))).tolist()  # black, one fifth opaque
    [[[204, 204, 204]]]
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        grey = np.rint(np.asarray(image) / 257).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=2)
    if image.mode in ("I", "F"):
        raise ImageError("has 32-bit pixels without a defined range; save it with 8 or 16 bits")
    try:
        if image.has_transparency_data:
            layer = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
        return np.array(image.convert("RGB"))
    except ValueError as error:
        raise ImageError(
            f"has mode {image.mode}, which cannot be converted to RGB ({error})"
        ) from None
