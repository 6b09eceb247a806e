"""Centralities of walks with a given γρ, and without the start, against inverses in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from token_graphs import by_definition, close, graph, normalised, queries_keys

import infsa_explain.graph.solvers as solvers
from infsa_explain.graph.centrality import (
    certified_series,
    doob_visits,
    katz,
    perron,
    series,
    visits,
)
from infsa_explain.graph.operator import AttentionOperator

SOLVERS = pytest.mark.parametrize("direct", [128, 0], ids=["direct", "iterated"])
RHO = pytest.mark.parametrize("gamma_rho", [0.4, 0.9, 0.99])


def spectral_radius(a):
    return np.abs(np.linalg.eigvals(a)).max(-1)


def fundamental(a, gamma_rho):
    gamma = gamma_rho / spectral_radius(a)
    return np.linalg.inv(np.eye(a.shape[-1]) - gamma[..., None, None] * a)


@SOLVERS
@RHO
def test_infsa_graphs(gamma_rho, direct, monkeypatch):
    monkeypatch.setattr(solvers, "DIRECT_TOKENS", direct)
    op = AttentionOperator(*queries_keys())
    a = by_definition(op)
    f = fundamental(a, gamma_rho)
    assert (gamma_rho / spectral_radius(a)).max() > 1 or gamma_rho == 0.4  # what solve() refuses
    options = {"gamma_rho": gamma_rho, "tol": 1e-10}
    for result, expected in (
        (visits(op, **options), f.mean(-2)),
        (visits(op, start="class", **options), f[..., 0, :]),
        (visits(op, count_start=False, **options), f.mean(-2) - 1 / op.num_tokens),
        (katz(op, **options), f.sum(-1) - 1),
        (katz(op, direction="received", **options), f.sum(-2) - 1),
    ):
        assert result.converged.all()
        close(result.scores / torch.from_numpy(expected), np.ones_like(expected), 1e-8)


@RHO
def test_softmax_graphs_have_rho_1(gamma_rho):
    op = AttentionOperator(*queries_keys(), "softmax")
    close(visits(op, gamma_rho=gamma_rho).scores, visits(op, gamma_rho).scores, 1e-15)


def test_absorption_is_that_of_the_gamma():
    op = AttentionOperator(*queries_keys())
    a = by_definition(op)
    gamma = 0.9 / spectral_radius(a)
    absorption = 1 - gamma[..., None] * a.sum(-1)
    result = visits(op, gamma_rho=0.9)
    close(result.min_absorption, absorption.min(-1), 1e-9)
    close(result.invalid_rows, (absorption < 0).mean(-1), 1e-12)


def test_doobs_walk():
    op = AttentionOperator(*queries_keys())
    a = by_definition(op)
    h = perron(op, "right", tol=1e-12).vector.numpy()
    f = fundamental(a, 0.9) * h[..., None, :] / h[..., :, None]
    close(doob_visits(op, gamma_rho=0.9, tol=1e-10).scores, f.mean(-2), 1e-8)
    without = doob_visits(op, gamma_rho=0.9, tol=1e-10, count_start=False)
    close(without.scores, f.mean(-2) - 1 / op.num_tokens, 1e-8)
    close(without.min_absorption, np.full(without.min_absorption.shape, 0.1), 1e-8)


def test_series():
    ops = [AttentionOperator(*queries_keys(seed=i)) for i in range(3)]
    m = [
        (0.7 / spectral_radius(by_definition(op))[..., None, None] * by_definition(op)).mean(1)
        for op in ops
    ]
    expected = sum(
        np.linalg.multi_dot([np.full((1, 9), 1 / 9), *(x[0] for x in m[::-1][-t:])])
        if t > 1
        else np.full((1, 9), 1 / 9) @ m[0][0]
        for t in (1, 2, 3)
    )
    close(series(ops, gamma_rho=0.7)[0], expected[0], 1e-9)


def test_a_graph_without_cycles_has_no_such_gamma():
    a = np.triu(np.ones((6, 6)), 1)
    op = graph(a)
    for function in (visits, katz, doob_visits):
        result = function(op, gamma_rho=0.9)
        assert result.scores.isnan().all() and result.error_bound.isnan().all()
        assert not result.converged.any()
    close(series([op], gamma_rho=0.9), np.zeros((1, 6)), 0)


@SOLVERS
@given(seed=st.integers(0, 2**32 - 1), gamma_rho=st.floats(0.05, 0.99), zeros=st.floats(0, 0.9))
def test_the_bound_holds(direct, seed, gamma_rho, zeros):
    """In the norm with weights, on graphs that fall apart, in either solver."""
    rng = np.random.default_rng(seed)
    a = normalised(rng.exponential(size=(1, 1, 8, 8)) * (rng.random((1, 1, 8, 8)) >= zeros))
    op = graph(a[0, 0])
    a = op.double.dense().numpy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solvers, "DIRECT_TOKENS", direct)
        rho = float(perron(op, "right").value)
        assume(rho > 1e-3)
        gamma = torch.full((1, 1), gamma_rho / rho, dtype=torch.float64)
        weights = solvers.weights_of_walk(op, gamma)
        h = weights.numpy()[0, 0]
        assert h.min() >= 1 and (float(gamma) * a[0, 0] @ h < h).all()
        rhs = torch.from_numpy(rng.exponential(size=(1, 1, 8)))
        for transposed in (False, True):
            solution = solvers.solve(op, gamma, rhs, transposed=transposed, weights=weights)
            matrix = a[0, 0].T if transposed else a[0, 0]
            exact = np.linalg.solve(
                np.eye(8, dtype=np.float64) - float(gamma) * matrix, rhs.numpy()[0, 0]
            )
            x = solution.x.numpy()[0, 0]
            length = (
                (lambda v: (h * abs(v)).sum()) if transposed else (lambda v: (abs(v) / h).max())
            )
            assert solution.converged.all()
            assert length(x - exact) <= float(solution.error_bound) * length(x) + 1e-13 * length(x)


def test_weights_that_prove_nothing_certify_nothing():
    op = AttentionOperator(*queries_keys())
    gamma = torch.from_numpy(0.9 / spectral_radius(by_definition(op)))
    solution = solvers.solve(op, gamma, op.double.ones(), weights=op.double.ones())
    assert solution.error_bound.isinf().all() and not solution.converged.any()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "gamma must be given, or gamma_rho in its place, got neither"),
        ({"gamma": 0.5, "gamma_rho": 0.5}, "gamma must be left out beside gamma_rho, got 0.5"),
        ({"gamma_rho": 1.0}, r"gamma_rho must lie in \(0, 1\), got 1.0"),
        ({"gamma_rho": 0}, r"gamma_rho must lie in \(0, 1\), got 0"),
    ],
)
def test_one_of_the_two(options, words):
    op = AttentionOperator(*queries_keys())
    for function in (visits, katz, doob_visits):
        with pytest.raises(ValueError, match=words):
            function(op, **options)
    gammas = {"gammas": [options["gamma"]]} if "gamma" in options else {}
    rho = {"gamma_rho": options["gamma_rho"]} if "gamma_rho" in options else {}
    with pytest.raises(ValueError, match=words):
        certified_series([op], **gammas, **rho)
