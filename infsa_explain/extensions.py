"""Extension points: map methods, measures and model families of your own.

Each is one object in one file, registered by a decorator. ``explain``, ``measure``, the tables, the
report and the command line find it in the registry. The command line imports modules that packages
advertise in the entry point group ``infsa_explain``.
"""

from __future__ import annotations

from .data.samples import Sample
from .evaluate import MapOptions, Measure, option, register_measure
from .methods import register_method
from .vits import (
    Family,
    Forms,
    Layout,
    Reading,
    register_attention,
    register_family,
    register_forms,
)

__all__ = [
    "Family",
    "Forms",
    "Layout",
    "MapOptions",
    "Measure",
    "Reading",
    "Sample",
    "option",
    "register_attention",
    "register_family",
    "register_forms",
    "register_measure",
    "register_method",
]
