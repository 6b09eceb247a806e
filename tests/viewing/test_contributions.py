"""Rows and columns of F against its inverse in numpy, and against the map that they add up to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from timm.models import VisionTransformer
from token_graphs import by_definition

import infsa_explain
from infsa_explain.data import PhotoDigits
from infsa_explain.viewing.contributions import token_contributions


@pytest.fixture(scope="module")
def graphs():
    """Of a pure model with a dead head in its last layer, on two images."""
    model = infsa_explain.load("infvit_pure_digits")
    with torch.no_grad():  # queries of head 2, of width 16
        model.blocks[3].attn.qkv.weight[32:48] = 0
        model.blocks[3].attn.qkv.bias[32:48] = 0
    data = PhotoDigits("val")
    images = infsa_explain.preprocess(model, [data[0].image, data[1].image])
    return infsa_explain.capture(model, images)


def truth(graphs, layer, heads, gamma):
    """(B, N, N): what start i adds to the score of j, from F in float64."""
    op, own, _ = graphs.layers[layer]
    matrices = by_definition(op)
    batch, tokens = len(matrices), op.num_tokens
    added = np.zeros((batch, tokens, tokens))
    for b in range(batch):
        for head in heads:
            survival = float(own[head]) if gamma is None else gamma
            fundamental = np.linalg.inv(np.eye(tokens) - survival * matrices[b, head])
            added[b] += fundamental / fundamental[:, graphs.num_prefix_tokens :].sum()
    return added / len(heads)


@pytest.mark.parametrize("gamma", [None, 0.5])
@pytest.mark.parametrize("heads", [None, (5,)])
def test_equal_f_in_numpy(graphs, gamma, heads):
    added = truth(graphs, 3, heads or [0, 1, 3, 4, 5, 6, 7], gamma)
    for token in (0, 77):
        parts = token_contributions(graphs, token, layers=(3,), heads=heads, gamma=gamma)
        np.testing.assert_allclose(parts.sources, added[:, :, token], rtol=0, atol=1e-9)
        np.testing.assert_allclose(parts.destinations, added[:, token], rtol=0, atol=1e-9)


def test_sources_add_up_to_the_map(graphs):
    for layer, layers in ((1, (1,)), ("mean", (0, 1, 2, 3))):
        scores = infsa_explain.explain(graphs.model, graphs.images, "visits", layer).tokens
        parts = token_contributions(graphs, 60, layers=layers)
        np.testing.assert_allclose(parts.sources.sum(-1), scores[:, 60], rtol=2e-6)


def test_softmax_graph_with_prefix_tokens():
    torch.manual_seed(0)
    vit = VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2).eval()
    graphs = infsa_explain.capture(vit, torch.rand(1, 3, 32, 32))
    added = truth(graphs, 1, (0, 1), 0.95)
    parts = token_contributions(graphs, 9)
    np.testing.assert_allclose(parts.sources, added[:, :, 9], rtol=0, atol=1e-9)
    np.testing.assert_allclose(parts.destinations, added[:, 9], rtol=0, atol=1e-9)


def test_only_dead_heads_is_nan(graphs):
    parts = token_contributions(graphs, 0, layers=(3,), heads=(2,))
    assert parts.sources.isnan().all() and parts.destinations.isnan().all()


@pytest.mark.parametrize("token", [-1, 196])
def test_refuses_a_token_out_of_range(graphs, token):
    with pytest.raises(ValueError, match=f"token must be an index from 0 to 195, got {token}"):
        token_contributions(graphs, token)
