"""Data sets listed in one file with labels and boxes: COCO's JSON, or a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from .annotations import Listing, read_coco, read_table
from .images import Entry, FileImages
from .labels import LabelMap, common_label, open_label_map

__all__ = ["CocoImages", "TableImages"]


class _ListedImages(FileImages):
    """Images of a listing, in its order; a missing image raises an error on access."""

    def __init__(
        self,
        file: Path,
        read: Callable[[Path, LabelMap | None], Listing],
        label_map: str | os.PathLike[str] | None,
        folders: Callable[[Path], Iterator[Path]],
    ) -> None:
        if not os.path.isfile(file):
            raise ValueError(f"{str(file)!r} is not a file; check the path")
        annotations, labels, faults = read(
            file, None if label_map is None else open_label_map(label_map)
        )
        if not annotations:
            raise ValueError(f"{str(file)!r} lists no images")
        places = list(folders(file))
        root = next((f for f in places if any(os.path.isfile(f / p) for p in annotations)), None)
        if root is None:
            raise ValueError(
                f"no image of {str(file)!r}, such as {next(iter(annotations))!r}, lies in "
                + ", ".join(map(repr, map(str, places)))
            )
        entries = [
            Entry.of(
                Path(path),
                common_label(labels.find(item.name) for item in annotation.objects),
                annotation,
                labels,
            )
            for path, annotation in annotations.items()
        ]
        source = None if label_map is None else f"label map {str(label_map)!r}"
        super().__init__(root, file.stem, labels, entries, labelled_by=source, faults=faults)


class CocoImages(_ListedImages):
    """COCO's images, with the boxes of an ``instances_*.json``.

    For ``annotations/instances_val2017.json`` the images are in ``val2017``, ``images/val2017`` or
    ``images``, beside the file or beside its folder, or directly beside the file. Classes are the
    categories in the order of their ids. The label of an image is the class that all its objects
    share, or None. Boxes of crowds are left out and counted.

    Args:
        file: the JSON file.
        label_map: ``"imagenet-1k"`` or a file that :func:`open_label_map` reads, with the names of
            the categories; categories that are not listed have box label -1.

    Raises:
        ValueError: if the file is missing or malformed, none of its images is found, or none of its
            categories is in the label map.

    See :class:`FileImages` for the attributes.
    """

    def __init__(
        self,
        file: str | os.PathLike[str],
        *,
        label_map: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(Path(file), read_coco, label_map, _coco_folders)


class TableImages(_ListedImages):
    """Images listed in a CSV file of path, label, x0, y0, x1, y1; one row for each box.

    The header row is required. Boxes are half-open pixel edges of the upright image. Labels are
    whole numbers, or names, which are numbered in :func:`natural_order`. A blank field means that
    the label or box is unknown. The label of an image is the one that all its rows share, or None.
    Images that are not independent, such as those of one subject or one video, have the same name
    in a further column ``cluster``; other columns are ignored.

    Args:
        file: the CSV file; paths in it are relative to its folder.
        label_map: ``"imagenet-1k"`` or a file that :func:`open_label_map` reads; every label
            must be in it.

    Raises:
        ValueError: if the file is missing or malformed, none of its images is found, or a label is
            not in the label map.

    See :class:`FileImages` for the attributes.
    """

    def __init__(
        self,
        file: str | os.PathLike[str],
        *,
        label_map: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(Path(file), read_table, label_map, lambda path: iter([path.parent]))


def _coco_folders(file: Path) -> Iterator[Path]:
    split = file.stem.rpartition("_")[2]
    for top in (file.parent, file.absolute().parent.parent):
        yield from (top / split, top / "images" / split, top / "images", top)
