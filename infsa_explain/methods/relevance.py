"""Relevance: attention weighted by its gradient, followed through the residual stack."""

from __future__ import annotations

import torch
from torch import Tensor

from ..vits.capturing import Graphs
from .backward import attention_matrix, gradients
from .registry import Request, model_method


@model_method("relevance", class_specific=True)
def relevance(graphs: Graphs, request: Request) -> Tensor:
    """Relevance R ← R + Ā R with Ā the head mean of (∂y/∂A ⊙ A)⁺: attention × gradient by layers.

    From R = I, which is taken off the result: what reaches the classifier, sᵀ(R − I), with s the
    class token or the mean of the patches. Computed from the last layer to the first, so that
    vectors stand in for R.

    Chefer, Gur and Wolf, Generic Attention-model Explainability, arXiv 2103.15679, equations 5
    and 6.
    """
    start = _read_by_classifier(graphs)[:, None]  # (B, 1, N)
    relevant = torch.zeros_like(start)
    passes = gradients(graphs, request.targets)
    with torch.autocast(start.device.type, enabled=False):
        for layer, passed in zip(reversed(graphs.layers), reversed(passes), strict=True):
            g, v = passed.heads()
            weighted = torch.relu(g @ v.mT * attention_matrix(layer)).mean(1)
            relevant = relevant + (start + relevant) @ weighted
    return relevant[:, 0]


def _read_by_classifier(graphs: Graphs) -> Tensor:
    """s, (B, N): the class token, or the mean of the patches."""
    share = torch.zeros_like(graphs.operators[0].q[:, 0, :, 0])
    if graphs.reads_class_token:
        share[:, 0] = 1
    else:
        patches = share[:, graphs.num_prefix_tokens :]
        patches += 1 / patches.shape[1]
    return share
