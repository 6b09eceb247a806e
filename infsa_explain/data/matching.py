"""Matching the labels of a data set to the outputs of a model.

A data set and a model number their classes in different orders. :func:`match_labels` matches them
by the names of the classes, or reports what does not match.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from .labels import normalised
from .samples import ImageData, Sample
from .subsets import known_labels

__all__ = [
    "LabelMismatch",
    "Labels",
    "Matched",
    "first_synonym",
    "labels_of",
    "match_labels",
    "without_labels",
]

#: How to match labels: by name if names exist, only by name, or by position.
Labels = Literal["auto", "name", "position"]
#: A model counts as one of ImageNet if it has at least this share of the names, in order.
IMAGENET_SHARE = 0.95
#: Number of names in an error.
SHOWN = 3


class LabelMismatch(ValueError):
    """Labels of a data set and a model do not match; the message says what to do."""


class Matched(NamedTuple):
    """A data set with the labels of a model's outputs.

    Attributes:
        data: the images.
        how: how the labels were matched, in words, such as "by name" or "no labels used".
    """

    data: ImageData
    how: str


def match_labels(
    data: ImageData,
    names: Sequence[str] | None,
    *,
    outputs: int | None = None,
    labels: Labels = "auto",
) -> Matched:
    """Give the images of a data set the labels of a model's outputs.

    Names match if they are equal after :func:`~infsa_explain.data.labels.normalised`. Commas
    separate synonyms, as in ImageNet. A WordNet id stands for ImageNet's words for it. A class
    that fits several of the model's names does not match. Classes without an image need not match.
    Labels from a label map are those of the model already.

    Args:
        data: the images. Labels without any class names are used unchanged.
        names: the model's class names, in the order of its outputs; None if it has none.
        outputs: number of the model's outputs, if known.
        labels: ``"name"`` matches by name. ``"position"`` takes the data's first class for the
            model's first output, and so on. ``"auto"`` matches by name, or by position if neither
            side has names (the data's are the numbers from 0) and the numbers of classes agree. A
            table whose labels are numbers may have fewer classes.

    Returns:
        The data with the model's labels, and how they were matched.

    Raises:
        LabelMismatch: if the labels cannot be matched; it names some of the classes.
        ValueError: if ``labels`` has another value, or is given beside a label map.

    >>> from infsa_explain.data import PhotoDigits
    >>> data = PhotoDigits("val", size=2)
    >>> [sample.label for sample in data]
    [8, 6]
    >>> matched = match_labels(data, ["9", "8", "7", "6", "5", "4", "3", "2", "1", "0"])
    >>> matched.how, [sample.label for sample in matched.data]
    ('by name', [1, 3])
    """
    if labels not in get_args(Labels):
        raise ValueError(f"labels must be 'auto', 'name' or 'position', got {labels!r}")
    outputs = len(names) if outputs is None and names is not None else outputs
    label_map: str | None = getattr(data, "labelled_by", None)
    if label_map is not None and labels != "auto":
        raise ValueError(f"labels={labels!r} and the {label_map} both give labels; leave one out")
    used = _used(data)
    if not used:
        return Matched(data, "no labels used")
    if label_map is not None:
        _require_outputs(data, used, outputs, label_map)
        return Matched(data, label_map)
    if not data.classes:
        return Matched(data, "as the data numbers them: it has no class names")
    if labels == "position":
        _require_outputs(data, used, outputs, label_map)
        return Matched(data, "by position, asked for")
    if names is not None:
        return Matched(_by_name(data, names, used), "by name")
    return _without_names(data, outputs, labels)


def _without_names(data: ImageData, outputs: int | None, labels: Labels) -> Matched:
    """Match the classes of a data set to a model without class names: only numbers match."""
    if labels != "auto" or not _numbered(data.classes):
        raise LabelMismatch(
            f"{data.name!r} names {_several(data.classes)}, and the model has no class names to "
            f"match; {_mend(None)}"
        )
    # In a table of numbers some classes may be missing.
    may_be_fewer = getattr(data, "numbered", False) and len(data.classes) < (outputs or 0)
    if len(data.classes) == outputs or may_be_fewer:
        return Matched(data, "by position: neither side has class names")
    raise LabelMismatch(
        f"{data.name!r} numbers {len(data.classes)} classes, and the model has "
        f"{outputs or 'an unknown number of'} outputs without names; {_mend(None)}"
    )


def labels_of(data: ImageData, names: Sequence[str]) -> list[int | None]:
    """For each class of a data set, the model's class of that name.

    Args:
        data: with ``wnids`` or without.
        names: the model's class names.

    Returns:
        Indices of the model's classes; None for a class that no name, or several names, fit.
    """
    matches = _matches(data, names)
    return [next(iter(outputs)) if len(outputs) == 1 else None for outputs in matches]


def without_labels(data: ImageData) -> Matched:
    """Remove the labels of a data set; which boxes show an image's own class is kept."""
    return Matched(_Relabelled(data, [], None), "no labels used")


class _Relabelled:
    """A data set whose labels index a list of new labels; without labels if that is None."""

    def __init__(self, data: ImageData, classes: list[str], labels: Sequence[int] | None) -> None:
        self.data, self.name, self.classes = data, data.name, classes
        self._labels = labels

    @property
    def labels(self) -> list[int | None] | None:
        """The label of each image; None if decoding is needed to know them."""
        labels = known_labels(self.data)
        if labels is None or self._labels is None:
            return None if labels is None else [None] * len(labels)
        return [None if label is None else self._of(label) for label in labels]

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> Sample:
        sample = self.data[i]
        if self._labels is None:
            return sample._replace(label=None, box_labels=None, own=sample.is_own)
        boxes = sample.box_labels
        return sample._replace(
            label=None if sample.label is None else self._of(sample.label),
            box_labels=None
            if boxes is None
            else np.array([self._of(label) for label in boxes.tolist()], dtype=np.int64),
        )

    def _of(self, label: int) -> int:
        labels = self._labels or ()
        return labels[label] if 0 <= label < len(labels) else -1

    def fingerprint(self) -> str:
        """The fingerprint of the data set on disk."""
        return self.data.fingerprint()


def _used(data: ImageData) -> list[int]:
    """The labels that occur; all labels if decoding is needed to know them."""
    labels = known_labels(data)
    if labels is None:
        return list(range(len(data.classes))) or [0]
    return sorted({label for label in labels if label is not None})


def _require_outputs(
    data: ImageData, used: Sequence[int], outputs: int | None, label_map: str | None
) -> None:
    """Refuse labels that exceed the model's outputs."""
    classes = len(data.classes)
    beyond = [label for label in used if outputs is not None and label >= outputs]
    if beyond and label_map is not None:
        name = data.classes[beyond[0]] if beyond[0] < classes else ""
        raise LabelMismatch(
            f"the {label_map} gives {name!r} the label {beyond[0]}, and the model has the outputs "
            f"0 to {(outputs or 0) - 1}; give the label map of this model"
        )
    if beyond:
        raise LabelMismatch(
            f"{data.name!r} has {classes} classes, and the model {outputs} outputs; {_mend(None)}"
        )


def _numbered(classes: Sequence[str]) -> bool:
    """Whether every class is named by its own number."""
    return all(normalised(name) == str(i) for i, name in enumerate(classes))


def _matches(data: ImageData, names: Sequence[str]) -> list[set[int]]:
    """For each class of a data set, the model's classes that its name may mean."""
    wnids: Sequence[str] = getattr(data, "wnids", ()) or [""] * len(data.classes)
    model_names = _Names(names)
    return [model_names.find(name, wnid) for name, wnid in zip(data.classes, wnids, strict=True)]


def _by_name(data: ImageData, names: Sequence[str], used: Sequence[int]) -> ImageData:
    matches = _matches(data, names)
    unmatched = [label for label in used if label >= len(matches) or len(matches[label]) != 1]
    if unmatched:
        classes = [data.classes[i] if i < len(matches) else f"number {i}" for i in unmatched]
        ambiguous = all(i < len(matches) and len(matches[i]) > 1 for i in unmatched)
        verb = "is" if len(classes) == 1 else "are"
        verb += " among the names of several" if ambiguous else " not among the names"
        raise LabelMismatch(
            f"{_several(classes)} of {data.name!r} {verb} of the model's {len(names)} classes "
            f"({_few(list(map(first_synonym, names)))}); {_mend(names)}"
        )
    labels = [next(iter(outputs)) if len(outputs) == 1 else -1 for outputs in matches]
    name_by_output: dict[int, str] = {}
    for label in used:
        name = data.classes[label]
        other = name_by_output.setdefault(labels[label], name)
        if normalised(other) != normalised(name):
            raise LabelMismatch(
                f"{other!r} and {name!r} of {data.name!r} are both names of the model's class "
                f"{names[labels[label]]!r}; {_mend(names)}"
            )
    return _Relabelled(data, list(map(first_synonym, names)), labels)


class _Names:
    """Finds class names by several spellings, from the strictest to the loosest."""

    def __init__(self, names: Sequence[str]) -> None:
        wnids = _imagenet_wnids(names) or [_parts(name)[0] for name in names]
        self._wnids = {wnid: label for label, wnid in enumerate(wnids) if wnid}
        self._all_have_wnids = len(self._wnids) == len(names)
        self._levels: list[defaultdict[str, set[int]]] = [defaultdict(set) for _ in range(4)]
        for label, (name, wnid) in enumerate(zip(names, wnids, strict=True)):
            for level, spellings in zip(self._levels, _spellings(name, wnid), strict=True):
                for spelling in spellings:
                    level[spelling].add(label)

    def find(self, name: str, wnid: str = "") -> set[int]:
        """Indices of the classes that a name may mean: none, one, or several."""
        wnid = wnid or _parts(name)[0]
        if wnid in self._wnids:
            return {self._wnids[wnid]}
        if wnid and self._all_have_wnids:
            return set()
        for level, spellings in zip(self._levels, _spellings(name, wnid), strict=True):
            labels = set().union(*(level.get(spelling, set()) for spelling in spellings))
            if labels:
                return labels
        return set()


def _spellings(name: str, wnid: str) -> tuple[set[str], ...]:
    """Four sets of spellings: the name itself, its normal form, its first synonym, all synonyms."""
    _, words = _parts(name)
    texts = [words or name, *_wordnet(wnid)]
    synonyms = [[normalised(part) for part in text.split(",")] for text in texts]
    return (
        {name},
        {normalised(name), *map(normalised, texts)},
        {parts[0] for parts in synonyms} - {""},
        {part for parts in synonyms for part in parts} - {""},
    )


def _parts(name: str) -> tuple[str, str]:
    """Split a name into its WordNet id, if it begins with one, and the words after it.

    >>> _parts("n02085620-Chihuahua"), _parts("N01440764"), _parts("goose")
    (('n02085620', 'Chihuahua'), ('n01440764', ''), ('', ''))
    """
    match = re.fullmatch(r"([nN]\d{8})(?:[\s_.,-]+(.*))?", name.strip())
    return (match[1].lower(), match[2] or "") if match else ("", "")


def first_synonym(name: str) -> str:
    """The first synonym in a class name; commas separate synonyms.

    >>> first_synonym("n01440764, tench, Tinca tinca"), first_synonym("goose")
    ('tench', 'goose')
    """
    return (_parts(name)[1] or name).split(",")[0].strip() or name


def _wordnet(wnid: str) -> list[str]:
    """ImageNet's name of a WordNet id, in a list; empty if it has none."""
    try:
        return [_imagenet("imagenet-1k").label_name_to_description(wnid)] if wnid else []
    except KeyError:
        return []


@lru_cache(maxsize=2)
def _imagenet(subset: str) -> Any:
    from timm.data import ImageNetInfo  # imports torch

    return ImageNetInfo(subset)


def _imagenet_wnids(names: Sequence[str]) -> list[str]:
    """WordNet ids of class names that are ImageNet's, in ImageNet's order; empty for others.

    Two classes of ImageNet-1K are called "crane"; only the order distinguishes them.
    """
    if len(names) < 1000:
        return []
    from timm.data import infer_imagenet_subset

    subset = infer_imagenet_subset({"num_classes": len(names)})
    if subset is None:
        return []
    info = _imagenet(subset)
    same = [
        not _spellings(name, "")[3].isdisjoint(_spellings(description, "")[3])
        for name, description in zip(names, info.label_descriptions(), strict=True)
    ]
    return list(info.label_names()) if sum(same) >= IMAGENET_SHARE * len(names) else []


def _several(names: Sequence[str]) -> str:
    return f"class {names[0]!r}" if len(names) == 1 else f"classes {_few(names)}"


def _few(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(f"{name!r:.60}" for name in names[:SHOWN]) + more


def _mend(names: Sequence[str] | None) -> str:
    is_imagenet = names is not None and _imagenet_wnids(names)
    built_in = "'imagenet-1k' or " if is_imagenet and len(names or ()) == 1000 else ""
    return (
        f"give a label map ({built_in}a file of the names by output: --label-map, label_map=), or "
        "labels='position' (--labels position) if the data's classes are in the model's order"
    )
