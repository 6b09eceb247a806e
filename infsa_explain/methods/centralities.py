"""Centralities of a layer's token graph as maps. All but ``katz`` measure attention received."""

from __future__ import annotations

from torch import Tensor

from ..attention.functional import linear_weights
from ..graph import centrality
from ..graph.centrality import Centrality, Perron
from ..vits.capturing import Graphs, Layer
from ..vits.kinds import INFSA
from .registry import Request, register_method


@register_method("visits")
def visits(layer: Layer, request: Request, graphs: Graphs) -> Centrality:
    """Expected visits to each token before absorption, sᵀ(I − γÂ)⁻¹ from a uniform start."""
    return centrality.visits(
        layer.operator,
        request.gamma_of(layer),
        gamma_rho=request.gamma_rho,
        count_start=request.visits_start == "counted",
    )


@register_method("doob", kinds=INFSA)
def doob(layer: Layer, request: Request, graphs: Graphs) -> Centrality:
    """Expected visits of Doob's walk, Â steered by its right Perron vector: always a chain."""
    return centrality.doob_visits(
        layer.operator,
        request.gamma_of(layer),
        gamma_rho=request.gamma_rho,
        count_start=request.visits_start == "counted",
    )


@register_method("katz", kinds=INFSA)
def katz(layer: Layer, request: Request, graphs: Graphs) -> Centrality:
    """Katz centrality emitted, (I − γÂ)⁻¹·1 − 1: further visits that a walk from a token makes."""
    gamma = request.gamma_of(layer)
    return centrality.katz(layer.operator, gamma, gamma_rho=request.gamma_rho)


@register_method("pagerank")
def pagerank(layer: Layer, request: Request, graphs: Graphs) -> Centrality:
    """PageRank of the row-normalised graph, damping 0.85."""
    return centrality.pagerank(layer.operator)


@register_method("tokenrank")
def tokenrank(layer: Layer, request: Request, graphs: Graphs) -> Centrality:
    """TokenRank, the stationary distribution of attention as a Markov chain, teleporting 1%.

    Of α P + (1 − α)/N for each head, with α = 0.99 as in the authors' code. For InfSA, P is the
    row-normalised graph, a chain that the layer itself does not compute.

    Erel, Dünkel, Dabral, Golyanik, Theobalt and Bermano, Attention (as Discrete-Time Markov)
    Chains, arXiv 2507.17657.
    """
    return centrality.pagerank(layer.operator, damping=0.99, max_iterations=10_000)


@register_method("perron")
def perron(layer: Layer, request: Request, graphs: Graphs) -> Perron:
    """The left Perron vector, attention received in the limit of long walks."""
    return centrality.perron(layer.operator)


@register_method("linear")
def linear(layer: Layer, request: Request, graphs: Graphs) -> Tensor:
    """Weights `a` of Linear-InfSA: relu(k q̄), an O(N) stand-in for the left Perron vector."""
    return linear_weights(layer.operator.q, layer.operator.k)


@register_method("degree")
def degree(layer: Layer, request: Request, graphs: Graphs) -> Centrality:
    """In-degree, Σ_i Â_ij: attention received in one step; what costs nothing."""
    return centrality.degree(layer.operator)


@register_method("series", scope="model")
def series(graphs: Graphs, request: Request) -> Centrality:
    """The layer series S_L = Σ_t M⁽ᵗ⁾ … M⁽¹⁾ received from a uniform start, M = mean of γÂ."""
    gammas = [request.gamma_of(layer) for layer in graphs.layers]
    return centrality.certified_series(graphs.operators, gammas, gamma_rho=request.gamma_rho)
