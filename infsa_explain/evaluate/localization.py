"""Maps against boxes: one row per image and method."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from infsa_metrics import (
    average_precision,
    box_mask,
    effective_patches,
    iou_at_best,
    iou_at_mean,
    mass_accuracy,
    pointing_game,
    precision_at_recall,
    prevalence,
    rank_accuracy,
    roc_auc,
)
from torch import Tensor, nn

from ..data.samples import ImageData
from ..ranges import Range
from ..vits.preprocessing import frame_boxes
from .batches import Batch, MapOptions, patch_scores
from .rows import Row, number

__all__ = ["RECALLS", "Boxes"]

#: Where the precision-recall curve is kept.
RECALLS = tuple(round(0.05 * step, 2) for step in range(1, 21))


@dataclass(frozen=True)
class Boxes(MapOptions):
    """Maps are compared with the boxes of every image, pixel by pixel.

    The frame is the model's input: boxes follow its resizing and crop, and maps are upsampled to
    it bilinearly. Positive is the union of an image's boxes, or of those of its label by option.

    Rows have ``method``, ``layers``, ``head``, ``label``, ``predicted``, ``prevalence``, ``ap``,
    ``roc_auc``, ``pointing``, ``mass``, ``rank``, ``iou_mean``, ``iou_best``,
    ``effective_patches`` (share of the grid), and ``precision``, the precision-recall curve at
    ``RECALLS``. An image without a pixel inside a box, or without one outside, has None in all of
    them.

    Attributes, besides those of :class:`MapOptions`:
        tolerance: of the pointing game, as a share of the input's shorter side: 15 pixels of 224
            by default, as Zhang et al. (arXiv 1608.00507) have it.
        boxes: ``"all"`` of an image, or those of its own ``"label"`` alone.
    """

    name: ClassVar[str] = "boxes"

    tolerance: float = 15 / 224
    boxes: Literal["all", "label"] = "all"

    def check(self, model: nn.Module) -> None:
        super().check(model)
        if self.boxes not in ("all", "label"):
            raise ValueError(f"boxes must be 'all' or 'label', got {self.boxes!r}")
        Range(0, 100).require("tolerance", self.tolerance)

    def check_data(self, data: ImageData) -> None:
        counts = getattr(data, "box_counts", None)
        if counts is not None and not any(counts):
            dropped = getattr(data, "dropped_boxes", {})
            flaws = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))
            raise ValueError(
                f"none of the {len(data)} images of {data.name!r} has a box"
                + (f" of use ({flaws})" if flaws else "")
                + "; boxes are in Tiny-ImageNet's layout, in Pascal VOC's .xml beside the images, "
                "in a COCO .json, and in a .csv of path, label, x0, y0, x1, y1"
            )

    def rows(self, batch: Batch) -> Iterator[Row]:
        masks = _masks(batch, self)
        for method, explanation in batch.explanations(self):
            maps = _upsampled(patch_scores(explanation), masks)
            measures = _measures(patch_scores(explanation), maps, masks, self)
            curves = precision_at_recall(maps, masks, recalls=RECALLS).cpu()
            for i, sample in enumerate(batch.samples):
                yield {
                    "image": sample.image_id,
                    "method": method,
                    "layers": list(explanation.layers),
                    "head": self.head_of(explanation),
                    "label": sample.label,
                    "predicted": batch.predicted[i],
                    **{key: number(values[i]) for key, values in measures.items()},
                    "precision": None
                    if curves[i].isnan().any()
                    else [round(x, 6) for x in curves[i].tolist()],
                }


def _masks(batch: Batch, options: Boxes) -> Tensor:
    """Pixels of the input inside a box, (B, h, w) bool."""
    height, width = batch.images.shape[-2:]
    masks = []
    for sample in batch.samples:
        boxes = sample.own_boxes if options.boxes == "label" else sample.boxes
        framed = frame_boxes(batch.subject.model, boxes, *sample.image.shape[:2])
        masks.append(box_mask(framed, height, width))
    return torch.stack(masks).to(batch.images.device)


def _upsampled(scores: Tensor, masks: Tensor) -> Tensor:
    """Maps in the frame of the model's input, (B, h, w) float64."""
    return nn.functional.interpolate(
        scores[:, None].double(), masks.shape[-2:], mode="bilinear", align_corners=False
    )[:, 0]


def _measures(scores: Tensor, maps: Tensor, masks: Tensor, options: Boxes) -> dict[str, Tensor]:
    """Every measure, (B,)."""
    height, width = masks.shape[-2:]
    share = prevalence(masks)
    patches = scores.flatten(1)
    return {
        "prevalence": share.where((share > 0) & (share < 1), torch.nan),
        "ap": average_precision(maps, masks),
        "roc_auc": roc_auc(maps, masks),
        "pointing": pointing_game(maps, masks, tolerance=options.tolerance * min(height, width)),
        "mass": mass_accuracy(maps, masks),
        "rank": rank_accuracy(maps, masks),
        "iou_mean": iou_at_mean(maps, masks),
        "iou_best": iou_at_best(maps, masks),
        "effective_patches": effective_patches(patches.clamp_min(0)) / patches.shape[1],
    }
