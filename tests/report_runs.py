"""Run folders with invented numbers, quickly written, for tests of the report page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from infsa_explain.data import PhotoDigits
from infsa_explain.evaluate import Alignment, Boxes, Morf, RunFolder, Sanity

FRACTIONS = [0.0, 0.1, 0.3, 0.6, 1.0]
STAGES = ["head", "blocks.1", "blocks.0", "embeddings"]
VECTORS = ("linear", "degree", "uniform", "untrained")


def config(models: Sequence[str], images: int) -> dict[str, Any]:
    """What a run of photo-digits has in its config.json, with fingerprints that are none."""
    measures = (Morf(methods=("visits",)), Boxes(methods=("visits",)), Alignment(), Sanity())
    return {
        "models": {name: {"weights": f"of {name}"} for name in models},
        "data": {"name": "photo-digits", "images": images, "fingerprint": "none"},
        "measures": {each.name: asdict(each) for each in measures},
        "versions": {"torch": "2"},
        "device": "cpu",
        "threads": 1,
    }


def rows_of(
    model: str, methods: Sequence[str], images: Sequence[str], layers: int = 2, heads: int = 3
) -> list[dict[str, Any]]:
    """Rows of four measures; random, but the same for the same arguments."""
    rng = np.random.default_rng(len(images))
    x = np.array(FRACTIONS)
    rows: list[dict[str, Any]] = []
    for image in images:
        base = {"model": model, "checkpoint": "", "image": image}
        said = {"label": 3, "predicted": 5, "layers": [1], "head": None}
        for m, method in enumerate(methods):
            for order in ("morf", "lerf"):
                rate = 2 + 3 * m if order == "morf" else 1
                curve = np.clip(0.8 * np.exp(-rate * x) + rng.normal(0, 0.05, len(x)), 0, 1)
                rows.append(
                    {"measure": "morf", **base, **said, "method": method, "order": order}
                    | {"fill": "mean", "target": 5, "p0": 0.8, "auc": float(curve.mean())}
                    | {"aoc": 0.3 + 0.1 * m + float(rng.normal(0, 0.1)), "tied": 0.25}
                    | {"fractions": FRACTIONS, "probabilities": curve.round(6).tolist()}
                )
            fields = ("ap", "roc_auc", "pointing", "mass", "rank", "iou_mean", "iou_best")
            boxes = {key: float(rng.uniform(0.2, 0.9)) for key in fields}
            boxes |= {"prevalence": 0.25, "effective_patches": 0.5}
            rows.append({"measure": "boxes", **base, **said, "method": method, **boxes})
            decay = np.clip([1, 0.6, 0.3, 0.1] + rng.normal(0, 0.1, 4), -1, 1).round(4).tolist()
            rows.append(
                {"measure": "sanity", **base, "method": method, "stages": STAGES}
                | {"spearman": decay, "ssim": decay, "stability": 0.8}
                | {"agreement": {other: 0.5 for other in methods if other != method}}
            )
        for layer in range(layers):
            for head in range(heads):
                cosines = {vector: float(rng.uniform(0.5, 1)) for vector in VECTORS}
                rows.append(
                    {"measure": "align", **base, "side": "left", "layer": layer, "head": head}
                    | {"value": 0.4, "gap": 0.5, "residual": 1e-15, "converged": True}
                    | {"error_bound": 1e-12, "resolved": True, "left_out": []}
                    | {"unique": True, "dead": head == 2, "invalid_rows": 0.02, "seconds": 0.01}
                    | {"cosine": cosines, "centred": cosines, "spearman": cosines}
                )
    return rows


def write_run(
    path: Path,
    models: Sequence[str] = ("m",),
    methods: Sequence[str] = ("visits", "katz", "random", "centre"),
    images: Sequence[str] = tuple(f"image {i}" for i in range(6)),
    *,
    skipped: Sequence[str] = (),
    of: int | None = None,
    more: dict[str, Any] | None = None,
) -> Path:
    """A run folder; ``of`` images in all where more than those given are to do.

    ``more`` goes into its config.json.
    """
    total = len(images) + len(skipped) if of is None else of
    with RunFolder(path, config(models, total) | (more or {})) as folder:
        for model in models:
            for row in rows_of(model, methods, images):
                folder.write(row)
            for message in skipped:
                folder.skip(message)
            folder.commit(model, len(images) + len(skipped))
    return path


def digits_run(path: Path, models: dict[str, Any], methods: Sequence[str], size: int) -> Path:
    """A run of real models on real images whose numbers alone are invented."""
    from infsa_explain.evaluate import fingerprint

    data = PhotoDigits("val", size)
    more = {
        "models": {name: {"weights": fingerprint(model)} for name, model in models.items()},
        "data": {"name": data.name, "images": size, "fingerprint": data.fingerprint()},
        "source": {"data": data.name, "split": "val", "limit": size, "seed": 0, "label_map": None},
        "command": "python -m infsa_explain evaluate --model " + " --model ".join(models),
    }
    images = [f"photo-digits/val/0/{i}" for i in range(size)]
    return write_run(path, list(models), methods, images, more=more)
