"""Token importance as graph centrality, each result with what certifies it.

For a token graph Â and γ in (0, 1) the fundamental matrix F = (I − γÂ)⁻¹ = Σ_t (γÂ)ᵗ counts
visits: F_ij is the expected number of visits to j of a walk that starts at i. Where every row
has γ Σ_j Â_ij ≤ 1 the walk is an absorbing Markov chain. Frobenius normalisation does not ensure
that; the reading that always holds is a branching walk, in which a visit to i begets γÂ_ij visits
to j on average. Every result says how far the chain reading holds: ``min_absorption`` and
``invalid_rows``.

``direction="received"`` scores token j by column j, the attention it gets;
``direction="emitted"`` scores token i by row i, the attention it gives.

Source: Infinite Self-Attention, arXiv 2603.00175; Katz 1953; Brin and Page 1998.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .operator import AttentionOperator

__all__ = ["Centrality", "Perron", "degree", "katz", "pagerank", "perron", "series", "visits"]

Direction = Literal["received", "emitted"]
Start = Literal["uniform", "class"]

#: Up to this many tokens a linear system is solved directly, beyond it by iteration.
DIRECT_TOKENS = 1500
CONSTANT_ON_SOFTMAX = (
    "is the same for every token of a softmax graph, whose rows all sum to 1; use the received "
    "(left) form"
)


@dataclass(frozen=True)
class Centrality:
    """Scores of every token, and what is known of their error.

    Attributes:
        scores: (B, H, N) float64, non-negative; higher is more important.
        error_bound: (B, H) upper bound on ‖scores − exact‖ / ‖scores‖, in the 2-norm for InfSA
            graphs and the 1-norm for softmax graphs.
        iterations: steps of the solver; 0 for a direct solve.
        converged: (B, H) bool, whether ``error_bound`` is within the tolerance.
        min_absorption: (B, H) the smallest R_i = 1 − γ Σ_j Â_ij; negative where the walk is no
            absorbing chain. NaN where no γ is involved.
        invalid_rows: (B, H) the share of rows with R_i < 0.
    """

    scores: Tensor
    error_bound: Tensor
    iterations: int
    converged: Tensor
    min_absorption: Tensor
    invalid_rows: Tensor


@dataclass(frozen=True)
class Perron:
    """A Perron vector of every graph, and how well it satisfies its equation.

    Attributes:
        vector: (B, H, N) float64, unit 2-norm, non-negative; NaN where ``value`` is 0, for a
            graph without cycles has no Perron vector.
        value: (B, H) the spectral radius ρ.
        residual: (B, H) ‖Âv − ρv‖₂ (or ‖Âᵀu − ρu‖₂) in float64, relative to ρ.
        iterations: power steps.
        converged: (B, H) bool, whether ``residual`` is within the tolerance.
        unique: (B, H) bool, whether another start led to the same vector.
    """

    vector: Tensor
    value: Tensor
    residual: Tensor
    iterations: int
    converged: Tensor
    unique: Tensor


def visits(
    op: AttentionOperator,
    gamma: float | Tensor,
    start: Start = "uniform",
    direction: Direction = "received",
    tol: float = 1e-6,
) -> Centrality:
    """Expected visits: sᵀF, or F·1 − 1 for ``direction="emitted"``.

    Args:
        op: token graphs over (B, H).
        gamma: survival per step, a float or (H,), in (0, 1).
        start: s, ``"uniform"`` (1/N each) or ``"class"`` (the first token).
        direction: ``"received"``, visits to each token; ``"emitted"``, further visits that a
            walk from each token makes (Katz), for which the start plays no part.
        tol: bound on the relative error at which to stop.

    Returns:
        :class:`Centrality`.

    Raises:
        ValueError: for γ outside (0, 1), an unknown option, or the emitted form of a softmax
            graph, which is constant.

    >>> q = torch.tensor([[[[1.0, 0], [0, 1]]]])
    >>> op = AttentionOperator(q, q)  # Â = I / √2: each token visits itself
    >>> visits(op, 0.5).scores  # ½ Σ_t (0.5/√2)ᵗ
    tensor([[[0.7735, 0.7735]]], dtype=torch.float64)
    """
    _choice("direction", direction, ("received", "emitted"))
    _choice("start", start, ("uniform", "class"))
    if direction == "emitted":
        return katz(op, gamma, tol=tol)
    rhs = torch.zeros_like(op.ones(), dtype=torch.float64)
    if start == "uniform":
        rhs += 1 / op.num_tokens
    else:
        rhs[..., 0] = 1
    return _solve(op, gamma, rhs, transposed=True, tol=tol)


def katz(
    op: AttentionOperator,
    gamma: float | Tensor,
    direction: Direction = "emitted",
    tol: float = 1e-6,
) -> Centrality:
    """Katz centrality: F·1 − 1 (emitted, the paper's č) or 1ᵀF − 1 (received).

    Args and errors as in :func:`visits`. networkx's Katz is the received one.
    """
    _choice("direction", direction, ("received", "emitted"))
    if direction == "emitted" and op.kind == "softmax":
        raise ValueError(f"emitted Katz {CONSTANT_ON_SOFTMAX}")
    survival = _survival(op, gamma)
    transposed = direction == "received"
    # z = F·1 − 1 solves (I − γÂ) z = γÂ·1 without cancellation.
    rhs = survival * _multiply(op.double, transposed)(op.double.ones())
    return _solve(op, gamma, rhs, transposed=transposed, tol=tol)


def degree(op: AttentionOperator, direction: Direction = "received") -> Centrality:
    """Column sums (received) or row sums (emitted) of Â.

    Raises:
        ValueError: for the emitted form of a softmax graph, which is constant.
    """
    _choice("direction", direction, ("received", "emitted"))
    if direction == "emitted" and op.kind == "softmax":
        raise ValueError(f"the row sum {CONSTANT_ON_SOFTMAX}")
    sums = op.double.column_sums() if direction == "received" else op.double.row_sums()
    zero, nan = torch.zeros_like(sums[..., 0]), torch.full_like(sums[..., 0], torch.nan)
    return Centrality(sums, zero, 0, zero == 0, nan, nan)


def pagerank(
    op: AttentionOperator,
    damping: float = 0.85,
    direction: Direction = "received",
    tol: float = 1e-6,
    max_iterations: int = 1000,
) -> Centrality:
    """PageRank of the graph with rows made stochastic, uniform teleport, dangling rows spread.

    Args:
        op: token graphs over (B, H).
        damping: probability of following an edge, in (0, 1).
        direction: ``"received"`` walks along attention, ``"emitted"`` against it.
        tol: bound on the 1-norm of the error; the scores sum to 1.
        max_iterations: power steps at most.

    Returns:
        :class:`Centrality`; ``min_absorption`` and ``invalid_rows`` play no part.
    """
    _choice("direction", direction, ("received", "emitted"))
    if not 0 < damping < 1:
        raise ValueError(f"damping must lie in (0, 1), got {damping}")
    op64 = op.double
    step = _multiply(op64, direction == "received")
    out_degree = _multiply(op64, direction == "emitted")(op64.ones())
    dangling = out_degree == 0
    inverse = torch.where(dangling, 0.0, 1 / out_degree)
    x = op64.ones() / op.num_tokens
    iterations = 0
    bound = torch.full_like(x[..., 0], torch.inf)
    while iterations < max_iterations and bool((bound > tol).any()):
        iterations += 1
        spread = (x * dangling).sum(-1, keepdim=True) / op.num_tokens
        new = damping * (step(x * inverse) + spread) + (1 - damping) / op.num_tokens
        # The map contracts by the damping in the 1-norm.
        bound = damping / (1 - damping) * (new - x).abs().sum(-1)
        x = new
    nan = torch.full_like(bound, torch.nan)
    return Centrality(x, bound, iterations, bound <= tol, nan, nan)


def perron(
    op: AttentionOperator,
    side: Literal["left", "right"] = "left",
    tol: float = 1e-6,
    max_iterations: int = 2**20,
) -> Perron:
    """The Perron vector: left, uᵀÂ = ρuᵀ (received), or right, Âv = ρv (emitted).

    Power iteration on Â + σI, which converges on periodic graphs too, from two starts; small
    graphs double the number of steps at a time by squaring the matrix.

    Args:
        op: token graphs over (B, H).
        side: ``"left"`` or ``"right"``.
        tol: residual relative to ρ at which to stop.
        max_iterations: power steps at most.

    Returns:
        :class:`Perron`.

    Raises:
        ValueError: for the right vector of a softmax graph, which is constant.

    >>> q = torch.tensor([[[[1.0, 0], [0, 1]]]])
    >>> result = perron(AttentionOperator(q, q))  # Â = I / √2: any vector is a Perron vector
    >>> round(result.value.item(), 4), result.unique.item()
    (0.7071, False)
    """
    _choice("side", side, ("left", "right"))
    if side == "right" and op.kind == "softmax":
        raise ValueError(f"the right Perron vector {CONSTANT_ON_SOFTMAX}")
    op64 = op.double
    step = _multiply(op64, side == "left")
    shift = op64.frobenius_norm()[..., None, None] / 8
    ones = op64.ones()
    acyclic = _acyclic(step, ones)
    generator = torch.Generator().manual_seed(0)
    other = torch.rand(op.num_tokens, generator=generator, dtype=torch.float64).to(ones) + 0.5
    starts = torch.stack([ones, other.expand_as(ones)], dim=-1)  # (B, H, N, 2)
    x, iterations = starts, 0
    for x, iterations in _powers(op64, step, shift, starts, side == "left"):
        y = step(x)
        value = (x * y).sum(2)  # (B, H, 2), Rayleigh quotients
        residual = (y - value[:, :, None] * x).norm(dim=2) / value
        settled = (residual <= tol).all(-1) | acyclic
        if bool(settled.all()) or iterations >= max_iterations:
            break
    agree = (x[..., 0] * x[..., 1]).sum(-1) > 1 - 1e-6
    return Perron(
        torch.where(acyclic[..., None], torch.nan, x[..., 0]),
        torch.where(acyclic, 0.0, value[..., 0]),
        torch.where(acyclic, 0.0, residual[..., 0]),
        iterations,
        acyclic | (residual[..., 0] <= tol),
        agree & ~acyclic,
    )


def _powers(
    op: AttentionOperator,
    step: Callable[[Tensor], Tensor],
    shift: Tensor,
    x: Tensor,
    transposed: bool,
) -> Iterator[tuple[Tensor, int]]:
    """(Â + σI)ᵗ x with unit columns, for growing t."""
    tiny = torch.finfo(x.dtype).tiny
    if op.num_tokens <= DIRECT_TOKENS:
        matrix = op.dense().transpose(-2, -1) if transposed else op.dense()
        power = matrix + shift * torch.eye(op.num_tokens, dtype=x.dtype, device=x.device)
        steps = 1
        while True:
            y = power @ x
            yield y / y.norm(dim=2, keepdim=True).clamp_min(tiny), steps
            power = power @ power
            power = power / power.amax((-2, -1), keepdim=True).clamp_min(tiny)
            steps *= 2
    steps = 0
    while True:
        for _ in range(10):
            x = step(x) + shift * x
            x = x / x.norm(dim=2, keepdim=True).clamp_min(tiny)
        steps += 10
        yield x, steps


def series(
    ops: Sequence[AttentionOperator],
    gammas: Sequence[float | Tensor],
    start: Start = "uniform",
) -> Tensor:
    """sᵀS_L of the layer series S_L = Σ_t M⁽ᵗ⁾ … M⁽¹⁾, by Horner's rule: (B, N).

    M⁽ˡ⁾ is the mean over heads of γ_h Â_h of layer l. A residual stack computes Π(I + M⁽ˡ⁾),
    which has more terms and is a different thing.

    Args:
        ops: one a layer, first to last.
        gammas: one a layer, each a float or (H,).
        start: s, ``"uniform"`` or ``"class"``.
    """
    _choice("start", start, ("uniform", "class"))
    batch, _, tokens = ops[0].shape
    s = ops[0].q.new_zeros(batch, tokens)
    if start == "uniform":
        s += 1 / tokens
    else:
        s[:, 0] = 1
    z = torch.zeros_like(s)
    for op, gamma in zip(reversed(ops), reversed(gammas), strict=True):
        x = (s + z)[:, None].expand(op.shape)
        z = (_survival(op, gamma).to(x.dtype) * op.apply_transposed(x)).mean(1)
    return z


def _solve(
    op: AttentionOperator, gamma: float | Tensor, rhs: Tensor, *, transposed: bool, tol: float
) -> Centrality:
    """x = (I − γÂ)⁻¹ rhs, or with Âᵀ, certified by its residual in float64.

    InfSA graphs: ‖x − x*‖₂ ≤ ‖r‖₂ / (1 − γ‖Â‖_F). Softmax graphs: the columns of Pᵀ sum to 1,
    so ‖x − x*‖₁ ≤ ‖r‖₁ / (1 − γ).
    """
    survival = _survival(op, gamma)  # (H, 1)
    op64 = op.double
    step = _multiply(op64, transposed)
    norm = 1 if op.kind == "softmax" else 2
    contraction = survival[..., 0] * (1 if op.kind == "softmax" else op64.frobenius_norm())

    def bound(x: Tensor) -> Tensor:
        residual = rhs + survival * step(x) - x
        size = torch.linalg.vector_norm(x, norm, dim=-1)
        rounding = 4 * torch.finfo(torch.float64).eps * op.num_tokens * size
        error = (torch.linalg.vector_norm(residual, norm, dim=-1) + rounding) / (1 - contraction)
        return torch.where(size > 0, error / size, error)

    iterations = 0
    if op.num_tokens <= DIRECT_TOKENS:
        matrix = op64.dense()
        matrix = matrix.transpose(-2, -1) if transposed else matrix
        identity = torch.eye(op.num_tokens, dtype=matrix.dtype, device=matrix.device)
        x = torch.linalg.solve(identity - survival[..., None] * matrix, rhs)
    else:
        x = rhs
        limit = 10 + int(torch.log(torch.tensor(tol)) / torch.log(contraction.max()))
        while iterations < 2 * limit and not bool((bound(x) <= tol).all()):
            for _ in range(10):
                x = rhs + survival * step(x)
            iterations += 10
    error_bound = bound(x)
    absorption = 1 - survival * op64.row_sums()
    return Centrality(
        x,
        error_bound,
        iterations,
        error_bound <= tol,
        absorption.amin(-1),
        (absorption < 0).double().mean(-1),
    )


def _acyclic(step: Callable[[Tensor], Tensor], alive: Tensor) -> Tensor:
    """Which graphs have no cycle (ρ = 0), (B, H) bool.

    Tokens that nothing leads to are on no cycle; they are peeled off until none is left or
    each that is left has a predecessor.
    """
    while True:
        left = alive * (step(alive) > 0)
        if torch.equal(left, alive):
            return (alive == 0).all(-1)
        alive = left


def _multiply(op: AttentionOperator, transposed: bool) -> Callable[[Tensor], Tensor]:
    return op.apply_transposed if transposed else op.apply


def _survival(op: AttentionOperator, gamma: float | Tensor) -> Tensor:
    """γ as (H, 1) float64, checked."""
    heads = op.shape[1]
    survival = torch.as_tensor(gamma, dtype=torch.float64, device=op.q.device)
    if survival.numel() not in (1, heads):
        raise ValueError(
            f"gamma must be one number or one per head ({heads}), got {survival.shape}"
        )
    if not bool(((survival > 0) & (survival < 1)).all()):
        raise ValueError(f"gamma must lie in (0, 1), got {survival.flatten().tolist()}")
    return survival.reshape(-1, 1).expand(heads, 1)


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
