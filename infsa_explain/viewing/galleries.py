"""Figures of a model at work on an image: methods, layers, heads, and models side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

from torch import nn

from ..data.pixels import AnyImage
from ..drawing.figures import ColourScale, Drawing, Panel, draw, grid
from ..drawing.heatmap import Display, whole
from ..methods import check_place, class_index, get_method
from ..vits.capturing import layer_index
from .inspector import Choice, Inspector, static
from .views import (
    Look,
    MapChoice,
    View,
    ViewOptions,
    gammas_text,
    heads_text,
    layers_text,
    pop_choice,
    view,
)

if TYPE_CHECKING:
    from .widget import InspectorWidget

__all__ = [
    "GalleryOptions",
    "head_gallery",
    "inspect",
    "layer_table",
    "method_gallery",
    "side_by_side",
]

#: Row of the methods that score the whole model.
WHOLE_MODEL = "whole model"


class GalleryOptions(ViewOptions, Display, total=False):
    """What every gallery takes: which map (``layer``, ``head``, ``gamma``, ``target``), of which
    image (``boxes``, ``seed``), and how it is drawn (``opacity``, ``colormap``, …).

    See :class:`~infsa_explain.viewing.views.ViewOptions` and :func:`infsa_explain.overlay`.
    """


def method_gallery(
    model: nn.Module,
    image: AnyImage,
    methods: Sequence[str] = ("visits", "perron", "linear", "degree", "centre"),
    *,
    columns: int = 6,
    shared_scale: bool = False,
    **options: Unpack[GalleryOptions],
) -> Drawing:
    """Draw maps of one image by several methods.

    Args:
        model: a supported ViT.
        image: as for :func:`infsa_explain.viewing.views.view`.
        methods: names of map methods.
        columns: maximum number of panels in a row.
        shared_scale: use one colour scale for all maps; by default each map has its own.
        **options: ``layer``, ``head``, ``gamma``, ``target``, ``boxes``, ``seed`` and the drawing
            options of :func:`infsa_explain.overlay`; see :class:`GalleryOptions`.

    Returns:
        A figure whose title is the predicted class and its probability.

    Raises:
        ValueError: as :func:`infsa_explain.explain` and :func:`infsa_explain.overlay`, or if
            ``methods`` is empty.
    """
    seen, choice, display = _opened(model, image, options)
    looks = seen.explain_all(methods, **choice)
    return grid(
        seen.pixels,
        {look.explanation.method: look.scores for look in looks},
        columns=columns,
        shared_scale=shared_scale,
        region=whole(seen.pixels),
        title=seen.prediction,
        caption=_common_facts(looks),
        boxes=seen.boxes,
        **display,
    )


def layer_table(
    model: nn.Module,
    image: AnyImage,
    methods: Sequence[str] = ("visits", "perron", "linear", "degree"),
    *,
    layers: Sequence[int] | None = None,
    scale: ColourScale = "own",
    **options: Unpack[GalleryOptions],
) -> Drawing:
    """Draw a table of maps of one image: methods × layers.

    Methods that score the whole model share one row.

    Args:
        model: a supported ViT.
        image: as for :func:`infsa_explain.viewing.views.view`.
        methods: names of map methods; each that scores layers has its own row.
        layers: layer indices, one column each; all layers if None.
        scale: one colour scale for each map (``"own"``), for each ``"row"``, or for all maps
            (``"shared"``).
        **options: ``head``, ``gamma``, ``target``, ``boxes``, ``seed`` and the drawing options of
            :func:`infsa_explain.overlay`; see :class:`GalleryOptions`.

    Returns:
        A figure whose title is the predicted class and its probability.

    Raises:
        ValueError: as :func:`infsa_explain.explain` and :func:`infsa_explain.overlay`, if
            ``methods`` is empty, or if ``layer`` is passed.
    """
    if not methods:
        raise ValueError("methods must name at least one map method, got none")
    if "layer" in options:
        raise ValueError(f"layer must be left out, use layers=[…], got {options['layer']!r}")
    check_place(methods, "last", options.get("head"))
    seen, choice, display = _opened(model, image, options)
    depth = len(seen.graphs.layers)
    indices = [layer_index(layer, depth) for layer in (range(depth) if layers is None else layers)]
    table: dict[str, list[tuple[str, Look]]] = {}  # row → (title, map) of its panels
    titles = [f"layer {layer}" for layer in indices]
    for name in dict.fromkeys(methods):
        if get_method(name).layers:
            looks = [seen.explain_leniently(name, choice | {"layer": layer}) for layer in indices]
            table[name] = list(zip(titles, looks, strict=True))
            titles = [""] * len(indices)  # layers are named once, in the first row
        else:
            look = seen.explain_leniently(name, choice)
            table.setdefault(WHOLE_MODEL, []).append((name, look))
    rows: list[list[Panel | None]] = []
    for row in table.values():
        rows.append([None if rows else Panel(seen.pixels, None, "image", seen.boxes)])
        rows[-1] += [Panel(seen.pixels, look.scores, title, seen.boxes) for title, look in row]
    caption = _common_facts([look for row in table.values() for _, look in row], False)
    return draw(
        rows, names=list(table), scale=scale, title=seen.prediction, caption=caption, **display
    )


def head_gallery(
    model: nn.Module,
    image: AnyImage,
    method: str = "visits",
    *,
    columns: int = 5,
    shared_scale: bool = False,
    **options: Unpack[GalleryOptions],
) -> Drawing:
    """Draw maps of one image by every head of a layer; a dead head is marked "no map".

    Args:
        model: a supported ViT.
        image: as for :func:`infsa_explain.viewing.views.view`.
        method: a map method that scores each head.
        columns: maximum number of panels in a row.
        shared_scale: use one colour scale for all heads; by default each head has its own.
        **options: ``layer`` (an index), ``gamma``, ``target``, ``boxes``, ``seed`` and the drawing
            options of :func:`infsa_explain.overlay`; see :class:`GalleryOptions`.

    Returns:
        A figure whose title is the predicted class and its probability.

    Raises:
        ValueError: as :func:`infsa_explain.explain` and :func:`infsa_explain.overlay`, if the
            method does not score heads, or if ``head`` is passed.
    """
    if not get_method(method).heads:
        raise ValueError(f"method must score each head, got {method!r}, which has no heads")
    if "head" in options:
        raise ValueError(f"head must be left out, all heads are drawn, got {options['head']!r}")
    seen, choice, display = _opened(model, image, options)
    layer = layer_index(choice.get("layer", -1), len(seen.graphs.kinds))
    looks = {
        head: seen.explain(method, **(choice | {"head": head}))
        for head in range(seen.graphs.layer(layer).operator.shape[1])
    }
    maps = {
        ", ".join(filter(None, [f"head {head}", gammas_text(look.gammas)])): look.scores
        for head, look in looks.items()
    }
    facts = [method, layers_text(looks[0].explanation.layers), looks[0].of]
    return grid(
        seen.pixels,
        maps,
        columns=columns,
        shared_scale=shared_scale,
        title=seen.prediction,
        region=whole(seen.pixels),
        caption=", ".join(filter(None, facts)),
        boxes=seen.boxes,
        **display,
    )


def side_by_side(
    models: Mapping[str, nn.Module],
    image: AnyImage,
    method: str = "visits",
    *,
    shared_scale: bool = False,
    **options: Unpack[GalleryOptions],
) -> Drawing:
    """Draw the same map of one image by several models, such as before and after training.

    Args:
        models: name to model; the image is preprocessed for each.
        image: as for :func:`infsa_explain.viewing.views.view`.
        method: a map method.
        shared_scale: use one colour scale for all models; by default each model has its own.
        **options: ``layer``, ``head``, ``gamma``, ``target``, ``boxes``, ``seed`` and the drawing
            options of :func:`infsa_explain.overlay`; see :class:`GalleryOptions`.

    Returns:
        A figure. Each map's title gives the model's prediction.

    Raises:
        ValueError: as :func:`infsa_explain.explain` and :func:`infsa_explain.overlay`, or if
            ``models`` is empty.
    """
    if not models:
        raise ValueError("models must hold at least one model, got none")
    views, looks, display = {}, [], Display()
    for name, model in models.items():
        views[name], choice, display = _opened(model, image, options)
        looks.append(views[name].explain(method, **choice))
    # Facts that hold for all models are in the caption, the others in the titles.
    facts = list(zip(*(look.facts for look in looks), strict=True))
    common = [texts[0] if len(set(texts)) == 1 else "" for texts in facts]
    first = next(iter(views.values()))
    panels: list[Panel | None] = [Panel(first.pixels, None, "image", first.boxes)]
    for (name, seen), look in zip(views.items(), looks, strict=True):
        differing = ", ".join(text for text in look.facts if text and text not in common)
        title = "\n".join(filter(None, [name, seen.prediction, differing]))
        panels.append(Panel(seen.pixels, look.scores, title, seen.boxes))
    scale: ColourScale = "shared" if shared_scale else "own"
    caption = ", ".join(filter(None, common))
    return draw([panels], scale=scale, caption=caption, width=2.6, **display)


def inspect(
    model: nn.Module,
    image: AnyImage,
    *,
    method: str = "visits",
    label: int | str | None = None,
    **options: Unpack[ViewOptions],
) -> InspectorWidget | Drawing:
    """Explore the maps of an image in a notebook: the last expression of a cell shows the widget.

    Menus and sliders choose method, layer, head, γ, class, colour scale and opacity. The pointer
    shows the scores of patches. A click on a patch shows where its visits come from and where walks
    from it go: its column and its row of F = (I − γÂ)⁻¹.

    Args:
        model: a supported ViT, in any mode; it is left as found.
        image: as for :func:`infsa_explain.viewing.views.view`.
        method: the map method that is shown first.
        label: true class of the image, by number or name; it is added to the menu of classes.
        **options: ``layer``, ``head``, ``gamma``, ``target``, ``boxes`` and ``seed``; see
            :class:`~infsa_explain.viewing.views.ViewOptions`.

    Returns:
        A widget whose traits are its controls (``widget.opacity = 0.5``), or a figure of the map if
        anywidget is not installed.

    Raises:
        ValueError: as :func:`infsa_explain.explain`, or if the image cannot be read.
    """
    seen, choice, unknown = _opened(model, image, cast(GalleryOptions, options))
    if unknown:
        raise TypeError(f"inspect() got an unexpected keyword argument {next(iter(unknown))!r}")
    label, target = (
        class_index(model, name) if isinstance(name, str) else name
        for name in (label, choice.get("target"))
    )
    layer, head, gamma = choice.get("layer", -1), choice.get("head"), choice.get("gamma")
    first = Choice(method, layer, head, gamma, target)
    inspector = Inspector.of(seen, label)
    look = inspector.look(first)
    try:
        from .widget import InspectorWidget
    except ImportError:
        return static(inspector.view, look)
    return InspectorWidget(inspector, first)


def _opened(
    model: nn.Module, image: AnyImage, options: GalleryOptions
) -> tuple[View, MapChoice, Display]:
    """The image under the model, which map is asked for, and how it is drawn."""
    rest: dict[str, Any] = dict(options)
    choice = pop_choice(rest)
    place = {name: rest.pop(name) for name in ("boxes", "seed") if name in rest}
    seen = view(model, image, **place)
    return seen, choice, cast(Display, rest)


def _common_facts(looks: Sequence[Look], with_layers: bool = True) -> str:
    """Layers, heads, γ and class of the maps that have them, in words."""
    by_layer = [look.explanation for look in looks if get_method(look.explanation.method).layers]
    heads = [look.explanation.heads for look in looks if look.explanation.heads]
    facts = [
        layers_text(by_layer[0].layers) if by_layer and with_layers else "",
        heads_text(heads[0]) if heads else "",
        gammas_text([gamma for look in looks for gamma in look.gammas]),
        next((look.of for look in looks if look.of), ""),
    ]
    return ", ".join(filter(None, facts))
