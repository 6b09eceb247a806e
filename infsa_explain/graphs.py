"""Capture: the token graph of every attention layer of a Vision Transformer, in one pass.

Queries and keys are read from the tokens that enter each attention layer, so that fused
attention is no obstacle and the model computes exactly what it computes without us. A model
family is one function, registered with :func:`attention_family`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from timm.layers.attention import Attention
from torch import Tensor, nn

from .attention import INITIAL_GAMMA, LinearInfSA, PureInfSA, linear_weights
from .operator import AttentionOperator

__all__ = ["Graphs", "attention_family", "attention_kinds", "capture", "dead_heads"]


class Layer(NamedTuple):
    """What one attention layer is made of.

    Attributes:
        operator: its token graph over (B, H).
        gamma: γ per head, (H,).
        kind: ``"linear"``, ``"pure"`` or ``"softmax"``.
    """

    operator: AttentionOperator
    gamma: Tensor
    kind: str


class Reading(NamedTuple):
    """q and k of an attention module (B, H, N, d), γ per head (H,), and the softmax's scale."""

    q: Tensor
    k: Tensor
    gamma: Tensor
    scale: float | None = None


class Family(NamedTuple):
    kind: str
    read: Callable[[Any, Tensor], Reading]

    def layer(self, module: nn.Module, x: Tensor) -> Layer:
        q, k, gamma, scale = self.read(module, x)
        graph: Literal["infsa", "softmax"] = "softmax" if self.kind == "softmax" else "infsa"
        operator = AttentionOperator(q, k, graph, scale=scale)
        return Layer(operator, gamma.detach().float(), self.kind)


Reader = Callable[[Any, Tensor], Reading]
_FAMILIES: dict[type[nn.Module], Family] = {}


def attention_family(attention: type[nn.Module], kind: str) -> Callable[[Reader], Reader]:
    """Register how to read q and k of an attention module from the tokens that enter it."""

    def register(reader: Reader) -> Reader:
        _FAMILIES[attention] = Family(kind, reader)
        return reader

    return register


@attention_family(PureInfSA, "pure")
@attention_family(LinearInfSA, "linear")
def _infsa(module: PureInfSA | LinearInfSA, x: Tensor) -> Reading:
    q, k, _ = module.queries_keys_values(x)
    return Reading(q, k, module.gamma)


@attention_family(Attention, "softmax")
def _timm_softmax(module: Attention, x: Tensor) -> Reading:
    qkv = module.qkv(x).unflatten(-1, (3, module.num_heads, -1))
    q, k, _ = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    q, k = module.q_norm(q), module.k_norm(k)
    gamma = torch.full((module.num_heads,), INITIAL_GAMMA, device=x.device)
    return Reading(q, k, gamma, module.scale)


@dataclass(frozen=True)
class Graphs:
    """The token graphs of one forward pass.

    Attributes:
        layers: one :class:`Layer` per attention module, in order of execution.
        num_prefix_tokens: class, register and distillation tokens; they come first.
        grid: (gh, gw), the patch grid; tokens after the prefix are its raster scan.
        logits: (B, C), as the model gave them.
        reads_class_token: whether the classifier reads the class token, which is the first, or
            pools over the patches.
    """

    layers: list[Layer]
    num_prefix_tokens: int
    grid: tuple[int, int]
    logits: Tensor
    reads_class_token: bool

    @property
    def operators(self) -> list[AttentionOperator]:
        """One operator a layer."""
        return [layer.operator for layer in self.layers]

    @property
    def gammas(self) -> list[Tensor]:
        """γ per head, (H,), one a layer; 0.95 for softmax layers."""
        return [layer.gamma for layer in self.layers]


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The attention modules of a supported ViT by name.

    Raises:
        ValueError: if there is none that we know, or a block of the model is without.
    """
    found = {name: m for name, m in model.named_modules() if type(m) in _FAMILIES}
    blocks = getattr(model, "blocks", None)
    unread = [
        name
        for name, block in (blocks.named_children() if isinstance(blocks, nn.Module) else ())
        if not any(type(m) in _FAMILIES for m in block.modules())
    ]
    if unread or not found:
        known = ", ".join(sorted(family.__name__ for family in _FAMILIES))
        where = f" in block {', '.join(unread)}" if found else ""
        raise ValueError(
            f"{type(model).__name__} has no attention layer that can be read{where} (known: "
            f"{known}); register its attention class with infsa_explain.graphs.attention_family"
        )
    return found


def attention_kinds(model: nn.Module) -> set[str]:
    """The kinds of attention in a model, of ``"linear"``, ``"pure"`` and ``"softmax"``."""
    return {_FAMILIES[type(module)].kind for module in attention_modules(model).values()}


def capture(model: nn.Module, images: Tensor) -> Graphs:
    """Run the model once and read the token graph of every layer.

    Args:
        model: a supported ViT; its mode, weights and hooks are as found afterwards.
        images: (B, 3, H, W), normalised as the model expects, on the model's device.

    Returns:
        :class:`Graphs`, with the logits of this very pass.

    Raises:
        ValueError: if no layer can be read, some layer did not run exactly once, the model
            does not take images of this size, or the tokens do not fit the patch grid.
    """
    modules = attention_modules(model)
    grid = patch_grid(model, images)
    layers: dict[str, Layer] = {}

    def read(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if name in layers:
                raise ValueError(f"attention layer {name} ran twice in the forward pass")
            layers[name] = _FAMILIES[type(module)].layer(module, inputs[0])

        return hook

    handles = [m.register_forward_pre_hook(read(name)) for name, m in modules.items()]
    try:
        with torch.no_grad():
            logits = model(images)
    except AssertionError as error:  # timm's way to refuse a size
        raise ValueError(f"{type(model).__name__} refuses the images: {error}") from error
    finally:
        for handle in handles:
            handle.remove()
    if layers.keys() != modules.keys():
        missing = ", ".join(sorted(modules.keys() - layers.keys()))
        raise ValueError(f"attention layers that did not run in the forward pass: {missing}")
    prefix = int(getattr(model, "num_prefix_tokens", 0))
    for name, layer in layers.items():
        if layer.operator.num_tokens != prefix + grid[0] * grid[1]:
            raise ValueError(
                f"layer {name} has {layer.operator.num_tokens} tokens, expected {prefix} prefix "
                f"tokens and a grid of {grid[0]}×{grid[1]} patches"
            )
    reads_class_token = prefix > 0 and getattr(model, "global_pool", "token") == "token"
    return Graphs(list(layers.values()), prefix, grid, logits, reads_class_token)


def patch_grid(model: nn.Module, images: Tensor) -> tuple[int, int]:
    """(gh, gw) of the patches that ``model`` cuts ``images`` (B, 3, H, W) into.

    Raises:
        ValueError: if the model has no patch embedding, or an image is smaller than a patch.
    """
    embed: Any = getattr(model, "patch_embed", None)
    if not hasattr(embed, "dynamic_feat_size"):
        raise ValueError(f"{type(model).__name__} has no timm patch embedding (patch_embed)")
    gh, gw = embed.dynamic_feat_size(tuple(images.shape[-2:]))
    if not gh or not gw:
        raise ValueError(
            f"images of {images.shape[-2]}×{images.shape[-1]} pixels are smaller than a patch of "
            f"{embed.patch_size[0]}×{embed.patch_size[1]}"
        )
    return int(gh), int(gw)


def dead_heads(graphs: Graphs) -> Tensor:
    """Which heads pass nothing on: (L, B, H) bool.

    A pure head is dead where its graph has no edge, a linear head where its weights are all
    zero; a softmax head never is.
    """
    dead = []
    for operator, _, kind in graphs.layers:
        if kind == "linear":
            dead.append(linear_weights(operator.q, operator.k).sum(-1) == 0)
        else:
            dead.append(operator.dead())
    return torch.stack(dead)
