"""A measuring command at work: rows to a run folder as they come, tables at the end."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..interrupting import says_when_interrupted
from .output import one_line, print_table, progress
from .values import Source, title_of

if TYPE_CHECKING:
    from torch import nn

    from ..data import ImageData
    from ..evaluate import Measure, RunFolder, Shard
    from ..evaluate.tables import Table
    from ..report import Report

__all__ = ["Saving", "run"]

#: Models by name and checkpoint; the checkpoint is empty where a model has one at most.
Models = dict[tuple[str, str], "nn.Module"]


class Saving(NamedTuple):
    """Where rows are saved, and what happens on faults.

    Attributes:
        out: the run folder; None for none.
        force: write over a run that is there.
        resume: go on with a run that is there.
        strict: stop at an image that cannot be read, instead of leaving it out.
        shard: the part of the images, "i/n"; None for all.
    """

    out: Path | None
    force: bool
    resume: bool
    strict: bool
    shard: str | None


def run(
    models: Models,
    source: Source,
    measures: list[Measure],
    saving: Saving,
    *,
    conditions: str,
    as_json: bool,
    batch_size: int = 16,
    optional: bool = False,
) -> None:
    """Measure models on images, then print the results.

    Args:
        models: by name and checkpoint.
        source: of the images.
        measures: what to measure.
        saving: see :class:`Saving`.
        conditions: what the tables' titles say about the maps.
        as_json: print summaries as JSON; those of a single measure without its name.
        batch_size: images at a time.
        optional: leave out measures that the images cannot have, with a line on stderr.

    Raises:
        ValueError: an option does not fit, or images lack what is measured; and after the tables
            of the others, if a measure has no value for any image.
    """
    from ..evaluate.shards import share

    images = source.open()
    measures = [measure for measure in measures if _suits(measure, images, optional)]
    _check(models, images, measures, source)
    with share(saving.shard) as part:
        work = _Work(models, source, images, measures, saving, part.shard)
        work.measure(batch_size)
        part.wait()
        if not part.reports:
            return
    report = work.report()
    if report is None:
        return
    faults = report.faults()
    report = report.without(faults)
    if as_json and report.rows:
        summaries = report.plain()
        shown = summaries if len(measures) > 1 else next(iter(summaries.values()))
        print(json.dumps(shown, indent=2))
    elif not as_json:
        title = f"{images.name}, {len(images)} images{conditions}"
        _print_tables(report.tables(), title, saving.out)
    if faults:
        raise ValueError("; ".join(f"{name}: {fault}" for name, fault in faults.items()))


def _suits(measure: Measure, images: ImageData, optional: bool) -> bool:
    """Whether images have what is measured; if not and ``optional``, say so, else raise."""
    try:
        measure.check_data(images)
    except ValueError as error:
        if not optional:
            raise
        print(f"{measure.name} is left out: {one_line(str(error))}", file=sys.stderr)
        return False
    return True


def _check(models: Models, images: ImageData, measures: list[Measure], source: Source) -> None:
    """Raise a ValueError if a measure does not fit a model, or labels do not match."""
    from ..data import LabelMismatch
    from ..evaluate import labelled

    for measure in measures:
        for model in models.values():
            measure.check(model)
    for (name, _), model in models.items():
        try:
            labelled(model, images, measures, source.labels)
        except LabelMismatch as error:
            raise ValueError(f"{name}: {error}" if len(models) > 1 else str(error)) from None


def _print_tables(tables: list[Table], title: str, folder: Path | None) -> None:
    """Print tables, then the files of the run folder."""
    for i, table in enumerate(tables):
        if i:
            print()
        print_table(f"{title}: {table.title}", table.headings, table.cells)
        if table.note:
            print(table.note)
    if folder is not None and tables:
        files = ", ".join(sorted(path.name for path in folder.iterdir()))
        print(f"\nwritten to {folder}/: {files}")


class _Work:
    """Models × images × measures: measures, saves rows, and says what is left out.

    Attributes:
        rows: of this process, with those of an earlier run that it resumes.
    """

    def __init__(
        self,
        models: Models,
        source: Source,
        images: ImageData,
        measures: list[Measure],
        saving: Saving,
        shard: Shard,
    ) -> None:
        if saving.out is None and shard.parts > 1:
            raise ValueError(
                "a run that several processes share needs --out, where their rows meet"
            )
        self.models, self.source, self.images = models, source, images
        self.measures, self.saving, self.shard = measures, saving, shard
        self.indices = shard.of(len(images))
        self.rows: list[dict[str, Any]] = []
        self._folder: RunFolder | None = None
        self._done: dict[str, int] = {}
        self._unreadable = 0

    def measure(self, batch_size: int) -> None:
        """Measure every model on this process's images.

        Raises:
            ValueError: no image can be read.
        """
        total = len(self.indices) * len(self.models)
        with ExitStack() as stack:
            stack.enter_context(says_when_interrupted(lambda: self._say_what_is_done(total)))
            advance = stack.enter_context(progress("images", total, hidden=self.shard.part > 1))
            if self.saving.out is not None:
                self._folder = stack.enter_context(self._open_folder(self.saving.out))
                self.rows += self._folder.rows
            for name, checkpoint in self.models:
                self._measure_model(name, checkpoint, batch_size, advance)
        self._say_what_is_missing()
        if not self.rows and self.indices:
            raise ValueError(f"none of the {len(self.indices)} images could be read")

    def report(self) -> Report | None:
        """The report of all rows; None, with a line on stderr, where shards are to do."""
        from ..evaluate import read_rows, unfinished
        from ..report import Report, write_report

        folder = self.saving.out
        if folder is None:
            return Report(self.rows)
        if not self.indices:
            print(f"shard {self.shard} of {len(self.images)} images is empty", file=sys.stderr)
            return None
        if shards := unfinished(folder):
            print(f"{folder}: to do, shards {', '.join(map(str, shards))}", file=sys.stderr)
            return None
        return write_report(folder, read_rows(folder))

    def _open_folder(self, out: Path) -> RunFolder:
        """The run folder, with what is needed to repeat the run."""
        from ..evaluate import RunFolder, describe_run

        models = {title_of(key): model for key, model in self.models.items()}
        config = describe_run(models, self.images, self.measures, labels=self.source.labels) | {
            "source": self.source._asdict(),
            "command": shlex.join(["python", "-m", "infsa_explain", *sys.argv[1:]]),
        }
        saving = self.saving
        return RunFolder(out, config, shard=self.shard, force=saving.force, resume=saving.resume)

    def _measure_model(
        self, name: str, checkpoint: str, batch_size: int, advance: Callable[[int], None]
    ) -> None:
        """Measure one model on the images that are not done."""
        from ..data import Subset
        from ..evaluate import measure

        folder, title = self._folder, title_of((name, checkpoint))
        done = 0 if folder is None else folder.done.get(title, 0)
        self._done[title] = done
        advance(done)

        def on_image(count: int) -> None:
            self._done[title] += count
            if folder is not None:
                folder.commit(title, count)
            advance(count)

        to_do = self.indices[done:]
        self.rows += measure(
            self.models[name, checkpoint],
            Subset(self.images, to_do) if len(to_do) < len(self.images) else self.images,
            *self.measures,
            name=name,
            checkpoint=checkpoint,
            batch_size=batch_size,
            labels=self.source.labels,
            on_row=(lambda row: None) if folder is None else folder.write,
            on_image=on_image,
            on_skip=self._leave_out,
        )

    def _leave_out(self, message: str) -> None:
        """Say that an image cannot be read; with ``--strict``, raise."""
        if self.saving.strict:
            raise ValueError(message)
        self._unreadable += 1
        if self._folder is not None:
            self._folder.skip(message)
        print(f"left out: {one_line(message)}", file=sys.stderr)

    def _say_what_is_done(self, total: int) -> None:
        """On stderr: what is kept of an interrupted run, and how to go on."""
        out, done = self.saving.out, sum(self._done.values())
        if out is None:
            print("nothing is kept: with --out, --resume could go on from here", file=sys.stderr)
        elif done:
            print(
                f"{done} of {total} images are done and kept in {out}: the same command with "
                f"--resume goes on, `infsa-explain report {out}` shows what there is",
                file=sys.stderr,
            )

    def _say_what_is_missing(self) -> None:
        """On stderr: images and boxes that were left out."""
        if self._unreadable:
            print(
                f"{self._unreadable} times an image could not be read and was left out",
                file=sys.stderr,
            )
        dropped: dict[str, int] = getattr(self.images, "dropped_boxes", {})
        if dropped:
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))
            print(f"boxes left out: {reasons}", file=sys.stderr)
