"""The search for Perron vectors by products with the graph, at any N.

It takes Ritz vectors of Krylov spaces. Each space starts at the last Ritz vector, until
:mod:`infsa_explain.graph.perron_bounds` proves that the vector is close.

Source: Arnoldi 1951, restarted: Saad, Numerical Methods for Large Eigenvalue Problems, chapter 6.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .operator import AttentionOperator
from .perron_bounds import Enclosed, enclose, enclosed_radius, product_rounding
from .solvers import FLOAT64, Step, arnoldi, multiply, search_graph

__all__ = ["Counted", "attainable", "reached", "search"]

#: Up to this many tokens the second eigenvalue is exact, from all eigenvalues.
EXACT_TOKENS = 64
#: Dimension of a Krylov space.
RITZ_STEPS = 20
#: Products at most after each space: to find the tokens of the vector, to smooth it, and to bound
#: its error.
ACCESS_STEPS = 24
SMOOTHING_STEPS = 8
WALK_STEPS = 24


class Counted:
    """A product with the graph that counts its calls."""

    def __init__(self, step: Step) -> None:
        self.step, self.count = step, 0

    def __call__(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.step(x)


def attainable(tol: float, tokens: int) -> float:
    """The tolerance, or the rounding error of a walk of as many steps as tokens, if larger."""
    return max(tol, tokens * product_rounding(tokens))


def search(
    op: AttentionOperator,
    step: Counted,
    acyclic: Tensor,
    *,
    left: bool,
    tol: float,
    max_iterations: int,
    spare: int,
) -> tuple[Enclosed, Tensor]:
    """The closest vectors found, with their bounds, and the second eigenvalue's modulus, (B, H).

    The search ends when all are within the tolerance, or when a further space helps none.

    Args:
        op: token graphs over (B, H).
        step: product with Â, or Âᵀ if ``left``, in float64.
        acyclic: (B, H) bool, graphs to leave out.
        left: whether the left vectors are wanted.
        tol: distance at which to stop.
        max_iterations: products after which to give up.
        spare: the number of unsettled graphs at which to stop early.
    """
    tokens, goal = op.num_tokens, attainable(tol, op.num_tokens)
    sums = op.double.row_sums() if left else op.double.column_sums()
    # The start gives every token another weight: 1, 1/2, 1/3, … in random order.
    order = torch.randperm(tokens, generator=torch.Generator().manual_seed(0))
    x = (1 / (1 + order.double())).to(sums).expand_as(sums)
    nothing = torch.full_like(sums[..., 0], torch.inf)
    best = Enclosed(x.clone(), torch.zeros_like(nothing), nothing, nothing.clone(), nothing.clone())
    coarse, second = multiply(search_graph(op), left), torch.zeros_like(nothing)
    missing, spread, spaces = ~acyclic, nothing, 0
    while bool(missing.any()) and step.count < max_iterations:
        ritz, values = _ritz_vectors(step.step if spaces else coarse, x)
        step.count += min(RITZ_STEPS, tokens)
        second = second if spaces else second_modulus(values)
        x, enclosed = _bounded(step, ritz, sums, goal)
        best = _closer(best, enclosed)
        missing = ~acyclic & (best.distance > goal)
        spaces += 1
        gains, spread = missing & (enclosed.spread < 0.5 * spread), enclosed.spread
        if not bool(gains.any()) or missing.sum() <= spare:
            break
    if tokens <= EXACT_TOKENS:
        second = second_modulus(_eigenvalues(op.double.dense()))
    return best, second


def _ritz_vectors(search: Step, x: Tensor) -> tuple[Tensor, Tensor]:
    """The Ritz vectors of largest real part, as magnitudes, (B, H, N); and all Ritz values."""
    basis, hessenberg = arnoldi(search, x[..., None], min(RITZ_STEPS, x.shape[-1]))
    values, vectors = _eigenvectors(hessenberg[..., :-1, :])
    top = values.real.argmax(-1)[..., None, None]
    weights = vectors.take_along_dim(top, -1).real.to(basis.dtype)
    ritz: Tensor = (weights.mT @ basis[..., :-1, :])[:, :, 0, 0]
    return ritz.abs().double(), values[:, :, 0]


def _bounded(step: Step, x: Tensor, sums: Tensor, goal: float) -> tuple[Tensor, Enclosed]:
    """The vectors that start the next space, and the smoothed vectors with their bounds.

    A product makes tokens that no edge leads to exactly zero, and equivalent tokens equal.
    """
    # A walk along x is at token i for a share of about x_i times its sum on the other side.
    hub = (x * sums).argmax(-1, keepdim=True)
    support, start = reached(step, torch.zeros_like(x).scatter_(-1, hub, 1.0), x, ACCESS_STEPS)
    x = _highest(start.where(support | ~support.any(-1, keepdim=True), 0.0))
    image = step(x)
    spread = torch.full_like(hub[..., 0], torch.inf, dtype=x.dtype)
    for _ in range(SMOOTHING_STEPS):
        lower, upper = enclosed_radius(x, image, support)
        # Hitting times are rarely longer than the number of tokens.
        open_graphs = (upper / lower - 1 > goal / x.shape[-1]) & (upper / lower - 1 < 0.5 * spread)
        if not bool(open_graphs.any()):
            break
        spread = upper / lower - 1
        x = _highest(image)
        image = step(x)
    return start, enclose(step, x, image, support, hub, tol=goal, limit=WALK_STEPS)


def reached(step: Step, start: Tensor, x: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """The tokens that products reach from a start, the start included; and x after the products.

    Args:
        step: product with the graph.
        start: (B, H, N) zero except at the start.
        x: (B, H, N) a vector to multiply at the same time, at least once.
        limit: products at most.

    Returns:
        (B, H, N) bool, all False for a graph that needs more products; and x, its maximum 1.
    """
    reached_tokens = start > 0
    for _ in range(limit):
        x, arrived = step(torch.stack([x, reached_tokens.to(x)], dim=-1)).unbind(-1)
        x = _highest(x)
        wider = reached_tokens | (arrived > 0)
        unchanged = (wider == reached_tokens).all(-1, keepdim=True)
        complete = unchanged | wider.all(-1, keepdim=True)
        reached_tokens = wider
        if bool(complete.all()):
            break
    return reached_tokens & complete, x


def _closer(a: Enclosed, b: Enclosed) -> Enclosed:
    """The vector with the smaller error bound, graph by graph."""
    closer = (b.distance < a.distance) | a.upper.isinf()
    return Enclosed(
        *(
            torch.where(closer[..., None] if y.ndim > closer.ndim else closer, y, x)
            for x, y in zip(a, b, strict=True)
        )
    )


def _highest(x: Tensor) -> Tensor:
    """x scaled to a maximum of 1; zero stays zero."""
    return x / x.amax(-1, keepdim=True).clamp_min(FLOAT64.tiny)


def second_modulus(eigenvalues: Tensor) -> Tensor:
    """The second largest modulus of (B, H, n) eigenvalues; 0 for n = 1."""
    if eigenvalues.shape[-1] == 1:
        return torch.zeros_like(eigenvalues[..., 0].real)
    return eigenvalues.abs().sort(-1).values[..., -2]


def _eigenvalues(matrix: Tensor) -> Tensor:
    """Eigenvalues of (..., n, n), by PyTorch, or by NumPy if PyTorch's LAPACK does not converge.

    MKL's iteration did not converge on a graph of 64 tokens; OpenBLAS's, which NumPy uses, did.
    """
    try:
        values: Tensor = torch.linalg.eigvals(matrix)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        values = torch.from_numpy(np.linalg.eigvals(matrix.numpy(force=True))).to(matrix.device)
    return values


def _eigenvectors(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors, by the same libraries."""
    try:
        values, vectors = torch.linalg.eig(matrix)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        pair = np.linalg.eig(matrix.numpy(force=True))
        values, vectors = (torch.from_numpy(array).to(matrix.device) for array in pair)
    return values, vectors
