"""Tables, JSON and progress bars."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["one_line", "print_table", "progress"]


def one_line(text: str) -> str:
    """Text on one line that moves no cursor: names of files may hold anything.

    >>> one_line("a\\nb \\x1b[31mred ü")
    'a b \\\\x1b[31mred ü'
    """
    words = " ".join(text.split())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)


@contextmanager
def progress(what: str, total: int | None, *, hidden: bool = False) -> Iterator[Any]:
    """A progress bar on stderr with rate and time left, none where that is not a terminal."""
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


def print_table(title: str, headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """A table as wide as it needs to be: it is read by people and by pipes."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=one_line(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*map(one_line, row))
    natural = Console(markup=False, emoji=False, width=10_000).measure(table).maximum
    Console(markup=False, emoji=False, highlight=False, width=natural).print(table)
