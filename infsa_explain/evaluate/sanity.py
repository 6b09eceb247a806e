"""Sanity checks of maps: model randomisation, stability under noise, agreement between methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from infsa_metrics import MeanInterval, agreement, rank_correlation, ssim
from infsa_metrics.sanity import image_range, noisy_copies
from torch import Tensor, nn

from ..drawing.charts import PALETTE, Line, LineChart, markers, save_figure
from ..methods import explain_graphs, get_method
from ..models.untraining import cascade
from ..ranges import count as whole_number
from ..vits.capturing import Graphs, capture
from .batches import UNTRAINED, Batch, MapOptions, patch_scores
from .diagnostics import excluded_share, grouped, of_methods
from .findings import LISTED
from .registry import Chart, Measure, register_measure
from .rows import Row, number
from .tables import Table, by_model, interval_cell, is_control, sampling_note, unique
from .values import Images

__all__ = ["Sanity", "SanitySummary", "plot_sanity", "summarise_sanity"]


@register_measure
@dataclass(frozen=True)
class Sanity(MapOptions, Measure):
    """Do maps depend on the weights, hold still under noise, and agree with one another?

    Rows have ``method``; ``stages`` of the model made random from the head down (Adebayo et al.,
    arXiv 1810.03292), with ``spearman`` and ``ssim`` of the map after each stage to the trained
    model's, for which lower is better; ``stability``, Spearman's ρ of the map to that of the
    image with noise; and ``agreement``, ρ to the map of every other method. None where a map is
    constant. The ``untrained-`` methods, which have no weights to make random, are left out.

    Attributes, besides those of :class:`MapOptions`:
        noise: standard deviation of the noise, as a share of the image's range.
        draws: noisy copies of an image.
    """

    name: ClassVar[str] = "sanity"
    title: ClassVar[str] = "Sanity"
    question: ClassVar[str] = (
        "A map of what a model has learned must change when its weights are made random, and "
        "hold still under slight noise."
    )
    by_default: ClassVar[bool] = True
    command: ClassVar[bool] = True
    judged: ClassVar[bool] = False

    noise: float = 0.05
    draws: int = 4

    def check(self, model: nn.Module) -> None:
        super().check(model)
        if not self.noise > 0:
            raise ValueError(f"noise must be above 0, got {self.noise}")
        if self.noise > 10:
            raise ValueError(f"noise must be at most 10 times the range, got {self.noise}")
        if self.draws < 1:
            raise ValueError(f"draws must be at least 1, got {self.draws}")
        whole_number().require("draws", self.draws)

    def rows(self, batch: Batch) -> Iterator[Row]:
        methods = [m for m in self.chosen(batch.model) if UNTRAINED not in m]
        maps = {method: patch_scores(batch.explanation(method, self)) for method in methods}
        stages: list[str] = []
        rho: dict[str, list[Tensor]] = {method: [] for method in methods}
        structure: dict[str, list[Tensor]] = {method: [] for method in methods}
        for stage, copy in cascade(batch.model, self.seed):
            stages.append(stage)
            graphs = capture(copy, batch.images)
            for method in methods:
                randomised = self._maps(method, graphs, batch)
                rho[method].append(rank_correlation(maps[method], randomised))
                structure[method].append(ssim(maps[method], randomised))
        steady = self._stability(maps, batch)
        alike = agreement(maps)
        for m, method in enumerate(methods):
            for i, sample in enumerate(batch.samples):
                yield {
                    "image": sample.image_id,
                    "method": method,
                    "stages": stages,
                    "spearman": [number(value[i]) for value in rho[method]],
                    "ssim": [number(value[i]) for value in structure[method]],
                    "stability": number(steady[method][i]),
                    "agreement": {
                        other: number(alike[i, m, o]) for o, other in enumerate(methods) if o != m
                    },
                }

    def _maps(self, method: str, graphs: Graphs, batch: Batch) -> Tensor:
        """Maps of the class that the clean image has with the trained model."""
        explanation = explain_graphs(
            graphs,
            get_method(method),
            **self.place(method),
            target=batch.targets(self.target),
            **self.walk,
            seeds=batch.seeds,
        )
        return patch_scores(explanation)

    def _stability(self, maps: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Spearman's ρ of the maps to those of noisy images, (B,); each copy is captured once."""
        rho: dict[str, list[Tensor]] = {method: [] for method in maps}
        copies = noisy_copies(batch.images, noise=self.noise, draws=self.draws, seeds=batch.seeds)
        for noisy in copies:
            graphs = capture(batch.model, noisy)
            for method in maps:
                noised = self._maps(method, graphs, batch)
                rho[method].append(rank_correlation(maps[method], noised))
        constant = image_range(batch.images) == 0
        return {
            method: torch.stack(values)
            .mean(0)
            .masked_fill(constant.to(values[0].device), torch.nan)
            for method, values in rho.items()
        }

    @classmethod
    def summarise(cls, rows: Sequence[Row]) -> list[SanitySummary]:
        return summarise_sanity(rows)

    @classmethod
    def tables(cls, summaries: Sequence[SanitySummary]) -> list[Table]:
        return _sanity_tables(summaries)

    @classmethod
    def charts(cls, rows: Sequence[Row], summaries: Sequence[SanitySummary]) -> list[Chart]:
        return [*sanity_charts(summaries)]

    @classmethod
    def save(cls, folder: Path, rows: Sequence[Row]) -> None:
        save_figure(plot_sanity(summarise_sanity(rows)), folder, "sanity")

    @classmethod
    def findings(cls, rows: Sequence[Row], summaries: Sequence[SanitySummary]) -> list[str]:
        return [_sanity_text(of_model) for of_model in grouped(summaries).values()]

    @classmethod
    def diagnostics(cls, summaries: Sequence[SanitySummary]) -> dict[str, dict[str, str]]:
        return {
            "maps that are constant with all weights random": of_methods(
                summaries, lambda s: excluded_share(s.spearman[-1])
            )
        }


#: A map that keeps more than this of its order (Spearman's ρ) has hardly changed.
ALIKE = 0.5


@dataclass(frozen=True)
class SanitySummary:
    """One method on one model.

    Attributes:
        stages: what is random after each stage: ``"head"``, the blocks, the last first, and
            ``"embeddings"``, when everything is.
        spearman, ssim: of the map after each stage to the trained model's; lower is better.
        stability: Spearman's ρ to the map of the noisy image; higher is better.
        agreement: other method → ρ to its map.
    """

    model: str
    method: str
    stages: tuple[str, ...]
    spearman: tuple[MeanInterval, ...]
    ssim: tuple[MeanInterval, ...]
    stability: MeanInterval
    agreement: dict[str, MeanInterval]


def summarise_sanity(rows: Sequence[Row]) -> list[SanitySummary]:
    """Summaries of every (model, method), in the order in which they first appear.

    Args:
        rows: of :class:`infsa_explain.evaluate.Sanity`.
    """
    return [
        _summary(model, method, [row for row in of_model if row["method"] == method])
        for model, of_model in by_model(rows).items()
        for method in unique(of_model, "method")
    ]


def _summary(model: str, method: str, rows: Sequence[Row]) -> SanitySummary:
    images = Images.of(rows)

    def mean(field: Callable[[Row], float | None]) -> MeanInterval:
        return images.values(rows, field).interval()

    def by_stage(name: str) -> tuple[MeanInterval, ...]:
        stages = range(len(rows[0][name]))
        return tuple(mean(lambda row, i=i: row[name][i]) for i in stages)  # type: ignore[misc]

    return SanitySummary(
        model,
        method,
        tuple(rows[0]["stages"]),
        by_stage("spearman"),
        by_stage("ssim"),
        mean(itemgetter("stability")),
        {
            other: mean(lambda row, other=other: row["agreement"][other])  # type: ignore[misc]
            for other in rows[0]["agreement"]
        },
    )


HEADINGS = (
    "model",
    "method",
    "ρ, head random ↓ [95%]",
    "ρ, last block too ↓ [95%]",
    "ρ, all random ↓ [95%]",
    "SSIM, all random ↓ [95%]",
    "stability ↑ [95%]",
    "constant maps",
    "n",
)


def _sanity_tables(summaries: Sequence[SanitySummary]) -> list[Table]:
    """Randomisation and noise, and for every model the agreement of its methods."""
    cells = [
        (
            s.model,
            s.method,
            *(interval_cell(s.spearman[i], 1, ".2f") for i in (0, 1, -1)),
            interval_cell(s.ssim[-1], 1, ".2f"),
            interval_cell(s.stability, 1, ".2f"),
            f"{s.spearman[-1].excluded / (s.spearman[-1].n + s.spearman[-1].excluded):.0%}",
            f"{s.stability.n + s.stability.excluded}",
        )
        for s in summaries
    ]
    note = sampling_note(s.stability for s in summaries)
    tables = [Table("randomisation and noise, Spearman's ρ to the own map", HEADINGS, cells, note)]
    for model in dict.fromkeys(s.model for s in summaries):
        of_model = [s for s in summaries if s.model == model]
        if len(of_model) > 1:
            names = [s.method for s in of_model]
            matrix = [
                (s.method, *("1" if n == s.method else f"{s.agreement[n].mean:.2f}" for n in names))
                for s in of_model
            ]
            tables.append(Table(f"agreement of maps, ρ, {model}", ("", *names), matrix))
    return tables


def _sanity_text(summaries: Sequence[SanitySummary]) -> str:
    """What is left of one model's maps when all its weights are random."""
    model = summaries[0].model
    left = {s.method: s.spearman[-1] for s in summaries if not is_control(s.method)}
    if not left:
        return f"On `{model}` only controls were measured."
    groups: dict[str, dict[str, MeanInterval]] = {}
    for method, rho in left.items():
        groups.setdefault(_remains(rho), {})[method] = rho
    findings = "; ".join(f"{what}: {_correlations(maps)}" for what, maps in groups.items())
    return f"With all weights of `{model}` random, by Spearman's ρ to the trained map, {findings}."


def _correlations(maps: dict[str, MeanInterval]) -> str:
    """Such as "`visits` (0.05 [-0.00, 0.12]), `degree` (…)", or of many "9 maps (0.02 to 0.31)"."""
    means = [rho.mean for rho in maps.values()]
    if len(maps) > LISTED:
        defined = min(means) == min(means)  # not NaN
        return f"{len(maps)} maps" + (f" ({min(means):.2f} to {max(means):.2f})" if defined else "")
    return ", ".join(
        f"`{method}` ({interval_cell(rho, 1, '.2f')})" if rho.n else f"`{method}`"
        for method, rho in maps.items()
    )


def _remains(rho: MeanInterval) -> str:
    """What a rank correlation with its interval says of a map made random."""
    if not rho.n:
        return "undefined, for the map is constant"
    if rho.n == 1:
        return "tried on one image alone"
    if rho.low > ALIKE:
        return "hardly changed, so that it shows little of what was learned"
    if rho.low > 0:
        return "part of the order is left"
    if rho.high < 0:
        return "part of the order is reversed"
    return "no order is left that can be told from chance"


def sanity_charts(summaries: Sequence[SanitySummary]) -> list[LineChart]:
    """Spearman's ρ to the trained map as weights become random from the head down."""
    charts = []
    for model in dict.fromkeys(s.model for s in summaries):
        of_model = [s for s in summaries if s.model == model]
        stages = ["trained", *of_model[0].stages]
        lines = [
            Line(
                s.method,
                "",
                *(
                    np.array([1.0, *(getattr(value, end) for value in s.spearman)])
                    for end in ("mean", "low", "high")
                ),
            )
            for s in of_model
        ]
        lowest = min(0.0, *(np.nanmin([*line.mean, *line.low]) for line in lines))
        bottom = int(np.floor(lowest / 0.2 - 1e-9)) if lowest < 0 else 0
        every = max(1, round(len(stages) / 13))
        charts.append(
            LineChart(
                title=model,
                lines=lines,
                x=np.arange(len(stages), dtype=np.float64),
                at=["trained", *(f"random down to {stage}" for stage in of_model[0].stages)],
                x_ticks=[(i, stages[i]) for i in range(0, len(stages), every)],
                slanted=True,
                y_ticks=[round(0.2 * step, 1) for step in range(bottom, 6)],
                x_label="made random, from the head down",
                y_label="Spearman's ρ to the trained map",
            )
        )
    return charts


def plot_sanity(summaries: Sequence[SanitySummary]) -> Any:
    """Decay of each map under randomisation, and the agreement of methods, a row a model.

    A matplotlib Figure.
    """
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(s.model for s in summaries))
    figure = Figure(figsize=(11, 0.5 + 4.2 * len(models)), layout="constrained")
    axes = figure.subplots(len(models), 2, squeeze=False, width_ratios=(3, 2))
    for (left, right), model in zip(axes, models, strict=True):
        of_model = [s for s in summaries if s.model == model]
        for i, s in enumerate(of_model):
            left.plot(
                [1, *(value.mean for value in s.spearman)],
                color=PALETTE[i % len(PALETTE)],
                marker=markers(i),
                linewidth=1.8,
                markersize=4,
                label=s.method,
            )
        left.axhline(0, color="0.6", linewidth=0.8)
        stages = ["trained", *of_model[0].stages]
        left.set_xticks(range(len(stages)), stages, rotation=45, ha="right", fontsize=8)
        left.set_ylim(-0.6, 1.05)
        left.set_title(f"{model}: made random from the head down", fontsize=10)
        left.set_ylabel("Spearman's ρ to the trained map")
        left.spines[["top", "right"]].set_visible(False)
        left.legend(frameon=False, fontsize=8, ncols=2)
        names = [s.method for s in of_model]
        grid = np.array(
            [[1 if n == s.method else s.agreement[n].mean for n in names] for s in of_model]
        )
        image = right.imshow(grid, cmap="RdBu_r", vmin=-1, vmax=1)
        right.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8)
        right.set_yticks(range(len(names)), names, fontsize=8)
        right.set_title("agreement, Spearman's ρ", fontsize=10)
        figure.colorbar(image, ax=right, shrink=0.8)
    return figure
