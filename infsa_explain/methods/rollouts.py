"""Raw attention, and attention through all layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..vits.capturing import Graphs, Layer
from .registry import Request, register_method


@register_method("attention", kinds=("softmax",))
def attention(layer: Layer, request: Request, graphs: Graphs) -> Tensor:
    """Raw softmax attention: the class token's row, or the patches' mean where they are pooled."""
    return _seen_from_output(layer.operator.dense(), graphs)


@register_method("rollout", scope="model")
def rollout(graphs: Graphs, request: Request) -> Tensor:
    """Attention rollout, Π ½(A⁽ˡ⁾ + I) with A the head mean of row-normalised attention.

    Abnar and Zuidema, Quantifying Attention Flow in Transformers, arXiv 2005.00928.
    """
    return _rolled_out(graphs, lambda heads, identity: (heads.mean(1) + identity) / 2)


@register_method("rollout-max", scope="model")
def rollout_max(graphs: Graphs, request: Request) -> Tensor:
    """Rollout of A + I, rows scaled to 1, with A the largest of the heads' attention, not the mean.

    Gildenblat, Exploring Explainability for Vision Transformers, 2020; no edge is discarded.
    """
    return _rolled_out(graphs, lambda heads, identity: _stochastic(heads.amax(1) + identity))


@register_method("rollout-min", scope="model", kinds=("softmax",))
def rollout_min(graphs: Graphs, request: Request) -> Tensor:
    """Rollout of A + I, rows scaled to 1, with A the least of the heads' attention, not the mean.

    Gildenblat, as :func:`rollout_max`. Not for InfSA, where most edges are zero in some head.
    """
    return _rolled_out(graphs, lambda heads, identity: _stochastic(heads.amin(1) + identity))


@register_method("rollout-bare", scope="model")
def rollout_bare(graphs: Graphs, request: Request) -> Tensor:
    """Rollout without the residual connection, Π A⁽ˡ⁾ with A as in rollout.

    Abnar and Zuidema, as :func:`rollout`, without the identity matrix for the residual.
    """
    return _rolled_out(graphs, lambda heads, identity: heads.mean(1))


def _rolled_out(graphs: Graphs, step: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The row of Π step(heads' attention, I) that the classifier reads, (B, N)."""
    batch, _, tokens = graphs.operators[0].shape
    identity = torch.eye(tokens).to(graphs.operators[0].q)
    flow = identity.expand(batch, tokens, tokens)
    with torch.autocast(flow.device.type, enabled=False):
        for layer in graphs.layers:
            flow = step(mixing(layer), identity) @ flow
    return _seen_from_output(flow[:, None], graphs)[:, 0]


def _stochastic(matrix: Tensor) -> Tensor:
    """A matrix with its rows scaled to sum 1."""
    return matrix / matrix.sum(-1, keepdim=True)


def mixing(layer: Layer) -> Tensor:
    """Attention with rows that sum to 1, (B, H, N, N).

    Softmax attention, the row-normalised token graph of a pure layer, or `a` in every row of a
    linear layer. A row of zeros becomes that of the identity.
    """
    matrix = layer.matrix()
    total = matrix.sum(-1, keepdim=True)
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return torch.where(total > 0, matrix / total.where(total > 0, 1), identity)


def _seen_from_output(matrix: Tensor, graphs: Graphs) -> Tensor:
    """The row that the classifier reads: of the class token, or the mean over the patches.

    (B, H, N, N) to (B, H, N).
    """
    if graphs.reads_class_token:
        return matrix[:, :, 0]
    return matrix[:, :, graphs.num_prefix_tokens :].mean(-2)
