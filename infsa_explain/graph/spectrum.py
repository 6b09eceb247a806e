"""Perron vectors of token graphs, each with a bound on its error, and the second eigenvalue.

The Perron vector of a non-negative matrix is the eigenvector of its largest eigenvalue, ρ, and is
itself non-negative. The left one is attention received, the right one attention emitted, in the
limit of long walks. A graph may have several, and a graph without cycles has none. The ``gap`` to
the second eigenvalue tells how fast walks forget where they started.

:mod:`infsa_explain.graph.perron_search` finds the vector by products with the graph, and
:mod:`infsa_explain.graph.perron_bounds` bounds its error. If products do not settle a graph, and it
has at most 2,048 tokens, its matrix is decomposed (:mod:`infsa_explain.graph.dense_perron`).

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
#: Largest number of tokens at which the matrix of a graph is decomposed.
DENSE_TOKENS = 2048


@dataclass(frozen=True)
class Perron:
    """A Perron vector of every graph, and what is proven about it.

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
        """The case of the table that a graph belongs to, in words."""
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

    Products with the graph give the bound at any N, if walks along the vector reach one token from
    all others within 24 steps. Other graphs are decomposed, one N×N matrix at a time, up to 2,048
    tokens. Softmax graphs are then resolved however weak their links are. InfSA graphs stay
    unresolved if the links between their parts are as weak as rounding (1e-8 and less). Beyond
    2,048 tokens, these also stay unresolved: long chains and cycles, and parts or tokens that
    attend almost only to themselves.

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
    left = side == "left"
    product = Counted(multiply(op.double, left))
    sums = op.double.column_sums() if left else op.double.row_sums()
    acyclic = _acyclic(product.step, sums)
    # A matrix costs about as much as N/20 Krylov spaces of its graph, or one where that is small.
    spare = (20 * acyclic.numel() + 256) // op.num_tokens if op.num_tokens <= DENSE_TOKENS else 0
    best, second = search(
        op, product, acyclic, left=left, tol=tol, max_iterations=max_iterations, spare=spare
    )
    iterations = product.count
    unsettled = ~acyclic & (best.distance > attainable(tol, op.num_tokens))
    if op.num_tokens <= DENSE_TOKENS:
        unique, several = _decompose(op.double, left, unsettled, best)
    else:
        unique, several = best.distance.isfinite(), torch.zeros_like(acyclic)
        if bool(unsettled.any()):
            unique |= _connected(op.double, max_iterations)
    return _result(product, best, acyclic, unique, several, second, iterations, tol)


def _result(
    product: Counted,
    best: Enclosed,
    acyclic: Tensor,
    unique: Tensor,
    several: Tensor,
    second: Tensor,
    iterations: int,
    tol: float,
) -> Perron:
    """The vectors at unit length, and the columns of the table in :class:`Perron`."""
    vector = best.vector / best.vector.norm(dim=-1, keepdim=True)
    image = product(vector)
    middle = (best.lower + best.upper) / 2
    value = torch.where(middle.isfinite(), middle, image.norm(dim=-1))
    residual = (image - value[..., None] * vector).norm(dim=-1) / value
    second = torch.where(several, value, torch.minimum(second, value))
    undefined = acyclic | several
    converged = ~undefined & (best.distance <= tol)
    return Perron(
        vector=torch.where(acyclic[..., None], torch.nan, vector),
        value=torch.where(acyclic, 0.0, value),
        error_bound=torch.where(undefined, torch.nan, best.distance),
        entry_bound=torch.where(undefined, torch.nan, best.entries),
        residual=torch.where(acyclic, 0.0, residual),
        iterations=iterations,
        converged=converged,
        unique=unique & ~undefined,
        resolved=converged | undefined,
        second=torch.where(acyclic, torch.nan, second),
    )


def _decompose(
    op: AttentionOperator, left: bool, unsettled: Tensor, best: Enclosed
) -> tuple[Tensor, Tensor]:
    """Decompose the matrices of unsettled graphs, and write closer vectors into ``best``.

    Returns:
        Which graphs are proven to have one Perron vector, and which have several, (B, H) bool.
    """
    from .dense_perron import perron_of_chain, perron_of_matrix  # SciPy's graphs load slowly

    unique, several = best.distance.isfinite(), torch.zeros_like(unsettled)
    for batch, head in unsettled.nonzero().tolist():
        matrix = op.matrix(batch, head).numpy(force=True)
        if op.kind == "softmax":
            dense = perron_of_chain(matrix)
        else:
            dense = perron_of_matrix(matrix.T if left else matrix)
        unique[batch, head] |= dense.unique
        several[batch, head] = dense.several
        closer = bool(dense.enclosed.distance <= best.distance[batch, head])
        if closer and bool(dense.enclosed.vector.isfinite().all()):
            for values, value in zip(best, dense.enclosed, strict=True):
                values[batch, head] = value
    return unique, several


def _acyclic(step: Step, sums: Tensor) -> Tensor:
    """Which graphs have no cycle (ρ = 0), (B, H) bool.

    Tokens that no edge leads to are on no cycle. They are removed again and again, until no token
    remains, or every one that remains has a predecessor.

    Args:
        step: product with the graph.
        sums: (B, H, N) the product of the graph and the vector of ones.
    """
    remaining = (sums > 0).to(sums)
    before = torch.ones_like(remaining)
    while not torch.equal(remaining, before):
        before = remaining
        remaining = before * (step(before) > 0)
    return (remaining == 0).all(-1)


def _connected(op: AttentionOperator, limit: int) -> Tensor:
    """Which graphs are strongly connected, and so have one Perron vector, (B, H) bool.

    False where this takes more than ``limit`` products to decide.
    """
    first = torch.zeros_like(op.ones())
    first[..., 0] = 1
    steps = op.apply, op.apply_transposed
    both = [reached(step, first, first, limit)[0] for step in steps]
    return torch.stack(both).all(0).all(-1)
