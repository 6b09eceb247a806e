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
from .options import Source
from .output import one_line, print_table, progress

if TYPE_CHECKING:
    from torch import nn

    from ..data import ImageData
    from ..evaluate import Measure, RunFolder, Shard
    from ..evaluate.tables import Table

__all__ = ["Saving", "run"]


class Saving(NamedTuple):
    """Where the rows of a command go, and what becomes of what is there and of faults."""

    out: Path | None
    force: bool
    resume: bool
    strict: bool
    shard: str | None


def run(
    models: dict[tuple[str, str], nn.Module],
    source: Source,
    measures: list[Measure],
    saving: Saving,
    *,
    conditions: str,
    as_json: bool,
    batch_size: int = 16,
    optional: bool = False,
) -> None:
    """Measure models on images, then print what came out.

    Args:
        models: by name and checkpoint.
        source: of the images.
        measures: what to measure.
        saving: see :class:`Saving`.
        conditions: what the tables' titles say of the maps.
        as_json: print summaries as JSON, those of a single measure bare.
        batch_size: images at a time.
        optional: leave out, and say so, what the images cannot be measured by.

    Raises:
        ValueError: for options that will not do, images that lack what is measured, or a measure
            that has no value for any image; after the tables of the others.
    """
    from ..data import LabelMismatch
    from ..evaluate import labelled, read_rows, unfinished
    from ..evaluate.shards import share
    from ..report import Report, write_report

    images = source.open()
    measures = [each for each in measures if _suits(each, images, optional)]
    for each in measures:
        for model in models.values():
            each.check(model)
    for (name, _), model in models.items():
        try:
            labelled(model, images, measures, source.matching())
        except LabelMismatch as error:
            raise ValueError(f"{name}: {error}" if len(models) > 1 else str(error)) from None
    with share(saving.shard) as part:
        work = _Run(models, source, images, measures, saving, part.shard)
        work.measure(batch_size)
        part.wait()
        if not part.reports:
            return
    folder = None if work.folder is None else work.folder.path
    if folder is None:
        report = Report(work.rows)
    else:
        if not part.shard.of(len(images)):
            print(f"shard {part.shard} of {len(images)} images is empty", file=sys.stderr)
            return
        if left := unfinished(folder):
            print(f"{folder}: to do, shards {', '.join(map(str, left))}", file=sys.stderr)
            return
        report = write_report(folder, read_rows(folder))
    faults = report.faults()
    report = report.without(faults)
    if as_json and report.rows:
        plain = report.plain()
        print(json.dumps(plain if len(measures) > 1 else next(iter(plain.values())), indent=2))
    elif not as_json:
        title = f"{images.name}, {len(images)} images{conditions}"
        _print_tables(report.tables(), title, folder)
    if faults:
        raise ValueError("; ".join(f"{measure}: {fault}" for measure, fault in faults.items()))


def _suits(measure: Measure, images: ImageData, optional: bool) -> bool:
    """Whether images have what is measured; where that is optional it is said, else raised."""
    try:
        measure.check_data(images)
    except ValueError as error:
        if not optional:
            raise
        print(f"{measure.name} is left out: {one_line(str(error))}", file=sys.stderr)
        return False
    return True


def _print_tables(tables: list[Table], title: str, folder: Path | None) -> None:
    """On stdout, with what was written."""
    for i, table in enumerate(tables):
        if i:
            print()
        print_table(f"{title}: {table.title}", table.headings, table.cells)
        if table.note:
            print(table.note)
    if folder is not None and tables:
        files = ", ".join(sorted(path.name for path in folder.iterdir()))
        print(f"\nwritten to {folder}/: {files}")


class _Run:
    """Models × images × measures at work: rows to memory or a folder, progress, what is left out.

    Attributes:
        rows: those of this process, with those of an earlier run that it goes on with.
        folder: the run folder, or None.
    """

    def __init__(
        self,
        models: dict[tuple[str, str], nn.Module],
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
        self.models = {" ".join(filter(None, key)): (key, m) for key, m in models.items()}
        self.source, self.images, self.measures = source, images, measures
        self.saving, self.shard = saving, shard
        self.indices = shard.of(len(images))
        self.rows: list[dict[str, Any]] = []
        self.folder: RunFolder | None = None
        self._finished: dict[str, int] = {}
        self._left_out = 0

    def measure(self, batch_size: int) -> None:
        """Measure every model on this process's images.

        Raises:
            ValueError: if no image can be read.
        """
        total = len(self.indices) * len(self.models)
        with ExitStack() as stack:
            stack.enter_context(says_when_interrupted(lambda: self._say_what_is_done(total)))
            advance = stack.enter_context(progress("images", total, hidden=self.shard.part > 1))
            if self.saving.out is not None:
                self.folder = stack.enter_context(self._open_folder(self.saving.out))
                self.rows += self.folder.rows
            for key in self.models:
                self._measure_model(key, batch_size, advance)
        _say_what_is_missing(self.images, self._left_out)
        if not self.rows and self.indices:
            raise ValueError(f"none of the {len(self.indices)} images could be read")

    def _open_folder(self, out: Path) -> RunFolder:
        from ..evaluate import RunFolder, describe_run

        models = {key: model for key, (_, model) in self.models.items()}
        labels = self.source.matching()
        config = describe_run(models, self.images, self.measures, labels=labels) | {
            "source": self.source._asdict(),
            "command": shlex.join(["python", "-m", "infsa_explain", *sys.argv[1:]]),
        }
        saving = self.saving
        return RunFolder(out, config, shard=self.shard, force=saving.force, resume=saving.resume)

    def _measure_model(self, key: str, batch_size: int, advance: Callable[[int], None]) -> None:
        """Measure one model on the images that are not done."""
        from ..data import Subset
        from ..evaluate import measure

        folder, ((name, checkpoint), model) = self.folder, self.models[key]
        done = 0 if folder is None else folder.done.get(key, 0)
        self._finished[key] = done
        advance(done)

        def on_image(count: int) -> None:
            self._finished[key] += count
            if folder is not None:
                folder.commit(key, count)
            advance(count)

        left = self.indices[done:]
        self.rows += measure(
            model,
            Subset(self.images, left) if len(left) < len(self.images) else self.images,
            *self.measures,
            name=name,
            checkpoint=checkpoint,
            batch_size=batch_size,
            labels=self.source.matching(),
            on_row=(lambda row: None) if folder is None else folder.write,
            on_image=on_image,
            on_skip=self._leave_out,
        )

    def _leave_out(self, message: str) -> None:
        """Say that an image cannot be read; or stop, with --strict."""
        if self.saving.strict:
            raise ValueError(message)
        self._left_out += 1
        if self.folder is not None:
            self.folder.skip(message)
        print(f"left out: {one_line(message)}", file=sys.stderr)

    def _say_what_is_done(self, total: int) -> None:
        """On stderr: what is kept of a run that is interrupted, and how to go on."""
        out, images = self.saving.out, sum(self._finished.values())
        if out is None:
            print("nothing is kept: with --out, --resume could go on from here", file=sys.stderr)
        elif images:
            print(
                f"{images} of {total} images are done and kept in {out}: the same command with "
                f"--resume goes on, `infsa-explain report {out}` shows what there is",
                file=sys.stderr,
            )


def _say_what_is_missing(images: ImageData, skipped: int) -> None:
    """On stderr: images and boxes that were left out."""
    if skipped:
        print(f"{skipped} times an image could not be read and was left out", file=sys.stderr)
    dropped: dict[str, int] = getattr(images, "dropped_boxes", {})
    if dropped:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))
        print(f"boxes left out: {reasons}", file=sys.stderr)
