"""What comes with the package, by name: models, the facts of the trained ones, and measures.

Nothing heavy is imported, so that commands can list the names at once.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

__all__ = ["BUNDLED", "MEASURES", "UNTRAINED", "card_facts", "weights_file"]

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

#: Measures that come with the package, and the modules of ``evaluate`` that define them.
MEASURES = {
    "morf": "deletion",
    "boxes": "localization",
    "align": "alignment",
    "focus": "focus",
    "sanity": "sanity",
    "infidelity": "faithfulness",
    "sensitivity": "faithfulness",
    "accuracy": "accuracy",
}


def weights_file(name: str) -> str:
    """The path of a bundled checkpoint."""
    return str(files("infsa_explain") / "models" / "weights" / f"{name}.safetensors")


def card_facts(name: str) -> tuple[str, str, str, str]:
    """Attention, parameters, data and accuracy of a bundled model, from its card."""
    facts = json.loads(Path(weights_file(name)).with_suffix(".json").read_text())
    low, high = facts["accuracy_interval"]
    accuracy = f"{facts['accuracy']:.1%} [{low:.1%}, {high:.1%}]"
    return facts["attention"], f"{facts['parameters']:,}", facts["data"], accuracy
