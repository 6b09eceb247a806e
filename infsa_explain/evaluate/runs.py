"""A run folder: what is needed to repeat a run, and its rows as they come."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch
from torch import nn

from .. import __version__
from ..data.matching import Labels
from ..data.samples import ImageData
from ..files import append_alone, check_folder, naming, read_json, write_text
from ..models.checkpoints import fingerprint
from ..vits.preprocessing import data_config
from .labelling import labelled
from .registry import Measure
from .rows import Row
from .shards import Shard

__all__ = ["RunFolder", "describe_run", "fingerprint", "read_rows", "unfinished"]

#: What to do where the disk is full.
KEPT = "the rows so far are kept, and --resume goes on from them once there is space"
#: Parts of the configuration that may differ between a run and its resumption.
CIRCUMSTANCES = ("versions", "device", "threads", "command", "source")
#: What is said of a run in its folder, and is not true of one that is written over it.
RESULTS = ("summary.json", "summary.md", "report.html")


class RunFolder:
    """A folder that holds one run: its configuration, and its rows as they come.

    A context manager. The folder is made with the first row, so that a run that fails before it
    leaves nothing. Every shard of a run has its own ``rows.i-of-n.jsonl``, which one process at a
    time writes, and a ``progress.i-of-n.json`` that says how many bytes of it, and how many images
    of each model, are done, so that a run killed at any moment resumes with none lost or doubled.

    Args:
        path: the folder.
        config: what is needed to repeat the run; goes to ``config.json``.
        shard: the part of the images that this process measures. Several write to one folder.
        force: write over a run that is there already; not for one of several shards.
        resume: go on with the run that is there, if there is one.

    Attributes:
        rows: of the shard that is resumed, once it is entered; empty otherwise.
        done: images of the shard that are done, by model.

    Raises:
        ValueError: if the folder holds a run and neither ``force`` nor ``resume`` is on, holds
            another run than the one to resume or to join, one that is damaged or that another
            process writes to, or is a file.
        OSError: on writing, for a disk that is full; the rows that are committed stay.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: dict[str, Any],
        *,
        shard: Shard = Shard(),  # noqa: B008  (it is immutable)
        force: bool = False,
        resume: bool = False,
    ) -> None:
        self.path = Path(path)
        self.config = config | {"shards": shard.parts}
        self.shard = shard
        self.rows: list[Row] = []
        self.done: dict[str, int] = {}
        self.skipped: list[str] = []
        self._rows = self.path / f"rows.{shard}.jsonl"
        self._file: BinaryIO | None = None
        check_folder(path)  # as given: Path("") is the current folder
        self._force, self._resumes = force, False
        joins = shard.parts > 1 and not self._rows.exists()
        if self._holds_run():
            if force:
                self._refuse_forced_shard()
            elif resume or joins:
                self._check_same()
                self._resumes = resume
            else:
                self._refuse()

    def _refuse_forced_shard(self) -> None:
        """One of several processes must not remove what the others write."""
        if self.shard.parts > 1:
            raise ValueError(
                f"{self.path} holds a run, and --force is not for one of several processes that "
                "write to it: remove the folder, or choose another --out"
            )

    def _holds_run(self) -> bool:
        """Whether there is a run, also one that has lost its configuration."""
        return (self.path / "config.json").exists() or any(self.path.glob("rows.*.jsonl"))

    def _refuse(self) -> NoReturn:
        raise ValueError(
            f"{self.path} holds a run already; choose another --out, --resume, or --force"
        )

    def _check_same(self) -> None:
        asked = json.loads(json.dumps(self.config))
        if differ := _differences(asked, _config(self.path)):
            raise ValueError(f"{self.path} holds another run: {'; '.join(differ)}")

    def _start(self) -> BinaryIO:
        """Make the folder of a new run, or join one that another process has begun meanwhile."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not self._holds_run():
            _write(self.path / "config.json", self.config)
        elif self._force:
            for pattern in ("rows.*.jsonl", "progress.*.json", *RESULTS):
                for old in self.path.glob(pattern):
                    old.unlink()
            _write(self.path / "config.json", self.config)
        elif self.shard.parts == 1:
            self._refuse()
        else:
            self._check_same()
        self._file = append_alone(self._rows)
        if self._file.tell():
            self._refuse()
        return self._file

    def write(self, row: Row) -> None:
        """Append a row and flush it."""
        with naming(self._rows, KEPT):
            file = self._file or self._start()
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()

    def skip(self, message: str) -> None:
        """Note that an image was left out."""
        self.skipped.append(message)

    def commit(self, model: str, images: int) -> None:
        """Note that all rows of so many more images of a model are written."""
        self.done[model] = self.done.get(model, 0) + images
        if self._file is not None:
            with naming(self._rows, KEPT):
                os.fsync(self._file.fileno())
                state = {"bytes": self._file.tell(), "done": self.done, "skipped": self.skipped}
                _write(self.path / f"progress.{self.shard}.json", state)

    def __enter__(self) -> RunFolder:
        if self._resumes:
            self._file = append_alone(self._rows)
            try:
                self.rows = _committed(self.path, self.shard)
            except ValueError:
                self._file.close()
                raise
            state = _progress(self.path, self.shard)
            self.done, self.skipped = state["done"], state["skipped"]
            self._file.truncate(state["bytes"])  # what was not committed is done again
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            with suppress(OSError):  # a row that did not fit on the disk is still in its buffer
                self._file.close()


def read_rows(folder: str | os.PathLike[str]) -> list[Row]:
    """The rows of a run that are committed, in the order of its shards.

    Raises:
        ValueError: if the folder holds no run, or one that is damaged.
    """
    path = Path(folder)
    return [row for shard in _shards(path) for row in _committed(path, shard)]


def unfinished(folder: str | os.PathLike[str]) -> list[Shard]:
    """The shards of a run that have images left to do.

    Raises:
        ValueError: if the folder holds no run.
    """
    path = Path(folder)
    config = _config(path)
    left = []
    for shard in _shards(path):
        done = _progress(path, shard)["done"]
        own = len(shard.of(config["data"]["images"]))
        if any(done.get(model, 0) < own for model in config["models"]):
            left.append(shard)
    return left


def _config(folder: Path) -> dict[str, Any]:
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} holds no run: it has no config.json")
    config: dict[str, Any] = read_json(folder / "config.json")
    return config


def _shards(folder: Path) -> list[Shard]:
    count = _config(folder)["shards"]
    return [Shard(i, count) for i in range(1, count + 1)]


def _progress(folder: Path, shard: Shard) -> dict[str, Any]:
    """How far a shard is: bytes of its rows, images of each model, and what was left out."""
    path = folder / f"progress.{shard}.json"
    state: dict[str, Any] = {"bytes": 0, "done": {}, "skipped": []}
    return read_json(path) if path.exists() else state


def _committed(folder: Path, shard: Shard) -> list[Row]:
    """The rows of a shard that are committed."""
    path, size = folder / f"rows.{shard}.jsonl", _progress(folder, shard)["bytes"]
    content = path.read_bytes()[:size] if path.exists() else b""
    if len(content) < size:
        raise ValueError(
            f"{path} has lost rows: {size} bytes were written, {len(content)} are left; remove it "
            f"and {folder / f'progress.{shard}.json'} to do its images again"
        )
    try:
        return [json.loads(line) for line in content.splitlines()]
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _write(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def _differences(now: Any, before: Any, where: str = "") -> list[str]:
    """What two configurations disagree on, circumstances aside."""
    if isinstance(now, dict) and isinstance(before, dict):
        keys = sorted(now.keys() | before.keys())
        return [
            difference
            for key in keys
            if where or key not in CIRCUMSTANCES
            for difference in _differences(now.get(key), before.get(key), f"{where} {key}".strip())
        ]
    return [] if now == before else [f"{where} is {now!r} now, was {before!r}"]


def describe_run(
    models: Mapping[str, nn.Module],
    data: ImageData,
    measures: Sequence[Measure],
    *,
    labels: Labels = "auto",
) -> dict[str, Any]:
    """What is needed to repeat a run, and to explain a difference.

    Raises:
        ValueError: the labels are not a model's, as :func:`infsa_explain.measure`.
    """
    packages = ("torch", "timm", "numpy", "scipy")
    return {
        "models": {
            name: {
                "weights": fingerprint(model),
                "preprocessing": _plain(data_config(model)),
                "labels": labelled(model, data, measures, labels).how,
            }
            for name, model in models.items()
        },
        "data": {"name": data.name, "images": len(data), "fingerprint": data.fingerprint()},
        "measures": {m.name: asdict(m) for m in measures},  # type: ignore[call-overload]
        "versions": {"infsa_explain": __version__}
        | {package: version(package) for package in packages}
        | {"python": platform.python_version()},
        "device": str(next(iter(next(iter(models.values())).parameters())).device),
        "threads": torch.get_num_threads(),
    }


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    return {key: list(v) if isinstance(v, tuple) else v for key, v in config.items()}
