"""What a model's output means: class logits, independent labels, or features.

Models return tensors, tuples, dicts and objects of many classes. :func:`output_tensor` finds the
(B, C) tensor in them. Its columns mean one of three things, called the *output*:

- ``"softmax"``: logits of classes of which exactly one is right;
- ``"sigmoid"``: logits of labels that are independent of one another. A single logit z answers a
  yes-or-no question: it is read as two classes, 0 for no and 1 for yes, with the logits
  (−z/2, z/2), whose softmax is (σ(−z), σ(z));
- ``"embedding"``: features of a model without a classifier. They have no classes; a masked image
  is compared with the clean one by the cosine of their features.

``"auto"`` is ``"sigmoid"`` for a single logit, over which a softmax is always 1, and otherwise
``"softmax"``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import RLock
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

__all__ = ["Output", "class_logits", "class_probabilities", "eval_mode", "output_tensor"]

Output = Literal["auto", "softmax", "sigmoid", "embedding"]


def output_tensor(output: Any) -> Tensor:
    """The (B, C) tensor in what a model returned.

    Args:
        output: a tensor; an object or a dict with ``logits``, or else with ``pooler_output`` or
            ``last_hidden_state``, of which the first token is taken; or a tuple or list, of which
            the first two-dimensional tensor is taken.

    Returns:
        (B, C): logits, or the features of a model without a classifier.

    Raises:
        ValueError: if there is no such tensor.

    >>> output_tensor({"logits": torch.zeros(2, 5)}).shape
    torch.Size([2, 5])
    >>> output_tensor((torch.zeros(2, 7, 8), torch.zeros(2, 8))).shape
    torch.Size([2, 8])
    """
    found = _candidate(output)
    if found is None or found.ndim != 2:
        raise ValueError(
            f"the model's output must hold logits of shape (B, C), got {_described(output)}; wrap "
            "the model in a module that returns them"
        )
    return found


def _candidate(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple | list) and not hasattr(output, "_fields"):
        return next((x for x in output if isinstance(x, Tensor) and x.ndim == 2), None)
    fields = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
    for name in ("logits", "pooler_output"):
        value = fields.get(name, getattr(output, name, None))
        if isinstance(value, Tensor):
            return value
    tokens = fields.get("last_hidden_state", getattr(output, "last_hidden_state", None))
    return tokens[:, 0] if isinstance(tokens, Tensor) and tokens.ndim == 3 else None


def _described(output: Any) -> str:
    if isinstance(output, Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    title = type(output).__name__
    if isinstance(output, Mapping):
        return f"a {title} with {', '.join(map(repr, output)) or 'nothing'}"
    if isinstance(output, tuple | list):
        shapes = (tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__ for x in output)
        return f"a {title} of {', '.join(map(str, shapes)) or 'nothing'}"
    return f"a {title}"


def class_logits(raw: Tensor, output: Output = "auto") -> Tensor:
    """Logits of classes, (B, K), from a model's outputs, (B, C).

    K is C, but 2 for a single logit. Features are returned as they are.

    Raises:
        ValueError: for an unknown output, or ``"softmax"`` of a single logit.

    >>> class_logits(torch.tensor([[2.0]])).softmax(-1)  # σ(−2), σ(2)
    tensor([[0.1192, 0.8808]])
    """
    if output not in get_args(Output):
        names = ", ".join(get_args(Output))
        raise ValueError(f"output must be one of {names}, got {output!r}")
    if output == "embedding" or raw.shape[1] != 1:
        return raw
    if output == "softmax":
        raise ValueError(
            "output must be 'sigmoid' for a model with a single logit, got 'softmax': a softmax "
            "over one class is always 1"
        )
    return torch.cat([-raw, raw], dim=1) / 2


def class_probabilities(raw: Tensor, output: Output = "auto") -> Tensor:
    """Probabilities of classes, (B, K), from a model's outputs, (B, C).

    At least in float32. Rows sum to 1, but not for ``"sigmoid"`` of several labels. Features are
    returned as they are.

    Raises:
        ValueError: as :func:`class_logits`.

    >>> class_probabilities(torch.tensor([[0.0, 2.0]]), "sigmoid")
    tensor([[0.5000, 0.8808]])
    """
    logits = class_logits(raw, output)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if output == "embedding":
        return logits
    independent = output == "sigmoid" and raw.shape[1] > 1
    return logits.sigmoid() if independent else logits.softmax(1)


#: How many passes hold each model in eval mode, and which of its modules were in training mode.
_HELD: WeakKeyDictionary[nn.Module, tuple[int, list[nn.Module]]] = WeakKeyDictionary()
_LOCK = RLock()


@contextmanager
def eval_mode(model: object) -> Iterator[None]:
    """Hold a module in eval mode, and put back every submodule's own mode afterwards.

    Threads that hold the same model share it: the last one to leave puts the modes back. What is
    no module is left alone.
    """
    if not isinstance(model, nn.Module):
        yield
        return
    with _LOCK:
        holders, training = _HELD.get(model, (0, []))
        if not holders:
            training = [module for module in model.modules() if module.training]
            for module in training:
                module.training = False
        _HELD[model] = holders + 1, training
    try:
        yield
    finally:
        with _LOCK:
            holders, training = _HELD.pop(model)
            if holders > 1:
                _HELD[model] = holders - 1, training
            else:
                for module in training:
                    module.training = True
