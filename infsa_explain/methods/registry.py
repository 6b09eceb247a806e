"""The registry of map methods."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import torch
from torch import Tensor

from ..graph.centrality import Centrality, Perron
from ..vits.capturing import Layer
from ..vits.kinds import KINDS

__all__ = [
    "METHODS",
    "UNTRAINED",
    "LayerChoice",
    "Method",
    "MethodNotApplicable",
    "Request",
    "Scope",
    "VisitsStart",
    "applicable_methods",
    "check_place",
    "check_walk",
    "get_method",
    "register_method",
]

#: A layer: its index, negative from the end, or ``"last"``; or ``"mean"`` over all layers. Digits
#: in a text are an index.
LayerChoice: TypeAlias = int | str
#: What a method scores: each head of a layer, each layer, or the whole model.
Scope: TypeAlias = Literal["head", "layer", "model"]
#: Whether the start of a walk is one of its visits.
VisitsStart: TypeAlias = Literal["counted", "excluded"]
#: Layers that are accepted for a method of the whole model: the default, and the mean over all.
WHOLE_MODEL = ("-1", "last", "mean")
#: Prefix of a method's name: the same map, from the model with fresh weights.
UNTRAINED = "untrained-"


class MethodNotApplicable(ValueError):
    """A method that has no meaning for a model."""


@dataclass(frozen=True)
class Request:
    """The arguments of a method besides the graphs.

    Attributes:
        gamma: replaces the model's own γ; None to keep it.
        gamma_rho: γρ of every graph, in place of a γ; None for γ.
        visits_start: whether the start of a walk is a visit: ``"counted"`` or ``"excluded"``.
        seeds: identities of the images, for methods that draw random numbers.
        targets: (B,) the class that each image is explained for, for methods that are of a class;
            (B, D) features of a model without a classifier.
        gammas: every γ that the method asked for, a scalar or (H,), in order.
    """

    gamma: float | None
    seeds: Sequence[int | str]
    targets: Tensor
    gammas: list[Tensor] = field(default_factory=list)
    gamma_rho: float | None = None
    visits_start: VisitsStart = "counted"

    def __post_init__(self) -> None:
        check_walk(self.gamma, self.gamma_rho, self.visits_start)

    def gamma_of(self, layer: Layer) -> float | Tensor | None:
        """γ for a layer: the caller's, or the layer's own, (H,). None if γρ is given instead."""
        if self.gamma_rho is not None:
            return self.gamma
        gamma = layer.gamma if self.gamma is None else self.gamma
        self.gammas.append(torch.as_tensor(gamma))
        return gamma


@dataclass(frozen=True)
class Method:
    """One way to score tokens; made by :func:`register_method`.

    Attributes:
        name: as in ``explain(..., method=name)``.
        scope: what it scores.
        kinds: kinds of attention that it is for.
        control: True if its map does not depend on what the model computes.
        class_specific: True if its map is of a class, ``Request.targets``.
        scores: the registered function.
        summary: the first line of the function's docstring.
        untrained: True if the map is that of the model with fresh weights.
    """

    name: str
    scope: Scope
    kinds: frozenset[str]
    control: bool
    class_specific: bool
    scores: Callable[..., Any]
    summary: str
    untrained: bool = False

    @property
    def heads(self) -> bool:
        """Whether it scores each head of a layer."""
        return self.scope == "head"

    @property
    def layers(self) -> bool:
        """Whether it scores each layer."""
        return self.scope != "model"

    def check(self, layer: LayerChoice, head: int | None) -> None:
        """Refuse a layer or a head that the method does not have.

        Raises:
            ValueError: names the argument.
        """
        if head is not None and not self.heads:
            raise ValueError(
                f"head must be left out for {self.name}, which has no heads, got {head}"
            )
        if not self.layers and str(layer) not in WHOLE_MODEL:
            raise ValueError(
                f"layer must be left out for {self.name}, which is of the whole model, got {layer}"
            )

    def choice(self, layer: LayerChoice, head: int | None) -> dict[str, Any]:
        """The layer and head as arguments of ``explain``, or their defaults if it has none."""
        return {"layer": layer if self.layers else -1, "head": head if self.heads else None}


#: Methods by name.
METHODS: dict[str, Method] = {}

Scored: TypeAlias = Tensor | Centrality | Perron
Scores = TypeVar("Scores", bound=Callable[..., Scored])


def register_method(
    name: str,
    *,
    scope: Scope = "head",
    kinds: Iterable[str] = tuple(KINDS),
    control: bool = False,
    class_specific: bool = False,
) -> Callable[[Scores], Scores]:
    """Register a map method: a decorator for a function that scores tokens.

    Scores include the prefix tokens; higher is more important. The first line of the function's
    docstring describes the method in lists.

    Args:
        name: the method's name.
        scope: what the function scores:

            - ``"head"``: ``(layer, request, graphs)`` → (B, H, N), a ``Centrality`` or ``Perron``
            - ``"layer"``: ``(layer, request, graphs)`` → (B, N)
            - ``"model"``: ``(graphs, request)`` → (B, N), or a ``Centrality`` of that shape

            with a :class:`infsa_explain.vits.capturing.Layer`, a :class:`Request` and
            :class:`infsa_explain.Graphs`.
        kinds: kinds of attention that it is for, of ``"softmax"``, ``"pure"`` and ``"linear"``.
        control: True for a map that does not depend on what the model computes.
        class_specific: True for a map of a class, ``request.targets``.

    Raises:
        ValueError: for an unknown scope or kind.

    >>> @register_method("brightest-token")
    ... def brightest(layer, request, graphs):
    ...     '''Norm of the keys.'''
    ...     return layer.operator.k.norm(dim=-1)
    >>> METHODS.pop("brightest-token").summary
    'Norm of the keys.'
    """
    if scope not in get_args(Scope):
        raise ValueError(f"scope must be one of {', '.join(get_args(Scope))}, got {scope!r}")
    if unknown := set(kinds) - KINDS.keys():
        raise ValueError(f"kinds must be of {', '.join(KINDS)}, got {', '.join(sorted(unknown))}")

    def register(scores: Scores) -> Scores:
        summary = (scores.__doc__ or "").strip().partition("\n")[0]  # empty under python -OO
        METHODS[name] = Method(
            name, scope, frozenset(kinds), control, class_specific, scores, summary
        )
        return scores

    return register


def get_method(name: str) -> Method:
    """The method of that name; ``untrained-NAME`` is the control of NAME.

    Raises:
        ValueError: if there is none; names the nearest.
    """
    plain = name.removeprefix(UNTRAINED)
    if plain not in METHODS:
        prefix = name[: len(name) - len(plain)]
        near = difflib.get_close_matches(plain, METHODS, n=3) or sorted(METHODS)
        likely = ", ".join(prefix + other for other in near)
        raise ValueError(f"unknown method {name!r}; did you mean {likely}?")
    if plain == name:
        return METHODS[name]
    return replace(METHODS[plain], name=name, untrained=True)


def check_place(names: Iterable[str], layer: LayerChoice, head: int | None) -> None:
    """Refuse a layer or a head that several methods together do not have.

    A layer needs at least one method that scores layers. A head needs methods that score heads;
    only controls may be named beside them.

    Raises:
        ValueError: names the argument and the methods.
    """
    methods = [get_method(name) for name in names]
    if str(layer) not in WHOLE_MODEL and methods and not any(method.layers for method in methods):
        listed = ", ".join(method.name for method in methods)
        raise ValueError(f"layer must be left out for {listed}, of the whole model, got {layer}")
    without = [method.name for method in methods if not (method.heads or method.control)]
    if head is not None and (without or not any(method.heads for method in methods)):
        listed = ", ".join(without or [method.name for method in methods])
        raise ValueError(f"head must be left out for {listed}, without heads, got {head}")


def check_walk(gamma: float | None, gamma_rho: float | None, visits_start: str) -> None:
    """Refuse options of walks that are out of range, or exclude one another.

    Raises:
        ValueError: names the argument.
    """
    for name, value in (("gamma", gamma), ("gamma_rho", gamma_rho)):
        if value is not None and not 0 < value < 1:
            raise ValueError(f"{name} must lie in (0, 1), got {value}")
    if gamma is not None and gamma_rho is not None:
        raise ValueError(f"gamma must be left out beside gamma_rho, got {gamma}")
    if visits_start not in get_args(VisitsStart):
        raise ValueError(f"visits_start must be 'counted' or 'excluded', got {visits_start!r}")


def applicable_methods(kinds: set[str]) -> list[str]:
    """Names of the methods for a model with these kinds of attention."""
    return [name for name, method in METHODS.items() if kinds <= method.kinds]
