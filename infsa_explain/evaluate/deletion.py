"""Deletion curves of maps: one row per image, method and order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from infsa_metrics import FILLS, deletion_curve
from infsa_metrics.deletion import PredictMasked
from infsa_metrics.outputs import Output
from torch import Tensor, nn

from ..memory import Halving
from ..vits import model_output
from ..vits.capturing import patch_grid
from ..vits.preprocessing import data_config
from .batches import Batch, MapOptions, check_output, patch_scores
from .rows import Row, number
from .token_fills import patch_fill

__all__ = ["Morf"]

#: Patches that a forward pass takes at a time where nothing else is asked for. On the CPU more
#: tokens outgrow its caches; a GPU wants many.
PATCHES_A_PASS = {"cpu": 2048, "cuda": 32768}
#: Clean probability of a class that is not predicted up to which there is no AOC, unless told.
LABEL_FLOOR = 0.01


@dataclass(frozen=True)
class Morf(MapOptions):
    """Patches are removed, most relevant first (MoRF), and least relevant first (LeRF).

    Rows have ``method``, ``order``, ``layers``, ``head``, ``fill``, ``target``, ``label``,
    ``predicted``, ``p0``, ``aoc``, ``auc``, ``tied`` (share of patches), and ``fractions`` and
    ``probabilities`` of the curve.

    Attributes, besides those of :class:`MapOptions`:
        fill: what removed patches become: ``"mean"``, ``"black"``, ``"blur"``, ``"noise"``, or
            ``"drop"``. Numbers with different fills are not comparable.
        steps: of the curve, as ``deletion_curve`` takes them; None for one patch a step.
        floor: images whose clean probability p_0 is not above it have no AOC, in which they would
            outweigh all others by 1 / p_0, and are counted apart. None becomes 0.01 for labels and
            for one class for all, and 0 for predicted classes, whose p_0 is at least one over the
            number of classes.
        batch_size: most masked images a forward pass; None for 2,048 patches' worth of them on
            the CPU, which is about where it is fastest, and 32,768 on a GPU.
        amp: bfloat16 autocast.
        output: what the model's outputs are, ``"softmax"`` or ``"sigmoid"``; ``"auto"`` for what
            the model says of itself. See :mod:`infsa_metrics.outputs`.
    """

    name: ClassVar[str] = "morf"

    fill: str = "mean"
    steps: int | Literal["few"] | None = None
    floor: float | None = None
    batch_size: int | None = None
    amp: bool = False
    output: Output = "auto"

    def __post_init__(self) -> None:
        if self.floor is None:
            floor = 0.0 if self.target == "predicted" else LABEL_FLOOR
            object.__setattr__(self, "floor", floor)

    def check(self, model: nn.Module) -> None:
        super().check(model)
        check_output(model, self.target, self.output, "deletion")
        if not 0 <= (self.floor or 0) < 1:
            raise ValueError(f"floor must be a probability in [0, 1), got {self.floor}")
        if self.fill not in (*FILLS, "drop"):
            raise ValueError(f"unknown fill {self.fill!r}; one of {', '.join([*FILLS, 'drop'])}")

    def pass_size(self, model: nn.Module, images: Tensor) -> int:
        """Most masked images a forward pass; for ``drop`` no more than there are at one step.

        Tokens that are dropped leave room for twice as many on average.
        """
        gh, gw = patch_grid(model, images)
        dropping = self.fill == "drop"
        size = self.batch_size
        if size is None:
            patches = PATCHES_A_PASS.get(images.device.type, PATCHES_A_PASS["cuda"])
            size = max(1, (1 + dropping) * patches // (gh * gw))
        return min(size, len(images)) if dropping else size

    def rows(self, batch: Batch) -> Iterator[Row]:
        size = self.pass_size(batch.model, batch.images)
        inputs, predict = _mask(batch.model, batch.images, size, self)
        targets = batch.targets(self.target)
        for method, explanation in batch.explanations(self):
            for order in ("morf", "lerf"):
                curve = deletion_curve(
                    predict,
                    inputs,
                    targets,
                    patch_scores(explanation),
                    order=order,
                    steps=self.steps,
                    seeds=batch.seeds,
                    batch_size=size,
                )
                aoc, auc = curve.aoc(self.floor or 0), curve.auc()
                for i, sample in enumerate(batch.samples):
                    yield {
                        "image": sample.image_id,
                        "method": method,
                        "order": order,
                        "layers": list(explanation.layers),
                        "head": self.head_of(explanation),
                        "fill": self.fill,
                        "target": "embedding" if targets.ndim > 1 else int(targets[i]),
                        "label": sample.label,
                        "predicted": batch.predicted[i],
                        "p0": float(curve.probabilities[i, 0]),
                        "aoc": number(aoc[i]),
                        "auc": number(auc[i]),
                        "tied": float(curve.tied[i]),
                        "fractions": [round(x, 6) for x in curve.fractions.tolist()],
                        "probabilities": [round(x, 6) for x in curve.probabilities[i].tolist()],
                    }


def _mask(
    model: nn.Module, images: Tensor, size: int, options: Morf
) -> tuple[Tensor, PredictMasked]:
    """``patch_fill`` of the options, with fewer than ``size`` at a time where memory runs out."""
    config = data_config(model)
    colours = {"mean": config["mean"], "std": config["std"]}
    output = model_output(model, options.output)
    precision = torch.autocast(images.device.type, torch.bfloat16, enabled=options.amp)
    with precision:
        inputs, predict = patch_fill(
            model, images, options.fill, output=output, **colours, seed=options.seed
        )

    def predict_masked(inputs: Tensor, removed: Tensor) -> Tensor:
        def part(places: Sequence[int]) -> Tensor:
            chosen = slice(places[0], places[-1] + 1)
            with precision:
                return predict(inputs[chosen], removed[chosen])

        nonlocal size
        parts = Halving(part, size, "masked images")
        probabilities = torch.cat(list(parts(range(len(inputs)))))
        size = parts.size
        return probabilities

    return inputs, predict_masked
