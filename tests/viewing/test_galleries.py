"""Galleries by their content: which maps, scales, boxes and words are in them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drawn_figures import bars, panels, pixels, save, words
from timm.models import VisionTransformer

import infsa_explain
from infsa_explain.data import PhotoDigits
from infsa_explain.drawing.heatmap import overlay
from infsa_explain.viewing.galleries import (
    head_gallery,
    inspect,
    layer_table,
    method_gallery,
    side_by_side,
)


@pytest.fixture(scope="module")
def model():
    return infsa_explain.load("infvit_linear_digits")


@pytest.fixture(scope="module")
def sample():
    return PhotoDigits("val")[0]


class TestMethodGallery:
    def test_maps_and_words(self, model, sample):
        names = ["centre", "visits", "degree"]
        drawn = method_gallery(model, sample.image, names, layer=1, head=2, gamma=0.9)
        images = infsa_explain.preprocess(model, sample.image)
        for panel, name in zip(panels(drawn)[1:], names, strict=True):
            place = {} if name == "centre" else {"layer": 1, "head": 2, "gamma": 0.9}
            scores = infsa_explain.explain(model, images, name, **place).maps[0]
            np.testing.assert_array_equal(pixels(panel), overlay(sample.image, scores))
        assert [panel.get_title() for panel in panels(drawn)] == ["image", *names]
        assert drawn.get_supxlabel() == "layer 1, head 2, γ 0.90"
        assert drawn.get_suptitle().startswith("predicted: 8, ")

    def test_methods_of_the_whole_model_have_no_layer(self, model, sample):
        assert method_gallery(model, sample.image, ["centre", "random"]).get_supxlabel() == ""

    def test_only_what_has_heads_is_said_to_have_them(self, model, sample):
        """And the class is named, of the methods that have one."""
        names = ["gradcam", "relevance"]
        drawn = method_gallery(model, sample.image, names, layer=1, target="3")
        assert drawn.get_supxlabel() == "layer 1, of class 3"
        images = infsa_explain.preprocess(model, sample.image)
        for panel, options in zip(panels(drawn)[1:], ({"layer": 1}, {}), strict=True):
            name = panel.get_title()
            scores = infsa_explain.explain(model, images, name, target=3, **options).maps[0]
            np.testing.assert_array_equal(pixels(panel), overlay(sample.image, scores))
        with pytest.raises(ValueError, match="head must be left out for gradcam, relevance, "):
            method_gallery(model, sample.image, ["visits", *names, "random"], head=2)

    def test_refuses_no_method(self, model, sample):
        with pytest.raises(ValueError, match="at least one map, got none"):
            method_gallery(model, sample.image, [])


class TestLayerTable:
    def test_maps_words_and_boxes(self, model, sample):
        drawn = layer_table(
            model, sample.image, ("visits", "degree", "rollout"), layers=(1, -1), boxes=sample.boxes
        )
        images = infsa_explain.preprocess(model, sample.image)
        wanted = [("visits", 1), ("visits", 3), ("degree", 1), ("degree", 3), ("rollout", -1)]
        for panel, (method, layer) in zip(panels(drawn)[1:], wanted, strict=True):
            scores = infsa_explain.explain(model, images, method, layer).maps[0]
            np.testing.assert_array_equal(pixels(panel), overlay(sample.image, scores))
            x0, y0, x1, y1 = sample.boxes[0] - 0.5
            assert panel.patches[0].get_bbox().extents.tolist() == [x0, y0, x1, y1]
        titles = [panel.get_title() for panel in panels(drawn)]
        assert titles == ["image", "layer 1", "layer 3", "", "", "rollout"]
        assert words(drawn) == ["visits", "degree", "whole model"]
        probability = model(images).softmax(-1)[0, 8].item()
        assert drawn.get_suptitle() == f"predicted: 8, {probability:.0%}"
        gammas = torch.cat([model.blocks[i].attn.gamma_logit.sigmoid() for i in (1, 3)])
        words_of_gamma = f"γ {gammas.min():.2f} to {gammas.max():.2f}"
        assert drawn.get_supxlabel() == f"mean of 8 heads, {words_of_gamma}"
        save(drawn)

    def test_layers_are_named_below_a_row_of_the_whole_model(self, model, sample):
        drawn = layer_table(model, sample.image, ("rollout", "perron", "degree"), layers=(0, 2))
        titles = [panel.get_title() for panel in panels(drawn)]
        assert titles == ["image", "rollout", "layer 0", "layer 2", "", ""]

    def test_a_method_named_twice_is_drawn_once(self, model, sample):
        drawn = layer_table(model, sample.image, ("degree", "degree"), layers=(0, 0))
        titles = [panel.get_title() for panel in panels(drawn)]
        assert titles == ["image", "layer 0", "layer 0"] and words(drawn) == ["degree"]

    def test_refuses(self, model, sample):
        with pytest.raises(ValueError, match=r"layer must be left out, use layers=\[…\], got 1"):
            layer_table(model, sample.image, layer=1)
        with pytest.raises(ValueError, match="at least one map method, got none"):
            layer_table(model, sample.image, ())
        with pytest.raises(ValueError, match=r"layer 4 is out of range: the model has 4"):
            layer_table(model, sample.image, ["visits"], layers=[0, 4])
        with pytest.raises(ValueError, match="head must be left out for gradcam"):
            layer_table(model, sample.image, ["visits", "gradcam"], head=0)


class TestHeadGallery:
    @pytest.mark.filterwarnings("ignore:.* has no map for some images")
    def test_every_head_and_a_dead_one(self, sample):
        model = infsa_explain.load("infvit_pure_digits")
        with torch.no_grad():  # queries of head 2, of width 16: zero
            attention = model.blocks[3].attn
            attention.qkv.weight[32:48] = 0
            attention.qkv.bias[32:48] = 0
        drawn = head_gallery(model, sample.image, "perron", columns=3)
        images = infsa_explain.preprocess(model, sample.image)
        titles = ["image", *(f"head {head}" for head in range(8))]
        assert [panel.get_title() for panel in panels(drawn)] == titles
        for head, panel in enumerate(panels(drawn)[1:]):
            if head != 2:
                scores = infsa_explain.explain(model, images, "perron", head=head).maps[0]
                np.testing.assert_array_equal(pixels(panel), overlay(sample.image, scores))
        assert words(drawn) == ["no map"]
        assert drawn.get_supxlabel() == "perron, layer 3"
        assert len(bars(drawn)) == 7
        save(drawn)

    def test_gamma_is_said_of_each_head(self, model, sample):
        gammas = model.blocks[3].attn.gamma_logit.sigmoid()
        titles = [panel.get_title() for panel in panels(head_gallery(model, sample.image))[1:]]
        assert titles == [f"head {head}, γ {gamma:.2f}" for head, gamma in enumerate(gammas)]

    @pytest.mark.parametrize("method", ["rollout", "gradcam", "random"])
    def test_refuses_a_method_without_heads(self, model, sample, method):
        with pytest.raises(ValueError, match=f"must score each head, got '{method}'"):
            head_gallery(model, sample.image, method)

    def test_refuses_a_head(self, model, sample):
        with pytest.raises(ValueError, match="head must be left out, all heads are drawn, got 2"):
            head_gallery(model, sample.image, head=2)

    def test_refuses_a_layer_that_is_none(self, model, sample):
        with pytest.raises(ValueError, match="layer 4 is out of range: the model has 4"):
            head_gallery(model, sample.image, layer=4)


class TestSideBySide:
    def test_what_differs_is_said_above_and_the_rest_below(self, model, sample):
        twin = infsa_explain.load("infvit_pure_digits")
        drawn = side_by_side({"linear": model, "pure": twin}, sample.image, shared_scale=True)
        lines = [panel.get_title().split("\n") for panel in panels(drawn)]
        assert lines[0] == ["image"]
        for (name, one), shown in zip((("linear", model), ("pure", twin)), lines[1:], strict=True):
            logits = one(infsa_explain.preprocess(one, sample.image))
            probability, best = logits.softmax(-1)[0].max(-1)
            gammas = one.blocks[3].attn.gamma_logit.sigmoid()
            low, high = f"{gammas.min():.2f}", f"{gammas.max():.2f}"
            said = f"γ {low}" if low == high else f"γ {low} to {high}"
            assert shown == [name, f"predicted: {best}, {probability:.0%}", said]
        assert drawn.get_supxlabel() == "visits, layer 3, mean of 8 heads"
        assert len(bars(drawn)) == 1
        save(drawn)

    def test_models_of_different_depth_and_frame(self, sample):
        torch.manual_seed(0)
        size = {"patch_size": 16, "embed_dim": 24, "num_heads": 2, "num_classes": 0}
        shallow = VisionTransformer(img_size=32, depth=1, **size).eval()
        deep = VisionTransformer(img_size=(32, 64), depth=3, **size).eval()
        drawn = side_by_side({"shallow": shallow, "deep": deep}, sample.image, gamma=0.9)
        assert [panel.get_title() for panel in panels(drawn)[1:]] == [
            "shallow\nlayer 0",
            "deep\nlayer 2",
        ]
        assert drawn.get_supxlabel() == "visits, mean of 2 heads, γ 0.90"
        # Of 112 pixels, resized to 36 and 73: 32·112/36, and 64 and 32 times 112/73.
        sizes = [pixels(panel).shape[:2] for panel in panels(drawn)[1:]]
        assert sizes == [(100, 100), (49, 98)]  # the middle of the image

    def test_refuses_no_model(self, sample):
        with pytest.raises(ValueError, match="at least one model, got none"):
            side_by_side({}, sample.image)


@pytest.mark.parametrize("gallery", [method_gallery, layer_table, head_gallery, inspect])
def test_unknown_options_are_refused(model, sample, gallery):
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        gallery(model, sample.image, colour="red")
