"""Training: what is written, that it repeats and resumes exactly, and windows over digits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

import infsa_explain.training.loop as training
from infsa_explain.cli import command_line
from infsa_explain.data import PhotoDigits, open_data
from infsa_explain.data.digits import DIGIT_SIDE
from infsa_explain.models.checkpoints import read_checkpoint, save
from infsa_explain.models.conversion import convert
from infsa_explain.models.loading import load
from infsa_explain.training import recipes
from infsa_explain.training.curriculum import window, window_side
from infsa_explain.training.loop import train
from infsa_explain.training.recipes import RECIPES, Recipe, has_bfloat16, recipe_for
from infsa_explain.vits.preprocessing import preprocess

TINY = {"depth": 1, "embed_dim": 16, "num_heads": 2}
DIGITS = Recipe(
    "infvit_linear_digits",
    epochs=3,
    epoch_size=32,
    batch_size=16,
    warmup_epochs=1,
    window_epochs=1,
    drop_path=0.1,
    model_args=TINY,
)


class Killed(Exception):
    """The end of a run at a moment of our choice."""


@pytest.fixture(autouse=True)
def few_held_out(monkeypatch):
    monkeypatch.setattr(training, "HELD_OUT", 40)
    monkeypatch.setattr(training, "CARD_HELD_OUT", 40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """ImageFolder's layout: three classes of colour, 17 images to train on, 6 held out."""
    root, rng = tmp_path_factory.mktemp("colours"), np.random.default_rng(0)
    for split, count in (("train", 17), ("val", 6)):
        for i in range(count):
            name = ("blue", "green", "red")[i % 3]
            image = rng.integers(0, 100, (40, 48, 3), dtype=np.uint8)
            image[..., ("red", "green", "blue").index(name)] += 150
            (root / split / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(root / split / name / f"{i}.png")
    return root


@pytest.fixture
def colours(folder):
    return Recipe(
        "infvit_pure_photos",
        data=str(folder),
        epochs=3,
        batch_size=16,
        warmup_epochs=1,
        mixup=0.4,
        cutmix=0.5,
        erasing=0.5,
        model_args=TINY | {"img_size": 32},
    )


@pytest.fixture(params=["digits", "colours"])
def recipe(request, colours):
    return DIGITS if request.param == "digits" else colours


def weights(path):
    return read_checkpoint(path)[0]


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def log(out):
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


class TestARun:
    def test_writes_what_load_takes(self, tmp_path, recipe):
        """The card's accuracy is that of the file, image by image."""
        path = train(recipe, tmp_path)
        assert path == tmp_path / f"{recipe.model}.safetensors"
        card = json.loads(path.with_suffix(".json").read_text())
        model = load(path)
        data = PhotoDigits("val", 40) if recipe is DIGITS else open_data(recipe.data, split="val")
        assert model.class_names == data.classes == card["classes"]
        with torch.no_grad():
            hits = [
                int(model(preprocess(model, sample.image)).argmax()) == sample.label
                for sample in (data[i] for i in range(len(data)))
            ]
        assert card["accuracy"] == pytest.approx(np.mean(hits), abs=1e-7)
        assert card["images"] == len(data)
        assert card["parameters"] == sum(p.numel() for p in model.parameters())
        # A card is passed on: it names the data, and not where they lie on this machine.
        assert Recipe(**card["recipe"]) == replace(recipe, data=data.name)
        assert Recipe(**json.loads((tmp_path / "recipe.json").read_text())) == recipe
        text = path.with_suffix(".md").read_text()
        assert f"accuracy | {card['accuracy']:.1%} [" in text
        assert ("CC BY 4.0" in text) == (recipe is DIGITS)
        lines = log(tmp_path)
        assert [line["epoch"] for line in lines] == [0, 1, 2]
        gamma = model.blocks[0].attn.gamma
        assert card["gamma"] == [gamma.min().item(), gamma.max().item()]
        # float16 rounds the logits of γ, near 2.94, by at most 2⁻¹⁰, and γ by a twentieth of it.
        assert lines[-1]["gamma"] == pytest.approx(card["gamma"], abs=2e-4)

    def test_reports_every_step_and_epoch(self, tmp_path):
        steps, epochs = [], []
        train(DIGITS, tmp_path, on_step=lambda *step: steps.append(step), on_epoch=epochs.append)
        assert steps == [(done, 6) for done in range(1, 7)]
        assert [
            {k: list(v) if k == "gamma" else v for k, v in vars(e).items() if k != "seconds"}
            for e in epochs
        ] == log(tmp_path)

    def test_learns_colours(self, tmp_path, colours):
        path = train(replace(colours, epochs=15, lr=3e-3, ema_decay=0.5, erasing=0.0), tmp_path)
        assert json.loads(path.with_suffix(".json").read_text())["accuracy"] == 1.0

    def test_the_softmax_twin_trains_too(self, tmp_path):
        path = train(replace(DIGITS, model="vit_softmax_digits", epochs=1), tmp_path)
        card = json.loads(path.with_suffix(".json").read_text())
        assert card["gamma"] is None
        assert card["attention"] == "Attention"
        assert card["dead_heads"] == 0
        assert "γ" not in path.with_suffix(".md").read_text()

    def test_bfloat16(self, tmp_path):
        single, half = (
            weights(train(replace(DIGITS, amp=amp, epochs=1), tmp_path / str(amp)))
            for amp in (False, True)
        )
        assert not equal(single, half)
        # Two steps of Adam at lr up to 1e-3, of either sign.
        for key in single:
            torch.testing.assert_close(half[key], single[key], rtol=1e-3, atol=5e-3)

    def test_init_is_where_it_starts(self, tmp_path):
        """With a learning rate of zero it is also where it ends."""
        torch.manual_seed(5)
        start = timm.create_model(DIGITS.model, **TINY)
        save(start, tmp_path / "a.safetensors")
        recipe = replace(DIGITS, lr=0.0, epochs=1, init=str(tmp_path / "a.safetensors"))
        path = train(recipe, tmp_path / "run")
        for key, value in weights(path).items():
            torch.testing.assert_close(value, start.state_dict()[key].half(), rtol=1e-3, atol=1e-6)

    def test_a_loss_that_is_not_finite(self, tmp_path):
        start = timm.create_model(DIGITS.model, **TINY)
        torch.nn.init.constant_(start.head.bias, torch.nan)
        save(start, tmp_path / "a.safetensors")
        with pytest.raises(FloatingPointError, match="the loss is nan in epoch 0, step 0"):
            train(replace(DIGITS, init=str(tmp_path / "a.safetensors")), tmp_path / "run")

    def test_images_without_labels(self, tmp_path):
        (tmp_path / "images").mkdir()
        Image.new("RGB", (32, 32)).save(tmp_path / "images" / "a.png")
        recipe = Recipe("infvit_linear_photos", data=str(tmp_path / "images"), model_args=TINY)
        with pytest.raises(ValueError, match="label"):
            train(recipe, tmp_path / "run")

    def test_an_unknown_model(self, tmp_path):
        with pytest.raises(ValueError, match="unknown model 'infvit_liner_digits'; did you mean"):
            train(replace(DIGITS, model="infvit_liner_digits"), tmp_path)
        with pytest.raises(ValueError, match="must be a timm VisionTransformer, got resnet18"):
            train(replace(DIGITS, model="resnet18", drop_path=0.0, model_args={}), tmp_path / "b")


class TestRepeating:
    def test_two_runs_agree_and_seeds_differ(self, tmp_path, recipe):
        recipe = replace(recipe, epochs=2)
        first, second = (train(recipe, tmp_path / name) for name in "ab")
        assert equal(weights(first), weights(second))
        assert log(tmp_path / "a") == log(tmp_path / "b")
        other = train(replace(recipe, seed=1), tmp_path / "c")
        assert not equal(weights(first), weights(other))

    @pytest.mark.parametrize(
        "moment", ["first step", "middle step", "epoch", "first save", "save", "end"]
    )
    def test_killed_and_resumed(self, tmp_path, recipe, moment, monkeypatch):
        """The weights and the log are those of an undisturbed run, bit by bit."""
        whole = train(recipe, tmp_path / "whole")

        def on_step(step, steps):
            if step == {"first step": 1, "middle step": 3}.get(moment):
                raise Killed

        def on_epoch(epoch):
            if epoch.epoch == {"epoch": 1, "end": 2}.get(moment):
                raise Killed

        with monkeypatch.context() as patch:
            save = training._State.save

            def save_or_die(state, path):
                if state.epoch == {"first save": 1, "save": 2}.get(moment):
                    raise Killed
                save(state, path)

            patch.setattr(training._State, "save", save_or_die)
            with pytest.raises(Killed):
                train(recipe, tmp_path / "run", on_step=on_step, on_epoch=on_epoch)
        assert not (tmp_path / "run" / whole.name).exists()
        torch.manual_seed(99)
        resumed = train(recipe, tmp_path / "run", resume=True)
        assert equal(weights(resumed), weights(whole))
        assert log(tmp_path / "run") == log(tmp_path / "whole")

    def test_a_folder_in_use_is_refused(self, tmp_path):
        recipe = replace(DIGITS, epochs=1)
        path = train(recipe, tmp_path)
        before = path.read_bytes()
        with pytest.raises(ValueError, match="holds a run already"):
            train(recipe, tmp_path)
        with pytest.raises(ValueError, match="holds a run with another lr, seed$"):
            train(replace(recipe, lr=0.5, seed=3), tmp_path, resume=True)
        assert path.read_bytes() == before
        assert equal(weights(train(recipe, tmp_path, resume=True)), weights(path))


class TestDeadHeads:
    @pytest.fixture
    def shares(self, monkeypatch) -> Iterator[list[float]]:
        """Shares of dead heads that epochs are to report, then none."""
        shares: list[float] = []
        monkeypatch.setattr(
            training, "dead_head_share", lambda model, data: shares.pop(0) if shares else 0.0
        )
        return shares

    def test_a_jump_warns(self, tmp_path, shares):
        shares += [0.0, 0.1, 0.5]
        with pytest.warns(UserWarning, match="epoch 3: dead heads rose from 10% to 50%"):
            train(DIGITS, tmp_path)

    def test_a_slow_rise_and_a_bad_start_do_not(self, tmp_path, shares):
        """Warnings are errors here."""
        shares += [0.5, 0.7, 0.85]
        train(DIGITS, tmp_path)
        assert [line["dead_heads"] for line in log(tmp_path)] == [0.5, 0.7, 0.85]

    def test_resuming_remembers_the_share_before(self, tmp_path, shares):
        def on_epoch(epoch):
            if epoch.epoch == 1:
                raise Killed

        shares += [0.6, 0.6]
        with pytest.raises(Killed):
            train(DIGITS, tmp_path, on_epoch=on_epoch)
        shares += [0.6]
        train(DIGITS, tmp_path, resume=True)
        assert [line["dead_heads"] for line in log(tmp_path)] == [0.6, 0.6, 0.6]


def vit(gh, gw):
    return SimpleNamespace(patch_embed=SimpleNamespace(grid_size=(gh, gw)))


GRID = st.sampled_from([3, 4, 7, 8, 9, 14, 16, 28])


@st.composite
def digit_boxes(draw):
    """Boxes of up to the largest digit's side, anywhere on 112×112 pixels."""
    boxes = []
    for _ in range(draw(st.integers(1, 4))):
        width, height = (draw(st.integers(1, DIGIT_SIDE[1])) for _ in range(2))
        x0, y0 = draw(st.integers(0, 112 - width)), draw(st.integers(0, 112 - height))
        boxes.append([x0, y0, x0 + width, y0 + height])
    return torch.tensor(boxes, dtype=torch.float32)


class TestWindow:
    @given(boxes=digit_boxes(), grid=GRID, progress=st.integers(0, 15), seed=st.integers(0, 99))
    def test_covers_the_box_with_a_square_of_patches(self, boxes, grid, progress, seed):
        torch.manual_seed(seed)
        model = vit(grid, grid)
        side = window_side(replace(DIGITS, window_epochs=16), progress, model)
        kept = window(boxes, model, side)
        assert kept.shape == (len(boxes), side**2)
        for box, raster in zip(boxes.tolist(), kept.tolist(), strict=True):
            rows, columns = np.divmod(np.unique(raster), grid)
            assert len(rows) == side**2
            assert rows.max() - rows.min() == columns.max() - columns.min() == side - 1
            assert 0 <= rows.min() <= rows.max() < grid
            # In pixels of the image, the window's outline holds the box.
            assert columns.min() * 112 / grid <= box[0]
            assert rows.min() * 112 / grid <= box[1]
            assert (columns.max() + 1) * 112 / grid >= box[2]
            assert (rows.max() + 1) * 112 / grid >= box[3]

    def test_takes_every_place_that_covers(self):
        """A box of one pixel in patch (6, 7): 49 windows of 7×7 patches, about equally often."""
        torch.manual_seed(0)
        boxes = torch.tensor([[60.0, 50, 61, 51]]).repeat(4900, 1)
        first = window(boxes, vit(14, 14), 7)[:, 0]
        places, counts = first.unique(return_counts=True)
        rows, columns = np.divmod(places.numpy(), 14)
        assert sorted(zip(rows, columns, strict=True)) == [
            (row, column) for row in range(7) for column in range(1, 8)
        ]
        # Binomial with mean 100: a deviation of 5 standard deviations is 50.
        assert abs(counts - 100).max() < 50

    def test_grows_from_7_patches_to_the_whole_grid(self):
        recipe = replace(DIGITS, window_epochs=16)
        sides = [window_side(recipe, epoch, vit(14, 14)) for epoch in range(17)]
        assert sides == [7] * 7 + [8, 8, 9, 9, 10, 10, 11, 12, 13, 14]

    def test_is_what_the_model_sees(self, tmp_path, monkeypatch):
        """Half of four epochs see windows of 7² and 8² patches, the others see everything."""
        seen, forward_patches = [], training.forward_patches

        def watched(model, images, keep):
            seen.append(tuple(keep.shape))
            return forward_patches(model, images, keep)

        monkeypatch.setattr(training, "forward_patches", watched)
        train(replace(DIGITS, epochs=4, window_epochs=2), tmp_path)
        assert seen == [(16, 49)] * 2 + [(16, 64)] * 2

    def test_folders_have_none(self, tmp_path, colours, monkeypatch):
        monkeypatch.setattr(training, "forward_patches", None)
        windowed = train(replace(colours, epochs=1, window_epochs=1), tmp_path / "a")
        assert equal(weights(windowed), weights(train(replace(colours, epochs=1), tmp_path / "b")))


def annotated(root, split, **classes):
    """Images without class folders, each with the class that its XML names."""
    (root / split).mkdir(parents=True)
    for image, name in classes.items():
        Image.new("RGB", (32, 32)).save(root / split / f"{image}.png")
        (root / split / f"{image}.xml").write_text(
            f"<annotation><object><name>{name}</name><bndbox><xmin>1</xmin><ymin>1</ymin>"
            "<xmax>9</xmax><ymax>9</ymax></bndbox></object></annotation>"
        )


class TestData:
    def recipe(self, root):
        short = {"epochs": 1, "batch_size": 2, "warmup_epochs": 0}
        return Recipe("infvit_pure_photos", data=str(root), **short, model_args=TINY)

    def test_held_out_images_have_the_labels_of_the_classes_trained(self, tmp_path):
        annotated(tmp_path, "train", a="ant", b="bee", c="cat")
        annotated(tmp_path, "valid", d="Cat", e="bee")
        data, held_out = training._labelled(self.recipe(tmp_path))
        assert (data.classes, data.labels) == (["ant", "bee", "cat"], [0, 1, 2])
        assert [(s.image_id, s.label) for s in held_out] == [
            ("valid/d.png", 2),
            ("valid/e.png", 1),
        ]
        path = train(self.recipe(tmp_path), tmp_path / "run")
        assert load(path).class_names == ["ant", "bee", "cat"]

    def test_held_out_images_of_another_class_are_refused(self, tmp_path):
        annotated(tmp_path / "data", "train", a="ant", b="bee")
        annotated(tmp_path / "data", "val", d="emu")
        with pytest.raises(ValueError, match="class 'emu' of 'data' is not among the names"):
            train(self.recipe(tmp_path / "data"), tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_images_without_a_label_are_refused(self, tmp_path):
        annotated(tmp_path / "data", "train", a="ant", b="bee")
        annotated(tmp_path / "data", "val", d="ant")
        (tmp_path / "data/val/d.xml").unlink()
        with pytest.raises(ValueError, match="1 of the 1 images of 'data' have no label"):
            train(self.recipe(tmp_path / "data"), tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_splits_are_no_classes(self, tmp_path):
        for place in ("Train/ant", "Train/bee", "Valid/bee", "Test/ant"):
            (tmp_path / place).mkdir(parents=True)
            Image.new("RGB", (32, 32)).save(tmp_path / place / "a.png")
        data, held_out = training._labelled(self.recipe(tmp_path))
        assert (data.classes, data.labels) == (["ant", "bee"], [0, 1])
        assert (held_out.classes, held_out.labels) == (["ant", "bee"], [1])

    def test_data_without_splits_are_told_of(self, tmp_path):
        for name in ("ant", "bee"):
            (tmp_path / name).mkdir()
            Image.new("RGB", (32, 32)).save(tmp_path / name / "a.png")
        with pytest.warns(UserWarning, match="no splits, so the accuracy is measured on the train"):
            training._labelled(self.recipe(tmp_path))


NAME = "vit_tiny_patch16_224"
VIT = {"depth": 3, "embed_dim": 24, "num_heads": 2, "patch_size": 8, "img_size": 32}


class TestFineTuning:
    """With a learning rate of zero a run ends where it started."""

    @pytest.fixture
    def vit(self):
        torch.manual_seed(7)
        return timm.create_model(NAME, **VIT, num_classes=4)

    def still(self, folder, init, model=NAME, **overrides):
        return recipe_for(
            model, str(folder), epochs=1, batch_size=17, lr=0.0, init=str(init), **overrides
        )

    def ends_at(self, path, start, but=()):
        """The weights on disk are these, to float16, but for some keys."""
        end, start = weights(path), start.state_dict()
        assert end.keys() - set(but) == start.keys() - set(but)
        for key in start.keys() - set(but):
            torch.testing.assert_close(end[key], start[key].half(), rtol=1e-3, atol=1e-6)

    def test_plain_weights_converted_in_part_at_another_size(self, tmp_path, folder, vit):
        """Positions are resampled as timm does itself; nothing but γ and classifier is new."""
        torch.save(vit.state_dict(), tmp_path / "vit.pth")
        arguments = VIT | {"img_size": 48}
        recipe = self.still(
            folder,
            tmp_path / "vit.pth",
            model_args=arguments,
            convert="linear",
            convert_layers=[-1],
        )
        path = train(recipe, tmp_path / "run")
        assert path.name == "vit_tiny_patch16_224_linear.safetensors"
        expected = timm.create_model(
            NAME,
            pretrained=True,
            pretrained_cfg_overlay={"file": str(tmp_path / "vit.pth"), "num_classes": 4},
            **arguments,
        )
        new = ("head.weight", "head.bias", "blocks.2.attn.gamma_logit")
        self.ends_at(path, expected, but=new)
        assert weights(path)["head.weight"].shape == (3, 24)
        torch.testing.assert_close(
            weights(path)["blocks.2.attn.gamma_logit"].float().sigmoid(),
            torch.full((2,), 0.95),
            rtol=0,
            atol=1e-4,
        )
        model = load(path)
        kinds = [type(block.attn).__name__ for block in model.blocks]
        assert kinds == ["Attention", "Attention", "LinearInfSA"]
        assert model.patch_embed.img_size == (48, 48)
        card = json.loads(path.with_suffix(".json").read_text())
        assert card["attention"] == "2 × Attention, 1 × LinearInfSA"
        assert card["recipe"]["init"] == "vit.pth"
        assert "fine-tuned" in path.with_suffix(".md").read_text()

    def test_a_converted_checkpoint_is_trained_further(self, tmp_path, folder, vit):
        """It names its model, its size, its kinds of attention: nothing has to be told again."""
        start = convert(vit, "pure", layers=[0, 2])
        torch.nn.init.constant_(start.blocks[0].attn.gamma_logit, 1.0)
        start.reset_classifier(3)
        save(start, tmp_path / "a.safetensors", classes=["blue", "green", "red"])
        recipe = self.still(folder, tmp_path / "a.safetensors", model=None)
        assert recipe.model == NAME
        path = train(recipe, tmp_path / "run")
        self.ends_at(path, start)
        kinds = [type(block.attn).__name__ for block in load(path).blocks]
        assert kinds == ["PureInfSA", "Attention", "PureInfSA"]
        moved = train(replace(recipe, lr=1e-2, epochs=3), tmp_path / "moved")
        gamma = "blocks.2.attn.gamma_logit"
        assert not torch.equal(weights(moved)[gamma], weights(path)[gamma])

    @pytest.mark.parametrize(
        ("classes", "kept"),
        [(["blue", "green", "red"], True), (None, True), (["ant", "bee", "cat"], False)],
    )
    def test_a_classifier_of_other_classes_is_new(self, tmp_path, folder, vit, classes, kept):
        vit.reset_classifier(3)
        save(vit, tmp_path / "a.safetensors", classes=classes)
        path = train(self.still(folder, tmp_path / "a.safetensors"), tmp_path / "run")
        self.ends_at(path, vit, but=() if kept else ("head.weight", "head.bias"))
        same = torch.equal(weights(path)["head.weight"], vit.head.weight.half())
        assert same is kept
        assert load(path).class_names == ["blue", "green", "red"]

    def test_a_classifier_in_another_order_is_brought_into_that_of_the_data(
        self, tmp_path, folder, vit
    ):
        """The data's classes are blue, green and red; the checkpoint's are spelt otherwise."""
        vit.reset_classifier(3)
        vit.head.bias.data.copy_(torch.tensor([1.0, 2.0, 3.0]))
        save(vit, tmp_path / "a.safetensors", classes=["RED", "_blue", "Green"])
        path = train(self.still(folder, tmp_path / "a.safetensors"), tmp_path / "run")
        self.ends_at(path, vit, but=("head.weight", "head.bias"))
        assert weights(path)["head.bias"].tolist() == [2, 3, 1]
        assert torch.equal(weights(path)["head.weight"], vit.head.weight[[1, 2, 0]].half())
        assert load(path).class_names == ["blue", "green", "red"]

    def test_pretrained_weights_of_a_name(self, tmp_path, folder):
        recipe = recipe_for(
            "infvit_linear_photos", str(folder), pretrained=True, epochs=1, lr=0.0, amp=False
        )
        path = train(recipe, tmp_path)
        start = load("infvit_linear_photos")
        self.ends_at(path, start, but=("head.weight", "head.bias"))
        assert weights(path)["head.weight"].shape == (3, 128)

    def test_layer_decay(self, tmp_path, folder, vit):
        """A factor of 1e-9 leaves the classifier alone to learn."""
        vit.reset_classifier(3)
        save(vit, tmp_path / "a.safetensors")
        recipe = self.still(folder, tmp_path / "a.safetensors", layer_decay=1e-9)
        path = train(replace(recipe, lr=0.1, weight_decay=0.0), tmp_path / "run")
        self.ends_at(path, vit, but=("head.weight", "head.bias", "norm.weight", "norm.bias"))
        assert not torch.equal(weights(path)["head.bias"], vit.head.bias.half())

    def test_resumed(self, tmp_path, folder, vit):
        """Bit for bit, and not with another start."""
        save(vit, tmp_path / "a.safetensors")
        recipe = replace(
            self.still(folder, tmp_path / "a.safetensors", convert="linear"), epochs=2, lr=1e-3
        )
        whole = train(recipe, tmp_path / "whole")

        def on_epoch(epoch):
            raise Killed

        with pytest.raises(Killed):
            train(recipe, tmp_path / "run", on_epoch=on_epoch)
        with pytest.raises(ValueError, match="holds a run with another convert, init$"):
            train(replace(recipe, convert=None, init=None), tmp_path / "run", resume=True)
        assert equal(weights(train(recipe, tmp_path / "run", resume=True)), weights(whole))

    def test_from_the_command_line(self, tmp_path, folder, vit):
        save(vit, tmp_path / "a.safetensors")
        arguments = f"train --init {tmp_path / 'a.safetensors'} --data {folder} --epochs 1 --lr 0"
        arguments += " --device cpu"
        arguments += (
            f" --img-size 48 --convert pure --convert-layers -2,-1 --out {tmp_path / 'run'}"
        )
        result = CliRunner().invoke(command_line(), arguments.split())
        assert result.exit_code == 0, result.output
        recipe = Recipe(**json.loads((tmp_path / "run" / "recipe.json").read_text()))
        assert recipe == Recipe(
            NAME,
            str(folder),
            **RECIPES["fine-tune"] | {"epochs": 1, "lr": 0.0, "amp": has_bfloat16("cpu")},
            model_args={"img_size": 48},
            init=str(tmp_path / "a.safetensors"),
            convert="pure",
            convert_layers=[-2, -1],
        )
        model = load(tmp_path / "run" / f"{NAME}_pure.safetensors")
        kinds = [type(block.attn).__name__ for block in model.blocks]
        assert kinds == ["Attention", "PureInfSA", "PureInfSA"]
        assert model.patch_embed.grid_size == (6, 6)


class TestRecipeFor:
    def test_a_start_from_weights_is_fine_tuned(self, folder):
        own = RECIPES["fine-tune"]
        for start in ({"pretrained": True}, {"init": "a.pth"}):
            recipe = recipe_for("infvit_linear_digits", "photo-digits", **start)
            assert (recipe.epochs, recipe.lr, recipe.window_epochs) == (own["epochs"], own["lr"], 0)

    def test_a_start_that_is_unclear(self, tmp_path):
        with pytest.raises(ValueError, match="both give initial weights; leave one"):
            recipe_for("x", "photo-digits", pretrained=True, init="a.pth")
        torch.save({"a": torch.zeros(1)}, tmp_path / "a.pth")
        with pytest.raises(ValueError, match=r"model must be named: .*a\.pth does not"):
            recipe_for(None, "photo-digits", init=str(tmp_path / "a.pth"))
        with pytest.raises(ValueError, match="model must be named: the recipe does not"):
            recipe_for(None, "photo-digits")

    def test_the_datas_own(self, folder):
        digits = recipe_for("infvit_linear_digits", "photo-digits", lr=None, batch_size=8)
        own = RECIPES["photo-digits"]
        assert (digits.epochs, digits.window_epochs) == (own["epochs"], own["window_epochs"])
        assert (digits.lr, digits.batch_size) == (own["lr"], 8)
        assert digits.mixup == digits.cutmix == 0
        photos = recipe_for("infvit_linear_photos", str(folder), seed=4)
        assert (photos.window_epochs, photos.mixup, photos.cutmix, photos.seed) == (0, 0.2, 0.5, 4)

    @pytest.mark.parametrize("has", [True, False])
    def test_bfloat16_where_the_device_has_it(self, monkeypatch, has):
        monkeypatch.setattr(recipes, "has_bfloat16", lambda device: has)
        for start in ({}, {"pretrained": True}):
            assert recipe_for("x", "photo-digits", **start).amp
            assert recipe_for("x", "photo-digits", device="cpu", **start).amp == has
            assert recipe_for("x", "photo-digits", device="cpu", amp=True, **start).amp
            assert not recipe_for("x", "photo-digits", device="cpu", amp=False, **start).amp

    def test_which_device_has_bfloat16(self, monkeypatch):
        """Whether a CPU has it is what its flags say, on Linux."""
        flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
        if "avx512_bf16" in flags or "amx_bf16" in flags:
            assert has_bfloat16("cpu")
        if "avx2" in flags and "avx512" not in flags and "avx_ne_convert" not in flags:
            assert not has_bfloat16("cpu")
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
        assert not has_bfloat16("cuda")

    @pytest.mark.parametrize(("epochs", "windowed"), [(28, 0), (29, 28), (3, 0)])
    def test_a_run_shorter_than_the_curriculum_has_none(self, epochs, windowed):
        assert recipe_for("x", "photo-digits", epochs=epochs).window_epochs == windowed
