"""The benchmark's tables and plots."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..drawing.charts import PALETTE, markers, save_figure
from ..evaluate.tables import Table
from ..files import write_text
from .mechanisms import FUSED, MECHANISMS
from .running import BenchRow
from .settings import Setting, count_operations

__all__ = ["bench_plot", "bench_table", "paper_table", "write_bench"]

NOTE = (
    "Time is the median for one batch: processor time with one thread on a CPU, otherwise "
    "wall-clock time. ~ marks values extrapolated with the exponent of time in tokens, which is "
    "fitted to the three largest measured sizes. × is the time of fused softmax divided by the "
    "time of the row: above 1 is faster. Memory on a CPU is the peak of the whole process, with "
    "Python and PyTorch; on a GPU it is the peak of PyTorch's allocations. GFLOPs are counted by "
    "torch.utils.flop_counter, which counts matrix products and convolutions; a multiply-add is "
    "two operations. Fused softmax and Pure InfSA have products inside operators that it cannot "
    "count, so their GFLOPs are those of the textbook form. OOM (predicted): one N×N float32 "
    "matrix per head exceeds the available memory, so the setting was not run. With --compile "
    "the compiler may turn materialised softmax into the fused one."
)


def bench_table(rows: Sequence[BenchRow]) -> Table:
    """The table of all rows, with their speed relative to fused softmax."""
    first = rows[0]
    what = "training step (AdamW)" if first.train else "inference"
    title = (
        f"{what}, depth {first.depth}, width {first.width}, {first.heads} heads, batch "
        f"{first.batch_size}, {'bfloat16 autocast' if first.amp else 'float32'}"
        f"{', compiled' if first.compiled else ''}, {_place(first.device)}, "
        f"PyTorch {torch.__version__}"
    )
    headings = (
        ("size", "tokens", "mechanism", "time of a batch", "× fused", "images/s", "exponent")
        + ("peak memory", "parameters", "GFLOPs", "energy an image")
    )  # fmt: skip
    estimated = {r.tokens for r in rows if r.mechanism == FUSED and r.state == "extrapolated"}
    return Table(title, headings, [_cells(row, row.tokens in estimated) for row in rows], NOTE)


def _cells(row: BenchRow, reference_estimated: bool) -> tuple[str, ...]:
    about = "~" if row.state == "extrapolated" else ""
    ratio, rate = row.speed_to_fused, row.images_per_second
    return (
        str(row.size),
        f"{row.tokens:,}",
        row.mechanism,
        row.state if row.seconds is None else about + _duration(row.seconds),
        "—" if ratio is None else f"{'~' if reference_estimated else about}{ratio:.2f}",
        "—" if rate is None else f"{about}{rate:.3g}",
        "—" if row.exponent is None else f"{row.exponent:.2f}",
        "—" if row.peak_bytes is None else f"{row.peak_bytes / 2**30:.2f} GiB",
        f"{row.parameters / 1e6:.1f}M",
        f"{row.gflops:,.1f}",
        _energy(row),
    )


def _energy(row: BenchRow) -> str:
    if row.joules_per_image is not None:
        return f"{row.joules_per_image:.3g} J"
    return "not measurable here" if row.state == "measured" else "—"


def _duration(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 10 else f"{1e3 * seconds:,.0f} ms"


def _place(device: str) -> str:
    if device == "cpu":
        return f"CPU, {torch.get_num_threads()} of {os.cpu_count()} threads"
    return torch.cuda.get_device_name(device)


def paper_table(rows: Sequence[BenchRow]) -> Table:
    """Figures of arXiv 2603.00175 beside those of these rows and of PyTorch's counter."""
    by_size = {(row.mechanism, row.size): row for row in rows}
    linear = by_size.get(("linear", 1024))
    speeds = []
    for name in ("softmax", "softmax-fused"):
        other = by_size.get((name, 1024))
        if linear and other and linear.seconds and other.seconds:
            about = "~" if "extrapolated" in (linear.state, other.state) else ""
            speeds.append(f"{about}{other.seconds / linear.seconds:.1f}× {name}")
    largest = by_size.get(("linear", 9216))
    macs = {
        (name, depth): f"{count_operations(Setting(name, 224, depth=depth))[1] / 2e9:.1f}"
        for name in ("linear", "linear-textbook", "softmax")
        for depth in (4, 24)
    }
    work = "; ".join(
        f"{depth} layers: {macs['softmax', depth]} softmax, {macs['linear-textbook', depth]} "
        f"Linear-InfSA by the textbook, {macs['linear', depth]} as it is here"
        for depth in (4, 24)
    )
    cells = (
        ("Linear-InfSA against softmax, 1024×1024", "13×", ", ".join(speeds) or "not measured"),
        ("GFLOPs at 224×224, 4 layers", "59", f"multiply-adds, 10⁹: {work}"),
        ("9216×9216, Linear-InfSA", "fits in memory", _largest(largest)),
    )
    note = (
        "The 59 GFLOPs do not add up for 4 layers of width 1024: counted in multiply-adds, about "
        "59·10⁹ is what 24 layers take; in operations, two a multiply-add, 4 layers take "
        f"{2 * float(macs['linear-textbook', 4]):.0f}·10⁹."
    )
    return Table("beside the paper's figures", ("figure", "paper", "here"), cells, note)


def _largest(row: BenchRow | None) -> str:
    if row is None:
        return "not measured"
    memory = "" if row.peak_bytes is None else f", peak {row.peak_bytes / 2**30:.2f} GiB"
    return row.state + memory


def bench_plot(rows: Sequence[BenchRow]) -> Any:
    """A matplotlib figure of time and peak memory over tokens, on logarithmic axes.

    Extrapolated points are hollow.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.4), layout="constrained")
    time, memory = figure.subplots(1, 2)
    for index, name in enumerate(MECHANISMS):
        of_mechanism = [row for row in rows if row.mechanism == name]
        of_mechanism.sort(key=lambda row: row.tokens)
        timed = [row for row in of_mechanism if row.seconds is not None]
        if not timed:
            continue
        style = {
            "color": PALETTE[index % len(PALETTE)],
            "marker": markers(index) or ".",
            "markersize": 5,
        }
        power = max(timed, key=lambda row: (row.state == "measured", row.tokens)).exponent
        label = name if power is None else f"{name}, N^{power:.2f}"
        time.plot([r.tokens for r in timed], [r.seconds for r in timed], label=label, **style)
        estimated = [row for row in timed if row.state == "extrapolated"]
        hollow = {**style, "linestyle": "", "markerfacecolor": "white", "zorder": 3}
        time.plot([r.tokens for r in estimated], [r.seconds for r in estimated], **hollow)
        sized = [(row.tokens, row.peak_bytes / 2**30) for row in of_mechanism if row.peak_bytes]
        memory.plot(*zip(*sized, strict=True), **style)
    for axis, label in ((time, "time of a batch (s)"), (memory, "peak memory (GiB)")):
        axis.set(xscale="log", yscale="log", xlabel="tokens N", ylabel=label)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure


def write_bench(folder: Path, rows: Sequence[BenchRow]) -> None:
    """Write ``bench.md``, ``bench.png`` and ``bench.svg``.

    Args:
        folder: existing output folder, that of ``bench.csv``.
        rows: all rows.
    """
    tables = (bench_table(rows), paper_table(rows))
    write_text(folder / "bench.md", "\n".join(table.markdown() for table in tables))
    save_figure(bench_plot(rows), folder, "bench")
