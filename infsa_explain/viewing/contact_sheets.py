"""Many images at a glance: a row an image, a column for every model and method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from matplotlib.figure import Figure
from torch import nn

from ..data.samples import Sample
from ..drawing.figures import ColourScale, Panel, draw
from ..drawing.heatmap import Display
from .views import view

__all__ = ["contact_sheet"]


def contact_sheet(
    models: Mapping[str, nn.Module],
    samples: Sequence[Sample],
    methods: Sequence[str],
    *,
    layer: int | str = -1,
    head: int | None = None,
    gamma: float | None = None,
    target: int | str | None = None,
    untrained_seed: int = 0,
    scale: ColourScale = "own",
    **display: Unpack[Display],
) -> Figure:
    """Maps of several images by several methods of several models, with boxes and predictions.

    Args:
        models: name to model; each sees the images as they are prepared for it.
        samples: the images, a row each, with their boxes.
        methods: names of map methods, a column each for every model.
        layer: an index, ``"last"``, or ``"mean"`` over all.
        head: an index, or None for the mean over heads.
        gamma: in place of the models' own γ.
        target: the class to explain, by number or name; the predicted one if None.
        untrained_seed: of the fresh weights, for ``untrained-`` methods.
        scale: ``"own"`` for every map, one for each ``"row"``, or one ``"shared"`` by all.
        **display: as for :func:`infsa_explain.overlay`, but ``mean`` and ``std``.

    Returns:
        A figure apart from pyplot's state. What a model predicts stands above its first map; layer
        and head, which are for the methods that have them, stand below.

    Raises:
        ValueError: as :func:`infsa_explain.explain` and :func:`infsa_explain.overlay`, or without
            a model, an image or a method.

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
            looks = seen.explain_all(methods, layer, head, gamma, target)
            if not panels:
                panels.append(Panel(seen.pixels, None, "" if rows else "image", seen.boxes))
            for i, (method, look) in enumerate(zip(methods, looks, strict=True)):
                lines = [] if rows else [f"{name}, {method}"]
                lines.append("" if i else seen.prediction)
                panels.append(Panel(seen.pixels, look.scores, "\n".join(lines), seen.boxes))
        rows.append(panels)
    caption = _choice(layer, head, gamma, target)
    return draw(rows, scale=scale, caption=caption, **display)


def _choice(
    layer: int | str, head: int | None, gamma: float | None, target: int | str | None
) -> str:
    """What was chosen for the methods that have it, such as "last layer, mean over heads"."""
    words = {"-1": "last layer", "last": "last layer", "mean": "mean over layers"}
    facts = [
        words.get(str(layer), f"layer {layer}"),
        "mean over heads" if head is None else f"head {head}",
        "" if gamma is None else f"γ {gamma:.2f}",
        "" if target is None else f"of class {target}",
    ]
    return ", ".join(filter(None, facts))
