"""Where does a Vision Transformer look, and is that attention any good?

Names load on first use, so that ``import infsa_explain`` is light. What to extend it with is in
:mod:`infsa_explain.extensions`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .drawing.heatmap import overlay as overlay
    from .evaluate import measure as measure
    from .methods import METHODS as METHODS
    from .methods import Explanation as Explanation
    from .methods import explain as explain
    from .methods.attribution import captum_attribution as captum_attribution
    from .models.checkpoints import save as save
    from .models.conversion import convert as convert
    from .models.loading import load as load
    from .viewing.contact_sheets import contact_sheet as contact_sheet
    from .viewing.galleries import head_gallery as head_gallery
    from .viewing.galleries import inspect as inspect
    from .viewing.galleries import layer_table as layer_table
    from .viewing.galleries import method_gallery as method_gallery
    from .viewing.galleries import side_by_side as side_by_side
    from .vits.capturing import Graphs as Graphs
    from .vits.capturing import capture as capture
    from .vits.preprocessing import preprocess as preprocess

#: Name → the module that it is in.
_HOME = {
    "METHODS": "methods",
    "Explanation": "methods",
    "Graphs": "vits.capturing",
    "captum_attribution": "methods.attribution",
    "capture": "vits.capturing",
    "contact_sheet": "viewing.contact_sheets",
    "convert": "models.conversion",
    "explain": "methods",
    "head_gallery": "viewing.galleries",
    "inspect": "viewing.galleries",
    "layer_table": "viewing.galleries",
    "load": "models",
    "measure": "evaluate",
    "method_gallery": "viewing.galleries",
    "overlay": "drawing.heatmap",
    "preprocess": "vits.preprocessing",
    "save": "models",
    "side_by_side": "viewing.galleries",
}

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
