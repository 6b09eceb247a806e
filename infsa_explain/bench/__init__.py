"""Time, memory, arithmetic and energy of InfSA and its rivals in one Vision Transformer.

May import: every room except ``cli``.
"""

from __future__ import annotations

from .growth import Estimate, exponent, extrapolate, ratio
from .measuring import Measurement, OutOfMemory, TooSlow, measure_setting
from .mechanisms import FUSED, MECHANISMS, Mechanism
from .reporting import bench_plot, bench_table, paper_table, write_bench
from .running import BenchRow, CsvFile, plan, run_bench
from .settings import Setting, build, count_operations

__all__ = [
    "FUSED",
    "MECHANISMS",
    "BenchRow",
    "CsvFile",
    "Estimate",
    "Measurement",
    "Mechanism",
    "OutOfMemory",
    "Setting",
    "TooSlow",
    "bench_plot",
    "bench_table",
    "build",
    "count_operations",
    "exponent",
    "extrapolate",
    "measure_setting",
    "paper_table",
    "plan",
    "ratio",
    "run_bench",
    "write_bench",
]
