"""The registry of map methods."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from ..centrality import Centrality, Perron
from ..graphs import Graphs, Layer

__all__ = [
    "METHODS",
    "Method",
    "MethodNotApplicable",
    "applicable_methods",
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
    """

    gamma: float | None
    seeds: Sequence[int | str]
    targets: Tensor

    def gamma_of(self, layer: Layer) -> float | Tensor:
        """γ to use for a layer: the caller's, or the layer's own, (H,)."""
        return layer.gamma if self.gamma is None else self.gamma


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
        scores: layer scope: (layer, request, graphs) → (B, H, N), a ``Centrality`` or a
            ``Perron``; model scope: (graphs, request) → (B, N), or a ``Centrality`` of that shape.
            Prefix tokens included.
        summary: one line, from the docstring.
    """

    name: str
    scope: Literal["layer", "model"]
    kinds: frozenset[str]
    control: bool
    class_specific: bool
    scores: Callable[..., Any]
    summary: str


METHODS: dict[str, Method] = {}
EVERY_KIND = ("linear", "pure", "softmax")


def layer_method(
    name: str, *, kinds: Sequence[str] = EVERY_KIND, class_specific: bool = False
) -> Callable[[LayerScores], LayerScores]:
    """Register a method that scores each layer and head."""

    def register(scores: LayerScores) -> LayerScores:
        METHODS[name] = Method(
            name, "layer", frozenset(kinds), False, class_specific, scores, _summary(scores)
        )
        return scores

    return register


def model_method(
    name: str,
    *,
    kinds: Sequence[str] = EVERY_KIND,
    control: bool = False,
    class_specific: bool = False,
) -> Callable[[ModelScores], ModelScores]:
    """Register a method that scores the tokens of the whole model."""

    def register(scores: ModelScores) -> ModelScores:
        METHODS[name] = Method(
            name, "model", frozenset(kinds), control, class_specific, scores, _summary(scores)
        )
        return scores

    return register


def get_method(name: str) -> Method:
    """The method of that name.

    Raises:
        ValueError: if there is none; names the nearest.
    """
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=3) or sorted(METHODS)
        raise ValueError(f"unknown method {name!r}; did you mean {', '.join(near)}?")
    return METHODS[name]


def applicable_methods(kinds: set[str]) -> list[str]:
    """Names of the methods that suit a model with these kinds of attention."""
    return [name for name, method in METHODS.items() if kinds <= method.kinds]


def _summary(function: Callable[..., Any]) -> str:
    return (function.__doc__ or "").strip().partition("\n")[0]  # no docstrings under python -OO
