"""Preprocessing against normalisation by hand, and the crop against a ramp of pixel positions."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform

import infsa_explain
from infsa_explain.models import infvit as models  # noqa: F401  (registers the names)
from infsa_explain.vits.preprocessing import (
    Framing,
    data_config,
    frame_boxes,
    model_input,
    preprocess,
    visible_region,
)


@pytest.fixture(scope="module")
def digits_model():
    return timm.create_model("infvit_linear_digits", depth=1)


def vit(img_size, **cfg):
    return timm.create_model(
        "deit_tiny_patch16_224", img_size=img_size, depth=1, pretrained_cfg_overlay=cfg
    )


def ramp(height, width):
    """Red is a pixel's column, green its row."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([columns, rows, 0 * rows], axis=-1).astype(np.uint8)


class TestPreprocess:
    def test_an_image_of_the_models_size(self, digits_model):
        image = np.random.default_rng(0).integers(0, 256, (112, 112, 3), dtype=np.uint8)
        truth = (image.transpose(2, 0, 1) / 255 - 0.5) / 0.5
        batch = preprocess(digits_model, image)
        assert batch.dtype == torch.float32
        np.testing.assert_allclose(batch[0], truth, rtol=0, atol=1e-6)

    def test_the_models_own_mean_and_deviation(self):
        image = np.full((50, 70, 3), (10, 100, 250), dtype=np.uint8)
        truth = (np.array([10, 100, 250]) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        batch = preprocess(vit(32), image)
        assert batch.shape == (1, 3, 32, 32)
        np.testing.assert_allclose(batch.amin((0, 2, 3)), truth, rtol=0, atol=1e-6)
        np.testing.assert_allclose(batch.amax((0, 2, 3)), truth, rtol=0, atol=1e-6)

    def test_a_batch_of_any_sizes(self, digits_model):
        images = [ramp(112, 112), ramp(200, 130)]
        batch = preprocess(digits_model, images)
        assert torch.equal(batch[0], preprocess(digits_model, images[0])[0])
        assert torch.equal(batch[1], preprocess(digits_model, images[1])[0])
        stack = np.stack([ramp(112, 112)] * 2)
        assert torch.equal(preprocess(digits_model, stack), batch[:1].repeat(2, 1, 1, 1))

    def test_whatever_an_image_comes_as(self, digits_model, tmp_path):
        """One image as a file, by Pillow, in every shape, type and range: the same numbers."""
        image = waves(90, 140)
        Image.fromarray(image).save(tmp_path / "a.png")
        chw = torch.from_numpy(image).permute(2, 0, 1)
        truth = preprocess(digits_model, image)
        kinds = [
            tmp_path / "a.png",
            str(tmp_path / "a.png"),
            Image.fromarray(image),
            Image.fromarray(image).convert("RGBA"),
            np.dstack([image, np.full((90, 140), 255, np.uint8)]),
            image / 255,
            image.astype(np.float32),
            chw,
            chw.numpy(),
            chw / 255,
            chw.float(),
            chw.permute(1, 2, 0),
        ]
        for one in kinds:
            assert torch.equal(preprocess(digits_model, one), truth)
        assert torch.equal(preprocess(digits_model, kinds), truth.repeat(12, 1, 1, 1))
        assert torch.equal(preprocess(digits_model, iter(kinds[:2])), truth.repeat(2, 1, 1, 1))
        for batch in (np.stack([image] * 2), torch.stack([chw] * 2), np.stack([image / 255] * 2)):
            assert torch.equal(preprocess(digits_model, batch), truth.repeat(2, 1, 1, 1))

    def test_grey_images(self, digits_model):
        grey = waves(112, 112)[..., 0]
        truth = preprocess(digits_model, np.stack([grey] * 3, -1))
        for one in (grey, grey[..., None], torch.from_numpy(grey)[None], Image.fromarray(grey)):
            assert torch.equal(preprocess(digits_model, one), truth)

    @pytest.mark.parametrize(
        ("images", "message"),
        [
            ([], "images must hold at least one image, got none"),
            (np.zeros((0, 8, 8, 3), np.uint8), "images must hold at least one image, got none"),
            (7, "images must be paths, Pillow images, arrays or tensors, got int"),
            (b"abc", "images must be paths, Pillow images, arrays or tensors, got bytes"),
            ({"image": 1}, "images must be paths, Pillow images, arrays or tensors, got dict"),
            (None, "images must be paths, Pillow images, arrays or tensors, got NoneType"),
            ([7], r"image must be \(H, W\), .* got int 7"),
            ([[[1, 2], [3, 4]]], r"image must be uint8, or float in \[0, 1\], got int64"),
            ("nowhere.png", "image 'nowhere.png' does not exist; check the path"),
            (np.zeros((5, 8, 8), np.uint8), r"1, 3 or 4 channels, got \(5, 8, 8\)"),
            (np.zeros((8, 8, 3), np.int64), r"must be uint8, or float in \[0, 1\], got int64"),
            (np.full((8, 8, 3), 1.5), r"whole numbers up to 255, got \[1.5, 1.5\]; one that is no"),
            (torch.full((3, 8, 8), -1.0), r"got \[-1, -1\]; one that is normalised already"),
            (np.full((8, 8, 3), np.nan), r"got \[nan, nan\]"),
        ],
    )
    def test_refuses(self, digits_model, images, message):
        with pytest.raises(ValueError, match=message):
            preprocess(digits_model, images)

    def test_input_size_is_the_built_one(self, digits_model):
        assert data_config(digits_model)["input_size"] == (3, 112, 112)
        small = timm.create_model("infvit_linear_digits", depth=1, img_size=(64, 96))
        assert data_config(small)["input_size"] == (3, 64, 96)


def waves(height, width):
    y, x = np.mgrid[:height, :width]
    channels = [np.sin(x / 7), np.cos(y / 9), np.sin((x + y) / 11)]
    return (128 + 120 * np.stack(channels, -1)).astype(np.uint8)


class TestModelInput:
    def test_what_is_preprocessed_stays_as_it_is(self, digits_model):
        batch = preprocess(digits_model, [waves(112, 112), waves(90, 140)])
        assert model_input(digits_model, batch) is batch
        for images in (batch.numpy(), batch.double().numpy(), list(batch), list(batch.numpy())):
            given = model_input(digits_model, images)
            assert given.dtype == torch.float32
            assert torch.equal(given, batch)
        for image in (batch[0], batch[0].numpy()):
            assert torch.equal(model_input(digits_model, image), batch[:1])
        assert torch.equal(model_input(digits_model, batch.double()), batch)
        half = batch.half()
        assert model_input(digits_model, half) is half

    def test_pictures_are_preprocessed(self, digits_model):
        image = waves(90, 140)
        truth = preprocess(digits_model, image)
        chw = torch.from_numpy(image).permute(2, 0, 1)
        for picture in (image, Image.fromarray(image), image / 255, chw, [image], chw[None]):
            assert torch.equal(model_input(digits_model, picture), truth)
        assert torch.equal(model_input(digits_model, torch.from_numpy(image / 255)), truth)

    def test_not_both_at_once(self, digits_model):
        image = waves(112, 112)
        with pytest.raises(ValueError, match="all pictures, or all preprocessed .* got both"):
            model_input(digits_model, [image, preprocess(digits_model, image)[0]])


class TestStrips:
    """Timm's own transform resizes a strip whole; what its crop keeps is the same."""

    @pytest.mark.parametrize("size", [96, (96, 160), (160, 96)], ids=str)
    @pytest.mark.parametrize(
        "config",
        [{}, {"crop_pct": 1.0}, {"crop_mode": "squash"}, {"crop_mode": "border"}],
        ids=["centre", "whole", "squash", "border"],
    )
    def test_as_timm_has_it(self, size, config):
        """To two grey levels: Pillow rounds between its passes, in an order of its choice."""
        model = vit(size, mean=(0, 0, 0), std=(1, 1, 1), **config)
        transform = create_transform(**data_config(model), is_training=False)
        for shape in ((3, 100), (100, 3), (1, 50), (51, 1), (3, 203), (2000, 101), (90, 1999)):
            image = waves(*shape)
            expected = transform(Image.fromarray(image))
            np.testing.assert_allclose(
                preprocess(model, image)[0], expected, rtol=0, atol=2.1 / 255
            )

    def test_others_are_timms_to_the_last_bit(self):
        model = vit(96)
        transform = create_transform(**data_config(model), is_training=False)
        for shape in ((300, 200), (96, 96), (20, 320), (96, 1500)):
            image = waves(*shape)
            assert torch.equal(preprocess(model, image)[0], transform(Image.fromarray(image)))

    def test_one_too_thin_for_timm(self):
        """Its border mode would make it no pixels high."""
        image = np.full((1, 2000, 3), 255, np.uint8)
        seen = preprocess(vit(64, crop_mode="border", crop_pct=1.0), image)[0, 0]
        border = seen[0, 0]
        assert (seen != border).sum() == 64 and seen[31:33].max() > border

    @pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs Linux's /proc")
    @pytest.mark.parametrize("shape", [(3, 20_000), (20_000, 3), (1, 1_000_000)])
    def test_memory(self, shape):
        """Resized whole, the first two take 1 GB."""
        model, image = vit(224), np.full((*shape, 3), 7, np.uint8)
        preprocess(model, image[:, :9])
        before = peak_bytes(reset=True)
        preprocess(model, image)
        frame_boxes(model, np.array([[0, 0, 1, 1]]), *shape)
        assert peak_bytes() - before < 30_000_000


def peak_bytes(reset=False):
    """The most memory that this process has had since it was reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


class TestVisibleRegion:
    @pytest.mark.parametrize("shape", [(112, 112), (90, 200), (250, 130), (64, 64)])
    @pytest.mark.parametrize("size", [(64, 64), (48, 96), (96, 48)])
    @pytest.mark.parametrize("crop_pct", [1.0, 0.9, 0.75])
    @pytest.mark.parametrize("crop_mode", ["center", "squash"])
    def test_is_what_the_transform_keeps(self, shape, size, crop_pct, crop_mode):
        """Every model pixel shows the place of the image that the region says it does."""
        config = {"crop_pct": crop_pct, "crop_mode": crop_mode, "mean": (0, 0, 0), "std": (1, 1, 1)}
        model, image = vit(size, **config), ramp(*shape)
        region = visible_region(model, image)
        assert np.shares_memory(region, image)
        seen = preprocess(model, image)[0].double().numpy() * 255
        for channel, axis in ((0, 1), (1, 0)):
            extent, pixels = region.shape[axis], size[axis]
            first = float(region[0, 0, channel])
            place = first - 0.5 + (np.arange(pixels) + 0.5) * extent / pixels
            shown = seen[channel].mean(axis=1 - axis)
            inner = slice(4, -4)  # resampling mirrors or cuts its kernel at the image's edge
            # Half a pixel of the image each for the region's edge and for 8 bits; half a pixel
            # of the model each for the resized copy's whole size and for its crop's edge.
            tolerance = 1 + extent / pixels
            np.testing.assert_allclose(shown[inner], place[inner], rtol=0, atol=tolerance)

    def test_a_border_is_shown_as_the_model_sees_it(self):
        """The whole image in a frame of the mean colour."""
        model = vit(64, crop_mode="border", crop_pct=1.0, mean=(0.2, 0.4, 0.6), std=(1, 1, 1))
        image = waves(100, 200)
        region = visible_region(model, image)
        assert region.shape == (200, 200, 3)
        np.testing.assert_array_equal(region[50:150], image)
        assert (region[:50] == (51, 102, 153)).all() and (region[150:] == (51, 102, 153)).all()
        resized = Image.fromarray(region).resize((64, 64), Image.Resampling.BICUBIC)
        seen = 255 * (preprocess(model, image)[0].permute(1, 2, 0).numpy() + [0.2, 0.4, 0.6])
        inner = np.s_[20:44]  # away from the border's edge, which is resized with the picture
        np.testing.assert_allclose(np.asarray(resized)[inner], seen[inner], rtol=0, atol=12)

    @pytest.mark.parametrize(
        ("config", "expected"),
        [
            # 386×500 to 64×82, of which columns 9 to 73 are kept.
            ({"crop_pct": 1.0}, (9 * 500 / 82, 0, 73 * 500 / 82, 386)),
            # To 80×103, of which rows 8 to 72 and columns 20 (19.5) to 84 are kept.
            (
                {"crop_pct": 0.8},
                (20 * 500 / 103, 8 * 386 / 80, 84 * 500 / 103, 72 * 386 / 80),
            ),
            ({"crop_mode": "squash", "crop_pct": 1.0}, (0, 0, 500, 386)),
            # To 49×64 in the middle of 64×64: 7 rows of border above, 8 below.
            ({"crop_mode": "border", "crop_pct": 1.0}, (0, -7 * 386 / 49, 500, 57 * 386 / 49)),
        ],
        ids=["whole", "centre", "squash", "border"],
    )
    def test_region_by_hand(self, config, expected):
        region = Framing(data_config(vit(64, **config))).region(386, 500)
        np.testing.assert_allclose(region, expected, rtol=0, atol=1e-9)

    def test_by_hand(self):
        image = ramp(100, 200)
        region = visible_region(vit(64, crop_pct=0.8), image)
        assert region[0, 0].tolist() == [60, 10, 0]
        assert region[-1, -1].tolist() == [139, 89, 0]

    def test_squash_shows_everything(self):
        image = ramp(100, 200)
        region = visible_region(vit(64, crop_mode="squash", crop_pct=1.0), image)
        assert np.array_equal(region, image)


@pytest.mark.parametrize("shape", [(300, 500), (224, 224), (500, 240), (60, 640)])
@pytest.mark.parametrize(
    "config",
    [{}, {"crop_pct": 1.0}, {"crop_mode": "squash"}, {"crop_mode": "border"}, {"rect": True}],
    ids=["centre", "whole", "squash", "border", "rectangle"],
)
def test_boxes_follow_the_pixels(shape, config):
    """A white rectangle, preprocessed, is where its box says, to within interpolation."""
    size = (96, 160) if config.pop("rect", False) else (96, 96)
    model = timm.create_model("vit_tiny_patch16_224", img_size=size, depth=1)
    model.pretrained_cfg = model.pretrained_cfg | config
    height, width = shape
    box = np.array([[0.3 * width, 0.25 * height, 0.62 * width, 0.8 * height]]).round()
    x0, y0, x1, y1 = box[0].astype(int)
    image = np.zeros((*shape, 3), dtype=np.uint8)
    image[y0:y1, x0:x1] = 255
    pixels = preprocess(model, image)[0].mean(0)
    inside = pixels > 0.5  # black is −1, white 1, and a border, of the mean colour, 0
    framed = frame_boxes(model, box, height, width)
    expected = torch.zeros(size, dtype=torch.bool)
    left, top, right, bottom = framed[0].round().int().tolist()
    expected[top:bottom, left:right] = True
    differ = (inside != expected).float().mean()
    assert differ < 0.03, (framed, differ)
    assert expected.any()


def test_a_box_cropped_away_reversed_or_empty_has_no_area():
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=1)
    boxes = np.array([[0, 0, 40, 60], [90, 50, 70, 20], [100, 9, 100, 50], [-9, -9, 400, 90]])
    framed = frame_boxes(model, boxes, 60, 300)
    area = (framed[:, 2] - framed[:, 0]) * (framed[:, 3] - framed[:, 1])
    assert area.tolist() == [0, 0, 0, 64 * 64]
    assert frame_boxes(model, np.zeros((0, 4)), 60, 300).shape == (0, 4)


class TestLevelsInAFloatTensor:
    """Whole numbers up to 255 are never normalised values, so that they can be warned of."""

    def test_warns_and_takes_them_as_they_are(self):
        model = infsa_explain.load("infvit_linear_digits")
        levels = torch.randint(0, 256, (2, 3, 112, 112), generator=torch.Generator().manual_seed(0))
        for images in (levels.float(), levels[0].double(), levels.numpy().astype(np.float32)):
            with pytest.warns(UserWarning, match="float with whole numbers up to 255.* as uint8"):
                batch = model_input(model, images)
            assert torch.equal(batch, levels[: len(batch)].float())

    @pytest.mark.parametrize("scale", [1 / 255, 1 / 2])
    def test_other_values_are_not_warned_of(self, scale):
        model = infsa_explain.load("infvit_linear_digits")
        levels = torch.randint(0, 256, (1, 3, 112, 112), generator=torch.Generator().manual_seed(0))
        for images in (levels * scale, levels - 128.0, torch.zeros(1, 3, 112, 112), levels * 2.0):
            assert torch.equal(model_input(model, images), images)

    def test_a_model_that_expects_them_is_not_warned_of(self):
        model = infsa_explain.load("infvit_linear_digits")
        model.pretrained_cfg = {**model.pretrained_cfg, "mean": (0,) * 3, "std": (1 / 255,) * 3}
        levels = torch.randint(0, 256, (1, 3, 112, 112)).float()
        assert torch.equal(model_input(model, levels), levels)
