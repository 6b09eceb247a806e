"""photo-digits: the embedded benchmark, handwritten digits on crops of photographs.

One real handwritten digit (scikit-learn's ``load_digits``) lies at a random place on a crop
of a real photograph (``load_sample_images``: ``china.jpg`` and ``flower.jpg``), beside a
fragment of another digit. The class is the digit, and its box is known exactly. Nothing is
downloaded: both sources come with scikit-learn.

Training and evaluation share neither handwriting nor ground: the digits are split in two by
class, and each photograph by a vertical line. Handwriting is scarce, so training varies its shape a
little; evaluation takes it as it was written.
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

Split = Literal["train", "val"]

#: Side of a sample in pixels.
IMAGE_SIZE = 112
#: Side of a digit in pixels, smallest and largest; its 8x8 original is enlarged to it.
DIGIT_SIDE = (28, 40)
#: Number of fragments of other digits, smallest and largest.
DISTRACTORS = (1, 1)
#: Brightness that is left to the photographs, so that every digit can be lighter than its ground.
GROUND_BRIGHTNESS = 0.4
#: Difference of lightness between a digit and the ground below it, at least (0 to 1).
CONTRAST = 0.5
#: Share of every digit class, and of every photograph's width, that is used for training.
TRAIN_SHARE = 0.7
#: Largest change of a training digit's shape: rotation and slant in radians, and stretch as a
#: share.
ROTATION, SLANT, STRETCH = 0.2, 0.2, 0.12
#: A pixel belongs to a stroke where at least this much of its colour is the stroke's.
INK = 0.25


class _Sources(NamedTuple):
    glyphs: NDArray[np.float32]  # (n, 8, 8), 0 to 1
    labels: NDArray[np.int64]  # (n,)
    photographs: list[NDArray[np.uint8]]  # each (H, W, 3)
    augmented: bool  # whether the shape of the handwriting varies


@lru_cache(maxsize=2)
def _sources(split: Split) -> _Sources:
    """The handwriting and the photographs of one split; the other split has the rest."""
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
    return _Sources(glyphs, labels, photographs, split == "train")


class PhotoDigits:
    """Handwritten digits on photographs, with exact boxes; sample ``i`` is a pure function.

    Args:
        split: ``"train"`` or ``"val"``.
        size: the number of samples, at least 1.
        seed: chooses another series of samples of the same kind; at least 0.
        difficulty: 0 to 1, for a training curriculum: the ground and the fragments fade in
            from black. Evaluation is always at 1.

    Every item is a :class:`Sample`: a (112, 112, 3) uint8 RGB image, the label 0 to 9, and
    one box. It depends on ``(split, seed, i, difficulty)`` alone, so any worker on any
    machine makes the same image.

    >>> sample = PhotoDigits("val", size=4)[3]
    >>> sample.image.shape, sample.boxes.shape, sample.image_id
    ((112, 112, 3), (1, 4), 'photo-digits/val/0/3')
    """

    name = "photo-digits"
    classes = [str(digit) for digit in range(10)]

    def __init__(
        self, split: Split = "val", size: int = 500, seed: int = 0, difficulty: float = 1.0
    ) -> None:
        if split not in ("train", "val"):
            raise ValueError(f"split must be 'train' or 'val', got {split!r}")
        count(1, 1000 * MANY).require("size", size)
        SEEDS.require("seed", seed)
        if not 0 <= difficulty <= 1:
            raise ValueError(f"difficulty must lie in [0, 1], got {difficulty}")
        self.split: Split = split
        self.size = size
        self.seed = seed
        self.difficulty = difficulty

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> Sample:
        if not 0 <= i < self.size:
            raise IndexError(i)
        rng = np.random.default_rng([int(self.split == "val"), self.seed, i])
        image, label, box = _draw(_sources(self.split), rng, self.difficulty)
        image_id = f"{self.name}/{self.split}/{self.seed}/{i}"
        return Sample(image, label, np.array([box], dtype=np.float32), image_id)

    def fingerprint(self) -> str:
        """Hex digest of the data: changes with anything that changes a pixel or a label."""
        digest = hashlib.sha256(f"{self.split} {self.seed} {self.size} {self.difficulty}".encode())
        for i in range(min(self.size, 4)):
            sample = self[i]
            digest.update(sample.image.tobytes() + str(sample.label).encode())
        return digest.hexdigest()[:16]


def _draw(
    sources: _Sources, rng: np.random.Generator, difficulty: float
) -> tuple[NDArray[np.uint8], int, tuple[int, int, int, int]]:
    """One sample: ground, fragments, and the digit on top; returns image, label and box."""
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
    return image, int(sources.labels[chosen]), box


def _ground(photographs: list[NDArray[np.uint8]], rng: np.random.Generator) -> NDArray[np.float32]:
    """A random square of a random photograph, at one to two times its own scale."""
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
    """Rotate, slant and stretch a little about the centre, on a canvas with room for it."""
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
    """The smallest rectangle that holds all ink, so that its outline is the box."""
    rows, columns = np.nonzero(stroke >= INK)
    return stroke[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]


def _fragment(glyph: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """A 3x3 piece of another digit, at a digit's scale: strokes that are no digit."""
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
    """Lay a stroke over the canvas in a random colour that contrasts with the ground below."""
    height, width = stroke.shape
    ground = canvas[place[0] : place[0] + height, place[1] : place[1] + width]
    lightness = rng.uniform(min(float(ground.mean()) + CONTRAST, 1), 1)
    tint = rng.uniform(-0.2, 0.2, size=3)
    colour = np.clip(lightness + tint - tint.mean(), 0, 1).astype(np.float32)
    ground += stroke[..., None] * (colour - ground)
