"""Families of Vision Transformers, one file each, in one registry; capture; preprocessing.

A family says, with the decorators of :mod:`infsa_explain.vits.registry`, how its attention is read,
how its models cut an image into tokens, how they are built anew, and what they are converted to.
May import: ``data``, ``graph`` and ``attention``.
"""

from __future__ import annotations

from . import huggingface_vits, released, timm_vits, torchvision_vits  # noqa: F401
from .classes import class_names, number_of_classes
from .refused import refusal
from .registry import (
    AttentionFamily,
    Forms,
    Layout,
    Reading,
    attention_family,
    attention_of,
    convertible,
    forms_of,
    known_attention,
    known_models,
    model_family,
    model_of,
    reinitialised,
)
from .wrappers import (
    classifies,
    first_argument,
    model_output,
    require_classes,
    require_module,
    unwrapped,
    vit_of,
)

__all__ = [
    "AttentionFamily",
    "Forms",
    "Layout",
    "Reading",
    "attention_family",
    "attention_of",
    "class_names",
    "classifies",
    "convertible",
    "first_argument",
    "forms_of",
    "known_attention",
    "known_models",
    "model_family",
    "model_of",
    "model_output",
    "number_of_classes",
    "refusal",
    "reinitialised",
    "require_classes",
    "require_module",
    "unwrapped",
    "vit_of",
]
