"""Commands that list what there is."""

from __future__ import annotations

from pathlib import Path

from .output import print_table


def models() -> None:
    """List the bundled models and the InfViT names in timm's registry."""
    from ..models import BUNDLED, card_facts, registered, weights_file

    rows = [(name, *card_facts(name)) for name in BUNDLED if Path(weights_file(name)).exists()]
    print_table("bundled, trained", ("name", "attention", "parameters", "data", "accuracy"), rows)
    print("\nuntrained, in timm's registry: " + ", ".join(registered()))
    print("and any timm VisionTransformer, hf-hub: name, or checkpoint file")


def methods() -> None:
    """List the map methods."""
    from ..methods import METHODS

    rows = [(m.name, ", ".join(sorted(m.kinds)), m.summary) for m in METHODS.values()]
    print_table("map methods", ("name", "attention", "what it is"), rows)
    print("\nuntrained-NAME, as in untrained-visits: a control, the map of the model untrained")
