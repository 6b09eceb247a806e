"""Matrix products by oneDNN, on CPUs on which it is faster than MKL, which PyTorch uses.

It was twice as fast on an AMD processor with AVX512, and took 5 to 25% longer on one without.
PyTorch includes oneDNN's linear layer, but not its derivative.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

__all__ = ["linear", "product", "projection", "usable"]


def usable(x: Tensor) -> bool:
    """Whether to multiply ``x`` by oneDNN: float32, on a CPU on which it is faster.

    Not while ``torch.compile`` traces: it accepts the operator only for constant weights.
    """
    return (
        not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and _faster()
    )


@cache
def _faster() -> bool:
    """Whether PyTorch has oneDNN for this CPU, and the CPU has AVX512."""
    return hasattr(torch.ops.mkldnn, "_linear_pointwise") and (
        "AVX512" in torch.backends.cpu.get_cpu_capability()
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, then: str = "none") -> Tensor:
    """x weightᵀ + bias by oneDNN, or its relu with ``then="relu"``; not differentiable.

    ``weight`` must be a whole matrix or its transpose. oneDNN is very slow with other strides.

    Args:
        x: (..., D), see :func:`usable`.
        weight: (E, D).
        bias: (E,).
        then: ``"none"`` or ``"relu"``.

    Returns:
        (..., E).

    >>> linear(torch.tensor([[1.0, 2], [3, -4]]), torch.ones(1, 2), then="relu")
    tensor([[3.],
            [0.]])
    """
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, then, [], "")
    return product


def projection(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weightᵀ + bias: by oneDNN in inference, else by PyTorch's ``linear``.

    Args:
        x: (..., D).
        weight: (E, D), a whole matrix.
        bias: (E,).

    Returns:
        (..., E). PyTorch's ``linear`` is used if gradients are enabled, and under autocast.

    >>> projection(torch.tensor([[1.0, 2], [3, -4]]), torch.ones(1, 2))
    tensor([[ 3.],
            [-1.]])
    """
    if not (usable(x) and usable(weight)) or torch.is_autocast_enabled("cpu"):
        return nn.functional.linear(x, weight, bias)
    if torch.is_grad_enabled() or forward_ad._current_level >= 0:
        return nn.functional.linear(x, weight, bias)
    return linear(x, weight, bias)


def product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """a b, written to ``out``; not differentiable.

    Args:
        a: (N, D), a whole matrix or its transpose, as is ``b``.
        b: (D, E).
        out: (N, E), to write to.

    Returns:
        ``out``.

    >>> product(torch.ones(1, 2), torch.ones(2, 1), out=torch.empty(1, 1))
    tensor([[2.]])
    """
    if usable(a):
        return out.copy_(linear(a, b.mT))
    return torch.mm(a, b, out=out)
