"""Another attention in a trained Vision Transformer: InfSA for softmax, and back."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from ..attention.functional import INITIAL_GAMMA
from ..vits import attention_layers, forms_of
from ..vits.capturing import layer_index
from ..vits.kinds import KINDS

__all__ = ["convert"]


def convert(
    model: nn.Module,
    attention: str = "linear",
    layers: int | str | Sequence[int] | None = None,
) -> nn.Module:
    """A copy of a model with another kind of attention in all or some of its layers.

    Every parameter and buffer keeps its name, value, dtype, device and ``requires_grad``, and every
    module its mode. An InfSA layer has one more parameter, ``gamma_logit`` (H,), which is trainable
    and starts at γ = 0.95. It is kept between pure and linear. Conversion back to softmax removes
    it and restores the model exactly. A converted model is a start for fine-tuning: its weights
    were trained with the other attention.

    Args:
        model: a timm ``VisionTransformer``, a torchvision ``VisionTransformer``, or Hugging
            Face's ViT, DeiT, Dinov2 or Dinov2WithRegisters. It is not changed.
        attention: ``"linear"``, ``"pure"`` or ``"softmax"``.
        layers: which attention layers, in the order of the model's modules: an index or several,
            negative from the end, or a pattern of their names such as ``"blocks.1?.*"``; None for
            all.

    Returns:
        The converted copy, of the same class.

    Raises:
        ValueError: for an unknown kind, layers that the model does not have, an unsupported model,
            or a layer with dropout of attention weights, which InfSA does not have.

    >>> from timm.models import VisionTransformer
    >>> vit = VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=3, num_heads=3)
    >>> converted = convert(vit, "linear", layers=[-1])
    >>> [type(block.attn).__name__ for block in converted.blocks]
    ['Attention', 'Attention', 'LinearInfSA']
    """
    if attention not in KINDS:
        raise ValueError(f"attention must be one of {', '.join(KINDS)}, got {attention!r}")
    converted = copy.deepcopy(model)
    modules = {name: module for name, (module, _) in attention_layers(converted).items()}
    for name in _chosen(list(modules), layers):
        _convert_layer(modules[name], attention, name)
    return converted


def _chosen(names: list[str], layers: int | str | Sequence[int] | None) -> list[str]:
    if layers is None:
        return names
    """Names of the layers that an index, several indices or a pattern stands for."""
    if isinstance(layers, str):
        chosen = [name for name in names if fnmatchcase(name, layers)]
        if not chosen:
            raise ValueError(f"no attention layer is called {layers!r}; there are {names}")
        return chosen
    indices = layers if isinstance(layers, Sequence) else [layers]
    expected = "a whole number or 'last' (one pattern of names is a text, not a list)"
    return [names[layer_index(index, len(names), expected)] for index in indices]


def _convert_layer(module: nn.Module, attention: str, name: str) -> None:
    """Change the kind of a layer in place: its class, and γ."""
    title = f"layer {name} ({type(module).__name__})"
    forms = forms_of(module)
    if forms is None:
        raise ValueError(
            f"{title} cannot be converted: no other form of it is known; register its forms with "
            "infsa_explain.extensions.register_forms"
        )
    form: type[nn.Module] = getattr(forms, attention)
    if form is type(module):
        return
    if form is forms.softmax:
        del module.gamma_logit
        vars(module).pop("softmax_class", None)
    elif type(module) is forms.softmax:
        if forms.dropout:
            raise ValueError(
                f"{title} drops attention weights (p = {forms.dropout}), and InfSA's are no "
                "distribution to drop from; set the dropout to 0"
            )
        logit = math.log(INITIAL_GAMMA / (1 - INITIAL_GAMMA))
        like = next(module.parameters())
        module.gamma_logit = nn.Parameter(like.new_full((forms.num_heads,), logit))
        vars(module)["softmax_class"] = forms.softmax  # families may have several
    module.__class__ = form
