"""The benchmark: a row for each mechanism and size; "too slow" and "out of memory" are results."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..files import append_alone, make_folder, naming, replacing
from ..ranges import Range, count
from .growth import Estimate, exponent, extrapolate, ratio
from .measuring import Measurement, OutOfMemory, TooSlow, measure_setting
from .mechanisms import FUSED, MECHANISMS
from .settings import PATCH, Setting, available_memory, count_operations, least_bytes

__all__ = ["BenchRow", "CsvFile", "plan", "run_bench"]

#: Longest budget in seconds, about 30 years; timers do not accept much more.
LONGEST = 1e9
#: Number of tokens → seconds of a batch.
Times = dict[int, float]
#: Measures a setting, given the number of repeats and the budget in seconds.
MeasureSetting = Callable[[Setting, int, float], Measurement]


@dataclass(frozen=True)
class BenchRow:
    """The result for one mechanism at one size.

    Attributes:
        mechanism, size, tokens, depth, width, heads, batch_size, train, amp, compiled, device:
            see :class:`~infsa_explain.bench.settings.Setting`.
        state: ``"measured"``; ``"extrapolated"`` from smaller sizes; ``"OOM"`` (out of memory);
            ``"OOM (predicted)"``, not run; ``"too slow"``, with too few smaller sizes to
            extrapolate from.
        seconds: time of one batch; None if unknown, as in the fields below.
        seconds_low, seconds_high: 95% interval of extrapolated ``seconds``, see
            :func:`~infsa_explain.bench.growth.extrapolate`; None if measured.
        images_per_second: batch size divided by ``seconds``.
        speed_to_fused: seconds of fused softmax divided by ``seconds``; above 1 is faster.
        speed_to_fused_low, speed_to_fused_high: its 95% interval; None if both were measured.
        exponent: of seconds as a power of tokens, over the three largest measured sizes. It
            describes the growth there; nothing is extrapolated with it.
        repeats, peak_bytes: see :class:`~infsa_explain.bench.measuring.Measurement`.
        joules_per_image: energy.
        parameters: of the model.
        gflops: 10⁹ floating-point operations per image.
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
    seconds_low: float | None
    seconds_high: float | None
    images_per_second: float | None
    speed_to_fused: float | None
    speed_to_fused_low: float | None
    speed_to_fused_high: float | None
    exponent: float | None
    repeats: int
    peak_bytes: int | None
    joules_per_image: float | None
    parameters: int
    gflops: float


def run_bench(
    sizes: Sequence[int],
    mechanisms: Sequence[str],
    like: Setting,
    *,
    repeats: int = 5,
    budget: float = 120,
    measure: MeasureSetting = measure_setting,
    finished: Sequence[BenchRow] = (),
) -> Iterator[BenchRow]:
    """Measure mechanisms at several sizes, and yield each row when it is done.

    Fused softmax, the reference, is always included. A setting whose N×N matrices exceed the
    available memory is not run. One that exceeds the budget is measured at an eighth, a quarter and
    half of its size, as far as the budget allows, and its time is extrapolated; the smaller sizes
    are rows of their own.

    Args:
        sizes: sides of the images in pixels, multiples of 16.
        mechanisms: names in :data:`~infsa_explain.bench.mechanisms.MECHANISMS`.
        like: all other fields of the settings.
        repeats, budget: see :func:`~infsa_explain.bench.measuring.measure_setting`.
        measure: measures one setting.
        finished: rows of an earlier run, whose settings are not measured again.

    Returns:
        An iterator of rows.

    Raises:
        ValueError: as :func:`plan`.
    """
    settings = plan(sizes, mechanisms, like, repeats=repeats, budget=budget)
    return _rows(settings, repeats, budget, _unless_finished(measure, finished))


def plan(
    sizes: Sequence[int],
    mechanisms: Sequence[str],
    like: Setting,
    *,
    repeats: int = 5,
    budget: float = 120,
) -> list[Setting]:
    """The settings that :func:`run_bench` measures.

    Args:
        sizes, mechanisms, like, repeats, budget: as for :func:`run_bench`.

    Returns:
        Settings in the order of their sizes.

    Raises:
        ValueError: if a mechanism is unknown, or a size, ``repeats`` or ``budget`` is out of range.
    """
    count().require("repeats", repeats)
    Range(0, LONGEST, open_low=True).require("budget", budget)
    names = list(dict.fromkeys([FUSED, *mechanisms]))
    return [
        replace(like, mechanism=name, size=size) for size in sorted(set(sizes)) for name in names
    ]


def _rows(
    settings: Sequence[Setting], repeats: int, budget: float, measure: MeasureSetting
) -> Iterator[BenchRow]:
    """Rows of the settings in order; a setting that is too slow follows its smaller sizes."""
    clock = _Clock(repeats, budget, measure)
    for setting in settings:
        row = clock.attempt(setting)
        if row is None:
            yield from clock.smaller_sizes(setting)
            times = clock.times[setting.mechanism]
            row = clock.row(setting, "extrapolated" if len(times) > 1 else "too slow")
        yield row


class _Clock:
    """Measures settings within a budget, and keeps the times for extrapolation.

    Attributes:
        times: mechanism → tokens → measured seconds.
    """

    def __init__(self, repeats: int, budget: float, measure: MeasureSetting) -> None:
        self._repeats, self._budget, self._measure = repeats, budget, measure
        self.times: dict[str, Times] = {name: {} for name in MECHANISMS}
        self._fused: dict[int, Estimate] = {}

    def attempt(self, setting: Setting) -> BenchRow | None:
        """A row, or None if the setting is too slow."""
        if least_bytes(setting) > available_memory(setting.device):
            return self.row(setting, "OOM (predicted)")
        expected = extrapolate(self.times[setting.mechanism], setting.tokens)
        if expected is not None and 2 * expected.value > self._budget:  # one warm-up, one timed
            return None
        try:
            measured = self._measure(setting, self._repeats, self._budget)
        except OutOfMemory:
            return self.row(setting, "OOM")
        except TooSlow:
            return None
        return self.row(setting, "measured", measured)

    def smaller_sizes(self, setting: Setting) -> Iterator[BenchRow]:
        """Rows at an eighth, a quarter and half of the size, until one is too slow."""
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
        """The row of a setting, with the speed relative to fused softmax if that is known."""
        times = self.times[setting.mechanism]
        seconds = None
        if measured is not None:
            times[setting.tokens] = measured.seconds
            seconds = Estimate.measured(measured.seconds)
        elif state == "extrapolated":
            seconds = extrapolate(times, setting.tokens)
        speed = self._speed_to_fused(setting, seconds)
        low, high = seconds.interval if seconds else (None, None)
        speed_low, speed_high = speed.interval if speed else (None, None)
        parameters, operations = count_operations(setting)
        energy = measured.joules if measured else None
        return BenchRow(
            **asdict(setting),
            tokens=setting.tokens,
            state=state,
            seconds=seconds.value if seconds else None,
            seconds_low=low,
            seconds_high=high,
            images_per_second=setting.batch_size / seconds.value if seconds else None,
            speed_to_fused=speed.value if speed else None,
            speed_to_fused_low=speed_low,
            speed_to_fused_high=speed_high,
            exponent=exponent(times),
            repeats=measured.repeats if measured else 0,
            peak_bytes=measured.peak_bytes if measured else None,
            joules_per_image=None if energy is None else energy / setting.batch_size,
            parameters=parameters,
            gflops=operations / 1e9,
        )

    def _speed_to_fused(self, setting: Setting, seconds: Estimate | None) -> Estimate | None:
        """Speed relative to fused softmax at the same size, whose row comes first."""
        if seconds is None:
            return None
        if setting.mechanism == FUSED:
            self._fused[setting.tokens] = seconds
            return Estimate.measured(1.0)  # a time divided by itself
        fused = self._fused.get(setting.tokens)
        return None if fused is None else ratio(fused, seconds)


def _unless_finished(measure: MeasureSetting, rows: Sequence[BenchRow]) -> MeasureSetting:
    """Wrap ``measure`` so that settings of finished rows return the row's values."""
    finished = {_setting(row): row for row in rows}

    def look_up_or_measure(setting: Setting, repeats: int, budget: float) -> Measurement:
        row = finished.get(setting)
        if row is None:
            return measure(setting, repeats, budget)
        if row.seconds is None or row.state != "measured":
            raise OutOfMemory if row.state.startswith("OOM") else TooSlow
        energy = row.joules_per_image
        joules = None if energy is None else energy * row.batch_size
        return Measurement(row.seconds, row.repeats, row.peak_bytes or 0, joules)

    return look_up_or_measure


_COLUMNS = [field.name for field in fields(BenchRow)]
#: Intervals, which files of earlier versions do not have.
_INTERVALS = [name for name in _COLUMNS if name.endswith(("_low", "_high"))]
_EARLIER = [name for name in _COLUMNS if name not in _INTERVALS]


class CsvFile:
    """``bench.csv``: each row is on disk as soon as it is measured.

    A file of an earlier version, without intervals, is rewritten with this version's columns. Its
    measured values are kept; extrapolated times, and ratios to one, are left out.

    Args:
        path: of the file.
        resume: continue an existing file.

    Attributes:
        rows: the rows of the existing file; an incomplete last line is removed.

    Raises:
        ValueError: if the file exists and ``resume`` is off, it is not such a file, or its folder
            is a file.
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
            lines, newline, incomplete = content.rpartition(b"\n")
            if not newline and not _starts_a_header(incomplete):
                raise ValueError(f"{path} is not a bench.csv; name another folder in --out")
            columns, self.rows = _rows_in(path, (lines + newline).decode())
            binary.truncate(len(lines + newline))
        except ValueError:
            binary.close()
            raise
        if columns == _EARLIER:
            binary.close()
            self.rows = _without_extrapolations(self.rows)
            _write(path, self.rows)
            binary = append_alone(path)
        self.file = io.TextIOWrapper(binary, encoding="utf-8", newline="")
        self.writer = csv.DictWriter(self.file, _COLUMNS)
        if not lines:
            self.writer.writeheader()

    def append(self, row: BenchRow) -> None:
        """Write a row, unless its setting has one already."""
        if _setting(row) in map(_setting, self.rows):
            return
        with naming(self.path, "the rows so far are kept, and --resume goes on from them"):
            self.writer.writerow(asdict(row))
            self.file.flush()
            os.fsync(self.file.fileno())

    def __enter__(self) -> CsvFile:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # after a full disk the buffer still holds the last row
            self.file.close()


def _setting(row: BenchRow) -> Setting:
    return Setting(**{field.name: getattr(row, field.name) for field in fields(Setting)})


def _starts_a_header(text: bytes) -> bool:
    return any(
        (",".join(columns) + "\r\n").encode().startswith(text) for columns in (_COLUMNS, _EARLIER)
    )


def _rows_in(path: Path, text: str) -> tuple[list[str], list[BenchRow]]:
    """Parse the columns and the rows of a file; intervals that have no column are None."""
    kinds = {field.name: str(field.type) for field in fields(BenchRow)}
    reader = csv.DictReader(io.StringIO(text, newline=""))
    columns = [*(reader.fieldnames or _COLUMNS)]
    if columns not in (_COLUMNS, _EARLIER):
        raise ValueError(f"{path} has other columns than a bench.csv of this version")
    no_intervals = dict.fromkeys(_INTERVALS)
    try:
        return columns, [
            BenchRow(
                **{**no_intervals, **{name: _value(kinds[name], line[name]) for name in columns}}
            )
            for line in reader
        ]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from None


def _without_extrapolations(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """Rows that were not extrapolated; no ratio is left of those without a measured reference."""
    reference = {
        _setting(row) for row in rows if row.mechanism == FUSED and row.state == "measured"
    }
    return [
        row
        if replace(_setting(row), mechanism=FUSED) in reference
        else replace(row, speed_to_fused=None)
        for row in rows
        if row.state != "extrapolated"
    ]


def _write(path: Path, rows: Sequence[BenchRow]) -> None:
    """Replace a file by these rows."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        writer.writeheader()
        writer.writerows(map(asdict, rows))


def _value(kind: str, text: str) -> Any:
    """Parse a field of :class:`BenchRow`."""
    if kind == "str":
        return text
    if kind == "bool":
        return {"True": True, "False": False}[text]
    if not text and kind.endswith("| None"):
        return None
    return int(text) if kind.startswith("int") else float(text)
