"""Classification: one row per image, its label's rank among the model's logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from ..data.samples import ImageData
from ..preprocessing import preprocess
from .batches import OnImage, OnSkip, sample_batches, warn
from .runs import Row

__all__ = ["AccuracyOptions", "evaluate_accuracy"]


@dataclass(frozen=True)
class AccuracyOptions:
    """What decides the numbers of a classification experiment.

    Attributes:
        batch_size: images a forward pass.
        amp: bfloat16 autocast.
    """

    batch_size: int = 64
    amp: bool = False


def evaluate_accuracy(
    model: nn.Module,
    data: ImageData,
    options: AccuracyOptions | None = None,
    *,
    name: str = "model",
    on_row: Callable[[Row], None] = lambda row: None,
    on_image: OnImage = lambda images: None,
    on_skip: OnSkip = warn,
) -> list[Row]:
    """Classify every image.

    Args:
        model: a classifier in eval mode, whose output is (B, C) logits.
        data: the images, with labels in the order of the model's outputs.
        options: see :class:`AccuracyOptions`.
        name: of the model, in the rows.
        on_row: called with every row as it is ready.
        on_image: called with the number of images just done, those left out among them.
        on_skip: called with a sentence for an image that cannot be read, which is left out.

    Returns:
        Rows with ``image``, ``model``, ``label``, ``predicted``, ``classes`` (C), and ``rank`` of
        the label, 0 where the prediction is right; classes that tie with it count as before it.

    Raises:
        ValueError: if an image has no label, or one that the model has no output for.
    """
    options = options or AccuracyOptions()
    rows: list[Row] = []
    for samples in sample_batches(data, options.batch_size, on_image, on_skip):
        images = preprocess(model, [sample.image for sample in samples])
        with (
            torch.no_grad(),
            torch.autocast(images.device.type, torch.bfloat16, enabled=options.amp),
        ):
            logits = model(images).float().cpu()
        for sample, scores in zip(samples, logits, strict=True):
            if sample.label is None or not 0 <= sample.label < len(scores):
                raise ValueError(
                    f"{sample.image_id} has the label {sample.label}; the model has outputs "
                    f"0 to {len(scores) - 1}"
                )
            rows.append(
                {
                    "image": sample.image_id,
                    "model": name,
                    "label": sample.label,
                    "predicted": int(scores.argmax()),
                    "classes": len(scores),
                    "rank": int((scores >= scores[sample.label]).sum()) - 1,
                }
            )
            on_row(rows[-1])
    return rows
