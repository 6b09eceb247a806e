"""From an RGB image to what a model expects, by the model's own ``pretrained_cfg``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from timm.data import create_transform, resolve_model_data_config
from torch import Tensor, nn

__all__ = ["data_config", "preprocess", "visible_region"]


def data_config(model: nn.Module) -> dict[str, Any]:
    """timm's data configuration of a model, with ``input_size`` as the model was built."""
    config: dict[str, Any] = resolve_model_data_config(model)
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if size is not None:
        config["input_size"] = (config["input_size"][0], *size)
    return config


def preprocess(model: nn.Module, images: Sequence[NDArray[np.uint8]] | NDArray[np.uint8]) -> Tensor:
    """Resize, crop and normalise as the model expects.

    Args:
        model: a timm model; its device is where the result lies.
        images: one (H, W, 3) uint8 RGB image or a sequence of them, of any sizes.

    Returns:
        (B, 3, h, w) float32, normalised.
    """
    transform = create_transform(**data_config(model), is_training=False)
    batch = [images] if isinstance(images, np.ndarray) and images.ndim == 3 else list(images)
    tensors = [transform(Image.fromarray(image)) for image in batch]
    return torch.stack(tensors).to(next(model.parameters()).device)


def visible_region(model: nn.Module, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The part of an image that the model sees after its crop, at the image's own resolution.

    Args:
        model: a timm model.
        image: (H, W, 3) uint8.

    Returns:
        (h, w, 3), a view: the centre crop that :func:`preprocess` resizes to the input size.
    """
    config = data_config(model)
    if config.get("crop_mode") == "squash":
        return image
    height, width = image.shape[:2]
    target_height, target_width = config["input_size"][1:]
    # timm resizes so that input_size / crop_pct is covered, then cuts the centre.
    scale = min(height / target_height, width / target_width) * config["crop_pct"]
    h, w = min(height, round(target_height * scale)), min(width, round(target_width * scale))
    top, left = (height - h) // 2, (width - w) // 2
    return image[top : top + h, left : left + w]
