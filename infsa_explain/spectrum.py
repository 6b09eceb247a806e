"""Perron vectors of token graphs, and how far the spectrum falls behind them.

The Perron vector of a non-negative matrix belongs to its largest eigenvalue, ρ, and is itself
non-negative: the left one is attention received, the right one attention emitted, in the limit
of long walks. It says something where it is ``unique``, and more the wider the ``gap`` to the
second eigenvalue is.

Source: Perron 1907, Frobenius 1912; Arnoldi 1951, restarted: Saad, Numerical Methods for Large
Eigenvalue Problems, chapter 6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .operator import AttentionOperator
from .solvers import FLOAT64, Step, arnoldi, choice, multiply, search_graph

__all__ = ["Perron", "perron"]

CONSTANT_ON_SOFTMAX = (
    "is the same for every token of a softmax graph, whose rows all sum to 1; use the received "
    "(left) form"
)
#: Up to this many tokens the matrix is squared, and all its eigenvalues are computed.
EXACT_TOKENS = 64
#: Dimension of the Krylov space beyond.
RITZ_STEPS = 20


@dataclass(frozen=True)
class Perron:
    """A Perron vector of every graph, and how well it satisfies its equation.

    Attributes:
        vector: (B, H, N) float64, unit 2-norm, non-negative; NaN where ``value`` is 0, for a
            graph without cycles has no Perron vector.
        value: (B, H) the spectral radius ρ.
        residual: (B, H) ‖Âv − ρv‖₂ (or ‖Âᵀu − ρu‖₂) in float64, relative to ρ.
        iterations: products with the graph, or squarings of it.
        converged: (B, H) bool, whether ``residual`` is within the tolerance.
        unique: (B, H) bool, whether another start led to the same vector.
        second: (B, H) modulus of the second largest eigenvalue, counted with multiplicity: ρ
            where the vector is not unique or the graph periodic, 0 for a single token, NaN
            without cycles. Up to 64 tokens from all eigenvalues; beyond, an estimate (the second
            largest Ritz value of a Krylov space of 20 dimensions), commonly good to a percent of
            ρ.
    """

    vector: Tensor
    value: Tensor
    residual: Tensor
    iterations: int
    converged: Tensor
    unique: Tensor
    second: Tensor

    @property
    def gap(self) -> Tensor:
        """1 − second / ρ, (B, H) from 0 to 1; NaN where there is no cycle."""
        return 1 - self.second / self.value


def perron(
    op: AttentionOperator,
    side: Literal["left", "right"] = "left",
    tol: float = 1e-6,
    max_iterations: int = 1000,
) -> Perron:
    """The Perron vector: left, uᵀÂ = ρuᵀ (received), or right, Âv = ρv (emitted).

    From two starts. Small graphs: powers of Â + σI, which converge on periodic graphs too, twice
    the power at every squaring. Others: the Ritz vector of a Krylov space, restarted until its
    residual is small. Large graphs with next to no gap (long cycles, long chains of equal parts)
    may not converge, and are said not to.

    Args:
        op: token graphs over (B, H).
        side: ``"left"`` or ``"right"``.
        tol: residual relative to ρ at which to stop.
        max_iterations: products, or squarings, at which to give up.

    Returns:
        :class:`Perron`.

    Raises:
        ValueError: for the right vector of a softmax graph, which is constant.

    >>> q = torch.tensor([[[[1.0, 0], [0, 1]]]])
    >>> result = perron(AttentionOperator(q, q))  # Â = I / √2: any vector is a Perron vector
    >>> round(result.value.item(), 4), result.gap.item(), result.unique.item()
    (0.7071, 0.0, False)
    """
    choice("side", side, ("left", "right"))
    if side == "right" and op.kind == "softmax":
        raise ValueError(f"the right Perron vector {CONSTANT_ON_SOFTMAX}")
    op64, left = op.double, side == "left"
    step, ones = multiply(op64, left), op64.ones()
    acyclic = _acyclic(step, ones)
    # The other start gives any two parts of the graph unequal weight: 1, 1/2, 1/3, … at random.
    order = torch.randperm(op.num_tokens, generator=torch.Generator().manual_seed(0))
    other = (1 / (1 + order.double())).to(ones).expand_as(ones)
    x = torch.stack([ones, other], dim=-1)  # (B, H, N, 2)
    value = residual = torch.zeros_like(x[..., 0, :])
    second = torch.zeros_like(value[..., 0])
    settled, iterations = acyclic[..., None].expand_as(value), 0
    small = op.num_tokens <= EXACT_TOKENS
    candidates = _squared(op64, left, x) if small else _restarted(op, left, x)
    while not bool(settled.all()) and iterations < max_iterations:
        x, second, iterations = next(candidates)
        # One product makes tokens that no edge leads to exactly zero, and equals equal.
        x = _unit(step(x))
        y = step(x)
        value = (x * y).sum(2)  # Rayleigh quotients
        error = (y - value[:, :, None] * x).norm(dim=2)
        residual = torch.where(value > 0, error / value, torch.inf)
        settled = (residual <= tol) | acyclic[..., None]
    unique = (x[..., 0] * x[..., 1]).sum(-1) > 1 - 1e-6
    value, residual, nan = value[..., 0], residual[..., 0], torch.nan
    second = torch.where(settled.all(-1) & ~unique, value, torch.minimum(second, value))
    return Perron(
        torch.where(acyclic[..., None], nan, x[..., 0]),
        torch.where(acyclic, 0.0, value),
        torch.where(acyclic, 0.0, residual),
        iterations,
        settled[..., 0],
        unique & ~acyclic,
        torch.where(acyclic, nan, second),
    )


def _squared(op: AttentionOperator, left: bool, x: Tensor) -> Iterator[tuple[Tensor, Tensor, int]]:
    """(Â + σI)ᵗ x with unit columns for t = 1, 2, 4, …; |λ₂|; the count."""
    matrix = op.dense().mT if left else op.dense()
    second = _second(_eigenvalues(matrix))
    shift = op.frobenius_norm()[..., None, None] / 8
    power = matrix + shift * torch.eye(op.num_tokens, dtype=x.dtype, device=x.device)
    iterations = 0
    while True:
        iterations += 1
        yield _unit(power @ x), second, iterations
        power = power @ power
        power = power / power.amax((-2, -1), keepdim=True).clamp_min(FLOAT64.tiny)


def _restarted(
    op: AttentionOperator, left: bool, x: Tensor
) -> Iterator[tuple[Tensor, Tensor, int]]:
    """The Ritz vectors of largest real part, of spaces that start at the last; |λ₂|; the count.

    The first space may be in float32, and λ₂ comes from its unprepared start.
    """
    search, steps = multiply(search_graph(op), left), min(RITZ_STEPS, op.num_tokens)
    second: Tensor | None = None
    iterations = 0
    while True:
        basis, hessenberg = arnoldi(search, x, steps)
        values, vectors = _eigenvectors(hessenberg[..., :-1, :])
        if second is None:
            second = _second(values[:, :, 1])
        top = values.real.argmax(-1)[..., None, None]
        weights = vectors.take_along_dim(top, -1).real.to(basis.dtype)
        x = (weights.mT @ basis[..., :-1, :])[..., 0, :].abs().movedim(2, -1).double()
        iterations += steps + 2  # with the two that follow
        yield x, second, iterations
        search = multiply(op.double, left)


def _eigenvalues(matrix: Tensor) -> Tensor:
    """LAPACK's, of (..., n, n).

    MKL's iteration, PyTorch's, gave up on a graph of 64 tokens that OpenBLAS's, NumPy's, takes.
    """
    try:
        values: Tensor = torch.linalg.eigvals(matrix)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        values = torch.from_numpy(np.linalg.eigvals(matrix.numpy(force=True))).to(matrix.device)
    return values


def _eigenvectors(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors, by whichever library finds them, as above."""
    try:
        values, vectors = torch.linalg.eig(matrix)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        found = np.linalg.eig(matrix.numpy(force=True))
        values, vectors = (torch.from_numpy(y).to(matrix.device) for y in found)
    return values, vectors


def _second(eigenvalues: Tensor) -> Tensor:
    """The second largest modulus of (B, H, n) eigenvalues."""
    if eigenvalues.shape[-1] == 1:
        return torch.zeros_like(eigenvalues[..., 0].real)
    return eigenvalues.abs().sort(-1).values[..., -2]


def _unit(x: Tensor) -> Tensor:
    """Columns of (B, H, N, c) scaled to 2-norm 1."""
    size: Tensor = torch.linalg.vector_norm(x, dim=2, keepdim=True)
    return x / size.clamp_min(FLOAT64.tiny)


def _acyclic(step: Step, alive: Tensor) -> Tensor:
    """Which graphs have no cycle (ρ = 0), (B, H) bool.

    Tokens that nothing leads to are on no cycle; they are peeled off until none is left or
    each that is left has a predecessor.
    """
    while True:
        left = alive * (step(alive) > 0)
        if torch.equal(left, alive):
            return (alive == 0).all(-1)
        alive = left
