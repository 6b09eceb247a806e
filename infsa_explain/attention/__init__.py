"""Infinite Self-Attention: functions of queries, keys and values, layers in timm's slot, kernels.

May import: nothing of the package but the ground floor.
"""

from __future__ import annotations

from .functional import INITIAL_GAMMA as INITIAL_GAMMA
from .functional import linear_infsa, linear_weights, pure_infsa, token_graph

__all__ = ["linear_infsa", "linear_weights", "pure_infsa", "token_graph"]
