"""The benchmark: mechanisms at sizes, row by row; too slow and too large are results as well."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np

from .measuring import Measurement, OutOfMemory, TooSlow, measure
from .mechanisms import FUSED, MECHANISMS
from .settings import PATCH, Setting, available_memory, count, least_bytes

__all__ = ["CsvFile", "Row", "bench", "exponent", "extrapolate"]

#: Points, the largest ones, that an exponent is fitted to.
FITTED = 3
#: By number of tokens, seconds of a batch.
Times = dict[int, float]


@dataclass(frozen=True)
class Row:
    """One mechanism at one size.

    Attributes:
        mechanism, size, tokens, depth, width, heads, batch_size, train, amp, compiled, device:
            see :class:`~infsa_explain.bench.settings.Setting`.
        state: ``"measured"``; ``"extrapolated"`` from smaller sizes; ``"OOM"``;
            ``"OOM (predicted)"``, not tried; ``"too slow"``, with too few smaller sizes.
        seconds: of one batch; None without a figure, as for all that follow.
        images_per_second: batch size by seconds.
        speed_to_fused: seconds of fused softmax by those of this; more than 1 is faster.
        exponent: of seconds in tokens, fitted to the largest three sizes measured.
        repeats, peak_bytes: see :class:`~infsa_explain.bench.measuring.Measurement`.
        joules_per_image: energy.
        parameters, gflops: see :func:`~infsa_explain.bench.settings.count`; 10⁹ an image.
    """

    mechanism: str
    size: int
    tokens: int
    depth: int
    width: int
    heads: int
    batch_size: int
    train: bool
    amp: bool
    compiled: bool
    device: str
    state: str
    seconds: float | None
    images_per_second: float | None
    speed_to_fused: float | None
    exponent: float | None
    repeats: int
    peak_bytes: int | None
    joules_per_image: float | None
    parameters: int
    gflops: float


def bench(
    sizes: Sequence[int],
    mechanisms: Sequence[str],
    like: Setting,
    *,
    repeats: int = 5,
    budget: float = 120,
    measure: Callable[[Setting, int, float], Measurement] = measure,
) -> Iterator[Row]:
    """Rows, as they are measured; fused softmax, which all are compared with, is always among them.

    A setting whose N×N matrices exceed the memory available is not tried. One that takes more than
    the budget is measured at an eighth, a quarter and a half of its size, as far as that is
    affordable (these rows come as well), and its time extrapolated.

    Args:
        sizes: sides of the images in pixels, multiples of 16.
        mechanisms: names in :data:`~infsa_explain.bench.mechanisms.MECHANISMS`.
        like: everything else.
        repeats, budget: see :func:`~infsa_explain.bench.measuring.measure`.
        measure: how one setting is measured.

    Raises:
        ValueError: for unknown mechanisms, sizes that are none, or no repeats.
    """
    if repeats < 1 or budget <= 0:
        raise ValueError(f"repeats and budget must be positive, got {repeats} and {budget}")
    names = list(dict.fromkeys([FUSED, *mechanisms]))
    wanted = [
        replace(like, mechanism=name, size=size) for size in sorted(set(sizes)) for name in names
    ]
    return _rows(wanted, repeats, budget, measure)


def _rows(
    wanted: Sequence[Setting],
    repeats: int,
    budget: float,
    measure: Callable[[Setting, int, float], Measurement],
) -> Iterator[Row]:
    times: dict[str, Times] = {name: {} for name in MECHANISMS}
    fused: Times = {}

    def row(setting: Setting, state: str, found: Measurement | None = None) -> Row:
        own = times[setting.mechanism]
        seconds = None
        if found is not None:
            seconds = own[setting.tokens] = found.seconds
        elif state == "extrapolated":
            seconds = extrapolate(own, setting.tokens)
        if setting.mechanism == FUSED and seconds is not None:
            fused[setting.tokens] = seconds
        reference = fused.get(setting.tokens)
        parameters, operations = count(setting)
        energy = found.joules if found else None
        return Row(
            **asdict(setting),
            tokens=setting.tokens,
            state=state,
            seconds=seconds,
            images_per_second=seconds and setting.batch_size / seconds,
            speed_to_fused=reference / seconds if reference and seconds else None,
            exponent=exponent(own),
            repeats=found.repeats if found else 0,
            peak_bytes=found.peak_bytes if found else None,
            joules_per_image=None if energy is None else energy / setting.batch_size,
            parameters=parameters,
            gflops=operations / 1e9,
        )

    def attempt(setting: Setting) -> Row | None:
        """A row, or None if the setting is too slow."""
        available = available_memory(setting.device)
        if available is not None and least_bytes(setting) > available:
            return row(setting, "OOM (predicted)")
        expected = extrapolate(times[setting.mechanism], setting.tokens)
        if expected is not None and 2 * expected > budget:  # once to warm up, once for the clock
            return None
        try:
            return row(setting, "measured", measure(setting, repeats, budget))
        except OutOfMemory:
            return row(setting, "OOM")
        except TooSlow:
            return None

    for setting in wanted:
        own = times[setting.mechanism]
        done = attempt(setting)
        for part in (8, 4, 2) if done is None else ():
            size = setting.size // part // PATCH * PATCH
            smaller = replace(setting, size=size) if size else setting
            if smaller.tokens in own or smaller == setting:
                continue
            rung = attempt(smaller)
            if rung is None:
                break
            yield rung
        yield done or row(setting, "extrapolated" if len(own) > 1 else "too slow")


def exponent(times: Times) -> float | None:
    """b of seconds ∝ tokensᵇ, by least squares through the logarithms of the largest three sizes.

    >>> round(exponent({100: 1.0, 200: 4.0, 400: 16.0}), 6)
    2.0
    """
    points = sorted(times.items())[-FITTED:]
    if len(points) < 2:
        return None
    tokens, seconds = np.log(points).T
    return float(np.polyfit(tokens, seconds, 1)[0])


def extrapolate(times: Times, tokens: int) -> float | None:
    """Seconds at a number of tokens, from the largest size measured and :func:`exponent`.

    >>> round(extrapolate({100: 1.0, 200: 4.0}, 800), 6)
    64.0
    """
    power = exponent(times)
    if power is None:
        return None
    largest = max(times)
    return float(times[largest] * (tokens / largest) ** power)


class CsvFile:
    """``bench.csv``: a row is on the disk as soon as it is measured.

    Raises:
        ValueError: if the file is there already.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.file = path.open("x", newline="", encoding="utf-8")
        except FileExistsError:
            raise ValueError(f"{path} is there already; name another folder in --out") from None
        self.writer = csv.DictWriter(self.file, [field.name for field in fields(Row)])
        self.writer.writeheader()

    def append(self, row: Row) -> None:
        """Write a row."""
        self.writer.writerow(asdict(row))
        self.file.flush()
        os.fsync(self.file.fileno())

    def __enter__(self) -> CsvFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
