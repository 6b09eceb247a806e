"""Images of every kind under a model: what it is given, what is shown of it, and in which words."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from timm.models import VisionTransformer

import infsa_explain
from infsa_explain.data import PhotoDigits
from infsa_explain.methods import METHODS
from infsa_explain.models.untraining import untrained
from infsa_explain.viewing.views import gammas_text, heads_text, layers_text, prediction, view


@pytest.fixture(scope="module")
def model():
    return infsa_explain.load("infvit_linear_digits")


@pytest.fixture(scope="module")
def sample():
    return PhotoDigits("val")[0]


@pytest.fixture(scope="module")
def seen(model, sample):
    return view(model, sample.image, boxes=sample.boxes, seed=sample.image_id)


def test_is_the_image_as_preprocessed(model, sample, seen):
    images = infsa_explain.preprocess(model, sample.image)
    assert torch.equal(seen.graphs.images, images)
    np.testing.assert_array_equal(seen.pixels, sample.image)
    np.testing.assert_allclose(seen.boxes, sample.boxes, rtol=0, atol=1e-12)


def test_plain_images_of_every_kind_agree(model, sample, seen, tmp_path):
    chw = torch.from_numpy(sample.image).permute(2, 0, 1)
    frozen = sample.image.copy()
    frozen.flags.writeable = False
    Image.fromarray(sample.image).save(tmp_path / "sample.png")
    for image in (
        tmp_path / "sample.png",
        str(tmp_path / "sample.png"),
        Image.fromarray(sample.image),
        sample.image.astype(np.float32),  # whole numbers up to 255
        chw.numpy(),
        chw.permute(1, 2, 0),
        frozen,
        sample.image / 255,
        chw,
        chw / 255,
        (chw / 255).requires_grad_(),
    ):
        other = view(model, image)
        np.testing.assert_array_equal(other.pixels, sample.image)
        assert torch.equal(other.graphs.images, seen.graphs.images)


@pytest.mark.parametrize("kind", ["tensor", "array", "channels first", "channels last"])
def test_a_normalised_image_is_taken_as_it_is(model, sample, seen, kind):
    image = seen.graphs.images[0]
    box = [[1.5, 2, 30, 40]]
    given = {
        "tensor": image,
        "array": image.permute(1, 2, 0).numpy(),
        "channels first": image.numpy(),
        "channels last": image.permute(1, 2, 0),
    }[kind]
    other = view(model, given, boxes=box)
    assert torch.equal(other.graphs.images[0], image)
    np.testing.assert_array_equal(other.pixels, sample.image)
    assert other.boxes.tolist() == box


def test_of_a_wide_image_the_middle_is_shown(model):
    image = np.random.default_rng(0).integers(0, 256, (224, 448, 3), dtype=np.uint8)
    wide = view(model, image, boxes=[[100, 50, 200, 150], [0, 0, 90, 90]])
    np.testing.assert_array_equal(wide.pixels, image[:, 112:336])
    # The first box is cut at the left edge of the middle, the second is outside.
    np.testing.assert_allclose(wide.boxes[0], [0, 50, 88, 150], rtol=0, atol=1e-9)
    assert wide.boxes[1][0] == wide.boxes[1][2]


def test_refuses_images_and_boxes_that_are_none(model, sample):
    with pytest.raises(ValueError, match=r"image must be \(H, W\), .* got \(112, 112, 2\)"):
        view(model, sample.image[..., :2])
    with pytest.raises(ValueError, match=r"boxes must be \(K, 4\) .* got \(4,\)"):
        view(model, sample.image, boxes=[0, 0, 1, 1])


def test_maps_are_those_of_explain(model, sample, seen):
    images = infsa_explain.preprocess(model, sample.image)
    for method, layer, head, gamma in (
        ("visits", "mean", None, 0.5),
        ("doob", 1, 3, None),
        ("rollout", -1, None, None),
        ("random", -1, None, None),
    ):
        truth = infsa_explain.explain(
            model, images, method, layer, head, gamma=gamma, seeds=[sample.image_id]
        )
        look = seen.explain(method, layer, head, gamma=gamma)
        np.testing.assert_array_equal(look.scores, truth.maps[0].numpy())


def test_an_untrained_map_is_that_of_the_fresh_model(model, sample):
    seen = view(model, sample.image, untrained_seed=3)
    images = infsa_explain.preprocess(model, sample.image)
    fresh = untrained(model, 3)
    truth = infsa_explain.explain(fresh, images, "visits", 1).maps[0]
    np.testing.assert_array_equal(seen.explain("untrained-visits", 1).scores, truth)
    own = fresh.blocks[1].attn.gamma_logit.sigmoid().tolist()
    assert seen.explain("untrained-visits", 1).gammas == pytest.approx(own, abs=1e-7)
    # Of the class that the trained model predicts.
    predicted = int(model(images).argmax())
    truth = infsa_explain.explain(fresh, images, "gradcam", target=predicted).maps[0]
    np.testing.assert_array_equal(seen.explain("untrained-gradcam").scores, truth)


def test_several_methods_share_a_layer_and_a_head(seen):
    looks = seen.explain_all(["visits", "random"], 1, 2)
    assert [look.caption for look in looks] == [seen.explain("visits", 1, 2).caption, "random"]
    with pytest.raises(ValueError, match="head must be left out for rollout, without heads, got 2"):
        seen.explain_all(["visits", "rollout", "random"], 1, 2)
    with pytest.raises(ValueError, match="head must be left out for random, without heads, got 2"):
        seen.explain_all(["random"], head=2)
    with pytest.raises(ValueError, match="layer must be left out for series, random, of the whole"):
        seen.explain_all(["series", "random"], 1)
    assert seen.explain_all(["series"], "mean")[0].caption == seen.explain("series").caption


def test_every_gamma_that_was_used_is_known(model, seen):
    own = [block.attn.gamma_logit.sigmoid() for block in model.blocks]
    assert seen.explain("visits", 2).gammas == pytest.approx(own[2].tolist(), abs=1e-7)
    assert seen.explain("katz", 2, head=5).gammas == pytest.approx([own[2][5].item()], abs=1e-7)
    everything = torch.cat(own).tolist()
    assert seen.explain("visits", "mean").gammas == pytest.approx(everything, abs=1e-7)
    assert seen.explain("series").gammas == pytest.approx(everything, abs=1e-7)
    assert seen.explain("visits", gamma=0.5).gammas == (0.5,)
    assert seen.explain("perron", gamma=0.5).gammas == ()


def test_recording_leaves_the_methods_alone(seen):
    before = dict(METHODS)
    seen.explain("visits")
    assert before == METHODS


def test_captions(seen):
    assert seen.explain("visits", gamma=0.9).caption == "visits, layer 3, mean of 8 heads, γ 0.90"
    assert seen.explain("perron", "mean", 2).caption == "perron, layers 0 to 3, head 2"
    assert seen.explain("centre").caption == "centre"
    assert seen.explain("rollout").caption == "rollout, layers 0 to 3"
    assert seen.explain("gradcam", 1).caption == "gradcam, layer 1, of class 8"
    of_three = seen.explain("gradient-degree", 1, 2, target="3")
    assert of_three.caption == "gradient-degree, layer 1, head 2, of class 3"
    assert seen.explain("untrained-perron").caption == "untrained-perron, layer 3, mean of 8 heads"


def test_words():
    assert layers_text([]) == ""
    assert layers_text([4]) == "layer 4"
    assert layers_text([0, 1]) == "layers 0, 1"
    assert layers_text([1, 2, 3]) == "layers 1 to 3"
    assert layers_text([0, 2, 3]) == "layers 0, 2, 3"
    assert heads_text(None) == ""
    assert heads_text([7]) == "head 7"
    assert heads_text([0, 1]) == "mean of 2 heads"
    assert gammas_text([]) == ""
    assert gammas_text([0.9512, 0.9488]) == "γ 0.95"
    assert gammas_text([0.91, 0.95]) == "γ 0.91 to 0.95"


def test_prediction(model):
    logits = torch.log(torch.tensor([0.125, 0.75, 0.125]))
    assert prediction(model, logits) == "predicted: 1, 75%"
    small = VisionTransformer(img_size=32, patch_size=16, embed_dim=24, depth=1, num_heads=2)
    assert prediction(small, logits) == "predicted: class 1, 75%"
    small.reset_classifier(0)
    assert prediction(small, logits) == ""
