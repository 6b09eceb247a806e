"""The gradient of a class's logit at every attention layer, from one more pass of the model.

The attention matrix A of a head never shows where attention is fused, and need not. The head
passes on o = A v, so that with g = ∂y/∂o

    ∂y/∂A_ij = g_i · v_j

and g follows from the gradient of what the attention module gives, through what the module does
after its heads: norm, gate, projection. Nothing of the model is replaced.
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

from ..vits import Reading
from ..vits.capturing import Graphs, Layer, attention_layers, inputs_of
from ..vits.kinds import KINDS
from ..vits.watching import forward_pass, watching
from .registry import MethodNotApplicable

__all__ = ["LayerGradients", "attention_matrix", "gradients"]


@dataclass(frozen=True)
class LayerGradients:
    """One attention layer in a forward and a backward pass; y is the logit of a class.

    Attributes:
        name: of the attention module in the model.
        kind: ``"linear"``, ``"pure"`` or ``"softmax"``.
        tokens: x, what enters the module, (B, N, D).
        tokens_gradient: ∂y/∂x, (B, N, D).
        output_gradient: the gradient of what the module gives, (B, N, D).
        read: reads the module at x.
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
            MethodNotApplicable: for a layer whose reader does not say what its values are.
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
    """The gradients of every attention layer, y being the logit of each image's target.

    The model runs in eval mode without autocast, and is left as found. The result is kept for as
    long as ``graphs`` are, or until another target is asked for.

    Args:
        graphs: whose model and images are run again.
        targets: (B,) long, classes; or (B, D), the features of a model without a classifier.

    Returns:
        One a layer, in the order of ``graphs.layers``.

    Raises:
        ValueError: for a model whose output has no gradient.
    """
    known, result = _LATEST.get(graphs, (None, []))
    if known is None or not torch.equal(known, targets):
        result = _backward(graphs, targets)
        _LATEST[graphs] = targets.clone(), result
    return result


#: The targets and gradients last computed of graphs that are in use.
_LATEST: WeakKeyDictionary[Graphs, tuple[Tensor, list[LayerGradients]]] = WeakKeyDictionary()


def _backward(graphs: Graphs, targets: Tensor) -> list[LayerGradients]:
    require_gradients(graphs.model)
    families = attention_layers(graphs.model)
    layers: list[tuple[str, str, Callable[[Tensor], Reading]]] = []
    ends: list[Tensor] = []  # what enters a module, and what it gives, one after the other

    def keep(
        name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        family = families[name][1]
        x, inputs = inputs_of(family, module, args, kwargs)
        inputs = {k: v.detach() if isinstance(v, Tensor) else v for k, v in inputs.items()}
        given = output if isinstance(output, Tensor) else output[0]
        if not given.requires_grad:
            raise MethodNotApplicable(f"no gradient passes through layer {name}")
        layers.append((name, family.kind, lambda x: family.read(module, x, **inputs)))
        ends.extend((x, given))

    with forward_pass(graphs.model), _recording(graphs.images):
        # Of the images, so that frozen parameters are no obstacle.
        images = graphs.images.detach().clone().requires_grad_()
        modules = {name: module for name, (module, _) in families.items()}
        with watching(modules, after=keep):
            raw = output_tensor(graphs.model(images))
        if not raw.requires_grad:
            raise MethodNotApplicable(f"no gradient reaches the output of {_title(graphs.model)}")
        y = scores_of(class_logits(raw, graphs.output), targets).sum()  # images do not meet
        slopes = torch.autograd.grad(y, ends, materialize_grads=True)
    ends = [x.detach() for x in ends[::2]]
    return [
        LayerGradients(name, kind, x, x_slope, output_slope, partial(read, x))
        for (name, kind, read), x, x_slope, output_slope in zip(
            layers, ends, slopes[::2], slopes[1::2], strict=True
        )
    ]


def scores_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """y of each image, (B,): what its targets are in the model's outputs, (B, K).

    The logit of a class, or the projection of the features on those of the clean image: their
    cosine itself has no gradient there.
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
            f"{_title(model)} was made under torch.inference_mode(), so nothing of it has a "
            "gradient; build or load it outside"
        )


def _title(model: nn.Module) -> str:
    return type(model).__name__


def attention_matrix(layer: Layer) -> Tensor:
    """A, what the heads of a layer do to their values, (B, H, N, N).

    Softmax attention, γÂ of a pure layer, or γ times `a` in every row of a linear one.
    """
    return layer.gain().to(layer.operator.q)[:, None, None] * layer.matrix()


@contextmanager
def _recording(like: Tensor) -> Iterator[None]:
    """Gradients on, and nothing that lowers the precision."""
    off = torch.autocast(like.device.type, enabled=False)
    with torch.inference_mode(False), torch.enable_grad(), off:
        yield


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
