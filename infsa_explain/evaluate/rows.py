"""What a measure says of an image: one line of JSON."""

from __future__ import annotations

from typing import Any

from torch import Tensor

__all__ = ["Row", "number"]

#: One line of a run folder's rows.
Row = dict[str, Any]


def number(value: Tensor) -> float | None:
    """A scalar for a row, None where it is undefined: JSON has no NaN."""
    return float(value) if value.isfinite() else None
