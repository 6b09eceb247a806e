"""The table of boxes from rows whose means are known by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from infsa_metrics import bootstrap_mean, holm, paired_test

from infsa_explain.evaluate.localization import MEASURES
from infsa_explain.report import BOX_HEADINGS, box_table, summarise_boxes, write_report

rng = np.random.default_rng(0)
AP = {method: rng.random(10) for method in ("visits", "random", "centre")}


def rows():
    """Ten images; the last has no box."""
    return [
        {
            "measure": "boxes",
            "image": f"image {i}",
            "model": "m",
            "checkpoint": "",
            "method": method,
        }
        | {measure: None if i == 9 else float(AP[method][i]) for measure in MEASURES}
        for i in range(10)
        for method in AP
    ]


def test_means_leave_out_images_without_a_box_and_count_them():
    for s in summarise_boxes(rows()):
        assert s.measures["ap"] == bootstrap_mean([*AP[s.method][:9], np.nan])
        assert s.measures["ap"].mean == pytest.approx(AP[s.method][:9].mean(), abs=1e-12)
        assert (s.skipped, s.measures["ap"].n) == (1, 9)


def test_differences_to_the_controls():
    visits, random, centre = summarise_boxes(rows())
    assert random.over == centre.over == {}
    tests = [paired_test(AP["visits"][:9], AP[c][:9]) for c in ("random", "centre")]
    for difference, test, p in zip(
        visits.over.values(), tests, holm([t.p_value for t in tests]), strict=True
    ):
        assert difference.interval.mean == pytest.approx(test.difference, abs=1e-12)
        assert difference.p_value == p


def test_table_and_files(tmp_path):
    table = box_table(summarise_boxes(rows()))
    assert {len(row) for row in table} == {len(BOX_HEADINGS)}
    assert table[0][-1] == "9 (1 excluded)"
    write_report(tmp_path, rows())
    summary = json.loads((tmp_path / "summary.json").read_text())["boxes"]
    assert [entry["method"] for entry in summary] == list(AP)
    _, _, *table, blank, caution = (tmp_path / "summary.md").read_text().splitlines()
    assert len(table) == 2 + 3 and not blank  # a line that follows at once would be a row
    assert caution.startswith("caution: 9 images; with fewer than 30")
