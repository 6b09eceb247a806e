"""Images with labels and boxes: folders and listings on disk, and the embedded benchmark.

May import: ``files``, ``ranges``; no models.
"""

from __future__ import annotations

from .decode import ImageError, read_image, to_rgb
from .digits import PhotoDigits
from .folders import ImageFolder
from .labels import LabelMap, open_label_map
from .listings import CocoImages, TableImages
from .matching import LabelMismatch, match_labels
from .opening import open_data
from .samples import ImageData, Sample
from .subsets import Subset, limited

__all__ = [
    "CocoImages",
    "ImageData",
    "ImageError",
    "ImageFolder",
    "LabelMap",
    "LabelMismatch",
    "PhotoDigits",
    "Sample",
    "Subset",
    "TableImages",
    "limited",
    "match_labels",
    "open_data",
    "open_label_map",
    "read_image",
    "to_rgb",
]
