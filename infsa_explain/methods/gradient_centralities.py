"""Centralities of a class: of the token graph weighted by the gradient of the class's logit.

An edge of the gradient graph is (∂y/∂A_ij · A_ij)⁺, attention in favour of the class. A is softmax
attention, Â, or `a` in every row of a linear layer. The graph is divided by its Frobenius norm, as
Â is. So every centrality of Â applies to it, with the same certificate, and γ and the scale of the
gradient have no effect.

If the classifier reads only the class token, no other token has a gradient after the last layer.
The gradient graph of the last layer is then a star, and all centralities rank tokens in the same
way, by attention × gradient of the class token. Earlier layers, or the mean over all layers, say
more. A star has no Perron vector unless the class token has an edge to itself, and emitted
centralities score only its centre. So neither is a method here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from ..graph import centrality
from ..graph.centrality import Centrality
from ..graph.operator import AttentionOperator
from ..vits.capturing import Graphs, Layer
from .backward import layer_gradients
from .registry import Request, register_method


class GradientOperator(AttentionOperator):
    """(g vᵀ)⁺ ⊙ A over its Frobenius norm: the gradient graph, formed tile by tile.

    Each tile takes the memory of two: its own and that of A.

    Args:
        graph: A, of either kind; None if v contains it, as (g_i · v_j)⁺ a_j = (g_i · a_j v_j)⁺.
        g: (B, H, N, d), the gradient at the heads' outputs, up to a positive factor per head.
        v: values, (B, H, N, d), up to a positive factor per head.
    """

    eps = torch.finfo(torch.float32).tiny  # the scale of a gradient is arbitrary

    def __init__(self, graph: AttentionOperator | None, g: Tensor, v: Tensor) -> None:
        super().__init__(g, v)
        self.graph = graph

    @cached_property
    def double(self) -> AttentionOperator:
        """The same graph in float64."""
        if self.q.dtype == torch.float64:
            return self
        graph = self.graph and self.graph.double
        return GradientOperator(graph, self.q.double(), self.k.double())

    def _form(self, graphs: slice, rows: slice, out: Tensor) -> None:
        super()._form(graphs, rows, out)
        if self.graph is not None:
            attention = torch.empty_like(out)
            self.graph._form(graphs, rows, attention)
            out.mul_(attention.div_(self.graph._norm[graphs]))


def gradient_graph(layer: Layer, request: Request, graphs: Graphs) -> AttentionOperator:
    """The gradient graph of a layer, over (B, H)."""
    g, v = layer_gradients(layer, graphs, request.targets).heads()
    op = layer.operator
    g, v = g.to(op.q), v.to(op.q)
    row = layer.row()
    if row is not None:
        return GradientOperator(None, _scaled(g), _scaled(row[..., None] * v))
    return GradientOperator(op, _scaled(g), _scaled(v))


def _scaled(x: Tensor) -> Tensor:
    """x divided by its largest magnitude in every head: squares of small gradients underflow."""
    largest = x.abs().amax((-2, -1), keepdim=True)
    return x / largest.where(largest > 0, 1)


def _where_any_edge(result: Centrality, op: AttentionOperator) -> Centrality:
    """NaN for heads without an edge, whose scores would be those of the start or teleport."""
    return replace(result, scores=result.scores.masked_fill(op.double.dead()[..., None], torch.nan))


@register_method("gradient-visits", class_specific=True)
def visits(layer: Layer, request: Request, graphs: Graphs) -> Centrality:
    """Expected visits, sᵀ(I − γW)⁻¹ from a uniform start, W attention × gradient of a class."""
    op = gradient_graph(layer, request, graphs)
    result = centrality.visits(
        op,
        request.gamma_of(layer),
        gamma_rho=request.gamma_rho,
        count_start=request.visits_start == "counted",
    )
    return _where_any_edge(result, op)


@register_method("gradient-pagerank", class_specific=True)
def pagerank(layer: Layer, request: Request, graphs: Graphs) -> Centrality:
    """PageRank, damping 0.85, of attention × gradient of a class."""
    op = gradient_graph(layer, request, graphs)
    return _where_any_edge(centrality.pagerank(op), op)


@register_method("gradient-degree", class_specific=True)
def degree(layer: Layer, request: Request, graphs: Graphs) -> Centrality:
    """In-degree, the column sums of attention × gradient of a class."""
    return centrality.degree(gradient_graph(layer, request, graphs))
