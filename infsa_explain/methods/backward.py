"""The gradient of a class's logit at every attention layer, from one more pass of the model.

Fused attention does not form the attention matrix A of a head, and its gradient does not need it.
The output of the head is o = A v, so that with g = ∂y/∂o

    ∂y/∂A_ij = g_i · v_j

and g is the gradient of the attention module's output, propagated back through what follows the
heads in the module: norm, gate, projection. No part of the model is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from infsa_metrics import class_logits, output_tensor
from torch import Tensor, nn

from ..vits import Reading, attention_layers
from ..vits.capturing import Graphs, Layer
from ..vits.finding import inputs_of
from ..vits.kinds import KINDS
from ..vits.passes import forward_pass, watching
from .registry import MethodNotApplicable

__all__ = ["LayerGradients", "attention_matrix", "gradients", "layer_gradients"]


@dataclass(frozen=True)
class LayerGradients:
    """One attention layer in a forward and a backward pass; y is the logit of a class.

    Attributes:
        name: of the attention module in the model.
        kind: ``"linear"``, ``"pure"`` or ``"softmax"``.
        tokens: x, the module's input, (B, N, D).
        tokens_gradient: ∂y/∂x, (B, N, D).
        output_gradient: the gradient at the module's output, (B, N, D).
        read: gives the module's reading of x.
    """

    name: str
    kind: str
    tokens: Tensor = field(repr=False)
    tokens_gradient: Tensor = field(repr=False)
    output_gradient: Tensor = field(repr=False)
    read: Callable[[], Reading] = field(repr=False)

    def heads(self) -> tuple[Tensor, Tensor]:
        """g and v, each (B, H, N, d) in at least float32: ∂y/∂A_ij = g_i · v_j.

        Raises:
            MethodNotApplicable: if the layer's reader does not give values and output.
        """
        with _recording(self.tokens):
            with torch.no_grad():
                reading = self.read()
                if reading.values is None or reading.output is None:
                    raise MethodNotApplicable(
                        f"the gradient of attention cannot be had in layer {self.name}: its "
                        "Reading has no values and output"
                    )
                v = reading.values()
                heads = KINDS[self.kind].apply(reading, v)
            heads.requires_grad_()
            (g,) = torch.autograd.grad(reading.output(heads), heads, self.output_gradient)
        return _at_least_float32(g), _at_least_float32(v)


def gradients(graphs: Graphs, targets: Tensor) -> list[LayerGradients]:
    """The gradients of every attention layer; y is the logit of each image's target.

    The model runs in eval mode without autocast, and is unchanged afterwards. The result is cached
    while ``graphs`` exist, until other targets are asked for.

    Args:
        graphs: whose model is run again on its images.
        targets: (B,) long, classes; or (B, D), the features of a model without a classifier.

    Returns:
        One :class:`LayerGradients` per layer of the model, in order.

    Raises:
        ValueError: for a model whose output has no gradient.
    """
    cached_targets, result = _LATEST.get(graphs, (None, []))
    if cached_targets is None or not torch.equal(cached_targets, targets):
        result = _backward(graphs, targets)
        _LATEST[graphs] = targets.clone(), result
    return result


def layer_gradients(layer: Layer, graphs: Graphs, targets: Tensor) -> LayerGradients:
    """The gradients of one of the layers of ``graphs``; see :func:`gradients`."""
    return gradients(graphs, targets)[graphs.indices[graphs.layers.index(layer)]]


#: The last targets of graphs that are in use, and their gradients.
_LATEST: WeakKeyDictionary[Graphs, tuple[Tensor, list[LayerGradients]]] = WeakKeyDictionary()


def _backward(graphs: Graphs, targets: Tensor) -> list[LayerGradients]:
    require_gradients(graphs.model)
    readers = attention_layers(graphs.model)
    names: list[str] = []
    reads: list[Callable[[], Reading]] = []
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []

    def keep(
        name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        reader = readers[name][1]
        x, further = inputs_of(reader, module, args, kwargs)
        further = {k: v.detach() if isinstance(v, Tensor) else v for k, v in further.items()}
        tokens = output if isinstance(output, Tensor) else output[0]
        if not tokens.requires_grad:
            raise MethodNotApplicable(f"no gradient passes through layer {name}")
        names.append(name)
        reads.append(partial(reader.read, module, x.detach(), **further))
        inputs.append(x)
        outputs.append(tokens)

    with forward_pass(graphs.model), _recording(graphs.images):
        # Gradients start at the images, so that frozen parameters are no obstacle.
        images = graphs.images.detach().clone().requires_grad_()
        with watching({name: module for name, (module, _) in readers.items()}, after=keep):
            raw = output_tensor(graphs.model(images))
        if not raw.requires_grad:
            title = type(graphs.model).__name__
            raise MethodNotApplicable(f"no gradient reaches the output of {title}")
        y = scores_of(class_logits(raw, graphs.output), targets).sum()  # images are independent
        slopes = torch.autograd.grad(y, [*inputs, *outputs], materialize_grads=True)
    return [
        LayerGradients(name, readers[name][1].kind, x.detach(), x_slope, output_slope, read)
        for name, read, x, x_slope, output_slope in zip(
            names, reads, inputs, slopes[: len(inputs)], slopes[len(inputs) :], strict=True
        )
    ]


def scores_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """y of each image, (B,), from the model's outputs (B, K).

    The logit of the target class; or the projection of the features on the target features, those
    of the clean image. (The gradient of their cosine is zero at the clean image.)
    """
    if targets.is_floating_point():
        return (outputs * targets.to(outputs)).sum(-1)
    return outputs.gather(1, targets[:, None]).squeeze(1)


def require_gradients(model: nn.Module) -> None:
    """Refuse a model whose gradients would be wrong or missing.

    Raises:
        MethodNotApplicable: if a layer is quantised, or a parameter was made in inference mode.
    """
    for name, module in model.named_modules():
        cls = type(module)
        if ".quantized." in f"{cls.__module__}.":
            raise MethodNotApplicable(
                f"gradients do not pass through the quantised layer {name} "
                f"({cls.__name__}); explain the model before it is quantised"
            )
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise MethodNotApplicable(
            f"{type(model).__name__} was made under torch.inference_mode(), so its parameters have "
            "no gradient; build or load it outside"
        )


def attention_matrix(layer: Layer) -> Tensor:
    """A of a layer, (B, H, N, N): the output of its heads is A v.

    Softmax attention, γÂ of a pure layer, or γ times `a` in every row of a linear layer.
    """
    return layer.gain().to(layer.operator.q)[:, None, None] * layer.matrix()


@contextmanager
def _recording(like: Tensor) -> Iterator[None]:
    """Within this context gradients are recorded, without autocast."""
    off = torch.autocast(like.device.type, enabled=False)
    with torch.inference_mode(False), torch.enable_grad(), off:
        yield


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
