"""Capture: the token graph of every attention layer of a Vision Transformer, in one pass.

Queries and keys are read from the tokens that enter each attention layer, so that fused
attention is no obstacle and the model computes exactly what it computes without us. How to read
the layers of a model family is said in :mod:`infsa_explain.vits`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from infsa_metrics import class_logits, output_tensor
from infsa_metrics.outputs import Output
from torch import Tensor, nn

from ..attention.functional import INITIAL_GAMMA
from ..graph.operator import AttentionOperator
from . import (
    AttentionFamily,
    Layout,
    attention_family,
    attention_of,
    first_argument,
    known_attention,
    known_models,
    model_of,
    model_output,
    refusal,
    require_module,
    unwrapped,
    vit_of,
)
from .kinds import KINDS
from .watching import forward_pass, watching

if TYPE_CHECKING:
    from ..data.pixels import AnyImage

__all__ = [
    "Graphs",
    "attention_family",
    "attention_kinds",
    "capture",
    "dead_heads",
    "patch_grid",
]


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

    def matrix(self) -> Tensor:
        """What its heads do to values, without γ, (B, H, N, N): a row in common if linear."""
        return KINDS[self.kind].matrix(self.operator)

    def row(self) -> Tensor | None:
        """The row that all tokens share, (B, H, N), in a linear layer; else None."""
        return KINDS[self.kind].row(self.operator)

    def gain(self) -> Tensor:
        """γ per head of an InfSA layer, 1 of a softmax layer, (H,)."""
        return KINDS[self.kind].gain(self.gamma)

    def dead(self) -> Tensor:
        """Which heads pass nothing on, (B, H) bool."""
        return KINDS[self.kind].dead(self.operator)


@dataclass(frozen=True, eq=False)  # each is a key of its own
class Graphs:
    """The token graphs of one forward pass.

    Attributes:
        layers: one :class:`Layer` per attention module, in order of execution; those of a block
            with several in parallel follow one another.
        num_prefix_tokens: class, register and distillation tokens; they come first.
        grid: (gh, gw), the patch grid; tokens after the prefix are its raster scan.
        logits: (B, C), as the model gave them; the pooled features of a model without a
            classifier.
        output: what the logits are: ``"embedding"`` for features; see
            :mod:`infsa_metrics.outputs`.
        reads_class_token: whether the classifier reads the class token, which is the first, or
            pools over the patches.
        model, images: for methods that run the model again: the ViT itself and the images that it
            saw, unless the model around it has layers behind the ViT.
        kinds: of every layer of the model, ``"linear"``, ``"pure"`` or ``"softmax"``.
        indices: which of these layers ``layers`` has; all of them unless some were asked for.
    """

    layers: list[Layer]
    num_prefix_tokens: int
    grid: tuple[int, int]
    logits: Tensor
    reads_class_token: bool
    model: nn.Module = field(repr=False)
    images: Tensor = field(repr=False)
    kinds: tuple[str, ...] = ()
    indices: tuple[int, ...] = ()
    output: Output = "auto"

    @property
    def class_logits(self) -> Tensor:
        """(B, K), one column a class: a single logit becomes two. Features stay as they are."""
        return class_logits(self.logits, self.output)

    def layer(self, index: int) -> Layer:
        """The layer of that index in the model.

        Raises:
            ValueError: if it was not captured.
        """
        if index not in self.indices:
            raise ValueError(f"layer {index} was not captured, only {list(self.indices)}")
        return self.layers[self.indices.index(index)]

    @property
    def operators(self) -> list[AttentionOperator]:
        """One operator a layer."""
        return [layer.operator for layer in self.layers]

    @property
    def gammas(self) -> list[Tensor]:
        """γ per head, (H,), one a layer; 0.95 for softmax layers."""
        return [layer.gamma for layer in self.layers]


def attention_layers(model: nn.Module) -> dict[str, tuple[nn.Module, AttentionFamily]]:
    """The attention modules of a supported ViT by name, and how each is read.

    Raises:
        ValueError: if the model or one of its layers is refused by name, there is no layer that
            can be read, or a module that must be attention is not among those that can.
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
    families = {name: attention_of(module) for name, module in modules.items()}
    found = {name: (modules[name], family) for name, family in families.items() if family}
    for name, (module, _) in found.items():
        if forward := _foreign_forward(module):
            raise ValueError(
                f"{title} is refused: the forward of its layer {name} ({type(module).__name__}) "
                f"was replaced by {forward}, so its class does not say how it attends; put the "
                "class's own forward back, or register the layer with a class of its own"
            )
    unread = _unread(modules, list(found))
    if unread or not found:
        fault = "no attention layer that can be read"
        if found:
            listed = ", ".join(f"{name} ({type(modules[name]).__name__})" for name in unread)
            fault = f"{len(found)} attention layers that can be read, and others: {listed}"
        raise ValueError(
            f"{title} has {fault} (known: {known_attention()}); register its attention class with "
            "infsa_explain.vits.capturing.attention_family"
        )
    return found


def _foreign_forward(module: nn.Module) -> str | None:
    """Name of the function that replaced a module's ``forward``; None if it is the class's own.

    A decorated forward that says what it wraps, by ``functools.wraps``, counts as the class's own.
    """
    cls = next(base for base in type(module).__mro__ if "forward" in vars(base))
    forward = inspect.unwrap(vars(module).get("forward", vars(cls)["forward"]))
    name: str = getattr(forward, "__qualname__", type(forward).__qualname__)
    return None if name == f"{cls.__qualname__}.forward" else name


def _unread(modules: dict[str, nn.Module], found: list[str]) -> list[str]:
    """Names of modules that must be attention, or hold some, and hold none of those found.

    They are called attention, or are of the same class as a block that holds a layer found.
    """
    holders = {type(modules[name.rpartition(".")[0]]) for name in found}
    blocks = holders - {nn.Sequential, nn.ModuleList}
    unread: list[str] = []
    for name, module in modules.items():
        called = type(module).__name__.lower()
        if not name or not (
            type(module) in blocks or ("attention" in called and "pool" not in called)
        ):
            continue
        holds = any(f"{other}.".startswith(f"{name}.") for other in found)
        held = any(name.startswith(f"{other}.") for other in [*found, *unread])
        if not holds and not held:
            unread.append(name)
    return unread


def attention_kinds(model: nn.Module) -> set[str]:
    """The kinds of attention in a model, of ``"linear"``, ``"pure"`` and ``"softmax"``."""
    return {family.kind for _, family in attention_layers(model).values()}


def layer_index(
    index: int | str, depth: int, name: str = "layer", expected: str = "a whole number"
) -> int:
    """An index, negative from the end, as one from 0 to depth − 1.

    Raises:
        ValueError: if it is none; ``name`` and ``expected`` say of what, and what else there is.
    """
    try:
        value = int(str(index))  # 1.5 and None are no indices
    except ValueError:
        raise ValueError(f"{name} must be {expected}, got {index!r}") from None
    if not -depth <= value < depth:
        raise ValueError(
            f"{name} {value} is out of range: the model has {depth} ({name} 0 to {depth - 1})"
        )
    return value % depth


def capture(
    model: nn.Module,
    images: AnyImage | Iterable[AnyImage],
    layers: Sequence[int] | None = None,
) -> Graphs:
    """Run the model once and read the token graph of every layer.

    The model runs in eval mode. Several threads may capture from one model at a time.

    Args:
        model: a supported ViT, or a model with exactly one inside, which keeps the size of the
            images that it passes to it. Its mode, weights and hooks are as found afterwards.
        images: (B, 3, H, W), normalised as the model expects, on the model's device; or what else
            :func:`infsa_explain.explain` takes.
        layers: indices of those to read, negative from the end, or None for all. The queries and
            keys of each that is read are kept: of a large image, gigabytes.

    Returns:
        :class:`Graphs`, with the logits of this very pass.

    Raises:
        ValueError: if a layer cannot be read or did not run exactly once, the model does not take
            images of this size, the tokens do not fit the patch grid, or an index of ``layers`` is
            out of range.

    >>> from timm.models import VisionTransformer
    >>> vit = VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=3, num_heads=2)
    >>> graphs = capture(vit.eval(), torch.zeros(1, 3, 32, 32))
    >>> len(graphs.layers), graphs.grid, graphs.operators[0].shape
    (3, (4, 4), (1, 2, 17))
    >>> capture(vit, torch.zeros(1, 3, 32, 32), layers=[-1]).indices
    (2,)
    """
    from .preprocessing import model_input  # which imports timm

    model = unwrapped(model)
    families = attention_layers(model)
    vit = vit_of(model)
    batch = _usable(model_input(model, images))
    depth = len(families)
    wanted = range(depth) if layers is None else {layer_index(index, depth) for index in layers}
    laid_out = [layout(vit, batch)] if vit is model else []
    kinds: dict[str, str] = {}  # of the layers that have run
    found: dict[int, Layer] = {}

    inside: dict[str, Any] = {}  # of a ViT inside the model: what it saw, and what it gave

    def enter(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inside["seen"] = first_argument(module, args, kwargs)
        laid_out.append(_layout_inside(module, inside["seen"], batch))

    def leave(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        inside["given"] = output

    def read(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name in kinds:
            raise ValueError(f"attention layer {name} ran twice in the forward pass")
        family = families[name][1]
        index = len(kinds)
        kinds[name] = family.kind
        if index not in wanted:
            return
        try:
            layer = found[index] = _layer(family, module, args, kwargs)
        except ValueError as error:
            title = f"layer {name} ({type(module).__name__})"
            raise ValueError(f"{title} cannot be read: {error}") from error
        grid, prefix, _ = laid_out[-1]
        if layer.operator.num_tokens != prefix + grid[0] * grid[1]:
            raise ValueError(
                f"layer {name} has {layer.operator.num_tokens} tokens, expected {prefix} "
                f"prefix tokens and a grid of {grid[0]}×{grid[1]} patches"
            )

    inner = {} if vit is model else {type(vit).__name__: vit}
    attention = {name: module for name, (module, _) in families.items()}
    with (
        watching(inner, before=enter, after=leave),
        watching(attention, before=read),
        forward_pass(model),
        torch.no_grad(),
    ):
        try:
            raw = output_tensor(model(batch))
        except AssertionError as error:  # timm's and torchvision's way to refuse a size
            raise ValueError(f"{type(model).__name__} refuses the images: {error}") from error
    if inside:
        model, batch = _core(model, vit, batch, raw, **inside)
    if kinds.keys() != families.keys():
        missing = ", ".join(sorted(families.keys() - kinds.keys()))
        raise ValueError(f"attention layers that did not run in the forward pass: {missing}")
    return Graphs(
        list(found.values()),
        laid_out[-1].num_prefix_tokens,
        laid_out[-1].grid,
        raw,
        laid_out[-1].reads_class_token,
        model,
        batch,
        tuple(kinds.values()),
        tuple(found),
        _output(model, raw),
    )


def _core(
    model: nn.Module, vit: nn.Module, images: Tensor, raw: Tensor, *, seen: Tensor, given: Any
) -> tuple[nn.Module, Tensor]:
    """What to run again of a model that holds a ViT, and on which images.

    Nothing may stand both before and behind the ViT: zero in the images that the rest of the model
    takes must be the mean colour, which removed patches get.
    """
    try:
        same = torch.equal(output_tensor(given), raw)
    except ValueError:  # tokens, for what stands behind
        same = False
    if same:
        return vit, seen
    if torch.equal(seen.to(images), images):
        return model, images
    raise ValueError(
        f"{type(model).__name__} changes the images before its {type(vit).__name__} and the "
        "outputs behind it; pass a model without the former, and images as they leave it"
    )


def _output(model: nn.Module, raw: Tensor) -> Output:
    """What the outputs of a model are, given some, (B, C)."""
    output = model_output(model)
    return "sigmoid" if output == "auto" and raw.shape[1] == 1 else output


def _layout_inside(vit: nn.Module, seen: Any, images: Tensor) -> Layout:
    """How the ViT inside a model lays out what it is given, where that keeps the images' frame."""
    if not isinstance(seen, Tensor) or seen.shape != images.shape:
        got = tuple(seen.shape) if isinstance(seen, Tensor) else type(seen).__name__
        raise ValueError(
            f"what stands before the {type(vit).__name__} must keep the images' shape "
            f"{tuple(images.shape)}, got {got}: maps would lie elsewhere; pass images of the "
            f"ViT's size, or the {type(vit).__name__} itself"
        )
    return layout(vit, seen)


def _usable(x: Tensor) -> Tensor:
    """A tensor, or a copy of one that was made in inference mode: autograd takes no such."""
    with torch.inference_mode(False):
        return x.clone() if x.is_inference() else x


def _layer(
    family: AttentionFamily, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Layer:
    """The layer that a module is in a call of it with these arguments."""
    x, further = inputs_of(family, module, args, kwargs)
    reading = family.read(module, x, **further)
    graph = KINDS[family.kind].graph
    operator = AttentionOperator(reading.q, reading.k, graph, scale=reading.scale)
    gamma = reading.gamma
    if gamma is None:
        gamma = x.new_full((operator.shape[1],), INITIAL_GAMMA, dtype=torch.float32)
    return Layer(operator, gamma.detach().float(), family.kind)


def inputs_of(
    family: AttentionFamily, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, dict[str, Any]]:
    """Of a call of an attention module: its tokens (B, N, D), and what else its reader takes.

    Raises:
        ValueError: if it is given a mask.
    """
    arguments = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    x = arguments.pop(next(iter(arguments)))
    inputs = {**arguments, **arguments.pop("kwargs", {})}
    further = {name: inputs.pop(name) for name in family.inputs if name in inputs}
    masks = [name for name, value in inputs.items() if isinstance(value, Tensor) and value is not x]
    if inputs.get("is_causal"):
        masks.append("is_causal")
    if masks:
        raise ValueError(f"it is given {', '.join(masks)}, which a token graph does not hold")
    return x, further


def layout(model: nn.Module, images: Tensor) -> Layout:
    """How a model lays ``images`` (B, 3, H, W) out as tokens.

    Raises:
        ValueError: if the model is of no known family, or an image is smaller than a patch.
    """
    model = vit_of(model)
    family = model_of(model)
    if family is None:
        raise ValueError(
            f"{type(model).__name__} does not say where its patches are: it has no timm patch "
            f"embedding (patch_embed) and is of no family that is known ({known_models()}); "
            "register it with infsa_explain.vits.model_family"
        )
    return family.layout(model, images)


def patch_grid(model: nn.Module, images: Tensor) -> tuple[int, int]:
    """(gh, gw) of the patches that ``model`` cuts ``images`` (B, 3, H, W) into.

    Raises:
        ValueError: as :func:`layout`.
    """
    return layout(model, images).grid


def dead_heads(graphs: Graphs) -> Tensor:
    """Which heads of the layers captured pass nothing on: (L, B, H) bool.

    A pure head is dead where its graph has no edge, a linear head where its weights are all
    zero; a softmax head never is.
    """
    return torch.stack([layer.dead() for layer in graphs.layers])
