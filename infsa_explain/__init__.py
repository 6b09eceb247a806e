"""Where does a Vision Transformer look, and is that attention any good?

Names load on first use, so that ``import infsa_explain`` is light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .drawing.heatmap import overlay
    from .evaluate import measure
    from .methods import METHODS, Explanation, explain
    from .methods.attribution import captum_attribution
    from .models.conversion import convert
    from .models.loading import load
    from .viewing.galleries import inspect
    from .vits.capturing import Graphs, capture
    from .vits.preprocessing import preprocess

_HOME = {
    "METHODS": "methods",
    "Explanation": "methods",
    "Graphs": "vits.capturing",
    "captum_attribution": "methods.attribution",
    "capture": "vits.capturing",
    "convert": "models.conversion",
    "explain": "methods",
    "inspect": "viewing.galleries",
    "load": "models",
    "measure": "evaluate",
    "overlay": "drawing.heatmap",
    "preprocess": "vits.preprocessing",
}

__all__ = [
    "METHODS",
    "Explanation",
    "Graphs",
    "captum_attribution",
    "capture",
    "convert",
    "explain",
    "inspect",
    "load",
    "measure",
    "overlay",
    "preprocess",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
