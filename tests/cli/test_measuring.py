"""Commands that measure."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from infsa_explain.models.loading import load


def test_morf_on_the_bundled_model_writes_a_run(cli, tmp_path):
    out = tmp_path / "run"
    code, stdout, _ = cli("morf", "--limit", 3, "--steps", 4, "--out", out)
    assert code == 0
    assert [name in stdout for name in ("visits", "linear", "centre", "random")] == [True] * 4
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json",
        "curves.csv",
        "curves.png",
        "curves.svg",
        "progress.1-of-1.json",
        "rows.1-of-1.jsonl",
        "summary.json",
        "summary.md",
    ]
    rows = [json.loads(line) for line in (out / "rows.1-of-1.jsonl").read_text().splitlines()]
    assert len(rows) == 3 * 4 * 2
    assert json.loads((out / "config.json").read_text())["measures"]["morf"]["steps"] == 4
    code, _, stderr = cli("morf", "--limit", 3, "--steps", 4, "--out", out)
    assert code == 2
    assert "holds a run already" in stderr


def test_json_is_the_summary(cli):
    code, stdout, _ = cli("morf", "--limit", 2, "--steps", 3, "--methods", "degree", "--json")
    assert code == 0
    (summary,) = json.loads(stdout)
    assert summary["method"] == "degree"
    assert summary["aoc"]["n"] == 2


def test_align_on_the_bundled_model_writes_a_run(cli, tmp_path):
    out = tmp_path / "run"
    code, stdout, _ = cli("align", "--limit", 2, "--layer", "last", "--steps", "2", "--out", out)
    assert code == 0
    vectors = ("linear", "linear-k2", "degree", "mean-query", "uniform", "untrained")
    assert all(f" {name} " in stdout for name in vectors)
    assert "published: cosine 0.985" in stdout and "[95%]" in stdout
    assert {path.name for path in out.iterdir()} == {
        "alignment.png",
        "alignment.svg",
        "config.json",
        "progress.1-of-1.json",
        "rows.1-of-1.jsonl",
        "summary.json",
        "summary.md",
    }


def test_align_at_another_size_without_weights(cli):
    code, stdout, _ = cli(
        "align",
        "--model",
        "vit_softmax_digits",
        "--untrained",
        "--size",
        64,
        "--limit",
        1,
        "--json",
    )
    assert code == 0
    assert [v["vector"] for v in json.loads(stdout)["vectors"]] == [
        "linear",
        "central-key",
        "degree",
        "mean-query",
        "uniform",
    ]


def test_the_seed_decides_the_weights_of_an_untrained_model(cli):
    options = ("align", "--untrained", "--limit", 1, "--layer", "last", "--json")
    first, again, other = (
        json.loads(cli(*options, "--seed", seed)[1])["vectors"] for seed in (0, 0, 1)
    )
    assert first == again != other


def test_boxes_on_the_bundled_model_writes_a_run(cli, tmp_path):
    code, stdout, _ = cli("boxes", "--limit", 3, "--out", tmp_path / "run")
    assert code == 0
    assert "PR-AUC ↑ [95%]" in stdout and "prevalence" in stdout
    rows = (tmp_path / "run" / "rows.1-of-1.jsonl").read_text().splitlines()
    assert len(rows) == 3 * 4


def test_boxes_of_the_label_and_a_label_map(cli, tmp_path):
    """A picture of class dog with a box of a dog and one of a cat, labels as the file says."""
    for name in "ab":
        pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    table = tmp_path / "boxes.csv"
    table.write_text("path,label,x0,y0,x1,y1\na.png,dog,0,0,32,64\nb.png,cat,5,5,1,1\n")
    names = tmp_path / "names.txt"
    names.write_text("cat\ndog\n")
    options = ("boxes", "--model", "vit_softmax_photos", "--data", table, "--methods", "centre")
    code, stdout, stderr = cli(*options, "--label-map", names, "--boxes", "label", "--json")
    assert code == 0
    (summary,) = json.loads(stdout)
    assert summary["measures"]["prevalence"]["mean"] == 0.5
    assert (summary["measures"]["ap"]["n"], summary["skipped"]) == (1, 1)
    assert stderr == "boxes left out: 1 reversed\n"
    code, _, stderr = cli(*options, "--boxes", "some")
    assert code == 2 and "--boxes must be 'all' or 'label'" in stderr
    code, _, stderr = cli(*options, "--label-map", tmp_path / "nowhere.txt")
    assert code == 2 and "nowhere.txt" in stderr


def test_evaluate_measures_everything_at_once(cli, tmp_path):
    out = tmp_path / "run"
    options = ("evaluate", "--limit", 2, "--steps", 2, "--methods", "visits,random", "--out", out)
    options += ("--floor", 0.05)
    code, stdout, _ = cli(*options, "--metrics", "all")
    assert code == 0
    assert json.loads((out / "config.json").read_text())["measures"]["morf"]["floor"] == 0.05
    titles = ("deletion, fill mean, 2 steps", "boxes", "agreement with the Perron vector")
    titles += ("infidelity", "sensitivity")
    titles += ("how sharp maps are", "how alike tokens are", "randomisation and noise", "accuracy")
    assert [title for title in titles if f"2 images, layer last: {title}" not in stdout] == []
    summary = json.loads((out / "summary.json").read_text())
    names = ("morf", "boxes", "align", "focus", "sanity")
    assert list(summary) == [*names, "infidelity", "sensitivity", "accuracy"]
    assert {path.name for path in out.iterdir()} >= {"curves.png", "alignment.png", "sanity.png"}
    before = (out / "summary.json").read_text()
    code, _, stderr = cli(*options, "--metrics", "morf", "--resume")
    assert code == 2 and "holds another run: measures accuracy is None now" in stderr
    assert cli(*options, "--metrics", "all", "--resume")[0] == 0
    assert (out / "summary.json").read_text() == before


def test_sanity_of_the_bundled_model(cli):
    options = ("--limit", 2, "--methods", "degree,centre", "--draws", 1, "--json")
    code, stdout, _ = cli("sanity", *options)
    assert code == 0
    degree, centre = json.loads(stdout)
    assert degree["stages"] == ["head", *(f"blocks.{i}" for i in (3, 2, 1, 0)), "embeddings"]
    assert centre["spearman"][-1]["mean"] == 1


def test_accuracy_of_the_bundled_model(cli, tmp_path):
    code, stdout, _ = cli("accuracy", "--limit", 40, "--out", tmp_path / "run")
    assert code == 0
    assert "top-1 ↑ [95%]" in stdout and "chance" in stdout
    (summary,) = json.loads((tmp_path / "run" / "summary.json").read_text())["accuracy"]
    assert summary["top1"]["n"] == 40 and summary["top1"]["mean"] > 0.7


def test_seeds_of_a_model_are_averaged(cli, tmp_path):
    """Two checkpoints of one model, the second with another classifier."""
    from infsa_explain.models.loading import load

    model = load("vit_softmax_digits")
    paths = [tmp_path / "first.pt", tmp_path / "second.pt"]
    torch.save(model.state_dict(), paths[0])
    model.head.weight.data.mul_(0.3)
    torch.save(model.state_dict(), paths[1])
    options = ("morf", "--model", "vit_softmax_digits", "--limit", 3, "--steps", 2)
    options += ("--methods", "degree,random")
    each = [json.loads(cli(*options, "--checkpoint", path, "--json")[1]) for path in paths]
    code, stdout, _ = cli(*options, "--checkpoint", paths[0], "--checkpoint", paths[1], "--json")
    assert code == 0
    for both, one, other in zip(json.loads(stdout), *each, strict=True):
        means = [one["aoc"]["mean"], other["aoc"]["mean"]]
        assert both["aoc"]["mean"] == pytest.approx(np.mean(means), abs=1e-9)
        assert both["seeds"]["count"] == 2
        assert both["seeds"]["spread"] == pytest.approx(np.std(means, ddof=1), abs=1e-9)
    code, _, stderr = cli(*options, "--checkpoint", paths[0], "--checkpoint", paths[0])
    assert code == 2 and "is given twice" in stderr


def test_a_checkpoint_of_a_training_script(cli, tmp_path):
    """Its averaged weights are those that are measured, and a line says so."""
    model = load("vit_softmax_digits")
    ema = {f"module.{key}": value.clone() for key, value in model.state_dict().items()}
    torch.nn.init.zeros_(model.head.weight)
    content = {"epoch": 9, "state_dict": model.state_dict(), "state_dict_ema": ema}
    torch.save(content, tmp_path / "last.pth.tar")
    options = ("accuracy", "--model", "vit_softmax_digits", "--limit", 20, "--json")
    message = r"last\.pth\.tar: the weights under state_dict_ema/module are taken, which are aver"
    with pytest.warns(UserWarning, match=message):
        code, stdout, stderr = cli(*options, "--checkpoint", tmp_path / "last.pth.tar")
    assert (code, stderr) == (0, "")
    (found,), (bundled,) = json.loads(stdout), json.loads(cli(*options)[1])
    assert found["top1"] == bundled["top1"]


def test_a_class_by_name(cli, tmp_path):
    code, stdout, stderr = cli(
        "morf", "--target", "3", "--methods", "gradcam", "--limit", 2, "--steps", 2, "--head", 0
    )
    assert code == 2 and "head must be left out for gradcam, without heads, got 0" in stderr
    options = ("--methods", "gradcam", "--limit", 2, "--steps", 2, "--out", tmp_path / "run")
    code, stdout, _ = cli("morf", "--target", "3", *options)
    assert code == 0 and "layer last, class: 3: deletion" in stdout
    rows = (tmp_path / "run" / "rows.1-of-1.jsonl").read_text().splitlines()
    assert {json.loads(row)["target"] for row in rows} == {3}
    code, stdout, _ = cli("morf", "--head", 2, "--limit", 1, "--steps", 2)
    assert code == 0 and "layer last, head 2: deletion" in stdout  # the controls stand beside


def test_an_interrupted_run_says_so(cli, monkeypatch):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("infsa_explain.evaluate.measure", stop)
    code, _, stderr = cli("morf", "--limit", 1)
    kept = "nothing is kept: with --out, --resume could go on from here\n"
    assert (code, stderr) == (130, kept + "interrupted\n")
