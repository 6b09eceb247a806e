"""Tables and curves from rows whose means are known by hand."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from infsa_metrics import bootstrap_mean, paired_tests

from infsa_explain.evaluate.deletion_tables import deletion_charts, spread_table
from infsa_explain.report import (
    MORF_HEADINGS,
    Report,
    mean_curves,
    morf_table,
    plot_curves,
    summarise_morf,
    write_report,
)

IMAGES = [f"image {i}" for i in range(12)]
FRACTIONS = [0.0, 0.5, 1.0]
rng = np.random.default_rng(0)
AOC = {m: rng.random(12) for m in ("visits", "random", "centre")}
AUC = {(m, o): rng.random(12) for m in AOC for o in ("morf", "lerf")}


def rows():
    return [
        {
            "measure": "morf",
            "image": image,
            "model": "m",
            "checkpoint": "",
            "method": method,
            "order": order,
            "fill": "mean",
            "aoc": float(AOC[method][i]) if order == "morf" else 0.5,
            "auc": float(AUC[method, order][i]),
            "tied": 0.25,
            "fractions": FRACTIONS,
            "probabilities": [1.0, i / 12, 0.0],
        }
        for i, image in enumerate(IMAGES)
        for method in AOC
        for order in ("morf", "lerf")
    ]


def test_summaries_are_means_over_images():
    summaries = {s.method: s for s in summarise_morf(rows())}
    assert list(summaries) == ["visits", "random", "centre"]
    for method, s in summaries.items():
        assert s.aoc == bootstrap_mean(AOC[method])
        assert s.aoc.mean == pytest.approx(AOC[method].mean(), abs=1e-12)
        assert s.auc.mean == pytest.approx(AUC[method, "morf"].mean(), abs=1e-12)
        gain = AUC[method, "lerf"] - AUC[method, "morf"]
        assert s.srg.mean == pytest.approx(gain.mean(), abs=1e-12)
        assert s.tied == 0.25


def test_differences_to_controls_are_paired_by_image():
    shuffled = rows()
    np.random.default_rng(1).shuffle(shuffled)
    for order in (rows(), shuffled):
        summaries = {s.method: s for s in summarise_morf(order)}
        assert summaries["random"].over == summaries["centre"].over == {}
        over = summaries["visits"].over
        assert list(over) == ["random", "centre"]
        for control, difference in over.items():
            expected = (AOC["visits"] - AOC[control]).mean()
            assert difference.interval.mean == pytest.approx(expected, abs=1e-12)
            spread = (AOC["visits"] - AOC[control]).std(ddof=1)
            assert difference.effect_size == pytest.approx(expected / spread, abs=1e-12)


def test_a_family_is_one_model_and_one_control():
    """Whatever other models stand in the table."""
    more = [dict(row, method="degree") for row in rows() if row["method"] == "visits"]
    for row in more:
        row["aoc"] = row["aoc"] and row["aoc"] ** 2
    other = [dict(row, model="other") for row in rows()]
    alone = {s.method: s.over for s in summarise_morf(rows() + more)}
    beside = {s.method: s.over for s in summarise_morf(other + rows() + more) if s.model == "m"}
    assert alone == beside
    for control in ("random", "centre"):
        pairs = {
            "visits": (AOC["visits"], AOC[control]),
            "degree": (AOC["visits"] ** 2, AOC[control]),
        }
        for method, test in paired_tests(pairs).items():
            assert alone[method][control].p_value == test.p_value
            interval = alone[method][control].interval
            assert (interval.low, interval.high) == (test.low, test.high)


def test_median_negative_areas_and_right_and_wrong_predictions():
    labelled = [
        dict(row, label=3, predicted=3 if row["image"] in IMAGES[:5] else 4) for row in rows()
    ]
    for row in labelled:
        if row["method"] == "visits" and row["image"] == IMAGES[0] and row["order"] == "morf":
            row["aoc"] = -0.5
    areas = np.array([-0.5, *AOC["visits"][1:]])
    visits = summarise_morf(labelled)[0]
    assert visits.median == pytest.approx(np.median(areas), abs=1e-12)
    assert visits.negative == pytest.approx((areas < 0).mean(), abs=1e-12)
    for part, chosen in ((visits.right, slice(5)), (visits.wrong, slice(5, None))):
        assert part.mean == pytest.approx(areas[chosen].mean(), abs=1e-12)
        assert part.n == len(areas[chosen])
    unlabelled = summarise_morf(rows())[0]
    assert unlabelled.right is None and spread_table([unlabelled])[0][4:] == ("—",) * 5
    _, table = Report(labelled).tables()
    assert table.cells[0][:3] == ("m", "visits", f"{100 * np.median(areas):.1f}")
    assert {len(row) for row in table.cells} == {len(table.headings)}


def test_whether_the_class_is_still_predicted():
    kept = {image: [1.0, float(i < 6), 0.0] for i, image in enumerate(IMAGES)}
    told = [
        dict(
            row, still_predicted=kept[row["image"]], still_predicted_auc=sum(kept[row["image"]]) / 3
        )
        for row in rows()
    ]
    visits = summarise_morf(told)[0]
    assert visits.still_predicted.mean == pytest.approx((6 * 2 / 3 + 6 / 3) / 12, abs=1e-12)
    assert spread_table([visits])[0][-1].startswith("50.0 [")
    _, chart = deletion_charts(told)
    assert chart.title == "m: class still predicted"
    np.testing.assert_allclose(chart.lines[0].mean, [1, 0.5, 0], atol=1e-12)
    assert summarise_morf(rows())[0].still_predicted is None
    assert len(deletion_charts(rows())) == 1


def test_undefined_images_are_excluded_and_counted():
    broken = rows()
    for row in broken:
        if row["image"] == "image 0" and row["method"] == "visits":
            row["aoc"] = None
    visits = summarise_morf(broken)[0]
    assert (visits.aoc.n, visits.aoc.excluded) == (11, 1)
    assert visits.aoc.mean == pytest.approx(AOC["visits"][1:].mean(), abs=1e-12)
    assert morf_table([visits])[0][-1] == "11 (1 excluded)"


def test_without_controls_there_is_no_difference():
    only = [row for row in rows() if row["method"] == "visits"]
    (summary,) = summarise_morf(only)
    assert summary.over == {}


def test_checkpoints_of_a_model_are_averaged_image_by_image():
    others = [dict(row, checkpoint="second") for row in rows()]
    for row in others:
        if row["aoc"] is not None:
            row["aoc"] += 0.02 if row["image"] == "image 3" else 0.01
    visits = summarise_morf(rows() + others)[0]
    assert visits.aoc.n == 12
    assert visits.aoc.mean == pytest.approx(AOC["visits"].mean() + 0.005 + 0.005 / 12, abs=1e-12)
    gap = 0.01 + 0.01 / 12  # of the two means
    assert visits.seeds.count == 2
    assert visits.seeds.spread == pytest.approx(gap / np.sqrt(2), abs=1e-12)
    assert morf_table([visits])[0][-1] == "12 × 2 seeds, ± 0.8"
    others[0]["aoc"] = None  # undefined for one checkpoint
    assert summarise_morf(rows() + others)[0].aoc.excluded == 1


def test_models_are_kept_apart():
    other = [dict(row, model="other", aoc=0.0) for row in rows()]
    summaries = summarise_morf(rows() + other)
    assert [s.model for s in summaries] == ["m"] * 3 + ["other"] * 3
    assert summaries[3].aoc.mean == 0
    assert summaries[0].aoc.mean == pytest.approx(AOC["visits"].mean(), abs=1e-12)


def test_markdown_has_a_cell_for_every_heading():
    table, _ = Report(rows()).tables()
    title, above, *lines, blank, note, steps = table.markdown().splitlines()
    assert title == "**deletion, fill mean, 2 steps; percent**"
    assert len(lines) == 2 + 3 and not above and not blank
    assert "Caution: 12 images." in note
    assert {line.count("|") for line in lines} == {len(MORF_HEADINGS) + 1}
    assert lines[2].startswith(f"| m | visits | {100 * AOC['visits'].mean():.1f} [")


def test_written_files_hold_the_same_numbers(tmp_path):
    summaries = write_report(tmp_path, rows()).summaries["morf"]
    stored = json.loads((tmp_path / "summary.json").read_text())["morf"]
    assert stored[0]["aoc"]["mean"] == summaries[0].aoc.mean
    with (tmp_path / "curves.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 3 * 2 * 3
    middle = next(row for row in lines if row["fraction"] == "0.500000")
    assert float(middle["probability"]) == pytest.approx(np.mean(np.arange(12) / 12), abs=1e-6)
    for name in ("curves.png", "curves.svg"):
        assert (tmp_path / name).stat().st_size > 5000


def test_plot_draws_every_curve():
    curves = mean_curves(rows())
    (axis,) = plot_curves(rows()).axes
    assert len(axis.lines) == len(curves) == 6
    np.testing.assert_allclose(axis.lines[0].get_xdata(), [0, 50, 100])
    np.testing.assert_allclose(axis.lines[0].get_ydata(), [1, np.mean(np.arange(12) / 12), 0])


def test_the_legend_names_every_method_of_every_model():
    other = [dict(r, model="other", method="katz") for r in rows() if r["method"] == "visits"]
    (legend,) = plot_curves(rows() + other).legends
    names = [text.get_text() for text in legend.get_texts()]
    assert sorted(names) == ["centre", "katz", "random", "visits"]
