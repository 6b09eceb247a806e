"""The README keeps its word: its snippets run, its commands parse, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import torch
import typer
from PIL import Image
from supported_models import script

import infsa_explain
from infsa_explain.cli import command_line
from infsa_explain.data import PhotoDigits
from infsa_explain.methods import METHODS
from infsa_explain.vits.capturing import capture

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
#: A model that would be downloaded, and one with as many patches that is here.
DOWNLOADED, BUNDLED = "vit_base_patch16_224", "vit_softmax_digits"
COMMANDS = typer.main.get_command(command_line()).commands


def blocks(language: str) -> list[str]:
    """The README's fenced code of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def command_lines() -> list[list[str]]:
    """Every command in the README's bash blocks, in words; lines that go on are joined."""
    lines = "\n".join(blocks("bash")).replace("\\\n", " ").splitlines()
    parts = [part for line in lines for part in line.split("&&")]
    return [words for part in parts if (words := shlex.split(part, comments=True))]


OURS = [words[3:] for words in command_lines() if words[:3] == ["python", "-m", "infsa_explain"]]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to work in, with what the README names: a photo, and FOLDER, images by class."""
    for i, sample in enumerate(PhotoDigits("val", 4)):
        folder = tmp_path / "FOLDER" / str(sample.label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(sample.image).save(folder / f"{i}.png")
    Image.fromarray(PhotoDigits("val", 1)[0].image).save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parsed(words: list[str]) -> dict:
    """The options of a command line of ours; wrong use is an error."""
    return COMMANDS[words[0]].make_context(words[0], words[1:]).params


def test_python_snippets_run_in_their_order(here):
    snippets = blocks("python")
    assert len(snippets) == 3
    names: dict = {}
    exec(snippets[0].replace(DOWNLOADED, BUNDLED), names)
    assert names["result"].maps.shape == (1, 14, 14)  # as its comment says
    assert {"dead_heads", "min_absorption", "invalid_rows", "error_bound"} <= set(
        names["result"].diagnostics
    )
    exec(snippets[1], names)
    kinds = capture(names["converted"], names["images"]).kinds
    assert (
        kinds == ("linear",) * 4
        and capture(names["model"], names["images"]).kinds == ("softmax",) * 4
    )
    names["targets"] = names["result"].logits.argmax(-1)
    names["patch_scores"] = names["result"].maps
    exec(snippets[2], names)
    curve = names["curve"]
    steps = curve.fractions.diff()
    height = curve.probabilities[0] / curve.probabilities[0, 0]
    area = (steps * (height[1:] + height[:-1]) / 2).sum()
    torch.testing.assert_close(curve.aoc()[0], 1 - area, rtol=0, atol=1e-6)
    attribution = infsa_explain.captum_attribution(names["model"], "visits")
    assert attribution.attribute(names["images"], target=0).shape == names["images"].shape


@pytest.mark.parametrize("words", command_lines(), ids=" ".join)
def test_commands_parse(here, words):
    if words[:3] == ["python", "-m", "infsa_explain"]:
        (here / "runs" / "mine").mkdir(parents=True)
        assert parsed(words[3:])
    elif words[:2] == ["pip", "install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        wanted = re.findall(r"\[(.*)\]", words[-1])
        assert words[-1].startswith(".") and set(wanted) <= set(extras["optional-dependencies"])
    else:
        assert words == ["pytest"]


def test_cheap_commands_run_as_written(here, monkeypatch, capsys):
    """Those that look and report; measured on three images, with methods that are quick."""

    def run(*words):
        assert not command_line()(list(words), standalone_mode=False)
        return capsys.readouterr().out

    def written(command):
        return next(words for words in OURS if words[0] == command)

    maps = run(*written("map"))
    assert sorted(path.name for path in (here / "maps").iterdir()) == sorted(
        Path(line).name for line in maps.splitlines()
    )
    assert {Path(line).suffix for line in maps.splitlines()} == {".png", ".npy"}
    evaluate = [BUNDLED if word == DOWNLOADED else word for word in written("evaluate")]
    for option, value in (("--methods", "visits,random,centre"), ("--limit", "3")):
        evaluate[evaluate.index(option) + 1] = value
    run(*evaluate, "--metrics", "morf", "--steps", "2")
    assert str(written("report")[1]) in evaluate
    run(*written("report"))
    page = (here / evaluate[evaluate.index("--out") + 1] / "report.html").read_text()
    assert BUNDLED in page and "MoRF" in page
    assert "infvit_linear_digits" in run(*written("morf"), "--limit", "1", "--steps", "2")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_parse(here, name):
    command = COMMANDS[name]
    examples = re.findall(r"Example: infsa-explain (.*?)(?:\n\n|\Z)", command.help, re.DOTALL)
    assert examples
    (here / "runs" / "twins").mkdir(parents=True)
    for example in examples:
        words = shlex.split(example)
        assert words[0] == name
        assert parsed(words).keys() == {parameter.name for parameter in command.params} - {"help"}


def test_the_page_of_methods_has_every_method():
    attention = {("linear", "pure", "softmax"): "any", ("linear", "pure"): "InfSA"}
    expected = []
    for method in METHODS.values():
        name = f"`{method.name}`" + " (of a class)" * method.class_specific
        kinds = tuple(sorted(method.kinds))
        summary = method.summary.rstrip(".").replace("|", "\\|")
        expected.append(f"| {name} | {summary} | {attention.get(kinds) or ', '.join(kinds)} |")
    lines = (ROOT / "docs/methods.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| `")]
    assert sorted(rows[:-1]) == sorted(expected)
    assert rows[-1].startswith("| `untrained-NAME` |")


def test_the_table_of_methods_is_as_printed_from_the_registry():
    table = script("methods_table")
    page = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
    assert table.with_table(page) == page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if not target.startswith(("http://", "https://"))]
    assert [target for target in local if not (page.parent / target.split("#")[0]).exists()] == []
    assert page.name != "README.md" or len(local) >= 8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page):
    """Paths in code font, such as those that say where to add a method."""
    named = re.findall(
        r"`((?:infsa_explain|metrics|tests|docs|notebooks)/[^`\s*{]*)`", page.read_text()
    )
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_pictures_are_small_enough_for_a_page():
    pictures = [path for path in (ROOT / "docs").iterdir() if path.suffix in (".png", ".jpg")]
    assert {path.stem for path in pictures} >= {"look", "report", "inspector"}
    assert max(path.stat().st_size for path in pictures) < 400_000
