"""Finding the data set in a tree of folders, and telling splits from classes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args

from .layouts import EXTENSIONS, annotation_folder, find_files, image_folders, subfolders

__all__ = [
    "Split",
    "data_folder",
    "imagenet_folder",
    "split_folder",
    "split_folders",
    "split_of",
    "splits_among",
]

Split = Literal["train", "val", "test"]

#: Names of split folders in lower case: a prefix, the split, and a suffix.
SPLIT_NAME = re.compile(
    r"(?P<prefix>(?:.*[_-])?)"
    r"(?:(?P<train>train|training)|(?P<val>val|valid|validation)|(?P<test>test|testing))"
    r"(?:[ _-]?(?:set|data|images?|split|\d+))?"
)


def split_of(name: str) -> Split | None:
    """The split that a folder name stands for, or None.

    >>> [split_of(name) for name in ("Training", "valid", "test_set", "train2017", "bullet_train")]
    ['train', 'val', 'test', 'train', None]
    """
    prefix, split = _parsed(name)
    return None if prefix else split


def splits_among(names: Iterable[str]) -> dict[Split, list[str]]:
    """The split folders among folders, by name; names with the same prefix count if there are two.

    >>> splits_among(["seg_train", "seg_test", "seg_pred"])
    {'train': ['seg_train'], 'test': ['seg_test']}
    >>> splits_among(["bullet_train", "freight_train", "ship"])
    {}
    """
    by_prefix: defaultdict[str, defaultdict[Split, list[str]]]
    by_prefix = defaultdict(lambda: defaultdict(list))
    for name in names:
        prefix, split = _parsed(name)
        if split is not None:
            by_prefix[prefix][split].append(name)
    plain: dict[Split, list[str]] = by_prefix.pop("", defaultdict(list))
    several = [splits for splits in by_prefix.values() if len(splits) > 1]
    return dict(plain or (several[0] if len(several) == 1 else {}))


def split_folders(folder: Path) -> dict[Split, list[str]]:
    """Names of the split folders in a folder; empty if it has none.

    A single split folder counts only if no other folder holds images, since ``train`` may be a
    class.
    """
    splits = splits_among(subfolders(folder))
    if len(splits) == 1:
        (names,) = splits.values()
        return splits if set(image_folders(folder)) <= set(names) else {}
    return splits


def split_folder(folder: Path, splits: dict[Split, list[str]], split: Split) -> Path:
    """The folder of a split. If it holds only a folder of the same name, that one is returned.

    Args:
        folder: the folder above.
        splits: from :func:`split_folders`.
        split: which split.

    Raises:
        ValueError: if there is no such folder, or several.
    """
    names = splits.get(split, [])
    if not names:
        existing = sorted(name for names in splits.values() for name in names)
        raise ValueError(
            f"folder {str(folder)!r} has no split {split!r}; it has {existing}: choose one, or "
            "rename its folder"
        )
    if len(names) > 1:
        raise ValueError(
            f"folder {str(folder)!r} has {len(names)} folders of the split {split!r}, "
            f"{_listed(names)}; move all but one away"
        )
    chosen = folder / names[0]
    inner = image_folders(chosen)
    repeated = len(inner) == 1 and split_of(inner[0]) == split or inner == names
    return chosen / inner[0] if repeated and not _loose(chosen) else chosen


def imagenet_folder(folder: Path) -> Path | None:
    """The images of ImageNet's own layout: ``Data/CLS-LOC``, or ``Data`` with ``Annotations``."""
    places = [folder / "Data/CLS-LOC"]
    places += [folder / "Data"] if annotation_folder(folder) else []
    return next((place for place in places if place.is_dir()), None)


def data_folder(folder: Path, levels: int = 2) -> Path:
    """The folder of the data set: this one, or the only one at most ``levels`` below.

    A folder below is the data set if it has a known layout or splits, or if it is the only folder
    with images and holds several folders of images.

    Args:
        folder: where to search.
        levels: maximum number of levels below.

    Raises:
        ValueError: if there are several; the error names them.
    """
    if levels == 0 or _is_layout(folder) or _loose(folder):
        return folder
    inside = image_folders(folder)
    sets = [name for name in inside if _is_layout(folder / name, classes=True)]
    if len(sets) > 1:
        raise ValueError(
            f"folder {str(folder)!r} holds {len(sets)} data sets, {_listed(sets)}; give one of them"
        )
    if sets and len(inside) > 1:
        other = next(name for name in inside if name not in sets)
        raise ValueError(
            f"folder {str(folder)!r} holds the data set {sets[0]!r} beside other images, such as "
            f"those in {other!r}; give the folder {str(folder / sets[0])!r}"
        )
    if len(inside) != 1:
        return folder
    below = data_folder(folder / inside[0], levels - 1)
    several = len(image_folders(below)) > 1 and not _loose(below)
    return below if several or _is_layout(below) else folder


def _is_layout(folder: Path, *, classes: bool = False) -> bool:
    """Whether a folder has a known layout or splits; with ``classes``, splits with folders."""
    has_layout = (folder / "wnids.txt").is_file() or (folder / "JPEGImages").is_dir()
    if has_layout or imagenet_folder(folder) is not None:
        return True
    names = [name for names in split_folders(folder).values() for name in names]
    return any(not classes or image_folders(folder / name) for name in names)


def _loose(folder: Path) -> bool:
    """Whether images lie directly in a folder."""
    return bool(find_files(folder, EXTENSIONS, deep=False))


def _parsed(name: str) -> tuple[str, Split | None]:
    """The prefix and the split in a folder name."""
    match = SPLIT_NAME.fullmatch(name.casefold())
    if match is None:
        return "", None
    return match["prefix"], next(split for split in get_args(Split) if match[split])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(repr, sorted(names)[:5])) + more
