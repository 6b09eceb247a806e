"""Infidelity and sensitivity of a run, image by image as ``infsa_metrics`` has them."""

from __future__ import annotations

import numpy as np
import pytest
from infsa_metrics import infidelity, pixel_fill, sensitivity_max

from infsa_explain.data import PhotoDigits
from infsa_explain.evaluate import Infidelity, Sensitivity, measure
from infsa_explain.methods import explain
from infsa_explain.models.loading import load
from infsa_explain.report import Report
from infsa_explain.vits.preprocessing import preprocess

DATA = PhotoDigits("val", 2)
METHODS = ("degree", "input-x-gradient", "random", "centre")
HALF = (0.5, 0.5, 0.5)


@pytest.fixture(scope="module")
def model():
    return load("vit_softmax_digits")


def test_infidelity(model):
    rows = measure(model, DATA, Infidelity(METHODS, samples=6), name="m")
    sample = DATA[1]
    images = preprocess(model, sample.image)
    predicted = model(images).argmax(-1)
    for method in METHODS:
        maps = explain(model, images, method, seeds=[sample.image_id]).maps
        predict = pixel_fill(model, "mean", mean=HALF, std=HALF)
        (expected,) = infidelity(
            predict, images, predicted, maps, samples=6, seeds=[sample.image_id]
        )
        (row,) = [r for r in rows if r["image"] == sample.image_id and r["method"] == method]
        assert row["infidelity"] == pytest.approx(expected.item(), rel=1e-3)
    summaries = Infidelity.summarise(rows)
    values = {m: [row["infidelity"] for row in rows if row["method"] == m] for m in METHODS}
    assert summaries[0].value.mean == pytest.approx(np.mean(values["degree"]))
    gain = np.mean(values["degree"]) - np.mean(values["random"])
    assert summaries[0].over["random"].interval.mean == pytest.approx(gain)
    (table,) = Report(rows).tables()
    assert {len(cells) for cells in table.cells} == {len(table.headings)}


def test_sensitivity(model):
    methods = (*METHODS, "untrained-degree")
    rows = measure(model, DATA, Sensitivity(methods, radius=0.05, samples=2), name="m")
    for row in rows:
        if row["method"] in ("random", "centre"):  # they do not look at the image
            assert row["sensitivity"] == 0
        else:
            assert 0 < row["sensitivity"] < 1
    sample = DATA[1]
    images = preprocess(model, sample.image)

    def degree(shown, targets):
        return explain(model, shown, "degree", target=targets).maps

    expected = sensitivity_max(
        degree, images, model(images).argmax(-1), radius=0.05, samples=2, seeds=[sample.image_id]
    )
    (row,) = [r for r in rows if r["image"] == sample.image_id and r["method"] == "degree"]
    assert row["sensitivity"] == pytest.approx(expected.item(), rel=1e-3)


def test_fills_that_pixels_do_not_know_are_refused(model):
    with pytest.raises(ValueError, match="unknown fill 'drop'"):
        measure(model, DATA, Infidelity(("degree",), fill="drop"))
