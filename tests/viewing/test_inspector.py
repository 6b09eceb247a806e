"""The inspector without a browser: which pictures a choice has, and what the widget holds."""

from __future__ import annotations

import base64
import io
import sys
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from timm.models import VisionTransformer

import infsa_explain
from infsa_explain.data import PhotoDigits
from infsa_explain.drawing.heatmap import overlay
from infsa_explain.methods import applicable_methods
from infsa_explain.viewing.contributions import token_contributions
from infsa_explain.viewing.galleries import inspect
from infsa_explain.viewing.inspector import SCALES, SIDE, Choice, Inspector
from infsa_explain.viewing.views import view


@pytest.fixture(scope="module")
def model():
    return infsa_explain.load("infvit_linear_digits")


@pytest.fixture(scope="module")
def sample():
    return PhotoDigits("val")[0]


@pytest.fixture(scope="module")
def inspector(model, sample):
    return Inspector.of(view(model, sample.image, boxes=sample.boxes))


@pytest.fixture(scope="module")
def ground(sample):
    """The image in the size that it is shown in."""
    return cv2.resize(sample.image, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)


def maps(model, sample, method="visits", layer=-1, head=None, **options):
    images = infsa_explain.preprocess(model, sample.image)
    return infsa_explain.explain(model, images, method, layer, head, **options).maps[0].numpy()


def test_methods_are_those_that_suit_the_model(inspector):
    assert inspector.methods == applicable_methods({"linear"})


def test_the_map_as_chosen(model, sample, inspector, ground):
    choice = Choice("katz", layer=1, head=3, gamma=0.5, colormap="magma", opacity=0.4)
    (picture,) = inspector.pictures(choice)
    truth = maps(model, sample, "katz", 1, 3, gamma=0.5)
    np.testing.assert_array_equal(picture.values, truth)
    drawn = overlay(ground, truth, colormap="magma", opacity=0.4)
    np.testing.assert_array_equal(picture.pixels, drawn)
    assert (picture.scale.low, picture.scale.high) == (truth.min(), truth.max())
    assert picture.caption == "katz, layer 1, head 3, γ 0.50"
    assert picture.title == inspector.view.prediction
    grey = np.full((1, 32, 3), 128, dtype=np.uint8)
    bar = overlay(grey, np.arange(32.0)[None], colormap="magma", opacity=0.4)
    np.testing.assert_array_equal(picture.colours, bar[0])


def test_the_map_of_a_class(model, sample, inspector):
    for target, name in ((3, "3"), (None, "8")):  # predicted is 8
        (picture,) = inspector.pictures(Choice("relevance", target=target))
        truth = maps(model, sample, "relevance", target=target)
        np.testing.assert_array_equal(picture.values, truth)
        assert picture.caption == f"relevance, layers 0 to 3, of class {name}"
    assert inspector.look(Choice("visits", target=3)).of == ""


def test_classes_to_choose_from(model, sample):
    seen = view(model, sample.image)
    probabilities = seen.graphs.logits[0].softmax(-1)
    values, likely = (each.tolist() for each in probabilities.topk(5))
    texts = [f"class {i}, {value:.1%}" for i, value in zip(likely, values, strict=True)]
    others = list(zip(likely[1:], texts[1:], strict=True))
    assert Inspector.of(seen).targets() == [(None, f"predicted: {texts[0]}"), *others]
    last = int(probabilities.argmin())
    ends = f"class {last}, {probabilities[last]:.1%}"
    assert Inspector.of(seen).targets(last)[5:] == [(last, ends)]
    labelled = Inspector.of(seen, label=last).targets(last)
    assert labelled[:2] == [(None, f"predicted: {texts[0]}"), (last, f"label: {ends}")]
    assert labelled[2:] == others
    with pytest.raises(ValueError, match="label must be a class of the model, 0 to 9, got 10"):
        Inspector.of(seen, label=10)


def test_a_model_without_a_classifier_has_no_classes():
    torch.manual_seed(0)
    vit = VisionTransformer(32, 8, num_classes=0, embed_dim=24, depth=2, num_heads=2).eval()
    headless = Inspector.of(view(vit, np.zeros((32, 32, 3), dtype=np.uint8)))
    assert headless.targets(1) == []
    assert headless.look(Choice("relevance")).of == "of the embedding"


@pytest.mark.parametrize("scale", SCALES)
def test_ends_of_the_scale(model, sample, inspector, ground, scale):
    (picture,) = inspector.pictures(Choice(layer=2, scale=scale))
    own = maps(model, sample, layer=2)
    every = {
        "all layers": [maps(model, sample, layer=layer) for layer in range(4)],
        "all heads": [own, *(maps(model, sample, layer=2, head=head) for head in range(8))],
    }.get(scale, [own])
    low, high = np.min(every), np.max(every)
    if scale == "this map, outliers clipped":
        high = np.percentile(own.astype(np.float64), 99)
    assert (picture.scale.low, picture.scale.high) == (low, high)
    drawn = overlay(ground, own.clip(low, high), vmin=low, vmax=high)
    np.testing.assert_array_equal(picture.pixels, drawn)
    np.testing.assert_array_equal(picture.values, own)


def test_a_patch_shows_its_column_and_row_of_f(inspector, ground):
    row, column = 4, 6
    patch = 14 * row + column
    pictures = inspector.pictures(Choice(layer=2, head=1, gamma=0.8, patch=patch))
    parts = token_contributions(inspector.view.graphs, patch, layers=(2,), heads=(1,), gamma=0.8)
    titles = ["where visits to row 4, column 6 come from", "where walks from row 4, column 6 go"]
    for picture, title, tokens in zip(
        pictures[1:], titles, (parts.sources, parts.destinations), strict=True
    ):
        shares = (tokens[0] / tokens[0].sum()).numpy().reshape(14, 14)
        np.testing.assert_allclose(picture.values, shares, rtol=1e-6)
        others = np.delete(shares, patch)
        np.testing.assert_allclose(picture.scale, (others.min(), others.max()), rtol=1e-9)
        assert picture.title == title
        assert picture.unit == "share"
        assert picture.caption == f"layer 2, γ 0.80: itself {shares[row, column]:.0%}"
        clipped = picture.values.clip(*picture.scale)
        ends = {"vmin": picture.scale.low, "vmax": picture.scale.high}
        np.testing.assert_array_equal(picture.pixels, overlay(ground, clipped, **ends))


def test_prefix_tokens_have_their_share():
    torch.manual_seed(0)
    vit = VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2).eval()
    image = np.random.default_rng(0).integers(0, 256, (32, 64, 3), dtype=np.uint8)
    of_vit = Inspector.of(view(vit, image))
    sources = of_vit.pictures(Choice(patch=5))[1]
    tokens = token_contributions(of_vit.view.graphs, 6).sources[0]
    own, prefix = tokens[6] / tokens.sum(), tokens[0] / tokens.sum()
    assert sources.caption == f"layer 1, γ 0.95: itself {own:.0%}, prefix tokens {prefix:.0%}"
    assert sources.values.sum() == pytest.approx(1 - prefix.item(), abs=1e-6)


@pytest.mark.filterwarnings("ignore:.* has no map for some images")
def test_a_dead_head_has_no_map(sample, ground):
    model = infsa_explain.load("infvit_pure_digits")
    with torch.no_grad():
        model.blocks[3].attn.qkv.weight[32:48] = 0
        model.blocks[3].attn.qkv.bias[32:48] = 0
    choice = Choice(head=2, patch=0, gamma=0.9)
    for picture in Inspector.of(view(model, sample.image)).pictures(choice):
        np.testing.assert_array_equal(picture.pixels, ground)
        assert picture.caption.endswith("γ 0.90: no map, every head is dead")


def test_notes_say_where_the_chain_fails(inspector):
    look = inspector.look(Choice(layer=1))
    share = look.explanation.diagnostics["invalid_rows"].mean()
    assert share > 0
    assert f"exceeds 1 for {share:.1%} of the tokens" in inspector.notes(Choice(layer=1))
    assert inspector.notes(Choice(layer=1, gamma=0.01)) == ""
    assert inspector.notes(Choice("perron")) == inspector.notes(Choice("pagerank")) == ""


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"patch": 196}, r"patch must be an index on the grid \(14, 14\), got 196"),
        ({"scale": "none"}, "scale must be one of this map, .*, got 'none'"),
        ({"opacity": 2.0}, r"opacity must lie in \[0, 1\]"),
        ({"layer": 4}, "layer 4 is out of range"),
        ({"gamma": 1.0}, r"gamma must lie in \(0, 1\)"),
        ({"method": "relevance", "target": 10}, "target must be a class of the model, 0 to 9"),
    ],
)
def test_refuses(inspector, changed, message):
    with pytest.raises(ValueError, match=message):
        inspector.pictures(replace(Choice(), **changed))


def test_without_widgets_it_is_a_figure(model, sample, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "infsa_explain.viewing.widget", raising=False)
    drawn = inspect(model, sample.image, method="degree", layer=1)
    shown = [axes.images[0].get_array() for axes in drawn.axes if axes.images]
    np.testing.assert_array_equal(shown[0], sample.image)
    truth = overlay(sample.image, maps(model, sample, "degree", 1))
    np.testing.assert_array_equal(shown[1], truth)
    assert drawn.get_supxlabel() == "degree, layer 1, mean of 8 heads"


class TestWidget:
    @pytest.fixture
    def widget(self, model, sample):
        pytest.importorskip("anywidget")
        return inspect(model, sample.image, boxes=sample.boxes, layer=-2)

    def test_menus(self, widget, sample):
        assert [entry["name"] for entry in widget.menus["methods"]] == applicable_methods(
            {"linear"}
        )
        assert (widget.menus["layers"], widget.menus["heads"]) == (4, 8)
        np.testing.assert_allclose(widget.menus["boxes"], sample.boxes / 112)
        of_a_class = {m["name"]: m["of_a_class"] for m in widget.menus["methods"]}
        assert of_a_class["relevance"] and not of_a_class["visits"]
        heads = {m["name"]: m["heads"] for m in widget.menus["methods"]}
        assert heads["visits"] and not (heads["gradcam"] or heads["relevance"])
        assert [target for target, _ in widget.menus["targets"]][0] is None

    def test_a_picture_as_the_browser_takes_it(self, widget, inspector):
        assert (widget.layer, widget.head, widget.patch) == (2, None, None)
        (packed,) = widget.pictures
        (truth,) = inspector.pictures(Choice(layer=2))
        pixels = np.asarray(Image.open(io.BytesIO(packed["jpeg"])))
        assert pixels.shape == truth.pixels.shape
        assert np.abs(pixels.astype(int) - truth.pixels).mean() < 3  # grey levels, of JPEG
        values = np.frombuffer(packed["values"], "<f4").reshape(14, 14)
        np.testing.assert_array_equal(values, truth.values)
        assert packed["colours"][0] == "rgb({} {} {})".format(*truth.colours[0])
        assert widget.gammas == pytest.approx(inspector.look(Choice(layer=2)).gammas)

    def test_a_trait_changes_the_pictures(self, widget):
        before = widget.pictures[0]
        widget.opacity = 0.3
        assert widget.pictures[0]["jpeg"] != before["jpeg"]
        assert widget.pictures[0]["values"] == before["values"]
        widget.patch = 60
        assert [picture["unit"] for picture in widget.pictures] == ["score", "share", "share"]
        widget.layer = "mean"
        assert widget.pictures[0]["caption"].startswith("visits, layers 0 to 3")
        assert widget.revision == 4
        widget.method, widget.target = "relevance", 3
        assert widget.pictures[0]["caption"] == "relevance, layers 0 to 3, of class 3"
        widget.head, widget.layer, widget.method = 2, 1, "gradcam"  # which has no heads
        assert widget.pictures[0]["caption"] == "gradcam, layer 1, of class 3"
        assert widget.message == ""
        widget.method = "degree"
        assert widget.pictures[0]["caption"] == "degree, layer 1, head 2"

    def test_its_script_needs_nothing_from_elsewhere(self, widget):
        script = str(widget._esm)
        assert "export default { render }" in script
        assert not [word for word in ("import ", "import(", "require(", "http") if word in script]

    def test_what_does_not_suit_is_said(self, widget):
        before = widget.pictures
        widget.gamma = 1.5
        assert widget.message == "gamma must lie in (0, 1), got 1.5"
        assert widget.pictures == before
        widget.gamma = None
        assert "gamma must" not in widget.message

    def test_a_saved_notebook_has_a_picture(self, widget):
        data, _ = widget._repr_mimebundle_()
        assert "application/vnd.jupyter.widget-view+json" in data
        width, height = Image.open(io.BytesIO(base64.b64decode(data["image/jpeg"]))).size
        assert width > height > 300

    def test_classes_by_name(self, model, sample):
        pytest.importorskip("anywidget")
        widget = inspect(model, sample.image, method="gradcam", target="3", label="8")
        assert widget.target == 3
        assert widget.pictures[0]["caption"] == "gradcam, layer 3, of class 3"
        with pytest.raises(ValueError, match="target must be the name or the number of a class"):
            inspect(model, sample.image, method="gradcam", target="cat")

    @pytest.mark.parametrize("layer", ["mean", "last", 3])
    def test_a_method_of_the_whole_model_keeps_the_layer_that_was_asked_for(
        self, model, sample, layer
    ):
        pytest.importorskip("anywidget")
        widget = inspect(model, sample.image, method="centre", layer=layer, head=-1)
        assert (widget.layer, widget.head) == ("mean" if layer == "mean" else 3, 7)
