"""Tables, JSON and progress bars."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["one_line", "print_table", "progress"]


def one_line(text: str) -> str:
    """Text on one line, without control characters: file names may hold any.

    >>> one_line("a\\nb \\x1b[31mred ü")
    'a b \\\\x1b[31mred ü'
    """
    words = " ".join(text.split())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)


@contextmanager
def progress(what: str, total: int | None, *, hidden: bool = False) -> Iterator[Any]:
    """A progress bar on stderr with rate and time left; none where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            rate = task.finished_speed or task.speed
            return Text("" if rate is None else f"{rate:.1f}/s")

    columns = (BarColumn(), MofNCompleteColumn(), what, Rate(), "left", TimeRemainingColumn())
    hidden = hidden or sys.stderr is None or not sys.stderr.isatty()
    with Progress(
        *columns, console=Console(stderr=True), speed_estimate_period=300, disable=hidden
    ) as bar:
        task = bar.add_task(what, total=total)

        def advance(done: int, of: int | None = total) -> None:
            bar.update(task, advance=done, total=of)

        yield advance


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as wide as it is; in blocks of columns where a terminal is narrower."""
    from rich.console import Console, ConsoleDimensions

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    print(one_line(title))
    for columns in _blocks(headings, rows, width):
        natural = _width(headings, rows, columns)
        table = _table(headings, rows, columns, wrap=natural > width)
        console = Console(markup=False, emoji=False, highlight=False)
        console.size = ConsoleDimensions(min(natural, width), 25)
        console.print(table)


def _blocks(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> Iterator[list[int]]:
    """Columns that fit beside one another; every block starts with those that name the rows."""
    numbers = (i for i, heading in enumerate(headings) if re.search(r"[↑↓[]", heading))
    names = list(range(next(numbers, 1)))
    block = names
    for column in range(len(names), len(headings)):
        if block != names and _width(headings, rows, [*block, column]) > width:
            yield block
            block = names
        block = [*block, column]
    yield block


def _width(headings: Sequence[str], rows: Sequence[Sequence[str]], columns: list[int]) -> int:
    """How wide a table of some columns is."""
    from rich.console import Console

    console = Console(markup=False, emoji=False, width=10_000)
    return console.measure(_table(headings, rows, columns, wrap=False)).maximum


def _table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], columns: list[int], *, wrap: bool
) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(headings[column], no_wrap=not wrap)
    for row in rows:
        table.add_row(*(one_line(row[column]) for column in columns))
    return table
