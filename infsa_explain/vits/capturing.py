"""Capture: the token graph of every attention layer of a Vision Transformer, in one pass.

Queries and keys are computed from the tokens that enter each attention layer. So the model runs
unchanged, with fused attention too. How layers are read is in :mod:`infsa_explain.vits.registry`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from infsa_metrics import class_logits, output_tensor
from infsa_metrics.outputs import Output
from torch import Tensor, nn

from ..attention.functional import INITIAL_GAMMA
from ..graph.operator import AttentionOperator
from .finding import attention_kinds, attention_layers, inputs_of
from .kinds import KINDS
from .passes import forward_pass, watching
from .registry import AttentionReader, Layout, family_of, known_families
from .wrappers import first_argument, model_output, unwrapped, vit_of

if TYPE_CHECKING:
    from ..data.pixels import AnyImage

__all__ = [
    "Graphs",
    "Layer",
    "attention_kinds",
    "capture",
    "dead_heads",
    "index_of",
    "layer_index",
    "layout",
    "patch_grid",
]


class Layer(NamedTuple):
    """One attention layer in a forward pass.

    Attributes:
        operator: its token graph over (B, H).
        gamma: γ per head, (H,).
        kind: ``"linear"``, ``"pure"`` or ``"softmax"``.
    """

    operator: AttentionOperator
    gamma: Tensor
    kind: str

    def matrix(self) -> Tensor:
        """A without its gain, (B, H, N, N): heads output gain · A v. All rows equal if linear."""
        return KINDS[self.kind].matrix(self.operator)

    def row(self) -> Tensor | None:
        """The common row of A in a linear layer, (B, H, N); else None."""
        return KINDS[self.kind].row(self.operator)

    def gain(self) -> Tensor:
        """γ per head of an InfSA layer, 1 for softmax, (H,)."""
        return KINDS[self.kind].gain(self.gamma)

    def dead(self) -> Tensor:
        """Which heads output zero, (B, H) bool."""
        return KINDS[self.kind].dead(self.operator)


@dataclass(frozen=True, eq=False)  # compared and hashed by identity
class Graphs:
    """The token graphs of one forward pass.

    Attributes:
        layers: one :class:`Layer` per captured attention module, in order of execution.
        num_prefix_tokens: class, register and distillation tokens. They come first.
        grid: (gh, gw), the patch grid. Tokens after the prefix are its raster scan.
        logits: (B, C), the model's outputs; pooled features if it has no classifier.
        reads_class_token: True if the classifier reads the class token, which is the first token;
            False if it pools over the patches.
        model, images: for methods that run the model again: the ViT and its input, or the whole
            model and its input if the model has layers behind the ViT.
        kinds: of every layer of the model, ``"linear"``, ``"pure"`` or ``"softmax"``.
        indices: in the model, of the layers in ``layers``.
        output: what the logits are, ``"embedding"`` for features; see
            :mod:`infsa_metrics.outputs`.
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
        """(B, K), one column per class: a single logit becomes two. Features are unchanged."""
        return class_logits(self.logits, self.output)

    def layer(self, index: int) -> Layer:
        """The layer with that index in the model.

        Raises:
            ValueError: if it was not captured.
        """
        if index not in self.indices:
            raise ValueError(f"layer {index} was not captured, only {list(self.indices)}")
        return self.layers[self.indices.index(index)]

    @property
    def operators(self) -> list[AttentionOperator]:
        """One operator per layer."""
        return [layer.operator for layer in self.layers]

    @property
    def gammas(self) -> list[Tensor]:
        """γ per head, (H,), for each layer; 0.95 for softmax layers."""
        return [layer.gamma for layer in self.layers]


def layer_index(layer: int | str, depth: int, expected: str = "a whole number or 'last'") -> int:
    """The index from 0 to depth − 1 of a layer.

    Args:
        layer: an index, negative from the end, or its decimal digits; or ``"last"``.
        depth: the number of layers.
        expected: what else a caller takes, for the error.

    Raises:
        ValueError: if it is none of these, or out of range.
    """
    return index_of(-1 if layer == "last" else layer, depth, "layer", expected)


def index_of(index: int | str, number: int, name: str, expected: str) -> int:
    """The index from 0 to number − 1 of a layer or a head, as :func:`layer_index`.

    Args:
        index: a whole number, negative from the end, or its decimal digits.
        number: of layers or heads.
        name: of the argument, for errors.
        expected: what the argument must be, for errors.

    Raises:
        ValueError: if it is no whole number, or out of range.
    """
    try:
        value = int(str(index))  # refuses 1.5, True and None
    except ValueError:
        raise ValueError(f"{name} must be {expected}, got {index!r}") from None
    if not -number <= value < number:
        raise ValueError(
            f"{name} {value} is out of range: the model has {number} ({name} 0 to {number - 1})"
        )
    return value % number


def capture(
    model: nn.Module,
    images: AnyImage | Iterable[AnyImage],
    layers: Sequence[int] | None = None,
) -> Graphs:
    """Run the model once and read the token graph of every layer.

    The model runs in eval mode. Several threads may capture from one model at a time.

    Args:
        model: a supported ViT, or a model that holds exactly one and does not resize its input.
            Its mode, weights and hooks are unchanged afterwards.
        images: (B, 3, H, W), normalised as the model expects, on the model's device; or anything
            else that :func:`infsa_explain.explain` takes.
        layers: indices of the layers to read, negative from the end; None for all. Queries and
            keys of these layers stay in memory, which for large images takes gigabytes.

    Returns:
        :class:`Graphs`, with the logits of the same pass.

    Raises:
        ValueError: if a layer cannot be read or did not run exactly once, the model does not take
            images of this size, the tokens do not fit the patch grid, or an index in ``layers`` is
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
    readers = attention_layers(model)
    depth = len(readers)
    wanted = range(depth) if layers is None else {layer_index(index, depth) for index in layers}
    batch = _usable(model_input(model, images))
    seen = _Pass(model, vit_of(model), batch, readers, wanted)
    raw = seen.run()
    core, core_images = seen.core(raw)
    return Graphs(
        list(seen.layers.values()),
        seen.layout.num_prefix_tokens,
        seen.layout.grid,
        raw,
        seen.layout.reads_class_token,
        core,
        core_images,
        tuple(seen.kinds.values()),
        tuple(seen.layers),
        _output(core, raw),
    )


class _Pass:
    """One forward pass of a model, in which hooks read its attention layers.

    Attributes:
        model, vit: the model, and the ViT in it, which is the model itself as a rule.
        batch: what the model is given, (B, 3, H, W).
        readers: its attention modules by name, with their readers.
        wanted: indices of the layers that are kept.
        layout: how the ViT arranges its input as tokens; of a ViT inside a model, once it ran.
        kinds: of the layers that have run, by name.
        layers: those that are kept, by index.
        vit_input, vit_output: of a ViT inside the model.
    """

    def __init__(
        self,
        model: nn.Module,
        vit: nn.Module,
        batch: Tensor,
        readers: dict[str, tuple[nn.Module, AttentionReader]],
        wanted: Collection[int],
    ) -> None:
        self.model, self.vit, self.batch = model, vit, batch
        self.readers, self.wanted = readers, wanted
        self.kinds: dict[str, str] = {}
        self.layers: dict[int, Layer] = {}
        self.vit_input: Any = None
        self.vit_output: Any = None
        if vit is model:
            self.layout = layout(vit, batch)

    def run(self) -> Tensor:
        """The outputs of the model, (B, C), after a pass in which each layer ran once."""
        modules = {name: module for name, (module, _) in self.readers.items()}
        inner = {} if self.vit is self.model else {type(self.vit).__name__: self.vit}
        with (
            watching(inner, before=self.enter_vit, after=self.leave_vit),
            watching(modules, before=self.read_layer),
            forward_pass(self.model),
            torch.no_grad(),
        ):
            try:
                raw = output_tensor(self.model(self.batch))
            except AssertionError as error:  # timm and torchvision refuse a size so
                title = type(self.model).__name__
                raise ValueError(f"{title} refuses the images: {error}") from error
        if self.kinds.keys() != self.readers.keys():
            missing = ", ".join(sorted(self.readers.keys() - self.kinds.keys()))
            raise ValueError(f"attention layers that did not run in the forward pass: {missing}")
        return raw

    def enter_vit(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.vit_input = first_argument(module, args, kwargs)
        self.layout = _layout_inside(module, self.vit_input, self.batch)

    def leave_vit(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self.vit_output = output

    def read_layer(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if name in self.kinds:
            raise ValueError(f"attention layer {name} ran twice in the forward pass")
        reader = self.readers[name][1]
        index = len(self.kinds)
        self.kinds[name] = reader.kind
        if index not in self.wanted:
            return
        try:
            layer = self.layers[index] = _layer(reader, module, args, kwargs)
        except ValueError as error:
            title = f"layer {name} ({type(module).__name__})"
            raise ValueError(f"{title} cannot be read: {error}") from error
        (gh, gw), prefix, _ = self.layout
        if layer.operator.num_tokens != prefix + gh * gw:
            raise ValueError(
                f"layer {name} has {layer.operator.num_tokens} tokens, expected {prefix} "
                f"prefix tokens and a grid of {gh}×{gw} patches"
            )

    def core(self, raw: Tensor) -> tuple[nn.Module, Tensor]:
        """What methods run again, and on which images: the ViT alone where that gives the outputs.

        Otherwise the model, which then must not change the images before the ViT: removed patches
        are set to zero in the images that are run again, and zero must be the mean colour.
        """
        if self.vit is self.model:
            return self.model, self.batch
        try:
            same = torch.equal(output_tensor(self.vit_output), raw)
        except ValueError:  # the ViT gives tokens to the layers behind it
            same = False
        if same:
            return self.vit, self.vit_input
        if torch.equal(self.vit_input.to(self.batch), self.batch):
            return self.model, self.batch
        raise ValueError(
            f"{type(self.model).__name__} changes the images before its {type(self.vit).__name__} "
            "and the outputs behind it; pass a model without the former, and images as they leave "
            "it"
        )


def _output(model: nn.Module, raw: Tensor) -> Output:
    """The kind of a model's outputs (B, C)."""
    output = model_output(model)
    return "sigmoid" if output == "auto" and raw.shape[1] == 1 else output


def _layout_inside(vit: nn.Module, seen: Any, images: Tensor) -> Layout:
    """The layout of a ViT inside a model, whose input must have the shape of the images."""
    if not isinstance(seen, Tensor) or seen.shape != images.shape:
        got = tuple(seen.shape) if isinstance(seen, Tensor) else type(seen).__name__
        raise ValueError(
            f"what stands before the {type(vit).__name__} must keep the images' shape "
            f"{tuple(images.shape)}, got {got}: maps would lie elsewhere; pass images of the "
            f"ViT's size, or the {type(vit).__name__} itself"
        )
    return layout(vit, seen)


def _usable(x: Tensor) -> Tensor:
    """The tensor, or a copy if it was made in inference mode, which autograd does not take."""
    with torch.inference_mode(False):
        return x.clone() if x.is_inference() else x


def _layer(
    reader: AttentionReader, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Layer:
    """An attention module in a call with these arguments."""
    x, inputs = inputs_of(reader, module, args, kwargs)
    reading = reader.read(module, x, **inputs)
    graph = KINDS[reader.kind].graph
    operator = AttentionOperator(reading.q, reading.k, graph, scale=reading.scale)
    gamma = reading.gamma
    if gamma is None:
        gamma = x.new_full((operator.shape[1],), INITIAL_GAMMA, dtype=torch.float32)
    return Layer(operator, gamma.detach().float(), reader.kind)


def layout(model: nn.Module, images: Tensor) -> Layout:
    """How a model arranges ``images`` (B, 3, H, W) as tokens.

    Raises:
        ValueError: if the model is of no known family, or an image is smaller than a patch.
    """
    model = vit_of(model)
    family = family_of(model)
    if family is None:
        raise ValueError(
            f"{type(model).__name__} does not say where its patches are: it has no timm patch "
            f"embedding (patch_embed) and is of no known family ({known_families()}); "
            "register one with infsa_explain.extensions.register_family"
        )
    return family.layout(model, images)


def patch_grid(model: nn.Module, images: Tensor) -> tuple[int, int]:
    """(gh, gw), the patch grid of a model for ``images`` (B, 3, H, W).

    Raises:
        ValueError: as :func:`layout`.
    """
    return layout(model, images).grid


def dead_heads(graphs: Graphs) -> Tensor:
    """Which heads of the captured layers output zero: (L, B, H) bool.

    A pure head is dead if its graph has no edge, a linear head if all its weights are zero. A
    softmax head is never dead.
    """
    return torch.stack([layer.dead() for layer in graphs.layers])
