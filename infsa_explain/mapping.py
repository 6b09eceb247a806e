"""Maps of an image, written to disk: what ``python -m infsa_explain map`` does."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from torch import nn

from .data.samples import Sample
from .graphs import capture
from .heatmap import figure
from .methods import get_method
from .methods.explaining import Explanation, explain_graphs
from .preprocessing import preprocess, visible_region

__all__ = ["caption", "write_maps"]


def write_maps(
    model: nn.Module,
    sample: Sample,
    methods: Sequence[str],
    out: str | os.PathLike[str],
    *,
    layer: int | str = "last",
    head: int | None = None,
    gamma: float | None = None,
) -> Iterator[Path]:
    """Write an overlay beside its colour bar (PNG) and the raw map (.npy) for every method.

    Args:
        model: a supported ViT.
        sample: the image; what is shown is the part that the model sees.
        methods: names of map methods.
        out: a folder, made if need be.
        layer: as in :func:`infsa_explain.explain`.
        head: as in :func:`infsa_explain.explain`.
        gamma: as in :func:`infsa_explain.explain`.

    Yields:
        The paths, as they are written. Nothing is written before every method is known to work.
    """
    graphs = capture(model, preprocess(model, sample.image))
    explanations = [
        explain_graphs(
            graphs,
            get_method(name),
            layer=layer,
            head=head,
            gamma=gamma,
            seeds=[sample.image_id],
        )
        for name in methods
    ]
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^\w.-]+", "_", sample.image_id).lstrip(".-") or "image"
    seen = visible_region(model, sample.image)
    for explanation in explanations:
        path = folder / f"{stem}.{explanation.method}"
        raw = explanation.maps[0].cpu().numpy()
        np.save(path.with_name(path.name + ".npy"), raw)
        yield path.with_name(path.name + ".npy")
        picture = figure(
            seen, raw, title=prediction(model, explanation), caption=caption(explanation)
        )
        picture.savefig(path.with_name(path.name + ".png"), dpi=150)
        yield path.with_name(path.name + ".png")


def prediction(model: nn.Module, explanation: Explanation, index: int = 0) -> str:
    """The predicted class and its probability, such as "predicted: goldfish, 93%"."""
    probabilities = explanation.logits[index].float().softmax(-1)
    best = int(probabilities.argmax())
    names = getattr(model, "class_names", None)
    return f"predicted: {names[best] if names else f'class {best}'}, {probabilities[best]:.0%}"


def caption(explanation: Explanation) -> str:
    """Which method, layers and heads a map is of."""
    parts = [explanation.method]
    if explanation.layers:
        numbers = [str(layer) for layer in explanation.layers]
        parts.append(f"layer{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}")
    if explanation.heads is not None and len(explanation.heads) == 1:
        parts.append(f"head {explanation.heads[0]}")
    elif explanation.heads is not None:
        parts.append(f"mean of {len(explanation.heads)} heads")
    return ", ".join(parts)
