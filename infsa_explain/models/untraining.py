"""Models with fresh weights: all of them, or from the classifier down, part by part.

A map that shows what a model has learned must change as its weights are replaced by fresh ones.

Source: Adebayo et al. 2018, Sanity Checks for Saliency Maps (arXiv 1810.03292).
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator
from threading import RLock
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..attention.functional import INITIAL_GAMMA
from ..vits import model_of, reinitialised, unwrapped, vit_of
from ..vits.capturing import attention_layers
from .fitting import fit

__all__ = ["block_list", "cascade", "untrained"]

HEAD, EMBEDDINGS = "head", "embeddings"


def untrained(model: nn.Module, seed: int = 0) -> nn.Module:
    """A copy of a model with freshly initialised weights; the caller's random state is kept.

    The model's family says how its models are built anew: see
    :func:`infsa_explain.vits.model_family`.

    Args:
        model: a supported ViT, or a model around one.
        seed: of the fresh weights.

    Returns:
        A model of its own, of the same dtype, device and mode.

    Raises:
        ValueError: if its family does not say how, and it has no ``init_weights()``.
    """
    fresh = copy.deepcopy(unwrapped(model))
    if vit_of(fresh) is not fresh:
        return _untrained_around(fresh, seed)
    model = unwrapped(model)
    family = model_of(model)
    build = reinitialised if family is None or family.fresh is None else family.fresh
    with _DRAWING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _take(fresh, build(model))
    return fresh


def _untrained_around(fresh: nn.Module, seed: int) -> nn.Module:
    """The model whose ViT, and all else that can be reset, is made anew in place."""
    vit = vit_of(fresh)
    with torch.no_grad():
        own = {id(module) for module in vit.modules()}
        with _DRAWING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for module in fresh.modules():
                if id(module) not in own and hasattr(module, "reset_parameters"):
                    cast(Any, module).reset_parameters()
        fit(vit, untrained(vit, seed).state_dict(), "the ViT built anew")
    return fresh


#: All threads share the generator that weights are drawn from.
_DRAWING = RLock()


def _take(model: nn.Module, other: nn.Module) -> None:
    """Take another's weights; γ, which only a converted model has, as in a new layer."""
    gammas = {
        name: torch.full_like(value, math.log(INITIAL_GAMMA / (1 - INITIAL_GAMMA)))
        for name, value in model.state_dict().items()
        if name.endswith(".gamma_logit")
    }
    fit(model, {**other.state_dict(), **gammas}, "the model built anew")


def cascade(model: nn.Module, seed: int = 0) -> Iterator[tuple[str, nn.Module]]:
    """Copies of a model with ever more of it untrained, from the head down to the embeddings.

    In the first copy the head is fresh: everything behind the last block. In the next the last
    block is fresh as well, and so on down, until the last copy, which has fresh embeddings too
    (everything before the first block) and so is ``untrained(model, seed)``, from which all fresh
    weights are taken. What lies beneath the fresh parts computes what it did, to the last bit.

    Args:
        model: a supported ViT that can be untrained; it is left as it is.
        seed: of the fresh weights.

    Yields:
        (stage, copy): ``"head"``, then the names of the blocks, the last first, such as
        ``"blocks.3"``, then ``"embeddings"``; a part without weights is passed over. Each copy is
        a model of its own, of the same dtype, device and mode, made when it is asked for.

    Raises:
        ValueError: when the first copy is asked for, if the model's attention cannot be read, its
            blocks are not the members of one list, or it cannot be untrained.

    >>> from timm.models import VisionTransformer
    >>> vit = VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2)
    >>> [stage for stage, _ in cascade(vit)]
    ['head', 'blocks.1', 'blocks.0', 'embeddings']
    """
    kept = parts(model)
    for stage in reversed(list(kept)):
        del kept[stage]
        yield stage, _untrained_but_for(model, seed, [n for names in kept.values() for n in names])


def parts(model: nn.Module) -> dict[str, list[str]]:
    """Names of the parameters and buffers of each part of a ViT, the embeddings first.

    Blocks are the members of the list that holds all attention layers. What is registered before
    that list is the embeddings, what is registered after it is the head. PyTorch does not keep
    the place of parameters that a module around the list holds itself: those are the tokens and
    positions of the embeddings, but a single number weighs the blocks' outputs.
    """
    holder = block_list(model)
    prefix = f"{holder}." if holder else ""
    blocks = [f"{prefix}{name}" for name, _ in model.get_submodule(holder).named_children()]
    place = {name: index for index, (name, _) in enumerate(model.named_modules())}

    def part(name: str, tensor: Tensor) -> str:
        block = prefix + name.removeprefix(prefix).partition(".")[0]
        if name.startswith(prefix) and block in blocks:
            return block
        owner = name.rpartition(".")[0]
        around = not owner or holder.startswith(f"{owner}.")
        behind = place[owner] > place[holder] or (around and tensor.ndim == 0)
        return HEAD if behind else EMBEDDINGS

    found: dict[str, list[str]] = {name: [] for name in (EMBEDDINGS, *blocks, HEAD)}
    for name, tensor in _tensors(model).items():
        found[part(name, tensor)].append(name)
    return {name: tensors for name, tensors in found.items() if tensors}


def block_list(model: nn.Module) -> str:
    """The name of the innermost list that holds all attention layers."""
    layers = list(attention_layers(model))
    shared = os.path.commonprefix([name.split(".")[:-1] for name in layers])
    while not isinstance(model.get_submodule(".".join(shared)), (nn.ModuleList, nn.Sequential)):
        if not shared:
            raise ValueError(
                f"the blocks of {type(model).__name__} must be the members of a ModuleList or "
                f"Sequential; its attention layers are {', '.join(layers)}"
            )
        shared = shared[:-1]
    return ".".join(shared)


@torch.no_grad()
def _untrained_but_for(model: nn.Module, seed: int, kept: list[str]) -> nn.Module:
    """An untrained copy with the model's own values in some parameters and buffers."""
    copy = untrained(model, seed)
    fresh, trained = _tensors(copy), _tensors(model)
    shapes = [{name: value.shape for name, value in each.items()} for each in (fresh, trained)]
    if differing := sorted(name for name, _ in shapes[0].items() ^ shapes[1].items()):
        raise ValueError(
            f"{type(model).__name__} untrained is another model, which differs in "
            f"{', '.join(dict.fromkeys(differing))}"
        )
    for name in kept:
        fresh[name].copy_(trained[name])
    return copy


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
