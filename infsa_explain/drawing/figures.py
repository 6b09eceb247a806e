"""Figures of maps: one beside its image, a row, a table; with colour bars, boxes and titles.

Maps go in as arrays, whatever made them; :mod:`infsa_explain.viewing.galleries` makes them of a
model and an image. Colour bars show the colours as they appear on mid-grey, in the map's raw units.
A map that is NaN throughout, as that of a dead head is, is said to be none.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from ..data.pixels import AnyArray, AnyImage, Region, to_array, to_pixels
from .heatmap import Display, Scale, check_aspect, overlay, scale_of, to_map, whole

__all__ = ["ColourScale", "Drawing", "Panel", "balanced", "draw", "figure", "grid", "table"]

#: Whether each map has its own colour scale, those in a row one, or all of a figure.
ColourScale = Literal["own", "row", "shared"]


class Drawing(Figure):
    """A figure apart from pyplot's state, which a notebook shows by itself.

    As JPEG, which takes a fraction of the room of PNG where there are photographs.
    """

    def jpeg(self) -> bytes:
        """The figure as it is shown."""
        file = io.BytesIO()
        self.savefig(file, format="jpeg", pil_kwargs={"quality": 90})
        return file.getvalue()

    def _ipython_display_(self) -> None:
        from IPython.display import Image, display

        display(Image(self.jpeg(), format="jpeg"))  # type: ignore[no-untyped-call]


class Panel(NamedTuple):
    """One picture of a figure.

    Attributes:
        pixels: (H, W, 3) uint8 RGB.
        scores: (gh, gw), laid over the pixels; None for the pixels alone. A map that is NaN
            throughout, as that of a dead head is, is not drawn: the image is greyed instead.
        title: a line above, or several.
        boxes: (K, 4) of x0, y0, x1, y1 in pixel edges, half-open, outlined.
        region: the rectangle that the map covers, as for :func:`infsa_explain.overlay`; None for
            all of the pixels.
    """

    pixels: NDArray[np.uint8]
    scores: AnyArray | None = None
    title: str = ""
    boxes: ArrayLike | None = None
    region: Region | None = None


def figure(
    image: AnyImage,
    scores: AnyArray,
    *,
    title: str = "",
    caption: str = "",
    label: str = "score",
    boxes: ArrayLike | None = None,
    region: Region | None = None,
    **display: Unpack[Display],
) -> Drawing:
    """The image, and its overlay beside a colour bar in raw units.

    Args:
        image: as for :func:`infsa_explain.overlay`.
        scores: (gh, gw), raw.
        title: a line above.
        caption: a line below.
        label: names the colour bar.
        boxes: (K, 4) of x0, y0, x1, y1 in pixel edges, half-open, outlined on both.
        region: the rectangle that the map covers, as for :func:`infsa_explain.overlay`.
        **display: as for :func:`infsa_explain.overlay`.

    Returns:
        A figure, which a notebook shows; ``savefig`` writes it.

    Raises:
        ValueError: as :func:`infsa_explain.overlay`.
    """
    pixels = to_pixels(image, display.pop("mean", None), display.pop("std", None))
    _check_place(pixels, [scores], region)
    panels = [Panel(pixels, None, "image", boxes), Panel(pixels, scores, "", boxes, region)]
    return draw([panels], title=title, caption=caption, label=label, width=3.4, **display)


def grid(
    image: AnyImage,
    maps: Mapping[str, AnyArray],
    *,
    columns: int = 4,
    shared_scale: bool = False,
    title: str = "",
    caption: str = "",
    label: str = "",
    boxes: ArrayLike | None = None,
    region: Region | None = None,
    **display: Unpack[Display],
) -> Drawing:
    """The image and several maps of it, each with its title and colour bar.

    Args:
        image: as for :func:`infsa_explain.overlay`.
        maps: title to map.
        columns: panels in a row, at most.
        shared_scale: one scale for all, from the lowest to the highest; it suits maps in the
            same units, such as layers of one method. By default each map has its own.
        title: a line above.
        caption: a line below.
        label: names the colour bars.
        boxes: (K, 4) of x0, y0, x1, y1 in pixel edges, half-open, outlined on every panel.
        region: the rectangle that the maps cover, as for :func:`infsa_explain.overlay`.
        **display: as for :func:`infsa_explain.overlay`.

    Returns:
        A figure, as of :func:`figure`.

    Raises:
        ValueError: ``maps`` is empty, ``columns`` is below 1, or as
            :func:`infsa_explain.overlay`.
    """
    if not maps:
        raise ValueError("maps must hold at least one map, got none")
    if columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}")
    pixels = to_pixels(image, display.pop("mean", None), display.pop("std", None))
    _check_place(pixels, maps.values(), region)
    panels = [Panel(pixels, None, "image", boxes)]
    panels += [Panel(pixels, scores, name, boxes, region) for name, scores in maps.items()]
    scale: ColourScale = "shared" if shared_scale else "own"
    return draw(
        balanced(panels, columns), scale=scale, title=title, caption=caption, label=label, **display
    )


def table(
    image: AnyImage,
    maps: Mapping[str, Mapping[str, AnyArray]],
    *,
    scale: ColourScale = "own",
    title: str = "",
    caption: str = "",
    label: str = "",
    boxes: ArrayLike | None = None,
    region: Region | None = None,
    **display: Unpack[Display],
) -> Drawing:
    """Maps of one image in rows and columns, such as methods × layers.

    Args:
        image: as for :func:`infsa_explain.overlay`.
        maps: row to column to map. A row may lack columns.
        scale: ``"own"`` for every map, one for each ``"row"``, or one ``"shared"`` by all.
        title: a line above.
        caption: a line below.
        label: names the colour bars.
        boxes: (K, 4) of x0, y0, x1, y1 in pixel edges, half-open, outlined on every panel.
        region: the rectangle that the maps cover, as for :func:`infsa_explain.overlay`.
        **display: as for :func:`infsa_explain.overlay`.

    Returns:
        A figure, as of :func:`figure`.

    Raises:
        ValueError: ``maps`` holds none, or as :func:`infsa_explain.overlay`.
    """
    columns = list(dict.fromkeys(column for row in maps.values() for column in row))
    if not columns:
        raise ValueError("maps must hold at least one map, got none")
    pixels = to_pixels(image, display.pop("mean", None), display.pop("std", None))
    _check_place(pixels, [scores for row in maps.values() for scores in row.values()], region)
    rows: list[list[Panel | None]] = []
    for row in maps.values():
        headed = columns if not rows else [""] * len(columns)
        rows.append([None if rows else Panel(pixels, None, "image", boxes)])
        rows[-1] += [
            Panel(pixels, row[column], heading, boxes, region) if column in row else None
            for column, heading in zip(columns, headed, strict=True)
        ]
    return draw(
        rows, names=list(maps), scale=scale, title=title, caption=caption, label=label, **display
    )


def _check_place(
    pixels: NDArray[np.uint8], maps: Iterable[AnyArray], region: Region | None
) -> None:
    """Warn once of maps that are said to cover an image of another shape."""
    for shape in dict.fromkeys(tuple(scores.shape) for scores in maps):
        if region is None and len(shape) == 2:
            check_aspect(pixels, np.empty(shape))


def draw(
    rows: Sequence[Sequence[Panel | None]],
    *,
    names: Sequence[str] = (),
    scale: ColourScale = "own",
    title: str = "",
    caption: str = "",
    label: str = "",
    width: float = 2.1,
    **display: Unpack[Display],
) -> Drawing:
    """Panels in rows, each with its own picture: what every figure here is made of.

    Args:
        rows: panels from the top left; None leaves a place empty.
        names: of the rows, at their left.
        scale: ``"own"`` for every map, one for each ``"row"``, or one ``"shared"`` by all.
        title: a line above.
        caption: a line below.
        label: names the colour bars.
        width: of a panel, in inches.
        **display: as for :func:`infsa_explain.overlay`, but ``mean`` and ``std``.

    Returns:
        A figure, as of :func:`figure`.

    Raises:
        ValueError: for an unknown ``scale``, boxes of another shape, or as
            :func:`infsa_explain.overlay`.
    """
    if scale not in ("own", "row", "shared"):
        raise ValueError(f"scale must be 'own', 'row' or 'shared', got {scale!r}")
    limits = (display.pop("percentile", None), display.pop("vmin", None), display.pop("vmax", None))
    own = [[_scale(panel, limits) for panel in row] for row in rows]
    everything = [one for row in own for one in row]
    drawn, axes = _layout(rows, width, bars=scale == "own")
    for row, scales, places in zip(rows, own, axes, strict=True):
        last = max((i for i, one in enumerate(scales) if one), default=-1)
        shared = {"own": None, "row": _union(scales), "shared": _union(everything)}[scale]
        for i, (panel, one, place) in enumerate(zip(row, scales, places, strict=False)):
            if panel is None:
                continue
            used = one and (shared or one)
            _show(place, panel, used, display)
            if used and (scale == "own" or (scale == "row" and i == last)):
                beside = place.inset_axes((1.03, 0.0, 0.05, 1.0))
                _bar(drawn, used, label, display, cax=beside)
    if scale == "shared" and (shared := _union(everything)):
        _bar(drawn, shared, label, display, ax=axes, shrink=0.8, fraction=0.05, pad=0.02, aspect=30)
    for name, scales, places in zip(names, own, axes, strict=False):
        first = next((place for one, place in zip(scales, places, strict=False) if one), places[0])
        at = {"xycoords": "axes fraction", "rotation": 90, "ha": "right", "va": "center"}
        first.annotate(name, (-0.03, 0.5), fontsize=9, **at)
    if title:
        drawn.suptitle(title, fontsize=10)
    if caption:
        drawn.supxlabel(caption, fontsize=8)
    return drawn


def _layout(
    rows: Sequence[Sequence[Panel | None]], width: float, bars: bool
) -> tuple[Drawing, NDArray[Any]]:
    """An empty figure with a place for every panel, and for a colour bar beside each or not."""
    columns = max(len(row) for row in rows)
    shapes = [panel.pixels.shape[:2] for row in rows for panel in row if panel]
    tallest = min(max(max(h / w for h, w in shapes), 0.4), 2.0)
    pitch = width + (0.55 if bars else 0.1)
    size = (pitch * columns + 0.6, (width * tallest + 0.25) * len(rows) + 0.5)
    drawn = Drawing(figsize=size, dpi=100, layout="constrained")
    axes = drawn.subplots(len(rows), columns, squeeze=False)
    for place in axes.flat:
        place.set_axis_off()
    return drawn, axes


def balanced(panels: Sequence[Panel], columns: int) -> list[list[Panel | None]]:
    """Panels in as few rows of at most so many as hold them, all about equally long."""
    rows = math.ceil(len(panels) / columns)
    width = math.ceil(len(panels) / rows)
    return [list(panels[start : start + width]) for start in range(0, len(panels), width)]


def _scale(
    panel: Panel | None, limits: tuple[float | None, float | None, float | None]
) -> Scale | None:
    """The colour scale of a panel's own map, None where there is none to draw."""
    if panel is None or panel.scores is None or np.isnan(to_array(panel.scores)).all():
        return None
    return scale_of(to_map(panel.scores), *limits)


def _union(scales: Sequence[Scale | None]) -> Scale | None:
    """From the lowest of all to the highest."""
    known = [scale for scale in scales if scale]
    if not known:
        return None
    return Scale(min(scale.low for scale in known), max(scale.high for scale in known))


def _show(place: Axes, panel: Panel, scale: Scale | None, display: Display) -> None:
    """Draw a panel's pixels, its map over them, and its boxes."""
    pixels = panel.pixels
    if scale is not None and panel.scores is not None:
        display = {**display, "vmin": scale.low, "vmax": scale.high}
        pixels = overlay(pixels, panel.scores, region=panel.region or whole(pixels), **display)
    elif panel.scores is not None:
        pixels = (0.2 * pixels + 0.8 * 255).astype(np.uint8)
        place.text(0.5, 0.5, "no map", transform=place.transAxes, fontsize=8, ha="center")
    place.imshow(pixels)
    place.set_title(panel.title, fontsize=9)
    boxes = np.asarray(() if panel.boxes is None else panel.boxes, dtype=float)
    if boxes.size and (boxes.ndim != 2 or boxes.shape[1] != 4):
        raise ValueError(f"boxes must be (K, 4) of x0, y0, x1, y1, got {boxes.shape}")
    for x0, y0, x1, y1 in boxes:
        for colour, width in (("black", 3.0), ("white", 1.3)):  # seen on any ground
            # Pixel edges: imshow has the first pixel's centre, 0.5, at 0.
            corner = (x0 - 0.5, y0 - 0.5)
            outline = Rectangle(corner, x1 - x0, y1 - y0, fill=False, edgecolor=colour)
            outline.set_linewidth(width)
            place.add_patch(outline)


def _bar(drawn: Figure, scale: Scale, label: str, display: Display, **place: Any) -> None:
    """A colour bar of an overlay's colours as they are on mid-grey."""
    ground = np.full((1, 256, 3), 128, dtype=np.uint8)
    display = {**display, "vmin": 0, "vmax": 255}
    colours = overlay(ground, np.arange(256)[None], region=whole(ground), **display)
    high = scale.low + max(1.0, abs(scale.low)) if scale.flat else scale.high
    mappable = ScalarMappable(Normalize(scale.low, high), ListedColormap(colours[0] / 255))
    bar = drawn.colorbar(mappable, ticks=MaxNLocator(4), **place)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)
    if scale.flat:  # the one value there is, at the low end
        bar.set_ticks([scale.low], labels=[f"{scale.low:.3g}"])
