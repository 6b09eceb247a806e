"""Patch scores to colour: a map enlarged to its image, and laid over it.

How the overlay is drawn, and why:

- The image fades towards grey, so that colour in the overlay means score and nothing else; a
  fifth of its own colour stays, enough to know the scene by.
- Opacity grows with the score, as its square root. Where the map is low the photo stays clear
  below a faint tint, where it is high the colour rules, and the middle does not drown.
- *viridis* is perceptually uniform, reads the same to the colour-blind, and its yellow top is
  apart from grey in hue as well as in lightness (inferno and magma end in near white, which is
  lost on bright photos; cividis is close to grey throughout).
- Upsampling is bilinear between patch centres, the same that the localisation measures use.
- Where the model saw a part of the image alone, the rest is darkened grey: it has no score.

:mod:`infsa_explain.drawing.figures` sets overlays in figures.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple, TypedDict

import cv2
import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray

from ..data.pixels import AnyArray, AnyImage, Region, to_array, to_pixels

__all__ = [
    "Display",
    "Scale",
    "check_aspect",
    "overlay",
    "scale_of",
    "to_map",
    "upsample",
    "whole",
]

#: Share of ``opacity`` that the lowest score has.
FLOOR = 0.25
#: Share of grey in the image below the map, from opacity 0.5 on.
GREY = 0.8
#: Brightness that is left to what lies outside the map, from opacity 0.5 on.
OUTSIDE = 0.4
#: Patches by which the frame of a map and an image may differ in shape.
LEEWAY = 0.5
#: A map whose range is below this share of its values is constant but for rounding.
FLAT = 1e-6


class Display(TypedDict, total=False):
    """The keyword arguments of :func:`overlay`."""

    opacity: float
    colormap: str
    percentile: float | None
    vmin: float | None
    vmax: float | None
    mean: Sequence[float] | None
    std: Sequence[float] | None


def overlay(
    image: AnyImage,
    scores: AnyArray,
    *,
    region: Region | None = None,
    opacity: float = 0.65,
    colormap: str = "viridis",
    percentile: float | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> NDArray[np.uint8]:
    """Draw a patch map over its image, in the image's own size; neither is changed.

    Args:
        image: a path, a Pillow image, an array or a tensor, as
            :func:`infsa_explain.data.pixels.to_pixels` takes them.
        scores: (gh, gw) array or tensor, raw; scaled to its own range for display only. A
            constant map is drawn at the low end.
        region: left, top, right and bottom of the rectangle that the map covers, in pixel edges
            of the image; it may reach beyond the image. What lies outside is darkened. None for
            the whole image, with a warning where that is of another shape than the map's frame.
            :meth:`infsa_explain.Explanation.overlay` knows the rectangle.
        opacity: share of the map's colour at the highest score, 0 (the image as it is) to 1.
        colormap: a name that matplotlib knows.
        percentile: the scale's top, as a percentile of the scores in (0, 100], so that a few
            outliers do not darken the rest; where it falls on the lowest score the maximum
            serves.
        vmin: the scale's low end in raw units, by default the lowest score.
        vmax: the scale's top in raw units, by default the highest score.
        mean: with ``std``, undoes the normalisation of a float image, one value a channel.
        std: see ``mean``.

    Returns:
        (H, W, 3) uint8 RGB.

    Raises:
        ValueError: shapes, types or ranges are not as above, or something is not finite.

    >>> import numpy as np
    >>> grey = np.full((2, 4, 3), 128, dtype=np.uint8)
    >>> drawn = overlay(grey, np.array([[0.0, 1.0]]))
    >>> drawn[0, 0].tolist(), drawn[1, 3].tolist()  # a tint of violet; yellow
    ([118, 107, 121], [209, 195, 68])
    >>> overlay(grey, np.array([[1.0]]), region=(1, 0, 3, 2))[0, 0].tolist()  # outside
    [51, 51, 51]
    """
    pixels = to_pixels(image, mean, std)
    values = to_map(scores)
    if region is None:
        check_aspect(pixels, values)
        region = whole(pixels)
    scale = scale_of(values, percentile, vmin, vmax)
    enlarged = upsample(values, pixels.shape[:2], region)
    drawn = _paint(pixels, scale.fraction(enlarged), colormap, opacity)
    rows, columns = _inside(pixels, region)
    outside = np.ones(pixels.shape[:2], bool)
    outside[rows, columns] = False
    drawn[outside] = _darkened(pixels[outside], opacity)
    return drawn


def whole(pixels: NDArray[np.uint8]) -> Region:
    """The rectangle of a whole image (H, W, 3)."""
    return 0.0, 0.0, float(pixels.shape[1]), float(pixels.shape[0])


def check_aspect(pixels: NDArray[np.uint8], scores: AnyArray) -> None:
    """Warn where a map (gh, gw) of square patches does not cover an image (H, W, 3) as a whole.

    The model saw such an image cropped or squashed, and a map stretched over all of it is off.
    Differences of up to half a patch are rounding.
    """
    (height, width), (rows, columns) = pixels.shape[:2], np.shape(scores)
    surplus = max(width * rows / height - columns, height * columns / width - rows)
    if surplus > LEEWAY:
        warnings.warn(
            f"the image ({width}×{height} pixels) and the map ({columns}×{rows} patches) differ in "
            "shape: the model saw the image cropped or squashed, and the map is drawn in the wrong "
            "place. Use result.overlay(image) of what explain() returns, or pass region",
            UserWarning,
            stacklevel=3,
        )


def upsample(
    scores: AnyArray, size: tuple[int, int], region: Region | None = None
) -> NDArray[np.float64]:
    """Enlarge a patch map bilinearly between patch centres (``align_corners=False``).

    Args:
        scores: (gh, gw) array or tensor, finite.
        size: (H, W) in pixels.
        region: left, top, right and bottom of the rectangle that the map covers, in pixel edges;
            all by default. Pixels outside have the score of the nearest pixel inside.

    Returns:
        (H, W) float64, within the range of ``scores``.

    Raises:
        ValueError: ``scores`` is not a finite (gh, gw) map, ``size`` is not positive, or
            ``region`` is without area.

    >>> import numpy as np
    >>> upsample(np.array([[0.0, 1.0]]), (1, 4)).tolist()
    [[0.0, 0.25, 0.75, 1.0]]
    >>> upsample(np.array([[0.0, 1.0]]), (1, 4), region=(2, 0, 4, 1)).tolist()
    [[0.0, 0.0, 0.0, 1.0]]
    """
    height, width = size
    if min(height, width) < 1:
        raise ValueError(f"size must be (H, W) of at least one pixel, got {tuple(size)}")
    edges = (0.0, 0.0, width, height) if region is None else tuple(region)
    # NaN fails too.
    if len(edges) != 4 or not (edges[2] > edges[0] and edges[3] > edges[1]):
        raise ValueError(
            f"region must be left, top, right, bottom of a rectangle with an area, got {region}"
        )
    left, top, right, bottom = edges
    values = to_map(scores)
    low, high, share = _neighbours(height, top, bottom, values.shape[0])
    values = values[low] + share[:, None] * (values[high] - values[low])
    low, high, share = _neighbours(width, left, right, values.shape[1])
    enlarged: NDArray[np.float64] = values[:, low] + share * (values[:, high] - values[:, low])
    return enlarged


def _neighbours(
    pixels: int, start: float, end: float, patches: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Along one side: the patches before and after each pixel, and how far it is between them."""
    centres = (np.arange(pixels) + 0.5 - start) * (patches / (end - start)) - 0.5
    place = np.clip(centres, 0, patches - 1)
    low = np.floor(place).astype(np.int64)
    return low, np.minimum(low + 1, patches - 1), place - low


def _inside(pixels: NDArray[np.uint8], region: Region) -> tuple[slice, slice]:
    """Rows and columns whose centres lie in a rectangle."""
    (height, width), (left, top, right, bottom) = pixels.shape[:2], region
    rows, columns = (
        [min(max(math.ceil(round(edge, 6) - 0.5), 0), side) for edge in edges]
        for edges, side in (((top, bottom), height), ((left, right), width))
    )
    return slice(*rows), slice(*columns)


def to_map(scores: AnyArray) -> NDArray[np.float64]:
    """A (gh, gw) map as float64.

    Raises:
        ValueError: for another shape, or what is not finite.
    """
    values = to_array(scores).astype(np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"scores must be one (gh, gw) map, got {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(
            f"scores must be finite, got {np.count_nonzero(~np.isfinite(values))} NaN or infinite"
        )
    return values


class Scale(NamedTuple):
    """What the two ends of the colour map stand for, in raw units."""

    low: float
    high: float

    @property
    def flat(self) -> bool:
        """Whether the ends agree but for rounding."""
        return self.high - self.low <= FLAT * max(abs(self.low), abs(self.high))

    def fraction(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Place of each value between the ends, clipped to [0, 1]; all 0 where they agree."""
        if self.flat:
            return np.zeros_like(values)
        return np.clip((values - self.low) / (self.high - self.low), 0, 1)


def scale_of(
    values: NDArray[np.float64],
    percentile: float | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
) -> Scale:
    """The scale of a map, as the arguments of :func:`overlay` say."""
    if percentile is not None and (vmax is not None or not 0 < percentile <= 100):
        raise ValueError(
            f"percentile must be in (0, 100] and without vmax, got {percentile} and vmax {vmax}"
        )
    low = float(values.min() if vmin is None else vmin)
    high = float(values.max() if vmax is None else vmax)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"vmin and vmax must be finite, got {vmin} and {vmax}")
    if vmin is not None and vmax is not None and vmin > vmax:
        raise ValueError(f"vmin must not exceed vmax, got {vmin} and {vmax}")
    if percentile is not None and (cut := float(np.percentile(values, percentile))) > low:
        high = cut
    return Scale(low, max(low, high)) if vmax is None else Scale(min(low, high), high)


def _paint(
    pixels: NDArray[np.uint8], fraction: NDArray[np.float64], colormap: str, opacity: float
) -> NDArray[np.uint8]:
    """Blend the colour of each fraction over the faded image."""
    if not 0 <= opacity <= 1:
        raise ValueError(f"opacity must lie in [0, 1], got {opacity}")
    if colormap not in colormaps:
        raise ValueError(
            f"colormap must be one of matplotlib's, such as 'viridis', got {colormap!r}"
        )
    fade = GREY * min(1.0, 2 * opacity)
    ground = cv2.addWeighted(_grey(pixels), fade, pixels, 1 - fade, 0)
    colour = colormaps[colormap](fraction, bytes=True)[..., :3]
    weight = (opacity * (FLOOR + (1 - FLOOR) * np.sqrt(fraction))).astype(np.float32)
    blended = cv2.blendLinear(np.ascontiguousarray(colour), ground, weight, 1 - weight)
    return np.asarray(blended, dtype=np.uint8)


def _darkened(pixels: NDArray[np.uint8], opacity: float) -> NDArray[np.uint8]:
    """Pixels (n, 3) outside a map: grey and dark, as the image fades below the map."""
    if not len(pixels):
        return pixels
    fade = min(1.0, 2 * opacity)
    grey = _grey(pixels[None])[0]
    dark: NDArray[np.uint8] = np.rint((1 - fade) * pixels + fade * OUTSIDE * grey).astype(np.uint8)
    return dark


def _grey(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pixels (H, W, 3) without their colour."""
    grey = cv2.cvtColor(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return np.asarray(grey, dtype=np.uint8)
