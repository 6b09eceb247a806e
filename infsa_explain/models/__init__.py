"""InfViT and its names in timm's registry; loading, converting, saving, untraining models.

Importing it registers the names. May import: ``vits`` and what is below it.
"""

from __future__ import annotations

from .checkpoints import save
from .conversion import convert
from .infvit import BUNDLED, InfViT, load, untrained

__all__ = ["BUNDLED", "InfViT", "convert", "load", "save", "untrained"]
