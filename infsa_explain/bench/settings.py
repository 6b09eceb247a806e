"""Settings of the benchmark: the model, its input size and its work, with operation counts.

The model is timm's ``VisionTransformer`` with 16×16 patches, a class token, and the attention layer
of a mechanism. Its position embedding is resampled from that of 224×224.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from timm.layers.attention import Attention
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from ..models.any_size import PiecewiseVisionTransformer
from ..ranges import count
from .mechanisms import MECHANISMS, Linformer

__all__ = [
    "PATCH",
    "Setting",
    "available_memory",
    "build",
    "count_operations",
    "least_bytes",
    "work",
]

PATCH = 16
#: Folder of the control group of Linux.
CGROUP = Path("/sys/fs/cgroup")
#: Upper limits; no machine could run a larger model.
LARGEST = {"size": 10**6, "depth": 10**4, "width": 10**6, "heads": 10**6, "batch_size": 10**12}


def _linear_flop(x: torch.Size, weight: torch.Size, *_: Any, **__: Any) -> int:
    """Operations of x (..., D) times weightᵀ (D, E); a multiply-add counts as two."""
    return 2 * math.prod(x) * weight[0]


#: oneDNN's linear layer, which PyTorch's counter does not support.
ONEDNN: dict[Any, Any] = {torch.ops.mkldnn._linear_pointwise: _linear_flop}


@dataclass(frozen=True)
class Setting:
    """One cell of the benchmark.

    Attributes:
        mechanism: a name in :data:`~infsa_explain.bench.mechanisms.MECHANISMS`.
        size: side of the square images in pixels, a multiple of 16.
        depth, width, heads: of the Vision Transformer.
        batch_size: images per batch.
        train: measure a training step (AdamW) instead of inference.
        amp: use bfloat16 autocast instead of float32.
        compiled: compile the model with ``torch.compile``.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.

    Raises:
        ValueError: if the mechanism is unknown, or a number is out of range.
    """

    mechanism: str
    size: int
    depth: int = 4
    width: int = 1024
    heads: int = 64
    batch_size: int = 1
    train: bool = False
    amp: bool = False
    compiled: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ValueError(
                f"mechanism must be one of {', '.join(MECHANISMS)}, got {self.mechanism!r}"
            )
        if self.size < PATCH or self.size % PATCH:
            raise ValueError(f"size must be a positive multiple of {PATCH}, got {self.size}")
        for name, largest in LARGEST.items():
            count(1, largest).require(name, getattr(self, name))
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got {self.width}, {self.heads}")

    @property
    def tokens(self) -> int:
        """Number of tokens N, with the class token."""
        return (self.size // PATCH) ** 2 + 1


def build(setting: Setting, layer: type[Attention] | None = None) -> nn.Module:
    """Build the untrained model on the CPU.

    Args:
        setting: mechanism, sizes and mode of the model.
        layer: replaces the attention layer of the mechanism.
    """
    layer = layer or MECHANISMS[setting.mechanism].layer
    if issubclass(layer, Linformer):
        layer = type("Linformer", (layer,), {"tokens": setting.tokens})
    model = PiecewiseVisionTransformer(
        patch_size=PATCH,
        embed_dim=setting.width,
        depth=setting.depth,
        num_heads=setting.heads,
        attn_layer=layer,
        dynamic_img_size=True,
    )
    return model.train(setting.train)


def work(setting: Setting, model: Callable[[Tensor], Tensor], images: Tensor) -> None:
    """Run the work of a setting on one batch.

    Args:
        setting: whether to train, and the precision.
        model: images to logits.
        images: (B, 3, H, W).
    """
    cast: Any = torch.autocast(images.device.type, torch.bfloat16, enabled=setting.amp)
    with cast, nullcontext() if setting.train else torch.inference_mode():
        logits = model(images)
    if setting.train:
        labels = torch.zeros(len(images), dtype=torch.long, device=images.device)
        torch.autograd.backward(nn.functional.cross_entropy(logits, labels))


def count_operations(setting: Setting) -> tuple[int, int]:
    """Count the parameters, and the floating-point operations for one image.

    A multiply-add counts as two operations. ``torch.utils.flop_counter`` counts matrix products and
    convolutions from their shapes, so no memory is needed at any size. It does not count
    elementwise work (norms, softmax, relu), nor products inside fused operators: PyTorch's fused
    attention on CPUs, and the tiles of Pure InfSA. For these two the textbook form is counted,
    which has the same products, except for what the fused backward pass recomputes.

    Returns:
        Parameters of the model, and operations for one image.

    >>> small = {"depth": 1, "width": 64, "heads": 4}
    >>> softmax, pure = (Setting(name, 32, **small) for name in ("softmax", "pure"))
    >>> count_operations(softmax)[1] == count_operations(pure)[1]
    True
    """
    with torch.device("meta"):
        parameters = sum(p.numel() for p in build(setting).parameters())
        model = build(setting, MECHANISMS[setting.mechanism].counted)
    with FakeTensorMode():  # no memory either, but unlike "meta" a device that autocast supports
        weights = {
            name: torch.empty(tensor.shape, requires_grad=tensor.requires_grad)
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        }
        images = torch.empty(1, 3, setting.size, setting.size)
        with FlopCounterMode(display=False, custom_mapping=ONEDNN) as counter:
            work(setting, partial(functional_call, model, weights), images)
    return parameters, counter.get_total_flops()


def least_bytes(setting: Setting) -> int:
    """Lower bound of the memory for the N×N matrices of a batch, in bytes.

    Inference needs one float32 matrix per head of one layer. Training needs those of all layers,
    for the backward pass. The bound is 0 for mechanisms without N×N matrices, and if ``compiled``,
    since the compiler may fuse the matrices away.
    """
    if setting.compiled or not MECHANISMS[setting.mechanism].matrices:
        return 0
    layers = setting.depth if setting.train else 1
    return 4 * layers * setting.batch_size * setting.heads * setting.tokens**2


def available_memory(device: str = "cpu") -> int:
    """Free memory of a device in bytes; on a CPU also limited by the control group of Linux."""
    if device != "cpu":
        return torch.cuda.mem_get_info(torch.device(device))[0]
    available: int = psutil.virtual_memory().available
    try:
        limit, used = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
    except (OSError, ValueError):  # no control group, or one without a limit ("max")
        return available
    return min(available, limit - used)
