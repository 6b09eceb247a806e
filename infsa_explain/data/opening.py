"""Opening data sets by name or path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

from .digits import PhotoDigits
from .folders import ImageFolder
from .listings import CocoImages, TableImages
from .samples import ImageData
from .subsets import limited
from .trees import Split

__all__ = ["open_data"]


def open_data(
    name_or_path: str | os.PathLike[str],
    *,
    split: Split = "val",
    size: int | None = None,
    seed: int = 0,
    label_map: str | os.PathLike[str] | None = None,
) -> ImageData:
    """Open a data set by name, folder or file.

    Args:
        name_or_path: ``"photo-digits"``, the embedded benchmark; a folder that
            :class:`ImageFolder` reads; a ``.json`` that :class:`CocoImages` reads; or a ``.csv``
            that :class:`TableImages` reads.
        split: ``"val"``, ``"train"`` or ``"test"``; photo-digits has no ``"test"``. Ignored if the
            data has no splits.
        size: number of samples. photo-digits generates this many (500 by default); other data is
            limited to a random subset of this size (all images by default).
        seed: selects the series of photo-digits, or the random subset.
        label_map: ``"imagenet-1k"`` or a file that :func:`open_label_map` reads. It gives the
            labels of a model, if they differ from those of the data set.

    Returns:
        The data set.

    Raises:
        ValueError: if there is no such data or split, ``size`` is below 1, or as the classes above.
    """
    if size is not None and size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if split not in get_args(Split):
        raise ValueError(f"split must be 'train', 'val' or 'test', got {split!r}")
    if name_or_path == PhotoDigits.name:
        if label_map is not None:
            raise ValueError(
                f"label_map must be left out for {PhotoDigits.name!r}, whose labels are fixed"
            )
        if split == "test":
            raise ValueError(f"split must be 'train' or 'val' for {PhotoDigits.name!r}, got 'test'")
        return PhotoDigits(split, 500 if size is None else size, seed)
    path = Path(name_or_path)
    if not os.path.exists(path):
        raise ValueError(
            f"data {str(name_or_path)!r} is neither {PhotoDigits.name!r} nor an existing folder "
            "of images (Tiny-ImageNet's layout, class folders, or only images), COCO .json or .csv"
        )
    data: ImageData
    if path.is_file() and path.suffix.lower() == ".json":
        data = CocoImages(path, label_map=label_map)
    elif path.is_file() and path.suffix.lower() == ".csv":
        data = TableImages(path, label_map=label_map)
    else:
        data = ImageFolder(path, split=split, label_map=label_map)
    return data if size is None else limited(data, size, seed)
