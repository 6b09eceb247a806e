"""Every registered method by the same rules, and each rule by hand."""

from __future__ import annotations

import re

import networkx as nx
import numpy as np
import pytest
import torch
from scipy import stats
from small_vits import NAMES, build, images

from infsa_explain.evaluate import Boxes
from infsa_explain.graph import centrality
from infsa_explain.graph.operator import AttentionOperator
from infsa_explain.methods import (
    METHODS,
    MethodNotApplicable,
    applicable_methods,
    explain,
    get_method,
    register_method,
)
from infsa_explain.methods.explaining import explain_graphs
from infsa_explain.models.untraining import untrained
from infsa_explain.vits import timm_vits
from infsa_explain.vits.capturing import capture

#: Every method on every kind of attention that it is for.
EVERY = [
    pytest.param(name, kind, id=f"{name}-{kind}")
    for name, method in METHODS.items()
    for kind in sorted(method.kinds)
]
LAYER_METHODS = [case for case in EVERY if METHODS[case.values[0]].layers]


def kill(model, layer, heads):
    """No weights, queries of 1 and keys of −1: every product of these heads is negative."""
    qkv = model.blocks[layer].attn.qkv
    with torch.no_grad():
        for part, value in ((0, 1.0), (1, -1.0)):
            qkv.weight.view(3, 8, 12, 96)[part, heads] = 0
            qkv.bias.view(3, 8, 12)[part, heads] = value
    return model


def same(actual, expected, atol=1e-6):
    expected = torch.as_tensor(np.asarray(expected), dtype=actual.dtype)
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol, equal_nan=True)


def layer_graphs(model, x, layer=-1):
    """Â (or P) of a layer in numpy float64, (B, H, N, N)."""
    return capture(model, x).operators[layer].double.dense().numpy()


# ---------------------------------------------------------------- every method


@pytest.mark.parametrize(("method", "kind"), EVERY)
@pytest.mark.parametrize("variant", [{}, {"class_token": False, "global_pool": "avg"}])
def test_maps_are_the_patch_tokens_in_raster_order(method, kind, variant):
    model = build(kind, dynamic_img_size=True, **variant)
    x = images(2, 16, 40)
    result = explain(model, x, method)
    prefix = model.num_prefix_tokens
    assert prefix == (2 if variant else 3)
    assert result.maps.shape == (2, 2, 5)
    assert result.maps.dtype == torch.float32
    assert result.maps.isfinite().all()
    assert result.maps.std() > 0
    assert result.tokens.shape == (2, prefix + 10)
    for i, j in np.ndindex(2, 5):
        assert torch.equal(result.maps[:, i, j], result.tokens[:, prefix + 5 * i + j])
    with torch.no_grad():
        assert torch.equal(result.logits, model(x))
    assert result.method == method
    used = 1 if METHODS[method].layers else 3
    assert result.diagnostics["dead_heads"].shape == (used, 2, 8)


@pytest.mark.parametrize(("method", "kind"), EVERY)
def test_two_images_are_one_and_one(method, kind):
    model, x = build(kind), images(2)
    both = explain(model, x, method, seeds=["a", "b"]).maps
    for i, seed in enumerate("ab"):
        same(explain(model, x[i : i + 1], method, seeds=[seed]).maps[0], both[i], 1e-6)


@pytest.mark.parametrize(("method", "kind"), EVERY)
def test_model_and_images_are_left_as_found(method, kind):
    model, x = build(kind), images().requires_grad_()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    explain(model, x, method)
    assert torch.equal(x.detach(), images())
    assert x.grad is None
    assert not model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    for parameter in model.parameters():
        assert parameter.requires_grad
        assert parameter.grad is None


@pytest.mark.parametrize(("method", "kind"), EVERY)
def test_precision(method, kind):
    """A float64 model gives the map of its float32 twin, and autocast does not spoil one."""
    model, x = build(kind), images()
    expected = explain(model, x, method).maps
    graphs = capture(model, x)
    with torch.autocast("cpu", torch.bfloat16):
        same(explain_graphs(graphs, METHODS[method]).maps, expected)
    same(explain(model.double(), x.double(), method).maps, expected, 1e-5)


@pytest.mark.parametrize(("method", "kind"), LAYER_METHODS)
def test_layers(method, kind):
    model, x = build(kind), images()
    graphs = capture(model, x)

    def maps(**options):
        return explain_graphs(graphs, METHODS[method], **options).maps

    layers = [maps(layer=i) for i in range(3)]
    for alias in (-1, "last", "2", "-1"):
        assert torch.equal(maps(layer=alias), layers[2])
    assert torch.equal(maps(), layers[2])
    assert torch.equal(maps(layer=-3), layers[0])
    assert not torch.allclose(layers[0], layers[2], atol=1e-4)
    same(maps(layer="mean"), torch.stack(layers).mean(0))
    for one in layers:
        same(one.sum((1, 2)), torch.ones(2), 1e-5)
    result = explain(model, x, method, layer="mean")
    assert result.layers == (0, 1, 2)


@pytest.mark.filterwarnings("ignore:gradient-degree has no map for some images")
@pytest.mark.parametrize(
    ("method", "kind"), [c for c in LAYER_METHODS if METHODS[c.values[0]].heads]
)
def test_heads(method, kind):
    model, x = build(kind), images()
    graphs = capture(model, x)

    def maps(**options):
        return explain_graphs(graphs, METHODS[method], **options).maps

    heads = torch.stack([maps(head=h) for h in range(8)])
    if METHODS[method].class_specific:  # a head may say nothing for a class
        assert heads.isfinite().any(0).all()
    else:
        assert heads.isfinite().all()
    same(maps(), heads.nanmean(0))
    same(maps(head=-8), heads[0], 0)
    for one in heads:
        sums = one.sum((1, 2))
        same(sums, torch.ones(2).where(sums.isfinite(), torch.nan), 1e-5)
    result = explain(model, x, method, layer=1, head=-1)
    assert (result.layers, result.heads) == ((1,), (7,))
    result = explain(model, x, method, layer="mean")
    assert (result.layers, result.heads) == ((0, 1, 2), tuple(range(8)))


@pytest.mark.filterwarnings("ignore:.* has no map for some images")
@pytest.mark.parametrize(
    ("method", "kind"), [case for case in LAYER_METHODS if case.values[1] != "softmax"]
)
def test_dead_heads(method, kind):
    """A head is left out where it says nothing, and the map is NaN where none is left."""
    model, x = kill(build(kind), 2, [1, 6]), images()
    result = explain(model, x, method)
    assert result.diagnostics["dead_heads"][0, :, [1, 6]].all()
    if METHODS[method].heads:
        heads = torch.stack([explain(model, x, method, head=h).maps for h in range(8)])
        assert heads[[1, 6]].isnan().all()
        same(result.maps, heads[[0, 2, 3, 4, 5, 7]].nanmean(0))
    assert result.maps.isfinite().all()

    kill(model, 2, list(range(8)))
    alive = torch.stack([explain(model, x, method, layer=i).maps for i in (0, 1)])
    last, mean = explain(model, x, method).maps, explain(model, x, method, layer="mean").maps
    assert last.isnan().all()
    same(mean, alive.mean(0))


@pytest.mark.filterwarnings("ignore:.* has no map for some images")
def test_series_of_a_dead_model_is_nan_and_no_silent_zero():
    model = build("pure")
    for layer in range(3):
        kill(model, layer, list(range(8)))
    assert explain(model, images(), "series").maps.isnan().all()


def test_control_flags():
    assert {name for name, m in METHODS.items() if m.control} == {"random", "centre"}


def test_controls_look_at_nothing():
    for name in (name for name, m in METHODS.items() if m.control):
        maps = [explain(build(kind), images() * i, name).maps for i, kind in enumerate(NAMES)]
        assert torch.equal(maps[0], maps[1])
        assert torch.equal(maps[0], maps[2])


# ---------------------------------------------------------------- what is refused


def test_unknown_method_names_the_nearest():
    with pytest.raises(ValueError, match=r"^unknown method 'vists'; did you mean visits\b"):
        explain(build("pure"), images(), "vists")
    with pytest.raises(ValueError, match=f"did you mean {', '.join(sorted(METHODS))}"):
        get_method("zzzzzz")


@pytest.mark.parametrize("layer", [3, -4, "3"])
def test_layer_out_of_range(layer):
    message = rf"layer {layer} is out of range: the model has 3 \(layer 0 to 2\)"
    with pytest.raises(ValueError, match=message):
        explain(build("pure"), images(), layer=layer)


@pytest.mark.parametrize("layer", ["first", "", 1.5, None, "1.5"])
def test_layer_that_is_none(layer):
    message = f"layer must be a whole number, 'last' or 'mean', got {layer!r}"
    with pytest.raises(ValueError, match=message):
        explain(build("pure"), images(), layer=layer)


@pytest.mark.parametrize("head", ["mean", "last", 1.5, True])
def test_head_that_is_none(head):
    """A head is no ``"mean"`` or ``"last"``; a captured layer may be the last, but no mean."""
    message = f"head must be a whole number, or None for the mean over heads, got {head!r}"
    with pytest.raises(ValueError, match=message):
        explain(build("pure"), images(), head=head)
    if head == "last":
        assert capture(build("pure"), images(), layers=[head]).indices == (2,)
        return
    with pytest.raises(ValueError, match=f"layer must be a whole number or 'last', got {head!r}"):
        capture(build("pure"), images(), layers=[head])


WITHOUT_HEADS = [case for case in EVERY if not METHODS[case.values[0]].heads]


@pytest.mark.parametrize(("method", "kind"), WITHOUT_HEADS)
def test_no_head_where_there_is_none(method, kind):
    model, x = build(kind), images()
    message = f"head must be left out for {method}, which has no heads, got 2"
    with pytest.raises(ValueError, match=message):
        explain(model, x, method, head=2)
    assert explain(model, x, method).heads is None
    if METHODS[method].scope == "model":
        message = f"layer must be left out for {method}, which is of the whole model, got 0"
        with pytest.raises(ValueError, match=message):
            explain(model, x, method, 0)


def test_methods_without_heads():
    assert {name for name, m in METHODS.items() if m.layers and not m.heads} == {"gradcam"}
    assert not any(m.heads for m in METHODS.values() if m.scope == "model")


@pytest.mark.parametrize("head", [8, -9])
def test_head_out_of_range(head):
    with pytest.raises(ValueError, match=rf"head {head} is out of range: the model has 8 \(head 0"):
        explain(build("pure"), images(), head=head)


@pytest.mark.parametrize("kind", ["linear", "pure"])
def test_raw_attention_is_not_for_infsa(kind):
    message = f"attention is not for {kind} attention, only for softmax"
    with pytest.raises(MethodNotApplicable, match=message):
        explain(build(kind), images(), "attention")
    assert "attention" not in applicable_methods({kind})
    assert "katz" in applicable_methods({kind})


def test_katz_is_not_for_softmax():
    with pytest.raises(MethodNotApplicable, match="katz is not for softmax attention"):
        explain(build("softmax"), images(), "katz")
    assert "katz" not in applicable_methods({"softmax"})
    assert "katz" not in applicable_methods({"softmax", "linear"})
    assert "attention" in applicable_methods({"softmax"})


def test_seeds_of_the_wrong_number():
    with pytest.raises(ValueError, match=r"one per image \(2\), got 3"):
        explain(build("pure"), images(), "random", seeds=[1, 2, 3])


@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.0])
def test_gamma_out_of_range(gamma):
    with pytest.raises(ValueError, match=r"gamma must lie in \(0, 1\)"):
        explain(build("pure"), images(), gamma=gamma)


# ---------------------------------------------------------------- the methods by hand


def by_hand(scores):
    """(B, H, N) to a map: each head to sum 1 over the 16 patches, then the mean over heads."""
    patches = scores[:, :, 3:]
    return (patches / patches.sum(-1, keepdims=True)).mean(1).reshape(-1, 4, 4)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("gamma", [None, 0.5])
def test_visits_by_hand(kind, gamma):
    model, x = build(kind), images()
    a = layer_graphs(model, x)
    own = np.full(8, 0.95) if kind == "softmax" else 1 / (1 + np.exp(-np.linspace(-1, 3, 8)))
    g = np.reshape(own if gamma is None else np.full(8, gamma), (8, 1, 1))
    f = np.linalg.inv(np.eye(19) - g * a)
    result = explain(model, x, "visits", gamma=gamma)
    same(result.maps, by_hand(f.mean(-2)))
    absorption = 1 - g[..., 0] * a.sum(-1)
    same(result.diagnostics["min_absorption"][0], absorption.min(-1), 1e-6)
    same(result.diagnostics["invalid_rows"][0], (absorption < -1e-9).mean(-1), 1e-9)
    assert result.diagnostics["error_bound"].max() < 1e-10
    assert result.diagnostics["converged"].all()
    if kind != "softmax":
        same(explain(model, x, "katz", gamma=gamma).maps, by_hand(f.sum(-1) - 1))


@pytest.mark.parametrize("kind", NAMES)
def test_visits_at_equal_gamma_rho_and_without_the_start_by_hand(kind):
    model, x = build(kind), images()
    a = layer_graphs(model, x)
    g = 0.9 / np.abs(np.linalg.eigvals(a)).max(-1)[..., None, None]
    f = np.linalg.inv(np.eye(19) - g * a)
    result = explain(model, x, "visits", gamma_rho=0.9)
    same(result.maps, by_hand(f.mean(-2)))
    assert result.diagnostics["converged"].all() and result.gammas == ()
    without = explain(model, x, "visits", gamma_rho=0.9, visits_start="excluded")
    same(without.maps, by_hand(f.mean(-2) - 1 / 19))
    own = np.full(8, 0.95) if kind == "softmax" else 1 / (1 + np.exp(-np.linspace(-1, 3, 8)))
    f_own = np.linalg.inv(np.eye(19) - own.reshape(8, 1, 1) * a)
    same(explain(model, x, visits_start="excluded").maps, by_hand(f_own.mean(-2) - 1 / 19))
    if kind != "softmax":
        same(explain(model, x, "katz", gamma_rho=0.9).maps, by_hand(f.sum(-1) - 1))
        h = np.linalg.eig(a)
        right = np.abs(
            np.take_along_axis(h[1], h[0].real.argmax(-1)[..., None, None], axis=-1)[..., 0]
        )
        doob = f * right[..., None, :] / right[..., :, None]
        same(explain(model, x, "doob", gamma_rho=0.9).maps, by_hand(doob.mean(-2)), 1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gamma_rho": 1.0}, r"gamma_rho must lie in \(0, 1\), got 1.0"),
        ({"gamma": 0.5, "gamma_rho": 0.5}, "gamma must be left out beside gamma_rho, got 0.5"),
        ({"visits_start": "no"}, "visits_start must be 'counted' or 'excluded', got 'no'"),
    ],
)
def test_options_of_walks(options, words):
    with pytest.raises(ValueError, match=words):
        explain(build("pure"), images(), "rollout", **options)
    with pytest.raises(ValueError, match=words):
        Boxes(methods=("degree",), **options).check(build("pure"))


@pytest.mark.parametrize("kind", NAMES)
def test_degree_and_perron_by_hand(kind):
    model, x = build(kind), images()
    a = layer_graphs(model, x)
    same(explain(model, x, "degree").maps, by_hand(a.sum(-2)))
    values, vectors = np.linalg.eig(np.swapaxes(a, -1, -2))
    top = values.real.argmax(-1)
    left = np.abs(np.take_along_axis(vectors, top[..., None, None], -1)[..., 0])
    result = explain(model, x, "perron")
    same(result.maps, by_hand(left), 1e-5)
    same(result.diagnostics["value"][0], values.real.max(-1), 1e-5)
    assert result.diagnostics["unique"].all() and result.diagnostics["resolved"].all()
    assert result.diagnostics["residual"].max() <= 1e-6
    assert result.diagnostics["error_bound"].shape == (1, 2, 8)
    assert result.diagnostics["error_bound"].max() <= 1e-6


def test_tokenrank_by_hand():
    """The eigenvector of (0.99 P + 0.01/N)ᵀ for 1, of each head."""
    model, x = build("softmax"), images()
    p = 0.99 * layer_graphs(model, x) + 0.01 / 19
    values, vectors = np.linalg.eig(np.swapaxes(p, -1, -2))
    top = np.abs(values - 1).argmin(-1)
    stationary = np.abs(np.take_along_axis(vectors, top[..., None, None], -1)[..., 0])
    result = explain(model, x, "tokenrank")
    same(result.maps, by_hand(stationary))
    assert result.diagnostics["converged"].all()


@pytest.mark.parametrize("kind", ["pure", "linear"])
def test_tokenrank_of_infsa_is_of_the_row_normalised_graph(kind):
    """networkx's PageRank, damping 0.99, of one head."""
    model, x = build(kind), images()
    graph = nx.from_numpy_array(layer_graphs(model, x)[0, 2], create_using=nx.DiGraph)
    rank = nx.pagerank(graph, alpha=0.99, tol=1e-12, max_iter=10_000)
    patches = np.array([rank[i] for i in range(3, 19)])
    expected = (patches / patches.sum()).reshape(4, 4)
    same(explain(model, x, "tokenrank", head=2).maps[0], expected, 2e-6)


def linear_by_hand(op):
    """a = relu(k q̄ / d) / (Σ + 1e-6), q̄ the mean of the queries by their norms."""
    q, k = op.q.double().numpy(), op.k.double().numpy()
    e = np.linalg.norm(q, axis=-1, keepdims=True)
    central = (e / e.sum(-2, keepdims=True) * q).sum(-2)
    r = np.maximum(np.einsum("bhnd,bhd->bhn", k, central) / q.shape[-1], 0)
    return r / (r.sum(-1, keepdims=True) + 1e-6)


@pytest.mark.parametrize("kind", NAMES)
def test_linear_by_hand(kind):
    model, x = build(kind), images()
    same(explain(model, x, "linear").maps, by_hand(linear_by_hand(capture(model, x).operators[-1])))


@pytest.mark.parametrize("kind", NAMES)
def test_series_by_hand(kind):
    model, x = build(kind), images()
    m1, m2, m3 = (
        (gamma.double().numpy()[:, None, None] * op.double.dense().numpy()).mean(1)
        for op, gamma, _ in capture(model, x).layers
    )
    total = m1 + m2 @ m1 + m3 @ m2 @ m1
    result = explain(model, x, "series")
    same(result.tokens, total.mean(-2))
    assert (result.layers, result.heads) == ((0, 1, 2), None)
    assert result.diagnostics["converged"].tolist() == [True, True]
    bound = result.diagnostics["error_bound"]
    assert bound.shape == (2,) and (bound > 1e-16).all() and (bound < 1e-13).all()


def test_attention_by_hand():
    """The class token's row; where patches are pooled, the mean over their queries."""
    model, x = build("softmax"), images()
    same(explain(model, x, "attention").maps, by_hand(layer_graphs(model, x)[:, :, 0]))
    model = build("softmax", class_token=False, reg_tokens=0, global_pool="avg")
    p = layer_graphs(model, x).mean(-2)
    same(explain(model, x, "attention").maps, p.mean(1).reshape(2, 4, 4))
    # Prefix tokens that the classifier does not read have no say, nor do they show.
    model = build("softmax", global_pool="avg")
    expected = by_hand(layer_graphs(model, x)[:, :, 3:].mean(-2))
    same(explain(model, x, "attention").maps, expected)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("prefix", [True, False])
def test_rollout_by_hand(kind, prefix):
    """½(A⁽³⁾ + I) ½(A⁽²⁾ + I) ½(A⁽¹⁾ + I), the class token's row or the mean row."""
    variant = {} if prefix else {"class_token": False, "reg_tokens": 0, "global_pool": "avg"}
    model, x = build(kind, **variant), images()
    if kind != "softmax":
        kill(model, 1, [2, 3])  # a head that takes nothing keeps its own token
    count = 3 if prefix else 0
    identity = np.eye(16 + count)
    flow = identity
    for op in capture(model, x).operators:
        a = op.double.dense().numpy()
        if kind == "linear":
            a = np.broadcast_to(linear_by_hand(op)[:, :, None], a.shape)
        total = a.sum(-1, keepdims=True)
        a = np.where(total > 0, a / np.where(total > 0, total, 1), identity)
        flow = (a.mean(1) + identity) / 2 @ flow
    np.testing.assert_allclose(flow.sum(-1), 1, atol=1e-12)
    expected = flow[:, 0] if prefix else flow.mean(-2)
    result = explain(model, x, "rollout")
    same(result.tokens, expected)
    same(result.maps, expected[:, count:].reshape(2, 4, 4))


@pytest.mark.parametrize(
    ("method", "kind"),
    [(method, kind) for method in ("rollout-max", "rollout-bare") for kind in NAMES]
    + [("rollout-min", "softmax")],
)
def test_rollout_variants_by_hand(method, kind):
    """Rows of A + I scaled to 1, A the largest or the least over heads; or the mean, without I."""
    model, x = build(kind), images()
    flow = identity = np.eye(19)
    for op in capture(model, x).operators:
        a = op.double.dense().numpy()
        if kind == "linear":
            a = np.broadcast_to(linear_by_hand(op)[:, :, None], a.shape)
        a = a / a.sum(-1, keepdims=True)
        steps = {
            "rollout-max": a.max(1) + identity,
            "rollout-min": a.min(1) + identity,
            "rollout-bare": a.mean(1),
        }
        flow = steps[method] / steps[method].sum(-1, keepdims=True) @ flow
    np.testing.assert_allclose(flow.sum(-1), 1, atol=1e-12)
    same(explain(model, x, method).tokens, flow[:, 0])


def test_random_is_seeded_by_the_image_and_not_by_its_place():
    model, x = build("pure"), images(3)
    maps = explain(model, x, "random", seeds=["a", "b", 7]).maps
    again = explain(model, x, "random", seeds=[7, "a", "b"]).maps
    assert torch.equal(again, maps[[2, 0, 1]])
    assert torch.equal(explain(model, x, "random").maps, explain(model, x, "random").maps)


def test_random_is_uniform():
    """800 draws of 50 seeds: a Kolmogorov-Smirnov test does not reject at 1%."""
    model = build("pure")
    maps = explain(model, images(1).expand(50, -1, -1, -1), "random", seeds=range(50)).maps
    assert stats.kstest(maps.flatten().numpy(), "uniform").pvalue > 0.01
    assert len(maps.unique()) == 800


@pytest.mark.parametrize(("height", "width"), [(40, 24), (32, 32)])
def test_centre(height, width):
    """exp(−r²/2σ²) of the patch centres, r in sides of the image, σ = ¼."""
    model = build("pure", dynamic_img_size=True)
    centre = explain(model, images(2, height, width), "centre").maps
    gh, gw = height // 8, width // 8
    y, x = np.meshgrid(
        (np.arange(gh) + 0.5) / gh - 0.5, (np.arange(gw) + 0.5) / gw - 0.5, indexing="ij"
    )
    expected = np.exp(-(x**2 + y**2) / (2 / 16))
    same(centre, np.stack([expected] * 2))
    for axis in (1, 2):
        same(centre.flip(axis), centre, 1e-7)
    top = centre[0] == centre[0].max()
    assert top[(gh - 1) // 2 : gh // 2 + 1, (gw - 1) // 2 : gw // 2 + 1].all()
    assert top.sum() == (1 if gh % 2 else 4)


# ---------------------------------------------------------------- the registry


def test_a_new_method_is_one_function(monkeypatch):
    """Registered, it is in ``explain``; heads weigh the same, whatever the size of their scores."""
    monkeypatch.setattr("infsa_explain.methods.registry.METHODS", registry := dict(METHODS))

    @register_method("ramp")
    def ramp(layer, request, graphs):
        """A ramp over the tokens, a thousand times as steep in the last head.

        And more.
        """
        scores = torch.arange(19.0).expand(layer.operator.shape).clone()
        scores[:, :7] = 1
        scores[:, 7] *= 1000
        return scores

    @register_method("place", scope="model", kinds=("pure",), control=True)
    def place(graphs, request):
        """The token's place."""
        return torch.arange(19.0).expand(2, -1)

    assert registry["ramp"].summary.startswith("A ramp over the tokens, a thousand times")
    assert not registry["ramp"].control
    assert registry["place"].kinds == {"pure"}
    patches = torch.arange(3.0, 19)
    expected = (7 * torch.full((16,), 1 / 16) + patches / patches.sum()) / 8
    model, x = build("pure"), images()
    same(explain(model, x, "ramp").maps, expected.view(4, 4).expand(2, -1, -1), 1e-7)
    result = explain(model, x, "place")
    assert torch.equal(result.maps[1], patches.view(4, 4))  # raw: not normalised
    assert result.layers == ()
    with pytest.raises(MethodNotApplicable):
        explain(build("linear"), x, "place")


def test_scores_of_another_shape(monkeypatch):
    monkeypatch.setitem(METHODS, "flat", None)
    for scope, shape in (("head", (2, 8, 19)), ("layer", (2, 19)), ("model", (2, 19))):
        register_method("flat", scope=scope)(lambda *given: torch.ones(19))
        message = f"flat must return scores of shape {shape}, for scope '{scope}', got (19,)"
        with pytest.raises(ValueError, match=re.escape(message)):
            explain(build("linear"), images(), "flat")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scope": "image"}, "scope must be one of head, layer, model, got 'image'"),
        ({"kinds": ("relu", "pure")}, "kinds must be of linear, pure, softmax, got relu"),
    ],
)
def test_what_cannot_be_registered(options, message):
    with pytest.raises(ValueError, match=message):
        register_method("silence", **options)


def test_diagnostics_are_those_of_the_solver():
    model, x = build("pure"), images()
    graphs = capture(model, x)
    result = explain(model, x, "visits", layer="mean")
    for i, (op, gamma) in enumerate(zip(graphs.operators, graphs.gammas, strict=True)):
        expected = centrality.visits(op, gamma)
        for name in ("min_absorption", "invalid_rows", "error_bound", "converged"):
            assert torch.equal(result.diagnostics[name][i], getattr(expected, name))


def test_target_is_one_of_the_models_classes():
    model = build("linear")
    for target in (-1, 10, [0, 10]):
        with pytest.raises(ValueError, match="class of the model, 0 to 9"):
            explain(model, images(), "visits", target=target)
    with pytest.raises(ValueError, match="one per image"):
        explain(model, images(), "visits", target=[1, 2, 3])
    with pytest.raises(ValueError, match="one per image"):
        explain(model, images(), "visits", target=1.5)
    with pytest.raises(ValueError, match=r"one per image \(2\), got \(2,\) of torch.bool"):
        explain(model, images(), "visits", target=torch.tensor([True, False]))
    for target in ({"a": 1}, [], [None], object()):
        with pytest.raises(
            ValueError, match=r"target must be a class, or one per image \(2\), got"
        ):
            explain(model, images(), "visits", target=target)
    explain(model, images(), "visits", target=torch.tensor([0, 9]))


def test_target_by_name():
    model, x = build("linear"), images()
    of_seven = explain(model, x, "gradcam", target=7).maps
    for target in (np.int64(7), np.array([7, 7]), "7", ["7", 7], torch.tensor(7)):
        assert torch.equal(explain(model, x, "gradcam", target=target).maps, of_seven)
    with pytest.raises(ValueError, match="'goldfish' is a name, and the model has none"):
        explain(model, x, "gradcam", target="goldfish")
    model.class_names = ["cat", "crane", "Golden_Retriever", "crane", "bücher", *"56", "goldfish"]
    model.class_names += ["7", "Crane"]
    assert torch.equal(explain(model, x, "gradcam", target="goldfish").maps, of_seven)
    assert torch.equal(explain(model, x, "gradcam", target=" GOLDFISH").maps, of_seven)
    # A name comes before a number: class 8 is called 7.
    for name, index in (
        ("golden retriever", 2),
        ("golden-Retriever", 2),
        ("bu\u0308cher", 4),
        ("7", 8),
        ("4", 4),
        ("Crane", 9),
    ):
        expected = explain(model, x, "gradcam", target=index).maps
        assert torch.equal(explain(model, x, "gradcam", target=name).maps, expected)
        mixed = explain(model, x, "gradcam", target=[name, 7]).maps
        assert torch.equal(mixed, torch.stack([expected[0], of_seven[1]]))
    with pytest.raises(ValueError, match="'crane' is the name of classes 1, 3; give the number"):
        explain(model, x, "gradcam", target="crane")
    with pytest.raises(ValueError, match="got 'goldfisch'; the model's classes are 'goldfish', …"):
        explain(model, x, "gradcam", target="goldfisch")
    with pytest.raises(ValueError, match="class of the model, 0 to 9, got"):
        explain(model, x, "gradcam", target="12")


@pytest.mark.parametrize("method", ["visits", "gradcam", "rollout", "random"])
def test_untrained_is_a_method(method):
    """The map of the model with fresh weights, of the class that the trained one predicts."""
    model, x = build("linear"), images()
    fresh = untrained(model, 5)
    result = explain(model, x, f"untrained-{method}", untrained_seed=5)
    expected = explain(fresh, x, method, target=model(x).argmax(-1))
    assert torch.equal(result.maps, expected.maps)
    assert torch.equal(result.logits, fresh(x))
    assert (result.method, result.layers) == (f"untrained-{method}", expected.layers)
    if not METHODS[method].control:
        assert (result.maps - explain(model, x, method).maps).abs().max() > 1e-3
        other = explain(model, x, f"untrained-{method}").maps
        assert (result.maps - other).abs().max() > 1e-3
    with pytest.raises(
        ValueError, match="unknown method 'untrained-vists'; did you mean untrained-v"
    ):
        explain(model, x, "untrained-vists")
    with pytest.raises(
        MethodNotApplicable, match="untrained-attention is not for linear attention"
    ):
        explain(model, x, "untrained-attention")


@pytest.mark.parametrize(("method", "kind"), EVERY)
def test_a_map_is_of_its_target_if_it_is_of_a_class(method, kind):
    """The predicted class if none is given; one class for all images, or one each."""
    model, x = build(kind), images()

    def maps(target):
        return explain(model, x, method, target=target).maps

    predicted = model(x).argmax(-1)
    other = (predicted + 5) % 10
    same(maps(None), maps(predicted))
    both = maps([int(predicted[0]), int(other[1])])
    same(both[0], maps(None)[0])
    same(both[1], maps(int(other[1]))[1])
    if METHODS[method].class_specific:
        assert (maps(other) - maps(None)).abs().amax((1, 2)).min() > 1e-6
    else:
        assert torch.equal(maps(other), maps(None))


# ---------------------------------------------------------------- what it costs


@pytest.mark.parametrize(
    ("layer", "read"), [(-1, [2]), (0, [0]), ("last", [2]), ("mean", [0, 1, 2])]
)
def test_only_the_layers_used_are_read(monkeypatch, layer, read):
    model = build("linear")
    names, calls = {block.attn: i for i, block in enumerate(model.blocks)}, []
    own = timm_vits.queries_keys
    monkeypatch.setattr(
        timm_vits,
        "queries_keys",
        lambda module, x: (calls.append(names[module]), own(module, x))[1],
    )
    result = explain(model, images(), "linear", layer=layer)
    assert calls == read
    expected = explain_graphs(capture(model, images()), get_method("linear"), layer=layer)
    assert torch.equal(result.maps, expected.maps)
    assert torch.equal(result.diagnostics["dead_heads"], expected.diagnostics["dead_heads"])


def test_linear_maps_never_look_at_the_whole_graph(monkeypatch):
    """N² entries of 331,777 tokens would take an hour."""
    expected = explain(build("linear"), images(), "linear").maps
    monkeypatch.setattr(AttentionOperator, "_tiles", lambda self: 1 / 0)
    assert torch.equal(explain(build("linear"), images(), "linear").maps, expected)


def test_methods_of_the_whole_model_want_every_layer():
    graphs = capture(build("pure"), images(), layers=[1])
    with pytest.raises(
        ValueError, match=r"series is of the whole model, and only layers \[1\] of 3"
    ):
        explain_graphs(graphs, get_method("series"))
    with pytest.raises(ValueError, match="layer 2 was not captured"):
        explain_graphs(graphs, get_method("visits"))
