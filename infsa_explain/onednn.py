"""Products of matrices by oneDNN, on some CPUs twice as fast as PyTorch's usual ones, by MKL.

So it was on an AMD processor with AVX512. oneDNN's linear layer is part of PyTorch, without a
derivative.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

__all__ = ["linear", "projection", "usable"]


def usable(x: Tensor) -> bool:
    """Whether oneDNN can multiply ``x``: float32 on a CPU that PyTorch has it for.

    Not while ``torch.compile`` traces, which takes the operator for constant weights alone.
    """
    return (
        not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, then: str = "none") -> Tensor:
    """x weightᵀ + bias by oneDNN, with ``then="relu"`` its relu; without a derivative.

    A weight must be a whole matrix or its transpose: oneDNN takes any other at a crawl.

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
    """x weightᵀ + bias: PyTorch's ``linear``, by oneDNN in inference.

    Args:
        x: (..., D).
        weight: (E, D), a whole matrix.
        bias: (E,).

    Returns:
        (..., E). Where a derivative may be asked for, and under autocast, it is PyTorch's own.

    >>> projection(torch.tensor([[1.0, 2], [3, -4]]), torch.ones(1, 2))
    tensor([[ 3.],
            [-1.]])
    """
    if not (usable(x) and usable(weight)) or torch.is_autocast_enabled("cpu"):
        return nn.functional.linear(x, weight, bias)
    if torch.is_grad_enabled() or forward_ad._current_level >= 0:
        return nn.functional.linear(x, weight, bias)
    return linear(x, weight, bias)
