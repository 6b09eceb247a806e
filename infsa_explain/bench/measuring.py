"""Time, peak memory and energy of one setting, in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from threading import Timer
from time import perf_counter, process_time
from typing import Any

import torch

from ..memory import out_of_memory
from .energy import joules_counter
from .settings import Setting, available_memory, build, work

__all__ = ["Measurement", "OutOfMemory", "TooSlow", "measure_here", "measure_setting"]

#: Exit codes: our own for a process that takes too long, and the kernel's when memory runs out.
SLOW, KILLED = 75, -9


class TooSlow(Exception):
    """A setting takes longer than its budget."""


class OutOfMemory(Exception):
    """A setting needs more memory than is available."""


@dataclass(frozen=True)
class Measurement:
    """Costs of one setting.

    Attributes:
        seconds: median time of one batch. With one thread on a CPU it is the processor time, which
            depends little on other work on the machine; otherwise the wall-clock time.
        repeats: number of batches that were timed.
        peak_bytes: on a CPU the peak resident set of the whole process, with Python and PyTorch; on
            a GPU the peak of PyTorch's allocations, with the weights.
        joules: energy of one batch, or None if it cannot be measured.
    """

    seconds: float
    repeats: int
    peak_bytes: int
    joules: float | None


def measure_setting(setting: Setting, repeats: int = 5, budget: float = 120) -> Measurement:
    """Measure a setting in a new process, so that its peak memory is its own.

    A script must call this under ``if __name__ == "__main__"``, as always with ``multiprocessing``.

    Args:
        setting: what to measure.
        repeats: number of batches to time, after one warm-up; fewer once half the budget is spent.
        budget: seconds for everything, from building the model to the last batch.

    Returns:
        The costs.

    Raises:
        TooSlow: if the budget is exceeded.
        OutOfMemory: if memory runs out.
        RuntimeError: if the process fails for another reason.
    """
    context = _context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, setting, repeats, budget), daemon=True)
    process.start()
    sender.close()
    try:
        result = receiver.recv()
    except EOFError:  # the process ended without a result
        process.join()
        if process.exitcode == SLOW:
            result = TooSlow(f"{setting} takes more than {budget:g} s")
        elif process.exitcode == KILLED:
            result = OutOfMemory(str(setting))
        else:
            result = RuntimeError(f"{setting} ended with exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()
    if isinstance(result, Measurement):
        return result
    raise result


def _context() -> Any:
    """Start new processes from a server that has only done the imports, where that is supported."""
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    context.set_forkserver_preload([__name__])
    return context


def _child(sender: Connection, setting: Setting, repeats: int, budget: float) -> None:
    """Send a measurement, or an exception to raise."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it, and kills this process
    if setting.compiled:  # compile in this process: the compiler's workers would outlive it
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    if setting.device == "cpu":
        _limit_memory(available_memory())
    alarm = Timer(budget, os._exit, [SLOW])
    alarm.daemon = True
    alarm.start()
    result: Measurement | Exception
    try:
        result = measure_here(setting, repeats, budget / 2)
    except Exception as error:
        full = out_of_memory(error)
        reason = f"{setting} failed: {type(error).__name__}: {error}"
        result = OutOfMemory(str(setting)) if full else RuntimeError(reason)
    alarm.cancel()
    sender.send(result)


def measure_here(setting: Setting, repeats: int = 5, enough: float = 60) -> Measurement:
    """Measure a setting in this process; on a CPU the peak memory is that of the process so far.

    Args:
        setting: what to measure.
        repeats: number of batches to time, after one warm-up.
        enough: seconds after which no further batch is started.

    Returns:
        The costs.
    """
    torch.manual_seed(0)
    began = perf_counter()
    shape = (setting.batch_size, 3, setting.size, setting.size)
    images = torch.randn(shape).to(setting.device)
    model = build(setting).to(setting.device)
    run = torch.compile(model) if setting.compiled else model
    once: Callable[[], None]
    if setting.train:
        optimiser = torch.optim.AdamW(model.parameters())

        def once() -> None:
            optimiser.zero_grad()
            work(setting, run, images)
            optimiser.step()
    else:

        def once() -> None:
            work(setting, run, images)

    _seconds(once, setting.device)
    joules = joules_counter(setting.device)
    times = [_seconds(once, setting.device)]
    while len(times) < repeats and perf_counter() - began < enough:
        times.append(_seconds(once, setting.device))
    energy = None if joules is None else joules() / len(times)
    return Measurement(median(times), len(times), _peak_bytes(setting.device), energy)


def _seconds(once: Callable[[], None], device: str) -> float:
    clock = process_time if device == "cpu" and torch.get_num_threads() == 1 else perf_counter
    began = clock()
    once()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return clock() - began


def _peak_bytes(device: str) -> int:
    if device != "cpu":
        return torch.cuda.max_memory_allocated(device)
    try:  # unlike getrusage, this excludes the peak of the parent process
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _limit_memory(size: int) -> None:
    """Make allocations beyond ``size`` bytes fail in this process, instead of exhausting memory."""
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (size, size))
