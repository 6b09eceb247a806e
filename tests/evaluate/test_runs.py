"""A run folder survives being killed, and is never mistaken for another run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import timm
import torch

import infsa_explain.models  # noqa: F401  (registers the names)
from infsa_explain.data import PhotoDigits
from infsa_explain.evaluate import Morf, RunFolder, describe_run, fingerprint

DATA = PhotoDigits("val", 5)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return timm.create_model("infvit_linear_digits", depth=1, embed_dim=16, num_heads=2).eval()


def test_run_folder_keeps_rows_and_is_not_written_over(tmp_path, model):
    config = describe_run({"m": model}, DATA, [Morf()])
    with RunFolder(tmp_path / "run", config) as folder:
        assert not (tmp_path / "run").exists()
        folder.write({"image": "a", "aoc": None})
        # Flushed: readable before the run is closed, as it would be after a kill.
        row = json.loads((tmp_path / "run" / "rows.1-of-1.jsonl").read_text())
        assert row == {"image": "a", "aoc": None}
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["models"]["m"]["weights"] == fingerprint(model)
    assert stored["data"]["fingerprint"] == DATA.fingerprint()
    assert stored["measures"]["morf"]["fill"] == "mean"
    with pytest.raises(ValueError, match="holds a run already"):
        RunFolder(tmp_path / "run", config)
    with RunFolder(tmp_path / "run", config, force=True) as folder:
        folder.write({"image": "b"})
    assert json.loads((tmp_path / "run" / "rows.1-of-1.jsonl").read_text()) == {"image": "b"}
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        RunFolder(tmp_path / "file", config)


def test_fingerprint_changes_with_a_weight(model):
    before = fingerprint(model)
    with torch.no_grad():
        model.head.bias[0] += 1
    assert fingerprint(model) != before
    with torch.no_grad():
        model.head.bias[0] -= 1


def test_what_was_not_committed_is_done_again(tmp_path, model):
    config = describe_run({"m": model}, DATA, [Morf()])
    with RunFolder(tmp_path, config) as folder:
        for image in "ab":
            folder.write({"image": image})
        folder.commit("m", 2)
        folder.write({"image": "c"})
    with (tmp_path / "rows.1-of-1.jsonl").open("ab") as file:
        file.write(b'{"image": "to')  # killed within a line
    with RunFolder(tmp_path, config, resume=True) as folder:
        assert folder.rows == [{"image": "a"}, {"image": "b"}]
        assert folder.done == {"m": 2}
        folder.write({"image": "c"})
        folder.commit("m", 1)
    lines = (tmp_path / "rows.1-of-1.jsonl").read_text().splitlines()
    assert [json.loads(line)["image"] for line in lines] == ["a", "b", "c"]
    assert json.loads((tmp_path / "progress.1-of-1.json").read_text())["done"] == {"m": 3}


def test_killed_before_the_first_commit(tmp_path, model):
    config = describe_run({"m": model}, DATA, [Morf()])
    with RunFolder(tmp_path, config) as folder:
        folder.write({"image": "a"})
    with RunFolder(tmp_path, config, resume=True) as folder:
        assert (folder.rows, folder.done) == ([], {})
        folder.write({"image": "a"})
    assert (tmp_path / "rows.1-of-1.jsonl").read_text() == '{"image": "a"}\n'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"measures": {"morf": {}}}, "measures morf fill is 'mean' now, was None"),
        ({"data": {"images": 6}}, "data images is 5 now, was 6"),
    ],
)
def test_another_run_is_not_resumed(tmp_path, model, change, message):
    config = describe_run({"m": model}, DATA, [Morf()])
    theirs = json.loads(json.dumps(config))
    for key, value in change.items():
        theirs[key] = theirs[key] | value if isinstance(value, dict) else value
    with RunFolder(tmp_path, theirs) as folder:
        folder.write({"image": "a"})
    with pytest.raises(ValueError, match=message):
        RunFolder(tmp_path, config, resume=True)
    circumstances = config | {"threads": -1, "versions": {}, "device": "elsewhere"}
    with RunFolder(tmp_path / "same", circumstances) as folder:
        folder.write({"image": "a"})
    RunFolder(tmp_path / "same", config, resume=True)


def morf(out, *options):
    command = [sys.executable, "-m", "infsa_explain", "morf", "--methods", "degree,random"]
    command += ["--limit", "48", "--steps", "2", "--out", str(out), *options]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=one_thread)


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_ends_as_an_undisturbed_one(tmp_path, kills):
    assert morf(tmp_path / "whole").wait() == 0
    whole = (tmp_path / "whole" / "rows.1-of-1.jsonl").read_bytes()
    out, draw, killed = tmp_path / "killed", random.Random(0), 0
    while killed < kills:
        started = out.joinpath("rows.1-of-1.jsonl")
        process, began = morf(out, "--resume"), time.monotonic()
        size = started.stat().st_size if started.exists() else 0
        while process.poll() is None and time.monotonic() - began < 60:
            if (
                started.exists() and started.stat().st_size != size
            ):  # at work: it dies any moment now
                time.sleep(draw.random() * 0.2)
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed += 1
    assert morf(out, "--resume").wait() == 0
    assert (out / "rows.1-of-1.jsonl").read_bytes() == whole
    assert (out / "summary.json").read_bytes() == (tmp_path / "whole" / "summary.json").read_bytes()
