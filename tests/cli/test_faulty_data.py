"""Images and annotations that cannot be read, and tables of nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image


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
