"""Images a batch at a time, and what a model makes of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from infsa_metrics.outputs import Output
from torch import Tensor, nn

from ..data import ImageError
from ..data.samples import ImageData, Sample
from ..methods import (
    UNTRAINED,
    Explanation,
    LayerChoice,
    MethodNotApplicable,
    VisitsStart,
    applicable_methods,
    check_place,
    check_walk,
    class_index,
    explain_graphs,
    get_method,
)
from ..methods.targets import targets_of
from ..models.untraining import Start, untrained
from ..vits import attention_kinds, classifies, model_output, require_classes, vit_of
from ..vits.capturing import Graphs, capture
from ..vits.preprocessing import preprocess

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
#: What is explained: ``"predicted"`` on the clean image, ``"label"``, one class for all by number
#: or name, or ``"embedding"``.
Target = Literal["predicted", "label", "embedding"] | int | str
WORDS = ("predicted", "label", "embedding")


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
        gamma_rho: γρ of every graph, in place of a γ.
        visits_start: whether the start of a walk is one of its visits.
        target: the class that maps which are of a class explain, and that deletion follows:
            ``"predicted"`` on the clean image, ``"label"``, or one class of the model, by number
            or by name. For a model without a classifier ``"embedding"``: how far features stay
            those of the clean image.
        seed: of the untrained model, and of what else draws.
    """

    methods: tuple[str, ...] | None = None
    layer: LayerChoice = "last"
    head: int | None = None
    gamma: float | None = None
    target: Target = "predicted"
    seed: int = 0
    gamma_rho: float | None = None
    visits_start: VisitsStart = "counted"

    @property
    def walk(self) -> dict[str, Any]:
        """The options of walks, as arguments of ``explain``."""
        return {
            "gamma": self.gamma,
            "gamma_rho": self.gamma_rho,
            "visits_start": self.visits_start,
        }

    @property
    def needs_labels(self) -> bool:
        """Whether the images' labels must be those of the model's outputs."""
        return self.target == "label"

    def check(self, model: nn.Module) -> None:
        """Raise a ValueError if the options, or a method for this model, will not do."""
        if self.target == "embedding" and classifies(model):
            raise ValueError(
                "target must be 'predicted', 'label' or a class for a model with a classifier, got "
                "'embedding'; build it with num_classes=0 to follow its features"
            )
        if isinstance(self.target, str) and self.target not in WORDS:
            try:
                class_index(model, self.target)
            except ValueError as error:
                raise ValueError(f"{error}; or 'predicted', or 'label'") from None
        check_place(self.chosen(model), self.layer, self.head)
        check_walk(self.gamma, self.gamma_rho, self.visits_start)

    def check_data(self, data: ImageData) -> None:
        """Raise a ValueError if the images lack what is measured: maps need nothing but images."""

    def chosen(self, model: nn.Module) -> list[str]:
        """The methods, as :func:`choose_methods` has them."""
        return choose_methods(model, self.methods, self.head, self.target)

    def place(self, method: str) -> dict[str, Any]:
        """The layer and the head of a method, as arguments of ``explain``."""
        return get_method(method).choice(self.layer, self.head)

    def head_of(self, explanation: Explanation) -> int | None:
        """The head that a map is of; None for the mean over heads, or a method without any."""
        return None if explanation.heads is None else self.head


class Subject:
    """A model that is measured, and the same model untrained.

    Attributes:
        model: as it was given.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._untrained: dict[tuple[int, Start], nn.Module] = {}

    def untrained(self, model: nn.Module, seed: int, start: Start = "own") -> nn.Module:
        """What is explained of the model with fresh weights, made once."""
        if (seed, start) not in self._untrained:
            self._untrained[seed, start] = untrained(model, seed, start)
        return self._untrained[seed, start]


class Batch:
    """Some images, and what a model makes of them, computed when it is first asked for.

    Several measures share it, so that a model runs once for all of them.
    """

    def __init__(self, subject: Subject, samples: Sequence[Sample]) -> None:
        self.subject, self.samples = subject, list(samples)
        #: Images without a map, by method: every head is dead, or a gradient is zero.
        self.missing: dict[str, set[str]] = {}
        self._untrained: dict[tuple[int, Start], Graphs] = {}
        self._explanations: dict[Any, Explanation] = {}

    @property
    def model(self) -> nn.Module:
        """What is explained: the ViT, without what only wraps it."""
        return self.graphs.model

    @property
    def images(self) -> Tensor:
        """(B, 3, h, w), as :attr:`model` takes them."""
        return self.graphs.images

    @property
    def seeds(self) -> list[str]:
        """Identities of the images."""
        return [sample.image_id for sample in self.samples]

    @cached_property
    def inputs(self) -> Tensor:
        """(B, 3, h, w), as the model that was given takes them."""
        return preprocess(self.subject.model, [sample.image for sample in self.samples])

    @cached_property
    def graphs(self) -> Graphs:
        """The token graphs of the model.

        Raises:
            ValueError: if an output of the model is NaN or infinite, or as :func:`capture`.
        """
        graphs = capture(self.subject.model, self.inputs)
        require_finite(graphs.logits, self.samples)
        return graphs

    def untrained(self, seed: int, start: Start = "own") -> nn.Module:
        """:attr:`model` with fresh weights."""
        return self.subject.untrained(self.model, seed, start)

    def untrained_graphs(self, seed: int, start: Start = "own") -> Graphs:
        """The token graphs of the model untrained."""
        if (seed, start) not in self._untrained:
            self._untrained[seed, start] = capture(self.untrained(seed, start), self.images)
        return self._untrained[seed, start]

    @cached_property
    def predicted(self) -> list[int | None]:
        """The class predicted on each clean image; None for a model without a classifier."""
        if self.graphs.output == "embedding":
            return [None] * len(self.samples)
        return list(self.graphs.class_logits.argmax(-1).tolist())

    def targets(self, target: Target) -> Tensor:
        """(B,) predicted classes, labels, or one class for all, or (B, D) features, on the CPU.

        Raises:
            ValueError: for labels, if an image has none; for a class, if the model has no such.
        """
        if target == "embedding" or self.graphs.output == "embedding":
            return targets_of(self.graphs, None).cpu()
        if target == "predicted":
            return torch.tensor(self.predicted)
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
        walk = tuple(options.walk.values())
        key = (method, options.layer, options.head, walk, options.target, seed)
        if key not in self._explanations:
            self._explanations[key] = explain_graphs(
                self.untrained_graphs(options.seed) if fresh else self.graphs,
                get_method(method.removeprefix(UNTRAINED)),
                **options.place(method),
                target=targets,
                **options.walk,
                seeds=self.seeds,
            )
            none = self._explanations[key].maps.isnan().all(-1).all(-1).tolist()
            lacking = {seed for seed, lacks in zip(self.seeds, none, strict=True) if lacks}
            self.missing.setdefault(method, set()).update(lacking)
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
    model: nn.Module,
    methods: Sequence[str] | None,
    head: int | None = None,
    target: Target = "predicted",
) -> list[str]:
    """The methods asked for, checked, or all that suit the model, and the head if there is one.

    Raises:
        ValueError: for a name that is unknown, a method that does not suit the model, or one
            without heads, and no control, beside a head.
    """
    kinds = attention_kinds(model)
    without = target != "embedding" and not classifies(model)  # nothing for a class to be of
    if methods is None:
        every = [*applicable_methods(kinds), f"{UNTRAINED}visits"]
        suited = [name for name in every if not (without and get_method(name).class_specific)]
        if head is None:
            return suited
        return [name for name in suited if get_method(name).heads or get_method(name).control]
    check_place(methods, "last", head)
    for method in methods:
        chosen = get_method(method)
        if without and chosen.class_specific:
            raise MethodNotApplicable(
                f"method {method!r} explains a class, and the model has no classifier; "
                "target='embedding' explains its features"
            )
        unsuited = kinds - chosen.kinds
        if unsuited:
            raise MethodNotApplicable(
                f"method {method!r} is not for {', '.join(sorted(unsuited))} attention; "
                f"this model takes {', '.join(applicable_methods(kinds))}"
            )
    return list(dict.fromkeys(methods))


def check_output(model: nn.Module, target: Target, output: Output, what: str) -> None:
    """Refuse to follow classes that a model does not have.

    Raises:
        ValueError: if the model has no classifier and the target is not ``"embedding"``, or the
            output does not suit the model.
    """
    if target == "embedding":
        model_output(model, output)
        return
    if not classifies(model):
        raise ValueError(
            f"{what} follows a class, and {type(model).__name__} has no classifier; give "
            "target='embedding' to follow its features"
        )
    require_classes(model, what)
    if output not in ("auto", "softmax", "sigmoid"):
        raise ValueError(f"output must be 'auto', 'softmax' or 'sigmoid', got {output!r}")
    if output == "softmax" and getattr(vit_of(model), "num_classes", None) == 1:
        raise ValueError("output must be 'sigmoid' for a model with a single logit")


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
