"""Pure InfSA tile by tile, in PyTorch: the two passes that run on every device.

With A = relu(q kᵀ), one pass over tiles that fit the cache gives both A v and ‖A‖_F; the division
by the norm comes last. The backward pass forms the tiles again. For the gradients
g = ∂L/∂(A v) and h = ∂L/∂‖A‖_F,

    ∂L/∂v = Aᵀ g
    ∂L/∂A = g vᵀ + (h / ‖A‖_F) A where A > 0, else 0   = T
    ∂L/∂q = T k,  ∂L/∂k = Tᵀ q

and as A = q kᵀ where A > 0, T is one product there, [g, (h / ‖A‖_F) q] [v, k]ᵀ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from . import onednn

__all__ = ["backward", "forward"]

#: Rows and columns of a tile, at most: 2.25 MiB of one graph in float32.
ROWS, COLUMNS = 256, 2304
#: Small graphs share a tile up to this many bytes: per thread on a CPU (they fit its cache), and
#: in all on other devices.
CPU_BYTES, DEVICE_BYTES = 2**20, 64 * 2**20
#: The graphs, their rows and their columns that a tile covers.
Tile = tuple[slice, slice, slice]


def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """A v (G, N, e) and ‖A‖_F (G,) of A = relu(q kᵀ); q (G, N, d), k (G, M, d), v (G, M, e).

    Squares are summed within the rows of a tile, and these sums in float64.
    """
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
    share = torch.where(norm > 0, h / norm, 0)  # an empty graph has no gradient
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
    """a bᵀ or its relu; in ``scratch``, unless oneDNN multiplies."""
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
    """Whether oneDNN multiplies: if a tile holds one graph.

    oneDNN is then up to twice as fast as ``bmm``, and includes the relu. Batches of small graphs
    are faster by MKL.
    """
    return len(x) == 1 and onednn.usable(x)


def _tiles(q: Tensor, k: Tensor) -> Iterator[Tile]:
    """Cut the graphs into tiles; rows and columns are cut evenly, small graphs share a tile."""
    rows, columns = _shares(q.shape[1], ROWS), _shares(k.shape[1], COLUMNS)
    return itertools.product(_shares(len(q), _graphs(q, k)), rows, columns)


def _graphs(q: Tensor, k: Tensor) -> int:
    """The number of graphs that share a tile."""
    size = min(q.shape[1], ROWS) * min(k.shape[1], COLUMNS) * q.element_size()
    if q.device.type != "cpu":
        return max(1, DEVICE_BYTES // size)
    graphs = CPU_BYTES // size
    return graphs * torch.get_num_threads() if graphs > 1 else 1


def _largest(q: Tensor, k: Tensor) -> int:
    """Numbers in the largest tile."""
    return min(len(q), _graphs(q, k)) * min(q.shape[1], ROWS) * min(k.shape[1], COLUMNS)


def _shares(count: int, size: int) -> list[slice]:
    """Cut 0 … count into the fewest parts of at most ``size``, as even as possible."""
    even = math.ceil(count / math.ceil(count / size))
    return [slice(first, min(first + even, count)) for first in range(0, count, even)]
