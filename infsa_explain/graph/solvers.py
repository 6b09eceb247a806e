"""Certified solutions of x = b + γÂx: the visits that a walk pays.

A map x ↦ b + γMx that shrinks distances by c < 1 in some norm has one fixed point x*, and
y = b + γMx lies within c ‖y − x‖ / (1 − c) of it, however x was found. So x may come from a
direct solve, or from a Krylov space in float32; y and the residual y − x are
computed in float64, and y is the answer. It is never negative, exactly b_i where no edge leads to
token i, and its bound, with a term for rounding, holds against the exact solution.

Source: the contraction principle, Banach 1922; GMRES, Saad and Schultz 1986, restarted as
iterative refinement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .operator import AttentionOperator

__all__ = ["Solution", "arnoldi", "fixed_point", "solve"]

#: Up to this many tokens, and bytes of float64 matrices, a system is solved directly. Beyond 128
#: tokens the Krylov solver is faster, and LAPACK enters the blocked LU that PyTorch's batched
#: solve gets wrong on several threads (pytorch/pytorch#142815).
DIRECT_TOKENS = 128
DIRECT_BYTES = 256 * 2**20
#: Products between two looks at the residual: at first, and at most.
KRYLOV_STEPS = (6, 24)
MAX_ITERATIONS = 10_000

FLOAT64 = torch.finfo(torch.float64)
Step = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Solution:
    """A solution, and what is known of its error.

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


def solve(
    op: AttentionOperator,
    gamma: float | Tensor,
    rhs: Tensor,
    *,
    transposed: bool = False,
    tol: float = 1e-6,
    max_iterations: int = MAX_ITERATIONS,
) -> Solution:
    """x = (I − γÂ)⁻¹ b, or with Âᵀ, for every graph.

    The bound is on the 2-norm for InfSA graphs, where ‖γÂ‖₂ ≤ γ‖Â‖_F < 1; for softmax graphs,
    whose rows sum to 1, on the 1-norm with Âᵀ and the maximum norm with Â. It holds for Â as
    float64 forms it from queries and keys; a rounding term takes sums of N and d terms at their
    worst.

    Args:
        op: token graphs over (B, H).
        gamma: survival per step, a float or (H,), in (0, 1).
        rhs: b, (B, H, N) float64, non-negative.
        transposed: solve with Âᵀ.
        tol: bound on the relative error at which to stop.
        max_iterations: products with the graph at most.

    Returns:
        :class:`Solution`.

    Raises:
        ValueError: for γ outside (0, 1), or as many γ as there are not heads.

    >>> q = torch.tensor([[[[1.0, 0], [0, 1]]]])
    >>> op = AttentionOperator(q, q)  # Â = I / √2
    >>> solve(op, 0.5, op.double.ones()).x  # 1 / (1 − 0.5/√2)
    tensor([[[1.5469, 1.5469]]], dtype=torch.float64)
    """
    survival = survival_per_head(op, gamma)
    op64 = op.double
    if op.kind == "softmax":
        norm = 1 if transposed else torch.inf
        size = torch.ones_like(rhs[..., 0])
    else:
        norm, size = 2, op64.frobenius_norm()
    matrix = None
    if op.num_tokens <= DIRECT_TOKENS and rhs.numel() * op.num_tokens * 8 <= DIRECT_BYTES:
        matrix = op64.dense().mT if transposed else op64.dense()
    return fixed_point(
        multiply(op64, transposed),
        survival,
        rhs,
        norm=norm,
        contraction=survival[..., 0] * size,
        rounding=sum_rounding(op.num_tokens + op.q.shape[-1]),
        coarse=multiply(search_graph(op), transposed),
        matrix=matrix,
        tol=tol,
        max_iterations=max_iterations,
    )


def fixed_point(
    step: Step,
    survival: Tensor,
    rhs: Tensor,
    *,
    norm: float,
    contraction: Tensor,
    rounding: float,
    coarse: Step | None = None,
    matrix: Tensor | None = None,
    tol: float = 1e-6,
    max_iterations: int = MAX_ITERATIONS,
) -> Solution:
    """The x = b + γMx of a non-negative M with ‖γM‖ ≤ c < 1, certified.

    Args:
        step: x ↦ Mx for x (B, H, N) in float64.
        survival: γ, (H, 1) float64.
        rhs: b, (B, H, N) float64, non-negative.
        norm: the norm, 1, 2 or ``torch.inf``, in which M contracts and the bound is given.
        contraction: c, (B, H). Where it is 1 or more the bound is infinite.
        rounding: relative error of ``step`` in float64.
        coarse: ``step`` in the precision of the search for x; ``step`` itself if None.
        matrix: M, (B, H, N, N) float64, to begin with a direct solve.
        tol: bound on the relative error at which to stop.
        max_iterations: products at most, but two at least; a direct solve is none.

    Returns:
        :class:`Solution`. It stops short of the tolerance where rounding hides the rest.
    """

    def length(x: Tensor) -> Tensor:
        size: Tensor = torch.linalg.vector_norm(x, norm, dim=-1)
        return size

    coarse = coarse or step
    contraction = contraction + rounding
    margin = (1 - contraction).clamp_min(0)
    x, residual = torch.zeros_like(rhs), rhs
    stalled = torch.zeros_like(rhs[..., 0], dtype=torch.bool)
    iterations, steps = 0, KRYLOV_STEPS[0]
    while True:
        if matrix is not None:
            identity = torch.eye(rhs.shape[-1], dtype=rhs.dtype, device=rhs.device)
            x, matrix = torch.linalg.solve(identity - survival[..., None] * matrix, rhs), None
        else:
            steps = max(1, min(steps, max_iterations - iterations - 1))
            x = x + _correction(coarse, survival, residual, steps, stalled)
            iterations += steps + 1
        x = x.clamp_min(0)
        y = rhs + survival * step(x)
        before, residual = length(residual), y - x
        after, size = length(residual), length(y)
        error = (contraction * after + rounding * size) / margin
        bound = torch.where(size > 0, error / size, error)
        converged = bound <= tol
        done = converged | (after <= rounding * size)
        if bool(done.all()) or iterations + 2 > max_iterations:
            return Solution(y, bound, iterations, converged)
        if steps < KRYLOV_STEPS[1]:
            if bool((after > 0.01 * before)[~done].any()):
                steps = min(2 * steps, KRYLOV_STEPS[1])
        else:  # least in the 2-norm need not be small in another, in which the graph contracts
            stalled = stalled | (after > survival[..., 0] ** steps * before)


def _correction(
    step: Step, survival: Tensor, residual: Tensor, steps: int, stalled: Tensor
) -> Tensor:
    """d with d ≈ r + γMd, by GMRES; by the Neumann series, which cannot fail, where it stalled."""
    if bool(stalled.all()):
        return _neumann(step, survival, residual, steps)
    correction = _gmres(step, survival, residual, steps)
    if bool(stalled.any()):
        series = _neumann(step, survival, residual, steps)
        correction = torch.where(stalled[..., None], series, correction)
    return correction


def _neumann(step: Step, survival: Tensor, residual: Tensor, steps: int) -> Tensor:
    """Σ_t (γM)ᵗ r for t = 0 … steps."""
    total = residual
    for _ in range(steps):
        total = residual + survival * step(total)
    return total


def _gmres(step: Step, survival: Tensor, residual: Tensor, steps: int) -> Tensor:
    """d in the Krylov space of M and r that makes ‖r − (I − γM)d‖₂ least."""
    basis, hessenberg = arnoldi(lambda v: step(v[..., 0])[..., None], residual[..., None], steps)
    system = torch.eye(steps + 1, steps, dtype=hessenberg.dtype, device=hessenberg.device)
    system = system - survival[..., None, None] * hessenberg
    target = torch.zeros_like(system[..., :1])
    target[..., 0, 0] = 1
    weights = torch.linalg.lstsq(system, target).solution.to(basis.dtype)
    direction: Tensor = (weights.mT @ basis[..., :-1, :])[:, :, 0, 0]
    size: Tensor = torch.linalg.vector_norm(residual, dim=-1, keepdim=True)
    return size * direction.double()


def arnoldi(step: Step, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Orthonormal basis V of start, M start, M² start, …, and M in that basis, M Vₘ = Vₘ₊₁ H.

    Args:
        step: x ↦ Mx for x (B, H, N, c); its precision is that of the basis.
        start: (B, H, N, c), each column with a space of its own.
        steps: m, the number of products.

    Returns:
        V (B, H, c, m + 1, N), rows orthonormal, zero from where the space is exhausted, and
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
        known = basis[..., : j + 1, :]
        w = step(basis[..., j, :].movedim(2, -1)).movedim(-1, 2) if j else image
        before = w.norm(dim=-1)
        for _ in range(2):  # once more, for what rounding left
            overlap = known @ w[..., None]
            w = w - (overlap.mT @ known)[..., 0, :]
            hessenberg[..., : j + 1, j] += overlap[..., 0]
        after = w.norm(dim=-1)
        after = torch.where(after > 10 * torch.finfo(w.dtype).eps * before, after, 0.0)
        hessenberg[..., j + 1, j] = after
        basis[..., j + 1, :] = torch.where(after > 0, 1 / after, 0.0)[..., None] * w
    return basis, hessenberg


def sum_rounding(terms: int) -> float:
    """Relative error of a float64 sum of so many non-negative products, at its worst."""
    return 2 * (terms + 2) * FLOAT64.eps


def search_graph(op: AttentionOperator) -> AttentionOperator:
    """The graph to search a Krylov space with, where float64 is not needed for the answer.

    In float64 if that is kept between products; formed anew for each, it would cost twice.
    """
    batch, heads, tokens = op.shape
    kept = batch * heads * tokens**2 * 8 <= op.max_bytes
    return op.double if kept else op


def multiply(op: AttentionOperator, transposed: bool) -> Step:
    """x ↦ Âx, or x ↦ Âᵀx."""
    return op.apply_transposed if transposed else op.apply


def survival_per_head(op: AttentionOperator, gamma: float | Tensor) -> Tensor:
    """γ as (H, 1) float64, checked."""
    heads = op.shape[1]
    survival = torch.as_tensor(gamma, dtype=torch.float64, device=op.q.device).detach()
    if survival.numel() not in (1, heads):
        raise ValueError(
            f"gamma must be one number or one per head ({heads}), got {survival.shape}"
        )
    if not bool(((survival > 0) & (survival < 1)).all()):
        raise ValueError(f"gamma must lie in (0, 1), got {survival.flatten().tolist()}")
    return survival.reshape(-1, 1).expand(heads, 1)


def choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse what is not among the allowed."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
