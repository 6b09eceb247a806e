"""A report has a section for every measure: what is summarised, shown and drawn of its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..evaluate.rows import Row
from ..files import replacing
from .tables import Table

__all__ = ["SECTIONS", "Section", "save_figure", "section"]


@dataclass(frozen=True)
class Section:
    """How the rows of one measure are told.

    Attributes:
        summarise: rows to dataclasses, a list of them or lists by name.
        tables: of these summaries.
        draw: writes pictures and further files into a run folder.
        fault: why no image has a value, and what to do; empty where some image has one.
    """

    summarise: Callable[[Sequence[Row]], Any]
    tables: Callable[[Any], list[Table]]
    draw: Callable[[Path, Sequence[Row]], None]
    fault: Callable[[Any], str]


SECTIONS: dict[str, Section] = {}


def section(
    measure: str,
    summarise: Callable[[Sequence[Row]], Any],
    tables: Callable[[Any], list[Table]],
    draw: Callable[[Path, Sequence[Row]], None] = lambda folder, rows: None,
    fault: Callable[[Any], str] = lambda summaries: "",
) -> None:
    """Register the section of a measure, by the measure's name."""
    SECTIONS[measure] = Section(summarise, tables, draw, fault)


def save_figure(figure: Any, folder: Path, name: str) -> None:
    """Write a matplotlib figure as PNG and SVG."""
    for ending in ("png", "svg"):
        with replacing(folder / f"{name}.{ending}") as temporary:
            figure.savefig(temporary, dpi=150)
