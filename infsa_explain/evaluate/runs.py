"""A run folder: what is needed to repeat a run, and its rows as they come."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

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


class RunFolder:
    """A folder that holds one run: its configuration, and its rows as they come.

    A context manager. The folder is made with the first row, so that a run that fails before it
    leaves nothing.

    Args:
        path: the folder.
        config: what is needed to repeat the run; goes to ``config.json``.
        force: write over a run that is there already.

    Raises:
        ValueError: if the folder holds a run and ``force`` is off, or is a file.
    """

    def __init__(
        self, path: str | os.PathLike[str], config: dict[str, Any], *, force: bool = False
    ) -> None:
        self.path = Path(path)
        self.config = config
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; --out needs a folder")
        if (self.path / "config.json").exists() and not force:
            raise ValueError(f"{self.path} holds a run already; choose another --out, or --force")
        self._rows: TextIO | None = None

    def write(self, row: Row) -> None:
        """Append a row to ``rows.jsonl`` and flush it."""
        if self._rows is None:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / "config.json").write_text(json.dumps(self.config, indent=2) + "\n")
            self._rows = (self.path / "rows.jsonl").open("w")
        self._rows.write(json.dumps(row) + "\n")
        self._rows.flush()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._rows is not None:
            self._rows.close()


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
