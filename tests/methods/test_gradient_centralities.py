"""Centralities of the gradient graph, against that graph formed by autograd, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_vits import NAMES, PATCHES, attention_and_gradients, build, images
from token_graphs import close, queries_keys

from infsa_explain.graph import centrality
from infsa_explain.graph.operator import AttentionOperator
from infsa_explain.methods import explain
from infsa_explain.methods.gradient_centralities import GradientOperator


def by_hand(scores, prefix):
    """(B, H, N) to a map: each head to sum 1 over the patches, then the mean of those that do."""
    patches = scores[:, :, prefix:]
    total = patches.sum(-1, keepdims=True)
    return np.nanmean(patches / np.where(total > 0, total, np.nan), 1).reshape(-1, 4, 4)


def pagerank(w):
    """(1 − α)/N 1ᵀ(I − αP)⁻¹, P row-normalised, rows without an edge uniform."""
    n, total = w.shape[-1], w.sum(-1, keepdims=True)
    p = np.where(total > 0, w / np.where(total > 0, total, 1), 1 / n)
    return 0.15 / n * np.linalg.inv(np.eye(n) - 0.85 * p).sum(-2)


@pytest.mark.parametrize("layer", [0, -1])
@pytest.mark.parametrize("variant", [{}, PATCHES], ids=["class token", "patches"])
@pytest.mark.parametrize("kind", NAMES)
def test_by_hand(kind, variant, layer, monkeypatch):
    model, x = build(kind, **variant).double(), images().double()
    prefix = model.num_prefix_tokens
    results = {
        name: explain(model, x, f"gradient-{name}", layer=layer, target=[3, 7], gamma=0.8)
        for name in ("visits", "pagerank", "degree")
    }
    a, slope = attention_and_gradients(model, kind, x, [3, 7], monkeypatch)[layer]
    w = np.maximum(a * slope, 0)
    norm = np.linalg.norm(w, axis=(-2, -1), keepdims=True)
    dead = norm[..., 0] == 0
    w = w / np.where(norm > 0, norm, 1)
    if layer == -1 and not variant:
        assert not w[:, :, 1:].any()  # a star
    f = np.linalg.inv(np.eye(16 + prefix) - 0.8 * w)
    for name, truth in (
        ("visits", f.mean(-2)),
        ("pagerank", pagerank(w)),
        ("degree", w.sum(-2)),
    ):
        expected = by_hand(np.where(dead, 0, truth), prefix)
        assert expected.std() > 1e-5
        np.testing.assert_allclose(results[name].maps, expected, rtol=1e-5, atol=1e-8)
    diagnostics = results["visits"].diagnostics
    absorption = 1 - 0.8 * w.sum(-1)
    np.testing.assert_allclose(diagnostics["min_absorption"][0], absorption.min(-1), atol=1e-9)
    assert diagnostics["error_bound"].max() < 1e-6
    assert diagnostics["converged"].all()


@pytest.mark.filterwarnings("ignore:.* has no map for some images")
@pytest.mark.parametrize("kind", NAMES)
def test_a_class_that_nothing_speaks_for_has_no_map(kind):
    model = build(kind)
    with torch.no_grad():
        model.get_classifier().weight[4] = 0
    for name in ("visits", "pagerank", "degree"):
        assert explain(model, images(), f"gradient-{name}", target=4).maps.isnan().all()


@pytest.mark.parametrize("kind", NAMES)
def test_the_size_of_the_logit_plays_no_part(kind):
    model = build(kind)
    expected = explain(model, images(), "gradient-visits", target=2).maps
    for factor in (1e-15, 1e12):
        with torch.no_grad():
            model.get_classifier().weight[2] *= factor
        actual = explain(model, images(), "gradient-visits", target=2).maps
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


# ---------------------------------------------------------------- the operator


def operator(kind, tokens=11, max_bytes=2**28):
    """A gradient graph with made-up g and v, and what it is by definition."""
    q, k = queries_keys(tokens=tokens)
    g, v = queries_keys(tokens=tokens, seed=1)
    base = AttentionOperator(q, k, kind) if kind else None
    op = GradientOperator(base, g, v)
    op.max_bytes = max_bytes
    w = np.maximum(g.double().numpy() @ v.double().mT.numpy(), 0)
    w = w * base.double.dense().numpy() if base else w
    return op, w / np.linalg.norm(w, axis=(-2, -1), keepdims=True)


@pytest.mark.parametrize("kind", ["infsa", "softmax", None])
@pytest.mark.parametrize("entries", [1, 50, 2 * 11 * 11, 4 * 11 * 11])
def test_products_and_sums(kind, entries):
    """Row by row, in shares of a graph, in whole graphs, and kept."""
    op, w = operator(kind, max_bytes=4 * entries)
    x = torch.randn(2, 2, 11, 3, generator=torch.Generator().manual_seed(2))
    numbers = x.double().numpy()
    close(op.dense(), w, 1e-6)
    close(op.apply(x), w @ numbers, 3e-6)
    close(op.apply_transposed(x), np.swapaxes(w, -1, -2) @ numbers, 3e-6)
    close(op.row_sums(), w.sum(-1), 3e-6)
    close(op.column_sums(), w.sum(-2), 3e-6)
    close(op.frobenius_norm(), np.ones((2, 2)), 1e-6)
    assert op.kind == "infsa"
    assert op.double.dense().dtype == torch.float64
    close(op.double.dense(), w)


@pytest.mark.parametrize("kind", ["infsa", "softmax", None])
def test_the_certificate_holds(kind):
    """Beyond 128 tokens visits are solved iteratively: the error is within its bound."""
    op, w = operator(kind, tokens=140)
    result = centrality.visits(op, 0.95)
    truth = np.linalg.inv(np.eye(140) - 0.95 * w).mean(-2)
    error = np.linalg.norm(result.scores.numpy() - truth, axis=-1) / np.linalg.norm(truth, axis=-1)
    assert result.iterations > 0
    assert (error <= result.error_bound.numpy()).all()
    assert result.error_bound.max() < 1e-6
