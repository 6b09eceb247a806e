"""Relevance against its rule, R ← R + Ā R, with attention that is formed, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_vits import NAMES, PATCHES, attention_and_gradients, build, images

from infsa_explain.methods import explain


@pytest.mark.parametrize("variant", ["class token", "patches", "pooled beside a class token"])
@pytest.mark.parametrize("kind", NAMES)
def test_relevance_by_hand(kind, variant, monkeypatch):
    options = {"class token": {}, "patches": PATCHES}.get(variant, {"global_pool": "avg"})
    model, x = build(kind, **options).double(), images().double()
    result = explain(model, x, "relevance", target=[3, 7])
    prefix = model.num_prefix_tokens
    identity = np.eye(16 + prefix)
    r = identity
    for a, slope in attention_and_gradients(model, kind, x, [3, 7], monkeypatch):
        r = r + np.maximum(slope * a, 0).mean(1) @ r
    rows = (r - identity)[:, :1] if variant == "class token" else (r - identity)[:, prefix:]
    expected = rows.mean(1)
    assert expected[:, prefix:].std(1).min() > 1e-5
    np.testing.assert_allclose(result.tokens.numpy(), expected, rtol=1e-5, atol=1e-9)
    assert (result.layers, result.heads) == ((0, 1, 2), None)


@pytest.mark.filterwarnings("ignore:.* has no map for some images")
def test_a_class_that_nothing_speaks_for_has_no_map():
    model = build("pure")
    with torch.no_grad():
        model.get_classifier().weight[4] = 0
    assert explain(model, images(), "relevance", target=4).maps.isnan().all()
    assert explain(model, images(), "relevance", target=5).maps.isfinite().all()
