"""Perron vectors of token graphs, each with a bound on its error, and the second eigenvalue.

The Perron vector of a non-negative matrix belongs to its largest eigenvalue, ρ, and is itself
non-negative: the left one is attention received, the right one attention emitted, in the limit of
long walks. A graph may have several, and a graph without cycles has none. How fast walks forget
their start is said by the ``gap`` to the second eigenvalue.

:mod:`infsa_explain.graph.perron_search` finds the vector by products with the graph, and
:mod:`infsa_explain.graph.perron_bounds` bounds its error. Graphs that products do not settle are
decomposed as matrices, up to 2,048 tokens (:mod:`infsa_explain.graph.dense_perron`).

Source: Perron 1907; Frobenius 1912.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .operator import AttentionOperator
from .perron_bounds import Enclosed
from .perron_search import Counted, attainable, reached, search
from .solvers import Step, choice, multiply

__all__ = ["Perron", "perron"]

CONSTANT_ON_SOFTMAX = (
    "is the same for every token of a softmax graph, whose rows all sum to 1; use the received "
    "(left) form"
)
#: Up to this many tokens a graph that products do not settle is decomposed as a matrix.
DENSE_TOKENS = 2048


@dataclass(frozen=True)
class Perron:
    """A Perron vector of every graph, and what is proven of it.

    ===================================  ============  ========  ======  =========  ========
    the graph has                        error_bound   value     unique  converged  resolved
    ===================================  ============  ========  ======  =========  ========
    one vector, found                    ≤ tol         ρ         True    True       True
    one vector, not found well enough    > tol or inf  about ρ   True    False      False
    several vectors; this is one         NaN           ρ         False   False      True
    one or several, not known            inf           about ρ   False   False      False
    none: no cycle; ``vector`` is NaN    NaN           0         False   False      True
    ===================================  ============  ========  ======  =========  ========

    Attributes:
        vector: (B, H, N) float64, unit 2-norm, non-negative.
        value: (B, H) the spectral radius ρ.
        error_bound: (B, H) proven upper bound on ‖vector − exact‖₂, both of unit 2-norm, for Â as
            float64 forms it from queries and keys; rounding included.
        entry_bound: (B, H) the same for the relative error of every entry, |exact_i / vector_i − 1|
            with the exact vector suitably scaled. Entries that are zero are exactly zero.
        residual: (B, H) ‖Âv − ρv‖₂ (or ‖Âᵀu − ρu‖₂) in float64, relative to ρ. It proves nothing:
            where a graph nearly falls apart, vectors far from the exact one have a small residual.
        iterations: products with the graph.
        converged: (B, H) bool, whether ``error_bound`` is within the tolerance.
        unique: (B, H) bool, whether it is proven that there is one Perron vector.
        resolved: (B, H) bool, whether it is known that there is one, and it has converged; or that
            there are several, or none. There are several where parts of the graph that cannot reach
            one another have the largest spectral radius. Radii count as equal where rounding hides
            the difference.
        second: (B, H) modulus of the second largest eigenvalue, counted with multiplicity: ρ where
            there are several vectors or the graph is periodic, 0 for a single token, NaN without
            cycles. Up to 64 tokens from all eigenvalues; beyond, an estimate (the second largest
            Ritz value of a Krylov space of 20 dimensions), commonly good to a percent of ρ.
    """

    vector: Tensor
    value: Tensor
    error_bound: Tensor
    entry_bound: Tensor
    residual: Tensor
    iterations: int
    converged: Tensor
    unique: Tensor
    resolved: Tensor
    second: Tensor

    @property
    def gap(self) -> Tensor:
        """1 − second / ρ, (B, H) from 0 to 1; NaN where there is no cycle."""
        return 1 - self.second / self.value

    def reason(self, batch: int, head: int) -> str:
        """Which case of the table a graph is, in words."""
        if self.converged[batch, head]:
            return "one Perron vector, found within the tolerance"
        if self.unique[batch, head]:
            return "not resolved: one Perron vector, its error bound above the tolerance"
        if not self.resolved[batch, head]:
            return "not resolved: nothing is proven of the Perron vector"
        if self.value[batch, head] == 0:
            return "no Perron vector: the graph has no cycle"
        return "several Perron vectors: parts of the graph have the same spectral radius"


def perron(
    op: AttentionOperator,
    side: Literal["left", "right"] = "left",
    tol: float = 1e-6,
    max_iterations: int = 1000,
) -> Perron:
    """The Perron vector: left, uᵀÂ = ρuᵀ (received), or right, Âv = ρv (emitted).

    The bound comes from products with the graph, at any N, where walks along the vector come to one
    token from all others within 24 steps. Up to 2,048 tokens other graphs are decomposed as
    matrices, one N×N matrix at a time. Softmax graphs are then found however weak their links are;
    of InfSA graphs those stay unresolved that links as weak as rounding hold together (1e-8 and
    less). Beyond 2,048 tokens long chains and cycles, and parts or tokens that attend to hardly
    anything but themselves, stay unresolved, too.

    Args:
        op: token graphs over (B, H).
        side: ``"left"`` or ``"right"``.
        tol: bound on the error, in the 2-norm, at which to stop.
        max_iterations: products at which to give up the search.

    Returns:
        :class:`Perron`.

    Raises:
        ValueError: for the right vector of a softmax graph, which is constant.

    >>> q = torch.tensor([[[[1.0, 1], [0, 1]]]])
    >>> result = perron(AttentionOperator(q, q))  # Â = (2, 1; 1, 1) / √7
    >>> result.vector
    tensor([[[0.8507, 0.5257]]], dtype=torch.float64)
    >>> result.reason(0, 0), result.error_bound.item() < 1e-13
    ('one Perron vector, found within the tolerance', True)
    >>> identity = torch.eye(2).view(1, 1, 2, 2)
    >>> perron(AttentionOperator(identity, identity)).reason(0, 0)
    'several Perron vectors: parts of the graph have the same spectral radius'
    """
    choice("side", side, ("left", "right"))
    if side == "right" and op.kind == "softmax":
        raise ValueError(f"the right Perron vector {CONSTANT_ON_SOFTMAX}")
    op64, left = op.double, side == "left"
    step = Counted(multiply(op64, left))
    acyclic = _acyclic(step.step, op64.column_sums() if left else op64.row_sums())
    # A matrix costs about as much as N/20 Krylov spaces of its graph, or one where that is small.
    spare = (20 * acyclic.numel() + 256) // op.num_tokens if op.num_tokens <= DENSE_TOKENS else 0
    found, second = search(
        op, step, acyclic, left=left, tol=tol, max_iterations=max_iterations, spare=spare
    )
    iterations = step.count
    unique, several = found.distance.isfinite(), torch.zeros_like(acyclic)
    missing = ~acyclic & (found.distance > attainable(tol, op.num_tokens))
    if op.num_tokens <= DENSE_TOKENS:
        for batch, head in missing.nonzero().tolist():
            _decompose(op64, left, (batch, head), found, unique, several)
    elif bool(missing.any()):
        unique |= _connected(op64, max_iterations)
    x = found.vector / found.vector.norm(dim=-1, keepdim=True)
    image = step(x)
    middle = (found.lower + found.upper) / 2
    value = torch.where(middle.isfinite(), middle, image.norm(dim=-1))
    undefined = acyclic | several
    converged = ~undefined & (found.distance <= tol)
    second = torch.where(several, value, torch.minimum(second, value))
    return Perron(
        torch.where(acyclic[..., None], torch.nan, x),
        torch.where(acyclic, 0.0, value),
        torch.where(undefined, torch.nan, found.distance),
        torch.where(undefined, torch.nan, found.entries),
        torch.where(acyclic, 0.0, (image - value[..., None] * x).norm(dim=-1) / value),
        iterations,
        converged,
        unique & ~undefined,
        converged | undefined,
        torch.where(acyclic, torch.nan, second),
    )


def _decompose(
    op: AttentionOperator,
    left: bool,
    at: tuple[int, int],
    found: Enclosed,
    unique: Tensor,
    several: Tensor,
) -> None:
    """Put what the matrix of one graph tells into the results of all."""
    from .dense_perron import perron_of_chain, perron_of_matrix  # SciPy's graphs load slowly

    matrix = op.matrix(*at).numpy(force=True)
    if op.kind == "softmax":
        dense = perron_of_chain(matrix)
    else:
        dense = perron_of_matrix(matrix.T if left else matrix)
    unique[at] |= dense.unique
    several[at] = dense.several
    closer = bool(dense.enclosed.distance <= found.distance[at])
    if closer and bool(dense.enclosed.vector.isfinite().all()):
        for whole, part in zip(found, dense.enclosed, strict=True):
            whole[at] = part


def _acyclic(step: Step, sums: Tensor) -> Tensor:
    """Which graphs have no cycle (ρ = 0), (B, H) bool.

    Tokens that nothing leads to are on no cycle; they are peeled off until none is left or each
    that is left has a predecessor.

    Args:
        step: product with the graph.
        sums: (B, H, N) that of the vector of ones.
    """
    left = (sums > 0).to(sums)
    alive = torch.ones_like(left)
    while not torch.equal(left, alive):
        alive = left
        left = alive * (step(alive) > 0)
    return (alive == 0).all(-1)


def _connected(op: AttentionOperator, limit: int) -> Tensor:
    """Which graphs are one strongly connected part, and so have one Perron vector, (B, H) bool.

    False where that takes more than ``limit`` products to see.
    """
    first = torch.zeros_like(op.ones())
    first[..., 0] = 1
    steps = op.apply, op.apply_transposed
    both = [reached(step, first, first, limit)[0] for step in steps]
    return torch.stack(both).all(0).all(-1)
