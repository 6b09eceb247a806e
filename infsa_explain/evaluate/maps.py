"""Maps of every method over a data set, for measures to take up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from ..data.samples import ImageData, Sample
from ..graphs import attention_kinds, capture
from ..methods import METHODS, MethodNotApplicable, applicable_methods, get_method
from ..methods.explaining import Explanation, explain_graphs
from ..models import untrained
from ..preprocessing import preprocess
from .batches import OnImage, OnSkip, sample_batches, warn

__all__ = ["UNTRAINED", "MapBatch", "MapOptions", "choose_methods", "map_batches"]

#: Before a method's name: the same map, from the model untrained.
UNTRAINED = "untrained-"
#: Images that are explained at a time.
BATCH = 16


@dataclass(frozen=True)
class MapOptions:
    """What decides the maps of an experiment.

    Attributes:
        methods: names of map methods; None for all that suit the model. ``untrained-visits``, and
            so with any name, is the control that takes the map from the model untrained.
        layer: an index, ``"last"`` or ``"mean"``.
        head: an index, or None for the mean over heads.
        gamma: in place of the model's own γ.
        seed: of the untrained model, and of what else draws.
    """

    methods: tuple[str, ...] | None = None
    layer: int | str = "last"
    head: int | None = None
    gamma: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class MapBatch:
    """Some images with the maps of every method.

    Attributes:
        samples: the images as the data set gave them, at least one.
        images: (B, 3, h, w), as the model takes them.
        logits: (B, C).
        explanations: by method. Where every head is dead the map is NaN.
    """

    samples: list[Sample]
    images: Tensor
    logits: Tensor
    explanations: dict[str, Explanation]

    @property
    def seeds(self) -> list[str]:
        """Identities of the images."""
        return [sample.image_id for sample in self.samples]

    def scores(self, method: str) -> Tensor:
        """Patch scores (B, gh, gw); constant, all patches tied, where there is no map."""
        return self.explanations[method].maps.nan_to_num(nan=0.0)


def choose_methods(model: nn.Module, methods: Sequence[str] | None) -> list[str]:
    """The methods asked for, checked, or all that suit the model.

    Raises:
        ValueError: for a name that is unknown or a method that does not suit the model.
    """
    kinds = attention_kinds(model)
    if methods is None:
        return [*applicable_methods(kinds), f"{UNTRAINED}visits"]
    for method in methods:
        unsuited = kinds - get_method(method.removeprefix(UNTRAINED)).kinds
        if unsuited:
            raise MethodNotApplicable(
                f"method {method!r} is not for {', '.join(sorted(unsuited))} attention; "
                f"this model takes {', '.join(applicable_methods(kinds))}"
            )
    return list(dict.fromkeys(methods))


def map_batches(
    model: nn.Module,
    data: ImageData,
    options: MapOptions,
    on_image: OnImage = lambda images: None,
    on_skip: OnSkip = warn,
) -> Iterator[MapBatch]:
    """Explain a data set, some images at a time.

    Args:
        model: a supported ViT in eval mode.
        data: the images.
        options: see :class:`MapOptions`.
        on_image, on_skip: see :func:`infsa_explain.evaluate.batches.sample_batches`.

    Raises:
        ValueError: as :func:`choose_methods`, or for a layer or head out of range.
    """
    methods = choose_methods(model, options.methods)
    controlled = any(method.startswith(UNTRAINED) for method in methods)
    fresh = untrained(model, options.seed) if controlled else None
    for samples in sample_batches(data, BATCH, on_image, on_skip):
        images = preprocess(model, [sample.image for sample in samples])
        graphs = capture(model, images)
        fresh_graphs = graphs if fresh is None else capture(fresh, images)
        explanations = {}
        for method in methods:
            explanations[method] = explain_graphs(
                fresh_graphs if method.startswith(UNTRAINED) else graphs,
                METHODS[method.removeprefix(UNTRAINED)],
                layer=options.layer,
                head=options.head,
                gamma=options.gamma,
                seeds=[sample.image_id for sample in samples],
            )
        yield MapBatch(samples, images, graphs.logits, explanations)
