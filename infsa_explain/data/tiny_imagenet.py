"""Tiny-ImageNet's own layout: ``wnids.txt``, ``words.txt``, and lists of boxes."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ..files import read_text
from .annotations import Annotation, Object
from .frames import Box
from .images import Entry
from .labels import LabelMap
from .layouts import EXTENSIONS, find_files
from .trees import Split

__all__ = ["read_tiny_imagenet"]


def read_tiny_imagenet(
    root: Path, split: Split, label_map: LabelMap | None
) -> tuple[LabelMap, list[Entry]]:
    """Read a split of Tiny-ImageNet.

    Args:
        root: the folder of ``wnids.txt``.
        split: ``"train"``, ``"val"`` or ``"test"``, which may have no labels.
        label_map: labels of the WordNet ids; by default their position in alphabetical order.

    Returns:
        The label map, and the images.

    Raises:
        ValueError: if a folder or list is missing or malformed, or a class is not in ``label_map``.
    """
    wnids = _wnids(root)
    labels = label_map or _labels(root, wnids)
    label_of = {w: labels.require(w, f"{str(root / 'wnids.txt')!r}: {w!r}") for w in wnids}
    folder = root / split
    if not folder.is_dir():
        raise ValueError(f"folder {str(folder)!r} does not exist; unpack the whole data set")
    listing = folder / f"{split}_annotations.txt"
    if split == "test" and not listing.is_file():  # the labels of the test split are not published
        return labels, [Entry(p.relative_to(root), None) for p in find_files(folder, EXTENSIONS)]

    lines = _lines(listing, columns=6)
    images: dict[Path, tuple[str, Iterable[_Line]]] = {}
    if (folder / "images").is_dir():
        paths = find_files(folder / "images", EXTENSIONS)
        for path, wnid in _classes_by_line(paths, lines, label_of, listing).items():
            images[path] = wnid, lines[path.name]
    else:
        for wnid in wnids:
            if not (folder / wnid).is_dir():
                raise ValueError(f"{str(folder)!r} has no folder {wnid!r}, which wnids.txt names")
            of_class = lines | _lines(folder / wnid / f"{wnid}_boxes.txt", columns=5)
            for path in find_files(folder / wnid, EXTENSIONS):
                images[path] = wnid, of_class.get(path.name, ())
    entries = [
        Entry.of(path.relative_to(root), label_of[wnid], _annotation(wnid, its_lines), labels)
        for path, (wnid, its_lines) in images.items()
    ]
    return labels, entries


def _wnids(root: Path) -> list[str]:
    """The classes of ``wnids.txt`` in alphabetical order."""
    wnids = sorted({row[0] for _, row in _rows(root / "wnids.txt")})
    for wnid in wnids:
        if wnid == ".." or Path(wnid).name != wnid:
            raise ValueError(
                f"{str(root / 'wnids.txt')!r}: {wnid!r:.40} is not the name of a folder"
            )
    return wnids


def _labels(root: Path, wnids: list[str]) -> LabelMap:
    """WordNet ids numbered in order, each named by its first word in ``words.txt``."""
    words = {row[0]: row[-1] for _, row in _rows(root / "words.txt")}
    return LabelMap(
        {wnid: label for label, wnid in enumerate(wnids)},
        "wnids.txt",
        classes=[words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids],
        wnids=wnids,
    )


def _annotation(wnid: str, lines: Iterable[_Line]) -> Annotation:
    return Annotation(
        tuple(Object(wnid, line.box) for line in lines),
        faults=tuple(line.fault for line in lines if line.fault),
    )


def _classes_by_line(
    paths: Iterable[Path],
    lines_by_name: Mapping[str, list[_Line]],
    wnids: Container[str],
    listing: Path,
) -> dict[Path, str]:
    """The class of every image, from its lines; images without a valid line are left out."""
    classes: dict[Path, str] = {}
    left_out: list[str] = []
    for path in paths:
        lines = lines_by_name.get(path.name, [])
        faults = [line.fault for line in lines if line.fault]
        if valid := [line.wnid for line in lines if line.wnid in wnids]:
            classes[path] = valid[-1]
        elif faults:
            left_out.append(faults[0])
        else:
            raise ValueError(f"{str(listing)!r} gives {path.name!r} no class of wnids.txt")
    if left_out:
        warnings.warn(
            f"{len(left_out)} images without a class are left out, such as {left_out[0]}",
            stacklevel=5,
        )
    return classes


class _Line(NamedTuple):
    """A line of a list of boxes.

    Attributes:
        wnid: the class; empty in lists without classes.
        box: half-open edges, or None if they are malformed.
        fault: a sentence about the malformed line, or empty.
    """

    wnid: str
    box: Box | None
    fault: str


def _lines(file: Path, columns: int) -> dict[str, list[_Line]]:
    """The lines of a list by image name; the last four fields are inclusive pixels."""
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
    """Line number and tab-separated fields of each line that is not blank; empty without a file."""
    text = read_text(file) if file.is_file() else ""
    for number, line in enumerate(text.splitlines(), start=1):
        row = [field.strip() for field in line.rstrip().split("\t")]
        if any(row):
            yield number, row
