"""Perron vectors and second eigenvalues against LAPACK and closed forms, by both ways.

Error bounds against exact arithmetic are in test_perron_bounds.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from token_graphs import by_definition, close, graph, normalised

import infsa_explain.graph.perron_search as perron_search
import infsa_explain.graph.spectrum as spectrum
from infsa_explain.graph.operator import AttentionOperator
from infsa_explain.graph.spectrum import perron

#: DENSE_TOKENS: with matrices where products do not settle, and without.
WAYS = pytest.mark.parametrize("dense", [2048, 0], ids=["matrices", "products"])
SIDES = pytest.mark.parametrize("side", ["left", "right"])


@pytest.fixture
def way(monkeypatch, dense):
    monkeypatch.setattr(spectrum, "DENSE_TOKENS", dense)


def operator(batch=2, heads=2, tokens=9, width=4, seed=0, kind="infsa", max_bytes=2**28):
    g = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, batch, heads, tokens, width, generator=g)
    return AttentionOperator(q, k, kind, max_bytes=max_bytes)


def moduli(matrix):
    """Moduli of all eigenvalues by LAPACK, largest first."""
    return np.sort(np.abs(np.linalg.eigvals(matrix)))[::-1]


def eigenvector(matrix, side):
    """Unit eigenvector of the largest eigenvalue by LAPACK, and that eigenvalue."""
    values, left, right = scipy.linalg.eig(matrix, left=True, right=True)
    top = np.argmax(values.real)
    v = np.abs((left if side == "left" else right)[:, top])
    return v / np.linalg.norm(v), values[top].real


@WAYS
@SIDES
@pytest.mark.parametrize("max_bytes", [2**28, 1000], ids=["float64", "float32"])
def test_perron_vectors_are_scipys(side, max_bytes, way):
    """Where the search is in float32 the last restart is not."""
    op = operator(tokens=12, batch=3, max_bytes=max_bytes)
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


@WAYS
def test_perron_of_a_zero_matrix(way):
    result = perron(graph(np.zeros((3, 3))))
    assert result.vector.isnan().all()
    assert (result.value.item(), result.residual.item()) == (0, 0)
    assert result.resolved.item() and not result.converged.item()
    assert result.error_bound.isnan().item()
    assert not result.unique.item()
    assert result.reason(0, 0) == "no Perron vector: the graph has no cycle"


@WAYS
@pytest.mark.parametrize("tokens", [2, 3, 20])
@SIDES
@pytest.mark.parametrize("tol", [1e-2, 1e-6])
def test_perron_of_one_way_graphs(tokens, side, tol, way):
    """Nilpotent: ρ = 0. Power iteration alone would settle at 1/t and call it ρ."""
    rng = np.random.default_rng(0)
    for wanted in (np.eye(tokens, k=1), np.triu(rng.random((tokens, tokens)), 1)):
        order = rng.permutation(tokens)
        result = perron(graph(wanted[np.ix_(order, order)]), side, tol=tol)
        assert result.vector.isnan().all()
        assert result.value.item() == 0
        assert not result.unique.item()
        assert result.iterations <= 10


@WAYS
def test_a_cyclic_graph_is_told_from_a_one_way_one_beside_it(way):
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


@WAYS
def test_perron_of_two_equal_components_is_not_unique(way, dense):
    """Without their matrices nothing is proven, and nothing claimed."""
    block = np.random.default_rng(0).random((3, 3))
    result = perron(graph(scipy.linalg.block_diag(block, block)), tol=1e-10)
    _, value = eigenvector(normalised(scipy.linalg.block_diag(block, block)), "left")
    assert not result.unique.item()
    assert not result.converged.item()
    assert result.resolved.item() == bool(dense)
    assert (result.error_bound.isnan() if dense else result.error_bound.isinf()).item()
    word = "several Perron vectors" if dense else "not resolved: nothing is proven"
    assert result.reason(0, 0).startswith(word)
    assert result.value.item() == pytest.approx(value, abs=1e-10)


@WAYS
def test_perron_of_two_unequal_components_is_that_of_the_stronger(way):
    block = np.random.default_rng(0).random((3, 3))
    wanted = scipy.linalg.block_diag(block, 2 * block)
    vector, _ = eigenvector(block, "left")
    result = perron(graph(wanted), tol=1e-10)
    assert result.unique.item()
    close(result.vector[0, 0], [0, 0, 0, *vector], 1e-9)


@WAYS
@SIDES
def test_perron_of_a_cycle(side, way):
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


def test_a_star():
    """Leaves 1…n attend to the middle and it to them: ρ = √n/√(2n), the middle weighs √n leaves."""
    n = 6
    wanted = np.zeros((n + 1, n + 1))
    wanted[0, 1:] = wanted[1:, 0] = 1
    result = perron(graph(wanted), tol=1e-12)
    expected = np.array([np.sqrt(n), *np.ones(n)]) / np.sqrt(2 * n)
    close(result.vector[0, 0], expected, 1e-11)
    assert result.value.item() == pytest.approx(np.sqrt(n) / (np.sqrt(2 * n) + 1e-6), abs=1e-11)


@WAYS
def test_what_one_library_gives_up_on_another_decomposes(way, monkeypatch):
    """As MKL's does on some graphs, on some processors."""
    op = operator()
    truth = perron(op)

    def give_up(matrix):
        raise torch.linalg.LinAlgError("the algorithm failed to converge")

    monkeypatch.setattr(torch.linalg, "eigvals", give_up)
    monkeypatch.setattr(torch.linalg, "eig", give_up)
    found = perron(op)
    close(found.vector, truth.vector)
    close(found.second, truth.second)


def test_unconverged_is_said(monkeypatch):
    """No more than one Krylov space, of two steps: the residual is honest, convergence denied."""
    monkeypatch.setattr(spectrum, "DENSE_TOKENS", 0)
    monkeypatch.setattr(perron_search, "RITZ_STEPS", 2)
    op = operator(tokens=12)
    result = perron(op, tol=1e-14, max_iterations=2)
    assert not result.converged.any() and not result.resolved.any()
    assert (result.error_bound > 1e-14).all()
    v, rho = result.vector.numpy(), result.value.numpy()
    residual = np.einsum("bhij,bhi->bhj", by_definition(op), v) - rho[..., None] * v
    close(result.residual, np.linalg.norm(residual, axis=-1) / rho, 1e-14)


# ---------------------------------------------------------------- the second eigenvalue


@WAYS
@pytest.mark.parametrize(
    ("kind", "side"), [("infsa", "left"), ("infsa", "right"), ("softmax", "left")]
)
@pytest.mark.parametrize("max_bytes", [2**28, 1000], ids=["float64", "float32"])
def test_the_second_eigenvalue_is_lapacks(kind, side, max_bytes, way):
    """12 tokens: the Krylov space is the whole space, and a float32 search is all that errs."""
    op = operator(tokens=12, kind=kind, max_bytes=max_bytes)
    result = perron(op, side)
    matrices = by_definition(op)
    for index in np.ndindex(2, 2):
        first, second = moduli(matrices[index])[:2]
        assert result.second[index].item() == pytest.approx(second, abs=1e-5)
        assert result.gap[index].item() == pytest.approx(1 - second / first, abs=1e-4)


@pytest.mark.parametrize("mean", [0.0, 0.5])
@pytest.mark.parametrize("width", [16, 64])
def test_the_estimate_of_the_second_eigenvalue(width, mean):
    """197 tokens, beyond what is computed exactly: within a percent of ρ."""
    g = torch.Generator().manual_seed(0)
    op = AttentionOperator(*(torch.randn(2, 1, 4, 197, width, generator=g) + mean))
    result = perron(op)
    for head in range(4):
        first, second = moduli(by_definition(op)[0, head])[:2]
        assert result.value[0, head].item() == pytest.approx(first, abs=1e-8)
        assert result.second[0, head].item() == pytest.approx(second, abs=0.01 * first)
    assert result.converged.all()
    assert result.unique.all()


def path(n, loop=0.0):
    return np.eye(n, k=1) + np.eye(n, k=-1) + loop * np.eye(n)


CLOSED_FORMS = {
    # name: graph, ρ and |λ₂| before normalisation, whether the Perron vector is unique
    "single token": (np.array([[3.0]]), 3, 0, True),
    "identity": (np.eye(5), 1, 1, False),
    "two equal components": (np.kron(np.eye(2), np.ones((3, 3))), 3, 3, False),
    "two unequal components": (np.kron(np.diag([1, 2]), np.ones((3, 3))), 6, 3, True),
    "cycle": (np.roll(np.eye(5), 1, axis=1), 1, 1, True),
    "star": (
        np.block([[0, np.ones((1, 6))], [np.ones((6, 1)), np.zeros((6, 6))]]),
        6**0.5,
        6**0.5,
        True,
    ),
    "path": (path(7), 2 * np.cos(np.pi / 8), 2 * np.cos(np.pi / 8), True),
    "path with loops": (path(7, 2), 2 + 2 * np.cos(np.pi / 8), 2 + 2 * np.cos(np.pi / 4), True),
    "rank one": (np.outer([1.0, 2, 3, 0], [4.0, 1, 0, 2]), 6, 0, True),
    "triangular": (np.triu(np.ones((4, 4)), 1) + np.diag([1.0, 4, 2, 3]), 4, 3, True),
}


@WAYS
@SIDES
@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_closed_forms(name, side, way, dense):
    wanted, first, second, unique = CLOSED_FORMS[name]
    result = perron(graph(wanted), side, tol=1e-10)
    norm = np.linalg.norm(wanted) + 1e-6
    assert result.value.item() == pytest.approx(first / norm, abs=1e-9)
    assert result.second.item() == pytest.approx(second / norm, abs=1e-8)
    assert result.gap.item() == pytest.approx(1 - second / first, abs=1e-7)
    assert result.unique.item() == result.converged.item() == unique
    assert result.resolved.item() == (unique or bool(dense))
    v = result.vector[0, 0].numpy()
    a = normalised(wanted).T if side == "left" else normalised(wanted)
    assert np.linalg.norm(a @ v - first / norm * v) < 1e-9
    assert (v >= 0).all()


@WAYS
def test_a_chain_of_two_equal_components_is_not_resolved(way):
    """ρ twice, in one Jordan block: one vector if they are equal, which float64 cannot tell."""
    block = np.random.default_rng(0).random((4, 4))
    wanted = np.block([[block, np.ones((4, 4))], [np.zeros((4, 4)), block]])
    vector, _ = eigenvector(block, "left")
    result = perron(graph(wanted), tol=1e-8)
    assert not result.converged.item() and not result.unique.item() and not result.resolved.item()
    assert result.error_bound.item() == np.inf
    close(result.vector[0, 0], [*np.zeros(4), *vector], 1e-4)  # √tol
    assert result.gap.item() == pytest.approx(0, abs=1e-4)


@WAYS
def test_no_cycle_no_gap(way):
    for wanted in (np.zeros((3, 3)), np.eye(3, k=1)):
        result = perron(graph(wanted))
        assert result.second.isnan().all()
        assert result.gap.isnan().all()


@WAYS
def test_tokens_without_incoming_edges_score_exactly_zero(way):
    """And tokens with the same edges the same: ties stay ties."""
    wanted = np.random.default_rng(0).random((10, 10))
    wanted[:, [2, 7]] = 0
    wanted[:, 5] = wanted[:, 4]
    v = perron(graph(wanted)).vector[0, 0]
    assert v[[2, 7]].tolist() == [0, 0]
    assert v[5].item() == pytest.approx(v[4].item(), rel=1e-14)


LONG = {
    "cycle": np.roll(np.diag(1 + np.random.default_rng(0).random(200)), 1, axis=1),
    "Jordan block": np.eye(200) + np.eye(200, k=1),
}


@pytest.mark.parametrize("name", LONG)
@SIDES
def test_a_graph_without_a_gap_is_given_up_in_time(name, side, monkeypatch):
    """200 tokens in a cycle, or in one Jordan block: an end, an honest residual, no claim."""
    monkeypatch.setattr(spectrum, "DENSE_TOKENS", 0)
    wanted = LONG[name]
    result = perron(graph(wanted), side, max_iterations=200)
    assert result.iterations <= 200 + 20 + 24 + 8 + 24 + 2
    assert not result.converged.item() and not result.resolved.item()
    assert result.unique.item() == (name == "cycle")  # strongly connected, in 200 products
    assert result.error_bound.item() == np.inf
    a = normalised(wanted).T if side == "left" else normalised(wanted)
    v, rho = result.vector[0, 0].numpy(), result.value.item()
    assert np.linalg.norm(v) == pytest.approx(1, abs=1e-12)
    assert result.residual.item() == pytest.approx(np.linalg.norm(a @ v - rho * v) / rho, abs=1e-12)
    assert 0 <= result.gap.item() < 0.2


@SIDES
def test_the_vector_of_a_long_cycle_is_found_from_its_matrix(side):
    """By hand: ρ is the geometric mean of the weights, v_{i+1} = ρ v_i / w_i and u_i = 1 / v_i."""
    weights = 1 + np.random.default_rng(0).random(200)
    rho = np.exp(np.log(weights).mean())
    v = np.cumprod(np.concatenate([[1], rho / weights[:-1]]))
    expected = v if side == "right" else 1 / v
    result = perron(graph(LONG["cycle"]), side)
    error = np.linalg.norm(result.vector[0, 0].numpy() - expected / np.linalg.norm(expected))
    assert error <= 1e-12 and error <= result.error_bound.item() <= 1e-9
    assert result.converged.item() and result.unique.item()


@SIDES
def test_the_vector_of_a_long_jordan_block_is_exact(side):
    """Equal weights on the diagonal are equal to the last digit, so that structure decides."""
    result = perron(graph(LONG["Jordan block"]), side)
    expected = np.eye(200)[0 if side == "right" else -1]
    assert result.vector[0, 0].numpy().tolist() == expected.tolist()
    assert result.converged.item() and result.unique.item() and result.error_bound.item() < 1e-13


def test_random_blocks_of_many_tokens_are_told_apart():
    """Two equal blocks of 200 random tokens each: there are several vectors."""
    rng = np.random.default_rng(0)
    block = rng.random((200, 200))
    order = rng.permutation(400)
    wanted = scipy.linalg.block_diag(block, block)[np.ix_(order, order)]
    result = perron(graph(wanted))
    assert not result.unique.item()
    assert result.gap.item() == 0
    assert result.resolved.item() and not result.converged.item()


def test_the_options_are_checked():
    with pytest.raises(ValueError, match="side must be one of left, right, got 'top'"):
        perron(operator(), "top")
    sentence = "the right Perron vector is the same for every token of a softmax graph"
    with pytest.raises(ValueError, match=sentence):
        perron(operator(kind="softmax"), "right")
