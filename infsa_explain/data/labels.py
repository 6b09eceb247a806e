"""Label maps: from names of classes to labels."""

from __future__ import annotations

import csv
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from ..files import read_json, read_text

__all__ = [
    "MAX_CLASSES",
    "LabelMap",
    "common_label",
    "natural_order",
    "normalised",
    "open_label_map",
]

#: Name of the built-in label map.
IMAGENET_1K = "imagenet-1k"
#: Labels must be smaller than this.
MAX_CLASSES = 1_000_000


def normalised(name: str) -> str:
    """The normal form of a class name, which is equal for all its spellings.

    Spellings may differ in case, spaces, underscores, hyphens, leading zeros of a number, and the
    two Unicode forms of accented letters. Separators between digits are kept, because they separate
    numbers; so is a minus sign before a number.

    >>> [normalised(name) for name in ("Go-Kart", "go_kart ", "GoKart", "007", "-1", "1 2", "12")]
    ['gokart', 'gokart', 'gokart', '7', '-1', '1 2', '12']
    """
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold()).strip()
    if re.fullmatch(r"-?[0-9]+", text):
        return text.lstrip("0") or "0"
    text = re.sub(r"[\s_\-\u2010-\u2015]+", " ", text)
    return re.sub(r"(?<!\d) | (?!\d)", "", text)


class LabelMap:
    """Names of classes, each with its label.

    A name is looked up as written. If it is not listed, its normal form (:func:`normalised`) is
    looked up, and must be that of a single label.

    Args:
        labels: label by name; several names may have the same label.
        source: describes the map in errors.
        classes: display names by label; by default the first name of every label, or its number if
            it has no name.
        numbers: whether a number that is not listed is the label itself.
        wnids: WordNet ids by label.

    >>> animals = LabelMap({"cat": 0, "dog": 2}, "animals", numbers=True)
    >>> animals.classes, animals.find("dog"), animals.find("1"), animals.find("emu")
    (['cat', '1', 'dog'], 2, 1, None)
    """

    def __init__(
        self,
        labels: Mapping[str, int],
        source: str,
        *,
        classes: Sequence[str] | None = None,
        numbers: bool = False,
        wnids: Sequence[str] = (),
    ) -> None:
        self._labels = dict(labels)
        self._source, self._numbers = source, numbers
        if classes is None:
            first = {label: name for name, label in reversed(self._labels.items())}
            classes = [first.get(i, str(i)) for i in range(max(first, default=-1) + 1)]
        self.classes, self.wnids = list(classes), list(wnids)

    @classmethod
    def of(cls, names: Iterable[str], source: str) -> LabelMap:
        """A map of names in the order of their labels; repeated names are dropped."""
        return cls({name: i for i, name in enumerate(dict.fromkeys(names))}, source)

    @property
    def numbered(self) -> bool:
        """Whether the map has no names, so that numbers are the labels themselves."""
        return self._numbers and not self._labels

    @cached_property
    def _alike(self) -> dict[str, set[int]]:
        """Normal form → labels of all names with this form."""
        alike: defaultdict[str, set[int]] = defaultdict(set)
        for name, label in self._labels.items():
            alike[normalised(name)].add(label)
        return dict(alike)

    def find(self, name: str | None) -> int | None:
        """The label of a name, or None."""
        if name is None:
            return None
        if name in self._labels:
            return self._labels[name]
        if len(alike := self._alike.get(normalised(name), ())) == 1:
            return next(iter(alike))
        if self._numbers and not alike and _is_number(name) and int(name) < len(self.classes):
            return int(name)
        return None

    def require(self, name: str, what: str) -> int:
        """The label of a name.

        Args:
            name: of a class.
            what: beginning of the error.

        Raises:
            ValueError: if the name has no label.
        """
        label = self.find(name)
        if label is None:
            raise ValueError(f"{what} is not among {self._source}")
        return label

    def require_any(self, names: Iterable[str], what: str) -> None:
        """Check that at least one of several names has a label.

        Args:
            names: of classes.
            what: beginning of the error, such as "no category of FILE".

        Raises:
            ValueError: if none of the names has a label. No names at all are accepted.
        """
        names = list(names)
        if names and all(self.find(name) is None for name in names):
            raise ValueError(f"{what}, such as {min(names)!r}, is among {self._source}")


def common_label(labels: Iterable[int | None]) -> int | None:
    """The label that all objects of an image share; None if they differ or there are none.

    >>> common_label([3, 3]), common_label([3, 4]), common_label([3, None]), common_label([])
    (3, None, None, None)
    """
    distinct = set(labels)
    return distinct.pop() if len(distinct) == 1 else None


def open_label_map(name_or_path: str | os.PathLike[str]) -> LabelMap:
    """Open a map from the class names of a data set to the labels of a model's outputs.

    In all maps a number that is not listed is the label itself, as in ImageNet-V2's folders.

    Args:
        name_or_path: ``"imagenet-1k"``, the WordNet ids in the order of timm's ImageNet-1K models;
            a ``.json`` file with an object of names and labels, ``{"cat": 0, "dog": 1}``; or
            another file with one name per line, in the order of the labels. In a ``.csv`` file the
            name is the first field, and may be quoted.

    Returns:
        The map.

    Raises:
        ValueError: if there is no such map, or the file is malformed.
    """
    if name_or_path == IMAGENET_1K:
        return _imagenet()
    file = Path(name_or_path)
    if not os.path.isfile(file):
        raise ValueError(
            f"label map {str(file)!r} is neither {IMAGENET_1K!r} nor a file; give a JSON object "
            "of names and labels, or a text file with one name a line"
        )
    labels = _from_json(file) if file.suffix.lower() == ".json" else _from_lines(file)
    return LabelMap(labels, f"the label map {str(file)!r}", numbers=True)


def natural_order(name: str) -> tuple[bool, int, str]:
    """Sort key: numbers first, by value; then all other names, alphabetically.

    Unlike natural sorting, ``class10`` stands before ``class2``, as in torchvision's
    ``ImageFolder``.

    >>> sorted(["b2", "10", "b10", "9", "007", "B1"], key=natural_order)
    ['007', '9', '10', 'B1', 'b10', 'b2']
    """
    is_number = name.isdecimal() and len(name) < 100  # int() refuses very long numbers
    return (False, int(name), name) if is_number else (True, 0, name)


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) <= len(str(MAX_CLASSES))


def _imagenet() -> LabelMap:
    from timm.data import ImageNetInfo  # imports torch

    info = ImageNetInfo(IMAGENET_1K)
    wnids = info.label_names()
    return LabelMap(
        {wnid: label for label, wnid in enumerate(wnids)},
        f"the label map {IMAGENET_1K!r} (WordNet ids such as 'n01440764', or numbers 0 to 999)",
        classes=[words.split(",")[0] for words in info.label_descriptions()],
        numbers=True,
        wnids=wnids,
    )


def _from_json(file: Path) -> dict[str, int]:
    content = read_json(file)
    if not isinstance(content, dict) or not content:
        raise ValueError(f"label map {str(file)!r} must be an object such as {{'cat': 0}}")
    for name, label in content.items():
        if type(label) is not int or not 0 <= label < MAX_CLASSES:
            raise ValueError(
                f"label map {str(file)!r}: the label of {name!r} must be a whole number from 0 to "
                f"{MAX_CLASSES - 1}, got {str(label)[:40]!r}"
            )
    return content


def _from_lines(file: Path) -> dict[str, int]:
    labels: dict[str, int] = {}
    lines = read_text(file).rstrip().split("\n")
    if len(lines) > MAX_CLASSES:
        raise ValueError(f"label map {str(file)!r} has more than {MAX_CLASSES} lines")
    for label, line in enumerate(lines):
        where = f"label map {str(file)!r}, line {label + 1}"
        try:
            fields = next(csv.reader([line])) if file.suffix.lower() == ".csv" else [line]
        except csv.Error as error:
            raise ValueError(f"{where}: {error}") from None
        name = fields[0].strip() if fields else ""
        if not name:
            raise ValueError(f"{where} is blank; every line must name a class")
        if name in labels:
            raise ValueError(f"{where}: {name!r} is already in line {labels[name] + 1}")
        labels[name] = label
    return labels
