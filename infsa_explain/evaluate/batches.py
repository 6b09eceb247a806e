"""Images a batch at a time, and what a model makes of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..data import ImageError
from ..data.samples import ImageData, Sample
from ..graphs import Graphs, attention_kinds, capture
from ..methods import (
    UNTRAINED,
    MethodNotApplicable,
    applicable_methods,
    check_place,
    class_index,
    get_method,
)
from ..methods.explaining import Explanation, explain_graphs
from ..methods.targets import targets_of
from ..models import untrained
from ..preprocessing import preprocess

__all__ = [
    "UNTRAINED",
    "Batch",
    "MapOptions",
    "Subject",
    "choose_methods",
    "require_finite",
    "sample_batches",
]

#: Takes the number of images just done, those left out among them.
OnImage = Callable[[int], None]
#: Takes the sentence that says which image could not be read, and why.
OnSkip = Callable[[str], None]
#: ``"predicted"`` on the clean image, ``"label"``, or one class for all, by number or name.
Target = Literal["predicted", "label"] | int | str


@dataclass(frozen=True)
class MapOptions:
    """What decides the maps of an experiment.

    Attributes:
        methods: names of map methods; None for all that suit the model. ``untrained-visits``, and
            so with any name, is the control that takes the map from the model untrained.
        layer: an index, ``"last"`` or ``"mean"``, for methods that score layers.
        head: an index, or None for the mean over heads. Of methods without heads none but controls
            may be named beside it.
        gamma: in place of the model's own γ.
        target: the class that maps which are of a class explain, and that deletion follows:
            ``"predicted"`` on the clean image, ``"label"``, or one class of the model, by number
            or by name.
        seed: of the untrained model, and of what else draws.
    """

    methods: tuple[str, ...] | None = None
    layer: int | str = "last"
    head: int | None = None
    gamma: float | None = None
    target: Target = "predicted"
    seed: int = 0

    def check(self, model: nn.Module) -> None:
        """Raise a ValueError if the options, or a method for this model, will not do."""
        if isinstance(self.target, str) and self.target not in ("predicted", "label"):
            try:
                class_index(model, self.target)
            except ValueError as error:
                raise ValueError(f"{error}; or 'predicted', or 'label'") from None
        check_place(self.chosen(model), self.layer, self.head)

    def check_data(self, data: ImageData) -> None:
        """Raise a ValueError if the images lack what is measured: maps need nothing but images."""

    def chosen(self, model: nn.Module) -> list[str]:
        """The methods, as :func:`choose_methods` has them."""
        return choose_methods(model, self.methods, self.head)

    def place(self, method: str) -> dict[str, Any]:
        """The layer and the head of a method, as arguments of ``explain``."""
        return get_method(method).choice(self.layer, self.head)

    def head_of(self, explanation: Explanation) -> int | None:
        """The head that a map is of; None for the mean over heads, or a method without any."""
        return None if explanation.heads is None else self.head


class Subject:
    """A model that is measured, and the same model untrained."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._untrained: dict[int, nn.Module] = {}

    def untrained(self, seed: int) -> nn.Module:
        """The model with fresh weights, made once a seed."""
        if seed not in self._untrained:
            self._untrained[seed] = untrained(self.model, seed)
        return self._untrained[seed]


class Batch:
    """Some images, and what a model makes of them, computed when it is first asked for.

    Several measures share it, so that a model runs once for all of them.
    """

    def __init__(self, subject: Subject, samples: Sequence[Sample]) -> None:
        self.subject, self.samples = subject, list(samples)
        self._untrained: dict[int, Graphs] = {}
        self._explanations: dict[Any, Explanation] = {}

    @property
    def model(self) -> nn.Module:
        """The model that is measured."""
        return self.subject.model

    @property
    def seeds(self) -> list[str]:
        """Identities of the images."""
        return [sample.image_id for sample in self.samples]

    @cached_property
    def images(self) -> Tensor:
        """(B, 3, h, w), as the model takes them."""
        return preprocess(self.model, [sample.image for sample in self.samples])

    @cached_property
    def graphs(self) -> Graphs:
        """The token graphs of the model.

        Raises:
            ValueError: if an output of the model is NaN or infinite, or as :func:`capture`.
        """
        graphs = capture(self.model, self.images)
        require_finite(graphs.logits, self.samples)
        return graphs

    def untrained_graphs(self, seed: int) -> Graphs:
        """The token graphs of the model untrained."""
        if seed not in self._untrained:
            self._untrained[seed] = capture(self.subject.untrained(seed), self.images)
        return self._untrained[seed]

    @cached_property
    def predicted(self) -> Tensor:
        """(B,) the class predicted on the clean image, on the CPU."""
        return self.graphs.logits.argmax(-1).cpu()

    def targets(self, target: Target) -> Tensor:
        """(B,) predicted classes, labels, or one class for all, on the CPU.

        Raises:
            ValueError: for labels, if an image has none; for a class, if the model has no such.
        """
        if target == "predicted":
            return self.predicted
        if target != "label":
            return targets_of(self.graphs, target).cpu()
        labels = [sample.label for sample in self.samples]
        if None in labels:
            raise ValueError(
                f"target='label', but {self.samples[labels.index(None)].image_id} has no label"
            )
        return torch.tensor(labels)

    def explanation(self, method: str, options: MapOptions) -> Explanation:
        """The maps of a method. Where every head is dead the map is NaN."""
        targets = self.targets(options.target)
        fresh = method.startswith(UNTRAINED)
        seed = options.seed if fresh else None
        key = (method, options.layer, options.head, options.gamma, options.target, seed)
        if key not in self._explanations:
            self._explanations[key] = explain_graphs(
                self.untrained_graphs(options.seed) if fresh else self.graphs,
                get_method(method.removeprefix(UNTRAINED)),
                **options.place(method),
                target=targets,
                gamma=options.gamma,
                seeds=self.seeds,
            )
        return self._explanations[key]

    def explanations(self, options: MapOptions) -> Iterator[tuple[str, Explanation]]:
        """Every method that the options name, with its maps."""
        for method in options.chosen(self.model):
            yield method, self.explanation(method, options)


def require_finite(logits: Tensor, samples: Sequence[Sample]) -> None:
    """Refuse outputs (B, C) of a model that is broken, or whose numbers are too large.

    Raises:
        ValueError: if one is NaN or infinite; names the image.
    """
    for i in (~logits.isfinite().all(-1)).nonzero()[:1].flatten().tolist():
        raise ValueError(
            f"the model's outputs for {samples[i].image_id!r} are NaN or infinite: its weights are "
            f"broken, or its numbers too large for {logits.dtype}"
        )


def choose_methods(
    model: nn.Module, methods: Sequence[str] | None, head: int | None = None
) -> list[str]:
    """The methods asked for, checked, or all that suit the model, and the head if there is one.

    Raises:
        ValueError: for a name that is unknown, a method that does not suit the model, or one
            without heads, and no control, beside a head.
    """
    kinds = attention_kinds(model)
    if methods is None:
        every = [*applicable_methods(kinds), f"{UNTRAINED}visits"]
        if head is None:
            return every
        return [name for name in every if get_method(name).heads or get_method(name).control]
    check_place(methods, "last", head)
    for method in methods:
        unsuited = kinds - get_method(method.removeprefix(UNTRAINED)).kinds
        if unsuited:
            raise MethodNotApplicable(
                f"method {method!r} is not for {', '.join(sorted(unsuited))} attention; "
                f"this model takes {', '.join(applicable_methods(kinds))}"
            )
    return list(dict.fromkeys(methods))


def patch_scores(explanation: Explanation) -> Tensor:
    """Maps (B, gh, gw); constant, all patches tied, where there is no map."""
    return explanation.maps.nan_to_num(nan=0.0)


def warn(message: str) -> None:
    """Warn of an image that is left out."""
    warnings.warn(f"left out: {message}", stacklevel=2)


def sample_batches(
    data: ImageData, size: int, on_image: OnImage, on_skip: OnSkip = warn
) -> Iterator[list[Sample]]:
    """A data set in its order, ``size`` images at a time, less those that cannot be read.

    Args:
        data: the images.
        size: images a batch, at least 1.
        on_image: called with the number of images of a batch when it has been dealt with, which
            is when the next is asked for.
        on_skip: called with a sentence for an image that cannot be read; may raise to stop.

    Yields:
        Samples, at least one.
    """
    for start in range(0, len(data), size):
        indices = range(start, min(start + size, len(data)))
        samples = []
        for i in indices:
            try:
                samples.append(data[i])
            except ImageError as error:
                on_skip(str(error))
        if samples:
            yield samples
        on_image(len(indices))
