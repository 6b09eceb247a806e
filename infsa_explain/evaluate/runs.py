"""A run folder: what is needed to repeat a run, and its rows as they come."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
from torch import Tensor, nn

from .. import __version__
from ..data.samples import ImageData
from ..preprocessing import data_config

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["Row", "RunFolder", "describe_run", "fingerprint", "number"]

#: One line of ``rows.jsonl``.
Row = dict[str, Any]


#: Parts of the configuration that may differ between a run and its resumption.
CIRCUMSTANCES = ("versions", "device", "threads")


class RunFolder:
    """A folder that holds one run: its configuration, and its rows as they come.

    A context manager. The folder is made with the first row, so that a run that fails before it
    leaves nothing. ``progress.json`` says how many bytes of ``rows.jsonl`` and how many images of
    each model are done, so that a run killed at any moment resumes with none lost or doubled.

    Args:
        path: the folder.
        config: what is needed to repeat the run; goes to ``config.json``.
        force: write over a run that is there already.
        resume: go on with the run that is there, if there is one.

    Attributes:
        rows: of the run that is resumed; empty otherwise.
        done: images that are done, by model.

    Raises:
        ValueError: if the folder holds a run and neither ``force`` nor ``resume`` is on, holds
            another run than the one to resume, or is a file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: dict[str, Any],
        *,
        force: bool = False,
        resume: bool = False,
    ) -> None:
        self.path = Path(path)
        self.config = config
        self.rows: list[Row] = []
        self.done: dict[str, int] = {}
        self._file: BinaryIO | None = None
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; --out needs a folder")
        if (self.path / "config.json").exists():
            if resume:
                self._resume()
            elif not force:
                raise ValueError(
                    f"{self.path} holds a run already; choose another --out, --resume, or --force"
                )

    def _resume(self) -> None:
        theirs = json.loads((self.path / "config.json").read_text())
        own = json.loads(json.dumps(self.config))
        differ = _differences(own, theirs)
        if differ:
            raise ValueError(f"{self.path} holds another run: {'; '.join(differ)}")
        progress, rows = self.path / "progress.json", self.path / "rows.jsonl"
        state: dict[str, Any] = {"bytes": 0, "done": {}}
        if progress.exists():
            state = json.loads(progress.read_text())
        self.done = state["done"]
        if rows.exists():
            os.truncate(rows, state["bytes"])  # what was not committed is done again
            self.rows = [json.loads(line) for line in rows.read_bytes().splitlines()]

    def write(self, row: Row) -> None:
        """Append a row to ``rows.jsonl`` and flush it."""
        if self._file is None:
            self.path.mkdir(parents=True, exist_ok=True)
            if not self.done:
                (self.path / "progress.json").unlink(missing_ok=True)
                _write_whole(self.path / "config.json", self.config)
            self._file = (self.path / "rows.jsonl").open("ab" if self.done else "wb")
        self._file.write(json.dumps(row).encode() + b"\n")
        self._file.flush()

    def commit(self, model: str, images: int) -> None:
        """Note that all rows of so many more images of a model are written."""
        if self._file is not None:
            os.fsync(self._file.fileno())
            self.done[model] = self.done.get(model, 0) + images
            state = {"bytes": self._file.tell(), "done": self.done}
            _write_whole(self.path / "progress.json", state)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()


def _write_whole(path: Path, content: dict[str, Any]) -> None:
    """A file that is there whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.replace(path)


def _differences(own: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """What two configurations disagree on, circumstances aside."""
    differ = []
    for key in sorted((own.keys() | theirs.keys()) - set(CIRCUMSTANCES)):
        a, b = own.get(key), theirs.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            differ += [
                f"{key} {name} is {a.get(name)!r} now, was {b.get(name)!r}"
                for name in sorted(a.keys() | b.keys())
                if a.get(name) != b.get(name)
            ]
        elif a != b:
            differ.append(f"{key} is {a!r} now, was {b!r}")
    return differ


def describe_run(
    command: str, models: dict[str, nn.Module], data: ImageData, options: DataclassInstance
) -> dict[str, Any]:
    """What is needed to repeat a run, and to explain a difference."""
    packages = ("torch", "timm", "numpy", "scipy")
    return {
        "command": command,
        "models": {
            name: {
                "weights": fingerprint(model),
                "preprocessing": _plain(data_config(model)),
            }
            for name, model in models.items()
        },
        "data": {"name": data.name, "images": len(data), "fingerprint": data.fingerprint()},
        "options": asdict(options),
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


def number(value: Tensor) -> float | None:
    """A scalar for a row, None where it is undefined: JSON has no NaN."""
    return float(value) if value.isfinite() else None
