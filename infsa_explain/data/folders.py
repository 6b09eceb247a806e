"""Folders of images as data sets: Tiny-ImageNet's layout, class folders, or just images."""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from ..files import read_text
from .annotations import Annotation, Object, read_voc
from .frames import Box
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
    """A folder of images; images are decoded on access.

    Four layouts are recognised:

    - Tiny-ImageNet: ``wnids.txt``, ``words.txt``, ``train/WNID/images`` with
      ``WNID_boxes.txt``, and ``val/images`` with ``val_annotations.txt`` (or ``val/WNID``, as
      many scripts rearrange it). Classes are the WordNet ids in alphabetical order, named by
      the first word of each. ``root`` may also be its ``train`` or ``val`` folder.
    - Pascal VOC: ``JPEGImages``, ``Annotations``, and ``ImageSets/Main`` with the splits.
    - class folders, as torchvision's ``ImageFolder``: ``root/CLASS/**/image``, with splits above
      the classes, within each class, or without splits. Numeric names sort as numbers.
    - images without class folders: ``root/image``, or ``root/images/image``.

    ``root`` may also be a folder a level or two above, where it holds nothing else.

    Split folders are called ``train`` or ``training``, ``val``, ``valid`` or ``validation``, and
    ``test`` or ``testing``, in any case; something common to all may stand before (``seg_train``),
    and ``set``, ``data``, ``images`` or a number after (``test_set``, ``train2017``). They are
    never classes, but for a folder ``train`` of images beside other classes.

    In the last two layouts an image may have a Pascal-VOC XML with its own name beside it, or at
    any depth in a folder ``Annotations`` that lies in ``root`` or beside the folder of images. So
    ImageNet's ``Data/CLS-LOC/val`` and ``Annotations/CLS-LOC/val`` are found. VOC's images, and
    others without class folders, take their label from the XML, where all objects are of one
    class; otherwise it is None.

    Labels are positions among the sorted names of classes, also where the names are numbers. A
    ``label_map`` gives those of a model instead: with ``"imagenet-1k"`` a folder ``n01440764`` or
    ``0`` is class 0, whichever other folders there are.

    Hidden files and folders are passed over, and folders that systems make (``@eaDir``,
    ``__MACOSX``), annotations, and VOC's masks. Links to folders are followed.

    Args:
        root: the folder.
        split: ``"val"``, ``"train"`` or ``"test"``; without effect where the folder has no splits.
        class_names: the classes in the order of a model's outputs, of which every class
            folder must be one; by default the folder names, sorted.
        label_map: ``"imagenet-1k"`` or a file that :func:`open_label_map` reads; every class
            folder must be in it. Objects in XML that are not have box label -1.

    Raises:
        ValueError: there is no such folder, it holds no images, several data sets, or splits
            beside classes, or its lists, annotations or label map are malformed or do not suit
            each other.

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
        if class_names is not None and label_map is not None:
            raise ValueError("class_names and label_map both give labels; leave one out")
        given = None if label_map is None else open_label_map(label_map)
        whole = folder.resolve()
        if whole.name in ("train", "val") and (whole.parent / "wnids.txt").is_file():
            folder, split = whole.parent, "train" if whole.name == "train" else "val"
        folder = data_folder(folder)
        if (folder / "wnids.txt").is_file():
            if class_names is not None:
                raise ValueError("class_names is for class folders; Tiny-ImageNet has its own")
            labels, entries = _tiny_imagenet(folder, split, given)
        else:
            if class_names is not None:
                given = LabelMap.of(class_names, "class_names")
            labels, entries = _class_folders(folder, split, given)
        if not entries:
            raise ValueError(f"folder {str(root)!r} holds no images ({' '.join(EXTENSIONS)})")
        if all(entry.label is None and not entry.boxes for entry in entries):
            _refuse_coco(folder, split)
        by = "argument class_names" if class_names is not None else None
        by = by if label_map is None else f"label map {str(label_map)!r}"
        super().__init__(folder, folder.resolve().name, labels, entries, labelled_by=by)


def _tiny_imagenet(
    root: Path, split: Split, given: LabelMap | None
) -> tuple[LabelMap, list[Entry]]:
    wnids = sorted({row[0] for _, row in _rows(root / "wnids.txt")})
    for wnid in wnids:
        if wnid == ".." or Path(wnid).name != wnid:
            raise ValueError(
                f"{str(root / 'wnids.txt')!r}: {wnid!r:.40} is not the name of a folder"
            )
    named = {row[0]: row[-1] for _, row in _rows(root / "words.txt")}
    labels = given or LabelMap(
        {wnid: label for label, wnid in enumerate(wnids)},
        "wnids.txt",
        classes=[named.get(wnid, wnid).split(",")[0].strip() for wnid in wnids],
        wnids=wnids,
    )
    label_of = {w: labels.require(w, f"{str(root / 'wnids.txt')!r}: {w!r}") for w in wnids}
    folder = root / split
    if not folder.is_dir():
        raise ValueError(f"folder {str(folder)!r} does not exist; unpack the whole data set")

    if split == "test" and not (folder / "test_annotations.txt").is_file():
        unknown = find_files(folder, EXTENSIONS)  # its labels were never published
        return labels, [Entry(path.relative_to(root), None) for path in unknown]

    listing = folder / f"{split}_annotations.txt"
    listed = _lines(listing, columns=6)

    def entry(path: Path, wnid: str, lines: Iterable[_Line]) -> Entry:
        annotation = Annotation(
            tuple(Object(wnid, line.box) for line in lines),
            faults=tuple(line.fault for line in lines if line.fault),
        )
        return Entry.of(path.relative_to(root), label_of[wnid], annotation, labels)

    if (folder / "images").is_dir():
        paths = find_files(folder / "images", EXTENSIONS)
        classed = _classes_by_line(paths, listed, label_of, listing)
        return labels, [entry(path, wnid, listed[path.name]) for path, wnid in classed.items()]
    entries = []
    for wnid in wnids:
        if not (folder / wnid).is_dir():
            raise ValueError(f"{str(folder)!r} has no folder {wnid!r}, which wnids.txt names")
        own = listed | _lines(folder / wnid / f"{wnid}_boxes.txt", columns=5)
        for path in find_files(folder / wnid, EXTENSIONS):
            entries.append(entry(path, wnid, own.get(path.name, ())))
    return labels, entries


def _classes_by_line(
    paths: Iterable[Path],
    listed: Mapping[str, list[_Line]],
    known: Container[str],
    listing: Path,
) -> dict[Path, str]:
    """Class of every image, from its lines; images without a sound line are left out."""
    classes: dict[Path, str] = {}
    left_out: list[str] = []
    for path in paths:
        lines = listed.get(path.name, [])
        faults = [line.fault for line in lines if line.fault]
        if wnids := [line.wnid for line in lines if line.wnid in known]:
            classes[path] = wnids[-1]
        elif faults:
            left_out.append(faults[0])
        else:
            raise ValueError(f"{str(listing)!r} gives {path.name!r} no class of wnids.txt")
    if left_out:
        warnings.warn(
            f"{len(left_out)} images are left out for want of a class, such as {left_out[0]}",
            stacklevel=5,
        )
    return classes


def _class_folders(
    root: Path, split: Split, given: LabelMap | None
) -> tuple[LabelMap, list[Entry]]:
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
        if given is not None:
            given.require_any(objects, f"no class in the annotations of {str(base)!r}")
        names = sorted({*names, *objects}) if objects else []
    labels = given or LabelMap.of(sorted(names, key=natural_order), "the class folders")

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
    """Refuse images without labels if COCO's JSON lies beside them."""
    above = root.absolute().parent if root.name.lower() in PHOTOGRAPHS else root
    files = sorted((above / "annotations").glob("instances_*.json"))
    if files:
        file = next((file for file in files if split in file.stem), files[0])
        raise ValueError(
            f"folder {str(root)!r} is laid out as COCO; give the file with the boxes, such as "
            f"{str(file)!r}"
        )


def _base(root: Path, split: Split) -> tuple[Path, list[str]]:
    """The folder with the images or class folders, and all splits' class folders."""
    if (root / "JPEGImages").is_dir():
        return root / "JPEGImages", []
    top = imagenet_folder(root) or root
    splits = split_folders(top)
    if not splits:
        return top, _classes(top)
    base = split_folder(top, splits, split)
    # Labels are the same in all splits, also if one lacks a class.
    others = [one for one in ("train", "val") if one in splits and one != split]
    places = [base, *(split_folder(top, splits, one) for one in others)]
    return base, sorted({name for place in places for name in _classes(place)})


def _classes(base: Path) -> list[str]:
    return [name for name in subfolders(base) if name.lower() not in PHOTOGRAPHS]


def _scan(base: Path, split: Split) -> tuple[list[Path], dict[str, list[Path]]]:
    """Images of a folder without class folders, or of each class folder."""
    names = subfolders(base)
    found = {name: find_files(base / name, EXTENSIONS) for name in names}
    loose = find_files(base, EXTENSIONS, deep=False)
    photographs = [name for name in names if name.lower() in PHOTOGRAPHS]
    if photographs and not loose:
        others = [name for name in names if found[name] and name not in photographs]
        if others or len(photographs) > 1:
            raise ValueError(
                f"folder {str(base)!r} holds {photographs[0]!r} beside other folders of images, "
                f"such as {[*others, *photographs[1:]][0]!r}; give the folder of the images, or "
                "that of the class folders"
            )
        return found[photographs[0]], {}
    classes = {name: paths for name, paths in found.items() if paths}
    if loose and classes:
        raise ValueError(
            f"folder {str(base)!r} holds images beside class folders, such as "
            f"{loose[0].name!r} and {next(iter(classes))!r}; move one of them away"
        )
    if classes and len(classes) < len(found):
        empty = next(name for name in found if name not in classes)
        raise ValueError(f"class folder {str(base / empty)!r} holds no images; remove it")
    _require_classes(base, classes)
    return loose, {name: _of_split(base / name, split, classes[name]) for name in classes}


def _require_classes(base: Path, classes: Mapping[str, Sequence[Path]]) -> None:
    """Refuse folders that are not classes: splits, or a data set further down."""
    for name, images in classes.items():
        folder = base / name
        parents = {path.relative_to(folder).parts[:-1] for path in images}
        if split_of(name) is not None and (parents != {()} or name.lower() != "train"):
            other = next((one for one in classes if one != name), "")
            raise ValueError(
                f"folder {str(base)!r} holds the split {name!r} beside {other!r}; give the folder "
                "that holds nothing but splits, or the folder of one split"
            )
        if (inner := _data_set_within(parents)) is not None:
            raise ValueError(
                f"folder {str(folder)!r} is no class, for it holds the data set "
                f"{str(folder.joinpath(*inner))!r}; give that folder"
            )
        if len(classes) == 1 and min(map(len, parents)) > 1:
            raise ValueError(
                f"folder {str(folder)!r} holds nothing but folders of folders; give the folder "
                "whose folders are the classes"
            )


def _data_set_within(parents: Iterable[tuple[str, ...]]) -> tuple[str, ...] | None:
    """A folder within a class that holds VOC's images or splits, which no class does."""
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
    """The images of a class folder; those of one split if the folder has splits."""
    parts = [path.relative_to(folder).parts for path in images]
    splits = splits_among({first for first, *rest in parts if rest})
    if len(splits) < 2:
        return images
    chosen = split_folder(folder, splits, split)
    return [path for path in images if chosen in path.parents]


def _voc_split(root: Path, split: Split, images: list[Path]) -> list[Path]:
    """The VOC images of a split, if there are lists of splits."""
    lists = root / "ImageSets" / "Main"
    known = [name for name in get_args(Split) if (lists / f"{name}.txt").is_file()]
    if not known:
        return images
    if split not in known:
        raise ValueError(f"folder {str(lists)!r} has no list {split}.txt; it has those of {known}")
    stems = {line.strip() for line in read_text(lists / f"{split}.txt").split("\n")}
    return [path for path in images if path.stem in stems]


class _Line(NamedTuple):
    """A line of a list of boxes.

    Attributes:
        wnid: the class; empty in lists that have none.
        box: half-open edges, or None where they are malformed.
        fault: a sentence on that, or empty.
    """

    wnid: str
    box: Box | None
    fault: str


def _lines(file: Path, columns: int) -> dict[str, list[_Line]]:
    """Lines by image name; the last four of their fields are inclusive pixels."""
    lines: defaultdict[str, list[_Line]] = defaultdict(list)
    for number, row in _rows(file):
        wnid = row[1] if columns == 6 and len(row) > 1 else ""
        box, fault = None, ""
        try:
            if len(row) != columns:
                raise ValueError(f"{len(row)} fields, not {columns}")
            x0, y0, x1, y1 = map(float, row[-4:])
            box = (x0, y0, x1 + 1, y1 + 1)
        except ValueError as error:
            fault = f"{str(file)!r}, line {number}: {error}"
        lines[row[0]].append(_Line(wnid, box, fault))
    return dict(lines)


def _rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Number and tab-separated fields of each line that is not blank; nothing without a file."""
    text = read_text(file) if file.is_file() else ""
    for number, line in enumerate(text.splitlines(), start=1):
        row = [field.strip() for field in line.rstrip().split("\t")]
        if any(row):
            yield number, row
