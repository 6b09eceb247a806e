"""The command that measures speed and memory."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

from ..interrupting import says_when_interrupted
from .output import print_table, progress
from .values import torch_device


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
    from dataclasses import asdict

    from ..bench import (
        FUSED,
        MECHANISMS,
        BenchRow,
        CsvFile,
        Setting,
        paper_table,
        plan,
        table,
        write,
    )
    from ..bench import bench as run

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
    measured = run(sizes, names, like, repeats=repeats, budget=budget, known=finished)
    rows: list[BenchRow] = []

    def say() -> None:
        if rows and out is not None:
            print(
                f"the rows so far are kept in {out}: the same command with --resume goes on",
                file=sys.stderr,
            )

    try:
        with (
            file or nullcontext(),
            says_when_interrupted(say),
            progress("cells", cells) as advance,
        ):
            for row in measured:
                rows.append(row)
                if file is not None:
                    file.append(row)
                advance(1)
    finally:
        if rows:
            if out is not None:
                write(out, rows)
            if as_json:
                print(json.dumps([asdict(row) for row in rows], indent=2))
            else:
                for shown in (table(rows), paper_table(rows)):
                    print_table(shown.title, shown.headings, shown.cells)
                    print(shown.note + "\n")
