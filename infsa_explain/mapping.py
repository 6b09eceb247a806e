"""Maps of an image, written to disk: what ``python -m infsa_explain map`` does."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

import numpy as np
from torch import nn

from .data.samples import Sample
from .figures import figure
from .files import replacing
from .views import view

__all__ = ["file_stems", "write_maps"]


def write_maps(
    model: nn.Module,
    sample: Sample,
    methods: Sequence[str],
    out: str | os.PathLike[str],
    *,
    stem: str | None = None,
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
        stem: of the files' names, which go on with the method; that of :func:`file_stems` if None.
        layer: as in :func:`infsa_explain.explain`.
        head: as in :func:`infsa_explain.explain`.
        gamma: as in :func:`infsa_explain.explain`.

    Yields:
        The paths, as they are written. Nothing is written before every method is known to work.
    """
    seen = view(model, sample.image, boxes=sample.boxes, seed=sample.image_id)
    looks = [seen.explain(method, layer, head, gamma) for method in methods]
    (stem,) = file_stems([sample.image_id]) if stem is None else [stem]
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for look in looks:
        path = folder / f"{stem}.{look.explanation.method}"
        raw, picture = (path.with_name(path.name + ending) for ending in (".npy", ".png"))
        with replacing(raw) as temporary:
            np.save(temporary, look.scores)
        yield raw
        drawn = figure(
            seen.pixels,
            look.scores,
            title=seen.prediction,
            caption=look.caption,
            boxes=seen.boxes,
        )
        with replacing(picture) as temporary:
            drawn.savefig(temporary, dpi=150)
        yield picture


def file_stems(image_ids: Iterable[str]) -> list[str]:
    """Names of images as those of files: short enough, in no other folder, and no two alike.

    >>> file_stems(["../my photos/-a b.jpg", "..", "a.jpg", "a.jpg"])
    ['_my_photos_-a_b.jpg', 'image', 'a.jpg', 'a.jpg-2']
    """
    stems: list[str] = []
    for image_id in image_ids:
        safe = re.sub(r"[^\w.-]+", "_", image_id).lstrip(".-")
        stem = short = safe.encode()[:200].decode(errors="ignore") or "image"
        for number in count(2):
            if stem not in stems:
                break
            stem = f"{short}-{number}"
        stems.append(stem)
    return stems
