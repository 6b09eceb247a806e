"""Figures of maps: one beside its image, a row, a table; with colour bars, boxes and titles.

The functions take maps as arrays; :mod:`infsa_explain.viewing.galleries` computes them for a model
and an image. Colour bars show the colours as they appear on mid-grey, in the map's raw units. A map
that is all NaN, such as that of a dead head, is marked "no map".
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Unpack, cast

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

__all__ = [
    "ColourScale",
    "Drawing",
    "FigureOptions",
    "Panel",
    "balanced",
    "draw",
    "figure",
    "grid",
    "table",
]

#: One colour scale for each map, for each row, or for the whole figure.
ColourScale = Literal["own", "row", "shared"]


class LabelOptions(Display, total=False):
    """Texts of a figure, as for :func:`draw`, and the drawing options of its maps."""

    title: str
    caption: str
    label: str


class FigureOptions(LabelOptions, total=False):
    """What :func:`figure`, :func:`grid` and :func:`table` have in common.

    Attributes:
        title, caption, label: texts above, below, and at the colour bars.
        boxes: (K, 4) of x0, y0, x1, y1 in pixel edges, half-open, outlined on every panel.
        region: the rectangle that the maps cover, as for :func:`infsa_explain.overlay`.
    """

    boxes: ArrayLike | None
    region: Region | None


class Drawing(Figure):
    """A figure that a notebook shows by itself; it is not registered with pyplot.

    It is shown as JPEG, because photographs are much larger as PNG.
    """

    def jpeg(self) -> bytes:
        """The figure as a JPEG file."""
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
        scores: (gh, gw), drawn over the pixels, or None for the pixels alone. If the map is all
            NaN, the image is greyed and marked "no map".
        title: text above, one or several lines.
        boxes: (K, 4) of x0, y0, x1, y1 in pixel edges, half-open, outlined.
        region: the rectangle that the map covers, as for :func:`infsa_explain.overlay`; None for
            the whole image.
    """

    pixels: NDArray[np.uint8]
    scores: AnyArray | None = None
    title: str = ""
    boxes: ArrayLike | None = None
    region: Region | None = None


def figure(image: AnyImage, scores: AnyArray, **options: Unpack[FigureOptions]) -> Drawing:
    """Draw an image, and beside it the overlay with a colour bar in raw units.

    Args:
        image: as for :func:`infsa_explain.overlay`.
        scores: (gh, gw), raw.
        **options: ``title``, ``caption``, ``label`` ("score" by default), ``boxes``, ``region`` and
            the drawing options of :func:`infsa_explain.overlay`; see :class:`FigureOptions`.

    Returns:
        A figure, which a notebook shows; ``savefig`` writes it.

    Raises:
        ValueError: as :func:`infsa_explain.overlay`.
    """
    plain, labels = _plain_panel(image, [scores], options)
    labels.setdefault("label", "score")
    return draw([[_untouched(plain), plain._replace(scores=scores)]], width=3.4, **labels)


def grid(
    image: AnyImage,
    maps: Mapping[str, AnyArray],
    *,
    columns: int = 4,
    shared_scale: bool = False,
    **options: Unpack[FigureOptions],
) -> Drawing:
    """Draw an image and several maps of it, each with a title and a colour bar.

    Args:
        image: as for :func:`infsa_explain.overlay`.
        maps: title to map.
        columns: maximum number of panels in a row.
        shared_scale: use one colour scale for all maps, from the lowest score to the highest. It
            suits maps in the same units, such as layers of one method. By default each map has its
            own.
        **options: ``title``, ``caption``, ``label``, ``boxes``, ``region`` and the drawing options
            of :func:`infsa_explain.overlay`; see :class:`FigureOptions`.

    Returns:
        A figure, which a notebook shows; ``savefig`` writes it.

    Raises:
        ValueError: if ``maps`` is empty, ``columns`` is below 1, or as
            :func:`infsa_explain.overlay`.
    """
    if not maps:
        raise ValueError("maps must hold at least one map, got none")
    if columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}")
    plain, labels = _plain_panel(image, maps.values(), options)
    panels = [_untouched(plain)]
    panels += [plain._replace(scores=scores, title=name) for name, scores in maps.items()]
    scale: ColourScale = "shared" if shared_scale else "own"
    return draw(balanced(panels, columns), scale=scale, **labels)


def table(
    image: AnyImage,
    maps: Mapping[str, Mapping[str, AnyArray]],
    *,
    scale: ColourScale = "own",
    **options: Unpack[FigureOptions],
) -> Drawing:
    """Draw maps of one image in rows and columns, such as methods × layers.

    Args:
        image: as for :func:`infsa_explain.overlay`.
        maps: row to column to map. A row may lack columns.
        scale: one colour scale for each map (``"own"``), for each ``"row"``, or for all maps
            (``"shared"``).
        **options: ``title``, ``caption``, ``label``, ``boxes``, ``region`` and the drawing options
            of :func:`infsa_explain.overlay`; see :class:`FigureOptions`.

    Returns:
        A figure, which a notebook shows; ``savefig`` writes it.

    Raises:
        ValueError: if ``maps`` holds no map, or as :func:`infsa_explain.overlay`.
    """
    columns = list(dict.fromkeys(column for row in maps.values() for column in row))
    if not columns:
        raise ValueError("maps must hold at least one map, got none")
    every_map = [scores for row in maps.values() for scores in row.values()]
    plain, labels = _plain_panel(image, every_map, options)
    rows: list[list[Panel | None]] = []
    for row in maps.values():
        panels = [
            plain._replace(scores=row[column], title="" if rows else column)
            if column in row
            else None
            for column in columns
        ]
        rows.append([None if rows else _untouched(plain), *panels])
    return draw(rows, names=list(maps), scale=scale, **labels)


def _plain_panel(
    image: AnyImage, maps: Iterable[AnyArray], options: FigureOptions
) -> tuple[Panel, LabelOptions]:
    """A panel with the image, boxes and region, but no map yet; and the remaining options.

    Warns once if the maps do not cover the image and no region says where they lie.
    """
    pixels = to_pixels(image, options.pop("mean", None), options.pop("std", None))
    boxes, region = options.pop("boxes", None), options.pop("region", None)
    for shape in dict.fromkeys(tuple(scores.shape) for scores in maps):
        if region is None and len(shape) == 2:
            check_aspect(pixels, np.empty(shape))
    return Panel(pixels, boxes=boxes, region=region), cast(LabelOptions, options)


def _untouched(plain: Panel) -> Panel:
    """The panel of the image itself."""
    return plain._replace(title="image", region=None)


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
    """Draw panels in rows; all figures use this function.

    Args:
        rows: panels from the top left; None leaves a place empty.
        names: of the rows, written at their left.
        scale: one colour scale for each map (``"own"``), for each ``"row"``, or for all maps
            (``"shared"``).
        title: text above the figure.
        caption: text below the figure.
        label: label of the colour bars.
        width: of a panel, in inches.
        **display: as for :func:`infsa_explain.overlay`, except ``mean`` and ``std``.

    Returns:
        A figure, which a notebook shows; ``savefig`` writes it.

    Raises:
        ValueError: if ``scale`` is unknown, boxes have another shape, or as
            :func:`infsa_explain.overlay`.
    """
    if scale not in ("own", "row", "shared"):
        raise ValueError(f"scale must be 'own', 'row' or 'shared', got {scale!r}")
    limits = (display.pop("percentile", None), display.pop("vmin", None), display.pop("vmax", None))
    scales = [[_scale(panel, limits) for panel in row] for row in rows]
    if scale == "row":
        scales = [_united(row, row) for row in scales]
    elif scale == "shared":
        scales = [_united(row, [s for others in scales for s in others]) for row in scales]
    drawing, axes = _layout(rows, width, bars=scale == "own")
    for i, (row, row_scales, places) in enumerate(zip(rows, scales, axes, strict=True)):
        with_map = [j for j, panel_scale in enumerate(row_scales) if panel_scale]
        for j, panel in enumerate(row):
            if panel is not None:
                _show(places[j], panel, row_scales[j], display)
        for j in {"own": with_map, "row": with_map[-1:], "shared": []}[scale]:
            bar = places[j].inset_axes((1.03, 0.0, 0.05, 1.0))
            _bar(drawing, cast(Scale, row_scales[j]), label, display, cax=bar)
        if i < len(names):
            _name_row(places[with_map[0] if with_map else 0], names[i])
    common = [panel_scale for row_scales in scales for panel_scale in row_scales if panel_scale]
    if scale == "shared" and common:
        at = {"shrink": 0.8, "fraction": 0.05, "pad": 0.02, "aspect": 30}
        _bar(drawing, common[0], label, display, ax=axes, **at)
    if title:
        drawing.suptitle(title, fontsize=10)
    if caption:
        drawing.supxlabel(caption, fontsize=8)
    return drawing


def _name_row(first: Axes, name: str) -> None:
    """Write the name of a row at the left of its first panel with a map."""
    place: dict[str, Any] = {
        "xycoords": "axes fraction",
        "rotation": 90,
        "ha": "right",
        "va": "center",
    }
    first.annotate(name, (-0.03, 0.5), fontsize=9, **place)


def _layout(
    rows: Sequence[Sequence[Panel | None]], width: float, bars: bool
) -> tuple[Drawing, NDArray[Any]]:
    """An empty figure with axes for every panel, and room for colour bars beside them if asked."""
    columns = max(len(row) for row in rows)
    shapes = [panel.pixels.shape[:2] for row in rows for panel in row if panel]
    tallest = min(max(max(h / w for h, w in shapes), 0.4), 2.0)
    pitch = width + (0.55 if bars else 0.1)
    size = (pitch * columns + 0.6, (width * tallest + 0.25) * len(rows) + 0.5)
    drawing = Drawing(figsize=size, dpi=100, layout="constrained")
    axes = drawing.subplots(len(rows), columns, squeeze=False)
    for place in axes.flat:
        place.set_axis_off()
    return drawing, axes


def balanced(panels: Sequence[Panel], columns: int) -> list[list[Panel | None]]:
    """Arrange panels in the fewest rows of at most ``columns`` panels, of about equal length.

    Args:
        panels: in reading order.
        columns: maximum number of panels in a row.
    """
    rows = math.ceil(len(panels) / columns)
    width = math.ceil(len(panels) / rows)
    return [list(panels[start : start + width]) for start in range(0, len(panels), width)]


def _scale(
    panel: Panel | None, limits: tuple[float | None, float | None, float | None]
) -> Scale | None:
    """The colour scale of a panel's map; None if there is no map, or it is all NaN."""
    if panel is None or panel.scores is None or np.isnan(to_array(panel.scores)).all():
        return None
    return scale_of(to_map(panel.scores), *limits)


def _united(scales: Sequence[Scale | None], among: Sequence[Scale | None]) -> list[Scale | None]:
    """Replace each scale by the smallest one that covers all scales in ``among``."""
    present = [scale for scale in among if scale]
    if not present:
        return list(scales)
    union = Scale(min(scale.low for scale in present), max(scale.high for scale in present))
    return [scale and union for scale in scales]


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
        for colour, width in (("black", 3.0), ("white", 1.3)):  # visible on any image
            # imshow puts pixel centres at whole numbers, so edges are shifted by half a pixel.
            corner = (x0 - 0.5, y0 - 0.5)
            outline = Rectangle(corner, x1 - x0, y1 - y0, fill=False, edgecolor=colour)
            outline.set_linewidth(width)
            place.add_patch(outline)


def _bar(drawing: Figure, scale: Scale, label: str, display: Display, **place: Any) -> None:
    """Draw a colour bar with the colours of an overlay on mid-grey."""
    ground = np.full((1, 256, 3), 128, dtype=np.uint8)
    display = {**display, "vmin": 0, "vmax": 255}
    colours = overlay(ground, np.arange(256)[None], region=whole(ground), **display)
    high = scale.low + max(1.0, abs(scale.low)) if scale.flat else scale.high
    mappable = ScalarMappable(Normalize(scale.low, high), ListedColormap(colours[0] / 255))
    bar = drawing.colorbar(mappable, ticks=MaxNLocator(4), **place)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)
    if scale.flat:  # a single value, at the low end
        bar.set_ticks([scale.low], labels=[f"{scale.low:.3g}"])
