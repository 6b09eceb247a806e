"""Map methods in one registry, and :func:`explain`.

A *layer* method (:func:`layer_method`) scores the tokens of one layer, mostly for each head;
``explain`` chooses and averages. A *model* method (:func:`model_method`) reads all layers, or none.
May import: ``models``, ``vits`` and what is below them.
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
