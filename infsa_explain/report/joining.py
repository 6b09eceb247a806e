"""Several run folders as one, so that their models can be compared."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ..evaluate.rows import Row
from .reading import Run, read_run
from .writing import Report

__all__ = ["join_runs"]

#: Options of a measure that may differ between runs whose numbers are compared.
MAY_DIFFER = {"methods", "batch_size"}


def join_runs(folders: Sequence[str | os.PathLike[str]]) -> Report:
    """The report of the rows of several runs.

    A model whose name occurs in several runs gets the name of its run's folder behind it.

    Args:
        folders: of the runs, at least one.

    Raises:
        ValueError: if a folder holds no run, the runs are of different images, or a measure that
            several of them have was made with different options, so that its numbers are not
            comparable.
    """
    runs = [read_run(folder) for folder in folders]
    for run in runs[1:]:
        _check_same(runs[0], run)
    names = Counter(name for run in runs for name in _models(run))
    folders_of = Counter(run.folder.name for run in runs)
    rows: list[Row] = []
    for run in runs:
        alone = folders_of[run.folder.name] == 1
        folder = run.folder.name if alone else run.folder.as_posix()
        titles = {n: n if names[n] == 1 else f"{n} ({folder})" for n in _models(run)}
        rows += [row | {"model": titles[row["model"]]} for row in _rows(run)]
    return Report(rows)


def _models(run: Run) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in _rows(run)))


def _rows(run: Run) -> Iterator[Row]:
    return (row for rows in run.report.rows.values() for row in rows)


def _check_same(first: Run, other: Run) -> None:
    """Refuse runs whose numbers are not comparable."""
    data = [run.config["data"]["name"] for run in (first, other)]
    if data[0] != data[1]:
        raise ValueError(
            f"runs must be of the same images, got {data[0]} in {first.folder} and {data[1]} in "
            f"{other.folder}"
        )
    for name in first.config["measures"].keys() & other.config["measures"].keys():
        options: list[dict[str, Any]] = [run.config["measures"][name] for run in (first, other)]
        for key in sorted((options[0].keys() | options[1].keys()) - MAY_DIFFER):
            values = [of_run.get(key) for of_run in options]
            if values[0] != values[1]:
                raise ValueError(
                    f"runs must have the same options, got {name} with {key} {values[0]!r} in "
                    f"{first.folder} and {values[1]!r} in {other.folder}"
                )
