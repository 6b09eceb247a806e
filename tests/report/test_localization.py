"""The table of boxes from rows whose means are known by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from infsa_metrics import bootstrap_mean, paired_test

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
        share = bootstrap_mean([*AP[s.method][:9], np.nan], proportion=True)
        assert s.measures["pointing"] == share
        assert s.measures["ap"].mean == pytest.approx(AP[s.method][:9].mean(), abs=1e-12)
        assert (s.skipped, s.measures["ap"].n) == (1, 9)


def test_differences_to_the_controls():
    visits, random, centre = summarise_boxes(rows())
    assert random.over == centre.over == {}
    for control in ("random", "centre"):  # two questions, each about a single map
        test, difference = paired_test(AP["visits"][:9], AP[control][:9]), visits.over[control]
        assert difference.interval.mean == pytest.approx(test.difference, abs=1e-12)
        assert difference.p_value == test.p_value
        assert (difference.interval.low, difference.interval.high) == (test.low, test.high)


def test_table_and_files(tmp_path):
    table = box_table(summarise_boxes(rows()))
    assert {len(row) for row in table} == {len(BOX_HEADINGS)}
    assert table[0][-1] == "9 (1 excluded)"
    write_report(tmp_path, rows())
    summary = json.loads((tmp_path / "summary.json").read_text())["boxes"]
    assert [entry["method"] for entry in summary] == list(AP)
    _, _, *table, blank, note = (tmp_path / "summary.md").read_text().splitlines()
    assert len(table) == 2 + 3 and not blank  # a line that follows at once would be a row
    assert "Caution: 9 images. With fewer than 30 intervals are approximate" in note
