"""Another attention in a trained Vision Transformer: InfSA for softmax, and back."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from ..attention.functional import INITIAL_GAMMA
from ..vits import forms_of
from ..vits.capturing import attention_layers
from ..vits.kinds import KINDS

__all__ = ["convert"]


def convert(
    model: nn.Module,
    attention: str = "linear",
    layers: int | str | Sequence[int] | None = None,
) -> nn.Module:
    """A copy of a model with another kind of attention in all its layers, or in some.

    Every parameter and buffer keeps its name, value, dtype, device and ``requires_grad``, every
    module its mode. An InfSA layer has one parameter more, ``gamma_logit`` (H,), which learns and
    starts at γ = 0.95; between pure and linear it is kept, back to softmax it is dropped, and the
    model is what it was, to the last bit. A converted model is a start for fine-tuning: its other
    weights were trained for softmax.

    Args:
        model: a timm ``VisionTransformer``, a torchvision ``VisionTransformer``, or Hugging
            Face's ViT, DeiT, Dinov2 or Dinov2WithRegisters. It is left as it is.
        attention: ``"linear"``, ``"pure"`` or ``"softmax"``.
        layers: which attention layers: an index or several, in order of the model's modules and
            negative from the end, or a pattern of their names such as ``"blocks.1?.*"``; None
            for all.

    Returns:
        The converted copy, of the same class.

    Raises:
        ValueError: for an unknown kind, layers that there are not, a model that is not supported,
            or a layer that drops attention weights: InfSA has no distribution to drop from.

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
        _turn(modules[name], attention, name)
    return converted


def _chosen(names: list[str], layers: int | str | Sequence[int] | None) -> list[str]:
    if layers is None:
        return names
    if isinstance(layers, str):
        chosen = [name for name in names if fnmatchcase(name, layers)]
        if not chosen:
            raise ValueError(f"no attention layer is called {layers!r}; there are {names}")
        return chosen
    indices = [layers] if isinstance(layers, int) else layers
    for index in indices:
        if not isinstance(index, int) or not -len(names) <= index < len(names):
            raise ValueError(
                f"layer {index!r} is out of range: the model has {len(names)} "
                f"(layers 0 to {len(names) - 1})"
            )
    return [names[index] for index in indices]


def _turn(module: nn.Module, attention: str, name: str) -> None:
    """Change a layer's kind in place: by its class, and by γ."""
    title = f"layer {name} ({type(module).__name__})"
    forms = forms_of(module)
    if forms is None:
        raise ValueError(
            f"{title} cannot be converted: no other form of it is known; register its forms with "
            "infsa_explain.vits.convertible"
        )
    form = {"softmax": forms.softmax, "pure": forms.pure, "linear": forms.linear}[attention]
    if form is type(module):
        return
    if form is forms.softmax:
        del module.gamma_logit
        vars(module).pop("softmax_class", None)
    elif type(module) is forms.softmax:
        if forms.dropout:
            raise ValueError(
                f"{title} drops attention weights (p = {forms.dropout}), and InfSA's are no "
                "distribution to drop from; set it to 0"
            )
        logit = math.log(INITIAL_GAMMA / (1 - INITIAL_GAMMA))
        like = next(module.parameters())
        module.gamma_logit = nn.Parameter(like.new_full((forms.num_heads,), logit))
        vars(module)["softmax_class"] = forms.softmax  # for those that have one a model
    module.__class__ = form
