"""Readers of annotation files: Pascal VOC's XML, COCO's JSON, and tables of boxes.

All readers return boxes as half-open pixel edges, in the frame of the image size that the file
states. Files are not trusted: paths in them must stay below their folder, and no XML entity is
expanded or fetched.
"""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DTDForbidden, ElementTree

from ..files import read_json, read_text
from .frames import Box, Size
from .labels import MAX_CLASSES, LabelMap, natural_order

__all__ = ["Annotation", "Listing", "Object", "read_coco", "read_table", "read_voc"]

#: Largest size in bytes of the XML of one image.
MAX_XML_BYTES = 1 << 24
#: Longest side of an image, in pixels.
MAX_SIDE = 1_000_000_000
#: Columns that a table of boxes must have, in any order.
COLUMNS = ("path", "label", "x0", "y0", "x1", "y1")


class Object(NamedTuple):
    """One annotated object: its class and its box, or None where the file has none."""

    name: str | None
    box: Box | None
    crowd: bool = False  # COCO's mark for a box around many objects


class Annotation(NamedTuple):
    """The annotation of one image.

    Attributes:
        objects: the annotated objects.
        size: image size that the boxes refer to, if it is stated.
        faults: sentences about malformed parts that were left out; each names its place.
        cluster: see :class:`~infsa_explain.data.Sample`.
    """

    objects: tuple[Object, ...] = ()
    size: Size | None = None
    faults: tuple[str, ...] = ()
    cluster: str | None = None


class Listing(NamedTuple):
    """The annotations of many images.

    Attributes:
        annotations: by image path relative to a folder, in the order of the file.
        labels: the labels of class names.
        faults: as in :class:`Annotation`, for annotations that belong to no listed image.
    """

    annotations: dict[str, Annotation]
    labels: LabelMap
    faults: tuple[str, ...] = ()


def read_voc(file: Path) -> Annotation:
    """Read the XML annotation of one image, as in Pascal VOC and ImageNet.

    Boxes are 1-based inclusive pixels, so 1 is subtracted from xmin and ymin. A size of 0 counts as
    not stated. ``filename`` is ignored: an annotation belongs to the image with its own file name.
    An object with a missing or malformed box keeps its class, and is reported among the faults.

    Raises:
        ValueError: if the file is not such an XML, declares a document type, or exceeds 16 MiB.
    """
    root = _xml(file)
    if root.tag != "annotation":
        raise ValueError(
            f"{str(file)!r} must be a Pascal VOC XML with the root 'annotation', got "
            f"{root.tag[:40]!r}"
        )
    sides = (
        0 if root.find(f"size/{side}") is None else _xml_number(root, f"size/{side}", file)
        for side in ("width", "height")
    )
    objects, faults = [], []
    for item in root.iterfind("object"):
        name, box = (item.findtext("name") or "").strip(), None
        try:
            x0, y0, x1, y1 = (
                _xml_number(item, f"bndbox/{edge}", file)
                for edge in ("xmin", "ymin", "xmax", "ymax")
            )
            box = (x0 - 1, y0 - 1, x1, y1)
        except ValueError as error:
            faults.append(str(error))
        objects.append(Object(name or None, box))
    return Annotation(tuple(objects), _stated(*sides), tuple(faults))


def read_coco(file: Path, labels: LabelMap | None = None) -> Listing:
    """Read COCO's ``instances_*.json``; x, y, width and height are converted to edges.

    An annotation with a missing or malformed ``bbox`` keeps its category. An annotation that is
    malformed otherwise, or whose image or category is not listed, is left out. Both are reported
    among the faults.

    Args:
        file: a JSON object with the lists ``images``, ``annotations`` and ``categories``.
        labels: labels of the category names; by default in the order of the category ids.

    Raises:
        ValueError: if the file is not such a JSON, an image or category is malformed, or no
            annotation can be used; the error names the entry.
    """
    content = read_json(file)
    lists = ("images", "annotations", "categories")
    if not isinstance(content, dict) or not all(isinstance(content.get(k), list) for k in lists):
        raise ValueError(f"{str(file)!r} lacks one of COCO's lists {', '.join(lists)}")

    names: dict[int, str] = {}
    for item, where in _entries(content, "categories", file):
        name = _field(item, "name", str, where)
        names[_new(_field(item, "id", int, where), names, where)] = name
    paths: dict[int | str, str] = {}
    sizes: dict[str, Size | None] = {}
    for item, where in _entries(content, "images", file):
        path = _new(_path_below(_field(item, "file_name", str, where), where), sizes, where)
        paths[_new(_field(item, "id", (int, str), where), paths, where)] = path
        sides = (_field(item, side, (int, float), where, 0) for side in ("width", "height"))
        sizes[path] = _stated(*sides)
    objects, faults, orphans = _coco_objects(content, paths, names, file)
    if labels is None:
        labels = LabelMap.of((names[i] for i in sorted(names)), f"the categories of {str(file)!r}")
    labels.require_any(names.values(), f"no category of {str(file)!r}")
    annotations = {
        path: Annotation(tuple(objects[path]), size, tuple(faults[path]))
        for path, size in sizes.items()
    }
    return Listing(annotations, labels, tuple(orphans))


def _coco_objects(
    content: dict[str, Any], paths: dict[int | str, str], names: dict[int, str], file: Path
) -> tuple[defaultdict[str, list[Object]], defaultdict[str, list[str]], list[str]]:
    """Objects by image path, faults by image path, and faults that belong to no listed image."""
    objects: defaultdict[str, list[Object]] = defaultdict(list)
    faults: defaultdict[str, list[str]] = defaultdict(list)
    orphans: list[str] = []
    for item, where in _entries(content, "annotations", file):
        path, box = None, None
        try:
            path = _listed(item, "image_id", (int, str), paths, where)
            name = _listed(item, "category_id", int, names, where)
            crowd = bool(_field(item, "iscrowd", int, where, 0))
        except ValueError as error:
            (orphans if path is None else faults[path]).append(str(error))
            continue
        try:
            x, y, width, height = _bbox(item, where)
            box = (x, y, x + width, y + height)
        except ValueError as error:
            faults[path].append(str(error))
        objects[path].append(Object(name, box, crowd))
    if content["annotations"] and not objects:
        reason = [*orphans, *(fault for of_image in faults.values() for fault in of_image)][0]
        raise ValueError(f"not one annotation of {str(file)!r} can be used: {reason}")
    return objects, faults, orphans


def read_table(file: Path, labels: LabelMap | None = None) -> Listing:
    """Read a CSV file of path, label, x0, y0, x1, y1; one row for each box.

    The header row is required. Boxes are half-open pixel edges of the upright image. The box
    fields, or the label, of a row may be blank. A row with a malformed box keeps its image and
    label; a row with another number of fields is left out. Both are reported among the faults. A
    column ``cluster`` may name what several images share, such as a subject or a video. Other
    columns are ignored.

    Args:
        file: comma-separated values in UTF-8.
        labels: labels of the names; by default their position in :func:`natural_order`. Whole
            numbers are the labels themselves.

    Raises:
        ValueError: if the file is not such a table; the error names the line.
    """
    objects: defaultdict[str, list[Object]] = defaultdict(list)
    faults: defaultdict[str, list[str]] = defaultdict(list)
    orphans: list[str] = []
    clusters: dict[str, str] = {}
    lines: dict[str, int] = {}  # first line of each name
    reader = csv.reader(io.StringIO(read_text(file), newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        if any(header.count(column) != 1 for column in COLUMNS) or header.count("cluster") > 1:
            raise ValueError("the first line must name the columns " + ",".join(COLUMNS))
        for row in filter(None, reader):
            if len(row) != len(header):
                orphans.append(
                    f"{str(file)!r}, line {reader.line_num}: {len(row)} fields, not {len(header)}"
                )
                continue
            fields = dict(zip(header, row, strict=True))
            name = _name(fields["label"].strip())
            if name is not None:
                lines.setdefault(name, reader.line_num)
            path, box = _path_below(fields["path"], "path"), None
            cluster = fields.get("cluster", "").strip()
            if clusters.setdefault(path, cluster) != cluster:
                raise ValueError(
                    f"cluster of {path!r} must be the same in all rows, got {clusters[path]!r} and "
                    f"{cluster!r}"
                )
            try:
                box = _edges([fields[edge].strip() for edge in COLUMNS[2:]])
            except ValueError as error:
                faults[path].append(f"{str(file)!r}, line {reader.line_num}: {error}")
            objects[path].append(Object(name, box))
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{str(file)!r}, line {reader.line_num or 1}: {error}") from None
    if orphans and not objects:
        raise ValueError(orphans[0])
    if labels is None:
        labels = _labels_of_table(lines, file)
    for name, line in lines.items():
        labels.require(name, f"{str(file)!r}, line {line}: {name!r}")
    annotations = {
        path: Annotation(tuple(of_image), None, tuple(faults[path]), clusters[path] or None)
        for path, of_image in objects.items()
    }
    return Listing(annotations, labels, tuple(orphans))


def _xml(file: Path) -> Element:
    reason: object
    try:
        if file.stat().st_size > MAX_XML_BYTES:
            raise ValueError(f"it has more than {MAX_XML_BYTES} bytes")
        root: Element = ElementTree.parse(str(file), forbid_dtd=True).getroot()
        return root
    except OSError as error:
        raise ValueError(f"{str(file)!r} cannot be read: {error.strerror}") from None
    except DTDForbidden:
        reason = "it declares a document type, which could define entities; delete DOCTYPE"
    except (ParseError, ValueError, LookupError) as error:
        reason = error
    raise ValueError(f"{str(file)!r} is not a readable XML: {reason}")


def _xml_number(element: Element, path: str, file: Path) -> float:
    text = element.findtext(path)
    try:
        return float(text or "")
    except ValueError:
        raise ValueError(f"{str(file)!r}: {path} must be a number, got {text!r:.40}") from None


def _stated(width: float, height: float) -> Size | None:
    """A size in whole pixels, or None if it is missing or out of range."""
    valid = 1 <= width < MAX_SIDE and 1 <= height < MAX_SIDE
    return (round(width), round(height)) if valid else None


def _entries(content: dict[str, Any], key: str, file: Path) -> Iterator[tuple[Any, str]]:
    """The entries of a list, each with its place in the file for errors."""
    for i, item in enumerate(content[key]):
        yield item, f"{str(file)!r}, {key}[{i}]"


def _field(
    item: Any, key: str, kind: type | tuple[type, ...], where: str, default: Any = None
) -> Any:
    value = item.get(key, default) if isinstance(item, dict) else None
    printable = not isinstance(value, str) or value == value.encode(errors="ignore").decode()
    if isinstance(value, bool) or not isinstance(value, kind) or not printable:
        raise ValueError(f"{where}: {key!r} is missing or malformed, got {value!r:.40}")
    return value


def _listed(
    item: Any, key: str, kind: type | tuple[type, ...], listed: Mapping[Any, str], where: str
) -> str:
    """The path or name of the image or category that an annotation refers to."""
    value = _field(item, key, kind, where)
    if value not in listed:
        raise ValueError(f"{where}: {key!r} {value!r:.40} is not listed")
    return listed[value]


def _new(key: Any, seen: Container[Any], where: str) -> Any:
    """A path or id; a repeated one is refused, because one of the two entries would be lost."""
    if key in seen:
        raise ValueError(f"{where}: {key!r:.40} is listed twice")
    return key


def _bbox(item: Any, where: str) -> Box:
    values = _field(item, "bbox", list, where)
    try:
        x, y, width, height = map(float, values)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{where}: 'bbox' must be 4 numbers, got {values!r:.40}") from None
    return x, y, width, height


def _path_below(name: str, where: str) -> str:
    """A relative path in POSIX form; a path that leaves its folder is refused."""
    path = Path(name)
    if not path.name or path.anchor or ".." in path.parts or "\0" in name:
        raise ValueError(
            f"{where}: {name!r:.200} must be the path of an image relative to its folder, and below"
        )
    return path.as_posix()


def _name(text: str) -> str | None:
    """A class name or number, without the ".0" that pandas adds; None if blank."""
    if number := re.fullmatch(r"(-?\d+)(\.0*)?", text, re.ASCII):
        if text.startswith("-"):
            raise ValueError(f"label {text!r} is negative; leave it blank where it is unknown")
        return number[1].lstrip("0") or "0"
    return text or None


def _edges(fields: list[str]) -> Box | None:
    if not any(fields):
        return None
    try:
        x0, y0, x1, y1 = map(float, fields)
    except ValueError:
        raise ValueError(f"a box must be 4 numbers, or 4 blank fields, got {fields}") from None
    return x0, y0, x1, y1


def _labels_of_table(lines: dict[str, int], file: Path) -> LabelMap:
    """The label map of the names or numbers in a table."""
    numbers = [name for name in lines if name.isascii() and name.isdecimal()]
    if not numbers:
        return LabelMap.of(sorted(lines, key=natural_order), f"the labels of {str(file)!r}")
    for name, line in lines.items():
        if name not in numbers:
            raise ValueError(
                f"{str(file)!r}: {numbers[0]!r} in line {lines[numbers[0]]} is a number, but "
                f"{name!r} in line {line} a name; label all images alike, or give a label map"
            )
    largest = max(numbers, key=lambda name: (len(name), name))
    if len(largest) >= len(str(MAX_CLASSES)):
        line = lines[largest]
        raise ValueError(
            f"{str(file)!r}, line {line}: label {largest:.40} is not below {MAX_CLASSES}"
        )
    return LabelMap({}, "", classes=[str(i) for i in range(int(largest) + 1)], numbers=True)
