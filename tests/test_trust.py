"""Files of strangers stay data, nothing is written elsewhere, and no run is lost or mixed up."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shlex
from pathlib import Path

import numpy as np
import pytest
import timm
from PIL import Image
from report_runs import write_run
from safetensors.torch import save_file
from timm.models import VisionTransformer

from infsa_explain.data import ImageFolder, Sample, TableImages, open_data, open_label_map
from infsa_explain.data.annotations import read_coco
from infsa_explain.evaluate import RunFolder, Shard, read_rows
from infsa_explain.files import replacing, write_text
from infsa_explain.models.checkpoints import read_checkpoint, save
from infsa_explain.models.loading import load
from infsa_explain.report import write_report
from infsa_explain.viewing.writing import write_maps

OUTSIDE = ("../../etc/passwd.jpg", "/etc/passwd.jpg", "a/../../b.jpg", "..", "a\0.jpg")
CONFIG = {"data": {"images": 4}, "models": {"m": {}}, "measures": {}}


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(path)


def coco(path, **change):
    content = {
        "images": [{"id": 1, "file_name": "a.png"}],
        "annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 2, 2]}],
        "categories": [{"id": 1, "name": "cat"}],
    }
    path.write_text(json.dumps(content | change))
    return path


class TestAnnotationsLeadNowhereElse:
    @pytest.mark.parametrize("name", OUTSIDE)
    def test_coco_and_csv(self, tmp_path, name):
        picture(tmp_path / "a.png")
        path = coco(tmp_path / "a.json", images=[{"id": 1, "file_name": name}])
        with pytest.raises(ValueError, match=r"images\[0\]: .* must be the path of an image rela"):
            open_data(path)
        (tmp_path / "a.csv").write_text(f"path,label,x0,y0,x1,y1\n{name},cat,,,,\n")
        with pytest.raises(ValueError, match="line 2: path: .* must be the path of an image rela"):
            open_data(tmp_path / "a.csv")

    @pytest.mark.parametrize("name", ["../../secret", "..", ".", "n01/../../../secret", "/etc"])
    def test_wnids_of_tiny_imagenet(self, tmp_path, name):
        picture(tmp_path / "secret/images/s.png")
        picture(tmp_path / "tiny/train/n01/images/a.png")
        for wnids, good in (("n01", True), (name, False)):
            (tmp_path / "tiny/wnids.txt").write_text(f"{wnids}\n")
            if good:
                assert len(ImageFolder(tmp_path / "tiny", split="train")) == 1
                continue
            with pytest.raises(ValueError, match=r"wnids.txt': .* is not the name of a folder"):
                ImageFolder(tmp_path / "tiny", split="train")

    def test_lists_of_voc_only_choose(self, tmp_path):
        picture(tmp_path / "VOC/JPEGImages/a.png")
        picture(tmp_path / "secret.png")
        lists = tmp_path / "VOC/ImageSets/Main"
        lists.mkdir(parents=True)
        (lists / "val.txt").write_text("../../secret\n/etc/passwd\na\n")
        data = ImageFolder(tmp_path / "VOC")
        assert [sample.image_id for sample in data] == ["JPEGImages/a.png"]


class TestOddFiles:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"images": [{"id": 1, "file_name": f"{n}.png"} for n in "ab"]}, r"images\[1\]: 1"),
            ({"categories": [{"id": 1, "name": n} for n in "ab"]}, r"categories\[1\]: 1"),
        ],
    )
    def test_an_id_that_two_have_in_common(self, tmp_path, change, message):
        """One of them would lose its boxes to the other."""
        with pytest.raises(ValueError, match=f"{message} is listed twice"):
            read_coco(coco(tmp_path / "a.json", **change))

    def test_a_key_that_is_there_twice(self, tmp_path):
        (tmp_path / "a.json").write_text('{"cat": 0, "dog": 1, "cat": 2}')
        with pytest.raises(ValueError, match=r"a.json' .* an object has the key 'cat' 2 times"):
            open_label_map(tmp_path / "a.json")
        (tmp_path / "a.json").write_text('\ufeff{"cat": 0, "dog": 1}')  # a byte order mark
        assert open_label_map(tmp_path / "a.json").find("dog") == 1

    @pytest.mark.parametrize("label", ["NaN", "Infinity", "1e400", "-1", "1.5", "true", '"1"'])
    def test_labels_that_are_none(self, tmp_path, label):
        (tmp_path / "a.json").write_text(f'{{"cat": {label}}}')
        with pytest.raises(ValueError, match="the label of 'cat' must be a whole number"):
            open_label_map(tmp_path / "a.json")

    def test_names_are_text_whatever_they_are(self, tmp_path):
        picture(tmp_path / "a.png")
        names = ["9" * 5000 + "x", "٣" * 5000, "nul\0", "=cmd()", "<b>", "\x1b[31m"]
        rows = [f"a.png,{name},,,," for name in names]
        (tmp_path / "a.csv").write_text("\n".join(["path,label,x0,y0,x1,y1", *rows]), "utf-8")
        data = TableImages(tmp_path / "a.csv")
        assert set(data.classes) == set(names)
        assert data.labels == [None]

    def test_a_path_that_is_too_long_fails_alone(self, tmp_path):
        picture(tmp_path / "a.png")
        rows = ["path,label,x0,y0,x1,y1", "n" * 300 + ".png,cat,,,,", "a.png,cat,,,,"]
        (tmp_path / "a.csv").write_text("\n".join(rows))
        data = open_data(tmp_path / "a.csv")
        assert data[1].label == 0
        with pytest.raises(ValueError, match="does not exist"):
            data[0]
        for wrong in ("x" * 5000, "x\0"):
            with pytest.raises(ValueError, match="is neither 'photo-digits' nor"):
                open_data(wrong)


def test_maps_stay_in_their_folder(tmp_path):
    """Whatever an image is called."""
    model = VisionTransformer(img_size=16, patch_size=8, embed_dim=8, depth=1, num_heads=1).eval()
    pixels = np.zeros((16, 16, 3), dtype=np.uint8)
    before = set(tmp_path.iterdir())
    for name in ("../../evil", "/etc/evil", "..", "a/../../b", "-rf *", "nul\0", "\x1b[31m\n"):
        sample = Sample(pixels, None, np.zeros((0, 4), np.float32), name)
        written = list(write_maps(model, sample, ["centre"], tmp_path / "out"))
        assert all(path.parent == tmp_path / "out" and path.exists() for path in written)
        assert all(path.name.isprintable() and path.name[0] not in "-." for path in written)
    assert set(tmp_path.iterdir()) - before == {tmp_path / "out"}


class TestWholeFiles:
    def test_an_error_leaves_what_was_there(self, tmp_path):
        path = tmp_path / "summary.json"
        write_text(path, "ü before")
        with pytest.raises(RuntimeError, match="in the middle"), replacing(path) as temporary:
            assert temporary.suffix == ".json"
            temporary.write_text("half")
            raise RuntimeError("in the middle")
        assert path.read_bytes() == "ü before".encode()
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
    def test_a_full_disk_leaves_what_was_there(self, tmp_path):
        path = tmp_path / "summary.json"
        write_text(path, "before")
        with pytest.raises(OSError, match="No space left"), replacing(path) as temporary:
            temporary.symlink_to("/dev/full")
            temporary.write_text("after")
        assert path.read_text() == "before"
        assert list(tmp_path.iterdir()) == [path]

    def test_a_link_is_replaced_and_not_followed(self, tmp_path):
        (tmp_path / "mine.txt").write_text("mine")
        (tmp_path / "summary.md").symlink_to("mine.txt")
        write_text(tmp_path / "summary.md", "theirs")
        assert (tmp_path / "mine.txt").read_text() == "mine"


def images(folder):
    return [row["image"] for row in read_rows(folder)]


def some(folder, names):
    for name in names:
        folder.write({"image": name})
        folder.commit("m", 1)


class TestRunFolder:
    def test_a_run_that_lost_its_configuration_is_not_written_over(self, tmp_path):
        with RunFolder(tmp_path, CONFIG) as folder:
            some(folder, "ab")
        (tmp_path / "config.json").unlink()
        with pytest.raises(ValueError, match="holds a run already"):
            RunFolder(tmp_path, CONFIG)
        with pytest.raises(ValueError, match=r"it has no config\.json"):
            RunFolder(tmp_path, CONFIG, resume=True)
        assert (tmp_path / "rows.1-of-1.jsonl").read_text().count("\n") == 2

    def test_a_run_that_another_process_begins_meanwhile(self, tmp_path):
        with RunFolder(tmp_path / "run", CONFIG) as mine:
            with RunFolder(tmp_path / "run", CONFIG) as theirs:
                some(theirs, "ab")
            with pytest.raises(ValueError, match="holds a run already"):
                mine.write({"image": "c"})
        assert images(tmp_path / "run") == ["a", "b"]

    def test_a_shard_of_another_run_that_begins_meanwhile(self, tmp_path):
        other = CONFIG | {"measures": {"morf": {}}}
        with RunFolder(tmp_path / "run", other, shard=Shard(1, 2)) as mine:
            with RunFolder(tmp_path / "run", CONFIG, shard=Shard(2, 2)) as theirs:
                some(theirs, "cd")
            with pytest.raises(ValueError, match="holds another run: measures morf"):
                mine.write({"image": "a"})
        assert images(tmp_path / "run") == ["c", "d"]

    @pytest.mark.skipif(os.name != "posix", reason="Windows has no such locks")
    def test_two_processes_do_not_write_the_same_rows(self, tmp_path):
        """Locks are those of open files, so that one process stands for two."""
        with RunFolder(tmp_path, CONFIG) as folder:
            some(folder, "ab")
            second = RunFolder(tmp_path, CONFIG, resume=True)
            with pytest.raises(ValueError, match="another process is writing to .*rows.1-of-1"):
                second.__enter__()
            some(folder, "c")
        with second:
            some(second, "d")
        assert images(tmp_path) == ["a", "b", "c", "d"]

    def test_force_forgets_what_was_said_of_the_old_run(self, tmp_path):
        with RunFolder(tmp_path, CONFIG) as folder:
            some(folder, "ab")
        for name in ("summary.json", "summary.md", "report.html", "notes.txt"):
            (tmp_path / name).write_text("of a and b")
        with RunFolder(tmp_path, CONFIG, force=True) as folder:
            some(folder, "c")
        names = {"config.json", "rows.1-of-1.jsonl", "progress.1-of-1.json", "notes.txt"}
        assert {path.name for path in tmp_path.iterdir()} == names
        assert images(tmp_path) == ["c"]

    def test_force_of_no_run_leaves_what_is_there(self, tmp_path):
        (tmp_path / "summary.md").write_text("my own")
        with RunFolder(tmp_path, CONFIG, force=True) as folder:
            some(folder, "a")
        assert (tmp_path / "summary.md").read_text() == "my own"

    def test_rows_that_were_lost_are_missed(self, tmp_path):
        """And not done again as zeros, or left out of the means."""
        rows = tmp_path / "rows.1-of-1.jsonl"
        with RunFolder(tmp_path, CONFIG) as folder:
            some(folder, "ab")
        whole = rows.read_bytes()
        for left in (whole[:-3], b""):
            rows.write_bytes(left)
            message = f"has lost rows: {len(whole)} bytes were written, {len(left)} are left"
            with pytest.raises(ValueError, match=message):
                read_rows(tmp_path)
            with (
                pytest.raises(ValueError, match=message),
                RunFolder(tmp_path, CONFIG, resume=True),
            ):
                pass
        rows.unlink()
        with pytest.raises(ValueError, match="0 are left; remove it and .*progress.1-of-1.json"):
            read_rows(tmp_path)
        (tmp_path / "progress.1-of-1.json").unlink()
        assert read_rows(tmp_path) == []

    @pytest.mark.parametrize("name", ["config.json", "progress.1-of-1.json", "rows.1-of-1.jsonl"])
    def test_a_damaged_file_is_named(self, tmp_path, name):
        with RunFolder(tmp_path, CONFIG) as folder:
            some(folder, "ab")
        size = len((tmp_path / name).read_bytes())
        (tmp_path / name).write_bytes(b"\0" * size)
        with pytest.raises(ValueError, match=f"{name}'?(,| is damaged).*") as caught:
            read_rows(tmp_path)
        assert str(caught.value).count("\n") == 0

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
    def test_a_full_disk_keeps_the_rows_so_far(self, tmp_path):
        with RunFolder(tmp_path, CONFIG) as folder:
            some(folder, "ab")
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, folder._file.fileno())
            os.close(full)
            with pytest.raises(OSError, match="No space left on device: the rows so far are kept"):
                folder.write({"image": "c"})
        assert images(tmp_path) == ["a", "b"]
        with RunFolder(tmp_path, CONFIG, resume=True) as folder:
            assert folder.done == {"m": 2}
            some(folder, "cd")
        assert images(tmp_path) == ["a", "b", "c", "d"]


def test_names_leave_the_terminal_alone(cli, tmp_path):
    """In what a command says of images and of the folder they lie in."""
    folder = tmp_path / "set\x1b[2J"
    picture(folder / "good.png")
    (folder / "bad\x1b[31m\n\u202ered.png").write_bytes(b"no image")
    options = ("--model", "vit_softmax_photos", "--methods", "centre", "--limit", 2)
    code, stdout, stderr = cli("morf", "--data", folder, *options, "--steps", 2)
    assert code == 0
    assert "set\\x1b[2J, 2 images" in stdout
    left_out, total = stderr.splitlines()
    assert left_out.startswith("left out: image '") and "bad\\x1b[31m\\n\\u202ered.png" in left_out
    assert total == "1 times an image could not be read and was left out"
    assert all(line.isprintable() for line in (stdout + stderr).splitlines())


def test_a_command_on_a_full_disk(cli, tmp_path, monkeypatch):
    """One line, the rows so far, and after some room is made the numbers of a run undisturbed."""
    options = ("accuracy", "--limit", 20, "--batch-size", 4, "--out")
    assert cli(*options, tmp_path / "whole")[0] == 0
    synced, sync = [], os.fsync

    def fsync(descriptor):
        synced.append(descriptor)
        if len(synced) == 6:  # the configuration's, then two for every batch
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    code, stdout, stderr = cli(*options, tmp_path / "run")
    assert (code, stdout, stderr.count("\n")) == (1, "", 1)
    assert "error: [Errno 28] No space left on device: the rows so far are kept" in stderr
    assert len(read_rows(tmp_path / "run")) == 8
    monkeypatch.undo()
    assert cli(*options, tmp_path / "run", "--resume")[0] == 0
    for name in ("rows.1-of-1.jsonl", "summary.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


class TestCheckpointsNameNothingElse:
    @pytest.mark.parametrize(
        "extra",
        [
            {"checkpoint_path": "elsewhere.pt"},
            {"pretrained": True},
            {"pretrained_cfg": {"file": "elsewhere.pt"}},
            {"cache_dir": "/tmp/elsewhere"},
        ],
        ids=str,
    )
    def test_arguments(self, tmp_path, extra):
        """Timm would read or fetch what they name."""
        path = tmp_path / "a.safetensors"
        model = timm.create_model("infvit_linear_digits", depth=1, embed_dim=16, num_heads=2)
        save(model, path)
        weights, metadata = read_checkpoint(path)
        metadata["arguments"] = json.dumps(json.loads(metadata["arguments"]) | extra)
        save_file(weights, path, metadata)
        with pytest.raises(ValueError, match=f"its arguments hold {next(iter(extra))}, which"):
            load(path)


def test_maps_of_long_and_of_equal_names(cli, tmp_path):
    long = "猫" * 80 + ".png"
    for name in (long, "a b.png", "a_b.png"):
        picture(tmp_path / name)
    options = ("--method", "centre", "--out", tmp_path / "out")
    assert cli("map", tmp_path / long, tmp_path / "a b.png", *options)[0] == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        f"{stem}.centre.{e}" for stem in ("猫" * 66, "a_b.png") for e in ("npy", "png")
    }


def test_maps_of_images_with_one_name(cli, tmp_path):
    for folder in "abc":
        picture(tmp_path / folder / "x.png")
    images = [tmp_path / folder / "x.png" for folder in "abc"]
    code, stdout, _ = cli("map", *images, "--method", "centre", "--out", tmp_path / "out")
    names = [
        f"{stem}.centre.{e}" for stem in ("x.png", "x.png-2", "x.png-3") for e in ("npy", "png")
    ]
    assert code == 0 and stdout.split() == [str(tmp_path / "out" / name) for name in names]
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(names)


def test_of_several_images_one_that_is_broken_is_left_out(cli, tmp_path):
    picture(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    picture(tmp_path / "c.png")
    options = ("--method", "centre", "--out", tmp_path / "out")
    code, stdout, stderr = cli("map", *(tmp_path / f"{x}.png" for x in "abc"), *options)
    assert code == 0
    assert [Path(line).name for line in stdout.splitlines()] == [
        f"{x}.png.centre.{e}" for x in "ac" for e in ("npy", "png")
    ]
    assert stderr.startswith("left out: image '") and stderr.count("\n") == 1
    code, stdout, stderr = cli("map", *[tmp_path / "b.png"] * 2, *options)
    assert (code, stdout, stderr.splitlines()[-1]) == (
        2, "", "error: none of the 2 images could be read"
    )  # fmt: skip


def test_a_report_that_fails_leaves_the_one_before(tmp_path, monkeypatch):
    rows = [
        {
            "measure": "morf", "model": "ü", "checkpoint": "", "image": str(i), "method": "centre",
            "order": order, "fill": "mean", "aoc": None, "auc": 0.5, "tied": 0.0,
            "fractions": [0.0, 1.0], "probabilities": [1.0, 0.0],
        }
        for i in range(2)
        for order in ("morf", "lerf")
    ]  # fmt: skip
    write_report(tmp_path, rows)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert {path.name for path in before} == {
        "summary.json", "summary.md", "curves.csv", "curves.png", "curves.svg"
    }  # fmt: skip
    assert "ü" in (tmp_path / "curves.csv").read_text("utf-8")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(tmp_path, [row | {"auc": 0.1} for row in rows])
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_summaries_are_json(cli):
    """Which has no NaN: the interval of a single image is null."""
    code, stdout, _ = cli("sanity", "--limit", 1, "--methods", "degree", "--draws", 1, "--json")
    assert code == 0
    (summary,) = json.loads(stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert summary["stability"]["low"] is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "hf-hub:some/one"], "'hf-hub:some/one' is not bundled, and nothing is downl"),
        (["--model", "vit_base_patch16_224"], "if you trust it, add --model vit_base_patch16_224"),
        (["--model", "local-dir:/tmp"], "the run's model 'local-dir:/tmp' is not bundled"),
        (["--model", "gone.safetensors"], "the run's checkpoint 'gone.safetensors' is not there"),
        (["--model", "hf-hub:some/one", "--checkpoint", "here.pt"], "'hf-hub:some/one' is not"),
        (["--model", "vit_tiny_patch16_224", "--checkpoint", "gone.pt"], "'gone.pt' is not there"),
        ([], "the run's model 'm' is not bundled"),
    ],
    ids=str,
)
def test_a_run_folder_has_nothing_downloaded(cli, tmp_path, monkeypatch, options, said):
    """A stranger may have written which models it is of; the user may name them."""
    asked = []

    def load(name, *, checkpoint, device):
        asked.append((name, checkpoint))
        raise ValueError(f"no {name} here")

    monkeypatch.setattr("infsa_explain.models.loading.load", load)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.pt").touch()
    source = {"data": "photo-digits", "split": "val", "limit": 6, "seed": 0}
    command = shlex.join(["python", "-m", "infsa_explain", "morf", *options])
    run = write_run(tmp_path / "run", more={"source": source, "command": command})
    code, _, stderr = cli("report", run)
    assert code == 0 and stderr.startswith("no images: the run's ") and said in stderr
    assert stderr.count("\n") == 1 and (run / "report.html").exists() and asked == []
    named = ("--model", "hf-hub:some/one", "--checkpoint", "mine.pt")
    assert cli("report", run, *named) == (2, "", "error: no hf-hub:some/one here\n")
    assert asked == [("hf-hub:some/one", Path("mine.pt"))]


def test_a_run_folder_may_name_files_that_are_there(cli, tmp_path, monkeypatch):
    """They are read as data."""
    (tmp_path / "here.pt").write_bytes(pickle.dumps(print))
    monkeypatch.chdir(tmp_path)
    source = {"data": "photo-digits", "split": "val", "limit": 6, "seed": 0}
    more = {"source": source, "command": "morf --model vit_tiny_patch16_224 --checkpoint here.pt"}
    code, _, stderr = cli("report", write_run(tmp_path / "run", more=more))
    assert code == 0
    assert stderr.startswith("no images: cannot read here.pt as a checkpoint of weights: ")


@pytest.mark.parametrize("name", ["recipe.json", "last.pt"])
def test_a_damaged_training_run_is_named(cli, tmp_path, monkeypatch, name):
    recipes = {"photo-digits": {"epochs": 1, "epoch_size": 4, "batch_size": 4}}
    monkeypatch.setattr("infsa_explain.training.recipes.RECIPES", recipes)
    monkeypatch.setattr("infsa_explain.training.loop.HELD_OUT", 2)
    monkeypatch.setattr("infsa_explain.training.loop.CARD_HELD_OUT", 2)
    assert cli("train", "--out", tmp_path)[0] == 0
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    code, _, stderr = cli("train", "--out", tmp_path, "--resume")
    assert code == 2 and stderr.count("\n") == 1 and name in stderr
