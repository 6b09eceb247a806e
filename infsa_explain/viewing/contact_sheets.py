"""Many images at a glance: a row an image, a column for every model and method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack, cast

from torch import nn

from ..data.samples import Sample
from ..drawing.figures import ColourScale, Drawing, Panel, draw
from ..drawing.heatmap import Display
from .views import MapChoice, View, pop_choice, view

__all__ = ["SheetOptions", "contact_sheet"]


class SheetOptions(MapChoice, Display, total=False):
    """Which maps (``layer``, ``head``, ``gamma``, ``target``), and how they are drawn.

    See :class:`~infsa_explain.viewing.views.MapChoice` and :func:`infsa_explain.overlay`.
    """


def contact_sheet(
    models: Mapping[str, nn.Module],
    samples: Sequence[Sample],
    methods: Sequence[str],
    *,
    untrained_seed: int = 0,
    scale: ColourScale = "own",
    **options: Unpack[SheetOptions],
) -> Drawing:
    """Draw maps of several images by several methods of several models, with boxes and predictions.

    Args:
        models: name to model; the images are preprocessed for each.
        samples: the images with their boxes, one row each.
        methods: names of map methods, one column each for every model.
        untrained_seed: seed of the fresh weights, for ``untrained-`` methods.
        scale: one colour scale for each map (``"own"``), for each ``"row"``, or for all maps
            (``"shared"``).
        **options: ``layer``, ``head``, ``gamma``, ``target`` and the drawing options of
            :func:`infsa_explain.overlay`; see :class:`SheetOptions`.

    Returns:
        A figure. The prediction of a model is the title of its first map. Layer and head, which
        apply to the methods that have them, are in the caption.

    Raises:
        ValueError: as :func:`infsa_explain.explain` and :func:`infsa_explain.overlay`, or if
            ``models``, ``samples`` or ``methods`` is empty.

    >>> import infsa_explain
    >>> from infsa_explain.data import PhotoDigits
    >>> model = infsa_explain.load("infvit_linear_digits")
    >>> sheet = contact_sheet({"linear": model}, list(PhotoDigits("val", 2)), ["visits", "perron"])
    >>> [axes.get_title() for axes in sheet.axes[:3]]
    ['image', 'linear, visits\\npredicted: 8, 92%', 'linear, perron\\n']
    """
    if not (models and samples and methods):
        raise ValueError(
            f"models, samples and methods must not be empty, got {len(models)}, {len(samples)} "
            f"and {len(methods)}"
        )
    display: dict[str, Any] = dict(options)
    choice = pop_choice(display)
    rows: list[list[Panel | None]] = []
    for sample in samples:
        panels: list[Panel | None] = []
        for name, model in models.items():
            seen = view(
                model,
                sample.image,
                boxes=sample.boxes,
                seed=sample.image_id,
                untrained_seed=untrained_seed,
            )
            if not panels:
                panels.append(Panel(seen.pixels, None, "" if rows else "image", seen.boxes))
            panels += _maps(seen, methods, choice, column_names="" if rows else f"{name}, ")
        rows.append(panels)
    caption = _choice_text(choice)
    return draw(rows, scale=scale, caption=caption, **cast(Display, display))


def _maps(seen: View, methods: Sequence[str], choice: MapChoice, column_names: str) -> list[Panel]:
    """A panel for each method; the first has the prediction in its title."""
    panels = []
    for i, look in enumerate(seen.explain_all(methods, **choice)):
        lines = [column_names + methods[i]] if column_names else []
        lines.append("" if i else seen.prediction)
        panels.append(Panel(seen.pixels, look.scores, "\n".join(lines), seen.boxes))
    return panels


def _choice_text(choice: MapChoice) -> str:
    """The choice for all methods in words, such as "last layer, mean over heads"."""
    layer, head = str(choice.get("layer", -1)), choice.get("head")
    gamma, target = choice.get("gamma"), choice.get("target")
    words = {"-1": "last layer", "last": "last layer", "mean": "mean over layers"}
    facts = [
        words.get(layer, f"layer {layer}"),
        "mean over heads" if head is None else f"head {head}",
        "" if gamma is None else f"γ {gamma:.2f}",
        "" if target is None else f"of class {target}",
    ]
    return ", ".join(filter(None, facts))
