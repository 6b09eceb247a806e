"""Figures of a model in training: accuracy, dead heads, γ, kinds of attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image
from timm.data import create_transform
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ..attention.layers import LinearInfSA, PureInfSA
from ..data import ImageData
from ..vits import attention_layers
from ..vits.capturing import capture, dead_heads
from ..vits.preprocessing import data_config

__all__ = ["Labelled", "attention_classes", "correct", "dead_head_share", "gamma_range"]


class Labelled(Dataset[tuple[Tensor, int, Tensor]]):
    """Samples as (transformed image, label, box) for a data loader; the box is zero without one."""

    def __init__(self, data: ImageData, transform: Callable[[Any], Tensor]) -> None:
        self.data, self.transform = data, transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> tuple[Tensor, int, Tensor]:
        sample = self.data[i]
        if sample.label is None:
            raise ValueError(f"{sample.image_id} has no label; training needs one for every image")
        box = torch.from_numpy(sample.boxes[0]) if len(sample.boxes) else torch.zeros(4)
        return self.transform(Image.fromarray(sample.image)), sample.label, box


def correct(model: nn.Module, data: ImageData) -> Tensor:
    """Whether each image is classified correctly.

    Args:
        model: a classifier; it is set to eval mode.
        data: labelled images.

    Returns:
        (n,) float, 0 or 1.
    """
    model.eval()
    device = next(model.parameters()).device
    transform = create_transform(**data_config(model), is_training=False)
    hits = []
    with torch.no_grad():
        for images, labels, _ in DataLoader(Labelled(data, transform), 64):
            hits.append(model(images.to(device)).argmax(-1).cpu() == labels)
    return torch.cat(hits).float()


def dead_head_share(model: nn.Module, data: ImageData, images: int = 32) -> float:
    """Share of (layer, image, head) with zero output.

    Args:
        model: a supported ViT; it is set to eval mode.
        data: the images.
        images: number of images, from the first.

    Returns:
        0 to 1.
    """
    model.eval()
    samples = Labelled(data, create_transform(**data_config(model), is_training=False))
    batch = torch.stack([samples[i][0] for i in range(min(images, len(samples)))])
    graphs = capture(model, batch.to(next(model.parameters()).device))
    return float(dead_heads(graphs).float().mean())


def gamma_range(model: nn.Module) -> tuple[float, float] | None:
    """The smallest and largest γ of a model's heads, or None if it has no γ."""
    layers = [m for m in model.modules() if isinstance(m, (PureInfSA, LinearInfSA))]
    if not layers:
        return None
    gamma = torch.cat([layer.gamma.detach() for layer in layers])
    return float(gamma.min()), float(gamma.max())


def attention_classes(model: nn.Module) -> str:
    """The attention classes of a model, with their counts if there are several."""
    layers = Counter(type(layer).__name__ for layer, _ in attention_layers(model).values())
    if len(layers) == 1:
        return next(iter(layers))
    return ", ".join(f"{number} × {name}" for name, number in layers.items())
