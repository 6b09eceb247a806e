"""Every kind of image file that comes along: the right array, or one clear line."""

from __future__ import annotations

import os
import struct
import tempfile
import zlib
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import pytest
from infsa_metrics import rank_patches
from PIL import Image, ImageFile
from torch import zeros

from infsa_explain.data import ImageError, ImageFolder, read_image
from infsa_explain.models.loading import load
from infsa_explain.vits.preprocessing import frame_boxes, preprocess

PHOTO = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
PHOTO = cv2.resize(PHOTO, (56, 40), interpolation=cv2.INTER_CUBIC)
GREY = PHOTO[..., 0]
PALETTE = Image.fromarray(PHOTO).quantize(16)
BLACK_AND_WHITE = Image.fromarray(GREY > 127)
#: Alpha of a half, so that over white every value is halfway to 255.
HALF = np.dstack([PHOTO, np.full_like(GREY, 128)])
OVER_WHITE = 255 - (255 - PHOTO.astype(float)) * 128 / 255


def three(grey):
    return np.repeat(np.asarray(grey)[..., None], 3, axis=2)


def refused(path, *words):
    """The one line that an image is refused with."""
    with pytest.raises(ImageError) as caught:
        read_image(path)
    line = str(caught.value)
    assert line.isprintable() and repr(str(path)) in line
    for word in words:
        assert word in line
    return line


@pytest.mark.parametrize(
    ("name", "image", "options", "expected", "tolerance"),
    [
        ("grey.jpg", GREY, {"quality": 100}, three(GREY), 2),
        ("1 bit.png", BLACK_AND_WHITE, {}, three(GREY > 127) * 255, 0),
        ("1 bit.tif", BLACK_AND_WHITE, {"compression": "group4"}, three(GREY > 127) * 255, 0),
        ("palette.png", PALETTE, {}, np.asarray(PALETTE.convert("RGB")), 0),
        ("palette.bmp", PALETTE, {}, np.asarray(PALETTE.convert("RGB")), 0),
        ("palette.gif", PALETTE, {}, np.asarray(PALETTE.convert("RGB")), 0),
        ("16 bits.png", GREY.astype(np.uint16) * 257, {}, three(GREY), 0),
        ("alpha.png", HALF, {}, OVER_WHITE, 1),
        ("alpha.webp", HALF, {"lossless": True, "exact": True}, OVER_WHITE, 1),
        ("alpha.tif", HALF, {}, OVER_WHITE, 1),
        ("grey alpha.png", HALF[..., [0, 3]], {}, three(OVER_WHITE[..., 0]), 1),
        ("a.webp", PHOTO, {"lossless": True}, PHOTO, 0),
        ("a.avif", PHOTO, {"quality": 100, "subsampling": "4:4:4"}, PHOTO, 3),
        ("a.tiff", PHOTO, {"compression": "tiff_lzw"}, PHOTO, 0),
        ("a.jp2", PHOTO, {}, PHOTO, 0),
        ("a.bmp", PHOTO, {}, PHOTO, 0),
        ("a png.JPEG", PHOTO, {"format": "PNG"}, PHOTO, 0),
        ("a gif without ending", PALETTE, {"format": "GIF"}, np.asarray(PALETTE.convert("RGB")), 0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_was_saved_is_read(tmp_path, name, image, options, expected, tolerance):
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    image.save(tmp_path / name, **options)
    pixels = read_image(tmp_path / name)
    assert (pixels.dtype, pixels.shape) == (np.uint8, (*expected.shape[:2], 3))
    assert np.abs(pixels - expected.astype(float)).max() <= tolerance


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": "4:4:4"}], ids=str)
def test_a_jpeg_is_what_opencv_reads(tmp_path, options):
    Image.fromarray(PHOTO).save(tmp_path / "a.jpg", quality=90, **options)
    expected = cv2.imread(str(tmp_path / "a.jpg"))[..., ::-1].astype(float)
    assert np.abs(read_image(tmp_path / "a.jpg") - expected).max() <= 3


@pytest.mark.parametrize("channels", [3, 4])
def test_16_bits_a_channel(tmp_path, channels):
    pixels = np.dstack([PHOTO, np.full_like(GREY, 255)])[..., :channels].astype(np.uint16) * 257
    cv2.imwrite(str(tmp_path / "a.png"), pixels[..., [2, 1, 0, 3][:channels]])
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), PHOTO)


def test_first_frame_of_webp_png_and_tiff(tmp_path):
    first, second = (Image.new("RGB", (4, 4), colour) for colour in ("red", "blue"))
    for ending in ("webp", "png", "tif"):
        path = tmp_path / f"a.{ending}"
        first.save(path, save_all=True, append_images=[second], lossless=True)
        with Image.open(path) as image:
            assert image.n_frames == 2
        assert read_image(path).tolist() == [[[255, 0, 0]] * 4] * 4


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (5, 1), (20_000, 3), (3, 20_000)])
def test_extreme_sizes_reach_the_model(tmp_path, size):
    Image.new("RGB", size, (255, 128, 0)).save(tmp_path / "a.png")
    pixels = read_image(tmp_path / "a.png")
    assert pixels.shape == (*size[::-1], 3)
    model = load("vit_softmax_photos")
    seen = preprocess(model, pixels)
    assert seen.shape == (1, 3, 64, 64)
    for channel, value in zip(seen[0], (1, 128 / 127.5 - 1, -1), strict=True):
        assert channel.min() == pytest.approx(value, abs=1e-6) == channel.max().item()
    whole = np.array([[0, 0, *size]], dtype=np.float32)
    assert frame_boxes(model, whole, *size[::-1]).tolist() == [[0, 0, 64, 64]]


def png(width, height):
    """The head of a PNG of that size, and not much more."""
    chunks = b"\x89PNG\r\n\x1a\n"
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    for kind, body in ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(99))), (b"IEND", b"")):
        chunks += struct.pack(">I", len(body)) + kind + body
        chunks += struct.pack(">I", zlib.crc32(kind + body))
    return chunks


def test_decompression_bombs(tmp_path):
    for side in (10_000, 2**31 - 1):
        (tmp_path / "a.png").write_bytes(png(side, side))
        refused(tmp_path / "a.png", "pixels; scale it down")


@pytest.mark.parametrize("content", [b"", b"hello\n", b"<html>404 not found</html>", bytes(999)])
def test_no_image(tmp_path, content):
    (tmp_path / "a.jpg").write_bytes(content)
    words = "in a format that Pillow cannot read" if content else "is empty (0 bytes)"
    refused(tmp_path / "a.jpg", words)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_a_truncated_jpeg(tmp_path, share):
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for options in ({}, {"progressive": True}):
        Image.fromarray(noise).save(tmp_path / "a.jpg", **options)
        content = (tmp_path / "a.jpg").read_bytes()
        (tmp_path / "a.jpg").write_bytes(content[: int(share * len(content))])
        refused(tmp_path / "a.jpg")
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


def test_postscript_is_not_run(tmp_path, monkeypatch):
    """Pillow would hand it to Ghostscript, whatever its ending."""
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch '{tmp_path / 'ran'}'\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "a.jpg").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    )
    refused(tmp_path / "a.jpg", "in a format that Pillow cannot read safely")
    assert not (tmp_path / "ran").exists()


def test_what_is_no_file(tmp_path):
    (tmp_path / "folder.jpg").mkdir()
    refused(tmp_path / "folder.jpg", "is a folder")
    (tmp_path / "broken.jpg").symlink_to(tmp_path / "nowhere.jpg")
    refused(tmp_path / "broken.jpg", "is a link to a file that does not exist")
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    refused(tmp_path / "loop.jpg", "is a link to a file that does not exist")
    refused(tmp_path / ("long" * 100), "does not exist")
    refused(tmp_path / "nu\0l.jpg", "does not exist")
    refused(Path("/dev/null"), "not a regular file")
    Image.fromarray(PHOTO).save(tmp_path / "a.png")
    refused(tmp_path / "a.png" / "b.png", "does not exist")
    (tmp_path / "link.jpg").symlink_to(tmp_path / "a.png")
    np.testing.assert_array_equal(read_image(tmp_path / "link.jpg"), PHOTO)


def test_links_and_folders_among_images(tmp_path):
    """Each is known by its place, and only what cannot be read fails, alone."""
    for name in ("a", "d"):
        Image.fromarray(PHOTO).save(tmp_path / f"{name}.png")
    (tmp_path / "b.jpg").symlink_to("nowhere.jpg")
    (tmp_path / "c.jpg").mkdir()
    data = ImageFolder(tmp_path)
    assert [data[i].image_id for i in (0, 2)] == ["a.png", "d.png"]
    with pytest.raises(ImageError, match="does not exist; repair"):
        data[1]
    assert len(data.fingerprint()) == 16


@contextmanager
def somebody_else():
    """Permissions hold for everybody but root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs POSIX permissions")
def test_what_may_not_be_read(tmp_path):
    Image.fromarray(PHOTO).save(tmp_path / "a.png")
    read_image(tmp_path / "a.png")  # Pillow has all its parts
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for path in ("file.png", "closed/file.png", "classes/cat/a.png", "classes/dog/b.png"):
            (folder / path).parent.mkdir(exist_ok=True, parents=True)
            Image.fromarray(PHOTO).save(folder / path)
        closed = [folder / "file.png", folder / "closed", folder / "classes/dog"]
        for path in closed:
            path.chmod(0)
        with somebody_else():
            refused(folder / "file.png", "may not be read; change its permissions")
            refused(folder / "closed/file.png", "may not be read; change its permissions")
            with pytest.raises(ValueError, match=r"dog' cannot be read: Permission denied"):
                ImageFolder(folder / "classes")
        for path in closed:
            path.chmod(0o700)


NAMES = [
    "a photo of mine.png",
    "'single' \"double\" `back`.png",
    "two\nlines\r.png",
    "grüße 猫 🐈 e\u0301.png",
    "-rf.png",
    "--help.png",
    "$HOME ${x} $(reboot) %s {0} *?[a].png",
    "back\\slash.png",
    "\x1b[31mred\x07\x08.png",
    "right\u202eto left.png",
    "<script>alert(1)</script>&.png".replace("/", "∕"),
    "n" * 251 + ".png",
]


def test_any_name(tmp_path):
    """An image is found by its name, and its identity can be written down."""
    names = [*map(os.fsencode, NAMES), b"latin \xfc\xff.png"]
    for i, name in enumerate(names):
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
            Image.new("RGB", (8, 8), (i, i, i)).save(file, "PNG")
    data = ImageFolder(tmp_path)
    assert len(data) == len(names)
    samples = {sample.image_id: int(sample.image[0, 0, 0]) for sample in data}
    expected = {name: i for i, name in enumerate(NAMES)} | {r"latin \xfc\xff.png": len(NAMES)}
    assert samples == expected
    ranking = rank_patches(zeros(len(samples), 4, 4), list(samples))
    assert len({tuple(row) for row in ranking.tolist()}) == len(samples)  # ties by identity


def test_names_of_classes_can_be_written_down(tmp_path):
    raw = os.path.join(os.fsencode(tmp_path), b"set \xfe", b"caf\xe9")
    os.makedirs(raw)
    with open(os.path.join(raw, b"a.png"), "wb") as file:
        Image.fromarray(PHOTO).save(file, "PNG")
    data = ImageFolder(os.path.dirname(os.fsdecode(raw)))
    assert (data.name, data.classes, data.labels) == (r"set \xfe", [r"caf\xe9"], [0])


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_an_error_is_one_line_whatever_the_name(tmp_path, name):
    (tmp_path / name).write_bytes(b"no image")
    refused(tmp_path / name)
    (tmp_path / name).unlink()
    refused(tmp_path / name)
