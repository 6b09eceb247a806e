"""What answers at once, and wrong use: one line, and nothing is written."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from infsa_explain.cli import command_line

COMMANDS = typer.main.get_command(command_line()).commands


def test_models_and_methods_are_listed(cli):
    code, stdout, _ = cli("models")
    assert code == 0
    assert "infvit_linear_digits" in stdout
    assert "infvit_pure_24l" in stdout
    code, stdout, _ = cli("methods")
    assert code == 0
    assert "visits" in stdout
    assert "centre" in stdout


def test_no_command_shows_the_help(cli):
    code, stdout, _ = cli()
    assert code == 2
    assert "morf" in stdout
    assert "train" in stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("morf", "--model", "infvit_liner_digits"), 2, "did you mean infvit_linear_digits"),
        (("morf", "--model", "nowhere.safetensors"), 2, "no checkpoint at nowhere.safetensors"),
        (("morf", "--methods", "vists"), 2, "did you mean visits"),
        (("morf", "--methods", "attention"), 2, "not for linear attention"),
        (("morf", "--layer", "7"), 2, "layer 7 is out of range"),
        (("morf", "--layer", "top"), 2, "layer must be a whole number, 'last' or 'mean'"),
        (("morf", "--head", "99"), 2, "head 99 is out of range"),
        (("morf", "--gamma", "1"), 2, "gamma must lie in (0, 1)"),
        (("boxes", "--gamma-rho", "1"), 2, "gamma_rho must lie in (0, 1), got 1.0"),
        (("boxes", "--gamma-rho", ".5", "--gamma", ".5"), 2, "gamma must be left out beside"),
        (("morf", "--fill", "grey"), 2, "unknown fill 'grey'"),
        (("morf", "--steps", "many"), 2, "--steps must be a number or 'few' or 'full'"),
        (("morf", "--steps", "500"), 2, "steps"),
        (("morf", "--data", "nowhere"), 2, "'nowhere'"),
        (("morf", "--limit", "0"), 2, "Invalid value for '--limit'"),
        (("gallery", "--limit", "0"), 2, "Invalid value for '--limit'"),
        (("boxes", "--tolerance", "-1"), 2, "tolerance must be a number in [0, 100], got -1.0"),
        (("align", "--size", "0"), 2, "Invalid value for '--size'"),
        (("map", "--method", "rollout", "--layer", "0"), 2, "layer must be left out for rollout"),
        (("morf", "--methods", "rollout,random", "--layer", "0"), 2, "layer must be left out for"),
        (("map", "--method", "gradcam", "--head", "2"), 2, "head must be left out for gradcam"),
        (("map", "--method", "gradcam", "--target", "cat"), 2, "must be the name or the number"),
        (("morf", "--layer", "0", "--layer", "1"), 2, "--layer takes one value, and is given 2"),
        (("map", "--head", "0", "--head=1"), 2, "--head takes one value, and is given 2"),
        (("morf", "--methods", "visits,"), 2, "--methods must be names with commas, got 'visits,'"),
        (("evaluate", "--metrics", ""), 2, "--metrics is empty; give it a value, or leave it out"),
        (("evaluate", "--metrics", ","), 2, "--metrics must be names with commas, got ','"),
        (("morf", "--seed", "-1"), 2, "Invalid value for '--seed'"),
        (("morf", "--seed", "9" * 25), 2, "'--seed': "),
        (("map", "--seed", "-1"), 2, "Invalid value for '--seed'"),
        (("morf", "--target", "truth"), 2, "'0', '1', '2', …; or 'predicted', or 'label'"),
        (("morf", "--shard", "3/2"), 2, "--shard must be i/n"),
        (("evaluate", "--metrics", "morf,luck"), 2, "--metrics must be of morf, boxes"),
        (("sanity", "--draws", "0"), 2, "draws must be at least 1"),
        (("morf", "--device", "abacus"), 2, "--device must be auto, cpu or cuda"),
        (("morf", "--nonsense"), 2, "--nonsense"),
        (("map", "nowhere.jpg"), 2, "nowhere.jpg"),
        (("map", "--method", "visits,nothing"), 2, "unknown method 'nothing'"),
        (("dance",), 2, "dance"),
    ],
)
def test_wrong_use_is_one_line_and_writes_nothing(
    cli, tmp_path, monkeypatch, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    out = () if arguments[0] == "dance" else ("--out", "out")
    got, stdout, stderr = cli(*arguments, *out)
    assert got == code
    assert message in stderr
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    assert stdout == ""
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_module_ignores_a_metrics_py_in_the_working_folder(tmp_path):
    for name in ("metrics.py", "models.py", "train.py"):
        (tmp_path / name).write_text("raise SystemExit('shadowed')")
    done = subprocess.run(
        [sys.executable, "-m", "infsa_explain", "methods"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "visits" in done.stdout


@pytest.mark.parametrize(
    ("command", "says", "imports"),
    [
        (["models"], "infvit_linear_digits", []),
        (["methods"], "visits", ["numpy", "torch"]),
    ],
)
def test_what_answers_at_once_imports_nothing_heavy(command, says, imports):
    assert_light([command], says, imports)


def test_help_of_every_command_imports_nothing_heavy():
    commands = [[name, "--help"] for name in COMMANDS]
    assert_light([["--help"], *commands, ["morf", "-h"]], "MoRF-AOC", [])


def assert_light(commands, says, imports):
    """Run commands in a fresh process, and compare the heavy modules that it imports."""
    script = (
        "import sys\n"
        "from infsa_explain.__main__ import main\n"
        f"for command in {commands}:\n"
        "    sys.argv = ['x', *command]\n"
        "    try: main()\n"
        "    except SystemExit as stop: assert stop.code == 0, command\n"
        "heavy = 'cv2 matplotlib numpy scipy sklearn timm torch torchvision'.split()\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().splitlines()[-1] == f"{imports}"
    assert says in done.stdout


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_80_columns(cli, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    code, stdout, stderr = cli(*name.split(), "--help")
    assert (code, stderr) == (0, "")
    assert max(map(len, stdout.splitlines())) <= 80
    for argument in ("images]...", "folders}...", "folders...", "[ARGS]...", "images..."):
        stdout = stdout.replace(argument, "")
    assert "..." not in stdout
