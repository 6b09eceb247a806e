"""The benchmark's tables and plots."""

from __future__ import annotations

import os
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from pathlib import Path
from typing import Any

import torch

from ..drawing.charts import PALETTE, markers, save_figure
from ..evaluate.tables import Table
from ..files import write_text
from .growth import Estimate, ratio
from .mechanisms import MECHANISMS
from .running import BenchRow
from .settings import Setting, count_operations

__all__ = ["bench_plot", "bench_table", "paper_table", "write_bench"]

NOTE = (
    "Time is the median for one batch: processor time with one thread on a CPU, otherwise "
    "wall-clock time. ~ marks extrapolated values, with the 95% interval of what a measurement "
    "would give. Extrapolation fits a·N + b·N² with a, b ≥ 0, N tokens, to the measured times by "
    "least squares on relative errors, with a constant overhead where these exceed 12% without. "
    "The interval is Student's t from the residuals (at least 3%), cut to between linear and "
    "quadratic growth from the largest measured size, within a factor of 1.25. × is the time of "
    "fused softmax divided by the time of the row: above 1 is faster. Where one of the two is "
    "extrapolated, × has an interval too. The exponent of time in tokens describes the growth "
    "over the three largest measured sizes; nothing is extrapolated with it. Memory on a CPU is "
    "the peak of the whole process, with Python and PyTorch; on a GPU it is the peak of PyTorch's "
    "allocations. GFLOPs are counted by torch.utils.flop_counter, which counts matrix products "
    "and convolutions; a multiply-add is two operations. Fused softmax and Pure InfSA have "
    "products inside operators that it cannot count, so their GFLOPs are those of the textbook "
    "form. OOM (predicted): one N×N float32 matrix per head exceeds the available memory, so the "
    "setting was not run. With --compile the compiler may turn materialised softmax into the "
    "fused one."
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
    return Table(title, headings, [_cells(row) for row in rows], NOTE)


def _cells(row: BenchRow) -> tuple[str, ...]:
    about = "~" if row.state == "extrapolated" else ""
    speed, rate = row.speed_to_fused, row.images_per_second
    return (
        str(row.size),
        f"{row.tokens:,}",
        row.mechanism,
        row.state if row.seconds is None else duration_cell(_seconds(row, row.seconds)),
        "—" if speed is None else ratio_cell(_speed(row, speed)),
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


def duration_cell(seconds: Estimate) -> str:
    """A time: ``353 ms`` or ``13.8 s`` where measured, else ``~1,419 s [1,200, 1,700]``.

    Args:
        seconds: the time.

    >>> duration_cell(Estimate(1419.2, 1234.5, 1678.9))
    '~1,419 s [1,200, 1,700]'
    """
    value = seconds.value
    if value < 10:
        text, unit = f"{1e3 * value:,.0f} ms", 1e3
    else:
        text, unit = f"{value:,.1f} s" if value < 100 else f"{value:,.0f} s", 1.0
    return _with_interval(text, seconds, unit)


def ratio_cell(speed: Estimate, suffix: str = "", spec: str = ".2f") -> str:
    """A ratio: ``2.51`` where both parts were measured, else ``~2.51 [2.1, 3.1]``.

    Args:
        speed: the ratio.
        suffix: stands after the number.
        spec: format of the number.

    >>> ratio_cell(Estimate(17.312, 11.11, 22.2), "×")
    '~17.31× [11, 23]'
    """
    return _with_interval(f"{speed.value:{spec}}{suffix}", speed)


def _with_interval(text: str, estimate: Estimate, scale: float = 1.0) -> str:
    """Mark an estimate, and add its interval, rounded outwards to two digits."""
    if estimate.interval == (None, None):
        return text
    low, high = (
        format(Context(2, rounding).create_decimal(repr(scale * end)), ",f")
        for end, rounding in ((estimate.low, ROUND_FLOOR), (estimate.high, ROUND_CEILING))
    )
    return f"~{text} [{low}, {high}]"


def _seconds(row: BenchRow, value: float) -> Estimate:
    return Estimate(value, row.seconds_low or value, row.seconds_high or value)


def _speed(row: BenchRow, value: float) -> Estimate:
    return Estimate(value, row.speed_to_fused_low or value, row.speed_to_fused_high or value)


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
            speed = ratio(_seconds(other, other.seconds), _seconds(linear, linear.seconds))
            speeds.append(f"{ratio_cell(speed, '×', '.1f')} {name}")
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

    Extrapolated points are hollow, with their 95% intervals as error bars.
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
        estimated = [
            (r.tokens, _seconds(r, r.seconds)) for r in timed if r.seconds and r.seconds_low
        ]
        if estimated:
            tokens, seconds = zip(*estimated, strict=True)
            bars = [[s.value - s.low for s in seconds], [s.high - s.value for s in seconds]]
            hollow = {**style, "linestyle": "", "markerfacecolor": "white", "zorder": 3}
            time.errorbar(tokens, [s.value for s in seconds], bars, capsize=2, **hollow)
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
