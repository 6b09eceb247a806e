"""Preprocessing against normalisation by hand, and the crop against a ramp of pixel positions."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch

from infsa_explain import models  # noqa: F401  (registers the names)
from infsa_explain.preprocessing import data_config, preprocess, visible_region


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


class TestVisibleRegion:
    @pytest.mark.parametrize("shape", [(112, 112), (90, 200), (250, 130), (64, 64)])
    @pytest.mark.parametrize("size", [(64, 64), (48, 96), (96, 48)])
    @pytest.mark.parametrize("crop_pct", [1.0, 0.9, 0.75])
    def test_is_what_the_transform_keeps(self, shape, size, crop_pct):
        """Every model pixel shows the place of the image that the region says it does."""
        model, image = vit(size, crop_pct=crop_pct, mean=(0, 0, 0), std=(1, 1, 1)), ramp(*shape)
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
