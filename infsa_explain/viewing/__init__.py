"""Maps of a model become pictures: galleries, contact sheets, the notebook's inspector.

May import: ``drawing``, ``data``, ``methods``, ``models``, ``vits`` and what is below them.
"""

from __future__ import annotations

from .contact_sheets import contact_sheet
from .galleries import head_gallery, inspect, layer_table, method_gallery, side_by_side
from .views import View, view
from .writing import MapWriter, write_maps

__all__ = [
    "MapWriter",
    "View",
    "contact_sheet",
    "head_gallery",
    "inspect",
    "layer_table",
    "method_gallery",
    "side_by_side",
    "view",
    "write_maps",
]
