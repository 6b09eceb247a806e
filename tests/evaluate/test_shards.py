"""Several processes share a run, and end with the numbers of one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from infsa_explain.evaluate import RunFolder, Shard, read_rows, unfinished

OPTIONS = ("--limit", "7", "--steps", "3", "--methods", "degree,random")
CONFIG = {"data": {"images": 5}, "models": {"m": {}}, "measures": {"morf": {"steps": 3}}}


def run(*command, **environment):
    return subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("images", [0, 1, 5, 8, 500])
@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_shards_are_even_and_hold_every_image_once(images, parts):
    shards = [Shard(part, parts).of(images) for part in range(1, parts + 1)]
    assert [i for shard in shards for i in shard] == list(range(images))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.mark.parametrize("text", ["", "2", "0/2", "3/2", "1/0", "-1/2", "a/b", "1/2/3", "½/2"])
def test_what_is_no_shard(text):
    with pytest.raises(ValueError, match=re.escape(f"i from 1 to n, such as 2/4, got {text!r}")):
        Shard.parse(text)


def test_shards_meet_in_one_folder(tmp_path):
    for part in (2, 1):
        shard = Shard(part, 2)
        with RunFolder(tmp_path, CONFIG, shard=shard) as folder:
            for i in shard.of(5):
                folder.write({"image": i})
            assert shard in unfinished(tmp_path)
            folder.commit("m", len(shard.of(5)))
        assert unfinished(tmp_path) == [Shard(1, 2)][: part - 1]
    assert [row["image"] for row in read_rows(tmp_path)] == [0, 1, 2, 3, 4]


def test_a_shard_of_another_run_is_refused(tmp_path):
    with RunFolder(tmp_path, CONFIG, shard=Shard(1, 2)) as folder:
        folder.write({"image": 0})
    with pytest.raises(ValueError, match="shards is 3 now, was 2"):
        RunFolder(tmp_path, CONFIG, shard=Shard(2, 3))
    other = CONFIG | {"measures": {"morf": {"steps": 4}}}
    with pytest.raises(ValueError, match="measures morf steps is 4 now, was 3"):
        RunFolder(tmp_path, other, shard=Shard(2, 2))
    with pytest.raises(ValueError, match="holds a run already"):
        RunFolder(tmp_path, CONFIG, shard=Shard(1, 2))
    with pytest.raises(ValueError, match="--force is not for one of several"):
        RunFolder(tmp_path, CONFIG, shard=Shard(2, 2), force=True)
    RunFolder(tmp_path, CONFIG, shard=Shard(1, 2), resume=True)


def same_numbers(one, other):
    """Rows alike but for float noise, and summaries, too."""
    key = ("model", "image", "method", "order")
    a, b = (sorted(read_rows(f), key=lambda row: [row[k] for k in key]) for f in (one, other))
    assert len(a) == len(b) == 7 * 2 * 2
    for row, twin in zip(a, b, strict=True):
        assert [row[k] for k in key] == [twin[k] for k in key]
        assert row["probabilities"] == pytest.approx(twin["probabilities"], abs=2e-6)
    first, second = (json.loads((f / "summary.json").read_text())["morf"] for f in (one, other))
    for summary, twin in zip(first, second, strict=True):
        for field in ("mean", "low", "high", "n"):
            assert summary["aoc"][field] == pytest.approx(twin["aoc"][field], abs=2e-6)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("shards") / "whole"
    done = run("infsa_explain", "morf", *OPTIONS, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def test_shards_of_a_job_array(tmp_path, whole):
    out = tmp_path / "run"
    for part in (1, 2, 3):
        done = run("infsa_explain", "morf", *OPTIONS, "--out", out, "--shard", f"{part}/3")
        assert done.returncode == 0, done.stderr
        if part < 3:
            assert "to do, shards" in done.stderr and done.stdout == ""
    assert "MoRF-AOC" in done.stdout
    same_numbers(whole, out)


def test_two_ranks_of_torchrun(tmp_path, whole):
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")
    command = (*launcher, "infsa_explain", "morf", *OPTIONS)
    done = run(*command, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("deletion, fill mean, 3 steps") == 1
    assert {path.name for path in (tmp_path / "run").glob("rows.*")} == {
        "rows.1-of-2.jsonl",
        "rows.2-of-2.jsonl",
    }
    same_numbers(whole, tmp_path / "run")
    done = run(*command)  # nowhere for the rows to meet
    assert done.returncode != 0 and "needs --out" in done.stderr


def test_a_shard_needs_a_folder_and_may_be_empty(tmp_path):
    done = run("infsa_explain", "morf", *OPTIONS, "--shard", "1/2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs --out" in done.stderr
    done = run(
        *("infsa_explain", "morf", "--limit", "1", "--steps", "2", "--shard", "1/2"),
        *("--out", tmp_path / "run"),
    )
    assert done.returncode == 0 and "is empty" in done.stderr
    assert not (tmp_path / "run").exists()
