"""Deletion curves of maps: model × data × methods, one row per image, order and method."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from infsa_metrics import FILLS, deletion_curve, pixel_fill
from torch import Tensor, nn

from ..data.samples import ImageData
from ..preprocessing import data_config
from ..tokens import drop_fill
from .batches import OnImage, OnSkip, warn
from .maps import MapBatch, MapOptions, map_batches
from .runs import Row, number

__all__ = ["MorfOptions", "evaluate_morf"]


@dataclass(frozen=True)
class MorfOptions(MapOptions):
    """What decides the numbers of a deletion experiment, besides :class:`MapOptions`.

    Attributes:
        fill: what removed patches become: ``"mean"``, ``"black"``, ``"blur"``, ``"noise"``, or
            ``"drop"``. Numbers with different fills are not comparable.
        steps: points of the curve, denser early; None for one patch a step.
        target: the class that is followed: ``"predicted"`` on the clean image, or ``"label"``.
        floor: images whose clean probability is not above it have no AOC and are counted apart.
        batch_size: masked images a forward pass.
        amp: bfloat16 autocast.
    """

    fill: str = "mean"
    steps: int | None = None
    target: Literal["predicted", "label"] = "predicted"
    floor: float = 0.0
    batch_size: int = 64
    amp: bool = False


def evaluate_morf(
    model: nn.Module,
    data: ImageData,
    options: MorfOptions | None = None,
    *,
    name: str = "model",
    on_row: Callable[[Row], None] = lambda row: None,
    on_image: OnImage = lambda images: None,
    on_skip: OnSkip = warn,
) -> list[Row]:
    """Deletion curves of every method on every image, most and least relevant first.

    Args:
        model: a supported ViT in eval mode.
        data: the images.
        options: see :class:`MorfOptions`.
        name: of the model, in the rows.
        on_row: called with every row as it is ready.
        on_image: called with the number of images just done, those left out among them.
        on_skip: called with a sentence for an image that cannot be read, which is left out.

    Returns:
        Rows with ``image``, ``model``, ``method``, ``order``, ``layers``, ``fill``, ``target``,
        ``label``, ``predicted``, ``p0``, ``aoc``, ``auc``, ``tied`` (share of patches), and
        ``fractions`` and ``probabilities`` of the curve. NaN is None.

    Raises:
        ValueError: for options out of range, or a method that does not suit the model.
    """
    options = options or MorfOptions()
    predict = _predictor(model, options)
    rows: list[Row] = []
    for batch in map_batches(model, data, options, on_image, on_skip):
        for row in _rows(batch, predict, options, name):
            rows.append(row)
            on_row(row)
    return rows


def _rows(
    batch: MapBatch,
    predict: Callable[[Tensor, Tensor], Tensor],
    options: MorfOptions,
    name: str,
) -> Iterable[Row]:
    predicted = batch.logits.argmax(-1).cpu()
    targets = predicted
    if options.target == "label":
        unlabelled = [s.image_id for s in batch.samples if s.label is None]
        if unlabelled:
            raise ValueError(f"target='label', but {unlabelled[0]} has no label")
        targets = torch.tensor([s.label for s in batch.samples])
    for method, explanation in batch.explanations.items():
        for order in ("morf", "lerf"):
            curve = deletion_curve(
                predict,
                batch.images,
                targets,
                batch.scores(method),
                order=order,
                steps=options.steps,
                seeds=batch.seeds,
                batch_size=options.batch_size,
            )
            aoc, auc = curve.aoc(options.floor), curve.auc()
            for i, sample in enumerate(batch.samples):
                yield {
                    "image": sample.image_id,
                    "model": name,
                    "method": method,
                    "order": order,
                    "layers": list(explanation.layers),
                    "head": options.head,
                    "fill": options.fill,
                    "target": int(targets[i]),
                    "label": sample.label,
                    "predicted": int(predicted[i]),
                    "p0": float(curve.probabilities[i, 0]),
                    "aoc": number(aoc[i]),
                    "auc": number(auc[i]),
                    "tied": float(curve.tied[i]),
                    "fractions": [round(x, 6) for x in curve.fractions.tolist()],
                    "probabilities": [round(x, 6) for x in curve.probabilities[i].tolist()],
                }


def _predictor(model: nn.Module, options: MorfOptions) -> Callable[[Tensor, Tensor], Tensor]:
    """``predict_masked`` for the chosen fill."""
    if options.fill == "drop":
        predict = drop_fill(model)
    elif options.fill in FILLS:
        config = data_config(model)
        predict = pixel_fill(
            model, options.fill, mean=config["mean"], std=config["std"], seed=options.seed
        )
    else:
        raise ValueError(f"unknown fill {options.fill!r}; one of {', '.join([*FILLS, 'drop'])}")
    if not options.amp:
        return predict

    def autocast(images: Tensor, removed: Tensor) -> Tensor:
        with torch.autocast(images.device.type, dtype=torch.bfloat16):
            return predict(images, removed)

    return autocast
