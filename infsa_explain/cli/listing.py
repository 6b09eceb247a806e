"""Commands that list what there is."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

from .output import print_table
from .values import load_models


def models() -> None:
    """List the bundled models and the InfViT names in timm's registry.

    Example: infsa-explain models
    """
    from ..catalogue import BUNDLED, UNTRAINED, card_facts, weights_file

    rows = [(name, *card_facts(name)) for name in BUNDLED if Path(weights_file(name)).exists()]
    print_table("bundled, trained", ("name", "attention", "parameters", "data", "accuracy"), rows)
    print("\nuntrained, in timm's registry: " + ", ".join(UNTRAINED))
    print("and any timm VisionTransformer, hf-hub: name, or checkpoint file")


def methods(*, time: bool, model: str, device: str) -> None:
    """List the map methods.

    Example: infsa-explain methods --time --model vit_small_patch16_224
    """
    from ..methods import METHODS

    rows: list[tuple[str, ...]] = [
        (m.name, ", ".join(sorted(m.kinds)), "yes" if m.class_specific else "", m.summary)
        for m in METHODS.values()
    ]
    headings: tuple[str, ...] = ("name", "attention", "of a class", "what it is")
    if time:
        seconds = _seconds(model, device)
        rows = [
            (name, f"{seconds[name]:.2f}" if name in seconds else "—", *rest)
            for name, *rest in rows
        ]
        headings = ("name", f"s an image, {model}", *headings[1:])
    print_table("map methods", headings, rows)
    print("\nuntrained-NAME, such as untrained-visits: a control, the map of the untrained model")


def _seconds(name: str, device: str) -> dict[str, float]:
    """Seconds for one image by each method that suits a model, with its forward pass."""
    import torch

    from ..data import PhotoDigits
    from ..methods import applicable_methods, explain
    from ..vits import attention_kinds
    from ..vits.preprocessing import preprocess

    (model,) = load_models([name], [], device, pretrained=False).values()
    image = preprocess(model, PhotoDigits("val", 1)[0].image)
    seconds = {}
    for method in applicable_methods(attention_kinds(model)):
        began = perf_counter()
        explain(model, image, method)
        if image.is_cuda:
            torch.cuda.synchronize()
        seconds[method] = perf_counter() - began
    return seconds
