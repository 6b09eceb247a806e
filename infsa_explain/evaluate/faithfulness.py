"""Captum's measures of maps: infidelity and sensitivity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from infsa_metrics import FILLS, infidelity, pixel_fill, sensitivity_max
from infsa_metrics.outputs import Output
from torch import Tensor, nn

from ..methods import explain_graphs, get_method
from ..vits import model_output
from ..vits.capturing import capture
from ..vits.preprocessing import data_config
from .batches import UNTRAINED, Batch, MapOptions, check_output, patch_scores
from .registry import Measure, register_measure
from .rows import Row, number

__all__ = ["Infidelity", "Sensitivity"]


@register_measure
@dataclass(frozen=True)
class Infidelity(MapOptions, Measure):
    """Do the scores of removed patches add up to what the model loses? Lower is better.

    Rows have ``method`` and ``infidelity``, normalised; see :func:`infsa_metrics.infidelity`.

    Attributes, besides those of :class:`MapOptions`:
        fill: what removed patches become, a name of ``infsa_metrics.FILLS``.
        samples: squares of patches that are removed from an image.
        batch_size: masked images a forward pass.
        output: as :class:`Morf` has it.
    """

    name: ClassVar[str] = "infidelity"
    title: ClassVar[str] = "Infidelity"
    question: ClassVar[str] = (
        "Do the scores of removed patches add up to what the model loses? Lower is better."
    )
    field: ClassVar[str] = "infidelity"
    heading: ClassVar[str] = "infidelity"
    higher_is_better: ClassVar[bool] = False
    scale: ClassVar[float] = 1
    spec: ClassVar[str] = ".4f"
    judged: ClassVar[bool] = False

    fill: str = "mean"
    samples: int = 100
    batch_size: int = 16
    output: Output = "auto"

    def check(self, model: nn.Module) -> None:
        super().check(model)
        check_output(model, self.target, self.output, "infidelity")
        if self.fill not in FILLS:
            raise ValueError(f"unknown fill {self.fill!r}; one of {', '.join(FILLS)}")

    def rows(self, batch: Batch) -> Iterator[Row]:
        config = data_config(batch.model)
        predict = pixel_fill(
            batch.model,
            self.fill,
            output=model_output(batch.model, self.output),
            mean=config["mean"],
            std=config["std"],
            seed=self.seed,
        )
        targets = batch.targets(self.target)
        for method, explanation in batch.explanations(self):
            values = infidelity(
                predict,
                batch.images,
                targets,
                patch_scores(explanation),
                samples=self.samples,
                seeds=batch.seeds,
                batch_size=self.batch_size,
            )
            for sample, value in zip(batch.samples, values, strict=True):
                yield {"image": sample.image_id, "method": method, "infidelity": number(value)}


@register_measure
@dataclass(frozen=True)
class Sensitivity(MapOptions, Measure):
    """How far does a map move when its image hardly does? Lower is steadier.

    Rows have ``method`` and ``sensitivity``; see :func:`infsa_metrics.sensitivity_max`.

    Attributes, besides those of :class:`MapOptions`:
        radius: of the noise, in the units of the model's input.
        samples: noisy copies of an image.
    """

    name: ClassVar[str] = "sensitivity"
    title: ClassVar[str] = "Sensitivity"
    question: ClassVar[str] = (
        "How far may a map change when the image changes a little? Lower is better."
    )
    field: ClassVar[str] = "sensitivity"
    heading: ClassVar[str] = "sensitivity"
    higher_is_better: ClassVar[bool] = False
    scale: ClassVar[float] = 1
    spec: ClassVar[str] = ".4f"
    judged: ClassVar[bool] = False

    radius: float = 0.02
    samples: int = 10

    def rows(self, batch: Batch) -> Iterator[Row]:
        targets = batch.targets(self.target)
        for method, _ in batch.explanations(self):
            for i, sample in enumerate(batch.samples):
                value = sensitivity_max(
                    lambda images, targets, method=method, sample=sample: self._maps(  # type: ignore[misc]
                        method, images, targets, sample.image_id, batch
                    ),
                    batch.images[i : i + 1],
                    targets[i : i + 1],
                    radius=self.radius,
                    samples=self.samples,
                    seeds=[sample.image_id],
                )
                yield {
                    "image": sample.image_id,
                    "method": method,
                    "sensitivity": number(value[0]),
                }

    def _maps(
        self, method: str, images: Tensor, targets: Tensor, identity: str, batch: Batch
    ) -> Tensor:
        """Maps of noisy copies of one image, all with its identity."""
        fresh = method.startswith(UNTRAINED)
        model = batch.untrained(self.seed) if fresh else batch.model
        explanation = explain_graphs(
            capture(model, images),
            get_method(method.removeprefix(UNTRAINED)),
            **self.place(method),
            target=targets,
            **self.walk,
            seeds=[identity] * len(images),
        )
        return patch_scores(explanation)
