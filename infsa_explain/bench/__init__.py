"""Time, memory, arithmetic and energy of InfSA and its rivals in one Vision Transformer.

May import: every room but ``cli``.
"""

from __future__ import annotations

from .measuring import Measurement, OutOfMemory, TooSlow, measure
from .mechanisms import FUSED, MECHANISMS, Mechanism
from .reporting import paper_table, plot, table, write
from .running import BenchRow, CsvFile, bench, exponent, extrapolate, plan
from .settings import Setting, build, count

__all__ = [
    "FUSED",
    "MECHANISMS",
    "CsvFile",
    "Measurement",
    "Mechanism",
    "OutOfMemory",
    "BenchRow",
    "Setting",
    "TooSlow",
    "bench",
    "build",
    "count",
    "exponent",
    "extrapolate",
    "measure",
    "paper_table",
    "plan",
    "plot",
    "table",
    "write",
]
