"""The registry of map methods."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ..graph.centrality import Centrality, Perron
from ..vits.capturing import Graphs, Layer
from ..vits.kinds import KINDS

__all__ = [
    "METHODS",
    "UNTRAINED",
    "Method",
    "MethodNotApplicable",
    "applicable_methods",
    "check_place",
    "get_method",
    "layer_method",
    "model_method",
]


class MethodNotApplicable(ValueError):
    """A method that has no meaning for this kind of model."""


@dataclass(frozen=True)
class Request:
    """What a method is given besides the graphs.

    Attributes:
        gamma: overrides the model's own γ, or None.
        seeds: identities of the images, for methods that draw.
        targets: (B,) the class that each image is explained for, for methods that are of a class.
        gammas: every γ that a method asked for, a scalar or (H,), in order.
    """

    gamma: float | None
    seeds: Sequence[int | str]
    targets: Tensor
    gammas: list[Tensor] = field(default_factory=list)

    def gamma_of(self, layer: Layer) -> float | Tensor:
        """γ to use for a layer: the caller's, or the layer's own, (H,)."""
        gamma = layer.gamma if self.gamma is None else self.gamma
        self.gammas.append(torch.as_tensor(gamma))
        return gamma


LayerScores = Callable[[Layer, Request, Graphs], Tensor | Centrality | Perron]
ModelScores = Callable[[Graphs, Request], Tensor | Centrality]


@dataclass(frozen=True)
class Method:
    """One way to score tokens.

    Attributes:
        name: as in ``explain(..., method=name)``.
        scope: ``"layer"``, a score per layer and head, or ``"model"``, one score per token.
        kinds: kinds of attention it is for.
        control: whether it looks at nothing the model computed.
        class_specific: whether its map is of a class, ``Request.targets``.
        heads: whether it scores each head of a layer.
        scores: layer scope: (layer, request, graphs) → (B, H, N), a ``Centrality`` or a
            ``Perron``, or without heads (B, N); model scope: (graphs, request) → (B, N), or a
            ``Centrality`` of that shape. Prefix tokens included.
        summary: one line, from the docstring.
        untrained: whether the map is that of the model with fresh weights.
    """

    name: str
    scope: Literal["layer", "model"]
    kinds: frozenset[str]
    control: bool
    class_specific: bool
    heads: bool
    scores: Callable[..., Any]
    summary: str
    untrained: bool = False

    @property
    def layers(self) -> bool:
        """Whether it scores each layer."""
        return self.scope == "layer"

    def check(self, layer: int | str, head: int | None) -> None:
        """Raise a ValueError for a layer or a head that the method does not have."""
        if head is not None and not self.heads:
            raise ValueError(
                f"head must be left out for {self.name}, which has no heads, got {head}"
            )
        if self.scope == "model" and str(layer) not in EVERY_LAYER:
            raise ValueError(
                f"layer must be left out for {self.name}, which is of the whole model, got {layer}"
            )

    def choice(self, layer: int | str, head: int | None) -> dict[str, Any]:
        """Arguments of ``explain``: of a layer and a head for several methods what this one has."""
        return {
            "layer": layer if self.scope == "layer" else -1,
            "head": head if self.heads else None,
        }


METHODS: dict[str, Method] = {}
#: Layers that may be said of a method of the whole model: the default, and the mean over all.
EVERY_LAYER = ("-1", "last", "mean")
#: Before a method's name: the same map, from the model with fresh weights.
UNTRAINED = "untrained-"


def layer_method(
    name: str,
    *,
    kinds: Sequence[str] = tuple(KINDS),
    class_specific: bool = False,
    heads: bool = True,
) -> Callable[[LayerScores], LayerScores]:
    """Register a method that scores each layer and, unless told, each of its heads."""

    def register(scores: LayerScores) -> LayerScores:
        METHODS[name] = Method(
            name,
            "layer",
            frozenset(kinds),
            control=False,
            class_specific=class_specific,
            heads=heads,
            scores=scores,
            summary=_summary(scores),
        )
        return scores

    return register


def model_method(
    name: str,
    *,
    kinds: Sequence[str] = tuple(KINDS),
    control: bool = False,
    class_specific: bool = False,
) -> Callable[[ModelScores], ModelScores]:
    """Register a method that scores the tokens of the whole model."""

    def register(scores: ModelScores) -> ModelScores:
        METHODS[name] = Method(
            name,
            "model",
            frozenset(kinds),
            control=control,
            class_specific=class_specific,
            heads=False,
            scores=scores,
            summary=_summary(scores),
        )
        return scores

    return register


def get_method(name: str) -> Method:
    """The method of that name; ``untrained-visits``, and so with any name, is its control.

    Raises:
        ValueError: if there is none; names the nearest.
    """
    known = name.removeprefix(UNTRAINED)
    if known not in METHODS:
        near = difflib.get_close_matches(known, METHODS, n=3) or sorted(METHODS)
        prefix = name[: len(name) - len(known)]
        likely = ", ".join(prefix + other for other in near)
        raise ValueError(f"unknown method {name!r}; did you mean {likely}?")
    if known == name:
        return METHODS[name]
    return replace(METHODS[known], name=name, untrained=True)


def check_place(names: Iterable[str], layer: int | str, head: int | None) -> None:
    """Raise a ValueError where several methods are asked for a layer or a head that is not theirs.

    A layer is for those that score layers, of which there must be one. A head is for methods with
    heads, and no other may stand beside them but controls.
    """
    methods = [get_method(name) for name in names]
    if str(layer) not in EVERY_LAYER and methods and not any(method.layers for method in methods):
        of_all = ", ".join(method.name for method in methods)
        raise ValueError(f"layer must be left out for {of_all}, of the whole model, got {layer}")
    without = [method.name for method in methods if not (method.heads or method.control)]
    if head is not None and (without or not any(method.heads for method in methods)):
        of_none = ", ".join(without or [method.name for method in methods])
        raise ValueError(f"head must be left out for {of_none}, without heads, got {head}")


def applicable_methods(kinds: set[str]) -> list[str]:
    """Names of the methods that suit a model with these kinds of attention."""
    return [name for name, method in METHODS.items() if kinds <= method.kinds]


def _summary(function: Callable[..., Any]) -> str:
    return (function.__doc__ or "").strip().partition("\n")[0]  # no docstrings under python -OO
