"""Centralities against inverses, eigensolvers, networkx and walks whose visits are counted."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from token_graphs import by_definition, close, graph, normalised, queries_keys

import infsa_explain.graph.centrality as centrality
import infsa_explain.graph.solvers as solvers
from infsa_explain.graph.centrality import (
    degree,
    doob_visits,
    katz,
    pagerank,
    perron,
    series,
    visits,
)
from infsa_explain.graph.operator import AttentionOperator

GAMMA = torch.tensor([0.3, 0.95])
#: DIRECT_TOKENS, so that both solvers are tested.
SOLVERS = pytest.mark.parametrize("direct", [128, 0], ids=["direct", "iterated"])
DIRECTIONS = pytest.mark.parametrize("direction", ["received", "emitted"])


def operator(*args, kind="infsa", **kwargs):
    return AttentionOperator(*queries_keys(*args, **kwargs), kind)


def fundamental(op, gamma):
    """F = (I − γÂ)⁻¹ by inversion, (B, H, N, N)."""
    gamma = np.asarray(gamma, dtype=np.float64).reshape(-1, 1, 1)
    return np.linalg.inv(np.eye(op.num_tokens) - gamma * by_definition(op))


@pytest.fixture
def solver(monkeypatch, direct):
    monkeypatch.setattr(solvers, "DIRECT_TOKENS", direct)
    return 1e-11 if direct else 1e-9  # absolute tolerance of the comparison


# ---------------------------------------------------------------- visits, Katz, degree


@SOLVERS
@pytest.mark.parametrize("kind", ["infsa", "softmax"])
@pytest.mark.parametrize("start", ["uniform", "class"])
def test_visits_are_the_rows_of_the_fundamental_matrix(kind, start, solver, direct):
    op = operator(kind=kind)
    s = np.full(9, 1 / 9) if start == "uniform" else np.eye(9)[0]
    result = visits(op, GAMMA, start=start, tol=1e-10)
    close(result.scores, s @ fundamental(op, GAMMA), solver)
    assert result.converged.all()
    assert (result.iterations == 0) == bool(direct)
    assert result.scores.dtype == torch.float64


@SOLVERS
@DIRECTIONS
def test_katz_is_the_fundamental_matrix_less_one(direction, solver):
    op = operator()
    for gamma in (GAMMA, torch.tensor(0.5)):
        expected = fundamental(op, gamma).sum(-1 if direction == "emitted" else -2) - 1
        close(katz(op, gamma, direction, tol=1e-10).scores, expected, solver)


def test_emitted_visits_are_katz():
    op = operator()
    assert torch.equal(visits(op, 0.9, direction="emitted").scores, katz(op, 0.9).scores)


def test_katz_received_is_networkx_katz():
    """networkx: x = α Aᵀ x + 1, of which the 1 is the token itself."""
    op = operator(batch=1, heads=1)
    g = nx.from_numpy_array(by_definition(op)[0, 0], create_using=nx.DiGraph)
    x = nx.katz_centrality_numpy(g, alpha=0.7, beta=1.0, normalized=False, weight="weight")
    close(katz(op, 0.7, "received").scores[0, 0], np.array(list(x.values())) - 1)


@DIRECTIONS
def test_degree_is_column_or_row_sums(direction):
    op = operator()
    result = degree(op, direction)
    close(result.scores, by_definition(op).sum(-1 if direction == "emitted" else -2), 1e-14)
    assert (result.error_bound > 0).all() and (result.error_bound < 1e-14).all()  # rounding
    assert result.min_absorption.isnan().all()  # no γ in it


# ---------------------------------------------------------------- on random graphs


def random_graph(seed, tokens, width, shift, scale, zeros):
    """q and k, some of whose tokens are zero."""
    pair = [scale * (x + shift) for x in queries_keys(1, 2, tokens, width, seed)]
    masks = torch.rand(2, tokens, 1, generator=torch.Generator().manual_seed(seed)) < zeros
    return [x.masked_fill(mask, 0) for x, mask in zip(pair, masks, strict=True)]


graphs_at_random = st.builds(
    random_graph,
    seed=st.integers(0, 2**31),
    tokens=st.integers(2, 20),
    width=st.integers(1, 8),
    shift=st.sampled_from([0.0, 0.5, 3.0]),
    scale=st.sampled_from([0.1, 1.0, 3.0]),
    zeros=st.sampled_from([0.0, 0.3, 0.8]),
)
kinds = st.sampled_from(["infsa", "softmax"])


@given(pair=graphs_at_random)
def test_received_on_a_graph_is_emitted_on_its_transpose(pair):
    q, k = pair
    op, transposed = AttentionOperator(q, k), AttentionOperator(k, q)
    for a, b in (
        (katz(op, GAMMA, "received"), katz(transposed, GAMMA, "emitted")),
        (degree(op, "received"), degree(transposed, "emitted")),
        (pagerank(op, direction="received"), pagerank(transposed, direction="emitted")),
    ):
        close(a.scores, b.scores.numpy(), 1e-13)
    close(perron(op, "left").vector, perron(transposed, "right").vector.numpy(), 1e-13)


@given(pair=graphs_at_random, kind=kinds, seed=st.integers(0, 100))
def test_permuting_tokens_permutes_scores(pair, kind, seed):
    q, k = pair
    order = torch.randperm(q.shape[2], generator=torch.Generator().manual_seed(seed))
    op = AttentionOperator(q, k, kind)
    shuffled = AttentionOperator(q[:, :, order], k[:, :, order], kind)
    functions = [
        lambda o: visits(o, GAMMA).scores,
        lambda o: katz(o, GAMMA, "received").scores,
        lambda o: degree(o).scores,
        lambda o: pagerank(o, tol=1e-12).scores,
        lambda o: series([o, o], [0.9, 0.8])[:, None],
    ]
    for f, rtol in zip(functions, [1e-12] * 3 + [1e-10, 1e-12], strict=True):
        close(f(shuffled), f(op)[..., order].numpy(), atol=1e-15, rtol=rtol)
    a, b = perron(shuffled, tol=1e-12), perron(op, tol=1e-12)
    sure = (b.unique & b.converged & (b.gap > 0.01))[..., None]
    close(a.vector.where(sure, 0), b.vector[..., order].where(sure, 0).numpy(), 1e-9)
    if kind == "infsa":
        a, b = doob_visits(shuffled, GAMMA).scores, doob_visits(op, GAMMA).scores[..., order]
        sure &= (perron(op, "right").gap > 0.01)[..., None]
        close(a.where(sure, 0), b.where(sure, 0).numpy(), 1e-7)


@given(pair=graphs_at_random, kind=kinds)
def test_small_gamma_ranks_as_degree(pair, kind):
    """N sᵀF = 1 + γ·in-degree + O(γ²), and no two tokens of distinct degree change places."""
    op = AttentionOperator(*pair, kind)
    gamma = 1e-6
    received = (op.num_tokens * visits(op, gamma).scores - 1) / gamma
    wanted = degree(op).scores
    close(received, wanted.numpy(), 1e-8, rtol=1e-4)
    higher = wanted[..., :, None] > wanted[..., None, :] + 1e-3
    assert (received[..., :, None] > received[..., None, :])[higher].all()
    if kind == "infsa":
        close(katz(op, gamma).scores / gamma, degree(op, "emitted").scores.numpy(), 1e-8, 1e-4)


@given(
    pair=graphs_at_random,
    kind=kinds,
    gammas=st.lists(st.floats(0.01, 0.99), min_size=2, max_size=2, unique=True),
)
def test_scores_grow_with_gamma(pair, kind, gammas):
    """Σ_t (γÂ)ᵗ has no negative term. What is equal may differ by the bounds."""
    op = AttentionOperator(*pair, kind)
    less, more = sorted(gammas)
    for f in (visits, lambda o, g: visits(o, g, "class"), lambda o, g: katz(o, g, "received")):
        low, high = f(op, less), f(op, more)
        slack = high.error_bound * high.scores.sum(-1) + low.error_bound * low.scores.sum(-1)
        assert (low.scores <= high.scores + slack[..., None]).all()
    total = degree(op).scores.sum(-1) > 0
    assert (visits(op, more).scores.sum(-1) > visits(op, less).scores.sum(-1))[total].all()


@given(pair=graphs_at_random, damping=st.sampled_from([0.5, 0.85]), steps=st.integers(1, 40))
def test_the_bound_of_pagerank_holds(pair, damping, steps):
    op = AttentionOperator(*pair)
    result = pagerank(op, damping, tol=1e-14, max_iterations=steps)
    a, n = by_definition(op), op.num_tokens
    rows = a.sum(-1, keepdims=True)
    p = np.where(rows > 0, a / np.where(rows > 0, rows, 1), 1 / n).swapaxes(-2, -1)
    exact = np.linalg.solve(np.eye(n) - damping * p, np.full((1, 2, n, 1), (1 - damping) / n))
    error = np.abs(result.scores.numpy() - exact[..., 0]).sum(-1)
    assert (error <= result.error_bound.numpy()).all()


def unguarded_visits(a, gamma):
    """sᵀ(I − γA)⁻¹ for any γ, by inversion."""
    return np.linalg.inv(np.eye(len(a)) - gamma * a).mean(0)


@given(pairs=st.tuples(*[graphs_at_random] * 4))
def test_visits_become_the_perron_vector_as_gamma_reaches_its_limit(pairs):
    """γρ → 1, which for ρ < 1 is beyond γ < 1: the pole of F at 1/ρ has the left vector."""
    tried = 0
    for op in (AttentionOperator(*pair) for pair in pairs):
        left, right = perron(op, tol=1e-12), perron(op, "right", tol=1e-12)
        # Near a defective eigenvalue the limit is there, but far.
        overlap = (left.vector * right.vector).sum(-1)
        sure = left.unique & right.unique & (left.gap > 0.05) & (overlap > 0.05)
        for index in sure.nonzero().tolist():
            vector, rho = left.vector[*index].numpy(), left.value[*index].item()
            x = unguarded_visits(by_definition(op)[*index], (1 - 1e-8) / rho)
            np.testing.assert_allclose(x / np.linalg.norm(x), vector, rtol=0, atol=1e-4)
            tried += 1
    assume(tried)


# ---------------------------------------------------------------- simulated walks


def test_a_branching_walk_visits_as_often():
    """Each visit to i begets Poisson(γÂ_ij) visits to j; 20,000 walks, within 4 standard errors.

    The graph is a star whose middle attends to everyone with row sum 2.4: no absorbing chain.
    """
    wanted = np.zeros((8, 8))
    wanted[0, 1:] = 1
    wanted[1:, 0] = 0.3
    wanted[3, 3] = 0.5
    op, gamma, walks = graph(wanted), 0.95, 20_000
    result = visits(op, gamma, start="class")
    step = gamma * normalised(wanted)
    assert step[0].sum() > 1
    assert result.min_absorption.item() == pytest.approx(1 - step[0].sum(), abs=1e-12)
    rng = np.random.default_rng(0)
    here = np.zeros((walks, 8), dtype=np.int64)
    here[:, 0] = 1
    total = here.copy()
    while here.any():
        here = rng.poisson(here @ step)  # a sum of independent Poisson draws is one
        total += here
    error = total.std(0, ddof=1) / np.sqrt(walks)
    assert (np.abs(total.mean(0) - result.scores[0, 0].numpy()) < 4 * error).all()
    assert (error < 0.03).all()  # the interval is narrow enough to tell 1.6 visits from 1.7


def test_an_absorbing_walk_visits_as_often():
    """From a uniform start, absorbed with R_i; 40,000 walks, within 4 standard errors."""
    rng = np.random.default_rng(0)
    wanted = np.abs(rng.normal(size=(6, 6))) * (rng.random((6, 6)) < 0.5)
    np.fill_diagonal(wanted, 2)
    op, gamma, walks = graph(wanted), 0.9, 40_000
    result = visits(op, gamma)
    step = gamma * normalised(wanted)
    assert (step.sum(1) < 1).all()
    assert result.invalid_rows.item() == 0
    limits = np.cumsum(step, 1)
    where = rng.integers(6, size=walks)
    alive = np.arange(walks)
    total = np.zeros((walks, 6))
    while len(alive):
        total[alive, where] += 1
        where = (rng.random((len(alive), 1)) > limits[where]).sum(1)  # 6: absorbed
        alive, where = alive[where < 6], where[where < 6]
    error = total.std(0, ddof=1) / np.sqrt(walks)
    assert (np.abs(total.mean(0) - result.scores[0, 0].numpy()) < 4 * error).all()
    assert (error < 0.01).all()


# ---------------------------------------------------------------- Doob's walk


def doob_chain(a):
    """P, ρ and the support of h, from LAPACK's right eigenvector."""
    values, vectors = np.linalg.eig(a)
    top = np.argmax(values.real)
    h, rho = np.abs(vectors[:, top].real), values[top].real
    support = h > 1e-12
    h = np.where(support, h, 0)
    p = np.divide(a * h, rho * h[:, None], out=np.zeros_like(a), where=support[:, None])
    return p, rho, support


#: Tokens 0 to 2 strongly connected, 3 leads there by a weak link, 4 and 5 only to each other.
PARTLY = np.array(
    [
        [0, 2, 1, 0, 0, 1],
        [1, 0, 3, 0, 0, 0],
        [2, 1, 1, 0, 0, 0],
        [1e-6, 0, 0, 0.5, 1, 0],
        [0, 0, 0, 0, 0, 1],
        [0, 0, 0, 0, 1, 0],
    ]
)


@pytest.mark.parametrize("start", ["uniform", "class"])
def test_doob_visits_are_those_of_its_chain(start):
    for op in (operator(tokens=12), graph(PARTLY)):
        result = doob_visits(op, 0.9, start, tol=1e-10)
        for index in np.ndindex(*op.shape[:2]):
            p, rho, support = doob_chain(by_definition(op)[index])
            np.testing.assert_allclose(p.sum(1), support, rtol=0, atol=1e-9)  # a chain
            s = support / support.sum() if start == "uniform" else np.eye(len(p))[0]
            expected = np.linalg.solve(np.eye(len(p)) - 0.9 * rho * p.T, s)
            close(result.scores[index], expected, 1e-8)
            assert result.scores[index].sum().item() == pytest.approx(1 / (1 - 0.9 * rho), abs=1e-8)
            assert result.min_absorption[index].item() == pytest.approx(1 - 0.9 * rho, abs=1e-8)
        assert result.converged.all()
        assert (result.invalid_rows == 0).all()


def test_doob_visits_are_the_fundamental_matrix_transformed():
    """F_ij h_j / h_i, a score of its own."""
    op = operator(tokens=12, batch=1, heads=1)
    h = perron(op, "right", tol=1e-12).vector[0, 0].numpy()
    f = fundamental(op, 0.95)[0, 0]
    result = doob_visits(op, 0.95, tol=1e-10).scores[0, 0]
    close(result, (f * h / h[:, None]).mean(0), 1e-8)
    assert np.abs(result.numpy() - f.mean(0)).max() > 0.05


def test_doobs_walk_visits_as_often():
    """From a uniform start, surviving each step with γρ; 40,000 walks, within 4 standard errors.

    The star of the branching walk, which is no absorbing chain: Doob's is.
    """
    wanted = np.zeros((8, 8))
    wanted[0, 1:] = np.arange(1, 8)
    wanted[1:, 0] = 0.3
    wanted[3, 3] = 0.5
    op, gamma, walks = graph(wanted), 0.95, 40_000
    result = doob_visits(op, gamma)
    assert visits(op, gamma).invalid_rows.item() == 1 / 8
    assert result.invalid_rows.item() == 0
    p, rho, _ = doob_chain(normalised(wanted))
    limits = np.cumsum(p, 1)
    rng = np.random.default_rng(0)
    where, alive = rng.integers(8, size=walks), np.arange(walks)
    total = np.zeros((walks, 8))
    while len(alive):
        total[alive, where] += 1
        survives = rng.random(len(alive)) < gamma * rho
        alive, where = alive[survives], where[survives]
        where = (rng.random((len(alive), 1)) > limits[where]).sum(1).clip(max=7)
    error = total.std(0, ddof=1) / np.sqrt(walks)
    assert (np.abs(total.mean(0) - result.scores[0, 0].numpy()) < 4 * error).all()
    assert (error < 0.01).all()


def test_doobs_support():
    """Tokens 4 and 5 do not reach the strongest part and score 0; the weak link of 3 counts."""
    result = doob_visits(graph(PARTLY), 0.9)
    scores = result.scores[0, 0]
    assert scores[[4, 5]].tolist() == [0, 0]
    assert (scores[:4] > 0.25).all()
    order = [4, 1, 2, 3, 0, 5]
    off = doob_visits(graph(PARTLY[np.ix_(order, order)]), 0.9, "class")
    assert off.scores.isnan().all()
    assert off.error_bound.isnan().all()
    assert not off.converged.any()


def test_doobs_walk_where_links_differ_by_orders_of_magnitude():
    """Two tokens, Â_01 = a and Â_10 = b: h = (1, √(b/a)), and both walks visit alike."""
    for b in (1.0, 1e-10, 1e-30, 1e-45):
        _, growth, _ = centrality._harmonic(graph(np.array([[0.0, 1.0], [b, 0.0]])))
        np.testing.assert_allclose(growth[0, 0], growth[0, 0, 0].expand(2), rtol=1e-9)
        result = doob_visits(graph(np.array([[0.0, 1.0], [b, 0.0]])), 0.5)
        assert result.converged.all()
        total = 1 / (1 - 0.5 * np.sqrt(b / (1 + b**2)))
        close(result.scores[0, 0], np.full(2, total / 2), 1e-6)  # the walk stops at 1e-6


@pytest.mark.parametrize("wanted", [np.zeros((4, 4)), np.eye(4, k=1)], ids=["zero", "one way"])
def test_doobs_walk_of_a_graph_without_cycles_is_undefined(wanted):
    result = doob_visits(graph(wanted), 0.9)
    for value in (result.scores, result.error_bound, result.min_absorption, result.invalid_rows):
        assert value.isnan().all()
    assert not result.converged.any()


def test_a_graph_without_cycles_does_not_spoil_one_with_weak_links_beside_it():
    one_way = np.diag(np.ones(3), 1)
    weak = np.diag([1.0, 0.5, 0.5, 0.5]) + 1e-5 * np.diag(np.ones(3), -1)  # h falls by 2e-5 a token
    q = torch.tensor(np.stack([one_way, weak]))[None]
    both = doob_visits(AttentionOperator(q, (4 * torch.eye(4).double()).expand_as(q)), 0.9)
    assert both.scores[0, 0].isnan().all()
    assert both.converged.tolist() == [[False, True]]
    close(both.scores[0, 1], doob_visits(graph(weak), 0.9).scores[0, 0].numpy(), 1e-14)


def test_doobs_walk_of_a_softmax_graph_is_refused():
    with pytest.raises(ValueError, match="constant, so Doob's walk is the walk itself: use visits"):
        doob_visits(operator(kind="softmax"), 0.9)


@given(
    pair=graphs_at_random,
    gamma=st.sampled_from([0.3, 0.95]),
    tol=st.sampled_from([1e-3, 1e-6, 1e-9]),
)
def test_doobs_bound_holds_for_the_chain_of_the_computed_h(pair, gamma, tol):
    op = AttentionOperator(*pair)
    result = doob_visits(op, gamma, tol=tol)
    h, *_ = centrality._harmonic(op)
    for head in range(2):
        hs = h[0, head].numpy()
        if not hs.any():
            assert result.scores[0, head].isnan().all()
            continue
        inverse = np.divide(1, hs, out=np.zeros_like(hs), where=hs > 0)
        step = gamma * (hs * by_definition(op)[0, head] * inverse[:, None]).T
        s = (hs > 0) / (hs > 0).sum()
        exact = np.linalg.solve(np.eye(len(hs)) - step, s)
        x = result.scores[0, head].numpy()
        bound = result.error_bound[0, head].item()
        assert np.abs(x - exact).sum() / x.sum() <= bound + 1e-14  # that of the truth
        assert result.converged[0, head].item() == (bound <= tol)
        assert result.min_absorption[0, head].item() > 0
        assert bound <= tol


def test_doobs_chain_is_not_certified_with_an_h_that_is_none(monkeypatch):
    """h = 1 on a star whose middle emits 2.4: γc > 1."""
    wanted = np.zeros((8, 8))
    wanted[0, 1:] = 1
    wanted[1:, 0] = 0.3
    op = graph(wanted)
    ones = op.ones()
    zero = ones[..., 0] * 0
    monkeypatch.setattr(centrality, "_harmonic", lambda op, tol: (ones, op.row_sums(), zero))
    monkeypatch.setattr(solvers, "MAX_ITERATIONS", 50)
    result = doob_visits(op, 0.95)
    assert result.error_bound.item() == np.inf
    assert not result.converged.item()
    assert result.min_absorption.item() == pytest.approx(
        1 - 0.95 * 7 / np.linalg.norm(wanted), 1e-5
    )
    assert result.invalid_rows.item() == 1 / 8


# ---------------------------------------------------------------- γ and options


def test_absorption_by_hand():
    """Row sums 3, 1 and 0 over ‖A‖_F = √5: R = 1 − 0.9·(3, 1, 0)/√5, the first below zero."""
    op = graph([[2, 0, 1], [0, 0, 0], [0, 0, 0]])
    norm = np.sqrt(5) + 1e-6
    result = visits(op, 0.9)
    assert result.min_absorption.item() == pytest.approx(1 - 0.9 * 3 / norm, abs=1e-12)
    assert result.invalid_rows.item() == pytest.approx(1 / 3, abs=1e-15)
    softmax = visits(operator(kind="softmax"), GAMMA)
    close(softmax.min_absorption, [[0.7, 0.05]] * 2, 1e-7)  # γ itself is float32
    assert softmax.invalid_rows.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("gamma", [0, 1, -0.1, 1.5, float("nan"), torch.tensor([0.5, 1.0])])
def test_gamma_outside_the_unit_interval_is_refused(gamma):
    op = operator()
    for function in (visits, katz, doob_visits, lambda o, g: series([o], [g])):
        with pytest.raises(ValueError, match=r"gamma must lie in \(0, 1\), got"):
            function(op, gamma)


def test_one_gamma_per_head():
    op = operator()
    both = visits(op, GAMMA).scores
    for head, gamma in enumerate(GAMMA.tolist()):
        close(both[:, head], visits(op, gamma).scores[:, head].numpy(), 1e-12)
    with pytest.raises(ValueError, match=r"one number or one per head \(2\), got .*3"):
        visits(op, torch.full((3,), 0.5))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda op: visits(op, 0.5, direction="emitted"), "emitted Katz is"),
        (lambda op: katz(op, 0.5), "emitted Katz is"),
        (lambda op: degree(op, "emitted"), "the row sum is"),
    ],
)
def test_what_is_constant_on_softmax_graphs_is_refused(function, message):
    sentence = " the same for every token of a softmax graph, whose rows all sum to 1; use the rec"
    with pytest.raises(ValueError, match=message + sentence):
        function(operator(kind="softmax"))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda op: visits(op, 0.5, start="cls"), "start must be one of uniform, class, got 'cls'"),
        (lambda op: doob_visits(op, 0.5, "cls"), "start must be one of uniform, class, got 'cls'"),
        (lambda op: visits(op, 0.5, direction="in"), "direction must be one of received, emitted"),
        (lambda op: katz(op, 0.5, "in"), "direction must be one of received, emitted"),
        (lambda op: degree(op, "in"), "direction must be one of received, emitted"),
        (lambda op: pagerank(op, direction="in"), "direction must be one of received, emitted"),
        (lambda op: series([op], [0.5], "cls"), "start must be one of uniform, class"),
        (lambda op: pagerank(op, damping=1.0), r"damping must lie in \(0, 1\), got 1.0"),
        (lambda op: pagerank(op, damping=0.0), r"damping must lie in \(0, 1\), got 0.0"),
    ],
)
def test_unknown_options(function, message):
    with pytest.raises(ValueError, match=message):
        function(operator())


# ---------------------------------------------------------------- PageRank


@pytest.mark.parametrize("damping", [0.5, 0.85])
@pytest.mark.parametrize("kind", ["infsa", "softmax"])
def test_pagerank_is_networkx_pagerank(damping, kind):
    op = operator(kind=kind, tokens=12)
    result = pagerank(op, damping, tol=1e-13)
    matrices = by_definition(op)
    for index in np.ndindex(2, 2):
        g = nx.from_numpy_array(matrices[index], create_using=nx.DiGraph)
        x = nx.pagerank(g, alpha=damping, tol=1e-15, max_iter=1000, weight="weight")
        close(result.scores[index], list(x.values()), 1e-12)
    assert result.converged.all()
    assert (result.error_bound <= 1e-13).all()


@DIRECTIONS
def test_pagerank_with_dangling_tokens(direction):
    """Tokens 1 and 4 attend to no one: networkx spreads their rank uniformly, and so do we."""
    rng = np.random.default_rng(0)
    wanted = rng.random((6, 6))
    wanted[[1, 4]] = 0
    wanted[:, 2] = 0  # and no one attends to token 2
    g = nx.from_numpy_array(
        wanted if direction == "received" else wanted.T, create_using=nx.DiGraph
    )
    x = nx.pagerank(g, tol=1e-15, max_iter=1000, weight="weight")
    result = pagerank(graph(wanted), direction=direction, tol=1e-13)
    close(result.scores[0, 0], list(x.values()), 1e-12)


def test_the_bound_of_pagerank_holds_for_an_early_stop():
    op = operator(tokens=12)
    exact = pagerank(op, tol=1e-14).scores
    for steps in (1, 3, 10):
        early = pagerank(op, tol=1e-14, max_iterations=steps)
        error = (early.scores - exact).abs().sum(-1)
        assert (error <= early.error_bound + 1e-13).all()
        assert not early.converged.any()
        assert early.iterations == steps


# ---------------------------------------------------------------- degenerate graphs


def test_rank_one():
    """Â = a bᵀ / (‖a‖‖b‖): left Perron b, right a, ρ their cosine, F by Sherman and Morrison."""
    a, b = np.array([1.0, 2, 3, 0]), np.array([4.0, 1, 0, 2])
    op = graph(np.outer(a, b))
    norm = np.linalg.norm(a) * np.linalg.norm(b)
    left, right = perron(op, "left", tol=1e-13), perron(op, "right", tol=1e-13)
    close(left.vector[0, 0], b / np.linalg.norm(b), 1e-12)
    close(right.vector[0, 0], a / np.linalg.norm(a), 1e-12)
    rho = a @ b / (norm + 1e-6)
    assert left.value.item() == pytest.approx(rho, abs=1e-12)
    gamma = 0.8
    expected = (1 + gamma * a.sum() * b / (norm + 1e-6) / (1 - gamma * rho)) / 4
    close(visits(op, gamma).scores[0, 0], expected, 1e-13)


@SOLVERS
def test_visits_of_degenerate_graphs(solver):
    """No edge: one visit in N, no further one. One way: the closed form Σ_t (γÂ)ᵗ, t < N."""
    zero = graph(np.zeros((4, 4)))
    assert visits(zero, 0.9).scores.flatten().tolist() == [0.25] * 4
    for direction in ("received", "emitted"):
        result = katz(zero, 0.9, direction)
        assert result.scores.flatten().tolist() == [0] * 4
        assert (result.error_bound.item(), result.converged.item()) == (0, True)
    chain = np.eye(4, k=1)
    c = 0.9 * normalised(chain).max()
    emitted = [c + c**2 + c**3, c + c**2, c, 0]
    close(katz(graph(chain), 0.9, tol=1e-10).scores[0, 0], emitted, solver)
    assert pagerank(zero).scores.flatten().tolist() == pytest.approx([0.25] * 4, abs=1e-15)


def test_a_single_token():
    op = graph([[3.0]])
    a = 3 / (3 + 1e-6)
    assert visits(op, 0.5).scores.item() == pytest.approx(1 / (1 - 0.5 * a), abs=1e-14)
    assert perron(op).vector.item() == pytest.approx(1, abs=1e-15)


# ---------------------------------------------------------------- layer series


@pytest.mark.parametrize("start", ["uniform", "class"])
@pytest.mark.parametrize("kinds", [["infsa"] * 3, ["infsa", "softmax", "infsa"]])
def test_series_is_the_sum_of_products(start, kinds):
    """S = M⁽¹⁾ + M⁽²⁾M⁽¹⁾ + M⁽³⁾M⁽²⁾M⁽¹⁾: walks from a token of layer t back to the image."""
    ops = [operator(seed=i, kind=kind) for i, kind in enumerate(kinds)]
    gammas = [GAMMA, 0.5, torch.tensor([0.9, 0.2])]
    means = [
        (np.broadcast_to(np.asarray(g, np.float64), 2)[:, None, None] * by_definition(op)).mean(1)
        for op, g in zip(ops, gammas, strict=True)
    ]
    total = means[0] + means[1] @ means[0] + means[2] @ means[1] @ means[0]
    s = np.full(9, 1 / 9) if start == "uniform" else np.eye(9)[0]
    result = series(ops, gammas, start)
    assert result.shape == (2, 9)
    close(result, s @ total, 1e-14)


def test_series_of_one_layer_is_scaled_degree():
    op = operator(batch=1, heads=1)
    close(series([op], [0.7])[0], 0.7 * degree(op).scores[0, 0].numpy() / 9, 1e-15)


def test_series_with_unequal_lists():
    with pytest.raises(ValueError, match="shorter|longer"):
        series([operator(), operator()], [0.5])


# ---------------------------------------------------------------- what each result says

#: A cycle of twelve tokens, the first of which attends to itself too: slow for a Krylov space.
RING = np.roll(np.eye(12), 1, 1) + 2 * np.diag(np.eye(12)[0])
CERTIFIED = [
    visits,
    katz,
    lambda op, gamma, **tol: katz(op, gamma, "received", **tol),
    lambda op, gamma, **tol: visits(op, gamma, direction="emitted", **tol),
    doob_visits,
]


@pytest.mark.parametrize("function", CERTIFIED)
@pytest.mark.parametrize("direct", [0])
def test_each_stops_at_its_tolerance(function, solver):
    op = graph(RING)
    loose, default, same, tight = (
        function(op, 0.99, **options) for options in ({"tol": 1}, {}, {"tol": 1e-6}, {"tol": 1e-11})
    )
    assert torch.equal(default.scores, same.scores)
    assert 0 < loose.iterations < default.iterations < tight.iterations
    assert 1e-6 < loose.error_bound.item() <= 1
    assert 1e-11 < default.error_bound.item() <= 1e-6
    assert tight.error_bound.item() <= 1e-11
    assert loose.converged.item() and default.converged.item() and tight.converged.item()


def test_pagerank_stops_at_its_tolerance_or_at_its_limit():
    op = graph(RING)
    result = pagerank(op)
    bound = result.error_bound.item()
    assert bound <= 1e-6 < pagerank(op, max_iterations=result.iterations - 1).error_bound.item()
    reached = pagerank(op, tol=bound)  # a bound that equals the tolerance is within it
    assert (reached.iterations, reached.converged.item()) == (result.iterations, True)
    never = pagerank(op, tol=0)
    assert (never.iterations, never.converged.item()) == (1000, False)


def test_one_step_of_pagerank():
    """From 1/N each; tokens 0 and 1 attend to one another, 2 to token 0 only."""
    result = pagerank(graph([[0, 1, 0], [2, 0, 0], [3, 0, 0]]), 0.5, max_iterations=1)
    close(result.scores[0, 0], [1 / 6 + 2 / 6, 1 / 6 + 1 / 6, 1 / 6], 1e-14)
    assert result.iterations == 1


@pytest.mark.parametrize("function", [degree, pagerank])
def test_what_has_no_absorption_says_so(function):
    result = function(operator())
    for value in (result.min_absorption, result.invalid_rows):
        assert value.shape == (2, 2)
        assert value.isnan().all()


def test_degree_is_exact():
    result = degree(operator())
    assert result.iterations == 0
    assert result.converged.tolist() == [[True, True], [True, True]]


def test_a_row_that_is_never_absorbed_is_valid():
    """R_i = 0: γ is one over the largest row sum, to the last digit."""
    op = graph([[2, 0, 1], [0, 0, 0], [0, 0, 0]])
    result = visits(op, 1 / op.row_sums().max().item())
    assert (result.min_absorption.item(), result.invalid_rows.item()) == (0, 0)


def test_doobs_bound_is_on_the_1_norm():
    """At an early stop the error in the 1-norm is all of the bound, and above one in the 2-norm."""
    op, gamma = graph(RING), 0.99
    result = doob_visits(op, gamma, "class", tol=1)
    p, rho, _ = doob_chain(by_definition(op)[0, 0])
    exact = np.linalg.solve(np.eye(12) - gamma * rho * p.T, np.eye(12)[0])
    x = result.scores[0, 0].numpy()
    error = np.abs(x - exact).sum() / x.sum()
    assert error > 1e-6
    assert error <= result.error_bound.item() <= 1.001 * error


def test_doobs_absorption_where_the_gap_is_small():
    """1 − γρ of three tokens that hardly touch, whose eigenvalues differ by a thousandth."""
    wanted = np.diag([1, 0.999, 0.998]) + 1e-3 * np.random.default_rng(0).random((3, 3))
    rho = np.linalg.eigvals(normalised(wanted)).real.max()
    result = doob_visits(graph(wanted), 0.9)
    assert result.min_absorption.item() == pytest.approx(1 - 0.9 * rho, abs=1e-12)


BATCH = np.stack(
    [
        RING,
        np.random.default_rng(0).random((12, 12)),
        np.outer(np.eye(12)[0], np.arange(12)) + np.outer(np.ones(12), np.eye(12)[0]),  # a star
        np.diag([1, 0.5, 0.5, 0.5] + 8 * [0]) + 1e-5 * np.diag(3 * [1] + 8 * [0], -1),
    ]
)
BATCH[3, 4, 5] = 1000  # which is on no cycle, and leaves the rest a small share of the norm


@pytest.mark.parametrize(
    "function",
    [
        degree,
        lambda op: pagerank(op, tol=0, max_iterations=3),
        lambda op: visits(op, 0.95, tol=10),
        lambda op: katz(op, 0.95, tol=10),
        lambda op: doob_visits(op, 0.95, tol=10),
        lambda op: doob_visits(op, 0.95, "class", tol=10),
    ],
)
@pytest.mark.parametrize("direct", [0])
def test_a_graph_does_not_depend_on_its_batch(function, solver):
    q = torch.tensor(BATCH).view(2, 2, 12, 12)
    together = function(AttentionOperator(q, (12 * torch.eye(12).double()).expand_as(q)))
    for index in np.ndindex(2, 2):
        alone = function(graph(q[index]))
        for name in ("scores", "error_bound", "min_absorption", "invalid_rows"):
            found, expected = getattr(together, name)[index], getattr(alone, name)[0, 0]
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-13, err_msg=name)
        assert together.converged[index] == alone.converged[0, 0]


def test_results_are_float64():
    for op in (operator(), graph(RING)):
        for result in (degree(op), pagerank(op), visits(op, 0.9), doob_visits(op, 0.9)):
            for name in ("scores", "error_bound", "min_absorption", "invalid_rows"):
                assert getattr(result, name).dtype == torch.float64
        assert series([op, op], [0.9, 0.8]).dtype == torch.float64


def test_doobs_invalid_rows_are_each_graphs_own(monkeypatch):
    """As above, with h = 1: a star, and beside it tokens that visit themselves."""
    star = np.eye(8)[0] + np.outer(np.eye(8)[0], np.ones(8))
    q = torch.tensor(np.stack([star, np.eye(8)]))[None]
    op = AttentionOperator(q, (8 * torch.eye(8).double()).expand_as(q))
    zero = torch.zeros(1, 2, dtype=torch.float64)
    harmonic = (op.ones(), op.row_sums(), zero)
    monkeypatch.setattr(centrality, "_harmonic", lambda op, tol: harmonic)
    monkeypatch.setattr(solvers, "MAX_ITERATIONS", 50)
    close(doob_visits(op, 0.95).invalid_rows, [[1 / 8, 0]])
