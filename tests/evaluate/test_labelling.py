"""Labels that a measure compares with a model's outputs are the model's, whatever measures."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from infsa_explain.__main__ import main
from infsa_explain.data import PhotoDigits, open_data
from infsa_explain.evaluate import Accuracy, Boxes, Morf, describe_run, measure
from infsa_explain.models.loading import load
from infsa_explain.vits.preprocessing import preprocess

DIGITS = PhotoDigits("val", 60)
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
MORF = {"methods": ("degree",), "steps": 2}


@pytest.fixture(scope="module")
def model():
    return load("infvit_linear_digits")


@pytest.fixture(scope="module")
def predicted(model):
    """The class predicted for each of the digits, without any of our measures."""
    with torch.no_grad():
        logits = model(preprocess(model, [sample.image for sample in DIGITS]))
    return logits.argmax(-1).tolist()


def folders(root, names):
    """Digits as PNG files in a folder for each digit named."""
    for i, sample in enumerate(DIGITS):
        if sample.label in names:
            folder = root / names[sample.label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(sample.image).save(folder / f"{i:02}.png")
    return root


def top1(model, data, **options):
    rows = measure(model, data, Accuracy(), **options)
    return np.mean([row["rank"] == 0 for row in rows])


def expected(predicted, label_of):
    """Top-1 where the digits named have these labels."""
    pairs = [(k, s.label) for k, s in zip(predicted, DIGITS, strict=True) if s.label in label_of]
    return np.mean([k == label_of[digit] for k, digit in pairs])


def right(predicted, digits):
    return expected(predicted, {digit: digit for digit in digits})


@pytest.fixture
def cli(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["infsa-explain", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return run


class TestAccuracy:
    @pytest.mark.parametrize("digits", [(3, 5, 9), (0, 1, 2, 4, 5, 6, 7, 8, 9)])
    def test_of_some_digits(self, tmp_path, model, predicted, digits):
        """Folders 3, 5 and 9; and a test set that lacks a class."""
        value = right(predicted, digits)
        assert 0.7 < value < 1
        data = open_data(folders(tmp_path / "data", {d: str(d) for d in digits}))
        assert top1(model, data) == pytest.approx(value, abs=1e-12)
        (tmp_path / "names.txt").write_text("\n".join("0123456789"))
        mapped = open_data(tmp_path / "data", label_map=tmp_path / "names.txt")
        assert top1(model, mapped) == pytest.approx(value, abs=1e-12)
        places = {digit: place for place, digit in enumerate(digits)}
        by_position = top1(model, data, labels="position")
        assert by_position == pytest.approx(expected(predicted, places), abs=1e-12)
        assert by_position < value - 0.4

    def test_of_a_model_with_names(self, tmp_path, model, predicted, monkeypatch):
        """Folders sort otherwise than the model's classes, and are spelt otherwise."""
        monkeypatch.setattr(model, "class_names", NAMES)
        data = open_data(folders(tmp_path, {3: "Three", 5: "FIVE ", 9: "nine_"}))
        assert data.classes == ["FIVE ", "Three", "nine_"]
        assert top1(model, data) == pytest.approx(right(predicted, (3, 5, 9)), abs=1e-12)

    def test_of_a_model_without_names(self, model, predicted, monkeypatch):
        monkeypatch.setattr(model, "class_names", None)
        assert top1(model, DIGITS) == pytest.approx(right(predicted, range(10)), abs=1e-12)

    def test_is_refused_where_nothing_matches(self, tmp_path, model):
        data = open_data(folders(tmp_path, {3: "beacon", 5: "monarch", 9: "trolleybus"}))
        for measures in ([Accuracy()], [Morf(**MORF, target="label")], [Accuracy(), Morf(**MORF)]):
            needing = ["accuracy", "morf"][not isinstance(measures[0], Accuracy)]
            message = f"^{needing} needs labels: classes 'beacon', 'monarch', 'trolleybus' of .*map"
            with pytest.raises(ValueError, match=message):
                measure(model, data, *measures)
            with pytest.raises(ValueError, match=message):
                describe_run({"m": model}, data, measures)


class TestWithoutLabels:
    def test_what_needs_none_works(self, tmp_path, model):
        """The same deletion curves and, of boxes that are all the image's own, the same scores."""
        measures = Morf(**MORF), Boxes(methods=("degree",), boxes="label")
        photos = load("infvit_linear_digits")
        photos.class_names = ["ant", "bee", *map(str, range(8))]

        def rows(network):
            found = measure(network, PhotoDigits("val", 4), *measures)
            return found, [{k: v for k, v in row.items() if k != "label"} for row in found]

        (named, values), (bare, same) = rows(model), rows(photos)
        assert values == same
        assert {row["label"] for row in bare} == {None}
        assert {row["label"] for row in named} == {s.label for s in PhotoDigits("val", 4)}
        assert all(row["ap"] is not None for row in bare if row["measure"] == "boxes")

    def test_targets_follow_the_labels(self, tmp_path, model):
        data = open_data(folders(tmp_path, {5: "5", 9: "9"}))
        rows = measure(model, data, Morf(**MORF, target="label"))
        assert {row["image"].split("/")[0]: row["target"] for row in rows} == {"5": 5, "9": 9}
        assert all(row["target"] == row["label"] for row in rows)


class TestWhatARunSays:
    def how(self, model, data, *measures, **options):
        return describe_run({"m": model}, data, measures, **options)["models"]["m"]["labels"]

    def test_in_its_configuration(self, tmp_path, model, monkeypatch):
        root = folders(tmp_path / "data", {3: "3", 5: "5"})
        (tmp_path / "names.txt").write_text("\n".join("0123456789"))
        mapped = open_data(root, label_map=tmp_path / "names.txt")
        assert self.how(model, open_data(root), Accuracy()) == "by name"
        assert self.how(model, mapped, Accuracy()) == f"label map {str(tmp_path / 'names.txt')!r}"
        asked = self.how(model, open_data(root), Accuracy(), labels="position")
        assert asked == "by position, asked for"
        monkeypatch.setattr(model, "class_names", NAMES)
        assert self.how(model, open_data(root), Morf(**MORF)) == "no labels used"
        monkeypatch.setattr(model, "class_names", None)
        nameless = self.how(model, DIGITS, Accuracy())
        assert nameless == "by position: neither side has class names"

    def test_on_its_page(self, cli, tmp_path):
        root = folders(tmp_path / "data", {3: "3", 5: "5"})
        out = tmp_path / "run"
        options = ("morf", "--data", root, "--limit", 3, "--steps", 2, "--methods", "degree")
        assert cli(*options, "--out", out)[0] == 0
        config = json.loads((out / "config.json").read_text())
        assert config["models"]["infvit_linear_digits"]["labels"] == "by name"
        assert config["source"]["labels"] == "auto"
        assert cli("report", out)[0] == 0
        page = (out / "report.html").read_text()
        assert "labels: by name" in page
        assert "as labelled" in page


class TestCommands:
    @pytest.fixture
    def beacons(self, tmp_path):
        return folders(tmp_path / "data", {3: "beacon", 5: "monarch", 9: "trolleybus"})

    @pytest.mark.parametrize(
        "command",
        [
            ("accuracy",),
            ("morf", "--target", "label"),
            ("evaluate", "--metrics", "infidelity", "--target", "label"),
            ("sanity", "--target", "label"),
            ("evaluate", "--metrics", "align,accuracy"),
        ],
    )
    def test_refuse_in_one_line(self, cli, tmp_path, beacons, command):
        code, out, error = cli(*command, "--data", beacons, "--out", tmp_path / "run")
        assert (code, out) == (2, "")
        assert error.startswith("error: ") and error.count("\n") == 1
        assert "'beacon', 'monarch', 'trolleybus'" in error and "--label-map" in error
        assert not (tmp_path / "run").exists()

    def test_and_take_position_or_a_map(self, cli, tmp_path, beacons, predicted):
        options = ("accuracy", "--data", beacons, "--json")
        (summary,) = json.loads(cli(*options, "--labels", "position")[1])
        places = {3: 0, 5: 1, 9: 2}  # of beacon, monarch and trolleybus
        value = expected(predicted, places)
        assert summary["top1"]["mean"] == pytest.approx(value, abs=1e-9)
        assert value < 0.2
        names = list("0123456789")
        names[3], names[5], names[9] = "beacon", "monarch", "trolleybus"
        (tmp_path / "names.txt").write_text("\n".join(names))
        (summary,) = json.loads(cli(*options, "--label-map", tmp_path / "names.txt")[1])
        assert summary["top1"]["mean"] == pytest.approx(right(predicted, (3, 5, 9)), abs=1e-9)
        code, _, error = cli(*options, "--labels", "order")
        assert code == 2 and "--labels must be 'auto', 'name' or 'position', got 'order'" in error
        code, _, error = cli(*options, "--split", "dev")
        assert code == 2 and "--split must be 'train', 'val' or 'test', got 'dev'" in error

    def test_name_the_model_of_several(self, cli, beacons):
        models = ("--model", "infvit_linear_digits", "--model", "vit_softmax_digits")
        code, _, error = cli("accuracy", *models, "--data", beacons)
        assert code == 2 and error.startswith("error: infvit_linear_digits: accuracy needs labels")

    @pytest.mark.shared
    def test_photographs_of_three_classes(self, cli, shared, tmp_path):
        """In folders named as the model's classes, and with the labels that a map gives."""
        tiny = shared / "data" / "tiny-imagenet-10"
        words = {"n02814860": "beacon", "n02279972": "Monarch", "n04487081": "trolley_bus"}
        listing = (tiny / "val" / "val_annotations.txt").read_text().splitlines()
        for name, wnid, *_ in (line.split("\t") for line in listing):
            if wnid in words:
                folder = tmp_path / "data" / words[wnid]
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).symlink_to(tiny / "val" / "images" / name)
        names = list(load("infvit_linear_photos").class_names)
        for name in words.values():
            names[[n.replace("-", "") for n in names].index(name.lower().replace("_", ""))] = name
        (tmp_path / "names.txt").write_text("\n".join(names))
        options = ("accuracy", "--model", "infvit_linear_photos", "--data", tmp_path / "data")
        (named,) = json.loads(cli(*options, "--json")[1])
        (mapped,) = json.loads(cli(*options, "--json", "--label-map", tmp_path / "names.txt")[1])
        assert named["top1"] == mapped["top1"]
        assert named["top1"]["n"] == 150 and named["top1"]["mean"] > 0.7
        code, _, error = cli("accuracy", "--data", tiny, "--limit", 5)
        assert code == 2 and "not among the names of the model's 10 classes ('0', '1'" in error
