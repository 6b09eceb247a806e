"""Maps of an image, written to disk: what ``python -m infsa_explain map`` does."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from torch import nn

from .data.samples import Sample
from .figures import figure
from .views import view

__all__ = ["write_maps"]


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
    seen = view(model, sample.image, boxes=sample.boxes, seed=sample.image_id)
    looks = [seen.explain(method, layer, head, gamma) for method in methods]
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^\w.-]+", "_", sample.image_id).lstrip(".-") or "image"
    for look in looks:
        path = folder / f"{stem}.{look.explanation.method}"
        np.save(path.with_name(path.name + ".npy"), look.scores)
        yield path.with_name(path.name + ".npy")
        drawn = figure(
            seen.pixels,
            look.scores,
            title=seen.prediction,
            caption=look.caption,
            boxes=seen.boxes,
        )
        drawn.savefig(path.with_name(path.name + ".png"), dpi=150)
        yield path.with_name(path.name + ".png")
