"""A measure of one's own, in one file: through ``measure``, a run folder, the page and the CLI."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest

from infsa_explain.cli import command_line
from infsa_explain.data import PhotoDigits
from infsa_explain.evaluate import measure
from infsa_explain.evaluate.registry import MEASURES
from infsa_explain.extensions import MapOptions, Measure, register_measure
from infsa_explain.models.loading import load
from infsa_explain.report import Report
from infsa_explain.report.verdict import judge


@dataclass(frozen=True)
class Peak(MapOptions, Measure):
    """The share of a map's mass on its highest patch."""

    name: ClassVar[str] = "peak"
    title: ClassVar[str] = "Peak"
    question: ClassVar[str] = "How much of a map lies on one patch?"
    field: ClassVar[str] = "peak"
    heading: ClassVar[str] = "peak mass"

    def rows(self, batch):
        for method, explanation in batch.explanations(self):
            shares = explanation.maps.flatten(1).softmax(1).amax(1)
            for sample, share in zip(batch.samples, shares.tolist(), strict=True):
                yield {"image": sample.image_id, "method": method, "peak": share}


@pytest.fixture(autouse=True)
def registered():
    register_measure(Peak)
    yield
    del MEASURES["peak"]


def test_rows_tables_and_verdict():
    rows = measure(
        load("infvit_linear_digits"), PhotoDigits("val", 3), Peak(("visits", "random", "centre"))
    )
    assert [row["peak"] > 1 / 196 for row in rows] == [True] * 9
    report = Report(rows)
    (table,) = report.tables()
    assert table.title == "peak; percent"
    assert table.headings[2:5] == ("peak mass ↑ [95%]", "over random [95%]", "over centre [95%]")
    mean = sum(row["peak"] for row in rows if row["method"] == "visits") / 3
    assert report.summaries["peak"][0].value.mean == pytest.approx(mean, rel=1e-12)
    assert judge(report).headline.startswith("By peak, the one map does not beat `centre`")


def test_command_line_run_folder_and_page(tmp_path, capsys):
    run = str(tmp_path / "run")
    options = ["--methods", "visits,centre,random", "--limit", "3", "--out", run]
    command_line()(["evaluate", "--metrics", "peak,boxes", *options], standalone_mode=False)
    assert "peak mass" in capsys.readouterr().out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [s["method"] for s in summary["peak"]] == ["visits", "centre", "random"]
    command_line()(["report", run], standalone_mode=False)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "How much of a map lies on one patch?" in page
    assert "the highest peak mass" not in page  # a single map
    assert "has a peak mass of" in page


def test_names_are_taken_once():
    @dataclass(frozen=True)
    class Other(Measure):
        name: ClassVar[str] = "morf"

    with pytest.raises(ValueError, match="name must be new, got 'morf'"):
        register_measure(Other)


def test_rows_of_a_measure_that_is_not_imported(tmp_path):
    rows = [{"measure": "unheard", "model": "m", "checkpoint": "", "image": "a"}]
    with pytest.raises(ValueError, match="unknown measure 'unheard'; one of morf, boxes, .*, peak"):
        Report(rows)


def test_packages_advertise_their_modules(monkeypatch, capsys):
    from importlib.metadata import EntryPoint

    from infsa_explain import cli

    entries = [
        EntryPoint("works", "json", "infsa_explain"),
        EntryPoint("broken", "no_such_module", "infsa_explain"),
    ]
    monkeypatch.setattr(cli, "entry_points", lambda group: entries)
    cli.import_extensions()
    assert capsys.readouterr().err == (
        "warning: the extension 'broken' is left out: ModuleNotFoundError: No module named "
        "'no_such_module'\n"
    )
