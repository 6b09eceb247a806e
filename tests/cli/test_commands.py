"""The command line as a person meets it: what works, and one clear line where it does not."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from infsa_explain.__main__ import main
from infsa_explain.models.loading import load


@pytest.fixture
def cli(monkeypatch, capsys):
    """Run a command in this process: (exit code, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["infsa-explain", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return run


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
        "degree",
        "mean-query",
        "uniform",
    ]


def test_boxes_on_the_bundled_model_writes_a_run(cli, tmp_path):
    code, stdout, _ = cli("boxes", "--limit", 3, "--out", tmp_path / "run")
    assert code == 0
    assert "PR-AUC ↑ [95%]" in stdout and "prevalence" in stdout
    rows = (tmp_path / "run" / "rows.1-of-1.jsonl").read_text().splitlines()
    assert len(rows) == 3 * 4


@pytest.mark.parametrize("command", ["morf", "boxes", "align"])
def test_a_corrupt_image_is_left_out_and_told_of(cli, tmp_path, command):
    for i in range(20):  # the first batch has none that can be read
        (tmp_path / f"{i:02}.png").write_bytes(b"no image")
    for i in (20, 21):
        pixels = np.random.default_rng(i).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    rows = [f"{i:02}.png,cat,8,8,40,40" for i in range(22)]
    (tmp_path / "boxes.csv").write_text("\n".join(["path,label,x0,y0,x1,y1", *rows]))
    data = tmp_path / "boxes.csv" if command == "boxes" else tmp_path
    options = (command, "--model", "vit_softmax_photos", "--data", data, "--limit", 99)
    options += ("--steps", "2") if command != "boxes" else ()
    code, stdout, stderr = cli(*options, "--json")
    assert code == 0
    assert json.loads(stdout)  # of the two that can be read
    assert stderr.count("left out:") == 20 and "00.png" in stderr
    assert "20 times an image could not be read" in stderr
    code, _, stderr = cli(*options, "--strict")
    assert code == 2 and stderr.count("\n") == 1 and "00.png" in stderr


@pytest.mark.parametrize("command", ["morf", "boxes", "align", "accuracy"])
def test_no_image_that_can_be_read(cli, tmp_path, command):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").write_bytes(b"no image")
    (tmp_path / "data" / "a.csv").write_text("path,label,x0,y0,x1,y1\na.png,cat,0,0,1,1\n")
    data = tmp_path / "data" / ("a.csv" if command == "boxes" else "")
    code, stdout, stderr = cli(command, "--data", data, "--out", tmp_path / "run")
    assert (code, stdout) == (2, "")
    assert stderr.endswith("error: none of the 1 images could be read\n")
    assert not (tmp_path / "run").exists()


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


def test_a_malformed_annotation_is_left_out_and_told_of(cli, tmp_path):
    """The others are measured."""
    for name in "ab":
        image = np.zeros((112, 112, 3), np.uint8)
        image[30:60, 40:80] = 200
        Image.fromarray(image).save(tmp_path / f"{name}.png")
    box = {"category_id": 1, "bbox": [40, 30, 40, 30]}
    content = {
        "images": [{"id": i, "file_name": f"{name}.png"} for i, name in enumerate("ab")],
        "categories": [{"id": 1, "name": "light"}],
        "annotations": [
            box | {"image_id": 0},
            box | {"image_id": 0, "bbox": []},
            box | {"image_id": 1},
            box | {"image_id": 7},
        ],
    }
    (tmp_path / "x.json").write_text(json.dumps(content))
    message = r"^x: 2 malformed annotations .* annotations\[3\]: 'image_id' 7 is not listed$"
    with pytest.warns(UserWarning, match=message):
        code, stdout, stderr = cli(
            "boxes", "--data", tmp_path / "x.json", "--methods", "centre", "--json"
        )
    assert (code, stderr) == (0, "boxes left out: 1 malformed\n")
    assert [row["measures"]["ap"]["n"] for row in json.loads(stdout)] == [2]


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


class TestTablesOfNothing:
    @pytest.fixture
    def classes(self, tmp_path):
        """Two class folders of photographs, without a box."""
        for name in ("cat", "dog"):
            (tmp_path / "photos" / name).mkdir(parents=True)
            pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / "a.png")
        return tmp_path / "photos"

    OPTIONS = ("--model", "vit_softmax_photos", "--methods", "centre")

    def test_boxes_without_any(self, cli, tmp_path, classes):
        out = tmp_path / "run"
        for command in (("boxes",), ("evaluate", "--metrics", "focus,boxes")):
            code, stdout, stderr = cli(*command, *self.OPTIONS, "--data", classes, "--out", out)
            assert (code, stdout, stderr.count("\n")) == (2, "", 1)
            assert "error: none of the 2 images of 'photos' has a box; boxes are in Tiny-" in stderr
            assert "in a .csv of path, label, x0, y0, x1, y1" in stderr
            assert not out.exists()

    def test_those_that_are_left_out_are_counted(self, cli, classes):
        rows = ["path,label,x0,y0,x1,y1", "cat/a.png,cat,9,9,5,5", "dog/a.png,dog,,,,"]
        (classes / "a.csv").write_text("\n".join(rows))
        code, _, stderr = cli("boxes", *self.OPTIONS, "--data", classes / "a.csv")
        assert code == 2 and "none of the 2 images of 'a' has a box of use (1 reversed)" in stderr

    def test_everything_goes_without_boxes_where_there_are_none(self, cli, classes, tmp_path):
        options = ("--data", classes, "--steps", 2, "--out", tmp_path / "run")
        code, stdout, stderr = cli("evaluate", *self.OPTIONS, *options)
        assert code == 0
        assert stderr.startswith("boxes is left out: none of the 2 images of 'photos' has a box")
        assert "deletion, fill mean" in stdout and "boxes; percent" not in stdout
        config = json.loads((tmp_path / "run" / "config.json").read_text())
        assert list(config["measures"]) == ["morf", "align", "focus", "sanity"]

    def test_boxes_that_leave_nothing_to_compare(self, cli, classes):
        """The box is all of the image: known when it is decoded. Other measures are shown."""
        rows = ["path,label,x0,y0,x1,y1", "cat/a.png,cat,0,0,64,64", "dog/a.png,dog,,,,"]
        (classes / "a.csv").write_text("\n".join(rows))
        options = (*self.OPTIONS, "--data", classes / "a.csv")
        said = "error: boxes: no image has a box, in the part that the model sees, that leaves"
        for as_json in ((), ("--json",)):
            code, stdout, stderr = cli("boxes", *options, *as_json)
            assert (code, stdout, stderr.count("\n")) == (2, "", 1)
            assert said in stderr
        code, stdout, stderr = cli("evaluate", *options, "--metrics", "boxes,focus")
        assert code == 2 and said in stderr
        assert "how sharp maps are" in stdout and "nan" not in stdout

    def test_a_curve_of_one_step(self, cli, tmp_path):
        code, stdout, stderr = cli("morf", "--limit", 1, "--steps", 1, "--out", tmp_path / "run")
        assert (code, stdout, stderr.count("\n")) == (2, "", 1)
        assert (
            "2 to 196 steps" in stderr and "with which the curves of all maps are alike" in stderr
        )
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("command", ["morf", "boxes", "evaluate"])
    def test_lists_add_up(self, cli, tmp_path, command):
        options = ("--methods", "visits", "--methods", "degree,random", "--methods", "visits")
        options += ("--limit", 1, "--out", tmp_path / "run")
        if command != "boxes":
            options += ("--steps", 2)
        if command == "evaluate":
            options += ("--metrics", "morf", "--metrics", "focus,accuracy")
        assert cli(command, *options)[0] == 0
        measures = json.loads((tmp_path / "run" / "config.json").read_text())["measures"]
        for name, measure in measures.items():
            if name != "accuracy":
                assert measure["methods"] == ["visits", "degree", "random"]
        if command == "evaluate":
            assert list(measures) == ["morf", "focus", "accuracy"]

    def test_all_methods_of_pictures(self, cli, tmp_path):
        """Those that suit every model; beside a head those that have heads, and controls."""
        from infsa_explain.methods import METHODS

        options = ("--limit", 1, "--methods", "all", "--head", 0, "--out", tmp_path / "a.png")
        assert cli("gallery", "--model", "vit_softmax_digits", *options)[0] == 0
        photo = tmp_path / "a.png"
        assert cli("map", photo, "--method", "all", "--head", 0, "--out", tmp_path / "maps")[0] == 0
        names = {path.name.split(".")[2] for path in (tmp_path / "maps").iterdir()}
        suited = {name for name, m in METHODS.items() if m.kinds >= {"linear"}}
        expected = {name for name in suited if METHODS[name].heads or METHODS[name].control}
        assert names == expected | {"untrained-visits"}

    def test_other_lists_add_up(self, cli, tmp_path):
        options = ("--limit", 1, "--layer", "last", "--steps", 2, "--steps", "3,2", "--json")
        code, stdout, _ = cli("align", *options)
        assert code == 0
        vectors = [row["vector"] for row in json.loads(stdout)["vectors"]]
        assert vectors[:3] == ["linear", "linear-k2", "linear-k3"]
        options = ("--method", "visits", "--methods", "random", "--out", tmp_path / "maps")
        assert cli("map", *options)[0] == 0
        assert len(list((tmp_path / "maps").iterdir())) == 16
        options = ("--sizes", 32, "--sizes", 64, "--mechanisms", "linear", "--mechanisms", "pure")
        options += ("--depth", 1, "--width", 32, "--heads", 2, "--repeats", 1, "--json")
        code, stdout, _ = cli("bench", *options)
        assert code == 0
        cells = {(row["size"], row["mechanism"]) for row in json.loads(stdout)}
        names = ("softmax-fused", "linear", "pure")
        assert cells == {(size, name) for size in (32, 64) for name in names}


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


def test_accuracy_of_the_bundled_model(cli, tmp_path):
    code, stdout, _ = cli("accuracy", "--limit", 40, "--out", tmp_path / "run")
    assert code == 0
    assert "top-1 ↑ [95%]" in stdout and "chance" in stdout
    (summary,) = json.loads((tmp_path / "run" / "summary.json").read_text())["accuracy"]
    assert summary["top1"]["n"] == 40 and summary["top1"]["mean"] > 0.7


def test_an_interrupted_run_says_so(cli, monkeypatch):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("infsa_explain.evaluate.measure", stop)
    code, _, stderr = cli("morf", "--limit", 1)
    kept = "nothing is kept: with --out, --resume could go on from here\n"
    assert (code, stderr) == (130, kept + "interrupted\n")


def test_map_writes_an_overlay_and_the_raw_map(cli, tmp_path):
    photo = tmp_path / "a photo, wide.png"
    pixels = np.random.default_rng(0).integers(0, 256, (90, 140, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(photo)
    out = tmp_path / "maps"
    code, stdout, _ = cli("map", photo, "--method", "visits,linear", "--layer", 0, "--out", out)
    assert code == 0
    stem = "a_photo_wide.png"
    names = [f"{stem}.{m}.layer-0.{e}" for m in ("visits", "linear") for e in ("npy", "png")]
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    assert len(stdout.split("\n")) == 4 + 1
    raw = np.load(out / f"{stem}.visits.layer-0.npy")
    assert raw.shape == (14, 14)
    assert raw.sum() == pytest.approx(1, abs=1e-5)
    with Image.open(out / f"{stem}.visits.layer-0.png") as picture:
        assert picture.size[0] > 600


def test_models_and_methods_are_listed(cli):
    code, stdout, _ = cli("models")
    assert code == 0
    assert "infvit_linear_digits" in stdout
    assert "infvit_pure_24l" in stdout
    code, stdout, _ = cli("methods")
    assert code == 0
    assert "visits" in stdout
    assert "centre" in stdout


def test_train_writes_a_model_that_map_takes(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "infsa_explain.training.recipes.RECIPES", {"photo-digits": {"epochs": 1, "epoch_size": 32}}
    )
    monkeypatch.setattr("infsa_explain.training.loop.HELD_OUT", 16)
    out = tmp_path / "run"
    train = ("train", "--epochs", 1, "--batch-size", 16, "--out", out)
    code, stdout, _ = cli(*train)
    assert code == 0
    assert "epoch 1/1: loss" in stdout
    checkpoint = out / "infvit_linear_digits.safetensors"
    assert cli("map", "--model", checkpoint, "--out", tmp_path / "maps")[0] == 0
    assert len(list((tmp_path / "maps").iterdir())) == 8
    code, _, stderr = cli(*train)
    assert code == 2
    assert "--resume" in stderr


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


def test_a_file_that_is_no_image_and_an_empty_folder(cli, tmp_path):
    text = tmp_path / "text.jpg"
    text.write_text("not an image")
    code, _, stderr = cli("map", text, "--out", tmp_path / "out")
    assert code == 2
    assert "text.jpg" in stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "empty").mkdir()
    code, _, stderr = cli("morf", "--data", tmp_path / "empty")
    assert code == 2
    assert "empty" in stderr


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
        (["morf", "--help"], "MoRF-AOC", []),
        (["models"], "infvit_linear_digits", []),
        (["methods"], "visits", ["numpy", "torch"]),
    ],
)
def test_what_answers_at_once_imports_nothing_heavy(command, says, imports):
    script = (
        f"import sys; sys.argv = ['x', *{command}]\n"
        "from infsa_explain.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as stop: code = stop.code\n"
        "heavy = 'cv2 matplotlib numpy scipy sklearn timm torch torchvision'.split()\n"
        "print(code, [name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().splitlines()[-1] == f"0 {imports}"
    assert says in done.stdout


def test_no_command_shows_the_help(cli):
    code, stdout, _ = cli()
    assert code == 2
    assert "morf" in stdout
    assert "train" in stdout
