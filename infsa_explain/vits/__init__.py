"""Families of Vision Transformers, one file each, in one registry; capture; preprocessing.

A family says how its models are recognised, read, prepared for, built anew and converted: see
:mod:`infsa_explain.vits.registry`. May import: ``data``, ``graph`` and ``attention``.
"""

from __future__ import annotations

from . import huggingface_vits, released, timm_vits, torchvision_vits  # noqa: F401
from .classes import class_names, number_of_classes
from .finding import attention_kinds, attention_layers
from .registry import (
    AttentionReader,
    Family,
    Forms,
    Layout,
    Reading,
    attention_of,
    family_of,
    forms_of,
    register_attention,
    register_family,
    register_forms,
)
from .wrappers import (
    classifies,
    model_output,
    require_classes,
    require_module,
    unwrapped,
    vit_of,
)

__all__ = [
    "AttentionReader",
    "Family",
    "Forms",
    "Layout",
    "Reading",
    "attention_kinds",
    "attention_layers",
    "attention_of",
    "class_names",
    "classifies",
    "family_of",
    "forms_of",
    "model_output",
    "number_of_classes",
    "register_attention",
    "register_family",
    "register_forms",
    "require_classes",
    "require_module",
    "unwrapped",
    "vit_of",
]
