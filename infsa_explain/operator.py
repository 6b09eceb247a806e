"""One layer's token graph as an operator: applied to vectors, formed only when asked.

``AttentionOperator(q, k)`` stands for the (N, N) matrix Â of every batch element and head. It
multiplies vectors by Â or Âᵀ in tiles of rows, so that memory stays bounded at any N; graphs that
fit into one tile are kept between products.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from .attention import EPS, affinity, frobenius_norm

__all__ = ["AttentionOperator"]

GraphKind = Literal["infsa", "softmax"]


class AttentionOperator:
    """The token graph of one attention layer, over batch and heads.

    Row i is "i attends to"; column j is "attention that j receives".

    Args:
        q: queries, (B, H, N, d).
        k: keys, (B, H, N, d).
        kind: ``"infsa"`` for Â = relu(q kᵀ / d) / (‖·‖_F + ε), ``"softmax"`` for the
            row-stochastic softmax(scale · q kᵀ). A linear model's graph is Â of its own q, k.
        scale: of the softmax; 1/√d when None.
        max_bytes: scratch memory of a tile, in bytes.

    Computes in float32, or in float64 for float64 input, on the device of ``q``.

    Raises:
        ValueError: for shapes that do not fit, an unknown kind, or values that are not finite;
            in use, where q kᵀ or its norm overflows.

    >>> op = AttentionOperator(torch.eye(2).view(1, 1, 2, 2), torch.eye(2).view(1, 1, 2, 2))
    >>> op.apply(torch.ones(1, 1, 2))
    tensor([[[0.7071, 0.7071]]])
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        kind: GraphKind = "infsa",
        *,
        scale: float | None = None,
        max_bytes: int = 256 * 2**20,
    ) -> None:
        if q.ndim != 4 or q.shape != k.shape:
            raise ValueError(
                "q and k must both be (batch, heads, tokens, width), "
                f"got {tuple(q.shape)} and {tuple(k.shape)}"
            )
        if kind not in ("infsa", "softmax"):
            raise ValueError(f"kind must be 'infsa' or 'softmax', got {kind!r}")
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        self.q, self.k = q.detach().to(dtype), k.detach().to(dtype)
        for name, value in (("q", self.q), ("k", self.k)):
            if not value.isfinite().all():
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
        columns = self._columns(x)
        with torch.autocast(columns.device.type, enabled=False):
            y = torch.cat([tile @ columns for _, tile in self._tiles()], dim=-2)
        return (y / self._norm).reshape(x.shape)

    def apply_transposed(self, x: Tensor) -> Tensor:
        """Âᵀ x for x (B, H, N) or (B, H, N, m), in x's shape."""
        columns = self._columns(x)
        y = torch.zeros_like(columns)
        for rows, tile in self._tiles():
            with torch.autocast(columns.device.type, enabled=False):
                y += tile.transpose(-2, -1) @ columns[:, :, rows]
        return (y / self._norm).reshape(x.shape)

    def dense(self) -> Tensor:
        """Â itself, (B, H, N, N)."""
        return torch.cat([tile for _, tile in self._tiles()], dim=-2) / self._norm

    def row_sums(self) -> Tensor:
        """Σ_j Â_ij, attention that each token emits, (B, H, N)."""
        return self.apply(self.ones())

    def column_sums(self) -> Tensor:
        """Σ_i Â_ij, attention that each token receives, (B, H, N)."""
        return self.apply_transposed(self.ones())

    def frobenius_norm(self) -> Tensor:
        """‖Â‖_F, (B, H) in float64: just below 1 for InfSA, 0 for a graph without edges."""
        norm = self._norm.double()[..., 0, 0]
        return self._raw_norm / norm

    def dead(self) -> Tensor:
        """Which graphs have no edge at all, (B, H) bool."""
        return self._raw_norm == 0

    def ones(self) -> Tensor:
        """The vector of ones, (B, H, N)."""
        return self.q.new_ones(self.shape)

    @cached_property
    def _raw_norm(self) -> Tensor:
        """Frobenius norm of the tiles as they come, (B, H) float64."""
        tiles = [frobenius_norm(tile) for _, tile in self._tiles()]
        norm: Tensor = torch.linalg.vector_norm(torch.stack(tiles), dim=0, dtype=torch.float64)
        if not norm.isfinite().all():
            raise ValueError(f"q kᵀ overflows {self.q.dtype}; scale q and k down")
        return norm

    @property
    def _norm(self) -> Tensor:
        """What the tiles are divided by, (B, H, 1, 1)."""
        norm = self._raw_norm + EPS if self.kind == "infsa" else torch.ones_like(self._raw_norm)
        return norm.to(self.q.dtype)[..., None, None]

    def _columns(self, x: Tensor) -> Tensor:
        if x.shape[:3] != self.shape or x.ndim not in (3, 4):
            raise ValueError(
                f"x must be {self.shape} or {(*self.shape, 'm')}, got {tuple(x.shape)}"
            )
        x = x.to(self.q.dtype)
        return x[..., None] if x.ndim == 3 else x

    def _tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows of the graph before division by its norm: (slice, (B, H, rows, N))."""
        batch, heads, tokens = self.shape
        step = max(1, self.max_bytes // (batch * heads * tokens * self.q.element_size()))
        if step >= tokens:
            yield slice(0, tokens), self._whole
            return
        for start in range(0, tokens, step):
            rows = slice(start, min(start + step, tokens))
            yield rows, self._rows(rows)

    @cached_property
    def _whole(self) -> Tensor:
        return self._rows(slice(None))

    def _rows(self, rows: slice) -> Tensor:
        q = self.q[:, :, rows]
        if self.kind == "infsa":
            return affinity(q, self.k)
        with torch.autocast(q.device.type, enabled=False):
            return (self.scale * q @ self.k.transpose(-2, -1)).softmax(-1)
