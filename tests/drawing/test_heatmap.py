"""Overlays against a blend written out in numpy, upsampling against torch."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from infsa_explain.data import read_image
from infsa_explain.data.pixels import to_pixels
from infsa_explain.drawing.heatmap import overlay, upsample

GREY = np.full((12, 16, 3), 128, dtype=np.uint8)
SCORES = np.array([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])


@pytest.fixture
def photo():
    return np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)


@pytest.fixture
def scores():
    return np.random.default_rng(1).random((6, 8)).astype(np.float32)


class TestUpsample:
    @pytest.mark.parametrize("size", [(24, 32), (13, 7), (3, 50), (6, 8), (2, 2)])
    def test_equals_torch(self, scores, size):
        truth = torch.nn.functional.interpolate(
            torch.from_numpy(scores)[None, None].double(),
            size,
            mode="bilinear",
            align_corners=False,
        )
        enlarged = upsample(scores, size)
        assert enlarged.dtype == np.float64
        np.testing.assert_allclose(enlarged, truth[0, 0].numpy(), rtol=0, atol=1e-6)

    def test_by_hand(self):
        assert upsample(np.array([[0], [8]]), (4, 1)).tolist() == [[0], [2], [6], [8]]

    def test_refuses_an_empty_size(self):
        with pytest.raises(ValueError, match=r"at least one pixel, got \(0, 4\)"):
            upsample(SCORES, (0, 4))


def blend(photo, fraction, opacity=0.65):
    """The documented blend in float64, for viridis."""
    colour = 255 * matplotlib.colormaps["viridis"](fraction)[..., :3]
    grey = (photo @ [0.299, 0.587, 0.114])[..., None]
    share = 0.8 * min(1, 2 * opacity)
    ground = share * grey + (1 - share) * photo
    weight = opacity * (0.25 + 0.75 * np.sqrt(fraction))[..., None]
    return weight * colour + (1 - weight) * ground


class TestOverlay:
    @pytest.mark.parametrize("opacity", [0.3, 0.65, 1.0])
    def test_equals_the_blend_written_out(self, photo, scores, opacity):
        raised = upsample(scores, (24, 32))
        fraction = (raised - scores.min()) / (scores.max() - scores.min())
        drawn = overlay(photo, scores, opacity=opacity)
        assert (drawn.shape, drawn.dtype) == (photo.shape, np.uint8)
        # Two roundings to grey levels, and the colour map's own table has 256 whole-level entries.
        np.testing.assert_allclose(drawn, blend(photo, fraction, opacity), rtol=0, atol=2)

    def test_ends_by_hand(self):
        # viridis runs from (68, 1, 84) to (253, 231, 36); the weights are 0.1625 and 0.65.
        drawn = overlay(GREY, np.array([[0, 1]]))
        assert drawn[0, 0].tolist() == [118, 107, 121]
        assert drawn[-1, -1].tolist() == [209, 195, 68]

    def test_opacity_zero_is_the_image(self, photo, scores):
        np.testing.assert_array_equal(overlay(photo, scores, opacity=0), photo)

    def test_colour_grows_with_the_score(self):
        drawn = overlay(np.full((10, 90, 3), 128, dtype=np.uint8), np.linspace(0, 1, 9)[None])
        chroma = drawn[0].max(-1).astype(int) - drawn[0].min(-1)
        assert chroma[-1] == 141  # 209 - 68
        assert chroma[0] == 14  # 121 - 107
        change = np.abs(drawn[0].astype(int) - 128).sum(-1)
        assert change[-1] > change[45] > change[0]

    def test_shift_and_scale_of_the_map_change_nothing(self, photo, scores):
        np.testing.assert_array_equal(overlay(photo, scores), overlay(photo, 1024 * scores - 512))

    @pytest.mark.parametrize("value", [0.0, -3.0, 1 / 3, 1e20])
    def test_constant_map_is_at_the_low_end(self, photo, value):
        low = overlay(photo, np.zeros((2, 3)), vmin=0, vmax=1)
        np.testing.assert_array_equal(overlay(photo, np.full((6, 8), value)), low)

    def test_rounding_noise_is_no_structure(self, photo):
        noisy = np.float32(1 / 3) + np.float32(3e-8) * np.arange(6, dtype=np.float32).reshape(2, 3)
        assert np.ptp(noisy) > 0
        np.testing.assert_array_equal(overlay(photo, noisy), overlay(photo, np.zeros((2, 3))))

    def test_inputs_are_left_alone(self, photo, scores):
        tensor, values = torch.rand(3, 24, 32), torch.rand(6, 8, requires_grad=True)
        before = photo.copy(), scores.copy(), tensor.clone(), values.detach().clone()
        photo.flags.writeable = scores.flags.writeable = False
        overlay(photo, scores)
        overlay(Image.fromarray(photo), scores)
        overlay(tensor, values)
        np.testing.assert_array_equal(photo, before[0])
        np.testing.assert_array_equal(scores, before[1])
        assert torch.equal(tensor, before[2])
        assert torch.equal(values.detach(), before[3]) and values.requires_grad

    def test_result_is_new_and_writable(self, photo, scores):
        drawn = overlay(photo, scores, opacity=0)
        drawn[:] = 0
        assert photo.max() > 0


class TestImageKinds:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_all_kinds_agree(self, photo, scores, dtype):
        truth = overlay(photo, scores)
        chw = torch.from_numpy(photo).permute(2, 0, 1)
        kinds = [
            Image.fromarray(photo),
            photo / 255,
            (photo / 255).astype(np.float32),
            np.asfortranarray(photo),
            chw,
            chw.to(dtype) / 255,
            (chw.to(dtype) / 255).requires_grad_(),
        ]
        for image in kinds:
            np.testing.assert_array_equal(overlay(image, torch.from_numpy(scores)), truth)

    def test_pillow_modes(self, scores):
        truth = overlay(GREY, scores)
        for mode in ("L", "RGBA", "RGB"):
            image = Image.fromarray(GREY).convert(mode)
            np.testing.assert_array_equal(overlay(image, scores), truth)
            array = np.asarray(image)
            np.testing.assert_array_equal(overlay(array, scores), truth)
            np.testing.assert_array_equal(overlay(torch.from_numpy(array / 255), scores), truth)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_denormalises(self, photo, scores, dtype):
        mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        chw = torch.from_numpy(photo).permute(2, 0, 1) / 255
        normal = (chw - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
        drawn = overlay(normal.to(dtype), scores, mean=mean, std=std, opacity=0)
        # bfloat16 has 8 bits: up to 2.64 * 2**-9 * 0.225 * 255 = 0.3 levels, then rounding
        tolerance = 0 if dtype == torch.float32 else 1
        np.testing.assert_allclose(drawn, photo.astype(int), rtol=0, atol=tolerance)

    def test_refuses_floats_to_255(self, scores):
        with pytest.raises(ValueError, match=r"got \[0, 255\]; .* values to 255 are for uint8"):
            overlay(np.linspace(0, 255, 48).reshape(4, 4, 3), scores)

    @pytest.mark.parametrize("worst", [-0.1, 1.1, np.nan, np.inf])
    def test_refuses_floats_out_of_range(self, scores, worst):
        image = np.full((4, 4, 3), 0.5)
        image[1, 2, 0] = worst
        with pytest.raises(ValueError, match="denormalise it, or pass the mean and std"):
            overlay(image, scores)

    @pytest.mark.parametrize(
        ("image", "message"),
        [
            (np.zeros(4, np.uint8), r"must be \(H, W\), \(H, W, C\) or \(C, H, W\) .* got \(4,\)"),
            (np.zeros((0, 4, 3), np.uint8), r"1, 3 or 4 channels, got \(0, 4, 3\)"),
            (np.zeros((5, 6, 2), np.uint8), r"1, 3 or 4 channels, got \(5, 6, 2\)"),
            (torch.zeros(1, 3, 4, 4), r"1, 3 or 4 channels, got \(1, 3, 4, 4\)"),
            (7, "1, 3 or 4 channels, got int 7"),
            (np.zeros((4, 4, 3), np.int64), r"uint8, or float in \[0, 1\], got int64"),
            (np.zeros((4, 4), bool), r"uint8, or float in \[0, 1\], got bool"),
            (np.full((4, 4, 3), 256.0), r"must lie in \[0, 1\], got \[256, 256\]"),
            (np.full((4, 4, 3), 1.5), r"must lie in \[0, 1\], got \[1.5, 1.5\]"),
        ],
    )
    def test_refuses_other_arrays(self, scores, image, message):
        with pytest.raises(ValueError, match=message):
            overlay(image, scores)

    def test_refuses_half_a_normalisation(self, scores):
        with pytest.raises(ValueError, match="mean and std go together"):
            overlay(GREY, scores, mean=(0.5, 0.5, 0.5))
        with pytest.raises(ValueError, match="mean and std are for float images, got uint8"):
            overlay(GREY, scores, mean=(0.5, 0.5, 0.5), std=(1, 1, 1))


class TestToPixels:
    """What people have of one image, as the same pixels."""

    def test_shapes(self, photo):
        chw = photo.transpose(2, 0, 1)
        for image in (photo, chw, torch.from_numpy(photo), torch.from_numpy(chw)):
            np.testing.assert_array_equal(to_pixels(image), photo)
        grey = photo[..., 0]
        truth = np.stack([grey] * 3, -1)
        for image in (grey, grey[..., None], grey[None], torch.from_numpy(grey)[None], grey / 255):
            np.testing.assert_array_equal(to_pixels(image), truth)

    def test_where_a_shape_fits_both_the_type_decides(self):
        strip = np.random.default_rng(3).integers(0, 256, (3, 40, 3), dtype=np.uint8)
        np.testing.assert_array_equal(to_pixels(strip), strip)
        np.testing.assert_array_equal(to_pixels(torch.from_numpy(strip)), strip.transpose(1, 2, 0))

    @pytest.mark.parametrize("dtype", [np.uint8, np.float32])
    def test_what_is_transparent_lies_over_white(self, dtype):
        rgba = np.array([[[200, 100, 0, 255], [200, 100, 0, 0], [200, 100, 0, 51]]])
        image = rgba.astype(dtype) if dtype == np.uint8 else rgba.astype(dtype) / 255
        # One fifth of the colour and four fifths of white.
        truth = [[[200, 100, 0], [255, 255, 255], [244, 224, 204]]]
        assert to_pixels(image).tolist() == truth
        assert to_pixels(torch.from_numpy(image).movedim(2, 0)).tolist() == truth
        assert to_pixels(Image.fromarray(rgba.astype(np.uint8))).tolist() == truth

    def test_the_range_of_floats(self, photo):
        for image in (photo / 255, photo.astype(np.float32), photo.astype(np.float64)):
            np.testing.assert_array_equal(to_pixels(image), photo)
        # Whole numbers 0 and 1 are black and white.
        assert to_pixels(np.eye(2))[..., 0].tolist() == [[255, 0], [0, 255]]
        for image in (photo + 0.25, photo - 1.0, photo / 100, photo * np.nan):
            with pytest.raises(ValueError, match=r"a float image must lie in \[0, 1\], got \["):
                to_pixels(image)

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_pillow_and_the_file_are_turned_alike(self, tmp_path, orientation):
        pixels = np.random.default_rng(4).integers(0, 256, (4, 6, 3), dtype=np.uint8)
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
        truth = read_image(tmp_path / "a.png")
        assert truth.shape == ((4, 6, 3) if orientation < 5 else (6, 4, 3))
        np.testing.assert_array_equal(to_pixels(tmp_path / "a.png"), truth)
        np.testing.assert_array_equal(to_pixels(Image.open(tmp_path / "a.png")), truth)

    def test_a_path_that_leads_nowhere(self, tmp_path):
        with pytest.raises(ValueError, match=r"image '.*none.png' does not exist; check the path"):
            to_pixels(tmp_path / "none.png")
        with pytest.raises(ValueError, match="is a folder; give the path of one image file"):
            to_pixels(str(tmp_path))


class TestRegion:
    """A map of a part of the image, against the map of that part alone."""

    @pytest.mark.parametrize("place", [(0, 0), (4, 8), (12, 18)])
    def test_inside_it_is_the_overlay_of_the_part(self, photo, scores, place):
        top, left = place
        part = photo[top : top + 12, left : left + 14]
        drawn = overlay(photo, scores, region=(left, top, left + 14, top + 12))
        inside = drawn[top : top + 12, left : left + 14]
        whole = overlay(part, scores, region=(0, 0, 14, 12))
        np.testing.assert_array_equal(inside, whole)

    def test_outside_it_is_dark_grey(self, photo, scores):
        drawn = overlay(photo, scores, region=(8, 0, 24, 24))
        outside = np.delete(drawn, np.s_[8:24], axis=1)
        grey = np.delete(photo, np.s_[8:24], axis=1) @ [0.299, 0.587, 0.114]
        assert np.ptp(outside, axis=-1).max() == 0
        # 0.4 of a grey level, which is rounded before.
        np.testing.assert_allclose(outside[..., 0], 0.4 * grey, rtol=0, atol=0.7)
        np.testing.assert_array_equal(
            overlay(photo, scores, region=(8, 0, 24, 24), opacity=0), photo
        )

    def test_a_pixel_is_inside_when_its_centre_is(self):
        drawn = overlay(GREY, np.ones((1, 1)), region=(2.5, 3.6, 9.4, 8.5), opacity=1)
        inside = drawn[..., 2] != 51
        expected = np.zeros((12, 16), bool)
        expected[4:8, 2:9] = True
        np.testing.assert_array_equal(inside, expected)

    def test_beyond_the_image_the_map_goes_on(self, photo, scores):
        """As where the model saw a border: the same map over a larger image, cut."""
        drawn = overlay(photo, scores, region=(-4, -8, 36, 30))
        framed = np.zeros((38, 40, 3), np.uint8)
        framed[8:32, 4:36] = photo
        truth = overlay(framed, scores, region=(0, 0, 40, 38))[8:32, 4:36]
        np.testing.assert_array_equal(drawn, truth)

    def test_values_by_hand(self):
        """Patch centres at columns 3 and 5; between them a line."""
        values = upsample(np.array([[0.0, 1.0]]), (1, 8), region=(2, 0, 6, 1))
        assert values.tolist() == [[0, 0, 0, 0.25, 0.75, 1, 1, 1]]

    @pytest.mark.parametrize("region", [(1, 0, 1, 4), (4, 0, 1, 4), (0, 0, np.nan, 4), (0, 0, 5)])
    def test_refuses_one_without_area(self, photo, scores, region):
        with pytest.raises(ValueError, match="rectangle with an area, got"):
            overlay(photo, scores, region=region)


class TestAspect:
    @pytest.mark.parametrize(
        ("shape", "grid"),
        [
            ((375, 500), (14, 14)),  # a photograph, and the map of a square crop
            ((500, 375), (7, 7)),
            ((386, 500), (8, 8)),
            ((240, 250), (14, 14)),
            ((224, 224), (14, 16)),
        ],
    )
    def test_a_map_that_does_not_cover_the_image_is_told_of(self, shape, grid):
        said = (
            rf"image \({shape[1]}×{shape[0]} pixels\) and the map \({grid[1]}×{grid[0]} patches\)"
        )
        with pytest.warns(UserWarning, match=said):
            overlay(np.zeros((*shape, 3), np.uint8), np.random.default_rng(0).random(grid))

    @pytest.mark.parametrize(
        ("shape", "grid"),
        [
            ((224, 224), (14, 14)),
            ((375, 500), (27, 36)),
            ((226, 224), (14, 14)),
            ((64, 96), (4, 6)),
        ],
    )
    def test_rounding_is_not(self, shape, grid):
        overlay(np.zeros((*shape, 3), np.uint8), np.random.default_rng(0).random(grid))


class TestScale:
    def test_vmin_and_vmax_clip_for_display(self):
        wide = overlay(GREY, SCORES, vmin=1, vmax=3)
        np.testing.assert_array_equal(wide[0, 0], overlay(GREY, SCORES)[0, 0])
        np.testing.assert_array_equal(wide[-1, -1], overlay(GREY, SCORES)[-1, -1])
        half = overlay(GREY, np.full((3, 4), 2.0), vmin=1, vmax=3)
        np.testing.assert_allclose(half, blend(GREY, np.full((12, 16), 0.5)), rtol=0, atol=1)

    def test_percentile_is_the_top(self):
        # linear interpolation: the 80th percentile of 0..5 is 4
        np.testing.assert_array_equal(
            overlay(GREY, SCORES, percentile=80), overlay(GREY, SCORES, vmax=4)
        )

    def test_percentile_on_the_lowest_score_falls_back(self):
        sparse = np.zeros((3, 4))
        sparse[1, 1] = 1
        np.testing.assert_array_equal(overlay(GREY, sparse, percentile=50), overlay(GREY, sparse))

    def test_limits_beyond_the_map(self):
        low = overlay(GREY, np.zeros((3, 4)))
        np.testing.assert_array_equal(overlay(GREY, SCORES, vmin=9), low)
        high = np.full_like(GREY, [209, 195, 68])
        np.testing.assert_array_equal(overlay(GREY, SCORES + 9, vmin=0, vmax=2), high)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"vmin": 2, "vmax": 1}, "vmin must not exceed vmax, got 2 and 1"),
            ({"vmax": np.nan}, "must be finite"),
            ({"percentile": 0}, r"percentile must be in \(0, 100\]"),
            ({"percentile": 101}, r"percentile must be in \(0, 100\]"),
            ({"percentile": 99, "vmax": 1}, "without vmax"),
            ({"opacity": 1.5}, r"opacity must lie in \[0, 1\], got 1.5"),
            ({"opacity": np.nan}, "opacity must lie"),
            ({"colormap": "nope"}, "colormap must be one of matplotlib's, .* got 'nope'"),
        ],
    )
    def test_refuses(self, options, message):
        with pytest.raises(ValueError, match=message):
            overlay(GREY, SCORES, **options)

    @pytest.mark.parametrize("worst", [np.nan, np.inf, -np.inf])
    def test_refuses_what_is_not_finite(self, worst):
        with pytest.raises(ValueError, match="scores must be finite, got 1 NaN or infinite"):
            overlay(GREY, np.array([[0, worst]]))

    @pytest.mark.parametrize("shape", [(4,), (1, 2, 2), (0, 3)])
    def test_refuses_other_shapes(self, shape):
        with pytest.raises(ValueError, match=r"scores must be one \(gh, gw\) map, got \("):
            overlay(GREY, np.zeros(shape))
