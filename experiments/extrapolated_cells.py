"""Compute the "~" cells of the speed tables in ``docs/speed.md`` and ``README.md``.

They follow from the measured times that the same table prints, by
``infsa_explain.bench.extrapolate`` and ``ratio``. Measured times, and ratios of two measured times,
are left as they are printed. A test compares the pages.

``--held-out`` asks the intervals for times that are known: the smallest sizes of a row predict each
larger one that was measured.

Usage, from the checkout: python experiments/extrapolated_cells.py [--write | --held-out]
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from infsa_explain.bench import Estimate, extrapolate, ratio
from infsa_explain.bench.reporting import duration_cell, ratio_cell

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "speed.md", ROOT / "README.md")
FUSED, TEXTBOOK = "softmax, fused", ", textbook"
HEADING = re.compile(r"\| mechanism \|(?: \d+² \|)+.*\n")
TIME = re.compile(r"(?P<about>~?)(?P<number>[\d,.]+) (?P<unit>ms|s)(?: \[[^]]*\])?(?: \((.*)\))?")


def with_cells(page: str) -> str:
    """A page with the extrapolated cells of its speed tables computed anew."""
    lines = page.splitlines(keepends=True)
    for place, sizes in _tables(lines):
        lines[place] = _rows(lines[place], sizes)
    return "".join(lines)


def held_out(page: str) -> dict[int, tuple[int, int]]:
    """Number of sizes fitted → number of larger sizes whose time is in its interval, and of all."""
    counts: dict[int, tuple[int, int]] = {}
    lines = page.splitlines(keepends=True)
    for place, sizes in _tables(lines):
        for row in _cells(lines[place]):
            times = _times(row[1 : len(sizes) + 1], sizes)
            ordered = sorted(times)
            for fitted in range(2, len(ordered)):
                known = {tokens: times[tokens] for tokens in ordered[:fitted]}
                for tokens in ordered[fitted:]:
                    estimate = extrapolate(known, tokens)
                    covers = estimate is not None and estimate.low <= times[tokens] <= estimate.high
                    hits, total = counts.get(fitted, (0, 0))
                    counts[fitted] = hits + covers, total + 1
    return dict(sorted(counts.items()))


def _tables(lines: list[str]) -> Iterator[tuple[slice, list[int]]]:
    """Where the rows of every speed table are, and the sides of its images."""
    for start, line in enumerate(lines):
        if HEADING.fullmatch(line):
            end = start + 2
            while end < len(lines) and lines[end].startswith("|"):
                end += 1
            yield slice(start + 2, end), [int(size) for size in re.findall(r"(\d+)²", line)]


def _cells(lines: list[str]) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]


def _rows(lines: list[str], sizes: list[int]) -> list[str]:
    """The rows of a table, given the sides of the images."""
    table = _cells(lines)
    columns = range(1, len(sizes) + 1)
    seconds = {row[0]: _estimates(row[1 : len(sizes) + 1], sizes) for row in table}
    for row in table:
        for column in columns:
            row[column] = _cell(row[column], row[0], column - 1, seconds)
    return [f"| {' | '.join(row)} |\n" for row in table]


def _estimates(cells: list[str], sizes: list[int]) -> list[Estimate | None]:
    """Measured and extrapolated times of a mechanism; None where it does not fit in memory."""
    times = _times(cells, sizes)
    return [
        Estimate.measured(times[n])
        if n in times
        else extrapolate(times, n)
        if "~" in cell
        else None
        for n, cell in zip(map(_tokens, sizes), cells, strict=True)
    ]


def _times(cells: list[str], sizes: list[int]) -> dict[int, float]:
    """Number of tokens → measured seconds."""
    pairs = ((_tokens(size), _measured(cell)) for size, cell in zip(sizes, cells, strict=True))
    return {tokens: seconds for tokens, seconds in pairs if seconds is not None}


def _tokens(size: int) -> int:
    return (size // 16) ** 2 + 1


def _measured(cell: str) -> float | None:
    match = TIME.fullmatch(cell)
    if match is None or match["about"]:
        return None
    return float(match["number"].replace(",", "")) * (1e-3 if match["unit"] == "ms" else 1)


def _cell(cell: str, name: str, column: int, seconds: dict[str, list[Estimate | None]]) -> str:
    """A cell: the time and, in brackets, the ratios to fused softmax and to the textbook."""
    match = TIME.fullmatch(cell)
    time = seconds[name][column]
    if match is None or time is None:
        return cell
    printed = match[4].split("; ")
    others = (seconds[FUSED][column], seconds.get(name + TEXTBOOK, seconds[name])[column])
    ratios = [
        text if name == FUSED or other is None else _ratio(text, other, time)
        for text, other in zip(printed, others, strict=False)
    ]
    text = duration_cell(time) if match["about"] else f"{match['number']} {match['unit']}"
    return f"{text} ({'; '.join(ratios)})"


def _ratio(printed: str, other: Estimate, time: Estimate) -> str:
    """A ratio as it is printed where both times were measured, else computed anew."""
    speed = ratio(other, time)
    if speed.interval == (None, None):
        return printed
    return ratio_cell(speed, "×", ".2f" if speed.value < 10 else ".0f")


def main() -> None:
    """Print, or write, the tables of both pages."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the pages")
    parser.add_argument("--held-out", action="store_true", help="count intervals that cover")
    options = parser.parse_args()
    if options.held_out:
        for fitted, (hits, total) in held_out(PAGES[0].read_text(encoding="utf-8")).items():
            print(f"{fitted} sizes: {hits} of {total} larger ones in their intervals")
        return
    for path in PAGES:
        page = with_cells(path.read_text(encoding="utf-8"))
        if options.write:
            path.write_text(page, encoding="utf-8")
        extrapolated = [line for line in page.splitlines() if line[:1] == "|" and "~" in line]
        print(f"{path.name}:", *extrapolated, sep="\n")


if __name__ == "__main__":
    main()
