"""One layer's token graph as an operator: applied to vectors, formed only when asked.

``AttentionOperator(q, k)`` stands for the (N, N) matrix Â of every batch element and head. It
multiplies vectors by Â or Âᵀ tile by tile, so that memory stays bounded at any N; graphs that
fit into that bound are kept between products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from ..attention.functional import EPS

__all__ = ["AttentionOperator"]

GraphKind = Literal["infsa", "softmax"]
#: Which of the graphs, which of their rows, and these rows, (graphs, rows, N).
Tile = tuple[slice, slice, Tensor]

#: On a CPU a tile has at most this size per thread, so that it stays in the cache.
CACHE_BYTES = 2 * 2**20


class AttentionOperator:
    """The token graph of one attention layer, over batch and heads.

    Row i is "i attends to"; column j is "attention that j receives". Computes in float32, or in
    float64 for float64 input, on the device of ``q``. No gradient flows through it.

    Args:
        q: queries, (B, H, N, d).
        k: keys, (B, H, N, d).
        kind: ``"infsa"`` for Â = relu(q kᵀ / d) / (‖·‖_F + ε), ``"softmax"`` for the
            row-stochastic softmax(scale · q kᵀ). A linear model's graph is Â of its own q, k.
        scale: of the softmax; 1/√d when None.
        max_bytes: bound on the memory, in bytes, that holds entries of the graph, kept or in
            passing; one row of one graph is the least. :attr:`double` has its own bound of the
            same size, and the result of :meth:`dense` is not counted.

    Raises:
        ValueError: for shapes that do not fit, an unknown kind, or values that are not finite;
            in use, where q kᵀ or its norm overflows.

    >>> op = AttentionOperator(torch.eye(2).view(1, 1, 2, 2), torch.eye(2).view(1, 1, 2, 2))
    >>> op.apply(torch.ones(1, 1, 2))
    tensor([[[0.7071, 0.7071]]])
    """

    #: ε beside the Frobenius norm.
    eps = EPS

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        kind: GraphKind = "infsa",
        *,
        scale: float | None = None,
        max_bytes: int = 256 * 2**20,
    ) -> None:
        q, k = torch.as_tensor(q), torch.as_tensor(k)  # which may be arrays
        if q.ndim != 4 or q.shape != k.shape:
            raise ValueError(
                "q and k must both be (batch, heads, tokens, width), "
                f"got {tuple(q.shape)} and {tuple(k.shape)}"
            )
        if kind not in ("infsa", "softmax"):
            raise ValueError(f"kind must be 'infsa' or 'softmax', got {kind!r}")
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        self.q, self.k = (x.detach().to(dtype).contiguous() for x in (q, k))
        for name, value in (("q", self.q), ("k", self.k)):
            if not (value.amin().isfinite() and value.amax().isfinite()):  # of NaN both are
                raise ValueError(f"{name} holds NaN or infinite values")
        self.kind: GraphKind = kind
        self.scale = q.shape[-1] ** -0.5 if scale is None else scale
        self.max_bytes = max_bytes

    @property
    def num_tokens(self) -> int:
        """N, prefix tokens included."""
        return self.q.shape[2]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(B, H, N), the shape of one vector per graph."""
        batch, heads, tokens = self.q.shape[:3]
        return batch, heads, tokens

    @cached_property
    def double(self) -> AttentionOperator:
        """The same graph in float64, for residuals."""
        if self.q.dtype == torch.float64:
            return self
        return AttentionOperator(
            self.q.double(), self.k.double(), self.kind, scale=self.scale, max_bytes=self.max_bytes
        )

    def apply(self, x: Tensor) -> Tensor:
        """Â x for x (B, H, N) or (B, H, N, m), in x's shape."""
        return self._product(x, transposed=False)

    def apply_transposed(self, x: Tensor) -> Tensor:
        """Âᵀ x for x (B, H, N) or (B, H, N, m), in x's shape."""
        return self._product(x, transposed=True)

    def dense(self) -> Tensor:
        """Â itself, (B, H, N, N)."""
        norm = self._norm
        return self._raw().div_(norm).view(*self.shape, self.num_tokens)

    def matrix(self, batch: int, head: int) -> Tensor:
        """Â of one graph, (N, N), as :meth:`dense` has it, in the memory of one."""
        index = batch * self.q.shape[1] + head
        norm = self._norm[index]
        if self._kept is not None:
            return self._kept[2][index] / norm
        graph = self.q.new_empty(1, self.num_tokens, self.num_tokens)
        self._form(slice(index, index + 1), slice(0, self.num_tokens), graph)
        return graph[0].div_(norm)

    def row_sums(self) -> Tensor:
        """Σ_j Â_ij, attention that each token emits, (B, H, N)."""
        return self._per_token(self._sums[0])

    def column_sums(self) -> Tensor:
        """Σ_i Â_ij, attention that each token receives, (B, H, N)."""
        return self._per_token(self._sums[1])

    def frobenius_norm(self) -> Tensor:
        """‖Â‖_F, (B, H) in float64: just below 1 for InfSA, 0 for a graph without edges."""
        return (self._sums[2] / self._norm.double().flatten()).view(self.shape[:2])

    def dead(self) -> Tensor:
        """Which graphs have no edge at all, (B, H) bool; with softmax none."""
        if self.kind == "softmax":
            return self.q.new_zeros(self.shape[:2], dtype=torch.bool)
        return (self._sums[2] == 0).view(self.shape[:2])

    def ones(self) -> Tensor:
        """The vector of ones, (B, H, N)."""
        return self.q.new_ones(self.shape)

    # From here on batch and heads are one dimension, G = B·H, and raw graphs are those before
    # division by their norm.

    def _product(self, x: Tensor, *, transposed: bool) -> Tensor:
        x = torch.as_tensor(x)
        if x.shape[:3] != self.shape or x.ndim not in (3, 4):
            raise ValueError(
                f"x must be {self.shape} or {(*self.shape, 'm')}, got {tuple(x.shape)}"
            )
        norm = self._norm
        columns = x.detach().to(self.q.dtype)
        columns = columns[..., None] if x.ndim == 3 else columns
        # Vectors are rows here, (G, m, N): BLAS multiplies them several times faster.
        xs = columns.flatten(0, 1).transpose(1, 2).contiguous()
        ys = torch.zeros_like(xs)
        # In place, where autocast leaves the precision alone.
        for graphs, rows, tile in self._tiles() if self._kept is None else [self._kept]:
            if transposed:
                ys[graphs].baddbmm_(xs[graphs, :, rows], tile)
            else:
                ys[graphs, :, rows].baddbmm_(xs[graphs], tile.transpose(1, 2))
        return ys.div_(norm).transpose(1, 2).reshape(x.shape)

    def _per_token(self, sums: Tensor) -> Tensor:
        return (sums / self._norm[..., 0]).to(self.q.dtype).view(self.shape)

    @property
    def _norm(self) -> Tensor:
        """What the raw graphs are divided by, (G, 1, 1)."""
        norm = self._sums[2] + self.eps if self.kind == "infsa" else torch.ones_like(self._sums[2])
        return norm.to(self.q.dtype)[:, None, None]

    @cached_property
    def _sums(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row sums (G, N), column sums (G, N) and Frobenius norms (G,) of the raw graphs.

        From tile to tile in float64: one float32 sum over N² terms drifts by 1e-4 at N = 4,097.
        """
        vectors = self.q.flatten(0, 1)[..., 0]
        row_sums, row_norms = torch.empty_like(vectors), torch.empty_like(vectors)
        column_sums = torch.zeros_like(vectors, dtype=torch.float64)
        for graphs, rows, tile in self._tiles():
            row_sums[graphs, rows] = tile.sum(2)
            row_norms[graphs, rows] = torch.linalg.vector_norm(tile, dim=2)
            column_sums[graphs] += tile.sum(1)
        norm = torch.linalg.vector_norm(row_norms, dim=1, dtype=torch.float64)
        if not norm.isfinite().all():
            raise ValueError(f"q kᵀ overflows {self.q.dtype}; scale q and k down")
        return row_sums, column_sums, norm

    @cached_property
    def _kept(self) -> Tile | None:
        """The raw graphs as one tile, kept between products, where they are within the bound."""
        batch, heads, tokens = self.shape
        if batch * heads * tokens**2 * self.q.element_size() > self.max_bytes:
            return None
        return slice(None), slice(None), self._raw()

    def _raw(self) -> Tensor:
        """The raw graphs, (G, N, N)."""
        graph = self.q.new_empty(*self.shape, self.num_tokens).flatten(0, 1)
        for graphs, rows in self._blocks():
            self._form(graphs, rows, graph[graphs, rows])
        return graph

    def _tiles(self) -> Iterator[Tile]:
        """The raw graphs tile by tile, one after the other in the same memory."""
        scratch = self.q.new_empty(0)
        for graphs, rows in self._blocks():
            size = (graphs.stop - graphs.start, rows.stop - rows.start, self.num_tokens)
            if not scratch.numel():  # No later tile is larger than the first.
                scratch = scratch.new_empty(math.prod(size))
            tile = scratch[: math.prod(size)].view(size)
            self._form(graphs, rows, tile)
            yield graphs, rows, tile

    def _blocks(self) -> Iterator[tuple[slice, slice]]:
        """How the graphs are cut: into several whole ones, or one's rows in even shares."""
        batch, heads, tokens = self.shape
        limit = self.max_bytes
        if self.q.device.type == "cpu":
            limit = min(limit, CACHE_BYTES * torch.get_num_threads())
        row_bytes = tokens * self.q.element_size()
        graphs = max(1, limit // (tokens * row_bytes))
        shares = math.ceil(tokens / max(1, limit // row_bytes))
        rows = math.ceil(tokens / shares)
        for first in range(0, batch * heads, graphs):
            for row in range(0, tokens, rows):
                yield (
                    slice(first, min(first + graphs, batch * heads)),
                    slice(row, min(row + rows, tokens)),
                )

    def _form(self, graphs: slice, rows: slice, out: Tensor) -> None:
        """Write relu(q kᵀ / d) or softmax(scale · q kᵀ) into ``out``, (graphs, rows, N)."""
        q, k = self.q.flatten(0, 1)[graphs, rows], self.k.flatten(0, 1)[graphs]
        factor = 1 / q.shape[-1] if self.kind == "infsa" else self.scale
        torch.baddbmm(out, q, k.transpose(1, 2), beta=0, alpha=factor, out=out)
        if self.kind == "infsa":
            out.relu_()
        else:
            torch.softmax(out, -1, out=out)
