"""Focus and over-smoothing against the definitions, slowly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from infsa_explain.data import PhotoDigits
from infsa_explain.evaluate import Focus, measure
from infsa_explain.methods import explain
from infsa_explain.models.loading import load
from infsa_explain.models.untraining import untrained
from infsa_explain.report import Report, summarise_focus, summarise_similarity
from infsa_explain.vits.preprocessing import preprocess

DATA = PhotoDigits("val", 3)
METHODS = ("visits", "degree", "untrained-visits")


@pytest.fixture(scope="module")
def model():
    return load("infvit_pure_digits")


@pytest.fixture(scope="module")
def rows(model):
    return measure(model, DATA, Focus(METHODS, seed=4), name="m")


def test_maps(model, rows):
    for i in range(3):
        maps = explain(model, preprocess(model, DATA[i].image), "degree").maps
        p = np.sort(maps.double().numpy().ravel() / maps.double().sum().item())
        (row,) = [r for r in rows if r["image"] == DATA[i].image_id and r.get("method") == "degree"]
        nats = -(p * np.log(p)).sum()
        assert row["entropy"] == pytest.approx(nats / np.log(196), abs=1e-6)
        assert row["effective_patches"] == pytest.approx(np.exp(nats) / 196, abs=1e-6)
        half_mean_difference = np.abs(p[:, None] - p).mean() / (2 * p.mean())
        assert row["gini"] == pytest.approx(half_mean_difference, abs=1e-6)


def test_tokens(model, rows):
    """Cosine of every two tokens, taken one by one, of what leaves each block."""
    for field, network in (
        ("similarity", model),
        ("untrained_similarity", untrained(model, seed=4)),
    ):
        images = preprocess(model, [DATA[i].image for i in range(3)])
        with torch.no_grad():
            x = network.patch_embed(images)
            x = network.patch_drop(network._pos_embed(x))
            for depth, block in enumerate(network.blocks):
                x = block(x)
                unit = torch.nn.functional.normalize(x.double(), dim=-1)
                cosines = unit @ unit.transpose(1, 2)
                n = x.shape[1]
                mean = (cosines.sum((1, 2)) - n) / (n * (n - 1))
                found = [row[field][depth] for row in rows if field in row]
                assert found == pytest.approx(mean.tolist(), abs=1e-5)
    assert len([row for row in rows if "similarity" in row]) == 3


def test_report(rows):
    summaries = {s.method: s for s in summarise_focus(rows)}
    gini = {m: np.array([row["gini"] for row in rows if row.get("method") == m]) for m in METHODS}
    for method in METHODS[:2]:
        assert summaries[method].measures["gini"].mean == pytest.approx(gini[method].mean())
        gain = (gini[method] - gini["untrained-visits"]).mean()
        assert summaries[method].over.interval.mean == pytest.approx(gain)
    assert summaries["untrained-visits"].over is None
    layers = summarise_similarity(rows)
    assert [s.layer for s in layers] == list(range(len(layers)))
    for s in layers:
        depth = [row["similarity"][s.layer] for row in rows if "similarity" in row]
        assert s.similarity.mean == pytest.approx(np.mean(depth))
    maps, tokens = Report(rows).tables()
    assert {len(cells) for cells in maps.cells} == {len(maps.headings)}
    assert len(tokens.cells) == len(layers)


@pytest.mark.filterwarnings("ignore:.* has no map for some images")
def test_a_map_of_zeros_is_none(model):
    import copy

    dead = copy.deepcopy(model)
    for block in dead.blocks:
        torch.nn.init.zeros_(block.attn.qkv.weight)
        torch.nn.init.zeros_(block.attn.qkv.bias)
    rows = measure(dead, DATA, Focus(("degree",)))
    values = [row[k] for row in rows if "method" in row for k in ("entropy", "gini")]
    assert values == [None] * 6
