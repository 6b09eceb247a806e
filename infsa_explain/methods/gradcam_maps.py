"""Grad-CAM on tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from ..vits.capturing import Graphs, Layer
from .backward import layer_gradients
from .registry import Request, register_method


@register_method("gradcam", scope="layer", class_specific=True)
def gradcam(layer: Layer, request: Request, graphs: Graphs) -> Tensor:
    """Grad-CAM, relu(Σ_c α_c x_c) with α the patches' mean gradient, of the tokens that enter.

    x is the input of the attention module. In most ViTs that is the output of the block's first
    norm, the layer that pytorch-grad-cam recommends. Its channels belong to no head.

    Selvaraju et al., Grad-CAM, arXiv 1610.02391, equations 1 and 2.
    """
    slopes = layer_gradients(layer, graphs, request.targets)
    dtype = layer.operator.q.dtype
    x, gradient = slopes.tokens.to(dtype), slopes.tokens_gradient.to(dtype)
    alpha = gradient[:, graphs.num_prefix_tokens :].mean(1, keepdim=True)
    return torch.relu((alpha * x).sum(-1))
