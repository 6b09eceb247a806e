"""Model cards: architecture, training data and accuracy of a trained checkpoint."""

from __future__ import annotations

from typing import Any

__all__ = ["model_card"]


def model_card(facts: dict[str, Any]) -> str:
    """The card of a trained model in Markdown.

    Args:
        facts: content of the JSON file beside the checkpoint.
    """
    low, high = facts["accuracy_interval"]
    gamma = (
        ""
        if facts["gamma"] is None
        else (f"| γ over heads | {facts['gamma'][0]:.2f} to {facts['gamma'][1]:.2f} |\n")
    )
    recipe = "\n".join(f"| {key} | {value} |" for key, value in facts["recipe"].items())
    tuned = facts["recipe"]["init"] or facts["recipe"]["pretrained"]
    return f"""# {facts["model"]}

{FINE_TUNED if tuned else SMALL}

| | |
| --- | --- |
| attention | {facts["attention"]} |
| parameters | {facts["parameters"]:,} |
| data | {facts["data"]}, {len(facts["classes"])} classes: {", ".join(facts["classes"])} |
| accuracy | {facts["accuracy"]:.1%} [{low:.1%}, {high:.1%}], n = {facts["images"]} |
| dead heads | {facts["dead_heads"]:.1%} |
{gamma}| on disk | float16 |

{DATA_TERMS.get(facts["data"], "")}

## Recipe

| | |
| --- | --- |
{recipe}
"""


SMALL = """\
A small Vision Transformer for trying out and testing maps of attention. It is no competitive
classifier and should not be used as one."""
FINE_TUNED = """\
A Vision Transformer fine-tuned for trying out and testing maps of attention. The terms of the
weights that it started from hold for it too."""

DATA_TERMS = {
    "photo-digits": "Trained on photo-digits: digits of scikit-learn's `load_digits` (UCI Optical "
    "Recognition of Handwritten Digits, CC BY 4.0) on crops of its two sample photographs "
    "(CC BY). No image is in the file.",
    "tiny-imagenet-10": "Trained on ten classes of Tiny-ImageNet (Stanford CS231n; ImageNet's "
    "terms: non-commercial research). No image is in the file.",
}
