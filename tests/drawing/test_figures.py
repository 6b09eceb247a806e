"""Figures and galleries by their content: which pixels, scales, boxes and words are in them."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle
from PIL import Image
from timm.models import VisionTransformer

import infsa_explain
from infsa_explain.data import PhotoDigits
from infsa_explain.drawing.figures import Panel, draw, figure, grid, table
from infsa_explain.drawing.heatmap import overlay
from infsa_explain.viewing.galleries import head_gallery, layer_table, method_gallery, side_by_side

GREY = np.full((12, 16, 3), 128, dtype=np.uint8)
SCORES = np.array([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])


@pytest.fixture
def photo():
    return np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)


@pytest.fixture
def scores():
    return np.random.default_rng(1).random((6, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def model():
    return infsa_explain.load("infvit_linear_digits")


@pytest.fixture(scope="module")
def sample():
    return PhotoDigits("val")[0]


def panels(drawn):
    """The axes with a picture in them, from the top left."""
    return [axes for axes in drawn.axes if axes.images]


def bars(drawn):
    """The axes of the colour bars, beside a panel or beside the figure."""
    own = [bar for axes in drawn.axes for bar in axes.child_axes]
    return own + [axes for axes in drawn.axes if not axes.images and axes.has_data()]


def pixels(panel):
    return panel.images[0].get_array()


def words(drawn):
    """Every text in the panels."""
    return [text.get_text() for axes in drawn.axes for text in axes.texts]


def save(drawn):
    with io.BytesIO() as file:
        drawn.savefig(file, format="png")
        return Image.open(file).size


class TestFigure:
    def test_original_overlay_and_bar(self, photo, scores):
        drawn = figure(photo, scores, title="a goose", caption="visits, layer 4", label="visits")
        original, covered = panels(drawn)
        np.testing.assert_array_equal(original.images[0].get_array(), photo)
        np.testing.assert_array_equal(covered.images[0].get_array(), overlay(photo, scores))
        (bar,) = bars(drawn)
        np.testing.assert_allclose(bar.get_ylim(), (scores.min(), scores.max()), rtol=1e-6)
        assert bar.get_ylabel() == "visits"
        assert drawn.get_suptitle() == "a goose"
        assert drawn.get_supxlabel() == "visits, layer 4"
        width, height = save(drawn)
        assert width > height > 100

    def test_leaves_pyplot_alone(self, photo, scores):
        import matplotlib.pyplot as plt

        before = plt.get_fignums()
        figure(photo, scores)
        grid(photo, {"a": scores})
        assert plt.get_fignums() == before

    def test_boxes_are_outlined_at_pixel_edges(self, photo, scores):
        drawn = figure(photo, scores, boxes=[[0, 1, 4, 3]])
        for panel in panels(drawn):
            outlines = [patch for patch in panel.patches if isinstance(patch, Rectangle)]
            assert [outline.get_bbox().extents.tolist() for outline in outlines] == [
                [-0.5, 0.5, 3.5, 2.5]
            ] * 2
        assert not panels(figure(photo, scores, boxes=np.zeros((0, 4))))[0].patches

    def test_refuses_other_boxes(self, photo, scores):
        with pytest.raises(ValueError, match=r"boxes must be \(K, 4\) .* got \(4,\)"):
            figure(photo, scores, boxes=[0, 1, 4, 3])

    def test_display_options_reach_the_overlay(self, photo, scores):
        options = {"opacity": 0.3, "colormap": "cividis", "vmin": 0.2, "vmax": 0.6}
        drawn = figure(photo, scores, **options)
        np.testing.assert_array_equal(
            panels(drawn)[1].images[0].get_array(), overlay(photo, scores, **options)
        )
        assert bars(drawn)[0].get_ylim() == (0.2, 0.6)

    def test_normalised_image(self, photo, scores):
        mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
        drawn = figure((photo / 255 - mean) / std, scores, mean=mean, std=std)
        np.testing.assert_array_equal(panels(drawn)[0].images[0].get_array(), photo)

    def test_bar_has_the_colours_on_mid_grey(self):
        (bar,) = bars(figure(GREY, SCORES))
        colours = bar.collections[-1].cmap([0.0, 1.0], bytes=True)[:, :3]
        assert colours.tolist() == [[118, 107, 121], [209, 195, 68]]

    @pytest.mark.parametrize(("value", "text"), [(0.25, "0.25"), (0, "0"), (-1e20, "-1e+20")])
    def test_constant_map_has_one_tick(self, photo, value, text):
        drawn = figure(photo, np.full((3, 4), value))
        (bar,) = bars(drawn)
        assert bar.get_yticks().tolist() == [value]
        assert bar.get_ylim()[0] == value
        assert [label.get_text() for label in bar.get_yticklabels()] == [text]
        save(drawn)


class TestGrid:
    def test_own_scales(self, photo, scores):
        drawn = grid(photo, {"a": scores, "b": 10 * scores, "c": -scores})
        assert [panel.get_title() for panel in panels(drawn)] == ["image", "a", "b", "c"]
        shown = [panel.images[0].get_array() for panel in panels(drawn)]
        np.testing.assert_array_equal(shown[1], shown[2])
        tops = [bar.get_ylim()[1] for bar in bars(drawn)]
        np.testing.assert_allclose(
            tops, [scores.max(), 10 * scores.max(), -scores.min()], rtol=1e-6
        )
        save(drawn)

    def test_shared_scale(self, photo, scores):
        maps = {"a": scores, "b": torch.from_numpy(10 * scores)}
        drawn = grid(photo, maps, shared_scale=True)
        limits = float(scores.min()), float((10 * scores).max())
        (bar,) = bars(drawn)
        np.testing.assert_allclose(bar.get_ylim(), limits, rtol=1e-6)
        for panel, values in zip(panels(drawn)[1:], maps.values(), strict=True):
            np.testing.assert_array_equal(
                panel.images[0].get_array(), overlay(photo, values, vmin=limits[0], vmax=limits[1])
            )
        save(drawn)

    def test_rows_are_balanced(self, photo, scores):
        drawn = grid(photo, {str(i): scores for i in range(4)}, columns=4)
        assert panels(drawn)[0].get_gridspec().get_geometry() == (2, 3)
        assert len(panels(drawn)) == 5

    def test_refuses_no_maps_and_no_columns(self, photo, scores):
        with pytest.raises(ValueError, match="at least one map, got none"):
            grid(photo, {})
        with pytest.raises(ValueError, match="columns must be at least 1, got 0"):
            grid(photo, {"a": scores}, columns=0)

    def test_a_map_without_scores_is_said_to_be_none(self, photo, scores):
        drawn = grid(photo, {"a": scores, "dead": np.full((6, 8), np.nan)}, shared_scale=True)
        pale = (0.2 * photo + 0.8 * 255).astype(np.uint8)
        np.testing.assert_array_equal(pixels(panels(drawn)[2]), pale)
        assert words(drawn) == ["no map"]
        np.testing.assert_allclose(bars(drawn)[0].get_ylim(), (scores.min(), scores.max()), 1e-6)
        save(drawn)

    def test_one_missing_score_is_refused(self, photo, scores):
        scores[2, 3] = np.nan
        with pytest.raises(ValueError, match="scores must be finite, got 1 NaN"):
            grid(photo, {"a": scores})


class TestTable:
    MAPS = {"visits": {"0": SCORES, "1": 2 * SCORES}, "perron": {"1": 3 * SCORES}}

    def test_places_and_names(self):
        drawn = table(GREY, self.MAPS)
        places = [
            (at.rowspan.start, at.colspan.start)
            for at in (panel.get_subplotspec() for panel in panels(drawn))
        ]
        assert places == [(0, 0), (0, 1), (0, 2), (1, 2)]
        assert [panel.get_title() for panel in panels(drawn)] == ["image", "0", "1", ""]
        assert words(drawn) == ["visits", "perron"]
        save(drawn)

    @pytest.mark.parametrize(
        ("scale", "tops", "bar_tops"),
        [
            ("own", [5, 10, 15], [5, 10, 15]),
            ("row", [10, 10, 15], [10, 15]),
            ("shared", [15, 15, 15], [15]),
        ],
    )
    def test_scales(self, scale, tops, bar_tops):
        drawn = table(GREY, self.MAPS, scale=scale)
        maps = [SCORES, 2 * SCORES, 3 * SCORES]
        for panel, scores, top in zip(panels(drawn)[1:], maps, tops, strict=True):
            truth = overlay(GREY, scores, vmin=0, vmax=top)
            np.testing.assert_array_equal(pixels(panel), truth)
        assert [bar.get_ylim() for bar in bars(drawn)] == [(0, top) for top in bar_tops]
        save(drawn)

    def test_a_row_that_ends_without_a_map_has_its_bar_and_name(self):
        nothing = np.full((2, 3), np.nan)
        maps = {"visits": {"0": nothing, "1": SCORES, "2": nothing}, "none": {"0": nothing}}
        drawn = table(GREY, maps, scale="row")
        (bar,) = bars(drawn)
        assert bar.get_ylim() == (0, 5)
        assert panels(drawn)[2].child_axes == [bar]
        assert sorted(words(drawn)) == ["no map", "no map", "no map", "none", "visits"]
        save(drawn)

    def test_refuses(self):
        with pytest.raises(ValueError, match="at least one map, got none"):
            table(GREY, {"visits": {}})
        with pytest.raises(ValueError, match="scale must be 'own', 'row' or 'shared', got 'all'"):
            table(GREY, self.MAPS, scale="all")


def test_a_figure_shows_itself_in_a_notebook(photo, scores, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    drawn = grid(photo, {"a": scores})
    drawn._ipython_display_()
    (picture,) = shown
    assert picture.format == "jpeg"
    assert Image.open(io.BytesIO(picture.data)).size == save(drawn)


@pytest.mark.parametrize(
    "draw_maps",
    [
        lambda photo, scores, **place: figure(photo, scores, **place),
        lambda photo, scores, **place: grid(photo, {"a": scores, "b": scores}, **place),
        lambda photo, scores, **place: table(photo, {"a": {"b": scores}}, **place),
    ],
    ids=["figure", "grid", "table"],
)
def test_a_map_of_a_crop_is_put_where_it_belongs(scores, draw_maps):
    """And without a region, it is said that it does not cover the photograph."""
    wide = np.random.default_rng(2).integers(0, 256, (24, 60, 3), dtype=np.uint8)
    with pytest.warns(UserWarning, match=r"60×24 pixels.*8×6 patches.* differ in shape") as told:
        draw_maps(wide, scores)
    assert len(told) == 1
    region = (14, 0, 46, 24)
    drawn = draw_maps(wide, scores, region=region)
    for panel in panels(drawn)[1:]:
        np.testing.assert_array_equal(pixels(panel), overlay(wide, scores, region=region))


def test_panels_of_different_sizes(photo, scores):
    drawn = draw([[Panel(photo), None, Panel(GREY, scores, "small", [[0, 0, 2, 2]])]])
    assert [pixels(panel).shape for panel in panels(drawn)] == [(24, 32, 3), (12, 16, 3)]
    assert len(panels(drawn)[1].patches) == 2 and not panels(drawn)[0].patches
    save(drawn)


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

    def test_refuses(self, model, sample):
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
