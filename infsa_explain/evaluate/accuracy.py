"""Classification: one row per image, its label's rank among the model's logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from infsa_metrics import class_logits, output_tensor
from infsa_metrics.outputs import eval_mode
from torch import nn

from ..data.samples import ImageData
from ..vits import require_classes
from .batches import Batch, require_finite
from .rows import Row

__all__ = ["Accuracy"]


@dataclass(frozen=True)
class Accuracy:
    """Every image is classified. Its model need not be a ViT, only give logits.

    Rows have ``label``, ``predicted``, ``classes`` (C), and ``rank`` of the label, 0 where the
    prediction is right; classes that tie with it count as before it. An image without a label, or
    with one that the model has no output for, is an error.

    Attributes:
        amp: bfloat16 autocast.
    """

    name: ClassVar[str] = "accuracy"
    needs_labels: ClassVar[bool] = True

    amp: bool = False

    def check(self, model: nn.Module) -> None:
        require_classes(model, "accuracy")

    def check_data(self, data: ImageData) -> None:
        pass

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
