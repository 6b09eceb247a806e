"""Bounds of Perron vectors, Doob's walk and the layer series against exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exact_perron import exact_perron, exact_stationary
from hypothesis import given
from hypothesis import strategies as st
from token_graphs import graph, queries_keys

import infsa_explain.spectrum as spectrum
from infsa_explain.centrality import doob_visits, perron
from infsa_explain.operator import AttentionOperator


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
    """The least |exact_i / vector_i − 1| of all scales, at the worst entry; zeros must agree."""
    assert ((vector == 0) <= (exact < 1e-30 * exact.max())).all()
    ratios = exact[vector > 0] / vector[vector > 0]
    low, high = ratios.min(), ratios.max()
    return (high - low) / (high + low)


def check(result, exact, unique, tol, equal=False):
    """What is claimed of one graph holds."""
    vector, bound = result.vector[0, 0].numpy(), result.error_bound.item()
    assert (vector >= 0).all() and np.linalg.norm(vector) == pytest.approx(1, abs=1e-12)
    assert result.converged.item() == (bound <= tol)
    assert result.unique.item() <= unique
    if np.isfinite(bound):
        assert result.unique.item()
        assert np.linalg.norm(vector - exact) <= bound
        assert entry_error(vector, exact) <= result.entry_bound.item()
    if np.isnan(bound):  # several
        assert result.resolved.item() and not result.unique.item()


@WAYS
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("side", ["left", "right"])
@given(seed=st.integers(0, 2**31), n=st.integers(2, 8), tol=st.sampled_from([1e-2, 1e-6, 1e-13]))
def test_the_bound_on_a_perron_vector_holds(dense, family, side, seed, n, tol):
    op = graph(FAMILIES[family](np.random.default_rng(seed), n))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spectrum, "DENSE_TOKENS", dense)
        result = perron(op, side, tol=tol)
    matrix = op.dense()[0, 0].numpy()
    if result.value.item() == 0:
        assert not np.linalg.matrix_power(matrix > 0, n).any()
        assert result.resolved.item() and result.vector.isnan().all()
        return
    exact, unique = exact_perron(matrix.T if side == "left" else matrix)
    check(result, exact, unique, tol)


@WAYS
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(2, 8),
    sharp=st.sampled_from([1.0, 10.0, 50.0, 200.0]),
    own=st.sampled_from([0.0, 1.0]),
    tol=st.sampled_from([1e-6, 1e-12]),
)
def test_the_bound_on_a_stationary_distribution_holds(dense, seed, n, sharp, own, tol):
    """Softmax of logits up to hundreds apart."""
    q, k = (x.double() for x in queries_keys(1, 1, n, n, seed))
    q = sharp * (own * k + q)
    op = AttentionOperator(q, k, "softmax")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spectrum, "DENSE_TOKENS", dense)
        result = perron(op, tol=tol)
    exact, unique = exact_stationary(op.dense()[0, 0].numpy())
    check(result, exact, unique, tol)
