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

from infsa_explain import models  # noqa: F401  (registers the names)
from infsa_explain.preprocessing import data_config, frame_boxes, preprocess, visible_region


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

    def test_input_size_is_the_built_one(self, digits_model):
        assert data_config(digits_model)["input_size"] == (3, 112, 112)
        small = timm.create_model("infvit_linear_digits", depth=1, img_size=(64, 96))
        assert data_config(small)["input_size"] == (3, 64, 96)


def waves(height, width):
    y, x = np.mgrid[:height, :width]
    channels = [np.sin(x / 7), np.cos(y / 9), np.sin((x + y) / 11)]
    return (128 + 120 * np.stack(channels, -1)).astype(np.uint8)


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
