"""Models compared on the same images, against the paired tests of plain arrays."""

from __future__ import annotations

import json

import numpy as np
import pytest
from infsa_metrics import paired_tests
from report_runs import write_run

from infsa_explain.cli import command_line
from infsa_explain.evaluate.accuracy import Accuracy
from infsa_explain.evaluate.comparing import compare_models, comparison_tables, comparison_texts
from infsa_explain.evaluate.deletion import Morf
from infsa_explain.evaluate.localization import Boxes
from infsa_explain.report import Report
from infsa_explain.report.joining import join_runs
from infsa_explain.report.verdict import judge

RNG = np.random.default_rng(0)
IMAGES = 40
METHODS = ("visits", "degree", "random", "centre")
AREAS = {
    (model, method, order): RNG.random(IMAGES) + 0.4 * (model == "a" and method == "visits")
    for model in "ab"
    for method in METHODS
    for order in ("morf", "lerf")
}


def morf_rows(models="ab", images=range(IMAGES), checkpoint="", cluster=lambda i: None, shift=0.0):
    return [
        {
            "measure": "morf", "model": model, "checkpoint": checkpoint, "image": f"image {i}",
            "method": method, "order": order, "fill": "mean", "tied": 0.0,
            "aoc": float(AREAS[model, method, "morf"][i]) + shift,
            "auc": float(AREAS[model, method, order][i]),
            "fractions": [0, 1], "probabilities": [1, 0],
        }
        | ({} if cluster(i) is None else {"cluster": cluster(i)})
        for model in models
        for i in images
        for method in METHODS
        for order in ("morf", "lerf")
    ]  # fmt: skip


def compared(rows):
    return {(c.quantity, c.method): c for c in compare_models({"morf": Morf}, {"morf": rows})}


def over_random(model, method, images=slice(None)):
    return (AREAS[model, method, "morf"] - AREAS[model, "random", "morf"])[images]


def test_areas_over_random_and_srg_are_compared_and_areas_are_not():
    found = compared(morf_rows())
    assert set(found) == {
        (quantity, method)
        for quantity in ("MoRF-AOC over random", "SRG")
        for method in ("visits", "degree")
    }
    tests = paired_tests(
        {m: (over_random("a", m), over_random("b", m)) for m in ("visits", "degree")}
    )
    for method, test in tests.items():
        comparison = found["MoRF-AOC over random", method]
        assert (comparison.first, comparison.second) == ("a", "b")
        interval = comparison.difference.interval
        assert interval.mean == pytest.approx(test.difference, abs=1e-12)
        assert (interval.low, interval.high) == pytest.approx((test.low, test.high), abs=1e-12)
        assert comparison.difference.p_value == test.p_value
    gain = {m: AREAS[m, "degree", "lerf"] - AREAS[m, "degree", "morf"] for m in "ab"}
    expected = (gain["a"] - gain["b"]).mean()
    assert found["SRG", "degree"].difference.interval.mean == pytest.approx(expected, abs=1e-12)


def test_models_are_paired_by_image():
    """Whatever their order, and on those images that both have."""
    rows = morf_rows("a", range(30)) + morf_rows("b", range(IMAGES - 1, 9, -1))
    found = compared(rows)["MoRF-AOC over random", "visits"].difference.interval
    shared = slice(10, 30)
    expected = over_random("a", "visits", shared) - over_random("b", "visits", shared)
    assert found.n == 20
    assert found.mean == pytest.approx(expected.mean(), abs=1e-12)
    assert compared(morf_rows("a", range(5)) + morf_rows("b", range(5, 9))) == {}


def test_clusters_are_resampled():
    alone = compared(morf_rows())["SRG", "visits"].difference.interval
    pairs = compared(morf_rows(cluster=lambda i: f"c{i // 2}"))["SRG", "visits"].difference.interval
    assert (alone.units, pairs.units) == (IMAGES, IMAGES // 2)
    assert alone.mean == pytest.approx(pairs.mean, abs=1e-12)


def test_trainings():
    """Two of each give an interval over trainings; two against one are averaged first."""
    both = morf_rows() + morf_rows(checkpoint="2", shift=0.1)
    assert compared(both)["SRG", "visits"].difference.interval.trainings == 2
    uneven = morf_rows() + morf_rows("a", checkpoint="2")
    interval = compared(uneven)["MoRF-AOC over random", "visits"].difference.interval
    assert interval.trainings == 1
    expected = over_random("a", "visits") - over_random("b", "visits")
    assert interval.mean == pytest.approx(expected.mean(), abs=1e-12)


def test_accuracy_of_the_models_themselves():
    rows = [
        {
            "measure": "accuracy", "model": model, "checkpoint": "", "image": f"{i}",
            "rank": int(i < share), "classes": 10, "predicted": 0, "label": 0,
        }
        for model, share in (("a", 5), ("b", 15))
        for i in range(IMAGES)
    ]  # fmt: skip
    (comparison,) = compare_models({"accuracy": Accuracy}, {"accuracy": rows})
    assert comparison.method == "" and comparison.quantity == "top-1 accuracy"
    assert comparison.difference.interval.mean == pytest.approx(0.25, abs=1e-12)
    (text,) = comparison_texts([comparison])
    assert text.startswith("Top-1 accuracy of `a` minus that of `b`: +25.0 [")
    assert "chance" not in text


def test_a_report_has_them_in_table_json_and_verdict():
    report = Report(morf_rows())
    table = report.tables()[-1]
    assert [table] == comparison_tables(report.comparisons)
    assert table.title == "a − b, paired by image"
    assert table.headings[1:] == ("MoRF-AOC over random [95%], n 40", "SRG [95%], n 40")
    assert [cells[0] for cells in table.cells] == ["visits", "degree"]
    gain = 100 * (over_random("a", "visits") - over_random("b", "visits")).mean()
    assert table.cells[0][1].startswith(f"{gain:+.1f} [")
    assert len(report.plain()["compared"]) == 4
    text = judge(report).text()
    assert "`a` has a higher MoRF-AOC over random than `b` for 1 of 2 maps (`visits`)." in text
    assert "`a` and `b` do not differ in SRG, by a test, for any of 2 maps." in text
    alone = Report(morf_rows("a"))
    assert alone.comparisons == [] and "compared" not in alone.plain()
    assert "compared" not in judge(alone).text()


class TestSeveralRuns:
    @pytest.fixture
    def runs(self, tmp_path):
        images = [f"image {i}" for i in range(6)]
        one = write_run(tmp_path / "one", ["m"], ["visits", "random"], images)
        two = write_run(tmp_path / "two", ["m", "n"], ["visits", "random"], images)
        return one, two

    def test_models_of_one_name_are_told_apart_by_their_folders(self, runs):
        report = join_runs(runs)
        pairs = {(c.first, c.second) for c in report.comparisons}
        assert pairs == {("m (one)", "m (two)"), ("m (one)", "n"), ("m (two)", "n")}
        for c in report.comparisons:  # the same rows were written for all three
            assert (c.difference.interval.mean, c.difference.interval.n) == (0, 6)

    @pytest.mark.parametrize(
        ("part", "value", "words"),
        [
            (
                "fill",
                "black",
                "runs must have the same options, got morf with fill 'mean' in .*one",
            ),
            ("steps", 3, "runs must have the same options, got morf with steps None in"),
            ("name", "other", "runs must be of the same images, got photo-digits in .*one and oth"),
        ],
    )
    def test_what_is_not_comparable_is_refused(self, runs, part, value, words):
        config = json.loads((runs[1] / "config.json").read_text())
        (config["data"] if part == "name" else config["measures"]["morf"])[part] = value
        (runs[1] / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=words):
            join_runs(runs)

    def test_the_command(self, runs, capsys):
        command_line()(["compare", *map(str, runs)], standalone_mode=False)
        printed = capsys.readouterr().out
        assert "m (one) − m (two), paired by image" in printed
        assert "m (one) and n do not differ in PR-AUC, by a test, for the one map." in printed
        command_line()(["compare", *map(str, runs), "--json"], standalone_mode=False)
        entries = json.loads(capsys.readouterr().out)
        assert {entry["measure"] for entry in entries} == {"morf", "boxes"}
        with pytest.raises(ValueError, match="folders must hold runs of two .* got m$"):
            command_line()(["compare", str(runs[0])], standalone_mode=False)


def test_three_models_make_three_pairs_each_a_family():
    rows = morf_rows() + [dict(row, model="c") for row in morf_rows("a")]
    found = compare_models({"morf": Morf}, {"morf": rows})
    assert {(c.first, c.second) for c in found} == {("a", "b"), ("a", "c"), ("b", "c")}
    two = compared(morf_rows())
    for c in found:
        if (c.first, c.second) == ("a", "b"):
            assert c.difference == two[c.quantity, c.method].difference
        if (c.first, c.second) == ("a", "c"):
            assert (c.difference.interval.mean, c.difference.p_value) == (0, 1)


def test_boxes_compare_average_precision():
    assert list(Boxes.quantities([])) == ["PR-AUC"]
