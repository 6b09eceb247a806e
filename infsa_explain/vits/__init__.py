"""Other people's Vision Transformers: what is known of each source, in one file a source.

Importing this package registers them all. A new source is one new file here that says, with the
decorators of :mod:`infsa_explain.vits.registry`, how queries, keys and values of its attention
are read, how its models cut an image into tokens, and what its attention becomes when converted.
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
