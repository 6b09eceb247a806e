"""Commands in processes of their own, which the kernel kills at a file operation of choice."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

#: What the audit hooks of Python tell of files.
OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate")


def run(arguments: list[Any], folder: Path, moment: int | None = None) -> int:
    """The exit code of a command that is killed at its ``moment``-th operation in a folder.

    -9 where it was killed; what it would be otherwise, where it ended before that.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["infsa_explain.bench.measuring", "infsa_explain.training.loop"])
    process = context.Process(target=_child, args=(list(map(str, arguments)), folder, moment))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _child(arguments: list[str], folder: Path, moment: int | None) -> None:
    count = 0

    def watch(event: str, details: tuple[Any, ...]) -> None:
        nonlocal count
        if event not in OPERATIONS or not str(details[0]).startswith(str(folder)):
            return
        if count == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    _make_quick()
    sys.addaudithook(watch)
    sys.argv = ["infsa-explain", *arguments]
    from infsa_explain.__main__ import main

    main()


def _make_quick() -> None:
    """Train on little, and take a benchmark's word for how long it takes."""
    import torch

    from infsa_explain import bench
    from infsa_explain.training import loop as train
    from infsa_explain.training import recipes

    torch.set_num_threads(1)
    recipes.RECIPES = {"photo-digits": {"epochs": 3, "epoch_size": 12, "batch_size": 6}}
    train.HELD_OUT = train.CARD_HELD_OUT = 4
    bench.run_bench.__kwdefaults__["measure"] = lambda setting, repeats, budget: bench.Measurement(
        setting.tokens**2 / 1e6, repeats, 2**30, None
    )
