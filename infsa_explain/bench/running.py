"""The benchmark: mechanisms at sizes, row by row; too slow and too large are results as well."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..files import append_alone, make_folder, naming
from ..ranges import MANY
from .measuring import Measurement, OutOfMemory, TooSlow, measure
from .mechanisms import FUSED, MECHANISMS
from .settings import PATCH, Setting, available_memory, count, least_bytes

__all__ = ["CsvFile", "BenchRow", "bench", "exponent", "extrapolate", "plan"]

#: Points, the largest ones, that an exponent is fitted to.
FITTED = 3
#: Most seconds of a budget, some 30 years: a timer takes not many more.
LONGEST = 1e9
#: By number of tokens, seconds of a batch.
Times = dict[int, float]
#: Measures a setting, with so many repeats, in so many seconds.
Measure = Callable[[Setting, int, float], Measurement]


@dataclass(frozen=True)
class BenchRow:
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
    measure: Measure = measure,
    known: Sequence[BenchRow] = (),
) -> Iterator[BenchRow]:
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
        known: rows whose settings are not measured again.

    Raises:
        ValueError: as :func:`plan`.
    """
    wanted = plan(sizes, mechanisms, like, repeats=repeats, budget=budget)
    return _rows(wanted, repeats, budget, _remembering(measure, known))


def plan(
    sizes: Sequence[int],
    mechanisms: Sequence[str],
    like: Setting,
    *,
    repeats: int = 5,
    budget: float = 120,
) -> list[Setting]:
    """The settings that :func:`bench` measures, given the same arguments.

    Raises:
        ValueError: for unknown mechanisms, or sizes, repeats or a budget out of range.
    """
    if not (repeats >= 1 and budget > 0):
        raise ValueError(f"repeats and budget must be positive, got {repeats} and {budget}")
    if repeats > MANY or budget > LONGEST:
        raise ValueError(
            f"repeats must be at most {MANY}, and budget at most {LONGEST:g} seconds, got "
            f"{repeats:.6g} and {budget:g}"
        )
    names = list(dict.fromkeys([FUSED, *mechanisms]))
    return [
        replace(like, mechanism=name, size=size) for size in sorted(set(sizes)) for name in names
    ]


def _rows(
    wanted: Sequence[Setting], repeats: int, budget: float, measure: Measure
) -> Iterator[BenchRow]:
    """Rows of the settings in their order; of one that is too slow, smaller sizes before it."""
    clock = _Clock(repeats, budget, measure)
    for setting in wanted:
        row = clock.attempt(setting)
        if row is None:
            yield from clock.smaller_sizes(setting)
            times = clock.times[setting.mechanism]
            row = clock.row(setting, "extrapolated" if len(times) > 1 else "too slow")
        yield row


class _Clock:
    """Measures settings within a budget, and remembers the times for extrapolation.

    Attributes:
        times: mechanism → tokens → seconds, of what was measured.
    """

    def __init__(self, repeats: int, budget: float, measure: Measure) -> None:
        self._repeats, self._budget, self._measure = repeats, budget, measure
        self.times: dict[str, Times] = {name: {} for name in MECHANISMS}
        self._fused: Times = {}

    def attempt(self, setting: Setting) -> BenchRow | None:
        """A row, or None if the setting is too slow."""
        available = available_memory(setting.device)
        if available is not None and least_bytes(setting) > available:
            return self.row(setting, "OOM (predicted)")
        expected = extrapolate(self.times[setting.mechanism], setting.tokens)
        if expected is not None and 2 * expected > self._budget:  # to warm up, and to be timed
            return None
        try:
            measured = self._measure(setting, self._repeats, self._budget)
        except OutOfMemory:
            return self.row(setting, "OOM")
        except TooSlow:
            return None
        return self.row(setting, "measured", measured)

    def smaller_sizes(self, setting: Setting) -> Iterator[BenchRow]:
        """Rows of an eighth, a quarter and half of the size, to extrapolate from."""
        for part in (8, 4, 2):
            size = setting.size // part // PATCH * PATCH
            smaller = replace(setting, size=size) if size else setting
            if smaller.tokens in self.times[setting.mechanism] or smaller == setting:
                continue
            row = self.attempt(smaller)
            if row is None:
                break
            yield row

    def row(self, setting: Setting, state: str, measured: Measurement | None = None) -> BenchRow:
        """The row of a setting, with the ratio to fused softmax where that is known."""
        times = self.times[setting.mechanism]
        seconds = None
        if measured is not None:
            seconds = times[setting.tokens] = measured.seconds
        elif state == "extrapolated":
            seconds = extrapolate(times, setting.tokens)
        if setting.mechanism == FUSED and seconds is not None:
            self._fused[setting.tokens] = seconds
        fused = self._fused.get(setting.tokens)
        parameters, operations = count(setting)
        energy = measured.joules if measured else None
        return BenchRow(
            **asdict(setting),
            tokens=setting.tokens,
            state=state,
            seconds=seconds,
            images_per_second=seconds and setting.batch_size / seconds,
            speed_to_fused=fused / seconds if fused and seconds else None,
            exponent=exponent(times),
            repeats=measured.repeats if measured else 0,
            peak_bytes=measured.peak_bytes if measured else None,
            joules_per_image=None if energy is None else energy / setting.batch_size,
            parameters=parameters,
            gflops=operations / 1e9,
        )


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


def _remembering(measure: Measure, rows: Sequence[BenchRow]) -> Measure:
    """A way to measure that answers for the settings of these rows with what they say."""
    known = {_setting(row): row for row in rows}

    def remember(setting: Setting, repeats: int, budget: float) -> Measurement:
        row = known.get(setting)
        if row is None:
            return measure(setting, repeats, budget)
        if row.seconds is None or row.state != "measured":
            raise OutOfMemory if row.state.startswith("OOM") else TooSlow
        energy = row.joules_per_image
        joules = None if energy is None else energy * row.batch_size
        return Measurement(row.seconds, row.repeats, row.peak_bytes or 0, joules)

    return remember


_COLUMNS = [field.name for field in fields(BenchRow)]
_HEADER = ",".join(_COLUMNS).encode() + b"\r\n"


class CsvFile:
    """``bench.csv``: a row is on the disk as soon as it is measured.

    Args:
        path: of the file.
        resume: go on with the file that is there, if there is one.

    Attributes:
        rows: that were there already; one that a kill cut short is removed.

    Raises:
        ValueError: if the file exists already and ``resume`` is off, or is no such file, or its
            folder is a file.
    """

    def __init__(self, path: Path, resume: bool = False) -> None:
        make_folder(path.parent)
        self.path = path
        binary = append_alone(path)
        try:
            content = path.read_bytes()
            if content and not resume:
                raise ValueError(
                    f"{path} exists already; --resume it, or name another folder in --out"
                )
            head, end, cut_short = content.rpartition(b"\n")
            if not end and not _HEADER.startswith(cut_short):
                raise ValueError(f"{path} is no bench.csv")
            self.rows = _rows_in(path, (head + end).decode())
            binary.truncate(len(head + end))
        except ValueError:
            binary.close()
            raise
        self.file = io.TextIOWrapper(binary, encoding="utf-8", newline="")
        self.writer = csv.DictWriter(self.file, _COLUMNS)
        if not head:
            self.writer.writeheader()

    def append(self, row: BenchRow) -> None:
        """Write a row, unless one of its setting was there already."""
        if _setting(row) in map(_setting, self.rows):
            return
        with naming(self.path, "the rows so far are kept, and --resume goes on from them"):
            self.writer.writerow(asdict(row))
            self.file.flush()
            os.fsync(self.file.fileno())

    def __enter__(self) -> CsvFile:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # a row that did not fit on the disk is still in its buffer
            self.file.close()


def _setting(row: BenchRow) -> Setting:
    return Setting(**{field.name: getattr(row, field.name) for field in fields(Setting)})


def _rows_in(path: Path, text: str) -> list[BenchRow]:
    """The rows of a file's text."""
    kinds = {field.name: str(field.type) for field in fields(BenchRow)}
    reader = csv.DictReader(io.StringIO(text, newline=""))
    if text and reader.fieldnames != [*kinds]:
        raise ValueError(f"{path} has other columns than a bench.csv of this version")
    try:
        return [
            BenchRow(**{name: _value(kind, line[name]) for name, kind in kinds.items()})
            for line in reader
        ]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from None


def _value(kind: str, text: str) -> Any:
    """A field as :class:`BenchRow` has it."""
    if kind == "str":
        return text
    if kind == "bool":
        return {"True": True, "False": False}[text]
    if not text and kind.endswith("| None"):
        return None
    return int(text) if kind.startswith("int") else float(text)
