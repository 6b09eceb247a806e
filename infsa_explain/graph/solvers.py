"""Certified solutions of x = b + γÂx: the expected visits of a walk.

Suppose that x ↦ b + γMx shrinks distances by a factor c < 1 in some norm. Then it has one fixed
point x*, and for every x the image y = b + γMx lies within c ‖y − x‖ / (1 − c) of x*. So x may be
found in any way: by a direct solve, or by a Krylov method in float32. Then y and the residual
y − x are computed in float64, and y is the answer. It is non-negative, and exactly b_i for a token
i that no edge leads to. The bound includes a term for rounding, and so holds for the exact
solution.

A walk with γ ≥ 1 ends, too, if γρ < 1. It contracts in a norm with weights h > 0 of which
γÂh < h: Σ h_i |x_i| with Âᵀ, and max |x_i| / h_i with Â. See :func:`weights_of_walk`.

Source: the contraction principle, Banach 1922; weights by Collatz and Wielandt, as in Varga, Matrix
Iterative Analysis, section 1.3; GMRES, Saad and Schultz 1986, restarted as
iterative refinement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .operator import AttentionOperator

__all__ = ["Contraction", "Solution", "arnoldi", "fixed_point", "solve", "weights_of_walk"]

#: A system is solved directly up to this many tokens, and bytes of float64 matrices. Beyond 128
#: tokens the Krylov solver is faster, and LAPACK uses the blocked LU that PyTorch's batched solve
#: gets wrong on several threads (pytorch/pytorch#142815).
DIRECT_TOKENS = 128
DIRECT_BYTES = 256 * 2**20
#: Krylov steps between two checks of the residual: the first number, and the largest.
KRYLOV_STEPS = (6, 24)
MAX_ITERATIONS = 10_000

FLOAT64 = torch.finfo(torch.float64)
Step = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Solution:
    """A solution and the bound on its error.

    Attributes:
        x: (B, H, N) float64, non-negative.
        error_bound: (B, H) upper bound on ‖x − x*‖ / ‖x‖ in the norm of the system; absolute
            where x is zero.
        iterations: products with the graph; 0 for a direct solve.
        converged: (B, H) bool, whether ``error_bound`` is within the tolerance.
    """

    x: Tensor
    error_bound: Tensor
    iterations: int
    converged: Tensor


@dataclass(frozen=True)
class Contraction:
    """The map x ↦ γMx of a non-negative M, which shrinks distances in a norm.

    Attributes:
        step: x ↦ Mx for x (B, H, N) in float64.
        survival: γ, (H, 1) or (B, H, 1) float64.
        norm: 1, 2 or ``torch.inf``: the norm of the contraction and of the error bound.
        factor: c with ‖γM‖ ≤ c, (B, H). The bound is infinite where c is 1 or more.
        rounding: relative error of ``step`` in float64.
        search: ``step`` in the precision of the Krylov search; None for ``step`` itself.
        matrix: M, (B, H, N, N) float64, for a direct solve; None for a Krylov search.
        weights: (B, H, N) positive factors of the entries in the norm; None for no weights.
    """

    step: Step
    survival: Tensor
    norm: float
    factor: Tensor
    rounding: float
    search: Step | None = None
    matrix: Tensor | None = None
    weights: Tensor | None = None

    def apply(self, x: Tensor) -> Tensor:
        """γMx in the precision of the search."""
        return self.survival * (self.search or self.step)(x)

    def length(self, x: Tensor) -> Tensor:
        """‖x‖, (B, H)."""
        weighted = x if self.weights is None else self.weights * x
        size: Tensor = torch.linalg.vector_norm(weighted, self.norm, dim=-1)
        return size

    @property
    def rate(self) -> Tensor:
        """Factor by which a step of the Neumann series shrinks the residual at least, (B, H)."""
        return self.survival[..., 0] if self.weights is None else self.factor

    def solve_directly(self, rhs: Tensor, matrix: Tensor) -> Tensor:
        """(I − γM)⁻¹ b by LU decomposition."""
        identity = torch.eye(rhs.shape[-1], dtype=rhs.dtype, device=rhs.device)
        solution: Tensor = torch.linalg.solve(identity - self.survival[..., None] * matrix, rhs)
        return solution


def solve(
    op: AttentionOperator,
    gamma: float | Tensor,
    rhs: Tensor,
    *,
    transposed: bool = False,
    weights: Tensor | None = None,
    tol: float = 1e-6,
    max_iterations: int = MAX_ITERATIONS,
) -> Solution:
    """x = (I − γÂ)⁻¹ b, or with Âᵀ, for every graph.

    For InfSA graphs the bound is on the 2-norm, since ‖γÂ‖₂ ≤ γ‖Â‖_F < 1. For softmax graphs,
    whose rows sum to 1, it is on the 1-norm with Âᵀ and on the maximum norm with Â. It holds for
    the Â that float64 forms from queries and keys, with a rounding term for the worst case of
    sums of N and d terms.

    Args:
        op: token graphs over (B, H).
        gamma: survival per step, a float or (H,), in (0, 1); with ``weights`` (B, H), above 0.
        rhs: b, (B, H, N) float64, non-negative.
        transposed: solve with Âᵀ.
        weights: h, (B, H, N) float64, positive. Then the bound is on Σ h_i |x_i| with Âᵀ and on
            max |x_i| / h_i with Â. It is infinite unless γÂh < h.
        tol: bound on the relative error at which to stop.
        max_iterations: products with the graph at most.

    Returns:
        :class:`Solution`.

    Raises:
        ValueError: if γ is not in (0, 1), or not a scalar or of length H.

    >>> q = torch.tensor([[[[1.0, 0], [0, 1]]]])
    >>> op = AttentionOperator(q, q)  # Â = I / √2
    >>> solve(op, 0.5, op.double.ones()).x  # 1 / (1 − 0.5/√2)
    tensor([[[1.5469, 1.5469]]], dtype=torch.float64)
    """
    op64 = op.double
    norm: float = 1 if transposed else torch.inf
    if weights is not None:
        survival = torch.as_tensor(gamma, dtype=torch.float64, device=op.q.device)[..., None]
        factor = (survival * op64.apply(weights) / weights).amax(-1)
        weights = weights if transposed else 1 / weights
    else:
        survival = survival_per_head(op, gamma)
        factor = survival[..., 0].expand(op.shape[:2])
        if op.kind == "infsa":
            norm, factor = 2, factor * op64.frobenius_norm()
    matrix = None
    if op.num_tokens <= DIRECT_TOKENS and rhs.numel() * op.num_tokens * 8 <= DIRECT_BYTES:
        matrix = op64.dense().mT if transposed else op64.dense()
    contraction = Contraction(
        multiply(op64, transposed),
        survival,
        norm,
        factor,
        rounding=sum_rounding(op.num_tokens + op.q.shape[-1]),
        search=multiply(search_graph(op), transposed),
        matrix=matrix,
        weights=weights,
    )
    return fixed_point(contraction, rhs, tol=tol, max_iterations=max_iterations)


def weights_of_walk(op: AttentionOperator, gamma: Tensor) -> Tensor:
    """h with γÂh < h, for walks that end: about (I − γÂ)⁻¹·1, (B, H, N) float64, at least 1.

    Then γÂh = h − 1 up to the residual of the search. :func:`solve` checks the inequality.

    Args:
        op: token graphs over (B, H).
        gamma: (B, H) survival per step, with γρ < 1; it may be 1 or more.
    """
    ones = op.double.ones()
    survival = gamma[..., None]
    matrix = op.double.dense() if op.num_tokens <= DIRECT_TOKENS else None
    contraction = Contraction(
        multiply(op.double, False),
        survival,
        torch.inf,
        factor=torch.full_like(gamma, 0.5),  # proves nothing, and ends the search
        rounding=sum_rounding(op.num_tokens + op.q.shape[-1]),
        search=multiply(search_graph(op), False),
        matrix=matrix,
    )
    return fixed_point(contraction, ones, tol=1e-6).x.clamp_min(1)


def fixed_point(
    contraction: Contraction,
    rhs: Tensor,
    *,
    tol: float = 1e-6,
    max_iterations: int = MAX_ITERATIONS,
) -> Solution:
    """The x with x = b + γMx, certified.

    A direct solve, or corrections d ≈ r + γMd of the residual r, until the bound is within the
    tolerance.

    Args:
        contraction: x ↦ γMx.
        rhs: b, (B, H, N) float64, non-negative.
        tol: bound on the relative error at which to stop.
        max_iterations: products at most, but at least two; a direct solve counts as none.

    Returns:
        :class:`Solution`. Its bound stays above the tolerance where rounding hides the rest, or
        where the products were too few.
    """
    iterations = 0
    if contraction.matrix is None:
        max_iterations = max(max_iterations, 2)
        current = _Iterate.zero(contraction, rhs)
    else:
        x = contraction.solve_directly(rhs, contraction.matrix)
        current = _Iterate.at(contraction, rhs, x)
    stalled = torch.zeros_like(rhs[..., 0], dtype=torch.bool)
    steps, most_steps = KRYLOV_STEPS
    while not current.is_final(tol).all() and iterations + 2 <= max_iterations:
        steps = max(1, min(steps, max_iterations - iterations - 1))
        correction = _correction(contraction, current.residual, steps, stalled)
        previous = current
        current = _Iterate.at(contraction, rhs, previous.x + correction)
        iterations += steps + 1
        if steps < most_steps:
            slow = (current.size > 0.01 * previous.size) & ~current.is_final(tol)
            steps = min(2 * steps, most_steps) if bool(slow.any()) else steps
        else:  # GMRES shrinks the 2-norm, but M may contract in another norm
            slow = current.size > contraction.rate**steps * previous.size
            stalled = stalled | slow
    return Solution(current.y, current.bound, iterations, current.bound <= tol)


@dataclass(frozen=True)
class _Iterate:
    """An approximate solution x, its image y = b + γMx, and the bound on the error of y.

    Attributes:
        residual: y − x.
        size: (B, H) ‖y − x‖.
        bound: (B, H) upper bound on ‖y − x*‖ / ‖y‖; absolute where y is zero.
        exhausted: (B, H) bool, whether the residual is no larger than its rounding error.
    """

    x: Tensor
    y: Tensor
    residual: Tensor
    size: Tensor
    bound: Tensor
    exhausted: Tensor

    @classmethod
    def zero(cls, contraction: Contraction, rhs: Tensor) -> _Iterate:
        """The start, x = 0 and y = b, of which nothing is known."""
        size = contraction.length(rhs)
        unknown = torch.full_like(size, torch.inf)
        return cls(torch.zeros_like(rhs), rhs, rhs, size, unknown, size < 0)

    @classmethod
    def at(cls, contraction: Contraction, rhs: Tensor, x: Tensor) -> _Iterate:
        """The iterate at x, without its negative entries."""
        x = x.clamp_min(0)
        y = rhs + contraction.survival * contraction.step(x)
        residual = y - x
        size, size_of_y = contraction.length(residual), contraction.length(y)
        factor = contraction.factor + contraction.rounding
        rounding = contraction.rounding * size_of_y
        error = (factor * size + rounding) / (1 - factor).clamp_min(0)
        bound = torch.where(size_of_y > 0, error / size_of_y, error)
        return cls(x, y, residual, size, bound, size <= rounding)

    def is_final(self, tol: float) -> Tensor:
        """Where no further product helps, (B, H) bool."""
        return (self.bound <= tol) | self.exhausted


def _correction(contraction: Contraction, residual: Tensor, steps: int, stalled: Tensor) -> Tensor:
    """d ≈ r + γMd: by GMRES, or by the Neumann series, which always converges, where it stalled."""
    if bool(stalled.all()):
        return _neumann(contraction, residual, steps)
    correction = _gmres(contraction, residual, steps)
    if bool(stalled.any()):
        series = _neumann(contraction, residual, steps)
        correction = torch.where(stalled[..., None], series, correction)
    return correction


def _neumann(contraction: Contraction, residual: Tensor, steps: int) -> Tensor:
    """Σ_t (γM)ᵗ r for t = 0 … steps."""
    total = residual
    for _ in range(steps):
        total = residual + contraction.apply(total)
    return total


def _gmres(contraction: Contraction, residual: Tensor, steps: int) -> Tensor:
    """The d in the Krylov space of M and r that minimises ‖r − (I − γM)d‖₂."""
    product = contraction.search or contraction.step
    basis, hessenberg = arnoldi(lambda v: product(v[..., 0])[..., None], residual[..., None], steps)
    system = torch.eye(steps + 1, steps, dtype=hessenberg.dtype, device=hessenberg.device)
    system = system - contraction.survival[..., None, None] * hessenberg
    target = torch.zeros_like(system[..., :1])
    target[..., 0, 0] = 1
    weights = torch.linalg.lstsq(system, target).solution.to(basis.dtype)
    direction: Tensor = (weights.mT @ basis[..., :-1, :])[:, :, 0, 0]
    size: Tensor = torch.linalg.vector_norm(residual, dim=-1, keepdim=True)
    return size * direction.double()


def arnoldi(step: Step, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Orthonormal basis V of start, M start, M² start, …, and M in that basis, M Vₘ = Vₘ₊₁ H.

    Args:
        step: x ↦ Mx for x (B, H, N, c); it decides the precision of the basis.
        start: (B, H, N, c); each column starts a space of its own.
        steps: m, the number of products.

    Returns:
        V (B, H, c, m + 1, N), with orthonormal rows, or zeros once the space is exhausted; and
        H (B, H, c, m + 1, m) float64.
    """
    w = start.movedim(-1, 2)
    w = w / w.norm(dim=-1, keepdim=True).clamp_min(FLOAT64.tiny)
    image = step(w.movedim(2, -1)).movedim(-1, 2)
    basis = image.new_zeros(*w.shape[:3], steps + 1, w.shape[-1])
    hessenberg = torch.zeros(
        *w.shape[:3], steps + 1, steps, dtype=torch.float64, device=basis.device
    )
    basis[..., 0, :] = w
    for j in range(steps):
        earlier = basis[..., : j + 1, :]
        w = step(basis[..., j, :].movedim(2, -1)).movedim(-1, 2) if j else image
        before = w.norm(dim=-1)
        for _ in range(2):  # the second time removes what rounding left
            overlap = earlier @ w[..., None]
            w = w - (overlap.mT @ earlier)[..., 0, :]
            hessenberg[..., : j + 1, j] += overlap[..., 0]
        after = w.norm(dim=-1)
        after = torch.where(after > 10 * torch.finfo(w.dtype).eps * before, after, 0.0)
        hessenberg[..., j + 1, j] = after
        basis[..., j + 1, :] = torch.where(after > 0, 1 / after, 0.0)[..., None] * w
    return basis, hessenberg


def sum_rounding(terms: int) -> float:
    """Largest relative error of a float64 sum of ``terms`` non-negative products."""
    return 2 * (terms + 2) * FLOAT64.eps


def search_graph(op: AttentionOperator) -> AttentionOperator:
    """The graph for a Krylov search, which needs no float64.

    It is the float64 graph if that is kept in memory between products. If it must be formed for
    every product, float32 costs half.
    """
    batch, heads, tokens = op.shape
    fits = batch * heads * tokens**2 * 8 <= op.max_bytes
    return op.double if fits else op


def multiply(op: AttentionOperator, transposed: bool) -> Step:
    """x ↦ Âx, or x ↦ Âᵀx."""
    return op.apply_transposed if transposed else op.apply


def survival_per_head(op: AttentionOperator, gamma: float | Tensor) -> Tensor:
    """γ as (H, 1) float64.

    Raises:
        ValueError: if γ is not in (0, 1), or not a scalar or of length H.
    """
    heads = op.shape[1]
    survival = torch.as_tensor(gamma, dtype=torch.float64, device=op.q.device).detach()
    if survival.numel() not in (1, heads):
        raise ValueError(
            f"gamma must be one number or one per head ({heads}), got shape {tuple(survival.shape)}"
        )
    if not bool(((survival > 0) & (survival < 1)).all()):
        raise ValueError(f"gamma must lie in (0, 1), got {survival.flatten().tolist()}")
    return survival.reshape(-1, 1).expand(heads, 1)


def choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is not among the allowed."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
