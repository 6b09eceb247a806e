"""Maps against boxes: model × data × methods, one row per image and method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from infsa_metrics import (
    average_precision,
    box_mask,
    effective_patches,
    iou_at_best,
    iou_at_mean,
    mass_accuracy,
    pointing_game,
    prevalence,
    rank_accuracy,
    roc_auc,
)
from torch import Tensor, nn

from ..data.samples import ImageData
from ..preprocessing import frame_boxes
from .batches import OnImage, OnSkip, warn
from .maps import MapBatch, MapOptions, map_batches
from .runs import Row, number

__all__ = ["BoxOptions", "evaluate_boxes"]


@dataclass(frozen=True)
class BoxOptions(MapOptions):
    """What decides the numbers of a localisation experiment, besides :class:`MapOptions`.

    Attributes:
        tolerance: of the pointing game, as a share of the input's shorter side: 15 pixels of 224
            by default, as Zhang et al. (arXiv 1608.00507) have it.
        boxes: ``"all"`` of an image, or those of its own ``"label"`` alone.
    """

    tolerance: float = 15 / 224
    boxes: Literal["all", "label"] = "all"


def evaluate_boxes(
    model: nn.Module,
    data: ImageData,
    options: BoxOptions | None = None,
    *,
    name: str = "model",
    on_row: Callable[[Row], None] = lambda row: None,
    on_image: OnImage = lambda images: None,
    on_skip: OnSkip = warn,
) -> list[Row]:
    """Compare the maps of every method with the boxes of every image, pixel by pixel.

    The frame is the model's input: boxes follow its resizing and crop, and maps are upsampled to
    it bilinearly. Positive is the union of an image's boxes, or of those of its label by option.

    Args:
        model: a supported ViT in eval mode.
        data: the images.
        options: see :class:`BoxOptions`.
        name: of the model, in the rows.
        on_row: called with every row as it is ready.
        on_image: called with the number of images just done, those left out among them.
        on_skip: called with a sentence for an image that cannot be read, which is left out.

    Returns:
        Rows with ``image``, ``model``, ``method``, ``layers``, ``label``, ``predicted``,
        ``prevalence``, ``ap``, ``roc_auc``, ``pointing``, ``mass``, ``rank``, ``iou_mean``,
        ``iou_best``, ``effective_patches`` (share of the grid). An image without a pixel inside a
        box, or without one outside, has None in all of them.

    Raises:
        ValueError: for options out of range, or a method that does not suit the model.
    """
    options = options or BoxOptions()
    if options.boxes not in ("all", "label"):
        raise ValueError(f"boxes must be 'all' or 'label', got {options.boxes!r}")
    rows: list[Row] = []
    for batch in map_batches(model, data, options, on_image, on_skip):
        masks = _masks(model, batch, options)
        for method, explanation in batch.explanations.items():
            measures = _measures(batch.scores(method), masks, options)
            for i, sample in enumerate(batch.samples):
                rows.append(
                    {
                        "image": sample.image_id,
                        "model": name,
                        "method": method,
                        "layers": list(explanation.layers),
                        "head": options.head,
                        "label": sample.label,
                        "predicted": int(batch.logits[i].argmax()),
                        **{key: number(values[i]) for key, values in measures.items()},
                    }
                )
                on_row(rows[-1])
    return rows


def _masks(model: nn.Module, batch: MapBatch, options: BoxOptions) -> Tensor:
    """Pixels of the input inside a box, (B, h, w) bool."""
    height, width = batch.images.shape[-2:]
    masks = []
    for sample in batch.samples:
        boxes = sample.own_boxes if options.boxes == "label" else sample.boxes
        framed = frame_boxes(model, boxes, *sample.image.shape[:2])
        masks.append(box_mask(framed, height, width))
    return torch.stack(masks).to(batch.images.device)


def _measures(scores: Tensor, masks: Tensor, options: BoxOptions) -> dict[str, Tensor]:
    """Every measure, (B,)."""
    height, width = masks.shape[-2:]
    maps = nn.functional.interpolate(
        scores[:, None].double(), (height, width), mode="bilinear", align_corners=False
    )[:, 0]
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
