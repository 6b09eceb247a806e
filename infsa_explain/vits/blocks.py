"""The blocks of a Vision Transformer, first to last."""

from __future__ import annotations

import os

from torch import nn

from .finding import attention_layers
from .registry import Family, family_of
from .wrappers import unwrapped, vit_of

__all__ = ["blocks_of"]


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks of a model by name, first to last.

    They are what the model's family says (:meth:`infsa_explain.vits.Family.blocks`), by default the
    members of the innermost list that holds all attention layers.

    Args:
        model: a supported ViT, or a model with one inside.

    Returns:
        Modules by their names in the model without wrappers such as ``torch.compile``.

    Raises:
        ValueError: if the attention layers cannot be read, or are not in one list and the family
            does not name the blocks.

    >>> from timm.models import VisionTransformer
    >>> list(blocks_of(VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=2)))
    ['blocks.0', 'blocks.1']
    """
    model = unwrapped(model)
    layers = list(attention_layers(model))
    vit = vit_of(model)
    family = family_of(vit) or Family()
    named = family.blocks(vit)
    if named is not None:
        place = next(name for name, module in model.named_modules() if module is vit)
        names = [f"{place}.{name}".removeprefix(".") for name in named]
        return {name: model.get_submodule(name) for name in names}
    shared = os.path.commonprefix([name.split(".")[:-1] for name in layers])
    while not isinstance(model.get_submodule(".".join(shared)), (nn.ModuleList, nn.Sequential)):
        if not shared:
            raise ValueError(
                f"the blocks of {type(model).__name__} must be the members of a ModuleList or "
                f"Sequential, or be named by its family {family.name!r} (method blocks); its "
                f"attention layers are {', '.join(layers)}"
            )
        shared = shared[:-1]
    members = model.get_submodule(".".join(shared)).named_children()
    return {".".join([*shared, name]): block for name, block in members}
