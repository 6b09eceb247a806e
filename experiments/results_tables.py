"""Write the tables of docs/results.md and of the README from run folders.

    python experiments/results_tables.py docs/results.md photos=RUN digits=RUN
    python experiments/results_tables.py README.md photos=RUN

A file marks each place by a pair of comments, and what stands between them is replaced:

    <!-- table photos -->            all tables of the run
    <!-- end -->

    <!-- table photos over-random -->   MoRF-AOC over random, a row a map and a column a model
    <!-- table photos ap -->            PR-AUC, likewise
    <!-- end -->
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from infsa_explain.evaluate.findings import LEVEL
from infsa_explain.evaluate.tables import interval_cell, markdown
from infsa_explain.evaluate.values import CONTROLS, Images
from infsa_explain.report import Report
from infsa_explain.report.reading import read_run

PLACE = re.compile(r"(<!-- table (\S+)(?: (\S+))? -->\n).*?(<!-- end -->)", re.DOTALL)
#: Names of models in the README.
TITLES = {"linear": "InfViT linear", "pure": "InfViT pure", "softmax": "softmax twin"}


def all_tables(report: Report) -> str:
    """Every table under a heading of its title."""
    tables = []
    for table in report.tables():
        note = f"\n{table.note}\n" if table.note else ""
        heading = table.title[:1].upper() + table.title[1:]
        tables.append(f"### {heading}\n\n{markdown(table.headings, table.cells)}{note}")
    return "\n".join(tables)


def by_map(report: Report, measure: str, cell: Callable[[Report, Any], str]) -> str:
    """A row for each map and a column for each model; bold where it beats ``centre``."""
    summaries = report.summaries[measure]
    models = list(dict.fromkeys(s.model for s in summaries))
    rows = []
    for method in dict.fromkeys(s.method for s in summaries):
        name = f"*`{method}`*" if method in CONTROLS else f"`{method}`"
        rows.append((name, *(_cell(report, measure, model, method, cell) for model in models)))
    if measure == "boxes":  # which a constant map scores
        shares = [next(s for s in summaries if s.model == m).measures["prevalence"] for m in models]
        rows.append(("*prevalence*", *(interval_cell(share) for share in shares)))
    titles = [next(t for kind, t in TITLES.items() if f"_{kind}_" in m) for m in models]
    return markdown(("map", *titles), rows)


def _cell(
    report: Report, measure: str, model: str, method: str, cell: Callable[[Report, Any], str]
) -> str:
    summaries = report.summaries[measure]
    (summary,) = (s for s in summaries if (s.model, s.method) == (model, method))
    test = summary.over.get("centre")
    better = test is not None and test.p_value <= LEVEL and test.interval.mean > 0
    text = cell(report, summary)
    return f"**{text}**" if better else text


def over_random(report: Report, summary: Any) -> str:
    """AOC over random; of ``random`` itself its AOC."""
    if summary.method == "random":
        return f"0 (AOC {100 * summary.aoc.mean:.1f})"
    if "random" in summary.over:
        return interval_cell(summary.over["random"].interval, spec="+.1f")
    rows = [
        row
        for row in report.rows["morf"]
        if row["model"] == summary.model and row["order"] == "morf"
    ]
    images = Images.of(rows)
    centre, random = (
        images.values((row for row in rows if row["method"] == method), itemgetter("aoc"))
        for method in (summary.method, "random")
    )
    return interval_cell((centre - random).interval(), spec="+.1f")


def average_precision(report: Report, summary: Any) -> str:
    """PR-AUC with its interval."""
    return interval_cell(summary.measures["ap"])


PARTS: Mapping[str | None, Callable[[Report], str]] = {
    None: all_tables,
    "over-random": lambda report: by_map(report, "morf", over_random),
    "ap": lambda report: by_map(report, "boxes", average_precision),
}


def main() -> None:
    path = Path(sys.argv[1])
    reports = {
        name: read_run(folder).report
        for name, _, folder in (argument.partition("=") for argument in sys.argv[2:])
    }

    def replaced(place: re.Match[str]) -> str:
        begin, run, part, end = place.groups()
        if run not in reports:
            return place[0]
        return f"{begin}{PARTS[part](reports[run])}{end}"

    path.write_text(PLACE.sub(replaced, path.read_text()))


if __name__ == "__main__":
    main()
