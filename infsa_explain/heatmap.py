"""Patch maps over their image: the overlay, and figures of it with colour bars and boxes.

How the overlay is drawn, and why:

- The image fades towards grey, so that colour in the overlay means score and nothing else; a
  fifth of its own colour stays, enough to know the scene by.
- Opacity grows with the score, as its square root. Where the map is low the photo stays clear
  below a faint tint, where it is high the colour rules, and the middle does not drown.
- *viridis* is perceptually uniform, reads the same to the colour-blind, and its yellow top is
  apart from grey in hue as well as in lightness (inferno and magma end in near white, which is
  lost on bright photos; cividis is close to grey throughout).
- Upsampling is bilinear between patch centres, the same that the localisation measures use.

Colour bars show the colours as they appear on mid-grey, in the map's raw units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypedDict, Unpack

import cv2
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from .data.decode import to_rgb

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["figure", "grid", "overlay", "upsample"]

AnyImage: TypeAlias = "Image.Image | NDArray[Any] | Tensor"
AnyMap: TypeAlias = "NDArray[Any] | Tensor"

#: Share of ``opacity`` that the lowest score has.
FLOOR = 0.25
#: Share of grey in the image below the map, from opacity 0.5 on.
GREY = 0.8
#: A map whose range is below this share of its values is constant but for rounding.
FLAT = 1e-6
#: Float images may leave [0, 1] by this much: about one grey level, for 16-bit floats.
SLACK = 5e-3


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
    scores: AnyMap,
    *,
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
        image: a Pillow image, an (H, W, 3) array or a (3, H, W) tensor; uint8, or float in
            [0, 1].
        scores: (gh, gw) array or tensor, raw; scaled to its own range for display only. A
            constant map is drawn at the low end.
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
    >>> grey = np.full((4, 4, 3), 128, dtype=np.uint8)
    >>> drawn = overlay(grey, np.array([[0.0, 1.0]]))
    >>> drawn[0, 0].tolist(), drawn[0, 3].tolist()  # a tint of violet; yellow
    ([118, 107, 121], [209, 195, 68])
    """
    pixels = _pixels(image, mean, std)
    values = _map(scores)
    scale = _scale(values, percentile, vmin, vmax)
    height, width = pixels.shape[:2]
    return _paint(pixels, scale.fraction(upsample(values, (height, width))), colormap, opacity)


def upsample(scores: AnyMap, size: tuple[int, int]) -> NDArray[np.float64]:
    """Enlarge a patch map bilinearly between patch centres (``align_corners=False``).

    Args:
        scores: (gh, gw) array or tensor, finite.
        size: (H, W) in pixels.

    Returns:
        (H, W) float64, within the range of ``scores``.

    Raises:
        ValueError: ``scores`` is not a finite (gh, gw) map, or ``size`` is not positive.

    >>> import numpy as np
    >>> upsample(np.array([[0.0, 1.0]]), (1, 4)).tolist()
    [[0.0, 0.25, 0.75, 1.0]]
    """
    height, width = size
    if min(height, width) < 1:
        raise ValueError(f"size must be (H, W) of at least one pixel, got {tuple(size)}")
    enlarged = cv2.resize(_map(scores), (width, height), interpolation=cv2.INTER_LINEAR)
    return np.asarray(enlarged, dtype=np.float64)


def figure(
    image: AnyImage,
    scores: AnyMap,
    *,
    title: str = "",
    caption: str = "",
    label: str = "score",
    boxes: ArrayLike | None = None,
    **display: Unpack[Display],
) -> Figure:
    """The image, and its overlay beside a colour bar in raw units.

    Args:
        image: as for :func:`overlay`.
        scores: as for :func:`overlay`.
        title: a line above.
        caption: a line below.
        label: names the colour bar.
        boxes: (K, 4) of x0, y0, x1, y1 in pixel edges, half-open, outlined on both.
        **display: as for :func:`overlay`.

    Returns:
        A figure apart from pyplot's state; ``savefig`` writes it.

    Raises:
        ValueError: as :func:`overlay`.
    """
    return _panels(image, {"": scores}, 2, title, caption, label, boxes, False, display)


def grid(
    image: AnyImage,
    maps: Mapping[str, AnyMap],
    *,
    columns: int = 4,
    shared_scale: bool = False,
    title: str = "",
    caption: str = "",
    label: str = "",
    boxes: ArrayLike | None = None,
    **display: Unpack[Display],
) -> Figure:
    """The image and several maps of it, each with its title and colour bar.

    Args:
        image: as for :func:`overlay`.
        maps: title to map.
        columns: panels in a row.
        shared_scale: one scale for all, from the lowest to the highest; it suits maps in the
            same units, such as layers of one method. By default each map has its own.
        title: a line above.
        caption: a line below.
        label: names the colour bars.
        boxes: (K, 4) of x0, y0, x1, y1 in pixel edges, half-open, outlined on every panel.
        **display: as for :func:`overlay`.

    Returns:
        A figure apart from pyplot's state.

    Raises:
        ValueError: ``maps`` is empty, ``columns`` is below 1, or as :func:`overlay`.
    """
    if not maps:
        raise ValueError("maps must hold at least one map, got none")
    if columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}")
    return _panels(image, maps, columns, title, caption, label, boxes, shared_scale, display)


def _panels(
    image: AnyImage,
    maps: Mapping[str, AnyMap],
    columns: int,
    title: str,
    caption: str,
    label: str,
    boxes: ArrayLike | None,
    shared: bool,
    display: Display,
) -> Figure:
    """The image as the first panel, then the maps."""
    pixels = _pixels(image, display.pop("mean", None), display.pop("std", None))
    outlines = np.asarray(() if boxes is None else boxes, dtype=float)
    if outlines.size and (outlines.ndim != 2 or outlines.shape[1] != 4):
        raise ValueError(f"boxes must be (K, 4) of x0, y0, x1, y1, got {outlines.shape}")
    limits = (display.pop("percentile", None), display.pop("vmin", None), display.pop("vmax", None))
    scales = [_scale(_map(scores), *limits) for scores in maps.values()]
    if shared:
        scales = [_Scale(min(s.low for s in scales), max(s.high for s in scales))] * len(scales)

    rows = math.ceil((1 + len(maps)) / columns)
    columns = math.ceil((1 + len(maps)) / rows)
    side = 3.2 * min(max(pixels.shape[0] / pixels.shape[1], 0.4), 2.0)
    drawn = Figure(
        figsize=(3.7 * columns, (side + 0.35) * rows + 0.3), dpi=150, layout="constrained"
    )
    panels: list[Axes] = list(drawn.subplots(rows, columns, squeeze=False).flat)
    for panel in panels:
        panel.set_axis_off()
    _show(panels[0], pixels, "image", outlines)
    for panel, (name, scores), scale in zip(panels[1:], maps.items(), scales, strict=False):
        display["vmin"], display["vmax"] = scale
        _show(panel, overlay(pixels, scores, **display), name, outlines)
        if not shared:
            _bar(drawn, [panel], scale, label, display)
    if shared:
        _bar(drawn, panels, scales[0], label, display)
    if title:
        drawn.suptitle(title, fontsize=11)
    if caption:
        drawn.supxlabel(caption, fontsize=8)
    return drawn


def _show(panel: Axes, pixels: NDArray[np.uint8], name: str, boxes: NDArray[Any]) -> None:
    panel.imshow(pixels)
    panel.set_title(name, fontsize=9)
    for x0, y0, x1, y1 in boxes:
        for colour, width in (("black", 3.0), ("white", 1.3)):  # seen on any ground
            # Pixel edges: imshow has the first pixel's centre, 0.5, at 0.
            corner = (x0 - 0.5, y0 - 0.5)
            outline = Rectangle(corner, x1 - x0, y1 - y0, fill=False, edgecolor=colour)
            outline.set_linewidth(width)
            panel.add_patch(outline)


def _bar(drawn: Figure, panels: list[Axes], scale: _Scale, label: str, display: Display) -> None:
    """A colour bar of an overlay's colours as they are on mid-grey."""
    ground = np.full((1, 256, 3), 128, dtype=np.uint8)
    display = {**display, "vmin": 0, "vmax": 255}
    colours = ListedColormap(overlay(ground, np.arange(256)[None], **display)[0] / 255)
    high = scale.low + max(1.0, abs(scale.low)) if scale.flat else scale.high
    mappable = ScalarMappable(Normalize(scale.low, high), colours)
    bar = drawn.colorbar(mappable, ax=panels, fraction=0.05, pad=0.02, aspect=25)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)
    if scale.flat:  # the one value there is, at the low end
        bar.set_ticks([scale.low], labels=[f"{scale.low:.3g}"])


class _Scale(NamedTuple):
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


def _scale(
    values: NDArray[np.float64], percentile: float | None, vmin: float | None, vmax: float | None
) -> _Scale:
    """What the ends of the colour map stand for, in raw units."""
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
    return _Scale(low, max(low, high)) if vmax is None else _Scale(min(low, high), high)


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
    grey = cv2.cvtColor(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    fade = GREY * min(1.0, 2 * opacity)
    ground = cv2.addWeighted(grey, fade, pixels, 1 - fade, 0)
    colour = colormaps[colormap](fraction, bytes=True)[..., :3]
    weight = (opacity * (FLOOR + (1 - FLOOR) * np.sqrt(fraction))).astype(np.float32)
    blended = cv2.blendLinear(np.ascontiguousarray(colour), ground, weight, 1 - weight)
    return np.asarray(blended, dtype=np.uint8)


def _pixels(
    image: AnyImage, mean: Sequence[float] | None, std: Sequence[float] | None
) -> NDArray[np.uint8]:
    """Any image as (H, W, 3) uint8 RGB."""
    if isinstance(image, Image.Image):
        array: NDArray[Any] = to_rgb(image)
    else:
        array = _numpy(image)
        layout, channels = ("(H, W, 3)", 2) if isinstance(image, np.ndarray) else ("(3, H, W)", 0)
        if array.ndim != 3 or array.shape[channels] != 3 or not array.size:
            raise ValueError(f"image must be {layout}, RGB, got {array.shape}")
        array = np.moveaxis(array, channels, 2)
    if (mean is None) != (std is None):
        raise ValueError("mean and std go together, got one of them")
    if np.issubdtype(array.dtype, np.floating):
        array = array.astype(np.float64)
        if mean is not None:
            array = array * np.asarray(std, dtype=float) + np.asarray(mean, dtype=float)
        if not (array.min() >= -SLACK and array.max() <= 1 + SLACK):  # NaN fails too
            raise ValueError(
                f"a float image must lie in [0, 1], got [{array.min():.3g}, {array.max():.3g}]; "
                "denormalise it, or pass the mean and std it was normalised with"
            )
        array = np.rint(255 * np.clip(array, 0, 1)).astype(np.uint8)
    elif mean is not None:
        raise ValueError(f"mean and std are for float images, got {array.dtype}")
    elif array.dtype != np.uint8:
        raise ValueError(f"image must be uint8, or float in [0, 1], got {array.dtype}")
    return np.ascontiguousarray(array)


def _map(scores: AnyMap) -> NDArray[np.float64]:
    values = _numpy(scores).astype(np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"scores must be one (gh, gw) map, got {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(
            f"scores must be finite, got {np.count_nonzero(~np.isfinite(values))} NaN or infinite"
        )
    return values


def _numpy(value: AnyMap) -> NDArray[Any]:
    """An array of a tensor on any device, with or without gradient, or of an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value).numpy()
    return np.asarray(value)
