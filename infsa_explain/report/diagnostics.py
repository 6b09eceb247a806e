"""What may be wrong with a run's numbers: dead heads, invalid rows, ties, what was left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .tables import Table
from .writing import Report

__all__ = ["diagnostics"]


def diagnostics(report: Report) -> Table:
    """A row for everything that was watched, a column for every model."""
    found = report.summaries
    layers, vectors = (found.get("align", {}).get(part, ()) for part in ("layers", "vectors"))
    morf, boxes, sanity = (found.get(measure, ()) for measure in ("morf", "boxes", "sanity"))
    maps = found.get("focus", {}).get("maps", ())
    checks: dict[str, dict[str, str]] = {
        "dead heads": _each(layers, lambda own: _worst_layer(own, "dead")),
        "rows for which the walk is no chain": _each(
            layers, lambda own: _worst_layer(own, "invalid_rows")
        ),
        "Perron vectors that are not resolved": _each(
            layers, lambda own: _worst_layer(own, "unresolved")
        ),
        "Perron vectors that are not unique": _each(
            layers, lambda own: _worst_layer(own, "ambiguous")
        ),
        "heads whose linear weights have no cosine": _each(
            [s for s in vectors if s.vector == "linear"],
            lambda own: _percent(own[0].dead / own[0].heads),
        ),
        "patches whose score ties with another's": _each(morf, lambda own: _methods(own, _tied)),
        "images without a defined AOC": _each(
            morf, lambda own: str(max(s.aoc.excluded for s in own))
        ),
        "images without a box that leaves something outside": _each(
            boxes, lambda own: str(max(s.skipped for s in own))
        ),
        "maps that are zero everywhere": _each(maps, lambda own: _methods(own, _zero)),
        "maps that are constant with all weights random": _each(
            sanity, lambda own: _methods(own, _constant)
        ),
    }
    models = list(dict.fromkeys(model for of in checks.values() for model in of))
    cells = [(name, *(of.get(m, "—") for m in models)) for name, of in checks.items() if of]
    return Table("", ("", *models), cells)


def _each(summaries: Iterable[Any], tell: Callable[[list[Any]], str]) -> dict[str, str]:
    """Model → what its summaries say."""
    groups: dict[str, list[Any]] = {}
    for summary in summaries:
        groups.setdefault(summary.model, []).append(summary)
    return {model: tell(own) for model, own in groups.items()}


def _worst_layer(layers: Sequence[Any], field: str) -> str:
    """Such as "0.2%, at most 0.6% in layer 3"."""
    values = [getattr(layer, field) for layer in layers]
    worst = int(np.argmax(values))
    mean = _percent(float(np.mean(values)))
    if not values[worst] or len(values) == 1:
        return mean
    return f"{mean}; {_percent(values[worst])} in layer {layers[worst].layer}"


def _methods(summaries: Sequence[Any], share: Callable[[Any], float]) -> str:
    """Such as "linear 39%, centre 98%": the methods that have any."""
    some = {s.method: share(s) for s in summaries}
    told = [f"{method} {_percent(value)}" for method, value in some.items() if value]
    return ", ".join(told) or "none"


def _tied(summary: Any) -> float:
    return float(summary.tied)


def _zero(summary: Any) -> float:
    return _excluded(summary.measures["gini"])


def _constant(summary: Any) -> float:
    return _excluded(summary.spearman[-1])


def _excluded(mean: Any) -> float:
    return float(mean.excluded / (mean.n + mean.excluded))


def _percent(share: float) -> str:
    if not share:
        return "0"
    return "<0.1%" if share < 5e-4 else f"{share:.1%}"
