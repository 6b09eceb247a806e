"""The kinds of attention, softmax, pure and linear: how a head's output depends on the values.

Every kind has a token graph (:class:`infsa_explain.graph.operator.AttentionOperator`). The output
of a head is A v. A is the softmax matrix, γÂ in a pure layer, and γ times `a` in every row in a
linear layer.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ..attention.functional import INITIAL_GAMMA, linear_infsa, linear_weights, pure_infsa
from ..graph.operator import AttentionOperator, GraphKind
from .registry import Reading

__all__ = ["INFSA", "KINDS", "AttentionKind", "is_edgeless"]


class AttentionKind:
    """Softmax attention; the base class of the other kinds."""

    name: ClassVar[str] = "softmax"
    graph: ClassVar[GraphKind] = "softmax"

    def gain(self, gamma: Tensor) -> Tensor:
        """The scalar factor in A, (H,): 1 for softmax, γ for InfSA."""
        return torch.ones_like(gamma)

    def row(self, op: AttentionOperator) -> Tensor | None:
        """The row of A if all rows are equal, (B, H, N), without gain; else None."""
        return None

    def matrix(self, op: AttentionOperator) -> Tensor:
        """A without its gain, (B, H, N, N)."""
        row = self.row(op)
        return op.dense() if row is None else row[..., None, :].expand(*row.shape, -1)

    def apply(self, reading: Reading, v: Tensor) -> Tensor:
        """A v for values (B, H, N, d), differentiable."""
        return nn.functional.scaled_dot_product_attention(
            reading.q, reading.k, v, scale=reading.scale
        )

    def dead(self, op: AttentionOperator) -> Tensor:
        """Which heads output zero, (B, H) bool. A softmax head never does."""
        return op.dead()


class PureKind(AttentionKind):
    """Pure InfSA. A head is dead if its graph has no edge."""

    name = "pure"
    graph = "infsa"

    def gain(self, gamma: Tensor) -> Tensor:
        return gamma

    def apply(self, reading: Reading, v: Tensor) -> Tensor:
        return pure_infsa(reading.q, reading.k, v, _gamma(reading))

    def dead(self, op: AttentionOperator) -> Tensor:
        return is_edgeless(op)


class LinearKind(PureKind):
    """Linear-InfSA. A head is dead if no key has a positive product with the central query."""

    name = "linear"

    def row(self, op: AttentionOperator) -> Tensor:
        return linear_weights(op.q, op.k)

    def apply(self, reading: Reading, v: Tensor) -> Tensor:
        return linear_infsa(reading.q, reading.k, v, _gamma(reading)).clone()

    def dead(self, op: AttentionOperator) -> Tensor:
        return self.row(op).sum(-1) == 0


#: By name.
KINDS: dict[str, AttentionKind] = {
    kind.name: kind for kind in (LinearKind(), PureKind(), AttentionKind())
}
#: Names of the kinds whose graph is Â.
INFSA = tuple(name for name, kind in KINDS.items() if kind.graph == "infsa")


def is_edgeless(op: AttentionOperator) -> Tensor:
    """Which graphs have no edge, (B, H) bool, in most cases without forming N² entries.

    If the central query has a positive product with a key, so has at least one query.
    """
    if op.kind == "softmax":
        return op.dead()
    candidates = linear_weights(op.q, op.k).sum(-1) == 0
    return candidates & op.dead() if candidates.any() else candidates


def _gamma(reading: Reading) -> float | Tensor:
    return INITIAL_GAMMA if reading.gamma is None else reading.gamma
