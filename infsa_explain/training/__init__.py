"""Training: recipes, the training loop, held-out accuracy, model cards.

May import: every room except ``bench`` and ``cli``.
"""

from __future__ import annotations

from .loop import Epoch, train
from .recipes import RECIPES, Recipe, recipe_for

__all__ = ["RECIPES", "Epoch", "Recipe", "recipe_for", "train"]
