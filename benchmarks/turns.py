"""What the comparisons share: contenders that take turns, ratios, versions, optional packages."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from types import ModuleType
from typing import Any

Calls = dict[str, Callable[[], Any]]


def take_turns(calls: Calls, runs: int) -> dict[str, tuple[float, float]]:
    """Seconds of each call, and its ratio to the first of the same turn: medians over the runs.

    Each is called once before, to warm up. The clock's time: let nothing else run.
    """
    for call in calls.values():
        call()
    turns = [{name: _seconds(call) for name, call in calls.items()} for _ in range(runs)]
    first = next(iter(calls))
    return {
        name: (
            statistics.median(turn[name] for turn in turns),
            statistics.median(turn[name] / turn[first] for turn in turns),
        )
        for name in calls
    }


def report(calls: Calls, runs: int, indent: str = "") -> None:
    """Print what :func:`take_turns` finds, a line each."""
    for name, (seconds, ratio) in take_turns(calls, runs).items():
        print(f"{indent}{name:44}{1e3 * seconds:12.2f} ms{ratio:9.2f}×", flush=True)


def versions(*packages: str) -> str:
    """Names and versions of packages, for a headline."""
    return ", ".join(f"{package} {version(package)}" for package in packages)


def optional(name: str) -> ModuleType | None:
    """A package that the comparison can do without; says so where it is missing."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        print(f"{name} is skipped: {error}")
        return None
    print(versions(name))
    return module


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
