"""Energy counters: NVIDIA's management library (NVML) on GPUs, RAPL on CPUs."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

__all__ = ["joules_counter"]

POWERCAP = Path("/sys/class/powercap")


def joules_counter(device: str, powercap: Path = POWERCAP) -> Callable[[], float] | None:
    """A function that returns the joules used since this call, or None if no counter is readable.

    On a GPU the counter covers the whole board; it needs ``nvidia-ml-py``. On a CPU it covers all
    packages, with other processes; RAPL is usually readable only by root.

    Args:
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
        powercap: folder of the RAPL counters.
    """
    return _nvml(device) if device.startswith("cuda") else _rapl(powercap)


def _nvml(device: str) -> Callable[[], float] | None:
    try:
        nvml: Any = import_module("pynvml")
        nvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(torch.device(device)).uuid
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
        began = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception:  # no library, no driver, or no counter on this GPU
        return None
    return lambda: float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle) - began) / 1e3


def _rapl(powercap: Path) -> Callable[[], float] | None:
    """Sum over packages: ``intel-rapl:0``, ``intel-rapl:1``, also on AMD; names of parts have two
    colons. A counter wraps to 0 after ``max_energy_range_uj``.
    """
    try:
        counters = [
            (zone / "energy_uj", int((zone / "max_energy_range_uj").read_text()))
            for zone in sorted(powercap.glob("intel-rapl:*"))
            if zone.name.count(":") == 1
        ]
        began = [int(file.read_text()) for file, _ in counters]
    except (OSError, ValueError):
        return None
    if not counters:
        return None

    def used() -> float:
        ends = (int(file.read_text()) for file, _ in counters)
        return sum(
            (end - start) % (largest + 1) / 1e6
            for end, start, (_, largest) in zip(ends, began, counters, strict=True)
        )

    return used
