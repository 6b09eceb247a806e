"""Pure InfSA tile by tile: products with the token graph, and its norm, without the N×N matrix.

With A = relu(q kᵀ), one pass over tiles that stay in the cache gives both A v and ‖A‖_F, so that
the division by the norm can come last. The backward pass forms the tiles again. For the gradients
g = ∂L/∂(A v) and h = ∂L/∂‖A‖_F,

    ∂L/∂v = Aᵀ g
    ∂L/∂A = g vᵀ + (h / ‖A‖_F) A where A > 0, else 0   = T
    ∂L/∂q = T k,  ∂L/∂k = Tᵀ q

and as A = q kᵀ where it counts, T is one product, [g, (h / ‖A‖_F) q] [v, k]ᵀ.

The tiles run everywhere, and are what kernels have to agree with before they are relied on: those
in Triton on CUDA (:mod:`infsa_explain.attention.cuda`), and in C on CPUs with AVX2
(:mod:`infsa_explain.attention.cpu`).
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from . import onednn

__all__ = ["affinity_product", "reliable"]

#: Rows and columns of a tile: in float32, 2.25 MiB of one graph.
ROWS, COLUMNS = 256, 2304
#: Graphs of which several fit into these bytes share a tile: per thread on a CPU, whose cache they
#: stay in, and in all on other devices.
CPU_BYTES, DEVICE_BYTES = 2**20, 64 * 2**20
#: Which graphs, which of their rows and which of their columns.
Tile = tuple[slice, slice, slice]


def affinity_product(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """A v and ‖A‖_F of A = relu(q kᵀ), in memory linear in N, forward and backward.

    Args:
        q: queries, (G, N, d), float32 or float64; G graphs.
        k: keys, (G, M, d).
        v: values, (G, M, e).

    Returns:
        A v, (G, N, e), and ‖A‖_F, (G,), right to its last digits at any N.

    Raises:
        NotImplementedError: where a second derivative is asked for.

    >>> q, k, v = torch.eye(2)[None], torch.tensor([[[3.0, -1], [4, -1]]]), torch.ones(1, 2, 1)
    >>> affinity_product(q, k, v)
    (tensor([[[7.],
             [0.]]]), tensor([5.]))
    """
    product, norm = _affinity_product(q.contiguous(), k.contiguous(), v.contiguous())
    return product, norm


@torch.library.custom_op("infsa_explain::affinity_product", mutates_args=())
def _affinity_product(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The two results; an operator, so that ``torch.compile`` leaves the loop over tiles alone."""
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
    """Silence would be a wrong second derivative."""
    raise NotImplementedError("Pure InfSA can be differentiated once, not twice")


_affinity_product.register_autograd(_backward, setup_context=_save)
_gradients.register_autograd(_refuse)


def _passes(q: Tensor, v: Tensor) -> ModuleType:
    """Whose ``forward`` and ``backward`` to run: kernels' where they can, or ours."""
    if q.dtype == torch.float32:
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        if (q.is_cuda or interpreted) and find_spec("triton"):
            from . import cuda as cuda_kernels

            if cuda_kernels.usable(q.device, q.shape[2], v.shape[2]):
                return cuda_kernels
        if q.device.type == "cpu":
            from . import cpu as cpu_kernels

            if cpu_kernels.usable(q.shape[2], v.shape[2]):
                return cpu_kernels
    return sys.modules[__name__]


def reliable(
    passes: ModuleType, language: str, device: torch.device, key_width: int, value_width: int
) -> bool:
    """Whether kernels run on a device and agree with the tiles to 1e-5; warns if they do not."""
    generator = torch.Generator("cpu").manual_seed(0)
    q, k, v, g = (
        torch.randn(2, 80, width, generator=generator, dtype=torch.float32, device="cpu").to(device)
        for width in (key_width, key_width, value_width, value_width)
    )
    h = torch.ones(2, dtype=torch.float32, device=device)
    try:
        product, norm = passes.forward(q, k, v)
        found = (product, norm, *passes.backward(q, k, v, norm, g, h))
    except Exception as error:  # a compiler that fails, a GPU that Triton does not know, …
        reason = f"{type(error).__name__}: {error}"
    else:
        truth = forward(q, k, v)
        expected = (*truth, *backward(q, k, v, truth[1], g, h))
        errors = [((a - b).norm() / b.norm()).item() for a, b in zip(found, expected, strict=True)]
        if max(errors) <= 1e-5:  # NaN is not
            return True
        reason = f"their relative error is {max(errors):.0e}"
    warnings.warn(
        f"the {language} kernels of Pure InfSA are not used on {device}: {reason}", stacklevel=2
    )
    return False


def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """A v and ‖A‖_F; squares are summed by rows of tiles, and these in float64."""
    product = q.new_zeros(*q.shape[:2], v.shape[2])
    squares = q.new_zeros(len(q), dtype=torch.float64)
    scratch = q.new_empty(_largest(q, k))
    for graphs, rows, columns in _tiles(q, k):
        tile = _product(scratch, q[graphs, rows], k[graphs, columns], relu=True)
        _add_product(product[graphs, rows], tile, v[graphs, columns])
        norms = torch.linalg.vector_norm(tile, dim=2)
        squares[graphs] += torch.linalg.vector_norm(norms, dim=1, dtype=torch.float64).square()
    return product, squares.sqrt().to(q.dtype)


def backward(
    q: Tensor, k: Tensor, v: Tensor, norm: Tensor, g: Tensor, h: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    share = torch.where(norm > 0, h / norm, 0)  # an empty graph passes nothing on
    gq = torch.cat([g, share[:, None, None] * q], dim=-1)
    vk = torch.cat([v, k], dim=-1)
    scratch = q.new_empty(2, _largest(q, k))
    for graphs, rows, columns in _tiles(q, k):
        tile = _product(scratch[0], q[graphs, rows], k[graphs, columns], relu=True)
        towards = _product(scratch[1], gq[graphs, rows], vk[graphs, columns])
        torch.ops.aten.threshold_backward.grad_input(towards, tile, 0, grad_input=towards)
        _add_product(dv[graphs, columns], tile, g[graphs, rows], transposed=True)
        _add_product(dk[graphs, columns], towards, q[graphs, rows], transposed=True)
        _add_product(dq[graphs, rows], towards, k[graphs, columns])
    return dq, dk, dv


def _product(scratch: Tensor, a: Tensor, b: Tensor, relu: bool = False) -> Tensor:
    """a bᵀ or its relu, in ``scratch`` if it is not oneDNN's."""
    if _onednn(a):
        return onednn.linear(a[0], b[0], then="relu" if relu else "none")[None]
    shape = (len(a), a.shape[1], b.shape[1])
    tile = torch.bmm(a, b.transpose(1, 2), out=scratch[: math.prod(shape)].view(shape))
    return tile.relu_() if relu else tile


def _add_product(out: Tensor, tile: Tensor, b: Tensor, transposed: bool = False) -> None:
    """Add tile · b, or tileᵀ · b, to ``out``."""
    if not _onednn(tile):
        out.baddbmm_(tile.transpose(1, 2) if transposed else tile, b)
    elif transposed:
        out[0] += onednn.linear(b[0].t(), tile[0].t()).t()
    else:
        out[0] += onednn.linear(tile[0], b[0].t())


def _onednn(x: Tensor) -> bool:
    """Whether oneDNN multiplies: one graph alone.

    There it is up to twice as fast as ``bmm``, and it takes the relu along; MKL's batches are
    faster where graphs are small.
    """
    return len(x) == 1 and onednn.usable(x)


def _tiles(q: Tensor, k: Tensor) -> Iterator[Tile]:
    """The graphs in tiles: blocks of rows and columns in even shares, of several graphs at once."""
    rows, columns = _shares(q.shape[1], ROWS), _shares(k.shape[1], COLUMNS)
    for graphs in _shares(len(q), _graphs(q, k)):
        for some_rows in rows:
            for some_columns in columns:
                yield graphs, some_rows, some_columns


def _graphs(q: Tensor, k: Tensor) -> int:
    """How many graphs share a tile."""
    size = min(q.shape[1], ROWS) * min(k.shape[1], COLUMNS) * q.element_size()
    if q.device.type != "cpu":
        return max(1, DEVICE_BYTES // size)
    graphs = CPU_BYTES // size
    return graphs * torch.get_num_threads() if graphs > 1 else 1


def _largest(q: Tensor, k: Tensor) -> int:
    """Numbers in the largest tile."""
    return min(len(q), _graphs(q, k)) * min(q.shape[1], ROWS) * min(k.shape[1], COLUMNS)


def _shares(count: int, size: int) -> list[slice]:
    """0 … count in the fewest parts of at most ``size``, as even as can be."""
    even = math.ceil(count / math.ceil(count / size))
    return [slice(first, min(first + even, count)) for first in range(0, count, even)]
