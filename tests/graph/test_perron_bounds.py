"""Bounds of Perron vectors, Doob's walk and the layer series against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import scipy.linalg
import torch
from exact_perron import exact_perron, exact_stationary
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from token_graphs import graph, queries_keys

import infsa_explain.graph.spectrum as spectrum
from infsa_explain import load
from infsa_explain.graph.centrality import certified_series, doob_visits, perron, series
from infsa_explain.graph.operator import AttentionOperator
from infsa_explain.vits.capturing import capture
from infsa_explain.vits.preprocessing import preprocess


def random_relu(rng, n):
    return np.maximum(rng.normal(size=(n, n)) + rng.choice([-0.5, 0, 1]), 0)


def sparse(rng, n):
    return rng.random((n, n)) * (rng.random((n, n)) < 0.3)


def nearly_reducible(rng, n):
    """Two parts whose links are weak by 4 to 14 orders of magnitude."""
    wanted, half = rng.random((n, n)), n // 2
    wanted[:half, half:] *= 10.0 ** -rng.integers(4, 15)
    wanted[half:, :half] *= 10.0 ** -rng.integers(4, 15)
    return wanted


def weak_links(rng, n):
    """Tokens that attend to themselves, each about as strongly, and to others by 1e-12."""
    wanted = 1e-12 * rng.random((n, n)) * (rng.random((n, n)) < 0.7)
    return wanted + np.diag(rng.choice([1, 1 + 1e-9, 0.5], size=n))


def defective(rng, n):
    """A triangle with equal and unequal weights on the diagonal: Jordan blocks."""
    wanted = np.triu(rng.integers(0, 3, size=(n, n)).astype(float), 1)
    return wanted + np.diag(rng.choice([1.0, 1.0, 0.5], size=n))


def equal_parts(rng, n):
    """Two parts alike but for the order of tokens, one of which may lead to the other."""
    half = n // 2
    block = rng.random((half, half))
    order = rng.permutation(half)
    link = (rng.random((half, half)) < 0.3) * rng.choice([0, 0, 1e-8, 1])
    return np.block([[block, link], [np.zeros((half, half)), block[np.ix_(order, order)]]])


def periodic(rng, n):
    wanted = np.roll(np.diag(10.0 ** rng.uniform(-3, 0, size=n)), 1, axis=1)
    wanted[0, 0] = rng.choice([0, 0, 0.01])
    return wanted


def star(rng, n):
    wanted = np.zeros((n, n))
    wanted[0, 1:], wanted[1:, 0] = rng.random((2, n - 1)) * (rng.random((2, n - 1)) < 0.8)
    wanted[0, 1] = wanted[1, 0] = 1
    return wanted


def scales(rng, n):
    """Weights between 1e-30 and 1."""
    return 10.0 ** rng.uniform(-30, 0, size=(n, n)) * (rng.random((n, n)) < 0.6)


FAMILIES = {
    f.__name__: f
    for f in (
        random_relu,
        sparse,
        nearly_reducible,
        weak_links,
        defective,
        equal_parts,
        periodic,
        star,
        scales,
    )
}
#: DENSE_TOKENS: with matrices where products do not settle, and without.
WAYS = pytest.mark.parametrize("dense", [2048, 0], ids=["matrices", "products"])


def entry_error(vector, exact):
    """The largest |exact_i / vector_i − 1| for the best scale of the exact vector."""
    assert (exact[vector == 0] < 1e-40 * exact.max()).all()
    ratios = exact[vector > 0] / vector[vector > 0]
    return (ratios.max() - ratios.min()) / (ratios.max() + ratios.min())


def check(result, exact, unique, tol):
    """What is claimed of one graph holds."""
    vector, bound = result.vector[0, 0].numpy(), result.error_bound.item()
    assert (vector >= 0).all() and np.linalg.norm(vector) == pytest.approx(1, abs=1e-12)
    assert result.converged.item() == (bound <= tol)
    assert result.resolved.item() == (bound <= tol or np.isnan(bound))
    assert unique or not result.unique.item()
    if np.isnan(bound):
        assert result.reason(0, 0).startswith("several")
    elif np.isfinite(bound):
        assert result.unique.item()
        assert np.linalg.norm(vector - exact) <= bound
        assert entry_error(vector, exact) <= result.entry_bound.item()


@WAYS
@pytest.mark.parametrize("family", FAMILIES)
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(2, 6),
    side=st.sampled_from(["left", "right"]),
    tol=st.sampled_from([1e-2, 1e-6, 1e-13]),
)
def test_the_bound_on_a_perron_vector_holds(dense, family, seed, n, side, tol):
    op = graph(FAMILIES[family](np.random.default_rng(seed), n))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spectrum, "DENSE_TOKENS", dense)
        result = perron(op, side, tol=tol)
    matrix = op.dense()[0, 0].numpy()
    if result.value.item() == 0:
        assert not np.linalg.matrix_power(matrix > 0, n).any()
        assert result.reason(0, 0).startswith("no Perron vector")
        assert result.resolved.item() and result.vector.isnan().all()
        return
    exact, unique = exact_perron(matrix.T if side == "left" else matrix)
    check(result, exact, unique, tol)


@WAYS
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(2, 6),
    sharp=st.sampled_from([1.0, 10.0, 50.0, 200.0]),
    own=st.sampled_from([0.0, 1.0]),
    tol=st.sampled_from([1e-6, 1e-13]),
)
def test_the_bound_on_a_stationary_distribution_holds(dense, seed, n, sharp, own, tol):
    """Softmax of logits up to thousands apart, of which some vanish in float64."""
    q, k = (x.double() for x in queries_keys(1, 1, n, n, seed))
    op = AttentionOperator(sharp * (own * k + q), k, "softmax")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spectrum, "DENSE_TOKENS", dense)
        result = perron(op, tol=tol)
    check(result, *exact_stationary(op.dense()[0, 0].numpy()), tol)


# ---------------------------------------------------------------- graphs that once went wrong


@pytest.mark.parametrize("seed", range(12))
def test_tokens_that_attend_to_themselves(seed):
    """Softmax with links of 1e-10 to 1e-6: residuals of 1e-7 left errors of 0.6 to 0.9."""
    k = torch.eye(32, dtype=torch.float64)[None, None]
    noise = torch.randn(1, 1, 32, 32, generator=torch.Generator().manual_seed(seed))
    op = AttentionOperator(18 * k + noise, k, "softmax", scale=1)
    result = perron(op)
    exact, _ = exact_stationary(op.dense()[0, 0].numpy())
    assert np.linalg.norm(result.vector[0, 0].numpy() - exact) < 1e-13
    check(result, exact, True, 1e-6)
    assert result.converged.item() and result.unique.item()
    assert result.error_bound.item() < 1e-11


def test_a_defective_graph():
    """Token 1 leads to 2, both have the radius 1 before normalisation: u = (1, 0, 1) / √2."""
    q = torch.tensor([[[[0.0, 0, 0], [1, 1, 1], [1, 0, 1]]]])
    result = perron(AttentionOperator(q, torch.eye(3)[None, None]))
    np.testing.assert_allclose(result.vector[0, 0], [0.5**0.5, 0, 0.5**0.5], rtol=1e-14)
    assert result.vector[0, 0, 1].item() == 0
    assert result.converged.item() and result.unique.item()
    assert result.second.item() == pytest.approx(result.value.item(), rel=1e-12)  # ρ twice


def test_links_below_rounding_are_not_resolved():
    """Â nearly the identity: links of 1e-14 decide the vector, and rounding could do it."""
    rng = np.random.default_rng(0)
    result = perron(graph(np.eye(6) + 1e-14 * rng.random((6, 6))))
    assert result.unique.item()  # it is strongly connected
    assert not result.converged.item() and not result.resolved.item()
    assert result.error_bound.item() > 1e-6
    assert result.reason(0, 0).startswith("not resolved: one Perron vector, its error bound above")


def test_radii_that_differ_by_little_are_told_apart():
    """Two parts without links, one stronger by 1e-13, or by less than rounding: that is equal."""
    block = np.random.default_rng(0).random((3, 3))
    apart = perron(graph(scipy.linalg.block_diag(block, (1 + 1e-13) * block)))
    assert apart.unique.item() and apart.converged.item()
    assert apart.vector[0, 0, :3].tolist() == [0, 0, 0]
    equal = perron(graph(scipy.linalg.block_diag(block, (1 + 5e-16) * block)))
    assert equal.reason(0, 0).startswith("several")


@pytest.mark.parametrize("kind", ["infsa", "softmax"])
def test_one_graph_of_each_case_in_a_batch(kind):
    """What is found of a graph does not depend on those beside it."""
    rng = np.random.default_rng(0)
    wanted = [rng.random((4, 4)), np.eye(4), np.eye(4, k=1), np.eye(4) + 1e-9 * rng.random((4, 4))]
    q = torch.tensor(np.stack(wanted)).view(2, 2, 4, 4) * (1000 if kind == "softmax" else 1)
    k = (4 * torch.eye(4).double()).expand_as(q)
    together = perron(AttentionOperator(q, k, kind))
    for index in np.ndindex(2, 2):
        at = (slice(index[0], index[0] + 1), slice(index[1], index[1] + 1))
        alone = perron(AttentionOperator(q[at], k[at], kind))
        assert together.reason(*index) == alone.reason(0, 0)
        np.testing.assert_allclose(together.vector[index], alone.vector[0, 0], rtol=0, atol=1e-6)


def stationary_by_mpmath(chain):
    """In 40 digits, by the balance equations and Σ π = 1."""
    size = len(chain)
    with mpmath.workdps(40):
        system = mpmath.matrix(chain.T.tolist())
        for i in range(size):
            system[i, i] = -mpmath.fsum(float(y) for j, y in enumerate(chain[i]) if j != i)
        system[size - 1, :] = mpmath.ones(1, size)
        x = mpmath.lu_solve(system, mpmath.matrix([0] * (size - 1) + [1]))
    vector = np.array([float(y) for y in x])
    return vector / np.linalg.norm(vector)


@pytest.mark.shared
def test_every_head_of_a_trained_softmax_model(shared, capsys):
    """Six photographs, 4 layers of 16 heads, eigenvalues as near as 1e-6 to the first.

    LAPACK's vectors are themselves off by up to 1e-9: where they pass a bound, 40 digits decide.
    """
    files = sorted((shared / "data" / "tiny-imagenet-10" / "val" / "images").iterdir())[:6]
    images = [np.array(Image.open(file).convert("RGB")) for file in files]
    model = load("vit_softmax_photos")
    resolved = worst = repeated = heads = 0
    for layer in capture(model, preprocess(model, images)).layers:
        op = layer.operator
        result, chains = perron(op), op.double.dense().numpy()
        resolved += int(result.resolved.sum())
        for index in np.ndindex(op.shape[:2]):
            values, left, _ = scipy.linalg.eig(chains[index], left=True)
            exact = np.abs(left[:, values.real.argmax()])
            vector, bound = result.vector[index].numpy(), result.error_bound[index].item()
            error = np.linalg.norm(vector - exact / np.linalg.norm(exact))
            if error > bound:
                error = np.linalg.norm(vector - stationary_by_mpmath(chains[index]))
                repeated += 1
            assert error <= bound <= 1e-6
            worst, heads = max(worst, error), heads + 1
    with capsys.disabled():
        print(f"\n{resolved} of {heads} heads resolved, errors at most {worst:.1e}")
    assert resolved == heads == 6 * 4 * 16
    assert worst < 1e-7 and repeated < 10


# ---------------------------------------------------------------- Doob's walk


def exact_doob(matrix, gamma):
    """Visits of Doob's walk from a uniform start on the support, in 60 digits; None for no h."""
    h, unique = exact_perron(matrix)
    if not unique:
        return None
    on = np.flatnonzero(h > 1e-40)
    with mpmath.workdps(60):
        system = mpmath.matrix(
            [
                [
                    int(i == j) - mpmath.mpf(gamma) * matrix[i, j] * h[j] / mpmath.mpf(h[i])
                    for i in on
                ]
                for j in on
            ]
        )
        x = mpmath.lu_solve(system, mpmath.matrix([mpmath.mpf(1) / len(on)] * len(on)))
    scores = np.zeros(len(h))
    scores[on] = [float(y) for y in x]
    return scores


@pytest.mark.parametrize("family", sorted(FAMILIES))
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(2, 6),
    gamma=st.sampled_from([0.3, 0.95]),
    tol=st.sampled_from([1e-3, 1e-6, 1e-10]),
)
def test_the_bound_on_doobs_walk_holds(family, seed, n, gamma, tol):
    op = graph(FAMILIES[family](np.random.default_rng(seed), n))
    result = doob_visits(op, gamma, tol=tol)
    scores, bound = result.scores[0, 0].numpy(), result.error_bound.item()
    assert result.converged.item() == (bound <= tol)
    if np.isfinite(bound):
        exact = exact_doob(op.dense()[0, 0].numpy(), gamma)
        assert np.abs(scores - exact).sum() / scores.sum() <= bound + 1e-15  # h rounded to float64


def test_doobs_walk_on_a_long_cycle():
    """90 tokens, one of which attends to itself a little: h was off, and the bound did not say."""
    wanted = np.roll(np.eye(90), 1, axis=1)
    wanted[0, 0] = 0.01
    op = graph(wanted)
    result = doob_visits(op, 0.95)
    matrix = op.dense()[0, 0].numpy()
    loop, link = matrix[0, 0], matrix[1, 2]
    with mpmath.workdps(50):  # ρ⁹⁰ = loop · ρ⁸⁹ + link⁹⁰; h₁ = (ρ − loop) h₀ / link, then ρ / link
        rho = mpmath.findroot(lambda r: r**90 - loop * r**89 - mpmath.mpf(link) ** 90, link)
        h = [mpmath.mpf(1), (rho - loop) / link]
        for _ in range(88):
            h.append(h[-1] * rho / link)
        # Visits x = s + γ Pᵀx around the cycle, by x_i = 1/90 + a_i x_{i−1}: two sweeps of Horner.
        down = [0.95 * mpmath.mpf(link) * h[i] / h[i - 1] for i in range(90)]
        fixed, slope = mpmath.mpf(0), mpmath.mpf(1)  # x_89 in terms of x_0 = X: fixed + slope X
        for i in range(1, 90):
            fixed, slope = mpmath.mpf(1) / 90 + down[i] * fixed, down[i] * slope
        first = (mpmath.mpf(1) / 90 + down[0] * fixed) / (
            1 - 0.95 * mpmath.mpf(loop) - down[0] * slope
        )
        exact = [first]
        for i in range(1, 90):
            exact.append(mpmath.mpf(1) / 90 + down[i] * exact[-1])
    scores = result.scores[0, 0].numpy()
    error = np.abs(scores - np.array([float(x) for x in exact])).sum() / scores.sum()
    assert result.converged.item()
    assert error <= result.error_bound.item() < 1e-9


def test_doobs_walk_with_several_vectors_is_not_certified():
    block = np.random.default_rng(0).random((3, 3))
    result = doob_visits(graph(scipy.linalg.block_diag(block, block)), 0.9)
    assert result.scores.isfinite().all()
    assert result.error_bound.item() == np.inf and not result.converged.item()


# ---------------------------------------------------------------- the layer series


@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 8),
    layers=st.integers(1, 5),
    start=st.sampled_from(["uniform", "class"]),
)
def test_the_bound_on_the_series_holds(seed, n, layers, start):
    """Against fractions, layer by layer."""
    kinds = ["infsa", "softmax"] * 3
    ops = [
        AttentionOperator(*queries_keys(2, 2, n, 4, seed + i), kind)
        for i, kind in zip(range(layers), kinds, strict=False)
    ]
    gammas = [torch.tensor([0.9, 0.3]), *[0.5] * (layers - 1)]
    result = certified_series(ops, gammas, start)
    assert torch.equal(result.scores, series(ops, gammas, start))
    assert result.scores.dtype == torch.float64 and result.converged.all()
    for image in range(2):
        s = [Fraction(1, n)] * n if start == "uniform" else [Fraction(1), *[Fraction(0)] * (n - 1)]
        z = [Fraction(0)] * n
        for op, gamma in zip(reversed(ops), reversed(gammas), strict=True):
            dense, x = op.double.dense()[image].tolist(), [a + b for a, b in zip(s, z, strict=True)]
            survival = torch.as_tensor(gamma, dtype=torch.float64).expand(2).tolist()
            z = [
                sum(
                    Fraction(g) * Fraction(a[i][j]) * x[i]
                    for g, a in zip(survival, dense, strict=True)
                    for i in range(n)
                )
                / 2
                for j in range(n)
            ]
        scores = result.scores[image].tolist()
        error = max(
            abs(Fraction(a) - b) / b if b else abs(a) for a, b in zip(scores, z, strict=True)
        )
        assert float(error) <= result.error_bound[image].item() < 1e-13


def test_a_series_that_underflows_is_not_certified():
    q = 1e-290 * torch.eye(3, dtype=torch.float64)[None, None]
    result = certified_series(
        [AttentionOperator(q, torch.eye(3).double()[None, None])] * 2, [0.9, 0.9]
    )
    assert result.scores.amax().item() < 1e-280
    assert result.error_bound.item() == np.inf and not result.converged.item()
