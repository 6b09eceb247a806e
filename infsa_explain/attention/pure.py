"""Pure InfSA without the N×N matrix: A v and ‖A‖_F of A = relu(q kᵀ), and their gradients.

This module is the operation, and decides who runs its two passes. The tiles in PyTorch
(:mod:`infsa_explain.attention.tiles`, which has the equations) run everywhere. Kernels in Triton
(:mod:`infsa_explain.attention.cuda`) or in C (:mod:`infsa_explain.attention.cpu`) run instead
where they support the device and the widths, and agree with the tiles.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from . import cpu, tiles

__all__ = ["affinity_product", "usable"]


def affinity_product(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """A v and ‖A‖_F of A = relu(q kᵀ), in memory linear in N, forward and backward.

    Args:
        q: queries, (G, N, d), float32 or float64; G graphs.
        k: keys, (G, M, d).
        v: values, (G, M, e).

    Returns:
        A v, (G, N, e), and ‖A‖_F, (G,), accurate to its last digits at any N.

    Raises:
        NotImplementedError: if a second derivative is asked for.

    >>> q, k, v = torch.eye(2)[None], torch.tensor([[[3.0, -1], [4, -1]]]), torch.ones(1, 2, 1)
    >>> affinity_product(q, k, v)
    (tensor([[[7.],
             [0.]]]), tensor([5.]))
    """
    product, norm = _affinity_product(q.contiguous(), k.contiguous(), v.contiguous())
    return product, norm


@torch.library.custom_op("infsa_explain::affinity_product", mutates_args=())
def _affinity_product(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """A v and ‖A‖_F; an operator, so that ``torch.compile`` does not unroll the loop over tiles."""
    product, norm = _passes(q, v).forward(q, k, v)
    return product, norm


@torch.library.custom_op("infsa_explain::affinity_product_gradients", mutates_args=())
def _gradients(
    q: Tensor, k: Tensor, v: Tensor, norm: Tensor, g: Tensor, h: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    dq, dk, dv = _passes(q, v).backward(q, k, v, norm, g, h)
    return dq, dk, dv


@_affinity_product.register_fake
def _(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:2], v.shape[2]), q.new_empty(len(q))


@_gradients.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = _gradients(*ctx.saved_tensors, g.contiguous(), h)
    return dq, dk, dv


def _refuse(ctx: Any, *gradients: Tensor) -> None:
    """Refuse a second derivative, which would be wrong without an error."""
    raise NotImplementedError("Pure InfSA can be differentiated once, not twice")


_affinity_product.register_autograd(_backward, setup_context=_save)
_gradients.register_autograd(_refuse)


def _passes(q: Tensor, v: Tensor) -> ModuleType:
    """The module whose ``forward`` and ``backward`` run: the first usable kernels, or the tiles."""
    if q.dtype == torch.float32:
        widths = q.shape[2], v.shape[2]
        for kernels in _kernels(q.device):
            if usable(kernels, q.device, *widths):
                return kernels
    return tiles


def _kernels(device: torch.device) -> Iterator[ModuleType]:
    """Kernels written for a device. Triton also interprets its kernels on a CPU, for tests."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if (device.type == "cuda" or interpreted) and find_spec("triton"):
        from . import cuda

        yield cuda
    if device.type == "cpu":
        yield cpu


@functools.cache
def usable(kernels: ModuleType, device: torch.device, key_width: int, value_width: int) -> bool:
    """Whether kernels support the widths, run on the device, and agree with the tiles to 1e-5.

    Warns if they support the widths and then fail, or disagree.
    """
    if not kernels.supports(key_width, value_width):
        return False
    generator = torch.Generator("cpu").manual_seed(0)
    q, k, v, g = (
        torch.randn(2, 80, width, generator=generator, dtype=torch.float32, device="cpu").to(device)
        for width in (key_width, key_width, value_width, value_width)
    )
    h = torch.ones(2, dtype=torch.float32, device=device)
    try:
        product, norm = kernels.forward(q, k, v)
        results = (product, norm, *kernels.backward(q, k, v, norm, g, h))
    except Exception as error:  # a compiler that fails, a GPU that Triton does not know, …
        reason = f"{type(error).__name__}: {error}"
    else:
        truth = tiles.forward(q, k, v)
        expected = (*truth, *tiles.backward(q, k, v, truth[1], g, h))
        pairs = zip(results, expected, strict=True)
        largest = max(((a - b).norm() / b.norm()).item() for a, b in pairs)
        if largest <= 1e-5:  # NaN is not
            return True
        reason = f"their relative error is {largest:.0e}"
    warnings.warn(
        f"the {kernels.LANGUAGE} kernels of Pure InfSA are not used on {device}: {reason}",
        stacklevel=2,
    )
    return False
