"""A run folder as a report needs it: its rows summarised, and what is missing."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..evaluate import read_rows, unfinished
from .writing import Report

__all__ = ["Run", "read_run"]


@dataclass(frozen=True)
class Run:
    """A run folder that has been read.

    Attributes:
        folder: where it lies.
        config: of the run.
        report: of the rows that are done.
        missing: what is not done, a sentence each.
        skipped: what was said of each image that was left out.
    """

    folder: Path
    config: dict[str, Any]
    report: Report
    missing: list[str]
    skipped: list[str]


def read_run(folder: str | os.PathLike[str]) -> Run:
    """Read a run folder, whole or not.

    Raises:
        ValueError: if it holds no run, or no image of it is done.
    """
    path = Path(folder)
    try:
        config = json.loads((path / "config.json").read_text())
        lacking = {"models", "data", "measures", "shards"} - config.keys()
    except FileNotFoundError:
        raise ValueError(f"{path} holds no run: it has no config.json") from None
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"{path / 'config.json'} is not that of a run: {error}") from None
    if lacking:
        raise ValueError(f"{path} holds no run: its config.json lacks {', '.join(sorted(lacking))}")
    rows = read_rows(path)
    if not rows:
        raise ValueError(f"{path}: no image is done yet; go on with the run's command, --resume")
    progress = [json.loads(part.read_text()) for part in sorted(path.glob("progress.*.json"))]
    return Run(
        path,
        config,
        Report(rows),
        _missing(path, config, progress),
        list(dict.fromkeys(message for part in progress for message in part["skipped"])),
    )


def _missing(folder: Path, config: dict[str, Any], progress: Sequence[dict[str, Any]]) -> list[str]:
    """What a run has left to do."""
    shards = unfinished(folder)
    if not shards:
        return []
    total = config["data"]["images"]
    done = {m: sum(part["done"].get(m, 0) for part in progress) for m in config["models"]}
    pending = [
        f"{done[model]} of {total} images of {model}" for model in done if done[model] < total
    ]
    parts = f" In shards {', '.join(map(str, shards))}." if config["shards"] > 1 else ""
    return [f"This run is not finished. Done: {', '.join(pending)}.{parts}"]
