"""What may be wrong with a run's numbers: dead heads, invalid rows, ties, what was left out."""

from __future__ import annotations

from ..evaluate.tables import Table
from .writing import Report

__all__ = ["diagnostics"]


def diagnostics(report: Report) -> Table:
    """A row for everything that the measures watch, a column for every model."""
    checks: dict[str, dict[str, str]] = {}
    for name, measure in report.measures.items():
        checks |= measure.diagnostics(report.summaries[name])
    models = list(dict.fromkeys(model for of_models in checks.values() for model in of_models))
    cells = [
        (name, *(of_models.get(m, "—") for m in models))
        for name, of_models in checks.items()
        if of_models
    ]
    return Table("", ("", *models), cells)
