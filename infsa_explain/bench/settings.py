"""What is measured: one Vision Transformer, one size, one kind of work; and what arithmetic says.

The shell is timm's ``VisionTransformer`` with patches of 16×16, a class token, and the attention
layer of a mechanism. Its position embedding is that of 224×224, resampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timm.layers.attention import Attention
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from ..models.any_size import PiecewiseVisionTransformer
from .mechanisms import MECHANISMS, Linformer

__all__ = ["PATCH", "Setting", "available_memory", "build", "count", "least_bytes", "work"]

PATCH = 16
#: Larger numbers make no model that any machine could run.
LARGEST = {"size": 10**6, "depth": 10**4, "width": 10**6, "heads": 10**6, "batch_size": 10**12}


def _linear_flop(x: torch.Size, weight: torch.Size, *_: Any, **__: Any) -> int:
    """Of x (..., D) by weightᵀ (D, E), two a multiply-add."""
    return 2 * math.prod(x) * weight[0]


#: oneDNN's linear layer, which PyTorch's counter does not know.
ONEDNN: dict[Any, Any] = {torch.ops.mkldnn._linear_pointwise: _linear_flop}


@dataclass(frozen=True)
class Setting:
    """One cell of the benchmark.

    Attributes:
        mechanism: a name in :data:`~infsa_explain.bench.mechanisms.MECHANISMS`.
        size: side of the square images in pixels, a multiple of 16.
        depth, width, heads: of the Vision Transformer.
        batch_size: images a batch.
        train: a training step (AdamW) in place of inference.
        amp: bfloat16 autocast in place of float32.
        compiled: by ``torch.compile``.
        device: cpu, cuda, or one of several CUDA devices.

    Raises:
        ValueError: for an unknown mechanism, or numbers that make no model.
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
        for name in ("depth", "width", "heads", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name, largest in LARGEST.items():
            if getattr(self, name) > largest:
                raise ValueError(f"{name} must be at most {largest}, got {getattr(self, name):.6g}")
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got {self.width}, {self.heads}")

    @property
    def tokens(self) -> int:
        """N, the class token included."""
        return (self.size // PATCH) ** 2 + 1


def build(setting: Setting, layer: type[Attention] | None = None) -> nn.Module:
    """The untrained model, on the CPU, with another attention ``layer`` if one is given."""
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
    """Inference of a batch (B, 3, H, W), or of a loss and its gradients."""
    cast: Any = torch.autocast(images.device.type, torch.bfloat16, enabled=setting.amp)
    with cast, nullcontext() if setting.train else torch.inference_mode():
        logits = model(images)
    if setting.train:
        labels = torch.zeros(len(images), dtype=torch.long, device=images.device)
        torch.autograd.backward(nn.functional.cross_entropy(logits, labels))


def count(setting: Setting) -> tuple[int, int]:
    """Parameters, and floating-point operations of one image, two a multiply-add.

    `torch.utils.flop_counter` counts matrix products and convolutions from shapes alone, so that
    no memory is needed at any size. It does not see element by element work (norms, softmax,
    relu), nor products inside PyTorch's fused attention on CPUs or in the tiles of Pure InfSA, an
    operator of its own; of those two the textbook form is counted, which does the same products,
    without what a backward pass computes again.

    >>> small = {"depth": 1, "width": 64, "heads": 4}
    >>> count(Setting("softmax", 32, **small))[1] == count(Setting("pure", 32, **small))[1]
    True
    """
    with torch.device("meta"):
        parameters = sum(p.numel() for p in build(setting).parameters())
        model = build(setting, MECHANISMS[setting.mechanism].counted)
    with FakeTensorMode():  # tensors without memory, too, but on a device that autocast knows
        weights = {
            name: torch.empty(tensor.shape, requires_grad=tensor.requires_grad)
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        }
        images = torch.empty(1, 3, setting.size, setting.size)
        with FlopCounterMode(display=False, custom_mapping=ONEDNN) as counter:
            work(setting, partial(functional_call, model, weights), images)
    return parameters, counter.get_total_flops()


def least_bytes(setting: Setting) -> int:
    """Bytes that the N×N matrices of a batch need at least; 0 for mechanisms without any.

    In inference one float32 matrix a head of one layer, in training one of every layer, which the
    backward pass needs. 0 with ``compiled``: the compiler may fuse them away.
    """
    if setting.compiled or not MECHANISMS[setting.mechanism].matrices:
        return 0
    layers = setting.depth if setting.train else 1
    return 4 * layers * setting.batch_size * setting.heads * setting.tokens**2


def available_memory(device: str = "cpu") -> int | None:
    """Bytes that can be had on a device; None where nothing says so.

    On a CPU what Linux calls available, or what the control group leaves if that is less.
    """
    if device != "cpu":
        return torch.cuda.mem_get_info(torch.device(device))[0]
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(1024 * int(line.split()[1]))
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / f"memory.{name}").read_text() for name in ("max", "current"))
        found.append(int(limit) - int(used))
    except (OSError, ValueError):  # no Linux, no control group, or one without a limit
        pass
    return min(found, default=None)
