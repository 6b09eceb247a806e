"""Relevance: attention weighted by its gradient, through all layers with their residuals."""

from __future__ import annotations

import torch
from torch import Tensor

from ..vits.capturing import Graphs
from .backward import attention_matrix, gradients
from .registry import Request, register_method


@register_method("relevance", scope="model", class_specific=True)
def relevance(graphs: Graphs, request: Request) -> Tensor:
    """Relevance R ← R + Ā R with Ā the head mean of (∂y/∂A ⊙ A)⁺: attention × gradient by layers.

    It starts at R = I. The map is sᵀ(R − I), with s the class token or the mean of the patches,
    whichever the classifier reads. It is computed from the last layer to the first, with vectors
    instead of the matrix R.

    Chefer, Gur and Wolf, Generic Attention-model Explainability, arXiv 2103.15679, equations 5
    and 6.
    """
    start = _read_by_classifier(graphs)[:, None]  # (B, 1, N)
    relevant = torch.zeros_like(start)
    slopes = gradients(graphs, request.targets)
    with torch.autocast(start.device.type, enabled=False):
        for layer, of_layer in zip(reversed(graphs.layers), reversed(slopes), strict=True):
            g, v = of_layer.heads()
            weighted = torch.relu(g @ v.mT * attention_matrix(layer)).mean(1)
            relevant = relevant + (start + relevant) @ weighted
    return relevant[:, 0]


def _read_by_classifier(graphs: Graphs) -> Tensor:
    """s, (B, N): 1 at the class token, or 1/P at every patch."""
    share = torch.zeros_like(graphs.operators[0].q[:, 0, :, 0])
    if graphs.reads_class_token:
        share[:, 0] = 1
    else:
        patches = share[:, graphs.num_prefix_tokens :]
        patches += 1 / patches.shape[1]
    return share
