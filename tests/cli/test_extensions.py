"""A measure with options of its own, in a module that a package advertises."""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint

import pytest

from infsa_explain import cli as cli_module
from infsa_explain.evaluate.registry import MEASURES

PEAK = """
from dataclasses import dataclass
from typing import ClassVar, Literal

from infsa_explain.extensions import MapOptions, Measure, option, register_measure


def plus(text):
    return tuple(map(int, text.split("+")))


@register_measure
@dataclass(frozen=True)
class Peak(MapOptions, Measure):
    name: ClassVar[str] = "peak"
    title: ClassVar[str] = "Peak"
    question: ClassVar[str] = "How much of a map lies on a few patches?"
    command: ClassVar[bool] = True
    field: ClassVar[str] = "peak"
    heading: ClassVar[str] = "peak mass"

    most: int = option(1, "Patches that make the peak.", flag="--patches")
    powers: tuple[int, ...] = option((1,), "Powers of scores.", parse=plus)
    mode: Literal["sum", "mean"] = option("sum", "Sum or mean over the patches.")
    centred: bool = option(False, "Subtract the mean score.")
    rounded: bool = option(True, "Round to 9 digits.")
    limit_of_rows: int | None = option(None, "Rows of a map.")

    def rows(self, batch):
        for method, explanation in batch.explanations(self):
            shares = explanation.maps.flatten(1).softmax(1).topk(self.most).values
            for sample, share in zip(batch.samples, shares.sum(1).tolist(), strict=True):
                settings = [self.powers, self.mode, self.centred, self.rounded]
                yield {
                    "image": sample.image_id, "method": method, "peak": share, "settings": settings
                }
"""


@pytest.fixture
def advertise(tmp_path, monkeypatch):
    """Make a module of some source, advertised as an extension."""
    entries = []

    def make(name, source):
        (tmp_path / f"{name}.py").write_text(source)
        entries.append(EntryPoint(name, name, "infsa_explain"))

    before, modules = {*MEASURES}, {*sys.modules}
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(cli_module, "entry_points", lambda group: entries)
    yield make
    for name in {*MEASURES} - before:
        if not MEASURES[name].__module__.startswith("infsa_explain."):
            del MEASURES[name]
    for name in {entry.name for entry in entries} - modules:
        sys.modules.pop(name, None)


def test_a_measure_has_a_command_with_its_options(cli, advertise, tmp_path):
    advertise("peak_extension", PEAK)
    out = tmp_path / "run"
    options = ("--methods", "visits,random", "--limit", 2, "--patches", 196, "--powers", "2+3")
    code, stdout, stderr = cli("peak", *options, "--mode", "mean", "--centred", "--out", out)
    assert (code, stderr) == (0, "")
    assert "2 images, layer last: peak; percent" in stdout
    rows = [json.loads(row) for row in (out / "rows.1-of-1.jsonl").read_text().splitlines()]
    assert [row["peak"] for row in rows] == pytest.approx([1] * 4, abs=1e-5)  # all patches
    assert rows[0]["settings"] == [[2, 3], "mean", True, True]
    code, _, stderr = cli("peak", "--mode", "max")
    assert (code, stderr) == (2, "error: --mode must be 'sum' or 'mean', got 'max'\n")


def test_help_of_its_command(cli, advertise):
    advertise("peak_extension", PEAK)
    assert "  peak      How much of a map lies on a few patches?\n" in cli("--help")[1]
    code, stdout, _ = cli("peak", "--help")
    assert code == 0
    section = stdout.split("\nPeak:\n")[1].split("\n\n")[0]
    flags = ["--patches", "--powers", "--mode", "--centred", "--rounded", "--limit-of-rows"]
    assert [line.split()[0] for line in section.splitlines() if line.startswith("  --")] == flags
    assert "[sum|mean]" in section and "[default: ((1,))]" in section
    assert "--methods" in stdout and "--shard" in stdout


def test_evaluate_takes_its_options(cli, advertise, tmp_path):
    advertise("peak_extension", PEAK)
    code, stdout, _ = cli("evaluate", "--help")
    assert code == 0 and "\nPeak:\n  --patches INTEGER" in stdout
    assert "accuracy, peak; 'all'" in " ".join(stdout.split())
    options = ("--metrics", "peak,focus", "--methods", "visits", "--limit", 1, "--patches", 2)
    code, stdout, stderr = cli("evaluate", *options, "--no-rounded", "--out", tmp_path / "run")
    assert (code, stderr) == (0, "")
    config = json.loads((tmp_path / "run" / "config.json").read_text())["measures"]
    assert (config["peak"]["most"], config["peak"]["rounded"]) == (2, False)
    assert config["peak"]["powers"] == [1]
    assert config["peak"]["methods"] == config["focus"]["methods"] == ["visits"]


def test_a_value_that_cannot_be_parsed(cli, advertise):
    advertise("peak_extension", PEAK)
    code, stdout, stderr = cli("peak", "--powers", "2+x")
    assert (code, stdout, stderr.count("\n")) == (2, "", 1)
    assert stderr.startswith("error: --powers cannot be '2+x': invalid literal for int()")


def test_an_option_that_means_something_else_is_not_shared(cli, advertise, tmp_path):
    """``--steps`` of evaluate is that of deletion; this measure keeps its default there."""
    source = PEAK.replace("most: int = option(1,", "steps: int = option(1,")
    advertise("peak_extension", source.replace('flag="--patches"', "").replace(".most", ".steps"))
    options = ("--methods", "visits", "--limit", 1, "--steps", 2)
    assert cli("evaluate", "--metrics", "peak,morf", *options, "--out", tmp_path / "a")[0] == 0
    config = json.loads((tmp_path / "a" / "config.json").read_text())["measures"]
    assert (config["peak"]["steps"], config["morf"]["steps"]) == (1, 2)
    assert cli("peak", *options, "--out", tmp_path / "b")[0] == 0
    config = json.loads((tmp_path / "b" / "config.json").read_text())["measures"]
    assert config["peak"]["steps"] == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (", parse=plus", "", "option 'powers' must be a bool, int, float, str, Path or Lit"),
        ("most: int", "seed_of: 'Nothing'", "name 'Nothing' is not defined"),
        ("most: int", "out: int", "option 'out' must have a name and a flag of its own"),
        ('flag="--patches"', 'flag="--layer"', "option 'most' must have a name and a flag of i"),
        ('"peak"\n    title', '"map"\n    title', "there is another command of that name"),
    ],
)
def test_a_measure_that_cannot_be_a_command_is_one_warning(cli, advertise, old, new, message):
    advertise("peak_extension", PEAK.replace(old, new))
    code, stdout, stderr = cli("models")
    assert code == 0 and "infvit_linear_digits" in stdout
    assert stderr.startswith("warning: the measure '") and stderr.count("\n") == 1
    assert message in stderr


def test_a_module_that_fails_is_one_warning(cli, advertise):
    advertise("broken_extension", "raise RuntimeError('no\\nluck')")
    code, stdout, stderr = cli("models")
    assert code == 0 and "infvit_linear_digits" in stdout
    assert stderr == (
        "warning: the extension 'broken_extension' is left out: RuntimeError: no luck\n"
    )
