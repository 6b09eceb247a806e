"""Deletion curves of maps: one row per image, method and order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from infsa_metrics import (
    FILLS,
    ExtremeOrders,
    deletion_curve,
    extreme_orders,
    filled_once,
    naopc,
)
from infsa_metrics.deletion import PredictMasked
from infsa_metrics.outputs import Output
from torch import Tensor, nn

from ..drawing.charts import save_figure
from ..memory import Halving
from ..vits import model_output
from ..vits.capturing import patch_grid
from ..vits.preprocessing import data_config
from ..vits.tokens import drop_fill, drop_point
from .batches import Batch, MapOptions, check_output, patch_scores
from .deletion_tables import (
    MorfSummary,
    compared_quantities,
    deletion_charts,
    deletion_tables,
    mean_curves,
    plot_curves,
    summarise_morf,
    write_curves,
)
from .diagnostics import of_methods, of_models
from .findings import Score
from .registry import Chart, Measure, ModelValues, register_measure
from .rows import Row, number
from .tables import Table

__all__ = ["Morf"]

#: Patches that a forward pass takes at a time where nothing else is asked for. On the CPU more
#: tokens outgrow its caches; a GPU wants many.
PATCHES_A_PASS = {"cpu": 2048, "cuda": 32768}
#: Clean probability of a class that is not predicted up to which there is no AOC, unless told.
LABEL_FLOOR = 0.01


@register_measure
@dataclass(frozen=True)
class Morf(MapOptions, Measure):
    """Patches are removed, most relevant first (MoRF), and least relevant first (LeRF).

    Rows have ``method``, ``order``, ``layers``, ``head``, ``fill``, ``target``, ``label``,
    ``predicted``, ``p0``, ``aoc``, ``auc``, ``tied`` (share of patches), and ``fractions`` and
    ``probabilities`` of the curve; ``still_predicted`` says for every point whether the class is
    still the predicted one, and ``still_predicted_auc`` is the area below it. With ``normalise``,
    rows of order ``"morf"`` also have ``naopc``, ``best_aoc`` and ``worst_aoc``.

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
        normalise: whether to search the best and the worst order of every image, too, and to say
            where each map lies between them (NAOPC, :func:`infsa_metrics.extreme_orders`). That
            costs up to 10 × P × steps masked images for P patches, once for all maps.
        output: what the model's outputs are, ``"softmax"`` or ``"sigmoid"``; ``"auto"`` for what
            the model says of itself. See :mod:`infsa_metrics.outputs`.
    """

    name: ClassVar[str] = "morf"
    title: ClassVar[str] = "Deletion"
    question: ClassVar[str] = (
        "Patches are taken away, the most relevant first (MoRF) or the least relevant first "
        "(LeRF), and the probability of the class is followed. AOC is the area above the MoRF "
        "curve as a share of the clean probability: a map that finds what the model uses has "
        "a high one."
    )
    by_default: ClassVar[bool] = True
    command: ClassVar[bool] = True
    field: ClassVar[str] = "aoc"
    heading: ClassVar[str] = "MoRF-AOC"
    phrase: ClassVar[str] = "by deletion"

    fill: str = "mean"
    steps: int | Literal["few"] | None = None
    floor: float | None = None
    batch_size: int | None = None
    amp: bool = False
    output: Output = "auto"
    normalise: bool = False

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
        if self.fill == "drop":
            drop_point(model)

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
        independent = model_output(batch.model, self.output) == "sigmoid"
        targets = batch.targets(self.target)
        extremes = None
        if self.normalise:
            grid = patch_grid(batch.model, batch.images)
            extremes = extreme_orders(
                predict, inputs, targets, grid, steps=self.steps, batch_size=size
            )
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
                between = _between(aoc, extremes) if order == "morf" else [{}] * len(aoc)
                still = curve.predicted(independent=independent)
                still_auc = curve.predicted_auc(independent=independent)
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
                        "still_predicted": [number(x) for x in still[i]],
                        "still_predicted_auc": number(still_auc[i]),
                        **between[i],
                    }

    @classmethod
    def summarise(cls, rows: Sequence[Row]) -> list[MorfSummary]:
        return summarise_morf(rows)

    @classmethod
    def tables(cls, summaries: Sequence[MorfSummary]) -> list[Table]:
        return deletion_tables(summaries)

    @classmethod
    def charts(cls, rows: Sequence[Row], summaries: Any) -> list[Chart]:
        return [*deletion_charts(rows)]

    @classmethod
    def save(cls, folder: Path, rows: Sequence[Row]) -> None:
        """``curves.csv`` and the plots."""
        write_curves(folder / "curves.csv", mean_curves(rows))
        save_figure(plot_curves(rows), folder, "curves")

    @classmethod
    def ranked_rows(cls, rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows if row["order"] == "morf"]

    @classmethod
    def scores(cls, summaries: Sequence[MorfSummary]) -> list[Score]:
        return [Score(s.model, s.method, s.aoc, s.over) for s in summaries]

    @classmethod
    def quantities(cls, rows: Sequence[Row]) -> dict[str, dict[str, ModelValues]]:
        return compared_quantities(rows)

    @classmethod
    def cautions(cls, rows: Sequence[Row]) -> Iterator[str]:
        if len({row["model"] for row in rows}) > 1:
            yield (
                "MoRF-AOC cannot be compared between models, as one that any deletion confuses has "
                "a high one with any map; what is over `random` can."
            )

    @classmethod
    def diagnostics(cls, summaries: Sequence[MorfSummary]) -> dict[str, dict[str, str]]:
        return {
            "patches whose score ties with another's": of_methods(summaries, lambda s: s.tied),
            "images without a defined AOC": of_models(
                summaries, lambda of_model: str(max(s.aoc.excluded for s in of_model))
            ),
        }


def _between(aoc: Tensor, extremes: ExtremeOrders | None) -> list[dict[str, float | None]]:
    """For every image where the areas of a map lie between those of the extreme orders."""
    if extremes is None:
        return [{}] * len(aoc)
    numbers = {
        "naopc": naopc(aoc, extremes),
        "best_aoc": extremes.best_aoc,
        "worst_aoc": extremes.worst_aoc,
    }
    return [{name: number(of[i]) for name, of in numbers.items()} for i in range(len(aoc))]


def _mask(
    model: nn.Module, images: Tensor, size: int, options: Morf
) -> tuple[Tensor, PredictMasked]:
    """Inputs and ``predict_masked`` of a curve; at most ``size``, or what memory allows, a pass."""
    config = data_config(model)
    colours = {"mean": config["mean"], "std": config["std"]}
    output = model_output(model, options.output)
    precision = torch.autocast(images.device.type, torch.bfloat16, enabled=options.amp)
    if options.fill == "drop":
        inputs, predict = images, drop_fill(model, output)
    else:
        inputs, predict = filled_once(
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
