"""Grad-CAM on tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from ..vits.capturing import Graphs, Layer
from .backward import gradients
from .registry import Request, layer_method


@layer_method("gradcam", class_specific=True, heads=False)
def gradcam(layer: Layer, request: Request, graphs: Graphs) -> Tensor:
    """Grad-CAM, relu(Σ_c α_c x_c) with α the patches' mean gradient, of the tokens that enter.

    x enters the attention module: in most ViTs what the block's first norm gives, the layer that
    pytorch-grad-cam advises. Its channels belong to no head.

    Selvaraju et al., Grad-CAM, arXiv 1610.02391, equations 1 and 2.
    """
    passed = gradients(graphs, request.targets)[graphs.indices[graphs.layers.index(layer)]]
    dtype = layer.operator.q.dtype
    x, gradient = passed.tokens.to(dtype), passed.tokens_gradient.to(dtype)
    alpha = gradient[:, graphs.num_prefix_tokens :].mean(1, keepdim=True)
    return torch.relu((alpha * x).sum(-1))
