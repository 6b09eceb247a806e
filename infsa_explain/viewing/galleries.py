"""Figures of a model at work on an image: methods, layers, heads, and models side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

from numpy.typing import ArrayLike
from torch import nn

from ..data.pixels import AnyImage
from ..drawing.figures import ColourScale, Drawing, Panel, draw, grid
from ..drawing.heatmap import Display, whole
from ..methods import check_place, class_index, get_method
from ..vits.capturing import layer_index
from .inspector import Choice, Inspector, static
from .views import Look, gammas_text, heads_text, layers_text, view

if TYPE_CHECKING:
    from .widget import InspectorWidget

__all__ = ["head_gallery", "inspect", "layer_table", "method_gallery", "side_by_side"]

#: Row of the methods that are of the whole model.
WHOLE = "whole model"


def method_gallery(
    model: nn.Module,
    image: AnyImage,
    methods: Sequence[str] = ("visits", "perron", "linear", "degree", "centre"),
    *,
    layer: int | str = -1,
    head: int | None = None,
    gamma: float | None = None,
    target: int | str | None = None,
    columns: int = 6,
    shared_scale: bool = False,
    boxes: ArrayLike | None = None,
    seed: int | str = 0,
    **display: Unpack[Display],
) -> Drawing:
    """Maps of one image by several methods.

    Args:
        model: a supported ViT.
        image: as for :func:`infsa_explain.viewing.views.view`.
        methods: names of map methods.
        layer: an index, ``"last"``, or ``"mean"`` over all, for methods that score layers.
        head: an index, or None for the mean over heads.
        gamma: in place of the model's own γ.
        target: the class to explain, by number or name; the predicted one if None.
        columns: panels in a row, at most.
        shared_scale: one colour scale for all methods. By default each has its own.
        boxes: as for :func:`infsa_explain.viewing.views.view`, outlined.
        seed: identity of the image, for methods that draw.
        **display: as for :func:`infsa_explain.overlay`, but ``mean`` and ``std``.

    Returns:
        A figure, titled with the predicted class and its probability.

    Raises:
        ValueError: as :func:`infsa_explain.explain` and :func:`infsa_explain.overlay`, or for no
            method.
    """
    seen = view(model, image, boxes=boxes, seed=seed)
    looks = seen.explain_all(methods, layer, head, gamma, target)
    return grid(
        seen.pixels,
        {look.explanation.method: look.scores for look in looks},
        columns=columns,
        shared_scale=shared_scale,
        region=whole(seen.pixels),
        title=seen.prediction,
        caption=_in_common(looks),
        boxes=seen.boxes,
        **display,
    )


def _in_common(looks: Sequence[Look]) -> str:
    """Layers, heads, γ and class of the maps that have them, in words."""
    by_layer = [look.explanation for look in looks if get_method(look.explanation.method).layers]
    heads = [look.explanation.heads for look in looks if look.explanation.heads]
    facts = [
        layers_text(by_layer[0].layers) if by_layer else "",
        heads_text(heads[0]) if heads else "",
        gammas_text([gamma for look in looks for gamma in look.gammas]),
        next((look.of for look in looks if look.of), ""),
    ]
    return ", ".join(filter(None, facts))


def layer_table(
    model: nn.Module,
    image: AnyImage,
    methods: Sequence[str] = ("visits", "perron", "linear", "degree"),
    *,
    layers: Sequence[int] | None = None,
    head: int | None = None,
    gamma: float | None = None,
    target: int | str | None = None,
    scale: ColourScale = "own",
    boxes: ArrayLike | None = None,
    seed: int | str = 0,
    **display: Unpack[Display],
) -> Drawing:
    """Maps of one image, methods × layers; those of the whole model are in a row of their own.

    Args:
        model: a supported ViT.
        image: as for :func:`infsa_explain.viewing.views.view`.
        methods: names of map methods, a row each where they score layers.
        layers: indices, a column each; all if None.
        head: an index, or None for the mean over heads.
        gamma: in place of the model's own γ.
        target: the class to explain, by number or name; the predicted one if None.
        scale: ``"own"`` for every map, one for each ``"row"``, or one ``"shared"`` by all.
        boxes: as for :func:`infsa_explain.viewing.views.view`, outlined.
        seed: identity of the image, for methods that draw.
        **display: as for :func:`infsa_explain.overlay`, but ``mean`` and ``std``.

    Returns:
        A figure, titled with the predicted class and its probability.

    Raises:
        ValueError: as :func:`infsa_explain.explain` and :func:`infsa_explain.overlay`, or for no
            method.
    """
    if not methods:
        raise ValueError("methods must name at least one map method, got none")
    check_place(methods, "last", head)
    seen = view(model, image, boxes=boxes, seed=seed)
    depth = len(seen.graphs.layers)
    chosen = [layer_index(layer, depth) for layer in (range(depth) if layers is None else layers)]
    looks: dict[str, list[Look]] = {}
    for method in methods:
        if get_method(method).scope == "model":
            looks.setdefault(WHOLE, []).append(seen.explain(method, gamma=gamma, target=target))
        else:
            own = head if get_method(method).heads else None
            looks[method] = [seen.explain(method, layer, own, gamma, target) for layer in chosen]
    rows: list[list[Panel | None]] = []
    for name, row in looks.items():
        titles = [f"layer {layer}" for layer in chosen] if not rows else [""] * len(chosen)
        if name == WHOLE:
            titles = [look.explanation.method for look in row]
        rows.append([None if rows else Panel(seen.pixels, None, "image", seen.boxes)])
        rows[-1] += [
            Panel(seen.pixels, look.scores, title, seen.boxes)
            for look, title in zip(row, titles, strict=True)
        ]
    every = [look for row in looks.values() for look in row]
    heads = next((look.explanation.heads for look in every if look.explanation.heads), None)
    about = [heads_text(heads), gammas_text([gamma for look in every for gamma in look.gammas])]
    about.append(next((look.of for look in every if look.of), ""))
    return draw(
        rows,
        names=list(looks),
        scale=scale,
        title=seen.prediction,
        caption=", ".join(filter(None, about)),
        **display,
    )


def head_gallery(
    model: nn.Module,
    image: AnyImage,
    method: str = "visits",
    *,
    layer: int = -1,
    gamma: float | None = None,
    target: int | str | None = None,
    columns: int = 5,
    shared_scale: bool = False,
    boxes: ArrayLike | None = None,
    **display: Unpack[Display],
) -> Drawing:
    """Maps of one image by every head of a layer; of a dead head there is none, and it says so.

    Args:
        model: a supported ViT.
        image: as for :func:`infsa_explain.viewing.views.view`.
        method: a map method that scores each layer and head.
        layer: an index, negative from the end.
        gamma: in place of the model's own γ.
        target: the class to explain, by number or name; the predicted one if None.
        columns: panels in a row, at most.
        shared_scale: one colour scale for all heads. By default each has its own.
        boxes: as for :func:`infsa_explain.viewing.views.view`, outlined.
        **display: as for :func:`infsa_explain.overlay`, but ``mean`` and ``std``.

    Returns:
        A figure, titled with the predicted class and its probability.

    Raises:
        ValueError: as :func:`infsa_explain.explain` and :func:`infsa_explain.overlay`, or for a
            method without heads.
    """
    if not get_method(method).heads:
        raise ValueError(f"method must score each head, got {method!r}, which has no heads")
    seen = view(model, image, boxes=boxes)
    heads = range(seen.graphs.layer(layer_index(layer, len(seen.graphs.kinds))).operator.shape[1])
    looks = [seen.explain(method, layer, head, gamma, target) for head in heads]
    names = [
        ", ".join([f"head {head}", *filter(None, [gammas_text(look.gammas)])])
        for head, look in zip(heads, looks, strict=True)
    ]
    return grid(
        seen.pixels,
        {name: look.scores for name, look in zip(names, looks, strict=True)},
        columns=columns,
        shared_scale=shared_scale,
        title=seen.prediction,
        region=whole(seen.pixels),
        caption=", ".join(
            filter(None, [method, layers_text(looks[0].explanation.layers), looks[0].of])
        ),
        boxes=seen.boxes,
        **display,
    )


def side_by_side(
    models: Mapping[str, nn.Module],
    image: AnyImage,
    method: str = "visits",
    *,
    layer: int | str = -1,
    head: int | None = None,
    gamma: float | None = None,
    target: int | str | None = None,
    shared_scale: bool = False,
    boxes: ArrayLike | None = None,
    seed: int | str = 0,
    **display: Unpack[Display],
) -> Drawing:
    """The same map of one image by several models, such as before and after training.

    Args:
        models: name to model; each sees the image as it is prepared for it.
        image: as for :func:`infsa_explain.viewing.views.view`.
        method: a map method.
        layer: an index, ``"last"``, or ``"mean"`` over all.
        head: an index, or None for the mean over heads.
        gamma: in place of the models' own γ.
        target: the class to explain, by number or name; the predicted one if None.
        shared_scale: one colour scale for all models. By default each has its own.
        boxes: as for :func:`infsa_explain.viewing.views.view`, outlined.
        seed: identity of the image, for methods that draw.
        **display: as for :func:`infsa_explain.overlay`, but ``mean`` and ``std``.

    Returns:
        A figure; the title of each map says what the model predicts.

    Raises:
        ValueError: as :func:`infsa_explain.explain` and :func:`infsa_explain.overlay`, or for no
            model.
    """
    if not models:
        raise ValueError("models must hold at least one model, got none")
    views = {name: view(model, image, boxes=boxes, seed=seed) for name, model in models.items()}
    first = next(iter(views.values()))
    looks = [seen.explain(method, layer, head, gamma, target) for seen in views.values()]
    # What all have in common is said once, below.
    facts = list(zip(*(look.facts for look in looks), strict=True))
    common = [texts[0] if len(set(texts)) == 1 else "" for texts in facts]
    panels: list[Panel | None] = [Panel(first.pixels, None, "image", first.boxes)]
    for (name, seen), look in zip(views.items(), looks, strict=True):
        own = [text for text in look.facts if text not in common]
        title = "\n".join(filter(None, [name, seen.prediction, ", ".join(own)]))
        panels.append(Panel(seen.pixels, look.scores, title, seen.boxes))
    return draw(
        [panels],
        scale="shared" if shared_scale else "own",
        caption=", ".join(filter(None, common)),
        width=2.6,
        **display,
    )


def inspect(
    model: nn.Module,
    image: AnyImage,
    *,
    method: str = "visits",
    layer: int | str = -1,
    head: int | None = None,
    gamma: float | None = None,
    target: int | str | None = None,
    label: int | str | None = None,
    boxes: ArrayLike | None = None,
    seed: int | str = 0,
) -> InspectorWidget | Drawing:
    """Look into a model by hand, in a notebook: the last expression of a cell shows it.

    Menus and sliders choose method, layer, head, γ, class, colour scale and opacity. The pointer
    reads patches off; a click on one shows where its visits come from and where walks from it go,
    its column and its row of F = (I − γÂ)⁻¹.

    Args:
        model: a supported ViT, in any mode; it is left as found.
        image: as for :func:`infsa_explain.viewing.views.view`.
        method: a map method to begin with.
        layer: an index, ``"last"``, or ``"mean"`` over all.
        head: an index, or None for the mean over heads.
        gamma: in place of the model's own γ, in (0, 1).
        target: the class to explain, by number or name, for methods that are of a class; the
            predicted one if None.
        label: the class that the image is of, by number or name; the menu of classes has it.
        boxes: (K, 4) of x0, y0, x1, y1 in pixel edges of the image, half-open, outlined.
        seed: identity of the image, for methods that draw.

    Returns:
        A widget whose traits are its controls (``widget.opacity = 0.5``); a figure of the map
        where anywidget is not installed.

    Raises:
        ValueError: as :func:`infsa_explain.explain`, or for an image that cannot be read.
    """
    label, target = (
        class_index(model, one) if isinstance(one, str) else one for one in (label, target)
    )
    inspector = Inspector.of(view(model, image, boxes=boxes, seed=seed), label)
    choice = Choice(method, layer, head, gamma, target)
    look = inspector.look(choice)
    try:
        from .widget import InspectorWidget
    except ImportError:
        return static(inspector.view, look)
    return InspectorWidget(inspector, choice)
