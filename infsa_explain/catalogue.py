"""The names of our models in timm's registry, and what is known of the trained ones.

Nothing heavy is imported, so that they are listed at once; :mod:`infsa_explain.models.infvit`
builds them.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

__all__ = ["BUNDLED", "UNTRAINED", "card_facts", "weights_file"]

#: Trained models that come with the package.
BUNDLED = (
    "infvit_linear_digits",
    "infvit_pure_digits",
    "vit_softmax_digits",
    "infvit_linear_photos",
    "infvit_pure_photos",
    "vit_softmax_photos",
)

#: The published sizes, without weights.
UNTRAINED = (
    "infvit_linear_4l",
    "infvit_pure_4l",
    "infvit_pure_24l",
    "vit_softmax_4l",
    "vit_softmax_24l",
)


def weights_file(name: str) -> str:
    """The path of a bundled checkpoint."""
    return str(files("infsa_explain") / "models" / "weights" / f"{name}.safetensors")


def card_facts(name: str) -> tuple[str, str, str, str]:
    """Attention, parameters, data and accuracy of a bundled model, from its card."""
    facts = json.loads(Path(weights_file(name)).with_suffix(".json").read_text())
    low, high = facts["accuracy_interval"]
    accuracy = f"{facts['accuracy']:.1%} [{low:.1%}, {high:.1%}]"
    return facts["attention"], f"{facts['parameters']:,}", facts["data"], accuracy
