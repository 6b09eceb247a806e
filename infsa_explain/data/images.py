"""Images in files with their annotations: the base of all data sets on disk."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .annotations import Annotation
from .decode import ImageError, read_picture
from .frames import Box, Size, flaw, upright_boxes
from .labels import LabelMap
from .samples import Sample, readable

__all__ = ["Entry", "FileImages"]


class Entry(NamedTuple):
    """An image that is not decoded yet.

    Attributes:
        path: of the file, relative to the data set's root.
        label: class index, or None where it is not known.
        boxes: those of use, in the frame of ``size``.
        box_labels: class index of every box, -1 where it is not known.
        size: width and height that the annotation states, or None.
        dropped: the flaws of the boxes left out.
        faults: sentences on what of its annotation was malformed.
    """

    path: Path
    label: int | None
    boxes: tuple[Box, ...] = ()
    box_labels: tuple[int, ...] = ()
    size: Size | None = None
    dropped: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    @classmethod
    def of(cls, path: Path, label: int | None, annotation: Annotation, labels: LabelMap) -> Entry:
        """Split the boxes of an annotation into usable ones and others."""
        boxes, box_labels, dropped = [], [], ["malformed"] * len(annotation.faults)
        for name, box, crowd in annotation.objects:
            if box is None:
                continue
            if reason := "crowd" if crowd else flaw(box, annotation.size):
                dropped.append(reason)
                continue
            found = labels.find(name)
            boxes.append(box)
            box_labels.append(-1 if found is None else found)
        return cls(
            path,
            label,
            tuple(boxes),
            tuple(box_labels),
            annotation.size,
            tuple(dropped),
            annotation.faults,
        )


class FileImages:
    """Images in files; each is decoded on access.

    What was malformed in their annotations is left out; a warning says how much, and gives one
    case.

    Attributes:
        root: the folder that paths are relative to.
        name: of the data set.
        classes: class names by label; empty where images have no classes.
        wnids: WordNet ids by label where they are known, otherwise empty.
        labelled_by: what gave the labels of a model, such as ``"label map FILE"``; None where they
            are the data set's own.
        numbered: whether a table gives the labels as numbers, without names.
        labels: label of every image, or None, without decoding any.
        box_counts: number of boxes of every image, without decoding any.
        dropped: for every image the flaws of its boxes that were left out.
    """

    def __init__(
        self,
        root: Path,
        name: str,
        labels: LabelMap,
        entries: Sequence[Entry],
        *,
        labelled_by: str | None = None,
        faults: Sequence[str] = (),
    ) -> None:
        self.root, self.name = root, readable(name)
        self.labelled_by, self.numbered = labelled_by, labels.numbered
        self.classes, self.wnids = [readable(name) for name in labels.classes], labels.wnids
        self._entries = list(entries)
        self.labels = [entry.label for entry in self._entries]
        self.box_counts = [len(entry.boxes) for entry in self._entries]
        self.dropped = [entry.dropped for entry in self._entries]
        faults = [*faults, *(fault for entry in self._entries for fault in entry.faults)]
        if faults:
            warnings.warn(
                f"{self.name}: {len(faults)} malformed annotations are left out, such as "
                f"{faults[0]}",
                stacklevel=4,
            )

    @property
    def dropped_boxes(self) -> dict[str, int]:
        """Number of boxes left out, by reason.

        ``crowd`` (COCO's), ``malformed``, ``not finite``, ``reversed``, ``without area``,
        ``outside the image``.
        A box outside an image whose annotation states no size is counted from the time the image
        is decoded.
        """
        return dict(Counter(reason for reasons in self.dropped for reason in reasons))

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, i: int) -> Sample:
        """Decode an image; its boxes are clipped at its border.

        Raises:
            ImageError: it cannot be decoded, or is not of the size that its annotation states.
        """
        if not 0 <= i < len(self):
            raise IndexError(i)
        entry = self._entries[i]
        pixels, orientation = read_picture(self.root / entry.path)
        height, width = pixels.shape[:2]
        try:
            boxes = upright_boxes(entry.boxes, entry.size, (width, height), orientation)
        except ImageError as error:
            raise ImageError(f"image {str(self.root / entry.path)!r} {error}") from None
        flaws = [flaw(box, (width, height)) for box in boxes.tolist()]
        self.dropped[i] = (*entry.dropped, *filter(None, flaws))
        sound = np.array([reason is None for reason in flaws], dtype=bool)
        return Sample(
            pixels,
            entry.label,
            boxes[sound].clip(0, [width, height, width, height]).astype(np.float32),
            readable(entry.path),
            np.array(entry.box_labels, dtype=np.int64)[sound],
        )

    def fingerprint(self) -> str:
        """Hex digest of paths, file sizes, labels, boxes and all other annotations.

        Pixels are not read: an edit that keeps a file's size passes unnoticed. The order of the
        images does not matter.
        """
        digest = hashlib.sha256()
        for entry in sorted(self._entries, key=lambda entry: entry.path.as_posix()):
            try:
                size = (self.root / entry.path).stat().st_size
            except OSError:
                size = None  # an image that is missing
            boxes = [[float(edge) for edge in box] for box in entry.boxes]
            row = [entry.path.as_posix(), size, entry.label, boxes, entry.box_labels, entry.size]
            digest.update(json.dumps(row).encode())
        return digest.hexdigest()[:16]
