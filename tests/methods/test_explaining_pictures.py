"""``explain`` of pictures, and its maps drawn where the model saw them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from timm.models import VisionTransformer

import infsa_explain
from infsa_explain.data import PhotoDigits, read_image
from infsa_explain.methods.explaining import explain_graphs
from infsa_explain.methods.registry import get_method
from infsa_explain.vits.capturing import capture


@pytest.fixture(scope="module")
def model():
    return infsa_explain.load("infvit_linear_digits")


@pytest.fixture
def photo():
    return np.random.default_rng(0).integers(0, 256, (150, 224, 3), dtype=np.uint8)


def one_hot(result, row, column):
    """The explanation with a map that is 1 in one patch, and 0 elsewhere."""
    maps = torch.zeros_like(result.maps)
    maps[:, row, column] = 1
    return replace(result, maps=maps)


def brightest(drawn):
    """(row, column) of the centre of what is drawn in yellow, the top of the scale."""
    yellow = drawn[..., 0].astype(int) + drawn[..., 1] - drawn[..., 2]
    return np.argwhere(yellow > yellow.max() - 10).mean(0) + 0.5


class TestPictures:
    def test_one_image_as_anything(self, model, tmp_path):
        image = PhotoDigits("val")[0].image
        batch = infsa_explain.preprocess(model, image)
        truth = infsa_explain.explain(model, batch)
        Image.fromarray(image).save(tmp_path / "a.png")
        for given in (
            tmp_path / "a.png",
            str(tmp_path / "a.png"),
            [tmp_path / "a.png"],
            Image.fromarray(image),
            image,
            image / 255,
            image[None],
            torch.from_numpy(image).permute(2, 0, 1),
            batch[0],
            batch[0].numpy(),
            batch.double().numpy(),
            [batch[0]],
        ):
            assert torch.equal(infsa_explain.explain(model, given).maps, truth.maps)

    def test_several_images(self, model):
        images = [PhotoDigits("val")[i].image for i in range(2)]
        truth = infsa_explain.explain(model, infsa_explain.preprocess(model, images))
        for given in (images, np.stack(images), [Image.fromarray(image) for image in images]):
            assert torch.equal(infsa_explain.explain(model, given).maps, truth.maps)

    def test_capture_takes_them_too(self, model):
        image = PhotoDigits("val")[0].image
        truth = capture(model, infsa_explain.preprocess(model, image)).logits
        for given in (image, Image.fromarray(image), [image], truth.new_tensor(image / 255)):
            assert torch.equal(capture(model, given).logits, truth)

    def test_what_is_no_image(self, model, tmp_path):
        with pytest.raises(ValueError, match="does not exist; check the path"):
            infsa_explain.explain(model, tmp_path / "none.png")
        with pytest.raises(ValueError, match="images must hold at least one image"):
            infsa_explain.explain(model, [])


class TestOverlay:
    def test_is_the_overlay_of_the_part_that_the_model_saw(self, model, photo):
        """Of 150×224, resized to 112×167, columns 28 (27.5) to 140 are kept."""
        result = infsa_explain.explain(model, photo)
        drawn = result.overlay(photo, colormap="magma")
        left, right = 28 * 224 / 167, 140 * 224 / 167
        truth = infsa_explain.overlay(
            photo, result.maps[0], region=(left, 0, right, 150), colormap="magma"
        )
        assert drawn.shape == photo.shape and drawn.dtype == np.uint8
        np.testing.assert_array_equal(drawn, truth)
        # Columns 37.6 to 187.8: what lies outside is grey.
        colour = np.ptp(drawn.astype(int), axis=-1).max(0)
        assert (colour[:38] == 0).all() and (colour[188:] == 0).all()
        assert (colour[38:188] > 0).all()

    @pytest.mark.parametrize(("row", "column"), [(0, 0), (3, 11), (13, 7)])
    def test_a_patch_lies_where_the_model_saw_it(self, model, row, column):
        """The middle of a patch of the input, taken back to the photograph."""
        grey = np.full((300, 448, 3), 128, np.uint8)
        result = one_hot(infsa_explain.explain(model, grey, "degree"), row, column)
        # Resized to 112×167; columns 28 to 140 are kept; a patch has 8 pixels.
        expected = (8 * row + 4) * 300 / 112, (8 * column + 4 + 28) * 448 / 167
        found = brightest(result.overlay(grey))
        # At the border of the map half of the spot is cut off.
        edge = [8 if place in (0, 13) else 1.5 for place in (row, column)]
        assert np.abs(found - expected).max() <= max(edge)
        copy = grey[::2, ::2]  # the same photograph at half the size
        assert np.abs(brightest(result.overlay(copy)) - np.divide(expected, 2)).max() <= max(edge)

    def test_the_bare_overlay_warns_and_is_off(self, model):
        grey = np.full((300, 448, 3), 128, np.uint8)
        result = one_hot(infsa_explain.explain(model, grey, "degree"), 7, 11)
        with pytest.warns(UserWarning, match=r"448×300 pixels.*14×14 patches.* differ in shape"):
            stretched = infsa_explain.overlay(grey, result.maps[0])
        off = brightest(stretched) - brightest(result.overlay(grey))
        assert off[1] == pytest.approx(11.5 * 448 / 14 - (92 + 28) * 448 / 167, abs=1)  # 46 pixels
        assert abs(off[0]) < 1

    def test_a_whole_image_is_drawn_as_before(self, model):
        image = PhotoDigits("val")[0].image
        result = infsa_explain.explain(model, image)
        truth = infsa_explain.overlay(image, result.maps[0])
        np.testing.assert_array_equal(result.overlay(image), truth)
        tensor = infsa_explain.preprocess(model, image)
        half = [0.5] * 3
        drawn = result.overlay(tensor[0], mean=half, std=half)
        np.testing.assert_array_equal(drawn, truth)

    def test_a_border_is_left_out(self, photo):
        """The model sees the whole image in a frame; the image has all of its map, and no dark."""
        model = infsa_explain.load("infvit_linear_digits")
        model.pretrained_cfg = model.pretrained_cfg | {"crop_mode": "border"}
        result = infsa_explain.explain(model, photo)
        drawn = result.overlay(photo)
        # Of 150×224, resized to 75×112, in the middle of 112: 18 rows above, 19 below.
        region = (0, -18 * 150 / 75, 224, 94 * 150 / 75)
        truth = infsa_explain.overlay(photo, result.maps[0], region=region)
        np.testing.assert_array_equal(drawn, truth)
        assert (np.ptp(drawn.astype(int), axis=-1).max(0) > 0).all()

    def test_which_of_several(self, model, photo):
        result = infsa_explain.explain(model, [photo, photo[::-1]], "degree")
        with pytest.raises(ValueError, match="index must say which of the 2 maps is drawn"):
            result.overlay(photo)
        alone = infsa_explain.explain(model, photo[::-1].copy(), "degree")
        for index in (1, -1):
            drawn = result.overlay(photo[::-1], index)
            difference = drawn.astype(int) - alone.overlay(photo[::-1])
            assert np.abs(difference).max() <= 1  # the map of a batch differs by rounding
        for index in (2, -3):
            with pytest.raises(ValueError, match=f"one of 2 maps, 0 to 1, got {index}"):
                result.overlay(photo, index)

    def test_a_map_that_there_is_not(self, model, photo):
        result = infsa_explain.explain(model, photo)
        result = replace(result, maps=result.maps * torch.nan)
        with pytest.raises(ValueError, match="map 0 of visits is NaN: there is nothing to draw"):
            result.overlay(photo)

    def test_images_of_another_size_were_not_prepared_as_the_model_has_it(self, photo):
        """Where they lie is not known: the whole image is taken, or said not to be."""
        torch.manual_seed(0)
        size = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 2}
        vit = VisionTransformer(dynamic_img_size=True, **size).eval()
        result = infsa_explain.explain(vit, torch.randn(1, 3, 32, 48), "degree")
        assert result.framing is None
        image = photo[:96, :144]
        truth = infsa_explain.overlay(image, result.maps[0])
        np.testing.assert_array_equal(result.overlay(image), truth)
        with pytest.warns(UserWarning, match="differ in shape"):
            result.overlay(photo[:96, :96])
        region = (0, 10, 96, 74)
        truth = infsa_explain.overlay(photo[:96, :96], result.maps[0], region=region)
        drawn = result.overlay(photo[:96, :96], region=region)
        np.testing.assert_array_equal(drawn, truth)

    def test_maps_of_graphs_have_it_too(self, model, photo):
        graphs = capture(model, infsa_explain.preprocess(model, photo))
        drawn = explain_graphs(graphs, get_method("visits")).overlay(photo)
        np.testing.assert_array_equal(drawn, infsa_explain.explain(model, photo).overlay(photo))


@pytest.mark.shared
def test_the_hot_spot_lies_on_the_ladybird(shared):
    """Its body spans columns 235 to 415 of 500; stretched, the spot leaves it."""
    file = shared / "data/photos/n02165456_ladybug.JPEG"
    model = infsa_explain.load("vit_softmax_photos")
    result = infsa_explain.explain(model, file, "relevance")
    image = read_image(file)
    assert image.shape == (386, 500, 3)
    row, column = brightest(result.overlay(file))
    assert 180 < row < 290 and 300 < column < 400
    with pytest.warns(UserWarning, match="differ in shape"):
        stretched = infsa_explain.overlay(file, result.maps[0])
    assert brightest(stretched)[1] - column == pytest.approx(34, abs=4)
