"""Alignment against eigenvectors and weights computed slowly in numpy."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import timm
import torch

import infsa_explain.models  # noqa: F401  (registers the names)
from infsa_explain.attention.layers import linear_weights
from infsa_explain.data import PhotoDigits
from infsa_explain.evaluate import Alignment, measure
from infsa_explain.models.loading import load
from infsa_explain.models.untraining import untrained
from infsa_explain.vits.capturing import capture
from infsa_explain.vits.preprocessing import preprocess

DATA = PhotoDigits("val", 3)


def small(name="infvit_linear_digits"):
    torch.manual_seed(0)
    network = timm.create_model(name, img_size=56, depth=2, embed_dim=32, num_heads=4)
    for block in network.blocks:  # no longer as initialised
        torch.nn.init.normal_(block.attn.qkv.weight, std=0.1)
        torch.nn.init.constant_(block.attn.qkv.bias, 0.5)
    return network.eval()


@pytest.fixture(scope="module")
def model():
    return small()


def layers_of(model):
    return capture(model, preprocess(model, [DATA[i].image for i in range(len(DATA))])).layers


def truth(op, image, head, side):
    """ρ and the Perron vector, by SciPy in float64."""
    values, left, right = scipy.linalg.eig(op.double.dense()[image, head].numpy(), left=True)
    top = values.real.argmax()
    return values, np.abs((left if side == "left" else right)[:, top].real)


def cos(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


@pytest.mark.parametrize("side", ["left", "right"])
def test_agreement_is_that_of_scipys_eigenvector(model, side):
    rows = measure(model, DATA, Alignment(side=side, tol=1e-10))
    assert len(rows) == 3 * 2 * 4
    layers, ranked = layers_of(model), 0
    for row in rows:
        op = layers[row["layer"]].operator
        image = [DATA[i].image_id for i in range(3)].index(row["image"])
        values, vector = truth(op, image, row["head"], side)
        moduli = np.sort(np.abs(values))
        assert row["value"] == pytest.approx(moduli[-1], rel=1e-6)
        assert row["second"] == pytest.approx(moduli[-2], rel=1e-2, abs=1e-3)
        assert row["gap"] == pytest.approx(1 - row["second"] / row["value"], abs=1e-12)
        a = linear_weights(op.q, op.k)[image, row["head"]].double().numpy()
        graph = op.double.dense()[image, row["head"]].numpy()
        degree = graph.sum(0 if side == "left" else 1)
        for name, v in {"linear": a, "degree": degree, "uniform": np.ones_like(a)}.items():
            assert row["cosine"][name] == pytest.approx(cos(v, vector), abs=1e-6)
            if name != "uniform":
                r, rho = scipy.stats.pearsonr(v, vector), scipy.stats.spearmanr(v, vector)
                assert row["centred"][name] == pytest.approx(r.statistic, abs=1e-5)
                if vector.min() > 1e-9:  # else SciPy ranks what rounding left of zero
                    assert row["spearman"][name] == pytest.approx(rho.statistic, abs=1e-3)
                    ranked += 1
        assert row["centred"]["uniform"] is row["spearman"]["uniform"] is None
        assert row["converged"] and row["unique"] and row["resolved"] and not row["dead"]
        assert row["error_bound"] <= 1e-10 and row["left_out"] == []
    assert ranked > 20


def test_the_weights_of_the_mean_query_and_of_k_steps(model):
    (layer,) = layers_of(model)[1:]
    (q, k) = (x.double().numpy() for x in (layer.operator.q, layer.operator.k))
    rows = measure(model, DATA, Alignment(layers=(1,), steps=(3,), tol=1e-10))
    for row in rows:
        image = [DATA[i].image_id for i in range(3)].index(row["image"])
        queries, keys = q[image, row["head"]], k[image, row["head"]]
        _, vector = truth(layer.operator, image, row["head"], "left")
        of_mean = np.maximum(keys @ queries.mean(0), 0)
        by_key = np.maximum(queries @ (np.linalg.norm(keys, axis=1) @ keys), 0)
        assert row["cosine"]["central-key"] == pytest.approx(cos(by_key, vector), abs=1e-6)
        assert row["cosine"]["mean-query"] == pytest.approx(cos(of_mean, vector), abs=1e-6)
        w = np.linalg.norm(queries, axis=1)
        for _ in range(3):
            w = np.maximum(keys @ (w @ queries), 0)
        assert row["cosine"]["linear-k3"] == pytest.approx(cos(w, vector), abs=1e-6)


def test_the_untrained_control_is_a_fresh_model_against_its_own_graph(model):
    rows = measure(model, DATA, Alignment(seed=5))
    fresh = measure(untrained(model, 5), DATA, Alignment(control=False))
    assert [r["cosine"]["untrained"] for r in rows] == [r["cosine"]["linear"] for r in fresh]
    assert "untrained" not in fresh[0]["cosine"]
    for start in ("zero-bias", "xavier"):
        fresh = measure(untrained(model, 5, start), DATA, Alignment(control=False))
        of_start = [row["cosine"][f"untrained-{start}"] for row in rows]
        assert of_start == [row["cosine"]["linear"] for row in fresh]


def test_a_softmax_model_has_one_start():
    softmax = load("vit_softmax_digits")
    (row, *_) = measure(softmax, PhotoDigits("val", 1), Alignment(layers=(0,)))
    assert [v for v in row["cosine"] if v.startswith("untrained")] == ["untrained"]


def test_a_dead_head_has_no_agreement(model):
    dead = copy.deepcopy(model)
    attention = dead.blocks[0].attn
    d = 32 // 4
    with torch.no_grad():  # head 1: all queries (1, …), all keys (−1, …)
        for part, value in ((0, 1.0), (1, -1.0)):
            rows = slice(part * 32 + d, part * 32 + 2 * d)
            attention.qkv.weight[rows] = 0
            attention.qkv.bias[rows] = value
    for row in measure(dead, DATA, Alignment(layers=(0,))):
        assert row["dead"] == (row["head"] == 1)
        if row["dead"]:
            trained = {v: c for v, c in row["cosine"].items() if not v.startswith("untrained")}
            assert set(trained.values()) == {None}
            assert row["value"] == 0
            assert row["left_out"] == [] and row["resolved"] and not row["converged"]


def test_heads_without_one_proven_perron_vector_are_left_out(model, monkeypatch):
    """Head 1 not resolved, head 2 with several: no cosine with anything of this graph."""
    import infsa_explain.evaluate.alignment as alignment

    def spoilt(op, side, tol):
        truth = alignment_perron(op, side, tol)
        truth.converged[:, 1:3] = False
        truth.unique[:, 2] = False
        truth.resolved[:, 1] = False
        truth.error_bound[:, 1:3] = torch.tensor([torch.inf, torch.nan])
        return truth

    alignment_perron = alignment.perron
    monkeypatch.setattr(alignment, "perron", spoilt)
    rows = measure(model, DATA, Alignment(layers=(0,)))
    for row in rows:
        out = row["head"] in (1, 2)
        fresh = ["untrained", "untrained-zero-bias", "untrained-xavier"]
        vectors = ["linear", "central-key", "degree", "mean-query", "uniform", *fresh]
        assert row["left_out"] == (vectors if out else [])
        assert all(
            (row["cosine"][vector] is None) == out for vector in {*vectors[:6]} - {"central-key"}
        )
        assert not out or set(row["spearman"].values()) == set(row["centred"].values()) == {None}
        assert (row["error_bound"] is None) == out
        assert (row["converged"], row["resolved"]) == (not out, row["head"] != 1)


def test_invalid_rows_are_those_that_beget_more_than_one_visit(model):
    for gamma in (None, 0.99):
        for row in measure(model, DATA, Alignment(gamma=gamma)):
            layer = layers_of(model)[row["layer"]]
            image = [DATA[i].image_id for i in range(3)].index(row["image"])
            graph = layer.operator.double.dense()[image, row["head"]].numpy()
            g = float(layer.gamma[row["head"]]) if gamma is None else gamma
            assert row["invalid_rows"] == np.mean(g * graph.sum(1) > 1)


def test_the_softmax_twin_has_a_left_vector_only():
    twin = small("vit_softmax_digits")
    rows = measure(twin, DATA, Alignment(layers=("last",)))
    assert all(row["value"] == pytest.approx(1, abs=1e-6) and row["layer"] == 1 for row in rows)
    with pytest.raises(ValueError, match="right Perron vector is the same for every token"):
        measure(twin, DATA, Alignment(side="right"))


def test_rows_come_as_they_are_ready_and_the_model_is_left_alone(model):
    before = {key: value.clone() for key, value in model.state_dict().items()}
    seen, images = [], []
    rows = measure(
        model,
        DATA,
        Alignment(),
        name="m",
        batch_size=2,
        on_row=seen.append,
        on_image=images.append,
    )
    assert seen == rows and images == [2, 1] and {row["model"] for row in rows} == {"m"}
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    alone = measure(model, DATA, Alignment(), batch_size=1)

    def key(row):
        return row["image"], row["layer"], row["head"]

    for a, b in zip(sorted(rows, key=key), sorted(alone, key=key), strict=True):
        assert key(a) == key(b)
        assert a["cosine"]["linear"] == pytest.approx(b["cosine"]["linear"], abs=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Alignment(layers=(2,)), r"layer 2 is out of range: the model has 2"),
        (Alignment(layers=("mean",)), r"layer must be a whole number or 'last', got 'mean'"),
        (Alignment(gamma=1.5), r"gamma must lie in \(0, 1\), got \[1.5\]"),
        (Alignment(steps=(1,)), r"steps must each be at least 2, got \[1\]"),
        (Alignment(side="up"), r"side must be 'left' or 'right', got 'up'"),
    ],
)
def test_options_out_of_range(model, options, message):
    with pytest.raises(ValueError, match=message):
        measure(model, DATA, options)
