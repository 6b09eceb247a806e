"""Pictures and other files: what they are called, what they replace, and where there is no room."""

from __future__ import annotations

import errno
import os
import shutil

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from safetensors import SafetensorError

import infsa_explain
from infsa_explain.data import PhotoDigits
from infsa_explain.drawing.picture_files import check_picture, mark_of, save_picture
from infsa_explain.evaluate import RunFolder
from infsa_explain.files import check_file, check_folder, make_folder, naming, replacing
from infsa_explain.models.checkpoints import save
from infsa_explain.training.loop import train
from infsa_explain.training.recipes import recipe_for
from infsa_explain.viewing.writing import write_maps


@pytest.fixture(scope="module")
def model():
    return infsa_explain.load("infvit_linear_digits")


@pytest.fixture
def photo(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (90, 140, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "cat.png")
    return tmp_path / "cat.png"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class TestNamesOfMaps:
    @pytest.mark.parametrize(
        ("options", "name"),
        [
            ((), "cat.png.visits"),
            (("--layer", "last"), "cat.png.visits"),
            (("--layer", "0"), "cat.png.visits.layer-0"),
            (("--layer", "mean"), "cat.png.visits.layer-mean"),
            (("--head", "2"), "cat.png.visits.head-2"),
            (("--gamma", "0.5"), "cat.png.visits.gamma-0.5"),
            (("--target", "3"), "cat.png.visits"),  # which is of no class
            (("--method", "gradcam", "--target", "3"), "cat.png.gradcam.class-3"),
            (("--method", "rollout", "--layer", "mean"), "cat.png.rollout"),  # of the whole model
            (("--method", "random", "--gamma", "0.5"), "cat.png.random"),
            (("--method", "untrained-visits", "--seed", "0"), "cat.png.untrained-visits"),
            (("--method", "untrained-visits", "--seed", "3"), "cat.png.untrained-visits.seed-3"),
            (
                ("--model", "vit_softmax_digits", "--layer", "1", "--head", "0"),
                "cat.png.vit_softmax_digits.visits.layer-1.head-0",
            ),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
    )
    def test_what_is_not_the_default_is_in_the_name(self, cli, tmp_path, photo, options, name):
        out = tmp_path / "maps"
        code, stdout, _ = cli("map", photo, *options, "--out", out)
        assert code == 0
        assert sorted(contents(out)) == [f"{name}.npy", f"{name}.png"]
        assert stdout.split() == [str(out / f"{name}.npy"), str(out / f"{name}.png")]

    def test_a_checkpoint_has_its_own(self, cli, tmp_path, photo, model):
        save(model, tmp_path / "mine.safetensors")
        out = tmp_path / "maps"
        assert cli("map", photo, "--model", tmp_path / "mine.safetensors", "--out", out)[0] == 0
        options = ("--model", "infvit_linear_digits", "--checkpoint", tmp_path / "mine.safetensors")
        assert cli("map", photo, *options, "--method", "perron", "--out", out)[0] == 0
        names = ["cat.png.infvit_linear_digits.mine.perron", "cat.png.mine.visits"]
        assert sorted(contents(out)) == [f"{n}.{e}" for n in names for e in ("npy", "png")]

    def test_long_names_are_cut_and_stay_apart(self, model, tmp_path):
        sample = PhotoDigits("val")[0]._replace(image_id="x" * 300)
        for target in ("1" * 100 + "2", "1" * 100 + "3"):
            named = infsa_explain.load("infvit_linear_digits")
            named.class_names = ["1" * 100 + str(i) for i in range(10)]
            options = {"name": "m" * 60, "target": target, "layer": 0}
            list(write_maps(named, sample, ["gradcam"], tmp_path, **options))
        names = [path.name for path in tmp_path.iterdir()]
        assert len(names) == 4
        assert {len(name) for name in names} == {244}


class TestWhatIsReplaced:
    def test_the_same_command_writes_its_own_again(self, cli, tmp_path, photo):
        command = ("map", photo, "--method", "visits,gradcam", "--out", tmp_path / "maps")
        assert cli(*command)[0] == 0
        before = contents(tmp_path / "maps")
        for path in (tmp_path / "maps").iterdir():
            os.utime(path, (0, 0))
        code, _, stderr = cli(*command)
        assert (code, stderr) == (0, "")
        assert contents(tmp_path / "maps") == before
        assert all(path.stat().st_mtime > 0 for path in (tmp_path / "maps").iterdir())
        # The photograph may have been edited: it is the same command.
        Image.new("RGB", (50, 50)).save(photo)
        assert cli(*command)[0] == 0
        assert contents(tmp_path / "maps") != before

    def test_another_model_of_one_name(self, cli, tmp_path, photo, model):
        """As of two trainings, whose checkpoints are called alike."""
        out = tmp_path / "maps"
        files = []
        for name in "ab":
            (tmp_path / name).mkdir()
            files.append(tmp_path / name / "m.safetensors")
            trained = infsa_explain.load("infvit_linear_digits")
            if name == "b":
                with torch.no_grad():
                    trained.blocks[3].attn.qkv.weight.mul_(0.5)
            save(trained, files[-1])
        assert cli("map", photo, "--model", files[0], "--out", out)[0] == 0
        before = contents(out)
        code, stdout, stderr = cli("map", photo, "--model", files[1], "--out", out)
        assert (code, stdout, stderr.count("\n")) == (2, "", 1)
        assert "cat.png.m.visits.png exists already, and is not a picture of the same" in stderr
        assert "choose another --out, or --force" in stderr
        assert contents(out) == before
        assert cli("map", photo, "--model", files[1], "--out", out, "--force")[0] == 0
        assert contents(out) != before

    def test_another_image_of_one_name_and_nothing_is_written(self, cli, tmp_path, photo):
        (tmp_path / "other").mkdir()
        shutil.copy(photo, tmp_path / "other" / "cat.png")
        shutil.copy(photo, tmp_path / "other" / "dog.png")
        out = tmp_path / "maps"
        assert cli("map", photo, "--out", out)[0] == 0
        before = contents(out)
        others = (tmp_path / "other" / "dog.png", tmp_path / "other" / "cat.png")
        code, stdout, stderr = cli("map", *others, "--out", out)
        assert (code, stdout, stderr.count("\n")) == (2, "", 1)
        assert contents(out) == before  # not even the dog's

    def test_a_raw_map_without_its_picture(self, cli, tmp_path, photo):
        out = tmp_path / "maps"
        assert cli("map", photo, "--out", out)[0] == 0
        (out / "cat.png.visits.png").unlink()
        code, _, stderr = cli("map", photo, "--out", out)
        assert code == 2 and "visits.npy exists already, without the picture that" in stderr
        # A picture without its raw map, as a kill leaves it, is taken up again.
        assert cli("map", photo, "--out", out, "--force")[0] == 0
        (out / "cat.png.visits.npy").unlink()
        assert cli("map", photo, "--out", out)[0] == 0
        assert len(contents(out)) == 2

    def test_a_file_of_anybody(self, model, tmp_path):
        sample = PhotoDigits("val")[0]
        (tmp_path / "mine.visits.png").write_bytes(b"mine")
        with pytest.raises(ValueError, match="mine.visits.png exists already, and is not"):
            list(write_maps(model, sample, ["visits"], tmp_path, stem="mine"))
        assert contents(tmp_path) == {"mine.visits.png": b"mine"}

    @pytest.mark.parametrize("ending", ["png", "jpg", "JPEG", "svg", "pdf"])
    def test_every_format_knows_what_it_shows(self, tmp_path, ending):
        path = tmp_path / f"a.{ending}"
        drawn = Figure(figsize=(1, 1))
        mark, other = mark_of({"layer": 0}), mark_of({"layer": 1})
        assert mark == mark_of({"layer": 0}) != other
        check_picture(path, mark)
        save_picture(drawn, path, mark, dpi=50)
        check_picture(path, mark)
        check_picture(path, other, force=True)
        with pytest.raises(ValueError, match=f"a.{ending} exists already"):
            check_picture(path, other)


class TestGallery:
    COMMAND = ("gallery", "--model", "infvit_linear_digits", "--methods", "degree", "--limit", 1)

    def test_the_same_again_and_another_not(self, cli, tmp_path):
        out = tmp_path / "sheet.png"
        command = (*self.COMMAND, "--out", out)
        assert cli(*command)[0] == 0
        before = out.read_bytes()
        assert cli(*command)[0] == 0
        assert out.read_bytes() == before
        for change in (
            ("--layer", 0),
            ("--head", 0),
            ("--gamma", 0.5),
            ("--target", "3"),
            ("--methods", "visits"),
            ("--seed", 1),
            ("--model", "infvit_pure_digits"),
        ):
            code, stdout, stderr = cli(*command, *change)
            assert (code, stdout, stderr.count("\n")) == (2, "", 1)
            assert "sheet.png exists already, and is not a picture of the same" in stderr
            assert out.read_bytes() == before
        assert cli(*command, "--layer", 0, "--force")[0] == 0
        assert out.read_bytes() != before

    @pytest.mark.parametrize("name", ["x.gif", "x", "x.npy", "x.tiff", ".png"])
    def test_a_format_that_there_is_not_is_refused_before_any_work(
        self, cli, tmp_path, monkeypatch, name
    ):
        monkeypatch.setattr(
            "infsa_explain.models.loading.load", lambda *_, **__: pytest.fail("loaded")
        )
        code, stdout, stderr = cli(*self.COMMAND, "--out", tmp_path / name)
        assert (code, stdout, stderr.count("\n")) == (2, "", 1)
        assert (
            "--out must be a name with one of the endings .png, .jpg, .jpeg, .svg, .pdf, got"
            in stderr
        )
        assert list(tmp_path.iterdir()) == []

    def test_a_head_goes_with_the_methods_that_are_there_by_default(self, cli, tmp_path):
        command = ("gallery", "--model", "vit_softmax_digits", "--limit", 1, "--head", 1)
        assert cli(*command, "--out", tmp_path / "a.png")[0] == 0
        same = ("--methods", "visits,perron", "--out", tmp_path / "a.png")
        assert cli(*command, *same)[0] == 0  # the same picture

    def test_all_methods_follow_the_target(self, cli, tmp_path):
        """Of a model without a classifier those of a class need its embedding."""
        vit = infsa_explain.load(
            "vit_softmax_digits", pretrained=False, num_classes=0, img_size=32, depth=1
        )
        save(vit, tmp_path / "features.safetensors")
        options = ("--model", tmp_path / "features.safetensors", "--methods", "all", "--limit", 1)
        widths = []
        for more in ((), ("--target", "embedding")):
            out = tmp_path / f"{len(widths)}.png"
            assert cli("gallery", *options, *more, "--out", out)[0] == 0
            with Image.open(out) as sheet:
                widths.append(sheet.size[0])
        assert widths[1] > 1.5 * widths[0]

    @pytest.mark.parametrize("ending", ["svg", "pdf", "jpg"])
    def test_formats(self, cli, tmp_path, ending):
        out = tmp_path / f"sheet.{ending}"
        assert cli(*self.COMMAND, "--out", out)[0] == 0
        start = {"svg": b"<?xml", "pdf": b"%PDF", "jpg": b"\xff\xd8\xff"}[ending]
        assert out.read_bytes().startswith(start)


class TestOutIsOfTheOtherKind:
    @pytest.mark.parametrize("below", ["", "sub/deeper"])
    @pytest.mark.parametrize(
        "command",
        [
            ("map",),
            ("morf", "--limit", 1, "--steps", 2),
            ("bench", "--sizes", 32, "--depth", 1, "--width", 32, "--heads", 2),
            ("train", "--epochs", 1),
        ],
        ids=lambda command: command[0],
    )
    def test_a_file_where_a_folder_is_due(self, cli, tmp_path, command, below):
        (tmp_path / "file").write_text("mine")
        code, stdout, stderr = cli(*command, "--out", tmp_path / "file" / below)
        assert (code, stdout) == (2, "")
        assert stderr == f"error: {tmp_path / 'file'} is a file; --out needs a folder\n"
        assert contents(tmp_path) == {"file": b"mine"}

    def test_a_folder_where_a_file_is_due(self, cli, tmp_path):
        (tmp_path / "sheet.png").mkdir()
        code, _, stderr = cli("gallery", "--out", tmp_path / "sheet.png")
        told = f"error: {tmp_path / 'sheet.png'} is a folder; --out needs the name of a file\n"
        assert (code, stderr) == (2, told)
        (tmp_path / "file").write_text("mine")
        for command in (("gallery",), ("report", tmp_path)):
            code, _, stderr = cli(*command, "--out", tmp_path / "file" / "a.png")
            told = f"error: {tmp_path / 'file'} is a file; --out needs a folder\n"
            assert (code, stderr) == (2, told)

    def test_in_python(self, tmp_path):
        (tmp_path / "file").write_text("mine")
        (tmp_path / "broken").symlink_to("nowhere")
        assert make_folder(tmp_path / "a" / "b").is_dir()
        check_folder("a")
        check_file(tmp_path / "a" / "c.txt")
        for path in ("file", "file/a", "broken"):
            with pytest.raises(ValueError, match="is a file; --out needs a folder"):
                check_folder(tmp_path / path)
        with pytest.raises(ValueError, match="is a folder; --out needs the name of a file"):
            check_file(tmp_path)

    @pytest.mark.parametrize("path", ["", "  "])
    def test_an_empty_path_is_not_the_current_folder(self, path, model, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        words = "^out must be the path of a folder, got an empty path; '.' is the current folder$"
        for write in (
            lambda: check_folder(path),
            lambda: make_folder(path),
            lambda: list(write_maps(model, PhotoDigits("val")[0], ["degree"], path)),
            lambda: RunFolder(path, {}),
            lambda: train(recipe_for("infvit_linear_digits", "photo-digits"), path),
        ):
            with pytest.raises(ValueError, match=words):
                write()
        for write in (lambda: check_file(path), lambda: check_picture(path, "", force=True)):
            with pytest.raises(ValueError, match="^out must be the path of a file, got an empty"):
                write()
        assert not list(tmp_path.iterdir())


class TestFullDisk:
    """The one line names the file and the mend, whichever library ran out of room."""

    SAID = "No space left on device: free some space, or write elsewhere: "

    @pytest.mark.parametrize(
        "error",
        [
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
            OSError("100000 requested and 25584 written"),  # NumPy's
            RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"),
            SafetensorError("Error while serializing: I/O error: No space left on device"),
        ],
        ids=["system", "numpy", "torch", "safetensors"],
    )
    def test_the_file_is_named(self, tmp_path, monkeypatch, error):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))
        path = tmp_path / "a.npy"
        path.write_text("before")
        with pytest.raises(OSError) as caught, replacing(path) as temporary:
            temporary.write_text("half")
            raise error
        assert str(caught.value) == f"[Errno 28] {self.SAID}'{path}'"
        assert contents(tmp_path) == {"a.npy": b"before"}

    def test_other_errors_stay_what_they_are(self, tmp_path):
        path = tmp_path / "a.txt"
        for error, kind in (
            (RuntimeError("in the middle"), RuntimeError),
            (ValueError("no JSON"), ValueError),
            (FileNotFoundError(errno.ENOENT, "No such file", "b.txt"), FileNotFoundError),
        ):
            with pytest.raises(kind) as caught, naming(path):
                raise error
            assert caught.value is error
        with pytest.raises(OSError, match=r"Input/output error: '.*a.txt'"), naming(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def test_a_full_disk_is_no_excuse_for_a_wrong_value(self, tmp_path, monkeypatch):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))
        with pytest.raises(ValueError, match="no JSON"), naming(tmp_path / "a.txt"):
            raise ValueError("no JSON")

    @pytest.mark.parametrize(
        ("command", "file"),
        [
            (("map",), "photo-digits_val_0_0.visits.png"),
            (("gallery", "--limit", 1, "--methods", "degree"), ""),
            (("train", "--epochs", 1, "--batch-size", 16), "recipe.json"),
        ],
        ids=["map", "gallery", "train"],
    )
    def test_of_a_command(self, cli, tmp_path, monkeypatch, command, file):
        def full(descriptor):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)
        out = tmp_path / "sheet.png"
        code, stdout, stderr = cli(*command, "--out", out)
        assert (code, stdout) == (1, "")
        assert stderr == f"error: [Errno 28] {self.SAID}'{out / file if file else out}'\n"
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
    def test_of_standard_output(self, tmp_path):
        import subprocess
        import sys

        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "infsa_explain", "models"],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert done.returncode == 1
        told = "No space left on device: the standard output could not be written"
        assert done.stderr == f"error: [Errno 28] {told}\n"
