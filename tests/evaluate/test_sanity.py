"""Sanity checks put together again by hand, and their report."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from infsa_explain.data import PhotoDigits
from infsa_explain.evaluate import Sanity, measure
from infsa_explain.methods import explain
from infsa_explain.models.loading import load
from infsa_explain.models.untraining import cascade, untrained
from infsa_explain.report import Report, plot_sanity, summarise_sanity
from infsa_explain.vits.preprocessing import preprocess

DATA = PhotoDigits("val", 3)
METHODS = ("visits", "degree", "random", "centre", "untrained-visits")


@pytest.fixture(scope="module")
def model():
    return load("infvit_linear_digits")


@pytest.fixture(scope="module")
def rows(model):
    return measure(model, DATA, Sanity(METHODS, layer=2, seed=3, draws=2), name="m")


def ranks(a, b):
    return scipy.stats.spearmanr(a.flatten(), b.flatten()).statistic


def test_every_stage_is_that_of_the_cascade(model, rows):
    assert len(rows) == 3 * 4  # what is untrained has no weights to make random
    images = preprocess(model, [DATA[i].image for i in range(3)])
    trained = explain(model, images, "visits", 2).maps
    own = [row for row in rows if row["method"] == "visits"]
    for k, (stage, copy) in enumerate(cascade(model, 3)):
        randomised = explain(copy, images, "visits", 2).maps
        for i, row in enumerate(own):
            assert row["stages"][k] == stage
            assert row["spearman"][k] == pytest.approx(ranks(trained[i], randomised[i]), abs=1e-6)
    assert k == len(own[0]["stages"]) - 1
    fresh = explain(untrained(model, 3), images, "visits", 2).maps
    assert own[1]["spearman"][-1] == pytest.approx(ranks(trained[1], fresh[1]), abs=1e-6)
    # Layer 2 lies beneath the head and block 3.
    assert [value for row in own for value in row["spearman"][:2]] == pytest.approx([1] * 6)
    assert max(row["spearman"][2] for row in own) < 0.999


def test_controls_look_at_no_weights(rows):
    for row in rows:
        if row["method"] in ("random", "centre"):
            assert row["spearman"] == pytest.approx([1] * len(row["stages"]))
            assert row["ssim"] == pytest.approx([1] * len(row["stages"]))
            assert row["stability"] == pytest.approx(1)


def test_stability_does_not_depend_on_the_company_of_images(model, rows):
    assert all(0.3 < row["stability"] < 0.999 for row in rows if row["method"] == "visits")
    alone = measure(
        model, DATA, Sanity(("visits",), layer=2, seed=3, draws=2), name="m", batch_size=1
    )
    own = [row["stability"] for row in rows if row["method"] == "visits"]
    assert [row["stability"] for row in alone] == pytest.approx(own, abs=2e-3)


def test_agreement(model, rows):
    images = preprocess(model, [DATA[i].image for i in range(3)])
    visits, degree = (explain(model, images, m, 2).maps for m in ("visits", "degree"))
    for i, row in enumerate(r for r in rows if r["method"] == "visits"):
        assert row["agreement"]["degree"] == pytest.approx(ranks(visits[i], degree[i]), abs=1e-6)
        assert set(row["agreement"]) == {"degree", "random", "centre"}


def test_report(rows, tmp_path):
    visits = summarise_sanity(rows)[0]
    last = [row["spearman"][-1] for row in rows if row["method"] == "visits"]
    assert visits.spearman[-1].mean == pytest.approx(np.mean(last))
    assert visits.stages[0] == "head" and visits.stages[-1] == "embeddings"
    table, agreement = Report(rows).tables()
    assert {len(cells) for cells in table.cells} == {len(table.headings)}
    assert [cells[0] for cells in agreement.cells] == list(agreement.headings[1:])
    assert {agreement.cells[i][i + 1] for i in range(4)} == {"1"}
    decay, matrix = plot_sanity(summarise_sanity(rows)).axes[:2]
    np.testing.assert_allclose(
        decay.lines[0].get_ydata(), [1, *(value.mean for value in visits.spearman)]
    )
    assert matrix.images[0].get_array()[0, 1] == pytest.approx(visits.agreement["degree"].mean)


@pytest.mark.filterwarnings("ignore:.* has no map for some images")
def test_constant_maps_are_counted(model):
    import copy

    dead = copy.deepcopy(model)
    for block in dead.blocks:
        torch.nn.init.zeros_(block.attn.qkv.weight)
        torch.nn.init.zeros_(block.attn.qkv.bias)
    rows = measure(dead, DATA, Sanity(("degree",), draws=1))
    assert {value for row in rows for value in row["spearman"]} == {None}
    (summary,) = summarise_sanity(rows)
    assert (summary.spearman[-1].n, summary.spearman[-1].excluded) == (0, 3)
    with pytest.raises(ValueError, match="sanity: degree has no map of any image"):
        Report(rows)
    del rows[0]["no_map"]
    (table,) = Report(rows).tables()
    assert table.cells[0][-2:] == ("100%", "3")
