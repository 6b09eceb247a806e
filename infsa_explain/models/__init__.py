"""InfViT and its names in timm's registry; loading, converting, saving, untraining models.

Importing it registers the names. May import: ``vits`` and what is below it.
"""

from __future__ import annotations

from ..catalogue import BUNDLED
from .checkpoints import save
from .conversion import convert
from .infvit import InfViT
from .loading import load
from .untraining import untrained

__all__ = ["BUNDLED", "InfViT", "convert", "load", "save", "untrained"]
