# mypy: disable-error-code="import-untyped, import-not-found, no-untyped-def, untyped-decorator"
"""Pure InfSA on CUDA: the two passes of :mod:`infsa_explain.attention.tiles` as Triton kernels.

One program takes a block of rows (or columns) of one graph and loops over the blocks across it;
nothing of size N×N leaves the chip. Products are in float32 (``input_precision="ieee"``); squares
are summed over blocks in float64. The kernels are tested in Triton's interpreter, not on a GPU, so
:func:`infsa_explain.attention.pure.usable` compares them with the tiles before their first use.

Triton comes with PyTorch's CUDA builds for Linux. Import this module only if it is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["backward", "forward", "supports"]

LANGUAGE = "Triton"
#: Wider heads use the tiles: their blocks do not fit every chip.
MAX_WIDTH = 64


def supports(key_width: int, value_width: int) -> bool:
    """Whether heads are no wider than :data:`MAX_WIDTH`."""
    return max(key_width, value_width) <= MAX_WIDTH


def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """A v (G, N, e) and ‖A‖_F (G,) of A = relu(q kᵀ); q (G, N, d), k (G, M, d), v (G, M, e)."""
    product = q.new_empty(*q.shape[:2], v.shape[2])
    squares = q.new_empty(q.shape[:2], dtype=torch.float64)
    sizes = _sizes(q, k, v)
    _forward[_programs(q, *sizes)](q, k, v, product, squares, *sizes)
    return product, squares.sum(1).sqrt().to(q.dtype)


def backward(
    q: Tensor, k: Tensor, v: Tensor, norm: Tensor, g: Tensor, h: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; see :mod:`infsa_explain.attention.tiles` for the equations."""
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    share = torch.where(norm > 0, h / norm, 0)
    sizes = _sizes(q, k, v)
    _backward_rows[_programs(q, *sizes)](q, k, v, g, share, dq, *sizes)
    _backward_columns[_programs(k, *sizes)](q, k, v, g, share, dk, dv, *sizes)
    return dq, dk, dv


def _sizes(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    """N, M, d, e, the powers of two that d and e are padded to, and rows or columns of a block."""
    widths = q.shape[2], v.shape[2]
    padded = [max(16, triton.next_power_of_2(width)) for width in widths]  # 16: of `tl.dot`
    return q.shape[1], k.shape[1], *widths, *padded, 64 if max(padded) <= 32 else 32


def _programs(x: Tensor, *sizes: int) -> tuple[int, int]:
    """One program for each graph and each block of its tokens."""
    return len(x), triton.cdiv(x.shape[1], sizes[-1])


# Triton reads these functions' source, and takes no types but `constexpr`.


@triton.jit
def _load(pointer, graph, tokens, n, w, W: tl.constexpr):
    """Some tokens' vectors of one graph of (G, n, w), zeros beyond n and w."""
    columns = tl.arange(0, W)
    at = pointer + (graph * n + tokens[:, None]) * w + columns[None, :]
    return tl.load(at, mask=(tokens[:, None] < n) & (columns[None, :] < w), other=0.0)


@triton.jit
def _store(pointer, graph, tokens, n, w, W: tl.constexpr, x):
    """The reverse of `_load`."""
    columns = tl.arange(0, W)
    at = pointer + (graph * n + tokens[:, None]) * w + columns[None, :]
    tl.store(at, x, mask=(tokens[:, None] < n) & (columns[None, :] < w))


@triton.jit
def _dot(a, b):
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _forward(
    q_ptr,
    k_ptr,
    v_ptr,
    product_ptr,
    squares_ptr,
    N,
    M,
    d,
    e,
    D: tl.constexpr,
    E: tl.constexpr,
    B: tl.constexpr,
):
    graph = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * B + tl.arange(0, B)
    q = _load(q_ptr, graph, rows, N, d, D)
    product = tl.zeros((B, E), dtype=tl.float32)
    squares = tl.zeros((B,), dtype=tl.float64)
    for first in range(0, M, B):
        columns = first + tl.arange(0, B)
        k = _load(k_ptr, graph, columns, M, d, D)
        a = tl.maximum(_dot(q, tl.trans(k)), 0.0)
        squares += tl.sum(a * a, axis=1).to(tl.float64)
        product += _dot(a, _load(v_ptr, graph, columns, M, e, E))
    _store(product_ptr, graph, rows, N, e, E, product)
    tl.store(squares_ptr + graph * N + rows, squares, mask=rows < N)


@triton.jit
def _backward_rows(
    q_ptr,
    k_ptr,
    v_ptr,
    g_ptr,
    share_ptr,
    dq_ptr,
    N,
    M,
    d,
    e,
    D: tl.constexpr,
    E: tl.constexpr,
    B: tl.constexpr,
):
    graph = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * B + tl.arange(0, B)
    q = _load(q_ptr, graph, rows, N, d, D)
    g = _load(g_ptr, graph, rows, N, e, E)
    share = tl.load(share_ptr + graph)
    dq = tl.zeros((B, D), dtype=tl.float32)
    for first in range(0, M, B):
        columns = first + tl.arange(0, B)
        k = _load(k_ptr, graph, columns, M, d, D)
        v = _load(v_ptr, graph, columns, M, e, E)
        a = _dot(q, tl.trans(k))
        towards = tl.where(a > 0, _dot(g, tl.trans(v)) + share * a, 0.0)
        dq += _dot(towards, k)
    _store(dq_ptr, graph, rows, N, d, D, dq)


@triton.jit
def _backward_columns(
    q_ptr,
    k_ptr,
    v_ptr,
    g_ptr,
    share_ptr,
    dk_ptr,
    dv_ptr,
    N,
    M,
    d,
    e,
    D: tl.constexpr,
    E: tl.constexpr,
    B: tl.constexpr,
):
    graph = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * B + tl.arange(0, B)
    k = _load(k_ptr, graph, columns, M, d, D)
    v = _load(v_ptr, graph, columns, M, e, E)
    share = tl.load(share_ptr + graph)
    dk = tl.zeros((B, D), dtype=tl.float32)
    dv = tl.zeros((B, E), dtype=tl.float32)
    for first in range(0, N, B):
        rows = first + tl.arange(0, B)
        q = _load(q_ptr, graph, rows, N, d, D)
        g = _load(g_ptr, graph, rows, N, e, E)
        a = tl.maximum(_dot(k, tl.trans(q)), 0.0)  # Aᵀ
        towards = tl.where(a > 0, _dot(v, tl.trans(g)) + share * a, 0.0)
        dv += _dot(a, g)
        dk += _dot(towards, q)
    _store(dk_ptr, graph, columns, M, d, D, dk)
    _store(dv_ptr, graph, columns, M, e, E, dv)
