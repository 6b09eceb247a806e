"""What to extend the toolkit with: maps, measures and model families of one's own.

Each is one object in one file, registered by a decorator; ``explain``, ``measure``, the tables, the
page and the command line find it there. A package that advertises such a file in the entry point
group ``infsa_explain`` has it imported by the command line.
"""

from __future__ import annotations

from .data.samples import Sample
from .evaluate import MapOptions, Measure, option, register_measure
from .methods import layer_method as register_layer_method
from .methods import model_method as register_model_method
from .vits import Layout, Reading
from .vits import attention_family as register_attention
from .vits import model_family as register_family

__all__ = [
    "Layout",
    "MapOptions",
    "Measure",
    "Reading",
    "Sample",
    "option",
    "register_attention",
    "register_family",
    "register_layer_method",
    "register_measure",
    "register_model_method",
]
