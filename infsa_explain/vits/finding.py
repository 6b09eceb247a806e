"""Finding the attention layers of a model, and the tokens that enter them."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from .refused import refusal
from .registry import AttentionReader, attention_of, known_attention
from .wrappers import require_module

__all__ = ["attention_kinds", "attention_layers", "inputs_of"]


def attention_layers(model: nn.Module) -> dict[str, tuple[nn.Module, AttentionReader]]:
    """The attention modules of a supported ViT by name, each with its reader.

    Raises:
        ValueError: if the model or one of its layers is known not to be readable, if no layer can
            be read, or if another module seems to be attention and cannot be read.
    """
    require_module(model)
    title = type(model).__name__
    if reason := refusal(model):
        raise ValueError(f"{title} is refused: it {reason}")
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if reason := refusal(module):
            layer = f"its layer {name} ({type(module).__name__})"
            raise ValueError(f"{title} is refused: {layer} {reason}")
    readers = {name: attention_of(module) for name, module in modules.items()}
    layers = {name: (modules[name], reader) for name, reader in readers.items() if reader}
    for name, (module, _) in layers.items():
        if forward := _foreign_forward(module):
            raise ValueError(
                f"{title} is refused: the forward of its layer {name} ({type(module).__name__}) "
                f"was replaced by {forward}, so its class does not say how it attends; put the "
                "class's own forward back, or register the layer with a class of its own"
            )
    unread = _unread(modules, list(layers))
    if unread or not layers:
        fault = "no attention layer that can be read"
        if layers:
            listed = ", ".join(f"{name} ({type(modules[name]).__name__})" for name in unread)
            fault = f"{len(layers)} attention layers that can be read, and others: {listed}"
        raise ValueError(
            f"{title} has {fault} (known: {known_attention()}); register its attention class with "
            "infsa_explain.extensions.register_attention"
        )
    return layers


def attention_kinds(model: nn.Module) -> set[str]:
    """The kinds of attention in a model: ``"linear"``, ``"pure"``, ``"softmax"``.

    Raises:
        ValueError: as :func:`attention_layers`.
    """
    return {reader.kind for _, reader in attention_layers(model).values()}


def _foreign_forward(module: nn.Module) -> str | None:
    """Name of the function that replaced a module's ``forward``; None if it is the class's own.

    A decorated forward that names the wrapped function, by ``functools.wraps``, counts as the
    class's own.
    """
    cls = next(base for base in type(module).__mro__ if "forward" in vars(base))
    forward = inspect.unwrap(vars(module).get("forward", vars(cls)["forward"]))
    name: str = getattr(forward, "__qualname__", type(forward).__qualname__)
    return None if name == f"{cls.__qualname__}.forward" else name


def _unread(modules: dict[str, nn.Module], layers: list[str]) -> list[str]:
    """Names of modules that seem to be or to hold attention, without any layer that can be read.

    That is: "attention" is in their class's name, or they are of the class of a block that holds a
    readable layer.
    """
    parents = {type(modules[name.rpartition(".")[0]]) for name in layers}
    block_classes = parents - {nn.Sequential, nn.ModuleList}
    unread: list[str] = []
    for name, module in modules.items():
        title = type(module).__name__.lower()
        suspect = type(module) in block_classes or ("attention" in title and "pool" not in title)
        if not name or not suspect:
            continue
        holds_layer = any(f"{layer}.".startswith(f"{name}.") for layer in layers)
        inside = any(name.startswith(f"{other}.") for other in [*layers, *unread])
        if not holds_layer and not inside:
            unread.append(name)
    return unread


def inputs_of(
    reader: AttentionReader, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, dict[str, Any]]:
    """From a call of an attention module: its tokens (B, N, D), and the reader's further inputs.

    Raises:
        ValueError: if the call has a mask or another tensor that the reader does not take.
    """
    arguments = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    x = arguments.pop(next(iter(arguments)))
    others = {**arguments, **arguments.pop("kwargs", {})}
    inputs = {name: others.pop(name) for name in reader.inputs if name in others}
    masks = [name for name, value in others.items() if isinstance(value, Tensor) and value is not x]
    if others.get("is_causal"):
        masks.append("is_causal")
    if masks:
        raise ValueError(f"it is given {', '.join(masks)}, which a token graph does not hold")
    return x, inputs
