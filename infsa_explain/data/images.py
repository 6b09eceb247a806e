"""Image files with annotations: the base class of all data sets on disk."""

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
from .decode import ImageError, decode_image
from .frames import Box, Size, flaw, upright_boxes
from .labels import LabelMap
from .samples import Sample, readable

__all__ = ["Entry", "FileImages"]


class Entry(NamedTuple):
    """An image file with its annotation; the image is not decoded.

    Attributes:
        path: of the file, relative to the data set's root.
        label: class index, or None if unknown.
        boxes: the usable boxes, in the frame of ``size``.
        box_labels: class index of every box, -1 if unknown.
        size: width and height that the annotation states, or None.
        dropped: reasons of the boxes that were left out.
        faults: sentences about malformed parts of the annotation.
        cluster: see :class:`Sample`.
    """

    path: Path
    label: int | None
    boxes: tuple[Box, ...] = ()
    box_labels: tuple[int, ...] = ()
    size: Size | None = None
    dropped: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    cluster: str | None = None

    @classmethod
    def of(cls, path: Path, label: int | None, annotation: Annotation, labels: LabelMap) -> Entry:
        """The entry of an annotation; boxes that cannot be used are left out and counted."""
        boxes, box_labels, dropped = [], [], ["malformed"] * len(annotation.faults)
        for name, box, crowd in annotation.objects:
            if box is None:
                continue
            if reason := "crowd" if crowd else flaw(box, annotation.size):
                dropped.append(reason)
                continue
            box_label = labels.find(name)
            boxes.append(box)
            box_labels.append(-1 if box_label is None else box_label)
        return cls(
            path,
            label,
            tuple(boxes),
            tuple(box_labels),
            annotation.size,
            tuple(dropped),
            annotation.faults,
            annotation.cluster,
        )


class FileImages:
    """Image files with annotations; each image is decoded on access.

    Malformed annotations are left out, with one warning that counts them and quotes the first.

    Attributes:
        root: the folder that paths are relative to.
        name: of the data set.
        classes: class names by label; empty if images have no classes.
        wnids: WordNet ids by label if they are known, otherwise empty.
        labelled_by: source of labels that are a model's, such as ``"label map FILE"``; None if they
            are the data set's own.
        numbered: whether a table gives the labels as numbers, without names.
        labels: label of every image, or None; available without decoding.
        box_counts: number of boxes of every image; available without decoding.
        dropped: for every image the reasons of the boxes that were left out.
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
        """Number of boxes that were left out, by reason.

        The reasons are ``crowd`` (COCO's), ``malformed``, ``not finite``, ``reversed``,
        ``without area`` and ``outside the image``. If an annotation states no size, boxes outside
        the image are counted only once the image is decoded.
        """
        return dict(Counter(reason for reasons in self.dropped for reason in reasons))

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, i: int) -> Sample:
        """Decode an image; boxes are clipped at its border.

        Raises:
            ImageError: if it cannot be decoded, or its size differs from the annotation's.
        """
        if not 0 <= i < len(self):
            raise IndexError(i)
        entry = self._entries[i]
        pixels, orientation = decode_image(self.root / entry.path)
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
            cluster=entry.cluster,
        )

    def fingerprint(self) -> str:
        """Hex digest of paths, file sizes, labels, boxes and all other annotations.

        Pixels are not read, so an edit that keeps a file's size is not noticed. The order of the
        images does not matter.
        """
        digest = hashlib.sha256()
        for entry in sorted(self._entries, key=lambda entry: entry.path.as_posix()):
            try:
                size = (self.root / entry.path).stat().st_size
            except OSError:
                size = None  # the file is missing
            boxes = [[float(edge) for edge in box] for box in entry.boxes]
            row = [entry.path.as_posix(), size, entry.label, boxes, entry.box_labels, entry.size]
            if entry.cluster is not None:
                row.append(entry.cluster)
            digest.update(json.dumps(row).encode())
        return digest.hexdigest()[:16]
