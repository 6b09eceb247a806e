"""Sanity checks of maps: model randomisation, stability under noise, agreement between methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

from infsa_metrics import agreement, rank_correlation, ssim, stability
from torch import Tensor, nn

from ..methods import get_method
from ..methods.explaining import explain_graphs
from ..models.randomisation import cascade
from ..ranges import count as whole_number
from ..vits.capturing import Graphs, capture
from .batches import UNTRAINED, Batch, MapOptions, patch_scores
from .rows import Row, number

__all__ = ["Sanity"]


@dataclass(frozen=True)
class Sanity(MapOptions):
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
        steady = self._stability(methods, batch)
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
            gamma=self.gamma,
            seeds=batch.seeds,
        )
        return patch_scores(explanation)

    def _stability(self, methods: list[str], batch: Batch) -> dict[str, Tensor]:
        """Of every method, (B,); all see the same noisy images, which the model sees once."""
        graphs = [batch.graphs]

        def maps_of(method: str) -> Callable[[Tensor], Tensor]:
            calls = count()

            def explain(images: Tensor) -> Tensor:
                if (call := next(calls)) == len(graphs):
                    graphs.append(capture(batch.model, images))
                return self._maps(method, graphs[call], batch)

            return explain

        return {
            method: stability(
                maps_of(method),
                batch.images,
                noise=self.noise,
                draws=self.draws,
                seeds=batch.seeds,
            )
            for method in methods
        }
