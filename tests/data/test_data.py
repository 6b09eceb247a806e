"""Decoding, layouts on disk and subsets, against pixels and boxes written down by hand."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from infsa_explain.data import (
    ImageError,
    ImageFolder,
    PhotoDigits,
    Subset,
    limited,
    open_data,
    read_image,
    to_rgb,
)

RGB = np.array(
    [[[255, 0, 0], [0, 255, 0], [0, 0, 255]], [[0, 0, 0], [128, 128, 128], [255, 255, 255]]],
    dtype=np.uint8,
)
GREY = np.array([[0, 100, 255]], dtype=np.uint8)


def grey_rgb(*values):
    return [[[value] * 3 for value in values]]


@pytest.fixture(autouse=True)
def no_warning_leaks():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


class TestReadImage:
    @pytest.mark.parametrize("extension", ["png", "bmp", "tif", "ppm", "gif"])
    def test_rgb_in_lossless_formats(self, tmp_path, extension):
        Image.fromarray(RGB).save(tmp_path / f"a.{extension}")
        pixels = read_image(tmp_path / f"a.{extension}")
        assert pixels.dtype == np.uint8
        assert pixels.flags.writeable and pixels.flags.c_contiguous
        np.testing.assert_array_equal(pixels, RGB)

    def test_a_string_path_and_any_file_name(self, tmp_path):
        Image.fromarray(RGB).save(tmp_path / "a b ü.png")
        np.testing.assert_array_equal(read_image(str(tmp_path / "a b ü.png")), RGB)

    def test_grey(self, tmp_path):
        Image.fromarray(GREY).save(tmp_path / "a.png")
        assert read_image(tmp_path / "a.png").tolist() == grey_rgb(0, 100, 255)

    def test_one_bit(self, tmp_path):
        Image.fromarray(np.array([[True, False]])).save(tmp_path / "a.png")
        assert read_image(tmp_path / "a.png").tolist() == grey_rgb(255, 0)

    @pytest.mark.parametrize("extension", ["png", "tif"])
    def test_16_bit_is_scaled_and_rounded(self, tmp_path, extension):
        values = np.array([[0, 128, 129, 257, 32768, 65535]], dtype=np.uint16)
        Image.fromarray(values).save(tmp_path / f"a.{extension}")
        # value / 257: 128 is 0.498, 129 is 0.502, 32768 is 127.502
        assert read_image(tmp_path / f"a.{extension}").tolist() == grey_rgb(0, 0, 1, 1, 128, 255)

    def test_cmyk(self, tmp_path):
        cmyk = np.array([[[0, 0, 0, 0], [255, 0, 0, 0], [0, 0, 0, 255]]], dtype=np.uint8)
        Image.fromarray(cmyk, mode="CMYK").save(tmp_path / "a.tif")
        assert read_image(tmp_path / "a.tif").tolist() == [[[255] * 3, [0, 255, 255], [0] * 3]]

    def test_cmyk_jpeg(self, tmp_path):
        image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
        image.save(tmp_path / "a.jpg", quality=100)
        error = np.abs(read_image(tmp_path / "a.jpg").astype(int) - [255, 0, 0])
        assert error.max() <= 2

    def test_palette(self, tmp_path):
        image = Image.fromarray(np.array([[0, 1]], dtype=np.uint8), mode="P")
        image.putpalette([10, 20, 30, 40, 50, 60])
        image.save(tmp_path / "a.png")
        assert read_image(tmp_path / "a.png").tolist() == [[[10, 20, 30], [40, 50, 60]]]

    def test_palette_with_alpha_lies_over_white(self, tmp_path):
        image = Image.fromarray(np.array([[0, 1, 2]], dtype=np.uint8), mode="P")
        image.putpalette([0, 0, 0, 0, 0, 0, 0, 0, 0])
        image.save(tmp_path / "a.png", transparency=bytes([0, 51, 255]))
        assert read_image(tmp_path / "a.png").tolist() == grey_rgb(255, 204, 0)

    def test_alpha_lies_over_white(self, tmp_path):
        rgba = np.array([[[255, 0, 0, 0], [255, 0, 0, 51], [255, 0, 0, 255]]], dtype=np.uint8)
        Image.fromarray(rgba).save(tmp_path / "a.png")
        assert read_image(tmp_path / "a.png").tolist() == [
            [[255, 255, 255], [255, 204, 204], [255, 0, 0]]
        ]

    def test_transparent_colour_lies_over_white(self, tmp_path):
        Image.fromarray(RGB).save(tmp_path / "a.png", transparency=(255, 0, 0))
        pixels = read_image(tmp_path / "a.png")
        assert pixels[0, 0].tolist() == [255, 255, 255]
        np.testing.assert_array_equal(pixels[1], RGB[1])

    def test_first_frame_of_an_animation(self, tmp_path):
        first, second = (Image.new("RGB", (2, 2), colour) for colour in ("red", "blue"))
        first.save(tmp_path / "a.gif", save_all=True, append_images=[second])
        assert read_image(tmp_path / "a.gif").tolist() == [[[255, 0, 0]] * 2] * 2

    @pytest.mark.parametrize(
        ("orientation", "upright"),
        [
            (1, lambda a: a),
            (2, lambda a: a[:, ::-1]),
            (3, lambda a: a[::-1, ::-1]),
            (4, lambda a: a[::-1]),
            (5, lambda a: a.swapaxes(0, 1)),
            (6, lambda a: np.rot90(a, -1)),
            (7, lambda a: np.rot90(a, 2).swapaxes(0, 1)),
            (8, lambda a: np.rot90(a)),
        ],
    )
    def test_exif_orientation(self, tmp_path, orientation, upright):
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(RGB).save(tmp_path / "a.png", exif=exif)
        np.testing.assert_array_equal(read_image(tmp_path / "a.png"), upright(RGB))

    def test_damaged_exif_is_passed_over(self, tmp_path):
        Image.new("RGB", (4, 4), "white").save(tmp_path / "a.jpg", exif=b"Exif\0\0garbage")
        assert read_image(tmp_path / "a.jpg").min() == 255


class TestReadImageRefuses:
    def check(self, path, *words):
        with pytest.raises(ImageError) as caught:
            read_image(path)
        message = str(caught.value)
        assert "\n" not in message
        for word in (repr(str(path)), *words):
            assert word in message

    def test_missing(self, tmp_path):
        self.check(tmp_path / "a.png", "does not exist", "check the path")

    def test_folder(self, tmp_path):
        self.check(tmp_path, "is a folder", "one image file")

    def test_empty(self, tmp_path):
        (tmp_path / "a.png").touch()
        self.check(tmp_path / "a.png", "0 bytes")

    def test_text(self, tmp_path):
        (tmp_path / "a.png").write_text("hello")
        self.check(tmp_path / "a.png", "a format that Pillow cannot read", "convert")

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
    def test_pipe(self, tmp_path):
        os.mkfifo(tmp_path / "a.png")
        self.check(tmp_path / "a.png", "not a regular file")

    @pytest.mark.parametrize("extension", ["jpg", "png", "tif", "gif"])
    def test_truncated(self, tmp_path, extension):
        path = tmp_path / f"a.{extension}"
        noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(noise).save(path)
        content = path.read_bytes()
        path.write_bytes(content[: len(content) * 3 // 4])
        self.check(path)

    def test_truncated_names_the_mend(self, tmp_path):
        Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(tmp_path / "a.bmp")
        (tmp_path / "a.bmp").write_bytes((tmp_path / "a.bmp").read_bytes()[:-100])
        self.check(tmp_path / "a.bmp", "damaged or truncated", "copy or download it again")

    @pytest.mark.parametrize("factor", [1.5, 3])  # Pillow warns, Pillow raises
    def test_decompression_bomb(self, tmp_path, monkeypatch, factor):
        Image.new("L", (30, 10)).save(tmp_path / "a.png")
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", int(300 / factor))
        self.check(tmp_path / "a.png", f"more than {int(300 / factor)} pixels", "scale it down")

    @pytest.mark.parametrize("dtype", [np.float32, np.int32])
    def test_32_bit(self, tmp_path, dtype):
        Image.fromarray(np.ones((2, 2), dtype)).save(tmp_path / "a.tif")
        self.check(tmp_path / "a.tif", "without a defined range", "8 or 16 bits")

    def test_any_damage_gives_one_line(self, tmp_path, monkeypatch):
        monkeypatch.setattr(logging.getLogger("PIL"), "disabled", True)
        rng = np.random.default_rng(0)
        refused = 0
        for extension in ("png", "tif", "gif", "jpg", "webp"):
            path = tmp_path / f"a.{extension}"
            Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(path)
            content = path.read_bytes()
            for _ in range(20):
                damaged = bytearray(content)
                for place in rng.integers(0, min(len(content), 150), size=5):
                    damaged[place] = rng.integers(256)
                path.write_bytes(damaged)
                try:
                    pixels = read_image(path)
                except ImageError as error:
                    refused += 1
                    assert "\n" not in str(error)
                else:
                    assert pixels.ndim == 3
        assert refused > 20


def test_to_rgb_leaves_the_image_as_it_is():
    image = Image.fromarray(RGB)
    to_rgb(image)[:] = 7
    np.testing.assert_array_equal(np.asarray(image), RGB)


def save(path, colour=(1, 2, 3), size=(4, 3)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, "PNG")


@pytest.fixture
def tiny(tmp_path):
    """Two classes; n02 is first in wnids.txt, so that its order is not the sorted one."""
    root = tmp_path / "tiny"
    root.mkdir()
    (root / "wnids.txt").write_text("n02\nn01\n")
    (root / "words.txt").write_text("n01\tgoldfish, Carassius\nn02\tgoose\nn03\tnot here\n")
    for wnid in ("n01", "n02"):
        for i in (0, 1):
            save(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG")
    (root / "train/n01/n01_boxes.txt").write_text(
        "n01_0.JPEG\t0\t1\t2\t2\nn01_1.JPEG\t3\t0\t3\t0\n"
    )
    (root / "train/n02/n02_boxes.txt").write_text("n02_0.JPEG\t1\t1\t3\t2\n")
    for name in ("val_0", "val_1", "val_10"):
        save(root / "val/images" / f"{name}.JPEG", colour=(9, 8, 7))
    (root / "val/val_annotations.txt").write_text(
        "val_0.JPEG\tn02\t0\t0\t3\t2\nval_1.JPEG\tn01\t1\t1\t1\t1\n"
        "val_10.JPEG\tn02\t0\t0\t1\t1\nval_10.JPEG\tn02\t2\t0\t3\t1\nval_77.JPEG\tn09\t0\t0\t1\t1\n"
    )
    return root


class TestTinyImageNet:
    def test_val(self, tiny):
        data = ImageFolder(tiny)
        assert (data.name, data.classes, data.wnids) == (
            "tiny",
            ["goldfish", "goose"],
            ["n01", "n02"],
        )
        assert [sample.image_id for sample in data] == [
            "val/images/val_0.JPEG",
            "val/images/val_1.JPEG",
            "val/images/val_10.JPEG",
        ]
        assert data.labels == [1, 0, 1]
        # Inclusive pixels become half-open edges: a box of one pixel has an area of 1.
        assert data[1].boxes.tolist() == [[1, 1, 2, 2]]
        assert data[2].boxes.tolist() == [[0, 0, 2, 2], [2, 0, 4, 2]]
        sample = data[0]
        assert sample.label == 1
        assert sample.boxes.tolist() == [[0, 0, 4, 3]]
        assert sample.boxes.dtype == np.float32
        assert sample.image.tolist() == [[[9, 8, 7]] * 4] * 3

    def test_train(self, tiny):
        data = ImageFolder(tiny, split="train")
        assert data.labels == [0, 0, 1, 1]
        assert [sample.boxes.tolist() for sample in data] == [
            [[0, 1, 3, 3]],
            [[3, 0, 4, 1]],
            [[1, 1, 4, 3]],
            [],
        ]
        assert data[3].boxes.shape == (0, 4)
        assert data[3].image_id == "train/n02/images/n02_1.JPEG"

    @pytest.mark.parametrize("split", ["train", "val"])
    def test_pointed_at_a_split(self, tiny, split):
        whole, part = ImageFolder(tiny, split=split), ImageFolder(tiny / split)
        assert part.fingerprint() == whole.fingerprint()
        assert (part.name, part[0].image_id) == ("tiny", whole[0].image_id)

    def test_val_rearranged_by_class(self, tiny):
        for name, wnid in (("val_0", "n02"), ("val_1", "n01"), ("val_10", "n02")):
            (tiny / "val" / wnid).mkdir(exist_ok=True)
            (tiny / "val/images" / f"{name}.JPEG").rename(tiny / "val" / wnid / f"{name}.JPEG")
        (tiny / "val/images").rmdir()
        data = ImageFolder(tiny)
        assert data.labels == [0, 1, 1]
        assert data[0].image_id == "val/n01/val_1.JPEG"
        assert data[0].boxes.tolist() == [[1, 1, 2, 2]]

    def test_without_words(self, tiny):
        (tiny / "words.txt").unlink()
        assert ImageFolder(tiny).classes == ["n01", "n02"]

    def test_test_images_have_no_classes(self, tiny):
        save(tiny / "test/images/test_0.JPEG")
        data = ImageFolder(tiny / "test")
        assert (data.classes, data.labels, data[0].image_id) == ([], [None], "images/test_0.JPEG")

    def test_refuses_an_image_without_class(self, tiny):
        save(tiny / "val/images/val_77.JPEG")
        with pytest.raises(ValueError, match=r"val_annotations.txt' gives 'val_77.JPEG' no class"):
            ImageFolder(tiny)

    def test_a_malformed_line_loses_its_box(self, tiny):
        save(tiny / "val/images/val_2.JPEG")
        with (tiny / "val/val_annotations.txt").open("a") as file:
            file.write("val_2.JPEG\tn01\t0\nval_0.JPEG\tn02\t0\t0\t1\tx\n")
        message = r"2 malformed .* such as '.*val_annotations.txt', line 7: could not convert"
        with pytest.warns(UserWarning, match=message):
            data = ImageFolder(tiny)
        assert data.labels == [1, 0, 1, 0]
        assert data[0].boxes.tolist() == [[0, 0, 4, 3]]
        assert data[3].boxes.shape == (0, 4)
        assert data.dropped_boxes == {"malformed": 2}

    def test_a_malformed_line_without_a_class_loses_its_image(self, tiny):
        save(tiny / "val/images/val_2.JPEG")
        with (tiny / "val/val_annotations.txt").open("a") as file:
            file.write("val_2.JPEG\n")
        message = r"1 images without a class are left out, .* line 6: 1 fields, not 6"
        with pytest.warns(UserWarning, match=message):
            data = ImageFolder(tiny)
        assert [sample.image_id for sample in data] == [
            f"val/images/{name}.JPEG" for name in ("val_0", "val_1", "val_10")
        ]

    def test_a_box_of_words_is_left_out(self, tiny):
        with (tiny / "train/n02/n02_boxes.txt").open("a") as file:
            file.write("n02_1.JPEG\tx\t1\t3\t2\n")
        with pytest.warns(UserWarning, match=r"1 malformed .*n02_boxes.txt', line 2: could not"):
            data = ImageFolder(tiny, split="train")
        assert data.labels == [0, 0, 1, 1]
        assert [len(sample.boxes) for sample in data] == [1, 1, 1, 0]

    def test_refuses_a_missing_class_folder(self, tiny):
        (tiny / "wnids.txt").write_text("n01\nn02\nn03\n")
        with pytest.raises(ValueError, match="no folder 'n03'"):
            ImageFolder(tiny, split="train")

    def test_refuses_a_missing_split(self, tiny):
        (tiny / "val").rename(tiny / "elsewhere")
        with pytest.raises(ValueError, match=r"val' does not exist; unpack"):
            ImageFolder(tiny)

    def test_refuses_class_names(self, tiny):
        with pytest.raises(ValueError, match="class_names is for class folders"):
            ImageFolder(tiny, class_names=["a", "b"])


class TestClassFolders:
    def test_below_the_root(self, tmp_path):
        for name in (
            "dog/b.png",
            "dog/deep/er/a.PNG",
            "cat/z.jpeg",
            "cat/.hidden.png",
            ".git/a.png",
        ):
            save(tmp_path / name)
        (tmp_path / "cat/notes.txt").write_text("no image")
        data = ImageFolder(tmp_path)
        assert data.classes == ["cat", "dog"]
        assert [(sample.image_id, sample.label) for sample in data] == [
            ("cat/z.jpeg", 0),
            ("dog/b.png", 1),
            ("dog/deep/er/a.PNG", 1),
        ]
        assert data[0].boxes.shape == (0, 4)
        assert data.wnids == []

    def test_numeric_names_sort_as_numbers(self, tmp_path):
        for name in ("10", "9", "100", "a"):
            save(tmp_path / name / "x.png")
        assert ImageFolder(tmp_path).classes == ["9", "10", "100", "a"]

    def test_splits_agree_on_labels(self, tmp_path):
        for name in ("train/cat/0.png", "train/dog/0.png", "val/dog/1.png", "extra/2.png"):
            save(tmp_path / name)
        val, train = ImageFolder(tmp_path), ImageFolder(tmp_path, split="train")
        assert val.classes == train.classes == ["cat", "dog"]
        assert [(s.image_id, s.label) for s in val] == [("val/dog/1.png", 1)]
        assert train.labels == [0, 1]

    def test_a_lone_split(self, tmp_path):
        save(tmp_path / "val/cat/0.png")
        assert ImageFolder(tmp_path).classes == ["cat"]
        with pytest.raises(ValueError, match=r"has no split 'train'; it has \['val'\]"):
            ImageFolder(tmp_path, split="train")

    def test_class_names_give_a_models_order(self, tmp_path):
        save(tmp_path / "cat/0.png")
        save(tmp_path / "dog/0.png")
        data = ImageFolder(tmp_path, class_names=["dog", "emu", "cat"])
        assert data.classes == ["dog", "emu", "cat"]
        assert [(s.image_id, s.label) for s in data] == [("dog/0.png", 0), ("cat/0.png", 2)]
        with pytest.raises(ValueError, match="cat' is not among class_names"):
            ImageFolder(tmp_path, class_names=["dog"])

    def test_refuses_an_empty_class(self, tmp_path):
        save(tmp_path / "cat/0.png")
        (tmp_path / "dog").mkdir()
        with pytest.raises(ValueError, match="dog' holds no images; remove it"):
            ImageFolder(tmp_path)

    def test_refuses_images_beside_classes(self, tmp_path):
        save(tmp_path / "cat/0.png")
        save(tmp_path / "0.png")
        with pytest.raises(ValueError, match=r"'0\.png' and 'cat'; move one"):
            ImageFolder(tmp_path)


class TestFlatFolder:
    def test_images_without_classes(self, tmp_path):
        save(tmp_path / "b.png")
        save(tmp_path / "a.webp")
        (tmp_path / "annotations").mkdir()
        data = ImageFolder(tmp_path)
        assert (data.classes, data.labels) == ([], [None, None])
        sample = data[0]
        assert (sample.image_id, sample.label, sample.boxes.shape) == ("a.webp", None, (0, 4))

    def test_decodes_only_when_asked(self, tmp_path):
        (tmp_path / "a.png").write_text("no image")
        data = ImageFolder(tmp_path)
        assert len(data) == 1
        with pytest.raises(ImageError, match=r"a\.png"):
            data[0]

    def test_ends_with_an_index_error(self, tmp_path):
        save(tmp_path / "a.png")
        with pytest.raises(IndexError):
            ImageFolder(tmp_path)[1]

    @pytest.mark.parametrize("opener", [ImageFolder, open_data])
    def test_refuses_what_is_no_folder_of_images(self, tmp_path, opener):
        with pytest.raises(ValueError, match=r"holds no images \(\.avif "):
            opener(tmp_path)
        save(tmp_path / "a.png")
        with pytest.raises(ValueError, match=r"a.png' is a file; give the folder"):
            opener(tmp_path / "a.png")
        with pytest.raises(ValueError, match="split must be 'train', 'val' or 'test', got 'dev'"):
            opener(tmp_path, split="dev")

    def test_refuses_a_missing_folder(self, tmp_path):
        with pytest.raises(ValueError, match="nowhere' does not exist; check the path"):
            ImageFolder(tmp_path / "nowhere")


class TestFingerprint:
    def test_is_16_hex_and_the_same_elsewhere(self, tiny, tmp_path):
        before = ImageFolder(tiny).fingerprint()
        assert len(before) == 16 and int(before, 16) >= 0
        assert ImageFolder(tiny.rename(tmp_path / "moved")).fingerprint() == before

    def test_changes_with_split_label_box_size_and_name(self, tiny):
        listing = tiny / "val/val_annotations.txt"
        content = listing.read_text()
        prints = [ImageFolder(tiny, split=split).fingerprint() for split in ("val", "train")]
        for old, new in (("val_1.JPEG\tn01", "val_1.JPEG\tn02"), ("\t1\t1\t1\t1", "\t1\t1\t1\t2")):
            listing.write_text(content.replace(old, new, 1))
            prints.append(ImageFolder(tiny).fingerprint())
        listing.write_text(content)
        save(tiny / "val/images/val_0.JPEG", size=(400, 300))
        prints.append(ImageFolder(tiny).fingerprint())
        listing.write_text(content.replace("val_0.", "val_2."))
        (tiny / "val/images/val_0.JPEG").rename(tiny / "val/images/val_2.JPEG")
        prints.append(ImageFolder(tiny).fingerprint())
        assert len(set(prints)) == 6

    def test_changes_with_a_file_that_went_away(self, tiny):
        data = ImageFolder(tiny)
        before = data.fingerprint()
        (tiny / "val/images/val_0.JPEG").unlink()
        assert data.fingerprint() != before


class TestLimited:
    @pytest.fixture
    def data(self, tmp_path):
        for name, count in (("a", 10), ("b", 10), ("c", 1)):
            for i in range(count):
                save(tmp_path / name / f"{i}.png")
        return ImageFolder(tmp_path)

    def test_balances_classes_as_far_as_they_go(self, data):
        counts = Counter(limited(data, 9).labels)
        assert counts == {0: 4, 1: 4, 2: 1}
        assert Counter(limited(data, 3).labels) == {0: 1, 1: 1, 2: 1}

    def test_keeps_order_ids_name_and_classes(self, data):
        subset = limited(data, 9)
        ids = [sample.image_id for sample in subset]
        everything = [sample.image_id for sample in data]
        assert ids == [name for name in everything if name in ids]
        assert (len(subset), len(ids), len(set(ids))) == (9, 9, 9)
        assert (subset.name, subset.classes) == (data.name, data.classes)

    def test_is_reproducible_and_grows(self, data):
        small, large = limited(data, 5, seed=3), limited(data, 12, seed=3)
        assert small.indices == limited(data, 5, seed=3).indices
        assert set(small.indices) < set(large.indices)
        assert small.indices != limited(data, 5, seed=4).indices

    def test_fingerprints_differ(self, data):
        chosen = [data, limited(data, 5), limited(data, 6), limited(data, 5, seed=1)]
        assert len({one.fingerprint() for one in chosen}) == 4
        assert limited(data, 5).fingerprint() == chosen[1].fingerprint()

    def test_at_its_length_the_data_itself(self, data):
        assert limited(data, 21) is data
        assert limited(data, 99) is data
        with pytest.raises(ValueError, match="limit must be at least 1, got 0"):
            limited(data, 0)

    def test_of_a_subset(self, data):
        subset = limited(Subset(data, range(10, 21)), 2)  # ten of b, one of c
        assert subset.labels == [1, 2]
        with pytest.raises(IndexError):
            subset[2]

    def test_without_classes(self, tmp_path):
        for i in range(6):
            save(tmp_path / "flat" / f"{i}.png")
        assert limited(ImageFolder(tmp_path / "flat"), 4).labels == [None] * 4


class TestOpenData:
    def test_photo_digits(self):
        data = open_data("photo-digits", split="train", size=3, seed=5)
        assert isinstance(data, PhotoDigits)
        assert (data.split, len(data), data.seed) == ("train", 3, 5)
        assert len(open_data("photo-digits")) == 500

    def test_folder(self, tiny):
        assert open_data(str(tiny), split="train").labels == [0, 0, 1, 1]
        assert open_data(tiny, split="train", size=2).labels == [0, 1]

    def test_refuses_an_unknown_name(self):
        with pytest.raises(ValueError, match="'cifar' is neither 'photo-digits' nor an existing"):
            open_data("cifar")

    @pytest.mark.parametrize("name", ["photo-digits", "folder"])
    def test_refuses_a_size_below_one(self, name):
        with pytest.raises(ValueError, match="split must be 'train', 'val' or 'test', got 'dev'"):
            open_data("photo-digits", split="dev")
        with pytest.raises(ValueError, match="size must be at least 1, got 0"):
            open_data(name, size=0)


def test_importing_the_data_is_light():
    code = "import infsa_explain.data, sys; print({'torch', 'sklearn'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert ran.stdout.strip() == "set()"
