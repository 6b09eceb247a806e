"""Figures by their content: which pixels, scales, boxes and words are in them."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from drawn_figures import bars, panels, pixels, save, words
from matplotlib.patches import Rectangle
from PIL import Image

import infsa_explain
from infsa_explain.data import PhotoDigits
from infsa_explain.drawing.figures import Panel, draw, figure, grid, table
from infsa_explain.drawing.heatmap import overlay

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
