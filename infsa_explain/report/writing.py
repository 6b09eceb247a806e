"""The summary of a run, told measure by measure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any

from ..evaluate.comparing import compare_models, comparison_tables
from ..evaluate.registry import Measure, measure_class
from ..evaluate.rows import Row
from ..evaluate.tables import Table
from ..files import write_text

__all__ = ["Report", "write_report"]


class Report:
    """The rows of a run, summarised measure by measure.

    Args:
        rows: of one measure or several, as :func:`infsa_explain.evaluate.measure` gives them.

    Attributes:
        rows: by measure.
        summaries: by measure, as its ``summarise`` has them.
        comparisons: of every two models.

    Raises:
        ValueError: if none of a measure's methods has a map of any image.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        rows, self.missing = _mapped(rows)
        self.rows: dict[str, list[Row]] = {}
        for row in rows:
            self.rows.setdefault(row["measure"], []).append(row)
        self.summaries = {
            name: measure.summarise(self.rows[name]) for name, measure in self.measures.items()
        }
        self.comparisons = compare_models(self.measures, self.rows)

    @property
    def measures(self) -> dict[str, type[Measure]]:
        """The measures by name, in the order of the rows."""
        return {name: measure_class(name) for name in self.rows}

    def tables(self) -> list[Table]:
        """All tables, in the order of the measures."""
        tables = []
        for name, measure in self.measures.items():
            first, *others = measure.tables(self.summaries[name])
            note = "; ".join(filter(None, [first.note, self.missing.get(name, "")]))
            tables += [replace(first, note=note), *others]
        return [*tables, *comparison_tables(self.comparisons)]

    def faults(self) -> dict[str, str]:
        """Of the measures that have no value for any image: why, and what to do."""
        faults = {n: measure.fault(self.summaries[n]) for n, measure in self.measures.items()}
        return {name: fault for name, fault in faults.items() if fault}

    def without(self, measures: Container[str]) -> Report:
        """The report without some measures."""
        kept = [self.rows[measure] for measure in self.rows if measure not in measures]
        return Report([row for rows in kept for row in rows])

    def plain(self) -> dict[str, Any]:
        """The summaries as what JSON is made of, by measure."""
        plain: dict[str, Any] = _plain(self.summaries)
        return plain | ({"compared": _plain(self.comparisons)} if self.comparisons else {})


def write_report(folder: Path, rows: Sequence[Row]) -> Report:
    """Write ``summary.json``, ``summary.md``, and what else the measures have to show."""
    report = Report(rows)
    summary = json.dumps(report.plain(), indent=2, allow_nan=False)
    write_text(folder / "summary.json", summary + "\n")
    write_text(folder / "summary.md", "\n".join(table.markdown() for table in report.tables()))
    for name, measure in report.measures.items():
        measure.save(folder, report.rows[name])
    return report


def _mapped(rows: Sequence[Row]) -> tuple[list[Row], dict[str, str]]:
    """Rows without those of methods that have no map at all, and a note for each measure.

    Raises:
        ValueError: if none of a measure's methods has a map.
    """
    seen: defaultdict[tuple[str, str, str], list[bool]] = defaultdict(list)
    for row in rows:
        if "method" in row:
            seen[_key(row)].append(row.get("no_map", False))
    none = {key for key, lacks in seen.items() if all(lacks)}
    for measure, model, method in none:
        if all(key in none for key in seen if key[0] == measure):
            raise ValueError(
                f"{measure}: {method} has no map of any image with {model}: its scores or "
                "gradients are zero, or all heads are dead; choose another method"
            )
    notes: defaultdict[str, list[str]] = defaultdict(list)
    for (measure, model, method), lacks in seen.items():
        if all(lacks):
            notes[measure].append(f"{method} of {model} has no map, and is left out")
        elif any(lacks):
            share = f"{sum(lacks)} of {len(lacks)} rows"
            notes[measure].append(f"{method} of {model} has no map in {share}: constant there")
    kept = [row for row in rows if "method" not in row or _key(row) not in none]
    return kept, {measure: "; ".join(sentences) for measure, sentences in notes.items()}


def _key(row: Row) -> tuple[str, str, str]:
    return row["measure"], row["model"], row["method"]


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and value != value:
        return None  # JSON has no NaN
    return value
