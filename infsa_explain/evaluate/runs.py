"""A run folder: what is needed to repeat a run, and its rows as they come."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

from .. import __version__
from ..data.samples import ImageData
from ..preprocessing import data_config
from .measuring import Measure
from .rows import Row
from .shards import Shard

__all__ = ["RunFolder", "describe_run", "fingerprint", "read_rows", "unfinished"]

#: Parts of the configuration that may differ between a run and its resumption.
CIRCUMSTANCES = ("versions", "device", "threads", "command", "source")


class RunFolder:
    """A folder that holds one run: its configuration, and its rows as they come.

    A context manager. The folder is made with the first row, so that a run that fails before it
    leaves nothing. Every shard of a run has its own ``rows.i-of-n.jsonl``, and a
    ``progress.i-of-n.json`` that says how many bytes of it, and how many images of each model, are
    done, so that a run killed at any moment resumes with none lost or doubled.

    Args:
        path: the folder.
        config: what is needed to repeat the run; goes to ``config.json``.
        shard: the part of the images that this process measures. Several write to one folder.
        force: write over a run that is there already; not for one of several shards.
        resume: go on with the run that is there, if there is one.

    Attributes:
        rows: of the shard that is resumed; empty otherwise.
        done: images of the shard that are done, by model.

    Raises:
        ValueError: if the folder holds a run and neither ``force`` nor ``resume`` is on, holds
            another run than the one to resume or to join, or is a file.
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
        self._progress = self.path / f"progress.{shard}.json"
        self._file: BinaryIO | None = None
        self._fresh = True
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; --out needs a folder")
        if not (self.path / "config.json").exists():
            return
        if force:
            if shard.parts > 1:
                raise ValueError(
                    f"{self.path} holds a run, and --force is not for one of several processes "
                    "that write to it: remove the folder, or choose another --out"
                )
        elif resume or (shard.parts > 1 and not self._rows.exists()):
            self._resume()
        else:
            raise ValueError(
                f"{self.path} holds a run already; choose another --out, --resume, or --force"
            )

    def _resume(self) -> None:
        theirs = json.loads((self.path / "config.json").read_text())
        own = json.loads(json.dumps(self.config))
        differ = _differences(own, theirs)
        if differ:
            raise ValueError(f"{self.path} holds another run: {'; '.join(differ)}")
        self._fresh = False
        state: dict[str, Any] = {"bytes": 0, "done": {}, "skipped": []}
        if self._progress.exists():
            state = json.loads(self._progress.read_text())
        self.done, self.skipped = state["done"], state["skipped"]
        if self._rows.exists():
            os.truncate(self._rows, state["bytes"])  # what was not committed is done again
            self.rows = [json.loads(line) for line in self._rows.read_bytes().splitlines()]

    def write(self, row: Row) -> None:
        """Append a row and flush it."""
        if self._file is None:
            self.path.mkdir(parents=True, exist_ok=True)
            if self._fresh:
                for old in [*self.path.glob("rows.*.jsonl"), *self.path.glob("progress.*.json")]:
                    if self.shard.parts == 1:
                        old.unlink()
                _write_whole(self.path / "config.json", self.config, self.shard)
            self._file = self._rows.open("ab")
        self._file.write(json.dumps(row).encode() + b"\n")
        self._file.flush()

    def skip(self, message: str) -> None:
        """Note that an image was left out."""
        self.skipped.append(message)

    def commit(self, model: str, images: int) -> None:
        """Note that all rows of so many more images of a model are written."""
        self.done[model] = self.done.get(model, 0) + images
        if self._file is not None:
            os.fsync(self._file.fileno())
            state = {"bytes": self._file.tell(), "done": self.done, "skipped": self.skipped}
            _write_whole(self._progress, state, self.shard)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()


def read_rows(folder: str | os.PathLike[str]) -> list[Row]:
    """The rows of a run that are committed, in the order of its shards.

    Raises:
        ValueError: if the folder holds no run.
    """
    rows: list[Row] = []
    for shard in _shards(Path(folder)):
        progress = Path(folder) / f"progress.{shard}.json"
        if progress.exists():
            size = json.loads(progress.read_text())["bytes"]
            with (Path(folder) / f"rows.{shard}.jsonl").open("rb") as file:
                rows += [json.loads(line) for line in file.read(size).splitlines()]
    return rows


def unfinished(folder: str | os.PathLike[str]) -> list[Shard]:
    """The shards of a run that have images left to do.

    Raises:
        ValueError: if the folder holds no run.
    """
    shards = _shards(Path(folder))
    config = json.loads((Path(folder) / "config.json").read_text())
    left = []
    for shard in shards:
        progress = Path(folder) / f"progress.{shard}.json"
        done = json.loads(progress.read_text())["done"] if progress.exists() else {}
        own = len(shard.of(config["data"]["images"]))
        if any(done.get(model, 0) < own for model in config["models"]):
            left.append(shard)
    return left


def _shards(folder: Path) -> list[Shard]:
    config = folder / "config.json"
    if not config.is_file():
        raise ValueError(f"{folder} holds no run: it has no config.json")
    count = json.loads(config.read_text())["shards"]
    return [Shard(i, count) for i in range(1, count + 1)]


def _write_whole(path: Path, content: dict[str, Any], shard: Shard) -> None:
    """A file that is there whole or not at all, whoever else writes it."""
    temporary = path.with_suffix(f".{shard}.tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.replace(path)


def _differences(own: Any, theirs: Any, where: str = "") -> list[str]:
    """What two configurations disagree on, circumstances aside."""
    if isinstance(own, dict) and isinstance(theirs, dict):
        keys = sorted(own.keys() | theirs.keys())
        return [
            difference
            for key in keys
            if where or key not in CIRCUMSTANCES
            for difference in _differences(own.get(key), theirs.get(key), f"{where} {key}".strip())
        ]
    return [] if own == theirs else [f"{where} is {own!r} now, was {theirs!r}"]


def describe_run(
    models: Mapping[str, nn.Module], data: ImageData, measures: Iterable[Measure]
) -> dict[str, Any]:
    """What is needed to repeat a run, and to explain a difference."""
    packages = ("torch", "timm", "numpy", "scipy")
    return {
        "models": {
            name: {
                "weights": fingerprint(model),
                "preprocessing": _plain(data_config(model)),
            }
            for name, model in models.items()
        },
        "data": {"name": data.name, "images": len(data), "fingerprint": data.fingerprint()},
        "measures": {each.name: asdict(each) for each in measures},  # type: ignore[call-overload]
        "versions": {"infsa_explain": __version__}
        | {package: version(package) for package in packages}
        | {"python": platform.python_version()},
        "device": str(next(iter(next(iter(models.values())).parameters())).device),
        "threads": torch.get_num_threads(),
    }


def fingerprint(model: nn.Module) -> str:
    """Hex digest of a model's weights."""
    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        digest.update(key.encode())
        digest.update(value.detach().cpu().float().numpy().tobytes())
    return digest.hexdigest()[:16]


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    return {key: list(v) if isinstance(v, tuple) else v for key, v in config.items()}
