"""photo-digits: purity, boxes found again from pixels alone, and splits that share nothing."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_sample_images

from infsa_explain.data import PhotoDigits, digits
from infsa_explain.data.digits import CONTRAST, DIGIT_SIDE, INK


def same(a, b):
    return (
        np.array_equal(a.image, b.image)
        and a.label == b.label
        and np.array_equal(a.boxes, b.boxes)
        and a.image_id == b.image_id
    )


class TestPurity:
    @pytest.mark.parametrize("split", ["train", "val"])
    def test_a_sample_depends_on_its_name_alone(self, split):
        data = PhotoDigits(split, size=6, seed=3)
        forwards = [data[i] for i in range(6)]
        backwards = [data[i] for i in reversed(range(6))][::-1]
        np.random.seed(1)  # noqa: NPY002  (the global state must not matter)
        fresh = [PhotoDigits(split, size=1000, seed=3)[i] for i in range(6)]
        assert all(map(same, forwards, backwards))
        assert all(map(same, forwards, fresh))

    def test_names_and_images_all_differ(self):
        samples = [
            PhotoDigits(split, 5, seed)[i]
            for split in ("train", "val")
            for seed in (0, 1)
            for i in range(5)
        ]
        assert len({sample.image_id for sample in samples}) == 20
        assert len({sample.image.tobytes() for sample in samples}) == 20
        assert samples[0].image_id == "photo-digits/train/0/0"

    def test_a_sample_may_be_written_on(self):
        data = PhotoDigits("val", 1)
        first = data[0]
        first.image[:] = 0
        first.boxes[:] = 0
        assert data[0].image.any()
        assert data[0].boxes.any()

    def test_a_sequence_ends(self):
        data = PhotoDigits("val", 3)
        assert [sample.image_id[-1] for sample in data] == ["0", "1", "2"]
        with pytest.raises(IndexError):
            data[3]
        with pytest.raises(IndexError):
            data[-1]

    def test_wrong_arguments(self):
        with pytest.raises(ValueError, match="split must be 'train' or 'val', got 'test'"):
            PhotoDigits("test")
        with pytest.raises(ValueError, match=r"difficulty must lie in \[0, 1\], got 2"):
            PhotoDigits("train", difficulty=2)


class TestSources:
    def test_the_splits_part_the_handwriting(self):
        """Together all of scikit-learn's digits, each once; no two of its digits are equal."""
        known = {
            (image.tobytes(), int(label))
            for image, label in zip(load_digits().images, load_digits().target, strict=True)
        }
        assert len(known) == 1797
        parts = [
            {
                ((glyph * 16).astype(np.float64).tobytes(), int(label))
                for glyph, label in zip(sources.glyphs, sources.labels, strict=True)
            }
            for sources in (digits._sources("train"), digits._sources("val"))
        ]
        assert not parts[0] & parts[1]
        assert parts[0] | parts[1] == known
        counts, whole = Counter(label for _, label in parts[0]), Counter(load_digits().target)
        assert counts == {label: int(0.7 * count) for label, count in whole.items()}

    def test_the_splits_part_the_photographs_by_a_vertical_line(self):
        train, val = digits._sources("train").photographs, digits._sources("val").photographs
        for left, right, photograph in zip(train, val, load_sample_images().images, strict=True):
            assert left.shape[1] == int(0.7 * 640)
            assert np.array_equal(np.concatenate([left, right], axis=1), photograph)


@pytest.fixture
def before_the_digit(monkeypatch):
    """The canvas that the last stroke, the digit, is painted on."""
    paint, canvases = digits._paint, []

    def watched(canvas, *args):
        canvases.append(canvas.copy())
        paint(canvas, *args)

    monkeypatch.setattr(digits, "_paint", watched)
    return canvases


def outline(mask):
    """The smallest x0, y0, x1, y1 around a mask."""
    rows, columns = np.nonzero(mask)
    return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


class TestBoxes:
    @pytest.mark.parametrize("split", ["train", "val"])
    def test_the_ground_alone_leaves_the_box(self, split):
        """At difficulty 0 the digit is all there is: strokes are found by their brightness."""
        for i in range(60):
            image, _, boxes, *_ = PhotoDigits(split, 60, difficulty=0)[i]
            brightness = image.max(axis=-1).astype(float)
            x0, y0, x1, y1 = boxes[0].astype(int)
            outside = brightness.copy()
            outside[y0:y1, x0:x1] = 0
            assert not outside.any()
            # The brightest pixel is all stroke; rounding to 8 bits costs up to 1.
            assert outline(brightness >= INK * brightness.max() - 1) == [x0, y0, x1, y1]
            # A training digit is stretched by up to an eighth, and turned.
            assert max(x1 - x0, y1 - y0) <= DIGIT_SIDE[1] * (1.4 if split == "train" else 1)

    def test_the_digit_changes_nothing_outside_its_box(self, before_the_digit):
        for i in range(40):
            image, _, boxes, *_ = PhotoDigits("val", 40)[i]
            ground = np.clip(np.rint(before_the_digit[-1] * 255), 0, 255).astype(np.uint8)
            changed = np.abs(image.astype(int) - ground).max(axis=-1)
            # A quarter of a stroke lightens its ground by about a quarter of the contrast or more.
            x0, y0, x1, y1 = outline(changed > 0)
            bx0, by0, bx1, by1 = boxes[0]
            assert bx0 <= x0 <= x1 <= bx1
            assert by0 <= y0 <= y1 <= by1
            assert outline(changed > 0.25 * INK * CONTRAST * 255) == boxes[0].tolist()

    def test_trimming_loses_no_ink(self):
        """A quarter of the stroke's colour is ink: all of it stays, and touches every edge."""
        for glyph in digits._sources("val").glyphs[:100]:
            whole = digits._enlarge(glyph, 32)
            trimmed = digits._trim(whole)
            assert (trimmed >= 0.25).sum() == (whole >= 0.25).sum()
            assert outline(trimmed >= 0.25) == [0, 0, *trimmed.shape[::-1]]

    def test_training_varies_the_shape_and_evaluation_does_not(self):
        """The glyph of a digit drawn over and over: its box keeps its proportions in one split."""
        for split, varies in (("train", True), ("val", False)):
            sources = digits._sources(split)
            one = sources._replace(glyphs=sources.glyphs[:1], labels=sources.labels[:1])
            shapes = set()
            for seed in range(20):
                _, label, (x0, y0, x1, y1) = digits._draw(one, np.random.default_rng(seed), 1.0)
                assert label == sources.labels[0]
                shapes.add(round((y1 - y0) / (x1 - x0), 1))
            assert (len(shapes) > 3) == varies, shapes

    def test_difficulty_moves_nothing(self):
        for i in range(20):
            easy, hard = (PhotoDigits("train", 20, difficulty=d)[i] for d in (0, 1))
            assert easy.label == hard.label
            assert np.array_equal(easy.boxes, hard.boxes)
            assert not np.array_equal(easy.image, hard.image)

    def test_boxes_lie_all_over_the_image(self):
        boxes = np.array([PhotoDigits("val", 200)[i].boxes[0] for i in range(200)])
        assert boxes.dtype == np.float32
        assert boxes.min() >= 0
        assert boxes.max() <= 112
        centres = (boxes[:, :2] + boxes[:, 2:]) / 2
        # Uniform over what is left of 112 pixels: the mean of 200 has a standard error of 1.7.
        np.testing.assert_allclose(centres.mean(0), 56, rtol=0, atol=5)
        assert centres.std(0).min() > 20

    def test_the_label_is_the_digit_painted(self, monkeypatch):
        """Of each digit, the glyphs that are painted are those that scikit-learn calls so."""
        labels = {
            image.astype(np.float32).tobytes(): label
            for image, label in zip(load_digits().images, load_digits().target, strict=True)
        }
        enlarge, enlarged = digits._enlarge, []
        monkeypatch.setattr(
            digits, "_enlarge", lambda glyph, side: enlarged.append(glyph) or enlarge(glyph, side)
        )
        for i in range(30):
            enlarged.clear()
            sample = PhotoDigits("val", 30)[i]
            assert labels[(enlarged[0] * 16).tobytes()] == sample.label
            index = int(sample.cluster.removeprefix("digit "))
            np.testing.assert_array_equal(enlarged[0] * 16, load_digits().images[index])

    def test_the_clusters_of_the_whole_series(self):
        """2,000 images are of 530 of the 545 digits of the split."""
        clusters = {sample.cluster for sample in PhotoDigits("val", 2000)}
        assert len(clusters) == 530
        assert len(digits._sources("val").glyphs) == 545


class TestFingerprint:
    def test_is_the_same_for_the_same_data(self):
        assert PhotoDigits("val", 5).fingerprint() == PhotoDigits("val", 5).fingerprint()

    def test_changes_with_every_argument(self):
        several = [
            PhotoDigits("val", 5),
            PhotoDigits("train", 5),
            PhotoDigits("val", 6),
            PhotoDigits("val", 5, seed=1),
            PhotoDigits("val", 5, difficulty=0.5),
        ]
        assert len({data.fingerprint() for data in several}) == 5

    def test_changes_with_the_pixels(self, monkeypatch):
        before = PhotoDigits("val", 5).fingerprint()
        monkeypatch.setattr(digits, "GROUND_BRIGHTNESS", 0.41)
        assert PhotoDigits("val", 5).fingerprint() != before
