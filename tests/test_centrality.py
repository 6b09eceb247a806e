"""Centralities against inverses, eigensolvers, networkx and walks whose visits are counted."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import infsa_explain.centrality as centrality
from infsa_explain.centrality import degree, katz, pagerank, perron, series, visits
from infsa_explain.operator import AttentionOperator

GAMMA = torch.tensor([0.3, 0.95])
#: DIRECT_TOKENS, so that both solvers are tested.
SOLVERS = pytest.mark.parametrize("direct", [1500, 0], ids=["direct", "iterated"])
DIRECTIONS = pytest.mark.parametrize("direction", ["received", "emitted"])


def queries_keys(batch=2, heads=2, tokens=9, width=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(2, batch, heads, tokens, width, generator=g).unbind(0)


def operator(*args, kind="infsa", **kwargs):
    return AttentionOperator(*queries_keys(*args, **kwargs), kind)


def graph(wanted):
    """The operator of a given non-negative matrix: q = the matrix, k = N·I, so q kᵀ / N is it."""
    q = torch.as_tensor(wanted, dtype=torch.float64)
    n = len(q)
    return AttentionOperator(q[None, None], n * torch.eye(n, dtype=torch.float64)[None, None])


def normalised(wanted):
    wanted = np.asarray(wanted, dtype=np.float64)
    return wanted / (np.linalg.norm(wanted) + 1e-6)


def by_definition(op):
    """Â of every graph in numpy float64, from q and k."""
    q, k = op.q.double().numpy(), op.k.double().numpy()
    products = np.einsum("bhid,bhjd->bhij", q, k)
    if op.kind == "softmax":
        e = np.exp(products * op.scale)
        return e / e.sum(-1, keepdims=True)
    affinity = np.maximum(products / q.shape[-1], 0)
    return affinity / (np.sqrt((affinity**2).sum((-2, -1), keepdims=True)) + 1e-6)


def fundamental(op, gamma):
    """F = (I − γÂ)⁻¹ by inversion, (B, H, N, N)."""
    gamma = np.asarray(gamma, dtype=np.float64).reshape(-1, 1, 1)
    return np.linalg.inv(np.eye(op.num_tokens) - gamma * by_definition(op))


def close(actual, expected, atol=1e-12, rtol=0.0):
    np.testing.assert_allclose(actual.numpy(), expected, rtol=rtol, atol=atol)


@pytest.fixture
def solver(monkeypatch, direct):
    monkeypatch.setattr(centrality, "DIRECT_TOKENS", direct)
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
    assert result.error_bound.tolist() == [[0, 0], [0, 0]]
    assert result.min_absorption.isnan().all()  # no γ in it


def test_received_on_a_graph_is_emitted_on_its_transpose():
    q, k = queries_keys()
    op, transposed = AttentionOperator(q, k), AttentionOperator(k, q)
    for a, b in (
        (katz(op, GAMMA, "received"), katz(transposed, GAMMA, "emitted")),
        (degree(op, "received"), degree(transposed, "emitted")),
        (pagerank(op, direction="received"), pagerank(transposed, direction="emitted")),
    ):
        close(a.scores, b.scores.numpy(), 1e-13)
    close(perron(op, "left").vector, perron(transposed, "right").vector.numpy(), 1e-13)


@pytest.mark.parametrize("kind", ["infsa", "softmax"])
def test_permuting_tokens_permutes_scores(kind):
    q, k = queries_keys()
    order = torch.randperm(9, generator=torch.Generator().manual_seed(3))
    op = AttentionOperator(q, k, kind)
    shuffled = AttentionOperator(q[:, :, order], k[:, :, order], kind)
    functions = [
        lambda o: visits(o, GAMMA).scores,
        lambda o: katz(o, GAMMA, "received").scores,
        lambda o: degree(o).scores,
        lambda o: pagerank(o, tol=1e-12).scores,
        lambda o: perron(o, tol=1e-12).vector,
        lambda o: series([o, o], [0.9, 0.8])[:, None].double(),
    ]
    for f, atol in zip(functions, [1e-12] * 3 + [1e-11, 1e-10, 1e-7], strict=True):
        close(f(shuffled), f(op)[..., order].numpy(), atol)


def test_small_gamma_ranks_as_degree():
    """sᵀF = (1 + γ·in-degree + O(γ²)) / N."""
    op = operator(tokens=20)
    gamma = 1e-5
    received = (20 * visits(op, gamma).scores - 1) / gamma
    close(received, degree(op).scores.numpy(), 1e-4)
    assert torch.equal(visits(op, gamma).scores.argsort(), degree(op).scores.argsort())
    assert torch.equal(katz(op, gamma).scores.argsort(), degree(op, "emitted").scores.argsort())


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


# ---------------------------------------------------------------- certificates


def long_double_solution(op, gamma, transposed, katz_form):
    """x = rhs + γÂx iterated in 80-bit arithmetic until it stands still."""
    q, k = (x.double().numpy().astype(np.longdouble)[0, 0] for x in (op.q, op.k))
    products = q @ k.T
    if op.kind == "softmax":
        e = np.exp(np.longdouble(op.scale) * products)
        a = e / e.sum(1, keepdims=True)
    else:
        a = np.maximum(products / q.shape[1], 0)
        a = a / (np.sqrt((a * a).sum()) + np.longdouble(1e-6))
    a = np.longdouble(gamma) * (a.T if transposed else a)
    ones = np.ones(len(a), dtype=np.longdouble)
    rhs = a @ ones if katz_form else ones / len(a)
    x, last = rhs, None
    while last is None or np.abs(x - last).max() > 1e-19 * np.abs(x).max():
        x, last = rhs + a @ x, x
    return x


graphs_at_random = st.builds(
    lambda seed, tokens, width, shift: [x + shift for x in queries_keys(1, 1, tokens, width, seed)],
    seed=st.integers(0, 2**31),
    tokens=st.integers(1, 12),
    width=st.integers(1, 8),
    shift=st.sampled_from([0.0, 0.5, 3.0]),
)


@SOLVERS
@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    pair=graphs_at_random,
    gamma=st.sampled_from([0.05, 0.5, 0.95, 0.99]),
    system=st.sampled_from(
        [
            ("infsa", "visits"),
            ("infsa", "katz received"),
            ("infsa", "katz emitted"),
            ("softmax", "visits"),
            ("softmax", "katz received"),
        ]
    ),
    tol=st.sampled_from([1e-3, 1e-6, 1e-12]),
)
def test_the_error_bound_holds(direct, pair, gamma, system, tol):
    kind, form = system
    op = AttentionOperator(*pair, kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(centrality, "DIRECT_TOKENS", direct)
        if form == "visits":
            result = visits(op, gamma, tol=tol)
        else:
            result = katz(op, gamma, form.split()[1], tol=tol)
    exact = long_double_solution(op, gamma, form != "katz emitted", form != "visits")
    norm = 1 if kind == "softmax" else 2
    scores = result.scores[0, 0].numpy()
    size = np.linalg.norm(scores, norm)
    error = np.linalg.norm((scores - exact).astype(np.float64), norm) / (size or 1)
    assert error <= result.error_bound.item()
    assert result.error_bound.item() <= tol
    assert result.converged.item()


def test_a_wrong_answer_is_not_certified(monkeypatch):
    """With the solver spoilt by 1%, the bound covers the error and convergence is denied."""
    op = operator(kind="infsa")
    solve = torch.linalg.solve
    monkeypatch.setattr(torch.linalg, "solve", lambda a, b: solve(a, b) * 1.01)
    result = visits(op, GAMMA)
    exact = fundamental(op, GAMMA).mean(-2)
    error = np.linalg.norm(result.scores.numpy() - exact, axis=-1)
    relative = error / np.linalg.norm(result.scores.numpy(), axis=-1)
    assert (relative <= result.error_bound.numpy()).all()
    close(torch.from_numpy(relative), 0.01 / 1.01, 1e-9)
    assert not result.converged.any()


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
    for function in (visits, katz, lambda o, g: series([o], [g])):
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
        (lambda op: perron(op, "right"), "the right Perron vector is"),
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
        (lambda op: visits(op, 0.5, direction="in"), "direction must be one of received, emitted"),
        (lambda op: katz(op, 0.5, "in"), "direction must be one of received, emitted"),
        (lambda op: degree(op, "in"), "direction must be one of received, emitted"),
        (lambda op: pagerank(op, direction="in"), "direction must be one of received, emitted"),
        (lambda op: perron(op, "top"), "side must be one of left, right, got 'top'"),
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


# ---------------------------------------------------------------- Perron vectors


def eigenvector(matrix, side):
    """Unit eigenvector of the largest eigenvalue by LAPACK, and that eigenvalue."""
    values, left, right = scipy.linalg.eig(matrix, left=True, right=True)
    top = np.argmax(values.real)
    v = np.abs((left if side == "left" else right)[:, top])
    return v / np.linalg.norm(v), values[top].real


@SOLVERS
@pytest.mark.parametrize("side", ["left", "right"])
def test_perron_vectors_are_scipys(side, solver, direct):
    op = operator(tokens=12, batch=3)
    result = perron(op, side, tol=1e-12)
    matrices = by_definition(op)
    for index in np.ndindex(3, 2):
        vector, value = eigenvector(matrices[index], side)
        close(result.vector[index], vector, 1e-10)
        assert result.value[index].item() == pytest.approx(value, abs=1e-11)
        a = matrices[index].T if side == "left" else matrices[index]
        v, rho = result.vector[index].numpy(), result.value[index].item()
        assert result.residual[index].item() == pytest.approx(
            np.linalg.norm(a @ v - rho * v) / rho, abs=1e-14
        )
    assert result.converged.all()
    assert result.unique.all()


def test_left_perron_vector_of_a_softmax_graph_is_its_stationary_distribution():
    op = operator(kind="softmax")
    result = perron(op, tol=1e-13)
    matrices = by_definition(op)
    close(result.value, np.ones((2, 2)), 1e-12)
    for index in np.ndindex(2, 2):
        pi = np.linalg.matrix_power(matrices[index], 2000)[0]
        close(result.vector[index], pi / np.linalg.norm(pi), 1e-11)


@SOLVERS
def test_perron_of_a_zero_matrix(solver):
    result = perron(graph(np.zeros((3, 3))))
    assert result.vector.isnan().all()
    assert (result.value.item(), result.residual.item()) == (0, 0)
    assert result.converged.item()
    assert not result.unique.item()


@SOLVERS
@pytest.mark.parametrize("tokens", [2, 3, 20])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("tol", [1e-2, 1e-6])
def test_perron_of_one_way_graphs(tokens, side, tol, solver):
    """Nilpotent: ρ = 0. Power iteration alone would settle at 1/t and call it ρ."""
    rng = np.random.default_rng(0)
    for wanted in (np.eye(tokens, k=1), np.triu(rng.random((tokens, tokens)), 1)):
        order = rng.permutation(tokens)
        result = perron(graph(wanted[np.ix_(order, order)]), side, tol=tol)
        assert result.vector.isnan().all()
        assert result.value.item() == 0
        assert not result.unique.item()
        assert result.iterations <= 10


@SOLVERS
def test_a_cyclic_graph_is_told_from_a_one_way_one_beside_it(solver):
    """One batch, one head a chain and one a chain that ends in a loop of two."""
    chain = np.eye(5, k=1)
    loop = chain.copy()
    loop[4, 3] = 1
    q = torch.from_numpy(np.stack([chain, loop]))[None]
    k = (5 * torch.eye(5, dtype=torch.float64)).expand(1, 2, 5, 5)
    result = perron(AttentionOperator(q, k), tol=1e-9)
    assert result.value[0, 0].item() == 0
    assert result.vector[0, 0].isnan().all()
    assert result.value[0, 1].item() == pytest.approx(normalised(loop).max(), abs=1e-9)
    close(result.vector[0, 1], [0, 0, 0, 0.5**0.5, 0.5**0.5], 1e-8)


@SOLVERS
def test_perron_of_two_equal_components_is_not_unique(solver):
    block = np.random.default_rng(0).random((3, 3))
    result = perron(graph(scipy.linalg.block_diag(block, block)), tol=1e-10)
    _, value = eigenvector(normalised(scipy.linalg.block_diag(block, block)), "left")
    assert not result.unique.item()
    assert result.converged.item()
    assert result.value.item() == pytest.approx(value, abs=1e-10)


@SOLVERS
def test_perron_of_two_unequal_components_is_that_of_the_stronger(solver):
    block = np.random.default_rng(0).random((3, 3))
    wanted = scipy.linalg.block_diag(block, 2 * block)
    vector, _ = eigenvector(block, "left")
    result = perron(graph(wanted), tol=1e-10)
    assert result.unique.item()
    close(result.vector[0, 0], [0, 0, 0, *vector], 1e-9)


@SOLVERS
@pytest.mark.parametrize("side", ["left", "right"])
def test_perron_of_a_cycle(side, solver):
    """Periodic: Âᵗx rotates for ever; the shifted iteration settles on the uniform vector."""
    weights = np.array([1.0, 2, 3, 4, 5])
    wanted = np.roll(np.diag(weights), 1, axis=1)  # i attends to i + 1, with weight i + 1
    vector, value = eigenvector(normalised(wanted), side)
    assert value == pytest.approx(120 ** (1 / 5) / (np.sqrt(55) + 1e-6), abs=1e-12)
    result = perron(graph(wanted), side, tol=1e-11)
    close(result.vector[0, 0], vector, 1e-9)
    assert result.value.item() == pytest.approx(value, abs=1e-10)
    assert result.unique.item()
    assert result.converged.item()


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


def test_a_star():
    """Leaves 1…n attend to the middle and it to them: ρ = √n/√(2n), the middle weighs √n leaves."""
    n = 6
    wanted = np.zeros((n + 1, n + 1))
    wanted[0, 1:] = wanted[1:, 0] = 1
    result = perron(graph(wanted), tol=1e-12)
    expected = np.array([np.sqrt(n), *np.ones(n)]) / np.sqrt(2 * n)
    close(result.vector[0, 0], expected, 1e-11)
    assert result.value.item() == pytest.approx(np.sqrt(n) / (np.sqrt(2 * n) + 1e-6), abs=1e-11)


def test_unconverged_is_said():
    """Two steps on a graph with a small gap: the residual is honest and convergence denied."""
    op = operator(tokens=12)
    result = perron(op, tol=1e-14, max_iterations=2)
    assert result.iterations == 2
    assert not result.converged.any()
    v, rho = result.vector.numpy(), result.value.numpy()
    residual = np.einsum("bhij,bhi->bhj", by_definition(op), v) - rho[..., None] * v
    close(result.residual, np.linalg.norm(residual, axis=-1) / rho, 1e-14)


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
    close(result, s @ total, 1e-6)


def test_series_of_one_layer_is_scaled_degree():
    op = operator(batch=1, heads=1)
    close(series([op], [0.7])[0], 0.7 * degree(op).scores[0, 0].numpy() / 9, 1e-7)


def test_series_with_unequal_lists():
    with pytest.raises(ValueError, match="shorter|longer"):
        series([operator(), operator()], [0.5])
