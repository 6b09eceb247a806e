"""Removal of patches, through Captum: what the class's logit loses."""

from __future__ import annotations

import torch
from torch import Tensor

from ..vits.capturing import Graphs
from .controls import with_prefix
from .pixel_gradients import PASS, Logits, patch_size, pixel_attributions
from .registry import Request, model_method


@model_method("occlusion", class_specific=True)
def occlusion(graphs: Graphs, request: Request) -> Tensor:
    """Occlusion, f(x) − f(x without a patch): the logit that is lost; below 0 where it gains.

    The patch takes the mean colour, zero after normalisation. A pass of the model for every
    patch. Zeiler and Fergus, Visualizing and Understanding CNNs, arXiv 1311.2901.
    """
    from captum.attr import FeatureAblation

    height, width = graphs.images.shape[-2:]
    (ph, pw), (gh, gw) = patch_size(graphs), graphs.grid
    row, column = torch.arange(height)[:, None] // ph, torch.arange(width) // pw
    patch = (row * gw + column).where((row < gh) & (column < gw), gh * gw)  # the rest is in none

    def attribute(logits: Logits, image: Tensor, target: int) -> Tensor:
        drops: Tensor = FeatureAblation(logits).attribute(
            image, target=target, feature_mask=patch[None, None], perturbations_per_eval=PASS
        )
        return drops

    drops = pixel_attributions(attribute, graphs, request)[:, 0, ::ph, ::pw]  # alike in a patch
    return with_prefix(drops[:, :gh, :gw].flatten(1), graphs)
