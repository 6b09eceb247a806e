"""Images with labels and boxes: folders on disk and the embedded benchmark."""

from __future__ import annotations

from .decode import ImageError, read_image, to_rgb
from .digits import PhotoDigits
from .folders import ImageFolder, Subset, limited, open_data
from .samples import ImageData, Sample

__all__ = [
    "ImageData",
    "ImageError",
    "ImageFolder",
    "PhotoDigits",
    "Sample",
    "Subset",
    "limited",
    "open_data",
    "read_image",
    "to_rgb",
]
