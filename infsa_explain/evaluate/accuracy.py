"""Classification: one row per image, its label's rank among the model's logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from infsa_metrics import MeanInterval, class_logits, output_tensor
from infsa_metrics.outputs import eval_mode
from torch import nn

from ..vits import require_classes
from .batches import Batch, require_finite
from .registry import Measure, ModelValues, register_measure
from .rows import Row
from .tables import Table, by_model, count_cell, interval_cell, sampling_note
from .values import Images, Seeds

__all__ = ["Accuracy", "AccuracySummary", "accuracy_table", "summarise_accuracy"]


@register_measure
@dataclass(frozen=True)
class Accuracy(Measure):
    """Every image is classified. Its model need not be a ViT, only give logits.

    Rows have ``label``, ``predicted``, ``classes`` (C), and ``rank`` of the label, 0 where the
    prediction is right; classes that tie with it count as before it. An image without a label, or
    with one that the model has no output for, is an error.

    Attributes:
        amp: bfloat16 autocast.
    """

    name: ClassVar[str] = "accuracy"
    title: ClassVar[str] = "Accuracy"
    question: ClassVar[str] = "How often the class is right."
    command: ClassVar[bool] = True
    judged: ClassVar[bool] = False
    amp: bool = False

    @property
    def needs_labels(self) -> bool:
        return True

    def check(self, model: nn.Module) -> None:
        require_classes(model, "accuracy")

    def rows(self, batch: Batch) -> Iterator[Row]:
        model, images = batch.subject.model, batch.inputs
        with (
            eval_mode(model),
            torch.no_grad(),
            torch.autocast(images.device.type, torch.bfloat16, enabled=self.amp),
        ):
            raw = output_tensor(model(images))
        logits = class_logits(raw).float().cpu()
        require_finite(logits, batch.samples)
        for sample, scores in zip(batch.samples, logits, strict=True):
            if sample.label is None or not 0 <= sample.label < len(scores):
                raise ValueError(
                    f"{sample.image_id} has the label {sample.label}; the model has outputs "
                    f"0 to {len(scores) - 1}"
                )
            yield {
                "image": sample.image_id,
                "label": sample.label,
                "predicted": int(scores.argmax()),
                "classes": len(scores),
                "rank": int((scores >= scores[sample.label]).sum()) - 1,
            }

    @classmethod
    def summarise(cls, rows: Sequence[Row]) -> list[AccuracySummary]:
        return summarise_accuracy(rows)

    @classmethod
    def tables(cls, summaries: Sequence[AccuracySummary]) -> list[Table]:
        note = sampling_note(s.top1 for s in summaries)
        return [Table("accuracy; percent", ACCURACY_HEADINGS, accuracy_table(summaries), note)]

    @classmethod
    def quantities(cls, rows: Sequence[Row]) -> dict[str, dict[str, ModelValues]]:
        models = {
            model: (Images.of(of_model), of_model) for model, of_model in by_model(rows).items()
        }
        return {
            "top-1 accuracy": {
                model: (images, {"": images.values(of_model, _within(1))})
                for model, (images, of_model) in models.items()
            }
        }

    @classmethod
    def findings(cls, rows: Sequence[Row], summaries: Sequence[AccuracySummary]) -> list[str]:
        return [
            f"`{s.model}` classifies {interval_cell(s.top1)}% of the images as they are labelled; "
            f"a guess is right for {100 * s.chance:.1f}%."
            for s in summaries
        ]


@dataclass(frozen=True)
class AccuracySummary:
    """One model.

    Attributes:
        top1, top5: share of images whose label is the first, or among the first five.
        chance: 1 / C, the accuracy of a guess.
        seeds: of top-1.
    """

    model: str
    top1: MeanInterval
    top5: MeanInterval
    chance: float
    seeds: Seeds


def summarise_accuracy(rows: Sequence[Row]) -> list[AccuracySummary]:
    """Summaries of every model, in the order in which they first appear."""
    summaries = []
    for model, of_model in by_model(rows).items():
        images = Images.of(of_model)
        first, five = (images.values(of_model, _within(k)) for k in (1, 5))
        top1, top5 = (values.interval(proportion=True) for values in (first, five))
        chance = 1 / of_model[0]["classes"]
        summaries.append(AccuracySummary(model, top1, top5, chance, first.seeds))
    return summaries


def _within(k: int) -> Callable[[Row], float]:
    """1 for an image whose label is among the first k, else 0."""
    return lambda row: float(row["rank"] < k)


ACCURACY_HEADINGS = ("model", "top-1 ↑ [95%]", "top-5 ↑ [95%]", "chance", "n")


def accuracy_table(summaries: Sequence[AccuracySummary]) -> list[tuple[str, ...]]:
    """The cells of the table, a tuple a row, under ``ACCURACY_HEADINGS``; in percent."""
    return [
        (
            s.model,
            interval_cell(s.top1),
            interval_cell(s.top5),
            f"{100 * s.chance:.1f}",
            count_cell(s.top1, s.seeds),
        )
        for s in summaries
    ]
