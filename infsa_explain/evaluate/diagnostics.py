"""Words for what may be wrong with a run's numbers, for every model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from infsa_metrics import MeanInterval

__all__ = ["excluded_share", "grouped", "of_methods", "of_models", "percent", "worst_layer"]


def grouped(summaries: Iterable[Any]) -> dict[str, list[Any]]:
    """Model → its summaries, in the order in which they first appear."""
    groups: dict[str, list[Any]] = {}
    for summary in summaries:
        groups.setdefault(summary.model, []).append(summary)
    return groups


def of_models(summaries: Iterable[Any], text: Callable[[list[Any]], str]) -> dict[str, str]:
    """Model → a text about its summaries."""
    return {model: text(of_model) for model, of_model in grouped(summaries).items()}


def of_methods(summaries: Iterable[Any], share: Callable[[Any], float]) -> dict[str, str]:
    """Model → such as "linear 39%, centre 98%": its methods with a share above 0."""

    def text(of_model: list[Any]) -> str:
        shares = {s.method: share(s) for s in of_model}
        parts = [f"{method} {percent(value)}" for method, value in shares.items() if value]
        return ", ".join(parts) or "none"

    return of_models(summaries, text)


def worst_layer(layers: Sequence[Any], field: str) -> str:
    """Such as "0.2%; 0.6% in layer 3": the mean over layers, and the largest share."""
    values = [getattr(layer, field) for layer in layers]
    worst = int(np.argmax(values))
    mean = percent(float(np.mean(values)))
    if not values[worst] or len(values) == 1:
        return mean
    return f"{mean}; {percent(values[worst])} in layer {layers[worst].layer}"


def excluded_share(mean: MeanInterval) -> float:
    """Share of the images without a value."""
    return mean.excluded / (mean.n + mean.excluded)


def percent(share: float) -> str:
    """Such as "0.4%"; "0" for none."""
    if not share:
        return "0"
    return "<0.1%" if share < 5e-4 else f"{share:.1%}"
