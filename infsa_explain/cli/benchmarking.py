"""The command that measures speed and memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..interrupting import says_when_interrupted
from .output import print_table, progress
from .values import torch_device

if TYPE_CHECKING:
    from ..bench import BenchRow


def bench(
    *,
    sizes: list[int],
    mechanisms: list[str],
    depth: int,
    width: int,
    heads: int,
    batch_size: int,
    train: bool,
    compiled: bool,
    repeats: int,
    budget: float,
    device: str,
    amp: bool,
    out: Path | None,
    resume: bool,
    as_json: bool,
) -> None:
    """Measure time, memory, GFLOPs and energy of attention mechanisms.

    InfSA is compared with rivals. With --out, bench.csv is written row by row; bench.md and plots
    are written at the end, or when the command is interrupted. With --resume, settings that have a
    row in bench.csv are not measured again.

    Example: infsa-explain bench --sizes 224,512,1024 --mechanisms linear,pure --out runs/bench
    """
    from ..bench import FUSED, MECHANISMS, CsvFile, Setting, plan, run_bench

    names = [*MECHANISMS] if "all" in mechanisms else mechanisms
    like = Setting(
        FUSED,
        sizes[0],
        depth=depth,
        width=width,
        heads=heads,
        batch_size=batch_size,
        train=train,
        amp=amp,
        compiled=compiled,
        device=torch_device(device),
    )
    if resume and out is None:
        raise ValueError("--resume goes on with the rows in --out, which is not given")
    cells = len(plan(sizes, names, like, repeats=repeats, budget=budget))
    file = None if out is None else CsvFile(out / "bench.csv", resume)
    finished = [] if file is None else file.rows
    measured = run_bench(sizes, names, like, repeats=repeats, budget=budget, finished=finished)
    rows: list[BenchRow] = []

    try:
        with (
            file or nullcontext(),
            says_when_interrupted(lambda: _say_what_is_kept(rows, out)),
            progress("cells", cells) as advance,
        ):
            for row in measured:
                rows.append(row)
                if file is not None:
                    file.append(row)
                advance(1)
    finally:
        if rows:
            _show(rows, out, as_json)


def _say_what_is_kept(rows: Sequence[BenchRow], out: Path | None) -> None:
    """On stderr: where an interrupted measurement goes on."""
    if rows and out is not None:
        print(
            f"the rows so far are kept in {out}: the same command with --resume goes on",
            file=sys.stderr,
        )


def _show(rows: Sequence[BenchRow], out: Path | None, as_json: bool) -> None:
    """Write tables and plots to the folder, if there is one, and print the tables."""
    from ..bench import bench_table, paper_table, write_bench

    if out is not None:
        write_bench(out, rows)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    for shown in (bench_table(rows), paper_table(rows)):
        print_table(shown.title, shown.headings, shown.cells)
        print(shown.note + "\n")
