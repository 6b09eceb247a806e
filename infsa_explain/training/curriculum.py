"""The curriculum of photo-digits: a window of patches around the digit, which grows to the image.

Linear InfSA gives every token the same vector, so on whole images it learns nothing for a long
time. In a small window the digit fills a large part of the input, and an epoch is cheap.
"""

from __future__ import annotations

import math

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from ..data.digits import DIGIT_SIDE, IMAGE_SIZE
from .recipes import Recipe

__all__ = ["window", "window_side"]


def window_side(recipe: Recipe, epoch: int, model: VisionTransformer) -> int:
    """Side of the window in patches; it grows to the whole grid, slowly at first.

    The first window is one patch larger than the largest digit can touch: 7 of 14 patches.

    Args:
        recipe: gives ``window_epochs``.
        epoch: number of finished epochs.
        model: gives the patch grid.
    """
    whole: int = min(model.patch_embed.grid_size)
    least = min(whole, math.ceil(whole * DIGIT_SIDE[1] / IMAGE_SIZE) + 2)
    return least + int((whole - least) * (epoch / recipe.window_epochs) ** 2)


def window(boxes: Tensor, model: VisionTransformer, side: int) -> Tensor:
    """Choose a random window of patches around each box.

    Args:
        boxes: (B, 4), one per image, in pixels of ``photo-digits``, for any input size of the
            model.
        model: gives the patch grid.
        side: of the window, in patches.

    Returns:
        (B, side²) indices of the patches in raster order.
    """
    gh, gw = model.patch_embed.grid_size
    x0, y0, x1, y1 = (boxes * torch.tensor([gw, gh, gw, gh]) / IMAGE_SIZE).unbind(1)
    x0, y0, x1, y1 = x0.floor(), y0.floor(), x1.ceil() - 1, y1.ceil() - 1  # first and last patch
    left = _between((x1 - side + 1).clamp_min(0), x0.clamp_max(gw - side))
    top = _between((y1 - side + 1).clamp_min(0), y0.clamp_max(gh - side))
    offset = torch.arange(side)
    rows = top[:, None, None] + offset[:, None]
    index: Tensor = rows * gw + left[:, None, None] + offset
    return index.flatten(1)


def _between(low: Tensor, high: Tensor) -> Tensor:
    """Random integers in [low, high], elementwise."""
    chosen: Tensor = (low + torch.rand(len(low)) * (high - low + 1)).floor().minimum(high)
    return chosen.long()
