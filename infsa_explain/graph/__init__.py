"""Token graphs as linear operators, their certified solvers and their centralities; no models.

May import: ``attention``.
"""

from __future__ import annotations

from .centrality import (
    Centrality,
    Perron,
    degree,
    doob_visits,
    katz,
    pagerank,
    perron,
    series,
    visits,
)
from .operator import AttentionOperator

__all__ = [
    "AttentionOperator",
    "Centrality",
    "Perron",
    "degree",
    "doob_visits",
    "katz",
    "pagerank",
    "perron",
    "series",
    "visits",
]
