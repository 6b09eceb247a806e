"""Maps against boxes: one row per image and method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import ClassVar, Literal

import numpy as np
import torch
from infsa_metrics import (
    MeanInterval,
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
from ..drawing.charts import Forest, ForestRow, Line, LineChart
from ..ranges import Range
from ..vits.preprocessing import frame_boxes
from .batches import Batch, MapOptions, patch_scores
from .diagnostics import of_models
from .findings import Score
from .registry import Chart, Measure, register_measure
from .rows import Row, number
from .tables import (
    CONTROLS,
    FAMILY,
    Table,
    by_method,
    by_model,
    count_cell,
    difference_cell,
    interval_cell,
    sampling_note,
    unique,
)
from .values import Difference, Images, Seeds, differences_to_controls

__all__ = ["BOX_HEADINGS", "RECALLS", "BoxSummary", "Boxes", "box_table", "summarise_boxes"]

#: Where the precision-recall curve is kept.
RECALLS = tuple(round(0.05 * step, 2) for step in range(1, 21))


@register_measure
@dataclass(frozen=True)
class Boxes(MapOptions, Measure):
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
    title: ClassVar[str] = "Boxes"
    question: ClassVar[str] = (
        "Do maps lie on the object? PR-AUC is the average precision of a map's pixels against "
        "the boxes. A constant map scores the prevalence, the share of pixels inside."
    )
    by_default: ClassVar[bool] = True
    command: ClassVar[bool] = True
    field: ClassVar[str] = "ap"
    heading: ClassVar[str] = "PR-AUC"
    phrase: ClassVar[str] = "by boxes"

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

    @classmethod
    def summarise(cls, rows: Sequence[Row]) -> list[BoxSummary]:
        return summarise_boxes(rows)

    @classmethod
    def tables(cls, summaries: Sequence[BoxSummary]) -> list[Table]:
        note = f"{sampling_note(s.measures['ap'] for s in summaries)} {FAMILY}"
        return [Table("boxes; percent", BOX_HEADINGS, box_table(summaries), note)]

    @classmethod
    def charts(cls, rows: Sequence[Row], summaries: Sequence[BoxSummary]) -> list[Chart]:
        return [*precision_recall_charts(rows), *box_forests(summaries)]

    @classmethod
    def fault(cls, summaries: Sequence[BoxSummary]) -> str:
        if any(s.measures["prevalence"].n for s in summaries):
            return ""
        return (
            "no image has a box, in the part that the model sees, that leaves something outside; "
            "with --boxes label the boxes must be of the image's own label"
        )

    @classmethod
    def scores(cls, summaries: Sequence[BoxSummary]) -> list[Score]:
        return [Score(s.model, s.method, s.measures["ap"], s.over) for s in summaries]

    @classmethod
    def findings(cls, rows: Sequence[Row], summaries: Sequence[BoxSummary]) -> list[str]:
        shares = {s.model: s.measures["prevalence"] for s in summaries}
        paragraphs = super().findings(rows, summaries)
        return [
            f"{text} {_prevalence_text(share)}"
            for text, share in zip(paragraphs, shares.values(), strict=True)
        ]

    @classmethod
    def diagnostics(cls, summaries: Sequence[BoxSummary]) -> dict[str, dict[str, str]]:
        return {
            "images without a box that leaves something outside": of_models(
                summaries, lambda of_model: str(max(s.skipped for s in of_model))
            )
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


#: Measures of every map, as :class:`infsa_explain.evaluate.Boxes` names them.
MEASURES = (
    "ap",
    "roc_auc",
    "pointing",
    "mass",
    "rank",
    "iou_mean",
    "iou_best",
    "effective_patches",
    "prevalence",
)
#: Those that are the share of images with a hit.
SHARES = ("pointing",)  # fmt: skip


@dataclass(frozen=True)
class BoxSummary:
    """One method on one model, means over the images that have a box.

    Attributes:
        measures: measure → mean and interval; see :class:`infsa_explain.evaluate.Boxes`.
        over: control → :class:`Difference` of average precision to that control; empty for the
            controls themselves.
        skipped: images without a pixel inside a box, or without one outside.
        seeds: of average precision.
    """

    model: str
    method: str
    measures: dict[str, MeanInterval]
    over: dict[str, Difference]
    skipped: int
    seeds: Seeds


def summarise_boxes(rows: Sequence[Row]) -> list[BoxSummary]:
    """Summaries of every (model, method), in the order in which they first appear.

    Args:
        rows: of :class:`infsa_explain.evaluate.Boxes`.
    """
    groups = {
        model: {
            method: {name: images.values(of_method, itemgetter(name)) for name in MEASURES}
            for method, of_method in methods.items()
        }
        for model, (images, methods) in by_method(rows).items()
    }
    over = differences_to_controls(
        {
            model: {method: values["ap"] for method, values in methods.items()}
            for model, methods in groups.items()
        }
    )
    return [
        BoxSummary(
            model,
            method,
            {name: numbers.interval(proportion=name in SHARES) for name, numbers in values.items()},
            over.get((model, method), {}),
            int(np.isnan(values["prevalence"].of_images).sum()),
            values["ap"].seeds,
        )
        for model, methods in groups.items()
        for method, values in methods.items()
    ]


BOX_HEADINGS = (
    "model",
    "method",
    "PR-AUC ↑ [95%]",
    *(f"over {control} [95%]" for control in CONTROLS),
    "ROC-AUC ↑",
    "pointing ↑",
    "mass ↑",
    "rank ↑",
    "best IoU ↑",
    "effective patches",
    "prevalence",
    "n",
)


def box_table(summaries: Sequence[BoxSummary]) -> list[tuple[str, ...]]:
    """The cells of the table, a tuple a row, under ``BOX_HEADINGS``; in percent."""
    shown = ("roc_auc", "pointing", "mass", "rank", "iou_best", "effective_patches", "prevalence")
    return [
        (
            s.model,
            s.method,
            interval_cell(s.measures["ap"]),
            *(difference_cell(s.over.get(control)) for control in CONTROLS),
            *(f"{100 * s.measures[measure].mean:.1f}" for measure in shown),
            count_cell(s.measures["ap"], s.seeds),
        )
        for s in summaries
    ]


def _prevalence_text(share: MeanInterval) -> str:
    if not share.n:
        return "No image has a box that leaves something outside."
    return f"A constant map scores the prevalence, {100 * share.mean:.1f}."


def precision_recall_charts(rows: Sequence[Row]) -> list[LineChart]:
    """Mean precision at every recall, a chart a model, with a pointwise interval over images."""
    return [
        _precision_recall_chart(model, [row for row in of_model if row.get("precision")])
        for model, of_model in by_model(rows).items()
        if any(row.get("precision") for row in of_model)
    ]


def _precision_recall_chart(model: str, rows: Sequence[Row]) -> LineChart:
    images = Images.of(rows)
    lines = [
        Line(
            method,
            "",
            *images.mean_curve(
                (row for row in rows if row["method"] == method), itemgetter("precision")
            ),
        )
        for method in unique(rows, "method")
    ]
    return LineChart(
        title=model,
        lines=lines,
        x=np.array(RECALLS),
        at=[f"recall {recall:.0%}" for recall in RECALLS],
        x_ticks=[(x / 100, str(x)) for x in (20, 40, 60, 80, 100)],
        slanted=False,
        y_ticks=[0, 0.2, 0.4, 0.6, 0.8, 1],
        x_label="recall: share of the box that is found (%)",
        y_label="precision",
    )


def box_forests(summaries: Sequence[BoxSummary]) -> list[Forest]:
    """Average precision of every method beside the prevalence, which a constant map scores."""
    forests = []
    for model in dict.fromkeys(s.model for s in summaries):
        of_model = [s for s in summaries if s.model == model]
        share = of_model[0].measures["prevalence"].mean
        rows = [ForestRow(s.method, s.measures["ap"]) for s in of_model if s.measures["ap"].n]
        references = [] if np.isnan(share) else [(share, f"prevalence {100 * share:.1f}")]
        forests.append(Forest(model, "PR-AUC (%)", rows, 100, ".1f", references))
    return forests
