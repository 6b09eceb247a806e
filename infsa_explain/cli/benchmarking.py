"""The command that measures speed and memory."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from typing import Annotated

import typer

from ..interrupting import says_when_interrupted
from .options import DeviceOption, JsonOption, OutOption, integer, listed, torch_device
from .output import print_table, progress


def bench(
    sizes: Annotated[
        list[str],
        typer.Option(
            "--sizes", help="Sides of the images, multiples of 16, with commas; repeat for more."
        ),
    ] = ["224,512"],  # noqa: B006  (typer copies it)
    mechanisms: Annotated[
        list[str],
        typer.Option(
            "--mechanisms",
            help="Names with commas, or 'all'; softmax-fused always comes along; repeat for more.",
        ),
    ] = ["all"],  # noqa: B006
    depth: Annotated[int, typer.Option(help="Layers.")] = 4,
    width: Annotated[int, typer.Option(help="Width of the tokens.")] = 1024,
    heads: Annotated[int, typer.Option(help="Heads a layer.")] = 64,
    batch_size: Annotated[int, typer.Option(help="Images a batch.")] = 1,
    train: Annotated[bool, typer.Option("--train", help="A training step, not inference.")] = False,
    amp: Annotated[bool, typer.Option("--amp", help="bfloat16; slow if emulated.")] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="By torch.compile.")] = False,
    repeats: Annotated[int, typer.Option(help="Batches timed, after one to warm up.")] = 5,
    budget: Annotated[
        float, typer.Option(help="Seconds a cell may take; more is extrapolated and marked ~.")
    ] = 120,
    device: DeviceOption = "auto",
    out: OutOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Measure what the bench.csv in --out lacks.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Time, memory, GFLOPs and energy of InfSA and rival attention mechanisms.

    With --out it writes bench.csv, row by row, and at the end, or when interrupted, bench.md and
    plots; with --resume settings that have a row there are not measured again.

    Example: infsa-explain bench --sizes 224,512,1024 --mechanisms linear,pure --out runs/bench
    """
    from dataclasses import asdict

    from ..bench import (
        FUSED,
        MECHANISMS,
        BenchRow,
        CsvFile,
        Setting,
        bench_table,
        paper_table,
        plan,
        run_bench,
        write_bench,
    )

    names = listed("--mechanisms", mechanisms)
    names = [*MECHANISMS] if "all" in names else names
    sides = [integer("--sizes", s, "several with commas") for s in listed("--sizes", sizes)]
    like = Setting(
        FUSED,
        sides[0],
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
    cells = len(plan(sides, names, like, repeats=repeats, budget=budget))
    file = None if out is None else CsvFile(out / "bench.csv", resume)
    finished = [] if file is None else file.rows
    measured = run_bench(sides, names, like, repeats=repeats, budget=budget, finished=finished)
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
                write_bench(out, rows)
            if as_json:
                print(json.dumps([asdict(row) for row in rows], indent=2))
            else:
                for table in (bench_table(rows), paper_table(rows)):
                    print_table(table.title, table.headings, table.cells)
                    print(table.note + "\n")
