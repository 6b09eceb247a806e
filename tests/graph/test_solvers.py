"""Solutions against inverses and 80-bit arithmetic, bounds against true errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from token_graphs import by_definition, queries_keys

import infsa_explain.graph.solvers as solvers
from infsa_explain.graph.centrality import katz, visits
from infsa_explain.graph.operator import AttentionOperator
from infsa_explain.graph.solvers import Contraction, arnoldi, fixed_point, solve

GAMMA = torch.tensor([0.3, 0.95])
#: DIRECT_TOKENS, so that both solvers are tested.
SOLVERS = pytest.mark.parametrize("direct", [128, 0], ids=["direct", "iterated"])
#: kind and whether transposed, with the norm of the bound.
SYSTEMS = {
    ("infsa", True): 2,
    ("infsa", False): 2,
    ("softmax", True): 1,
    ("softmax", False): np.inf,
}


def matrices(op, transposed):
    """Â or Âᵀ of every graph in numpy float64, from q and k."""
    return by_definition(op).swapaxes(-2, -1) if transposed else by_definition(op)


def relative_error(x, exact, norm):
    """‖x − exact‖ / ‖x‖ over the last axis, absolute where x is zero."""
    size = np.linalg.norm(x, norm, axis=-1)
    difference = (x - exact).astype(np.float64)
    return np.linalg.norm(difference, norm, axis=-1) / np.where(size > 0, size, 1)


@SOLVERS
@pytest.mark.parametrize(("kind", "transposed"), SYSTEMS)
def test_solutions_are_the_inverse_applied(kind, transposed, direct, monkeypatch):
    monkeypatch.setattr(solvers, "DIRECT_TOKENS", direct)
    op = AttentionOperator(*queries_keys(tokens=40), kind)
    rhs = torch.rand(2, 2, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    result = solve(op, GAMMA, rhs, transposed=transposed, tol=1e-11)
    system = np.eye(40) - GAMMA.double().numpy()[:, None, None] * matrices(op, transposed)
    expected = np.linalg.solve(system, rhs[..., None].numpy())[..., 0]
    np.testing.assert_allclose(result.x.numpy(), expected, rtol=0, atol=1e-10)
    assert result.converged.all()
    assert (result.iterations == 0) == bool(direct)


@pytest.mark.parametrize("tokens", [97, 128, 129, 200, 400])
def test_many_graphs_at_once_on_several_threads(tokens):
    """PyTorch's batched LU goes wrong on two threads beyond 128 rows (pytorch#142815)."""
    threads = torch.get_num_threads()
    op = AttentionOperator(*queries_keys(2, 4, tokens))
    rhs = torch.full((2, 4, tokens), 1 / tokens, dtype=torch.float64)
    try:
        torch.set_num_threads(2)
        result = solve(op, 0.95, rhs, transposed=True, tol=1e-9)
    finally:
        torch.set_num_threads(threads)
    system = np.eye(tokens) - 0.95 * matrices(op, transposed=True)
    expected = np.linalg.solve(system, rhs[..., None].numpy())[..., 0]
    assert (relative_error(result.x.numpy(), expected, 2) <= 1e-9).all()
    assert result.converged.all()


def test_a_system_too_large_for_its_matrix_is_iterated(monkeypatch):
    op = AttentionOperator(*queries_keys(tokens=9))
    rhs = torch.ones(2, 2, 9, dtype=torch.float64)
    size = 4 * 9 * 9 * 8
    for limit, direct in ((size, True), (size - 1, False)):
        monkeypatch.setattr(solvers, "DIRECT_BYTES", limit)
        assert (solve(op, 0.9, rhs).iterations == 0) == direct


# ---------------------------------------------------------------- bounds


def long_double_solution(a, gamma, rhs):
    """x = rhs + γAx iterated in 80-bit arithmetic until it stands still."""
    a, rhs = np.longdouble(gamma) * a.astype(np.longdouble), rhs.astype(np.longdouble)
    x, last = rhs, None
    while last is None or np.abs(x - last).max() > 1e-19 * np.abs(x).max():
        x, last = rhs + a @ x, x
    return x


def long_double_graph(op, transposed):
    """Â or Âᵀ of the only graph in 80-bit arithmetic, from q and k."""
    q, k = (x.double().numpy().astype(np.longdouble)[0, 0] for x in (op.q, op.k))
    products = q @ k.T
    if op.kind == "softmax":
        products = np.longdouble(op.scale) * products
        e = np.exp(products - products.max(1, keepdims=True))
        a = e / e.sum(1, keepdims=True)
    else:
        a = np.maximum(products / q.shape[1], 0)
        a = a / (np.sqrt((a * a).sum()) + np.longdouble(1e-6))
    return a.T if transposed else a


def random_graph(seed, tokens, width, shift, scale, zeros, dtype):
    """q and k, some of whose tokens are zero."""
    pair = [scale * (x + shift) for x in queries_keys(1, 1, tokens, width, seed)]
    masks = torch.rand(2, tokens, 1, generator=torch.Generator().manual_seed(seed)) < zeros
    return [x.masked_fill(mask, 0).to(dtype) for x, mask in zip(pair, masks, strict=True)]


graphs_at_random = st.builds(
    random_graph,
    seed=st.integers(0, 2**31),
    tokens=st.integers(1, 30),
    width=st.integers(1, 8),
    shift=st.sampled_from([-0.5, 0.0, 0.5, 3.0]),
    scale=st.sampled_from([1e-3, 0.3, 1.0, 3.0]),
    zeros=st.sampled_from([0.0, 0.3, 0.9]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
#: Bytes that the operator may keep, enough or not: the search is in float64, or as given.
bytes_at_random = st.sampled_from([2**20, 1000])
systems_at_random = st.sampled_from(sorted(SYSTEMS))


@SOLVERS
@given(
    pair=graphs_at_random,
    gamma=st.sampled_from([0.05, 0.5, 0.95, 0.99]),
    system=systems_at_random,
    token=st.integers(-1, 29),
    tol=st.sampled_from([1e-3, 1e-6, 1e-10]),
    max_bytes=bytes_at_random,
)
def test_the_error_bound_holds(direct, pair, gamma, system, token, tol, max_bytes):
    """On graphs of every shape, from a uniform start and from one token (a sparse right side)."""
    kind, transposed = system
    op = AttentionOperator(*pair, kind, max_bytes=max_bytes)
    n = op.num_tokens
    rhs = np.full(n, 1 / n) if token < 0 else np.eye(n)[token % n]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solvers, "DIRECT_TOKENS", direct)
        result = solve(op, gamma, torch.from_numpy(rhs)[None, None], transposed=transposed, tol=tol)
    exact = long_double_solution(long_double_graph(op, transposed), gamma, rhs)
    x = result.x[0, 0].numpy()
    assert relative_error(x, exact, SYSTEMS[system]) <= result.error_bound.item() <= tol
    assert result.converged.item()
    assert (x >= rhs).all()
    unreachable = matrices(op, transposed)[0, 0].sum(1) == 0
    assert (x[unreachable] == rhs[unreachable]).all()


@given(
    pair=graphs_at_random,
    gamma=st.sampled_from([0.5, 0.95, 0.999]),
    system=systems_at_random,
    limit=st.integers(1, 30),
    max_bytes=bytes_at_random,
)
def test_the_error_bound_holds_where_the_search_is_cut_short(pair, gamma, system, limit, max_bytes):
    kind, transposed = system
    op = AttentionOperator(*pair, kind, max_bytes=max_bytes)
    rhs = np.eye(op.num_tokens)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solvers, "DIRECT_TOKENS", 0)
        result = solve(
            op,
            gamma,
            torch.from_numpy(rhs)[None, None],
            transposed=transposed,
            tol=1e-12,
            max_iterations=limit,
        )
    exact = long_double_solution(long_double_graph(op, transposed), gamma, rhs)
    error = relative_error(result.x[0, 0].numpy(), exact, SYSTEMS[system])
    assert error <= result.error_bound.item()
    assert result.converged.item() == (result.error_bound.item() <= 1e-12)
    assert result.iterations <= max(limit, 2)  # one to search, one to see


def test_the_neumann_series_steps_in_where_krylov_spaces_of_the_2_norm_stall():
    """Attention so sharp that ‖Pᵀ‖₂ is far above 1; GMRES alone stands still at a bound of 50."""
    q, k = queries_keys(1, 1, 300, 64)
    op = AttentionOperator(6 * q, 6 * k, "softmax")
    rhs = torch.full((1, 1, 300), 1 / 300, dtype=torch.float64)
    result = solve(op, 0.99, rhs, transposed=True)
    system = np.eye(300) - 0.99 * matrices(op, transposed=True)
    exact = np.linalg.solve(system, rhs[..., None].numpy())[..., 0]
    error = relative_error(result.x.numpy(), exact, 1)
    assert error.item() <= result.error_bound.item() <= 1e-6
    assert result.converged.item()
    assert result.iterations < 2000


def test_a_wrong_answer_is_not_certified(monkeypatch):
    """With the solver spoilt by 1%, the bound covers the error and convergence is denied."""
    op = AttentionOperator(*queries_keys())
    rhs = torch.full((2, 2, 9), 1 / 9, dtype=torch.float64)
    direct = torch.linalg.solve
    monkeypatch.setattr(torch.linalg, "solve", lambda a, b: direct(a, b) * 1.01)
    result = solve(op, GAMMA, rhs, max_iterations=0)
    system = np.eye(9) - GAMMA.double().numpy()[:, None, None] * matrices(op, False)
    exact = np.linalg.solve(system, rhs[..., None].numpy())[..., 0]
    relative = relative_error(result.x.numpy(), exact, 2)
    assert (relative <= result.error_bound.numpy()).all()
    # One exact step from 1.01 x* is off by 0.01 γÂx* = 0.01 (x* − b).
    off = 0.01 * np.linalg.norm(exact - rhs.numpy(), axis=-1)
    size = np.linalg.norm(result.x.numpy(), axis=-1)
    np.testing.assert_allclose(relative, off / size, rtol=0, atol=1e-12)
    assert not result.converged.any()


def test_a_wrong_answer_is_mended(monkeypatch):
    """The same, left to go on: the iteration takes over where the direct solve failed."""
    op = AttentionOperator(*queries_keys())
    expected = visits(op, GAMMA).scores
    direct = torch.linalg.solve
    monkeypatch.setattr(torch.linalg, "solve", lambda a, b: direct(a, b) * 1.01)
    result = visits(op, GAMMA, tol=1e-10)
    np.testing.assert_allclose(result.scores.numpy(), expected.numpy(), rtol=0, atol=1e-10)
    assert result.converged.all()
    assert result.iterations > 0


@SOLVERS
def test_an_impossible_tolerance_is_given_up_not_claimed(direct, monkeypatch):
    monkeypatch.setattr(solvers, "DIRECT_TOKENS", direct)
    op = AttentionOperator(*queries_keys())
    for kind in (op, AttentionOperator(*queries_keys(), "softmax")):
        result = katz(kind, GAMMA, "received", tol=1e-17)
        assert not result.converged.any()
        assert (result.error_bound > 1e-17).all()
        assert (result.error_bound < 1e-12).all()  # and yet as good as float64 can be
        assert result.iterations < 100


def test_no_bound_without_contraction():
    """x = b + Mx of an M with ‖M‖ = 2 has a solution, and no certificate."""
    rhs = torch.ones(1, 1, 3, dtype=torch.float64)
    twice = Contraction(
        lambda x: 4 * x,
        torch.full((1, 1), 0.5, dtype=torch.float64),
        norm=2,
        factor=torch.full((1, 1), 2.0, dtype=torch.float64),
        rounding=1e-15,
    )
    result = fixed_point(twice, rhs, max_iterations=20)
    assert result.error_bound.item() == np.inf
    assert not result.converged.item()


@pytest.mark.parametrize("gamma", [0, 1, -0.1, 1.5, float("nan"), torch.tensor([0.5, 1.0])])
def test_gamma_outside_the_unit_interval_is_refused(gamma):
    """Whatever ρ: a graph without edges would converge with any γ."""
    for q in (torch.zeros(1, 2, 3, 2), *queries_keys(1)):
        op = AttentionOperator(q, q)
        with pytest.raises(ValueError, match=r"gamma must lie in \(0, 1\), got"):
            solve(op, gamma, op.double.ones())


def test_gamma_may_be_the_parameter_of_a_model():
    """A leaf that needs a gradient, in float32: nothing flows back, nothing is changed."""
    op = AttentionOperator(*queries_keys())
    gamma = torch.nn.Parameter(GAMMA.clone())
    result = solve(op, gamma, op.double.ones())
    assert torch.equal(result.x, solve(op, GAMMA, op.double.ones()).x)
    assert not result.x.requires_grad
    assert gamma.grad is None
    assert torch.equal(gamma, GAMMA)


# ---------------------------------------------------------------- Arnoldi


@given(seed=st.integers(0, 2**31), tokens=st.integers(2, 20), columns=st.integers(1, 3))
def test_arnoldi_spans_the_krylov_space(seed, tokens, columns):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(2, 2, tokens, tokens))
    start = torch.from_numpy(rng.normal(size=(2, 2, tokens, columns)))
    assume(start.norm(dim=2).min() > 1e-3)
    steps = tokens - 1
    basis, hessenberg = arnoldi(lambda x: torch.from_numpy(a) @ x, start, steps)
    assert basis.shape == (2, 2, columns, steps + 1, tokens)
    v = basis.numpy().swapaxes(-2, -1)  # columns are basis vectors
    image = a[:, :, None] @ v[..., :-1]
    np.testing.assert_allclose(image, v @ hessenberg.numpy(), rtol=0, atol=1e-9)
    gram = v.swapaxes(-2, -1) @ v
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(tokens), gram.shape), atol=1e-9)
    direction = start.numpy().swapaxes(-2, -1)
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    np.testing.assert_allclose(v[..., 0], direction, rtol=0, atol=1e-14)


def test_arnoldi_stops_where_the_space_is_exhausted():
    """Rank one: the space of a start has two dimensions, and the rest of the basis is zero."""
    rng = np.random.default_rng(0)
    a = torch.from_numpy(np.outer(rng.random(8), rng.random(8)))[None, None]
    start = torch.from_numpy(rng.random((1, 1, 8, 1)))
    basis, hessenberg = arnoldi(lambda x: a @ x, start, 5)
    sizes = basis.norm(dim=-1).flatten()
    np.testing.assert_allclose(sizes.numpy(), [1, 1, 0, 0, 0, 0], rtol=0, atol=1e-12)
    assert (hessenberg[..., 2:, :] == 0).all()
