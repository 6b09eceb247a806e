"""Map methods in one registry, and :func:`explain`.

A method is a function with :func:`register_method`: it scores each head, each layer, or the whole
model; ``explain`` averages. May import: ``models``, ``vits`` and what is below them.
"""

from __future__ import annotations

from . import (  # noqa: F401  (their methods register themselves)
    centralities,
    controls,
    gradcam_maps,
    gradient_centralities,
    pixel_maps,
    relevance_maps,
    rollouts,
)
from .explaining import explain, explain_graphs
from .explanation import Explanation
from .registry import (
    METHODS,
    UNTRAINED,
    LayerChoice,
    Method,
    MethodNotApplicable,
    VisitsStart,
    applicable_methods,
    check_place,
    check_walk,
    get_method,
    register_method,
)
from .targets import Target, class_index

__all__ = [
    "METHODS",
    "UNTRAINED",
    "Explanation",
    "LayerChoice",
    "Method",
    "MethodNotApplicable",
    "Target",
    "VisitsStart",
    "applicable_methods",
    "check_place",
    "check_walk",
    "class_index",
    "explain",
    "explain_graphs",
    "get_method",
    "register_method",
]
