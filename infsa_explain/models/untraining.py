"""Models with fresh weights: in all parts, or in one part after the other from the classifier down.

A map that shows what a model has learned must change when its weights are replaced by fresh ones.

Source: Adebayo et al. 2018, Sanity Checks for Saliency Maps (arXiv 1810.03292).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from ..attention.functional import INITIAL_GAMMA
from ..vits import Family, family_of, unwrapped, vit_of
from ..vits.blocks import blocks_of
from ..vits.seeding import seeded
from .fitting import fit

__all__ = ["Start", "cascade", "has_starts", "untrained"]

#: How InfSA layers start; see :func:`untrained`.
Start = Literal["own", "zero-bias", "xavier"]

HEAD, EMBEDDINGS = "head", "embeddings"


def untrained(model: nn.Module, seed: int = 0, start: Start = "own") -> nn.Module:
    """A copy of a model with fresh weights.

    The model's family says how (:meth:`infsa_explain.vits.Family.fresh`). The state of the
    caller's random generators is unchanged.

    Args:
        model: a supported ViT, or a model with one inside.
        seed: of the fresh weights.
        start: how InfSA layers of this package start: ``"own"``, with positive query and key
            biases; ``"zero-bias"``, with zero biases; or ``"xavier"``, as the released InfSA layer,
            whose weights are uniform by Xavier and whose biases are zero.

    Returns:
        A new model of the same dtype, device and mode.

    Raises:
        ValueError: if its family does not say how, and it has no ``init_weights()``; or if another
            start is asked for and the model has no such layers.
    """
    model = unwrapped(model)
    vit = vit_of(model)
    fresh = copy.deepcopy(model)
    with seeded(seed):
        torch.manual_seed(seed)  # the generators of other devices too
        _reset_around(fresh)
        torch.manual_seed(seed)
        _take(vit_of(fresh), (family_of(vit) or Family()).fresh(vit))
        if start != "own":
            _restart(fresh, start)
    return fresh


def has_starts(model: nn.Module) -> bool:
    """Whether a model has layers for which :func:`untrained` offers several starts."""
    from ..attention.layers import InfSA  # which imports timm

    return any(isinstance(module, InfSA) for module in model.modules())


def _restart(model: nn.Module, start: str) -> None:
    """Let the InfSA layers of a fresh model start in another way."""
    from ..attention.layers import InfSA

    if start not in get_args(Start):
        raise ValueError(f"start must be one of {', '.join(get_args(Start))}, got {start!r}")
    layers = [module for module in model.modules() if isinstance(module, InfSA)]
    if not layers:
        raise ValueError(f"start must be 'own' for a model without InfSA layers, got {start!r}")
    for layer in layers:
        layer.init_with_zero_biases(xavier=start == "xavier")


@torch.no_grad()
def _reset_around(model: nn.Module) -> None:
    """Reset all modules of a model that are not in its ViT."""
    of_vit = {id(module) for module in vit_of(model).modules()}
    for module in model.modules():
        if id(module) not in of_vit and hasattr(module, "reset_parameters"):
            cast(Any, module).reset_parameters()


def _take(model: nn.Module, fresh: nn.Module) -> None:
    """Load the weights of a fresh model, and γ of converted layers as in a new layer."""
    gammas = {
        name: torch.full_like(value, math.log(INITIAL_GAMMA / (1 - INITIAL_GAMMA)))
        for name, value in model.state_dict().items()
        if name.endswith(".gamma_logit")
    }
    fit(model, {**fresh.state_dict(), **gammas}, "the model built anew")


def cascade(model: nn.Module, seed: int = 0) -> Iterator[tuple[str, nn.Module]]:
    """Copies of a model with more and more fresh parts, from the head down to the embeddings.

    In the first copy the head is fresh, which is everything behind the last block. In the second
    copy the last block is fresh too, and so on. The last copy has fresh embeddings too, which are
    everything before the first block: it is ``untrained(model, seed)``, from which all fresh
    weights are taken. The parts below the fresh ones compute exactly what they did.

    Args:
        model: a supported ViT, or a model with one inside. It is not changed.
        seed: of the fresh weights.

    Yields:
        (stage, copy): ``"head"``, then the names of the blocks from the last to the first, such as
        ``"blocks.3"``, then ``"embeddings"``. A part without weights has no stage. Each copy is a
        new model of the same dtype, device and mode, made when it is asked for.

    Raises:
        ValueError: when the first copy is asked for, as
            :func:`infsa_explain.vits.blocks.blocks_of` and :func:`untrained`.

    >>> from timm.models import VisionTransformer
    >>> vit = VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2)
    >>> [stage for stage, _ in cascade(vit)]
    ['head', 'blocks.1', 'blocks.0', 'embeddings']
    """
    model = unwrapped(model)
    kept = parts(model)
    for stage in reversed(list(kept)):
        del kept[stage]
        yield stage, _untrained_but_for(model, seed, [n for names in kept.values() for n in names])


def parts(model: nn.Module) -> dict[str, list[str]]:
    """Names of the parameters and buffers of each part of a ViT: embeddings, blocks, head.

    Modules registered before the first block are embeddings, modules registered after it and in no
    block are the head. PyTorch does not record the place of parameters that a module around the
    blocks holds directly. They are embeddings (tokens and positions), except single numbers, which
    weight the outputs of the blocks and belong to the head.
    """
    blocks = list(blocks_of(model))
    first = blocks[0]
    place = {name: index for index, (name, _) in enumerate(model.named_modules())}

    def part(name: str, tensor: Tensor) -> str:
        block = next((block for block in blocks if name.startswith(f"{block}.")), None)
        if block is not None:
            return block
        owner = name.rpartition(".")[0]
        around = not owner or first.startswith(f"{owner}.")
        behind = place[owner] > place[first] or (around and tensor.ndim == 0)
        return HEAD if behind else EMBEDDINGS

    names_of: dict[str, list[str]] = {name: [] for name in (EMBEDDINGS, *blocks, HEAD)}
    for name, tensor in _tensors(model).items():
        names_of[part(name, tensor)].append(name)
    return {name: tensors for name, tensors in names_of.items() if tensors}


@torch.no_grad()
def _untrained_but_for(model: nn.Module, seed: int, kept: list[str]) -> nn.Module:
    """An untrained copy that keeps the values of some parameters and buffers of the model."""
    partial = untrained(model, seed)
    fresh, trained = _tensors(partial), _tensors(model)
    fresh_shapes, trained_shapes = (
        {name: value.shape for name, value in tensors.items()} for tensors in (fresh, trained)
    )
    if differing := sorted(name for name, _ in fresh_shapes.items() ^ trained_shapes.items()):
        raise ValueError(
            f"{type(model).__name__} untrained is another model, which differs in "
            f"{', '.join(dict.fromkeys(differing))}"
        )
    for name in kept:
        fresh[name].copy_(trained[name])
    return partial


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
