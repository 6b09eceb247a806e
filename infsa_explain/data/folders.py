"""Folders of images as data sets: Tiny-ImageNet's layout, class folders, or just images."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from .decode import read_image
from .digits import PhotoDigits
from .samples import ImageData, Sample

__all__ = ["ImageFolder", "Subset", "limited", "open_data"]

Split = Literal["train", "val"]
Box = tuple[float, float, float, float]

#: File name endings that are taken for images, in lower case.
EXTENSIONS = (
    ".avif", ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pbm",
    ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip


class _Entry(NamedTuple):
    path: Path  # relative to the root
    label: int | None
    boxes: tuple[Box, ...]


class ImageFolder:
    """A folder of images; an image is decoded when it is asked for.

    Three layouts are recognised:

    - Tiny-ImageNet: ``wnids.txt``, ``words.txt``, ``train/WNID/images`` with
      ``WNID_boxes.txt``, and ``val/images`` with ``val_annotations.txt`` (or ``val/WNID``, as
      many scripts rearrange it). Classes are the WordNet ids in alphabetical order, named by
      the first word of each. ``root`` may also be its ``train`` or ``val`` folder.
    - class folders, as torchvision's ``ImageFolder``: ``root/CLASS/**/image``, with ``train``
      and ``val`` above the classes or not. Numeric names sort as numbers.
    - images without classes: ``root/image``, or ``root/images/image``.

    Hidden files and folders are passed over.

    Args:
        root: the folder.
        split: ``"val"`` or ``"train"``; without effect where the folder has no splits.
        class_names: the classes in the order of a model's outputs, of which every class
            folder must be one; by default the folder names, sorted.

    Attributes:
        name: the folder's own name.
        classes: class names by label; empty where images have no classes.
        labels: label of every image, or None, without decoding any.
        wnids: WordNet ids by label in Tiny-ImageNet's layout, otherwise empty.

    Raises:
        ValueError: there is no such folder, it holds no images, or its lists are malformed.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        split: Split = "val",
        class_names: Sequence[str] | None = None,
    ) -> None:
        if split not in ("train", "val"):
            raise ValueError(f"split must be 'train' or 'val', got {split!r}")
        self.root = Path(root)
        if not self.root.exists():
            raise ValueError(f"folder {str(root)!r} does not exist; check the path")
        if not self.root.is_dir():
            raise ValueError(f"{str(root)!r} is a file; give the folder that holds the images")
        whole = self.root.resolve()
        if whole.name in ("train", "val") and (whole.parent / "wnids.txt").is_file():
            self.root, split = whole.parent, "train" if whole.name == "train" else "val"
        self.name = self.root.resolve().name
        self.classes: list[str] = list(class_names or ())
        self.wnids: list[str] = []
        if (self.root / "wnids.txt").is_file():
            if class_names is not None:
                raise ValueError("class_names is for class folders; Tiny-ImageNet has its own")
            self._entries = self._tiny_imagenet(split)
        else:
            self._entries = self._class_folders(split)
        if not self._entries:
            raise ValueError(f"folder {str(root)!r} holds no images ({' '.join(EXTENSIONS)})")
        self.labels = [entry.label for entry in self._entries]

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, i: int) -> Sample:
        if not 0 <= i < len(self):
            raise IndexError(i)
        path, label, boxes = self._entries[i]
        array = np.array(boxes, dtype=np.float32).reshape(-1, 4)
        return Sample(read_image(self.root / path), label, array, path.as_posix())

    def fingerprint(self) -> str:
        """Hex digest of the sorted paths, file sizes, labels and boxes.

        Pixels are not read: an edit that keeps a file's size passes unnoticed.
        """
        digest = hashlib.sha256()
        for path, label, boxes in sorted(self._entries, key=lambda entry: entry.path.as_posix()):
            try:
                size = (self.root / path).stat().st_size
            except OSError:
                raise ValueError(f"{str(self.root / path)!r} is gone; open the data anew") from None
            row = [path.as_posix(), size, label, [[float(edge) for edge in box] for box in boxes]]
            digest.update(json.dumps(row).encode())
        return digest.hexdigest()[:16]

    def _tiny_imagenet(self, split: Split) -> list[_Entry]:
        self.wnids = sorted({row[0] for row in _rows(self.root / "wnids.txt")})
        named = {row[0]: row[-1] for row in _rows(self.root / "words.txt")}
        self.classes = [named.get(wnid, wnid).split(",")[0].strip() for wnid in self.wnids]
        label_of = {wnid: label for label, wnid in enumerate(self.wnids)}
        folder = self.root / split
        if not folder.is_dir():
            raise ValueError(f"folder {str(folder)!r} does not exist; unpack the whole data set")

        listing = folder / f"{split}_annotations.txt"
        class_of = {row[0]: row[1] for row in _rows(listing, columns=6)}
        boxes = _boxes(listing, columns=6)
        entries = []
        if (folder / "images").is_dir():
            for path in _images(folder / "images"):
                if class_of.get(path.name) not in label_of:
                    raise ValueError(f"{str(listing)!r} gives {path.name!r} no class of wnids.txt")
                label = label_of[class_of[path.name]]
                entries.append(self._entry(path, label, boxes.get(path.name)))
            return entries
        for wnid, label in label_of.items():
            if not (folder / wnid).is_dir():
                raise ValueError(f"{str(folder)!r} has no folder {wnid!r}, which wnids.txt names")
            own = boxes | _boxes(folder / wnid / f"{wnid}_boxes.txt", columns=5)
            for path in _images(folder / wnid):
                entries.append(self._entry(path, label, own.get(path.name)))
        return entries

    def _entry(self, path: Path, label: int | None, boxes: list[Box] | None = None) -> _Entry:
        return _Entry(path.relative_to(self.root), label, tuple(boxes or ()))

    def _class_folders(self, split: Split) -> list[_Entry]:
        base, splits = self.root, set(_folders(self.root))
        names = splits
        if splits >= {"train", "val"} or (splits and splits <= {"train", "val", "test"}):
            base = self.root / split
            if split not in splits:
                raise ValueError(
                    f"folder {str(self.root)!r} has no split {split!r}; it has {sorted(splits)}"
                )
            # Labels agree between the splits, also where one lacks a class.
            names = {
                name for one in splits & {"train", "val"} for name in _folders(self.root / one)
            }
        found = {name: _images(base / name) for name in _folders(base)}
        loose = _images(base, deep=False)
        if set(found) == {"images"} and not loose:
            loose = found.pop("images")
        if not any(found.values()):
            return [self._entry(path, None) for path in loose]
        if loose:
            raise ValueError(
                f"folder {str(base)!r} holds images beside class folders, such as "
                f"{loose[0].name!r} and {next(name for name in found if found[name])!r}; "
                "move one of them away"
            )
        self.classes = self.classes or sorted(names, key=_natural)
        label_of = {name: label for label, name in enumerate(self.classes)}
        for name, paths in found.items():
            if not paths:
                raise ValueError(f"class folder {str(base / name)!r} holds no images; remove it")
            if name not in label_of:
                raise ValueError(f"class folder {str(base / name)!r} is not among class_names")
        return [
            self._entry(path, label_of[name])
            for name in sorted(found, key=label_of.__getitem__)
            for path in found[name]
        ]


class Subset:
    """Some samples of a data set, by index; name, classes and image ids are the data set's."""

    def __init__(self, data: ImageData, indices: Sequence[int]) -> None:
        self.name, self.classes = data.name, data.classes
        self.data, self.indices = data, list(indices)

    @property
    def labels(self) -> list[int | None]:
        """Label of every sample."""
        labels = _labels(self.data)
        return [labels[i] for i in self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> Sample:
        if not 0 <= i < len(self):
            raise IndexError(i)
        return self.data[self.indices[i]]

    def fingerprint(self) -> str:
        """Hex digest of the data set's fingerprint and the indices."""
        content = json.dumps([self.data.fingerprint(), self.indices])
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def limited(data: ImageData, limit: int, seed: int = 0) -> ImageData:
    """A random subset with as equal a share of every class as there is, in the data's order.

    Args:
        data: a data set; where its labels are known without decoding, nothing is decoded.
        limit: number of samples, at least 1; from ``len(data)`` on, ``data`` itself returns.
        seed: chooses the subset; with the same seed, smaller ones lie within larger ones.

    Raises:
        ValueError: ``limit`` is below 1.

    >>> data = PhotoDigits("val", size=5)
    >>> sorted(sample.label for sample in data), sorted(sample.label for sample in limited(data, 4))
    ([2, 2, 4, 6, 8], [2, 4, 6, 8])
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    if limit >= len(data):
        return data
    labels = _labels(data)
    seen: Counter[int | None] = Counter()
    rounds = []  # the first of every class, then the second of every class, ...
    for place, i in enumerate(np.random.default_rng(seed).permutation(len(data)).tolist()):
        rounds.append((seen[labels[i]], place, i))
        seen[labels[i]] += 1
    return Subset(data, sorted(i for _, _, i in sorted(rounds)[:limit]))


def open_data(
    name_or_path: str | os.PathLike[str],
    *,
    split: Split = "val",
    size: int | None = None,
    seed: int = 0,
) -> ImageData:
    """Open a data set by name or folder.

    Args:
        name_or_path: ``"photo-digits"``, the embedded benchmark, or a folder that
            :class:`ImageFolder` reads.
        split: ``"val"`` or ``"train"``.
        size: number of samples: as many as photo-digits is to make (500 by default), or the
            limit of a subset of a folder (all by default).
        seed: the series of photo-digits, or the choice of the subset.

    Raises:
        ValueError: there is no such data, ``size`` is below 1, or as :class:`ImageFolder`.
    """
    if size is not None and size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if name_or_path == PhotoDigits.name:
        return PhotoDigits(split, 500 if size is None else size, seed)
    if not Path(name_or_path).exists():
        raise ValueError(
            f"data {str(name_or_path)!r} is neither {PhotoDigits.name!r} nor an existing folder "
            "of images (Tiny-ImageNet's layout, class folders, or just images)"
        )
    data = ImageFolder(name_or_path, split=split)
    return data if size is None else limited(data, size, seed)


def _labels(data: ImageData) -> list[int | None]:
    known: list[int | None] | None = getattr(data, "labels", None)
    return [data[i].label for i in range(len(data))] if known is None else known


def _visible(name: str) -> bool:
    return not name.startswith(".") and name != "__MACOSX"


def _folders(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if _visible(path.name) and path.is_dir()]


def _images(folder: Path, *, deep: bool = True) -> list[Path]:
    """Images below a folder, sorted by path."""
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = filter(_visible, folders) if deep else ()
        found += [
            Path(parent, name)
            for name in files
            if _visible(name) and name.lower().endswith(EXTENSIONS)
        ]
    return sorted(found, key=lambda path: path.as_posix())


def _natural(name: str) -> tuple[bool, int, str]:
    """Numeric names first, as numbers."""
    return (False, int(name), name) if name.isdecimal() else (True, 0, name)


def _rows(file: Path, columns: int | None = None) -> Iterator[list[str]]:
    """Tab-separated fields of every line that is not blank; none where there is no file."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    for number, line in enumerate(text.splitlines(), start=1):
        row = [field.strip() for field in line.rstrip().split("\t")]
        if columns is not None and any(row) and len(row) != columns:
            raise ValueError(f"{str(file)!r}, line {number}: {len(row)} fields, not {columns}")
        if any(row):
            yield row


def _boxes(file: Path, columns: int) -> dict[str, list[Box]]:
    """Boxes by file name: inclusive pixels in the last four fields, half-open edges out."""
    boxes: defaultdict[str, list[Box]] = defaultdict(list)
    for row in _rows(file, columns):
        try:
            x0, y0, x1, y1 = map(float, row[-4:])
        except ValueError:
            raise ValueError(f"{str(file)!r}: {row[0]!r} has a box that is no numbers") from None
        boxes[row[0]].append((x0, y0, x1 + 1, y1 + 1))
    return dict(boxes)
