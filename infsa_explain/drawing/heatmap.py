"""Overlays: a patch map is enlarged to its image and drawn over it.

Design of the overlay:

- The image fades towards grey, so that colour shows the score alone. A fifth of the image's own
  colour stays, enough to recognise the scene.
- Opacity grows with the square root of the score. Low scores are a faint tint over a clear image,
  high scores are strongly coloured, and medium scores remain visible.
- *viridis* is perceptually uniform and suits colour-blind readers. Its yellow end differs from grey
  in hue and in lightness. (Inferno and magma end in near white, which is lost on bright photos;
  cividis is close to grey throughout.)
- Upsampling is bilinear between patch centres, as in the localisation measures.
- Parts of the image that the model did not see have no score; they are dark grey.

:mod:`infsa_explain.drawing.figures` places overlays in figures.
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

#: Opacity at the lowest score, as a share of ``opacity``.
FLOOR = 0.25
#: Share of grey in the image below the map, at opacity 0.5 and above.
GREY = 0.8
#: Brightness of pixels outside the map, at opacity 0.5 and above.
OUTSIDE = 0.4
#: Largest difference in shape between a map and its image that counts as rounding, in patches.
MAX_DIFFERENCE = 0.5
#: A map whose range is below this share of its values counts as constant.
FLAT = 1e-6


class Display(TypedDict, total=False):
    """Drawing options: keyword arguments of :func:`overlay`."""

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
    """Draw a patch map over its image, in the image's own size; the inputs are not changed.

    All drawing options are parameters here; figures and galleries pass them on.

    Args:
        image: a path, a Pillow image, an array or a tensor, as
            :func:`infsa_explain.data.pixels.to_pixels` takes them.
        scores: (gh, gw) array or tensor, raw; scaled to colours for display only. A constant map
            has the colour of the low end.
        region: left, top, right and bottom of the rectangle that the map covers, in pixel edges of
            the image; it may reach beyond the image. Pixels outside are darkened. None is the whole
            image, with a warning if its shape differs from the map's.
            :meth:`infsa_explain.Explanation.overlay` computes the rectangle.
        opacity: share of the map's colour at the highest score, from 0 (the plain image) to 1.
        colormap: name of a matplotlib colormap.
        percentile: the scale's high end as a percentile of the scores, in (0, 100], so that a few
            outliers do not darken the rest. If it equals the lowest score, the maximum is used.
        vmin: the scale's low end in raw units; the lowest score by default.
        vmax: the scale's high end in raw units; the highest score by default.
        mean, std: undo the normalisation of a float image, one value per channel.

    Returns:
        (H, W, 3) uint8 RGB.

    Raises:
        ValueError: if a shape, type or range is not as above, or a value is not finite.

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
    """Warn if a map (gh, gw) of square patches has another shape than its image (H, W, 3).

    The model then saw the image cropped or squashed, and a map stretched over the whole image is in
    the wrong place. A difference of up to half a patch is rounding.

    Args:
        pixels: the image.
        scores: the map; only its shape is used.
    """
    (height, width), (rows, columns) = pixels.shape[:2], np.shape(scores)
    surplus = max(width * rows / height - columns, height * columns / width - rows)
    if surplus > MAX_DIFFERENCE:
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
            the whole image by default. Pixels outside have the score of the nearest pixel inside.

    Returns:
        (H, W) float64, within the range of ``scores``.

    Raises:
        ValueError: if ``scores`` is not a finite (gh, gw) map, ``size`` is not positive, or
            ``region`` has no area.

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
    # Written so that NaN is refused.
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
    """Along one axis: the patches before and after each pixel, and its position between them."""
    centres = (np.arange(pixels) + 0.5 - start) * (patches / (end - start)) - 0.5
    place = np.clip(centres, 0, patches - 1)
    low = np.floor(place).astype(np.int64)
    return low, np.minimum(low + 1, patches - 1), place - low


def _inside(pixels: NDArray[np.uint8], region: Region) -> tuple[slice, slice]:
    """Slices of the rows and columns whose pixel centres lie in a rectangle."""
    (height, width), (left, top, right, bottom) = pixels.shape[:2], region
    rows, columns = (
        [min(max(math.ceil(round(edge, 6) - 0.5), 0), side) for edge in edges]
        for edges, side in (((top, bottom), height), ((left, right), width))
    )
    return slice(*rows), slice(*columns)


def to_map(scores: AnyArray) -> NDArray[np.float64]:
    """Convert a (gh, gw) map to float64.

    Raises:
        ValueError: if the shape is another, or a value is not finite.
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
    """The raw scores at the two ends of the colour map."""

    low: float
    high: float

    @property
    def flat(self) -> bool:
        """Whether the ends are equal up to rounding."""
        return self.high - self.low <= FLAT * max(abs(self.low), abs(self.high))

    def fraction(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Position of each value between the ends, clipped to [0, 1]; 0 if the scale is flat."""
        if self.flat:
            return np.zeros_like(values)
        return np.clip((values - self.low) / (self.high - self.low), 0, 1)


def scale_of(
    values: NDArray[np.float64],
    percentile: float | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
) -> Scale:
    """The colour scale of a map.

    Args:
        values: scores, of any shape, without NaN.
        percentile, vmin, vmax: as for :func:`overlay`.

    Raises:
        ValueError: if ``percentile`` is out of range or stands beside ``vmax``, an end is not
            finite, or ``vmin`` exceeds ``vmax``.
    """
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
    """Pixels (n, 3) outside a map, dark grey."""
    if not len(pixels):
        return pixels
    fade = min(1.0, 2 * opacity)
    grey = _grey(pixels[None])[0]
    dark: NDArray[np.uint8] = np.rint((1 - fade) * pixels + fade * OUTSIDE * grey).astype(np.uint8)
    return dark


def _grey(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pixels (H, W, 3) in grey."""
    grey = cv2.cvtColor(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return np.asarray(grey, dtype=np.uint8)
