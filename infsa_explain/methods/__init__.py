"""Map methods: ways to score the tokens of an image. Each is one function in one registry.

A *layer* method scores the tokens of one layer, most of them per head; :func:`explain` chooses
layers and heads and averages. A *model* method scores the tokens from all layers at once, or
without any.
Register one with :func:`layer_method` or :func:`model_method` and it is in ``explain``, the command
line, the tables and the tests.
"""

from __future__ import annotations

from . import (  # noqa: F401  (their methods register themselves)
    centralities,
    controls,
    gradcam,
    gradient_centralities,
    patch_removal,
    pixel_gradients,
    relevance,
    rollouts,
)
from .explaining import Explanation, explain
from .registry import (
    METHODS,
    UNTRAINED,
    Method,
    MethodNotApplicable,
    applicable_methods,
    check_place,
    get_method,
    layer_method,
    model_method,
)
from .targets import class_index

__all__ = [
    "METHODS",
    "UNTRAINED",
    "Explanation",
    "Method",
    "MethodNotApplicable",
    "applicable_methods",
    "check_place",
    "class_index",
    "explain",
    "get_method",
    "layer_method",
    "model_method",
]
