"""photo-digits: the embedded benchmark, handwritten digits on crops of photographs.

A real handwritten digit (scikit-learn's ``load_digits``) lies at a random place on a crop of a real
photograph (``load_sample_images``: ``china.jpg`` and ``flower.jpg``), beside a fragment of another
digit. The label is the digit, and its box is exact. Nothing is downloaded: both sources come with
scikit-learn.

Training and evaluation share neither handwriting nor background: the digits of every class, and
each photograph, are split in two. Handwriting is scarce, so training slightly varies its shape;
evaluation uses it unchanged.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Literal, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ..ranges import MANY, SEEDS, count
from .samples import Sample

__all__ = ["PhotoDigits"]

DigitsSplit = Literal["train", "val"]

#: Side of a sample in pixels.
IMAGE_SIZE = 112
#: Smallest and largest side of a digit in pixels; the 8×8 original is enlarged to it.
DIGIT_SIDE = (28, 40)
#: Smallest and largest number of fragments of other digits.
DISTRACTORS = (1, 1)
#: Brightness of the photographs, so that every digit can be lighter than its background.
GROUND_BRIGHTNESS = 0.4
#: Minimum difference in lightness between a digit and its background, 0 to 1.
CONTRAST = 0.5
#: Share of every digit class, and of every photograph's width, that is used for training.
TRAIN_SHARE = 0.7
#: Largest change of a training digit's shape: rotation and slant in radians, stretch as a share.
ROTATION, SLANT, STRETCH = 0.2, 0.2, 0.12
#: Minimum share of the stroke's colour in a pixel that belongs to the stroke.
INK = 0.25


class _Sources(NamedTuple):
    glyphs: NDArray[np.float32]  # (n, 8, 8), 0 to 1
    labels: NDArray[np.int64]  # (n,)
    indices: NDArray[np.int64]  # (n,), in load_digits
    photographs: list[NDArray[np.uint8]]  # each (H, W, 3)
    augmented: bool  # whether the shape of the handwriting varies


@lru_cache(maxsize=2)
def _sources(split: DigitsSplit) -> _Sources:
    """The handwriting and the photographs of one split."""
    from sklearn.datasets import load_digits, load_sample_images

    digits = load_digits()
    chosen = []
    for label in range(10):
        members = np.flatnonzero(digits.target == label)
        cut = int(TRAIN_SHARE * len(members))
        chosen.append(members[:cut] if split == "train" else members[cut:])
    index = np.concatenate(chosen)
    photographs = []
    for photograph in load_sample_images().images:
        cut = int(TRAIN_SHARE * photograph.shape[1])
        photographs.append(photograph[:, :cut] if split == "train" else photograph[:, cut:])
    glyphs = (digits.images[index] / 16).astype(np.float32)
    labels = digits.target[index].astype(np.int64)
    return _Sources(glyphs, labels, index, photographs, split == "train")


class PhotoDigits:
    """Handwritten digits on photographs, with exact boxes.

    Every item is a :class:`Sample`: a (112, 112, 3) uint8 RGB image, a label from 0 to 9, one box,
    and the handwritten digit as its cluster, since one digit appears in several images. An item
    depends only on ``(split, seed, i, difficulty)``, so it is the same on every machine.

    Args:
        split: ``"train"`` or ``"val"``.
        size: number of samples, at least 1.
        seed: selects a series of samples; at least 0.
        difficulty: 0 to 1, for a training curriculum; below 1 the background and the fragments are
            darker. Evaluation always uses 1.

    Raises:
        ValueError: if an argument is out of range.

    >>> sample = PhotoDigits("val", size=4)[3]
    >>> sample.image.shape, sample.boxes.shape, sample.image_id
    ((112, 112, 3), (1, 4), 'photo-digits/val/0/3')
    """

    name = "photo-digits"
    classes = [str(digit) for digit in range(10)]

    def __init__(
        self, split: DigitsSplit = "val", size: int = 500, seed: int = 0, difficulty: float = 1.0
    ) -> None:
        if split not in ("train", "val"):
            raise ValueError(f"split must be 'train' or 'val', got {split!r}")
        count(1, 1000 * MANY).require("size", size)
        SEEDS.require("seed", seed)
        if not 0 <= difficulty <= 1:
            raise ValueError(f"difficulty must lie in [0, 1], got {difficulty}")
        self.split: DigitsSplit = split
        self.size = size
        self.seed = seed
        self.difficulty = difficulty

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> Sample:
        if not 0 <= i < self.size:
            raise IndexError(i)
        rng = np.random.default_rng([int(self.split == "val"), self.seed, i])
        sources = _sources(self.split)
        image, glyph, box = _draw(sources, rng, self.difficulty)
        image_id = f"{self.name}/{self.split}/{self.seed}/{i}"
        return Sample(
            image,
            int(sources.labels[glyph]),
            np.array([box], dtype=np.float32),
            image_id,
            cluster=f"digit {sources.indices[glyph]}",
        )

    def fingerprint(self) -> str:
        """Hex digest of the arguments and of the first samples."""
        digest = hashlib.sha256(f"{self.split} {self.seed} {self.size} {self.difficulty}".encode())
        for i in range(min(self.size, 4)):
            sample = self[i]
            digest.update(sample.image.tobytes() + str(sample.label).encode())
        return digest.hexdigest()[:16]


def _draw(
    sources: _Sources, rng: np.random.Generator, difficulty: float
) -> tuple[NDArray[np.uint8], int, tuple[int, int, int, int]]:
    """Draw background, fragments and the digit; returns image, number of its glyph, and box."""
    canvas = _ground(sources.photographs, rng) * np.float32(GROUND_BRIGHTNESS * difficulty)
    chosen = int(rng.integers(len(sources.glyphs)))
    stroke = _enlarge(sources.glyphs[chosen], int(rng.integers(*DIGIT_SIDE, endpoint=True)))
    stroke = _trim(_reshape(stroke, rng) if sources.augmented else stroke)
    top, left = _place(stroke.shape, rng)
    height, width = stroke.shape
    box = (left, top, left + width, top + height)
    for _ in range(int(rng.integers(*DISTRACTORS, endpoint=True))):
        other = sources.glyphs[int(rng.integers(len(sources.glyphs)))]
        fragment = _fragment(other, rng) * np.float32(difficulty)
        place = _place(fragment.shape, rng)
        if not _overlap(box, place, fragment.shape):
            _paint(canvas, fragment, place, rng)
    _paint(canvas, stroke, (top, left), rng)
    image = np.clip(np.rint(canvas * 255), 0, 255).astype(np.uint8)
    return image, chosen, box


def _ground(photographs: list[NDArray[np.uint8]], rng: np.random.Generator) -> NDArray[np.float32]:
    """A random square of a random photograph, reduced by a factor of 1 to 2."""
    photograph = photographs[int(rng.integers(len(photographs)))]
    side = int(rng.integers(IMAGE_SIZE, min(2 * IMAGE_SIZE, *photograph.shape[:2]), endpoint=True))
    top = int(rng.integers(photograph.shape[0] - side, endpoint=True))
    left = int(rng.integers(photograph.shape[1] - side, endpoint=True))
    crop: NDArray[np.uint8] = photograph[top : top + side, left : left + side]
    if rng.random() < 0.5:
        crop = crop[:, ::-1]
    resized = cv2.resize(crop, (IMAGE_SIZE, IMAGE_SIZE), interpolation=cv2.INTER_AREA)
    return resized.astype(np.float32) / np.float32(255)


def _enlarge(glyph: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    enlarged = cv2.resize(glyph, (side, side), interpolation=cv2.INTER_CUBIC)
    return np.clip(enlarged, 0, 1).astype(np.float32)


def _reshape(stroke: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Rotate, slant and stretch a stroke slightly about its centre, on a larger canvas."""
    angle, slant = rng.uniform(-ROTATION, ROTATION), rng.uniform(-SLANT, SLANT)
    stretch = 1 + rng.uniform(-STRETCH, STRETCH, size=2)
    cos, sin = np.cos(angle), np.sin(angle)
    matrix = np.array([[cos, -sin], [sin, cos]]) @ [[1, slant], [0, 1]] @ np.diag(stretch)
    side, margin = len(stroke), len(stroke) // 4
    padded = np.pad(stroke, margin)
    centre = np.full(2, (side - 1) / 2 + margin)
    warp = np.column_stack([matrix, centre - matrix @ centre])
    size = padded.shape[1], padded.shape[0]
    reshaped = cv2.warpAffine(padded, warp, size, flags=cv2.INTER_LINEAR)
    return reshaped.astype(np.float32)


def _trim(stroke: NDArray[np.float32]) -> NDArray[np.float32]:
    """Crop to the smallest rectangle that contains all ink; its outline is the box."""
    rows, columns = np.nonzero(stroke >= INK)
    return stroke[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]


def _fragment(glyph: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """A 3×3 piece of another digit, enlarged like a digit."""
    row, column = rng.integers(0, 5, size=2, endpoint=True)
    side = int(rng.integers(*DIGIT_SIDE, endpoint=True)) * 3 // 8
    return _enlarge(glyph[row : row + 3, column : column + 3], side)


def _place(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[int, int]:
    top, left = (int(rng.integers(IMAGE_SIZE - extent, endpoint=True)) for extent in shape)
    return top, left


def _overlap(
    box: tuple[int, int, int, int], place: tuple[int, int], shape: tuple[int, ...]
) -> bool:
    top, left = place
    height, width = shape
    x0, y0, x1, y1 = box
    return left < x1 and x0 < left + width and top < y1 and y0 < top + height


def _paint(
    canvas: NDArray[np.float32],
    stroke: NDArray[np.float32],
    place: tuple[int, int],
    rng: np.random.Generator,
) -> None:
    """Draw a stroke on the canvas in a random colour that contrasts with the background."""
    height, width = stroke.shape
    ground = canvas[place[0] : place[0] + height, place[1] : place[1] + width]
    lightness = rng.uniform(min(float(ground.mean()) + CONTRAST, 1), 1)
    tint = rng.uniform(-0.2, 0.2, size=3)
    colour = np.clip(lightness + tint - tint.mean(), 0, 1).astype(np.float32)
    ground += stroke[..., None] * (colour - ground)
