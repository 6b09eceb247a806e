"""Folders of images as data sets: Tiny-ImageNet's layout, class folders, or only images."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import get_args

from ..files import read_text
from .annotations import Annotation, read_voc
from .images import Entry, FileImages
from .labels import LabelMap, common_label, natural_order, open_label_map
from .layouts import (
    EXTENSIONS,
    MASKS,
    PHOTOGRAPHS,
    annotation_folder,
    find_files,
    match_annotations,
    subfolders,
)
from .tiny_imagenet import read_tiny_imagenet
from .trees import (
    Split,
    data_folder,
    imagenet_folder,
    split_folder,
    split_folders,
    split_of,
    splits_among,
)

__all__ = ["ImageFolder"]


class ImageFolder(FileImages):
    """A folder of images; each image is decoded on access.

    Four layouts are recognised:

    - Tiny-ImageNet: ``wnids.txt``, ``words.txt``, ``train/WNID/images`` with ``WNID_boxes.txt``,
      and ``val/images`` with ``val_annotations.txt`` (or ``val/WNID``, as many scripts rearrange
      it). Classes are the WordNet ids in alphabetical order, each named by its first word. ``root``
      may also be its ``train`` or ``val`` folder.
    - Pascal VOC: ``JPEGImages``, ``Annotations``, and ``ImageSets/Main`` with the splits.
    - Class folders, as in torchvision's ``ImageFolder``: ``root/CLASS/**/image``. Splits may be
      folders above the classes or within each class. Numeric names are sorted as numbers.
    - Images without class folders: ``root/image``, or ``root/images/image``.

    ``root`` may also be a folder one or two levels above, if it holds nothing else.

    Split folders are called ``train`` or ``training``, ``val``, ``valid`` or ``validation``, and
    ``test`` or ``testing``, in any case. All may have the same prefix (``seg_train``), and a suffix
    ``set``, ``data``, ``images`` or a number (``test_set``, ``train2017``). They are never classes,
    except a folder ``train`` of images beside other classes.

    In the last two layouts an image may have a Pascal VOC XML with its own name: beside it, or at
    any depth in a folder ``Annotations`` in ``root`` or beside the folder of images. ImageNet's
    ``Data/CLS-LOC/val`` and ``Annotations/CLS-LOC/val`` are found as well. VOC's images, and others
    without class folders, get the class that all objects in the XML share as their label, or None.

    Labels are positions among the sorted class names, even if the names are numbers. A
    ``label_map`` gives the labels of a model instead: with ``"imagenet-1k"`` a folder ``n01440764``
    or ``0`` is class 0, whichever other folders there are.

    Hidden files and folders, folders of operating systems (``@eaDir``, ``__MACOSX``), annotations,
    and VOC's masks are skipped. Links to folders are followed.

    Args:
        root: the folder.
        split: ``"val"``, ``"train"`` or ``"test"``; ignored if the folder has no splits.
        class_names: the classes in the order of a model's outputs; every class folder must be one
            of them. By default the sorted folder names.
        label_map: ``"imagenet-1k"`` or a file that :func:`open_label_map` reads; every class folder
            must be in it. Objects in XML files that are not in it have box label -1.

    Raises:
        ValueError: if there is no such folder, it holds no images, several data sets, or splits
            beside classes, or its lists, annotations or label map are malformed or inconsistent.

    See :class:`FileImages` for the attributes.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        split: Split = "val",
        class_names: Sequence[str] | None = None,
        label_map: str | os.PathLike[str] | None = None,
    ) -> None:
        if split not in get_args(Split):
            raise ValueError(f"split must be 'train', 'val' or 'test', got {split!r}")
        if class_names is not None and label_map is not None:
            raise ValueError("class_names and label_map both give labels; leave one out")
        folder = _existing_folder(root)
        labels_of_model = None if label_map is None else open_label_map(label_map)
        real = folder.resolve()
        if real.name in ("train", "val") and (real.parent / "wnids.txt").is_file():
            folder, split = real.parent, "train" if real.name == "train" else "val"
        folder = data_folder(folder)
        if (folder / "wnids.txt").is_file():
            if class_names is not None:
                raise ValueError("class_names is for class folders; Tiny-ImageNet has its own")
            labels, entries = read_tiny_imagenet(folder, split, labels_of_model)
        else:
            if class_names is not None:
                labels_of_model = LabelMap.of(class_names, "class_names")
            labels, entries = _class_folders(folder, split, labels_of_model)
        if not entries:
            raise ValueError(f"folder {str(root)!r} holds no images ({' '.join(EXTENSIONS)})")
        if all(entry.label is None and not entry.boxes for entry in entries):
            _refuse_coco(folder, split)
        source = "argument class_names" if class_names is not None else None
        source = source if label_map is None else f"label map {str(label_map)!r}"
        super().__init__(folder, folder.resolve().name, labels, entries, labelled_by=source)


def _existing_folder(root: str | os.PathLike[str]) -> Path:
    """The root as a path; refused if it is not a folder, or holds only masks."""
    folder = Path(root)
    if not os.path.exists(folder):
        raise ValueError(f"folder {str(root)!r} does not exist; check the path")
    if not folder.is_dir():
        raise ValueError(
            f"{str(root)!r} is a file; give the folder that holds the images, a COCO .json, "
            "or a .csv of boxes"
        )
    if folder.resolve().name.lower() in MASKS:
        raise ValueError(
            f"folder {str(root)!r} holds masks and no photographs; give the folder above it"
        )
    return folder


def _class_folders(
    root: Path, split: Split, label_map: LabelMap | None
) -> tuple[LabelMap, list[Entry]]:
    """The label map and the images of class folders, of VOC, or of loose images."""
    base, names = _base(root, split)
    loose, classes = _scan(base, split)
    loose = _voc_split(root, split, loose)
    images = loose or [path for paths in classes.values() for path in paths]
    matches = match_annotations(images, annotation_folder(base) or annotation_folder(root))
    annotations = {path: read_voc(xml) for path, xml in matches.items()}
    if loose:
        objects = {
            item.name
            for annotation in annotations.values()
            for item in annotation.objects
            if item.name is not None
        }
        if label_map is not None:
            label_map.require_any(objects, f"no class in the annotations of {str(base)!r}")
        names = sorted({*names, *objects}) if objects else []
    labels = label_map or LabelMap.of(sorted(names, key=natural_order), "the class folders")

    def entry(path: Path, label: int | None = None) -> Entry:
        annotation = annotations.get(path, Annotation())
        if loose:
            label = common_label(labels.find(item.name) for item in annotation.objects)
        return Entry.of(path.relative_to(root), label, annotation, labels)

    if loose:
        return labels, [entry(path) for path in loose]
    label_of = {
        name: labels.require(name, f"class folder {str(base / name)!r}") for name in classes
    }
    return labels, [
        entry(path, label_of[name])
        for name in sorted(classes, key=lambda name: (label_of[name], name))
        for path in classes[name]
    ]


def _refuse_coco(root: Path, split: Split) -> None:
    """Refuse images without labels if a COCO JSON lies beside them."""
    above = root.absolute().parent if root.name.lower() in PHOTOGRAPHS else root
    files = sorted((above / "annotations").glob("instances_*.json"))
    if files:
        file = next((file for file in files if split in file.stem), files[0])
        raise ValueError(
            f"folder {str(root)!r} is laid out as COCO; give the file with the boxes, such as "
            f"{str(file)!r}"
        )


def _base(root: Path, split: Split) -> tuple[Path, list[str]]:
    """The folder of the images or class folders, and the class names of all splits."""
    if (root / "JPEGImages").is_dir():
        return root / "JPEGImages", []
    top = imagenet_folder(root) or root
    splits = split_folders(top)
    if not splits:
        return top, _classes(top)
    base = split_folder(top, splits, split)
    # Labels must be the same in all splits, even if one lacks a class.
    others: list[Split] = [s for s in ("train", "val") if s in splits and s != split]
    places = [base, *(split_folder(top, splits, other) for other in others)]
    return base, sorted({name for place in places for name in _classes(place)})


def _classes(base: Path) -> list[str]:
    return [name for name in subfolders(base) if name.lower() not in PHOTOGRAPHS]


def _scan(base: Path, split: Split) -> tuple[list[Path], dict[str, list[Path]]]:
    """Images that lie directly in a folder, or else the images of each class folder."""
    names = subfolders(base)
    images = {name: find_files(base / name, EXTENSIONS) for name in names}
    loose = find_files(base, EXTENSIONS, deep=False)
    photographs = [name for name in names if name.lower() in PHOTOGRAPHS]
    if photographs and not loose:
        others = [name for name in names if images[name] and name not in photographs]
        if others or len(photographs) > 1:
            raise ValueError(
                f"folder {str(base)!r} holds {photographs[0]!r} beside other folders of images, "
                f"such as {[*others, *photographs[1:]][0]!r}; give the folder of the images, or "
                "that of the class folders"
            )
        return images[photographs[0]], {}
    classes = {name: paths for name, paths in images.items() if paths}
    if loose and classes:
        raise ValueError(
            f"folder {str(base)!r} holds images beside class folders, such as "
            f"{loose[0].name!r} and {next(iter(classes))!r}; move one of them away"
        )
    if classes and len(classes) < len(images):
        empty = next(name for name in images if name not in classes)
        raise ValueError(f"class folder {str(base / empty)!r} holds no images; remove it")
    _require_classes(base, classes)
    return loose, {name: _of_split(base / name, split, classes[name]) for name in classes}


def _require_classes(base: Path, classes: Mapping[str, Sequence[Path]]) -> None:
    """Refuse folders that are not classes: splits, or a data set further below."""
    for name, images in classes.items():
        folder = base / name
        parents = {path.relative_to(folder).parts[:-1] for path in images}
        if split_of(name) is not None and (parents != {()} or name.lower() != "train"):
            other = next((class_name for class_name in classes if class_name != name), "")
            raise ValueError(
                f"folder {str(base)!r} holds the split {name!r} beside {other!r}; give a folder "
                "that holds only splits, or the folder of one split"
            )
        if (inner := _data_set_within(parents)) is not None:
            raise ValueError(
                f"folder {str(folder)!r} is not a class: it holds the data set "
                f"{str(folder.joinpath(*inner))!r}; give that folder"
            )
        if len(classes) == 1 and min(map(len, parents)) > 1:
            raise ValueError(
                f"folder {str(folder)!r} holds only folders of folders; give the folder "
                "whose folders are the classes"
            )


def _data_set_within(parents: Iterable[tuple[str, ...]]) -> tuple[str, ...] | None:
    """A folder inside a class that holds VOC's images or splits; then it is not a class."""
    inside: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for parts in parents:
        for depth, name in enumerate(parts):
            inside[parts[:depth]].add(name)
    for above, names in sorted(inside.items()):
        voc = not {name.lower() for name in names}.isdisjoint(("jpegimages", "segmentationclass"))
        if voc or (above and len(splits_among(names)) > 1):
            return above
    return None


def _of_split(folder: Path, split: Split, images: list[Path]) -> list[Path]:
    """The images of a class folder, or of one split if the folder has splits."""
    parts = [path.relative_to(folder).parts for path in images]
    splits = splits_among({first for first, *rest in parts if rest})
    if len(splits) < 2:
        return images
    chosen = split_folder(folder, splits, split)
    return [path for path in images if chosen in path.parents]


def _voc_split(root: Path, split: Split, images: list[Path]) -> list[Path]:
    """The VOC images of a split, if there are lists of splits; otherwise all images."""
    lists = root / "ImageSets" / "Main"
    splits = [name for name in get_args(Split) if (lists / f"{name}.txt").is_file()]
    if not splits:
        return images
    if split not in splits:
        raise ValueError(f"folder {str(lists)!r} has no list {split}.txt; it has those of {splits}")
    stems = {line.strip() for line in read_text(lists / f"{split}.txt").split("\n")}
    return [path for path in images if path.stem in stems]
