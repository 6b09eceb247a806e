"""Token importance as graph centrality; every result has an error bound.

For a token graph Â and γ in (0, 1) the fundamental matrix F = (I − γÂ)⁻¹ = Σ_t (γÂ)ᵗ counts
visits: F_ij is the expected number of visits to j of a walk that starts at i. If every row has
γ Σ_j Â_ij ≤ 1, the walk is an absorbing Markov chain. Frobenius normalisation does not ensure this.
One reading always holds: a branching walk, in which each visit to i causes γÂ_ij visits to j on
average. ``min_absorption`` and ``invalid_rows`` tell whether the result is also a chain.

Graphs of different kinds differ in ρ: 1 for softmax, less for InfSA. ``gamma_rho`` in place of
``gamma`` gives every graph the same γρ, that is γ = γρ / ρ, which may be 1 or more.

``direction="received"`` scores token j by column j, the attention it gets;
``direction="emitted"`` scores token i by row i, the attention it gives.

Source: Infinite Self-Attention, arXiv 2603.00175; Katz 1953; Brin and Page 1998.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .operator import AttentionOperator
from .perron_bounds import FLOOR, product_rounding
from .solvers import (
    Contraction,
    choice,
    fixed_point,
    multiply,
    solve,
    sum_rounding,
    survival_per_head,
    weights_of_walk,
)
from .spectrum import CONSTANT_ON_SOFTMAX, Perron, perron

__all__ = [
    "Centrality",
    "Perron",
    "certified_series",
    "degree",
    "doob_visits",
    "katz",
    "pagerank",
    "perron",
    "series",
    "visits",
]

Direction = Literal["received", "emitted"]
Start = Literal["uniform", "class"]


@dataclass(frozen=True)
class Centrality:
    """Scores of every token, with a bound on their error.

    Attributes:
        scores: (B, H, N) float64, non-negative; higher is more important.
        error_bound: (B, H) proven upper bound on ‖scores − exact‖ / ‖scores‖, in the 2-norm for
            InfSA graphs and the 1-norm for softmax graphs, PageRank and Doob's chain; with
            ``gamma_rho``, for InfSA graphs, in the norm with weights of
            :func:`~infsa_explain.graph.solvers.solve`. It holds for the Â that float64 forms, and
            for γ as computed.
        iterations: products with the graph; 0 for a direct solve.
        converged: (B, H) bool, whether ``error_bound`` is within the tolerance.
        min_absorption: (B, H) the smallest R_i = 1 − γ Σ_j Â_ij; negative if the walk is not an
            absorbing chain. NaN for scores without γ.
        invalid_rows: (B, H) the share of rows with R_i < 0, in [0, 1].
    """

    scores: Tensor
    error_bound: Tensor
    iterations: int
    converged: Tensor
    min_absorption: Tensor
    invalid_rows: Tensor


def visits(
    op: AttentionOperator,
    gamma: float | Tensor | None = None,
    start: Start = "uniform",
    direction: Direction = "received",
    tol: float = 1e-6,
    *,
    gamma_rho: float | None = None,
    count_start: bool = True,
) -> Centrality:
    """Expected visits: sᵀF, or F·1 − 1 for ``direction="emitted"``.

    Args:
        op: token graphs over (B, H).
        gamma: survival per step, a float or (H,), in (0, 1).
        start: s, ``"uniform"`` (1/N each) or ``"class"`` (the first token).
        direction: ``"received"``, visits to each token; ``"emitted"``, visits made by a walk
            after it starts at each token (Katz); ``start`` is then not used.
        tol: bound on the relative error at which to stop.
        gamma_rho: γρ of every graph, in (0, 1), in place of ``gamma``.
        count_start: whether the start is a visit. Without it the scores are sᵀF − sᵀ, which do not
            contain the constant s and so are sharper.

    Returns:
        :class:`Centrality`. All NaN for a graph without cycles if ``gamma_rho`` is given.

    Raises:
        ValueError: if γ is not in (0, 1), an option is unknown, or the emitted form of a softmax
            graph is asked for, which is constant.

    >>> q = torch.tensor([[[[1.0, 0], [0, 1]]]])
    >>> op = AttentionOperator(q, q)  # Â = I / √2: each token visits itself
    >>> visits(op, 0.5).scores  # ½ Σ_t (0.5/√2)ᵗ
    tensor([[[0.7735, 0.7735]]], dtype=torch.float64)
    """
    choice("direction", direction, ("received", "emitted"))
    choice("start", start, ("uniform", "class"))
    if direction == "emitted":
        return katz(op, gamma, tol=tol, gamma_rho=gamma_rho)
    walk = _Walk.of(op, gamma, gamma_rho)
    rhs = torch.zeros_like(op.double.ones())
    if start == "uniform":
        rhs += 1 / op.num_tokens
    else:
        rhs[..., 0] = 1
    if not count_start:  # z = sᵀF − sᵀ solves z (I − γÂ) = sᵀγÂ without cancellation
        rhs = walk.survival * op.double.apply_transposed(rhs)
    return walk.solve(rhs, transposed=True, tol=tol)


def katz(
    op: AttentionOperator,
    gamma: float | Tensor | None = None,
    direction: Direction = "emitted",
    tol: float = 1e-6,
    *,
    gamma_rho: float | None = None,
) -> Centrality:
    """Katz centrality: F·1 − 1 (emitted, the paper's č) or 1ᵀF − 1 (received).

    Args and errors as in :func:`visits`. networkx's Katz is the received one.
    """
    choice("direction", direction, ("received", "emitted"))
    if direction == "emitted" and op.kind == "softmax":
        raise ValueError(f"emitted Katz {CONSTANT_ON_SOFTMAX}")
    walk, transposed = _Walk.of(op, gamma, gamma_rho), direction == "received"
    # z = F·1 − 1 solves (I − γÂ) z = γÂ·1 without cancellation.
    rhs = walk.survival * multiply(op.double, transposed)(op.double.ones())
    return walk.solve(rhs, transposed=transposed, tol=tol)


def degree(op: AttentionOperator, direction: Direction = "received") -> Centrality:
    """Column sums (received) or row sums (emitted) of Â.

    Raises:
        ValueError: for the emitted form of a softmax graph, which is constant.
    """
    choice("direction", direction, ("received", "emitted"))
    if direction == "emitted" and op.kind == "softmax":
        raise ValueError(f"the row sum {CONSTANT_ON_SOFTMAX}")
    sums = op.double.column_sums() if direction == "received" else op.double.row_sums()
    bound = torch.full_like(sums[..., 0], product_rounding(op.num_tokens))
    nan = torch.full_like(bound, torch.nan)
    return Centrality(sums, bound, 0, bound > 0, nan, nan)


def pagerank(
    op: AttentionOperator,
    damping: float = 0.85,
    direction: Direction = "received",
    tol: float = 1e-6,
    max_iterations: int = 1000,
) -> Centrality:
    """PageRank: rows made stochastic, uniform teleport, rows without edges spread uniformly.

    Args:
        op: token graphs over (B, H).
        damping: probability of following an edge, in (0, 1).
        direction: ``"received"`` walks along attention, ``"emitted"`` against it.
        tol: bound on the 1-norm of the error; the scores sum to 1.
        max_iterations: power steps at most.

    Returns:
        :class:`Centrality`; ``min_absorption`` and ``invalid_rows`` are NaN.

    Raises:
        ValueError: if the damping is not in (0, 1), or the direction is unknown.
    """
    choice("direction", direction, ("received", "emitted"))
    if not 0 < damping < 1:
        raise ValueError(f"damping must lie in (0, 1), got {damping}")
    op64 = op.double
    step = multiply(op64, direction == "received")
    out_degree = multiply(op64, direction == "emitted")(op64.ones())
    dangling = out_degree == 0
    inverse = torch.where(dangling, 0.0, 1 / out_degree)
    x = op64.ones() / op.num_tokens
    iterations = 0
    bound = torch.full_like(x[..., 0], torch.inf)
    rounding = sum_rounding(op.num_tokens)
    while iterations < max_iterations and bool((bound > tol).any()):
        iterations += 1
        spread = (x * dangling).sum(-1, keepdim=True) / op.num_tokens
        new = damping * (step(x * inverse) + spread) + (1 - damping) / op.num_tokens
        # The map shrinks the 1-norm of differences by the damping.
        bound = (damping * (new - x).abs().sum(-1) + rounding) / (1 - damping)
        x = new
    nan = torch.full_like(bound, torch.nan)
    return Centrality(x, bound, iterations, bound <= tol, nan, nan)


def doob_visits(
    op: AttentionOperator,
    gamma: float | Tensor | None = None,
    start: Start = "uniform",
    tol: float = 1e-6,
    *,
    gamma_rho: float | None = None,
    count_start: bool = True,
) -> Centrality:
    """Expected visits of Doob's walk, which follows the right Perron vector h.

    The support of h is the tokens from which the strongest part of the graph can be reached. On it,
    the walk steps from i to j with probability P_ij = Â_ij h_j / (ρh_i), and survives each step
    with probability γρ. It is an absorbing chain for every graph. Its fundamental matrix is
    F_ij h_j / h_i, so its scores differ from those of :func:`visits`. Tokens off the support
    score 0.

    Args:
        op: token graphs over (B, H).
        gamma: survival per unit of Â, a float or (H,), in (0, 1).
        start: ``"uniform"`` over the support, or ``"class"``, the first token.
        tol: bound on the relative error at which to stop.

    Returns:
        :class:`Centrality`. The bound is on the 1-norm and has two parts. One is ‖r‖₁ / (1 − γc)
        for the chain of the computed h, with c = max_i (Âh)_i / h_i (c ≥ ρ by Collatz and
        Wielandt). The other is 2η / (1 − η) for the error of h, where η is
        :attr:`Perron.entry_bound`, since F_ij h_j / h_i divides one entry of h by another.
        ``min_absorption`` is 1 − γc; ``invalid_rows`` is 0 unless γc > 1. The bound is infinite if
        h is not resolved or not unique, or if γc > 1. Scores, bound and absorption are NaN, and
        ``converged`` is False, if there is no chain: a graph without cycles has no h, and a class
        token may lie off the support.

    Raises:
        ValueError: if γ is not in (0, 1), an option is unknown, or the graph is a softmax graph:
            its h is constant, and :func:`visits` already gives this walk.

    Source: Doob 1957; Levin, Peres and Wilmer, Markov Chains and Mixing Times, section 17.6.

    >>> q = torch.tensor([[[[1.0, 0], [0, 1]]]])
    >>> doob_visits(AttentionOperator(q, q), 0.5).scores  # Â = I / √2: visits(op, 0.5), here
    tensor([[[0.7735, 0.7735]]], dtype=torch.float64)
    """
    choice("start", start, ("uniform", "class"))
    if op.kind == "softmax":
        raise ValueError(
            "the right Perron vector of a softmax graph is constant, so Doob's walk is the walk "
            "itself: use visits"
        )
    survival = survival_per_graph(op, gamma, gamma_rho)
    survival = torch.where(survival.isfinite(), survival, 0.0)  # there is no chain, nor an h
    h, growth, relative = _harmonic(op, tol)
    support = h > 0
    inverse = torch.where(support, 1 / h, 0.0)
    if start == "uniform":
        rhs = support.to(h) / support.sum(-1, keepdim=True).clamp_min(1)
    else:
        rhs = torch.zeros_like(h)
        rhs[..., 0] = support[..., 0]
    defined = (rhs > 0).any(-1)
    absorption = 1 - survival * growth
    contraction = Contraction(
        lambda x: h * op.double.apply_transposed(inverse * x),
        survival,
        norm=1,
        factor=1 - absorption.amin(-1),
        rounding=sum_rounding(op.num_tokens),
    )
    if not count_start:
        rhs = survival * contraction.step(rhs)
    solution = fixed_point(contraction, rhs, tol=0.9 * tol)  # the rest is for h
    moved = torch.where(relative < 1, 2 * relative / (1 - relative), torch.inf)
    bound = solution.error_bound * (1 + moved) + moved
    bound = bound.nan_to_num(nan=torch.inf, posinf=torch.inf)
    nan = torch.nan
    return Centrality(
        torch.where(defined[..., None], solution.x, nan),
        torch.where(defined, bound, nan),
        solution.iterations,
        (bound <= tol) & defined,
        torch.where(defined, absorption.amin(-1), nan),
        torch.where(defined, (absorption < 0).double().mean(-1), nan),
    )


def _harmonic(op: AttentionOperator, tol: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """The right Perron vector h and (Âh)_i / h_i, both zero off the support; and h's entry bound.

    The bound is infinite if h is not resolved or not unique.
    """
    right = perron(op, "right", tol=min(1e-10, tol / 100))
    h = right.vector.nan_to_num(0)
    growth = torch.where(h > 0, op.double.apply(h) / h, 0.0)
    return h, growth, right.entry_bound.nan_to_num(nan=torch.inf, posinf=torch.inf)


def series(
    ops: Sequence[AttentionOperator],
    gammas: Sequence[float | Tensor | None] | None = None,
    start: Start = "uniform",
    *,
    gamma_rho: float | None = None,
) -> Tensor:
    """sᵀS_L of the layer series S_L = Σ_t M⁽ᵗ⁾ … M⁽¹⁾, by Horner's rule: (B, N) float64.

    M⁽ˡ⁾ is the mean over heads of γ_h Â_h of layer l. A residual stack computes Π(I + M⁽ˡ⁾),
    which has more terms and is a different thing. :func:`certified_series` also gives the error
    bound.

    Args:
        ops: one for each layer, first to last.
        gammas: one for each layer, a float or (H,).
        start: s, ``"uniform"`` or ``"class"``.
        gamma_rho: γρ of every graph, in (0, 1), in place of ``gammas``. A graph without cycles has
            no such γ, and counts as one without edges.

    Returns:
        (B, N) float64.

    Raises:
        ValueError: if γ is not in (0, 1), or the start is unknown.
    """
    return certified_series(ops, gammas, start, gamma_rho=gamma_rho).scores


def certified_series(
    ops: Sequence[AttentionOperator],
    gammas: Sequence[float | Tensor | None] | None = None,
    start: Start = "uniform",
    *,
    gamma_rho: float | None = None,
) -> Centrality:
    """:func:`series` with its error bound; arguments and errors are the same.

    Returns:
        :class:`Centrality` with ``scores`` (B, N) and all other tensors (B,). The series is a sum
        of products of non-negative numbers, rounded about once for each token, head and layer. So
        the relative error of every entry, and of every norm, is at most about L (N + H) 2⁻⁵³.
        ``min_absorption`` and ``invalid_rows`` are NaN.
    """
    choice("start", start, ("uniform", "class"))
    s = torch.zeros_like(ops[0].double.ones()[:, 0])
    if start == "uniform":
        s += 1 / s.shape[-1]
    else:
        s[:, 0] = 1
    z, rounding = torch.zeros_like(s), 0.0
    of_layers = [None] * len(ops) if gammas is None else list(gammas)
    for op, gamma in zip(reversed(ops), reversed(of_layers), strict=True):
        x = (s + z)[:, None].expand(op.shape)
        survival = survival_per_graph(op, gamma, gamma_rho)
        survival = torch.where(survival.isfinite(), survival, 0.0)
        z = (survival * op.double.apply_transposed(x)).mean(1)
        rounding += 2 * product_rounding(sum(op.shape[1:]))
    underflow = (z.amax(-1) > 0) & (z.amax(-1) < FLOOR)
    bound = torch.full_like(z[:, 0], rounding).masked_fill(underflow, torch.inf)
    nan = torch.full_like(bound, torch.nan)
    return Centrality(z, bound, len(ops), bound.isfinite(), nan, nan)


@dataclass(frozen=True)
class _Walk:
    """A walk on a graph that survives each step with γ.

    Attributes:
        op: the graphs.
        survival: γ, (H, 1) or (B, H, 1); 0 where there is no γ.
        weights: of the norm in which it contracts, (B, H, N); None where γ < 1 is enough.
        undefined: (B, H) bool, graphs without cycles, which have no γ for a given γρ.
    """

    op: AttentionOperator
    survival: Tensor
    weights: Tensor | None
    undefined: Tensor

    @classmethod
    def of(
        cls, op: AttentionOperator, gamma: float | Tensor | None, gamma_rho: float | None
    ) -> _Walk:
        """The walk with γ, or with γ = γρ / ρ."""
        survival = survival_per_graph(op, gamma, gamma_rho)
        undefined = (~survival[..., 0].isfinite()).expand(op.shape[:2])
        survival = torch.where(survival.isfinite(), survival, 0.0)
        by_rho = gamma_rho is not None and op.kind == "infsa"
        weights = weights_of_walk(op, survival[..., 0]) if by_rho else None
        return cls(op, survival, weights, undefined)

    def solve(self, rhs: Tensor, *, transposed: bool, tol: float) -> Centrality:
        """(I − γÂ)⁻¹ rhs, or with Âᵀ, and whether the walk is an absorbing chain."""
        gamma = self.survival[..., 0]
        solution = solve(self.op, gamma, rhs, transposed=transposed, weights=self.weights, tol=tol)
        absorption = 1 - self.survival * self.op.double.row_sums()
        return Centrality(
            solution.x.masked_fill(self.undefined[..., None], torch.nan),
            solution.error_bound.masked_fill(self.undefined, torch.nan),
            solution.iterations,
            solution.converged & ~self.undefined,
            absorption.amin(-1).masked_fill(self.undefined, torch.nan),
            (absorption < 0).double().mean(-1).masked_fill(self.undefined, torch.nan),
        )


def survival_per_graph(
    op: AttentionOperator, gamma: float | Tensor | None, gamma_rho: float | None
) -> Tensor:
    """γ as (H, 1), or γρ / ρ of every graph as (B, H, 1), in float64; infinite where ρ is 0.

    Raises:
        ValueError: unless one of the two is given and lies in (0, 1).
    """
    if gamma_rho is None:
        if gamma is None:
            raise ValueError("gamma must be given, or gamma_rho in its place, got neither")
        return survival_per_head(op, gamma)
    if gamma is not None:
        raise ValueError(f"gamma must be left out beside gamma_rho, got {gamma}")
    if not 0 < gamma_rho < 1:
        raise ValueError(f"gamma_rho must lie in (0, 1), got {gamma_rho}")
    if op.kind == "softmax":  # ρ = 1
        return survival_per_head(op, gamma_rho)
    return gamma_rho / perron(op, "right").value[..., None]
