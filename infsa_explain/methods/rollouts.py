"""Raw attention, and attention followed through the residual stack."""

from __future__ import annotations

import torch
from torch import Tensor

from ..attention import linear_weights
from ..graphs import Graphs, Layer
from .registry import Request, layer_method, model_method


@layer_method("attention", kinds=("softmax",))
def attention(layer: Layer, request: Request, graphs: Graphs) -> Tensor:
    """Raw softmax attention: the class token's row, or the patches' mean where they are pooled."""
    return _seen_from_output(layer.operator.dense(), graphs)


@model_method("rollout")
def rollout(graphs: Graphs, request: Request) -> Tensor:
    """Attention rollout, Π ½(A⁽ˡ⁾ + I) with A the head mean of row-normalised attention.

    Abnar and Zuidema, Quantifying Attention Flow in Transformers, arXiv 2005.00928.
    """
    batch, _, tokens = graphs.operators[0].shape
    identity = torch.eye(tokens).to(graphs.operators[0].q)
    flow = identity.expand(batch, tokens, tokens)
    with torch.autocast(flow.device.type, enabled=False):
        for layer in graphs.layers:
            flow = (mixing(layer).mean(1) + identity) / 2 @ flow
    return _seen_from_output(flow[:, None], graphs)[:, 0]


def mixing(layer: Layer) -> Tensor:
    """What each token takes from each other, rows summing to 1: (B, H, N, N).

    Softmax attention itself, the row-normalised token graph of a pure layer, or `a` in every row
    of a linear one. A row that takes nothing keeps its own token.
    """
    if layer.kind == "linear":
        weights = linear_weights(layer.operator.q, layer.operator.k)
        matrix = weights[..., None, :].expand(*weights.shape, -1)
    else:
        matrix = layer.operator.dense()
    total = matrix.sum(-1, keepdim=True)
    identity = torch.eye(matrix.shape[-1], device=matrix.device)
    return torch.where(total > 0, matrix / total.where(total > 0, 1), identity)


def _seen_from_output(matrix: Tensor, graphs: Graphs) -> Tensor:
    """What reaches the classifier: the class token's row, or the mean of the patches' rows.

    (B, H, N, N) to (B, H, N).
    """
    if graphs.reads_class_token:
        return matrix[:, :, 0]
    return matrix[:, :, graphs.num_prefix_tokens :].mean(-2)
