"""Deletion curves of maps: one row per image, method and order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from infsa_metrics import FILLS, deletion_curve, pixel_fill
from torch import Tensor, nn

from ..preprocessing import data_config
from ..tokens import drop_fill
from .batches import Batch, MapOptions, patch_scores
from .memory import Halving
from .rows import Row, number

__all__ = ["Morf"]


@dataclass(frozen=True)
class Morf(MapOptions):
    """Patches are removed, most relevant first (MoRF), and least relevant first (LeRF).

    Rows have ``method``, ``order``, ``layers``, ``head``, ``fill``, ``target``, ``label``,
    ``predicted``, ``p0``, ``aoc``, ``auc``, ``tied`` (share of patches), and ``fractions`` and
    ``probabilities`` of the curve.

    Attributes, besides those of :class:`MapOptions`:
        fill: what removed patches become: ``"mean"``, ``"black"``, ``"blur"``, ``"noise"``, or
            ``"drop"``. Numbers with different fills are not comparable.
        steps: points of the curve, denser early; None for one patch a step.
        floor: images whose clean probability is not above it have no AOC and are counted apart.
        batch_size: masked images a forward pass.
        amp: bfloat16 autocast.
    """

    name: ClassVar[str] = "morf"

    fill: str = "mean"
    steps: int | None = None
    floor: float = 0.0
    batch_size: int = 64
    amp: bool = False

    def check(self, model: nn.Module) -> None:
        super().check(model)
        if self.fill not in (*FILLS, "drop"):
            raise ValueError(f"unknown fill {self.fill!r}; one of {', '.join([*FILLS, 'drop'])}")

    def rows(self, batch: Batch) -> Iterator[Row]:
        predict = _predictor(batch.model, self)
        targets = batch.targets(self.target)
        for method, explanation in batch.explanations(self):
            for order in ("morf", "lerf"):
                curve = deletion_curve(
                    predict,
                    batch.images,
                    targets,
                    patch_scores(explanation),
                    order=order,
                    steps=self.steps,
                    seeds=batch.seeds,
                    batch_size=self.batch_size,
                )
                aoc, auc = curve.aoc(self.floor), curve.auc()
                for i, sample in enumerate(batch.samples):
                    yield {
                        "image": sample.image_id,
                        "method": method,
                        "order": order,
                        "layers": list(explanation.layers),
                        "head": self.head,
                        "fill": self.fill,
                        "target": int(targets[i]),
                        "label": sample.label,
                        "predicted": int(batch.predicted[i]),
                        "p0": float(curve.probabilities[i, 0]),
                        "aoc": number(aoc[i]),
                        "auc": number(auc[i]),
                        "tied": float(curve.tied[i]),
                        "fractions": [round(x, 6) for x in curve.fractions.tolist()],
                        "probabilities": [round(x, 6) for x in curve.probabilities[i].tolist()],
                    }


def _predictor(model: nn.Module, options: Morf) -> Callable[[Tensor, Tensor], Tensor]:
    """``predict_masked`` for the chosen fill, in smaller parts where memory runs out."""
    if options.fill == "drop":
        predict = drop_fill(model)
    else:
        config = data_config(model)
        predict = pixel_fill(
            model, options.fill, mean=config["mean"], std=config["std"], seed=options.seed
        )

    def predict_masked(images: Tensor, removed: Tensor) -> Tensor:
        def part(places: Sequence[int]) -> Tensor:
            chosen = slice(places[0], places[-1] + 1)
            with torch.autocast(images.device.type, torch.bfloat16, enabled=options.amp):
                return predict(images[chosen], removed[chosen])

        parts = Halving(part, options.batch_size, "masked images")
        return torch.cat(list(parts(range(len(images)))))

    return predict_masked
