"""The registry of model families: how attention is read, where patches are, what converts.

Three things are registered, each with a matcher that tells the modules it is for: a *reader* gives
queries and keys of an attention module; a *layout* gives a model's patch grid and prefix tokens;
*forms* are the classes that an attention module takes when it is converted.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

__all__ = [
    "AttentionFamily",
    "Forms",
    "Layout",
    "Reading",
    "attention_family",
    "attention_of",
    "convertible",
    "forms_of",
    "model_family",
    "model_of",
]

Matcher = Callable[[nn.Module], bool]


class Reading(NamedTuple):
    """What an attention module makes of its tokens, as the softmax or InfSA takes it.

    Attributes:
        q, k: queries and keys, (B, H, N, d), after any norm and rotation.
        gamma: γ per head, (H,); None for a layer without, softmax.
        scale: of the softmax; None for 1/√d.
        values: gives v, (B, H, N, d). Only gradients ask; they are refused where it is None.
        output: the rest of the module, from what the heads pass on, (B, H, N, d), to the tokens
            that it gives, (B, N, D), differentiable; what does not depend on the heads may be
            left out. Needed where ``values`` are.
    """

    q: Tensor
    k: Tensor
    gamma: Tensor | None = None
    scale: float | None = None
    values: Callable[[], Tensor] | None = None
    output: Callable[[Tensor], Tensor] | None = None


Reader = Callable[..., Reading]


class AttentionFamily(NamedTuple):
    """How attention modules of one kind are told and read; see :func:`attention_family`."""

    name: str
    matches: Matcher
    kind: str
    read: Reader
    inputs: tuple[str, ...]


class Layout(NamedTuple):
    """How a model lays an image out as tokens.

    Attributes:
        grid: (gh, gw), the patch grid; patch tokens are its raster scan and come last.
        num_prefix_tokens: class, register and distillation tokens; they come first.
        reads_class_token: whether the classifier reads the class token, which is the very first,
            or pools over the patches alone.
    """

    grid: tuple[int, int]
    num_prefix_tokens: int
    reads_class_token: bool


class ModelFamily(NamedTuple):
    """How models of one source are told and laid out; see :func:`model_family`."""

    name: str
    matches: Matcher
    layout: Callable[[Any, Tensor], Layout]
    data: Callable[[Any], dict[str, Any]]
    classifies: Callable[[Any], bool]
    fresh: Callable[[Any], nn.Module] | None = None
    drop: Callable[[Any], nn.Module | None] | None = None


class Forms(NamedTuple):
    """The classes of an attention module with one kind of attention or another.

    They share their attributes but for ``gamma_logit`` (H,), which softmax is without, so that a
    module changes its kind by changing its class.
    """

    softmax: type[nn.Module]
    pure: type[nn.Module]
    linear: type[nn.Module]
    num_heads: int
    dropout: float


_ATTENTION: list[AttentionFamily] = []
_MODELS: list[ModelFamily] = []
_FORMS: list[tuple[Matcher, Callable[[Any], Forms]]] = []


def attention_family(
    attention: type[nn.Module] | str | Matcher, kind: str, *, inputs: tuple[str, ...] = ()
) -> Callable[[Reader], Reader]:
    """Register how to read q and k of an attention module from the tokens that enter it.

    Args:
        attention: the module's class (not its subclasses, which may compute otherwise), its
            dotted name, which imports nothing, or a function that tells whether a module is one.
        kind: ``"softmax"``, ``"pure"`` or ``"linear"``.
        inputs: names of further arguments of the module's ``forward`` that the reader takes.

    Returns:
        A decorator for ``reader(module, x, **inputs)``, with x (B, N, D), that gives a
        :class:`Reading`. A reader says with a ValueError what it cannot read.
    """
    if isinstance(attention, str):
        name, matches = attention.rpartition(".")[2], _is_named(attention)
    else:
        name = attention.__name__
        matches = _is_exactly(attention) if isinstance(attention, type) else attention

    def register(reader: Reader) -> Reader:
        _ATTENTION.append(AttentionFamily(name, matches, kind, reader, inputs))
        return reader

    return register


def model_family(
    name: str,
    matches: Matcher,
    data: Callable[[Any], dict[str, Any]],
    classifies: Callable[[Any], bool] = lambda model: getattr(model, "num_classes", None) != 0,
    *,
    fresh: Callable[[Any], nn.Module] | None = None,
    drop: Callable[[Any], nn.Module | None] | None = None,
) -> Callable[[Callable[[Any, Tensor], Layout]], Callable[[Any, Tensor], Layout]]:
    """Register how models of a family lay out their tokens.

    Args:
        name: for messages.
        matches: whether a model is of the family.
        data: of a model, what timm calls its ``pretrained_cfg``: how images are prepared. Its
            ``input_size`` holds whatever else the model says.
        classifies: whether a model has a classifier; without, its outputs are features.
        fresh: builds a model of the same shape with fresh weights, drawn by torch's generator; for
            controls. None for a copy on which ``init_weights()`` is called.
        drop: the module of a model whose output is all tokens, (B, N, D), with their positions,
            before the first block: there patches are taken out for the fill ``drop``. None, or a
            function that gives None, where tokens cannot be taken out.

    Returns:
        A decorator for ``layout(model, images)``, with images (B, 3, H, W).
    """

    def register(layout: Callable[[Any, Tensor], Layout]) -> Callable[[Any, Tensor], Layout]:
        _MODELS.append(ModelFamily(name, matches, layout, data, classifies, fresh, drop))
        return layout

    return register


def convertible(matches: Matcher) -> Callable[[Callable[[Any], Forms]], Callable[[Any], Forms]]:
    """Register the forms that an attention module can take: ``forms(module)``."""

    def register(forms: Callable[[Any], Forms]) -> Callable[[Any], Forms]:
        _FORMS.append((matches, forms))
        return forms

    return register


def attention_of(module: nn.Module) -> AttentionFamily | None:
    """How to read a module, or None for one that is no attention we know. The latest wins."""
    return next((family for family in reversed(_ATTENTION) if family.matches(module)), None)


def model_of(model: nn.Module) -> ModelFamily | None:
    """The family of a model, or None. The latest registered wins."""
    return next((family for family in reversed(_MODELS) if family.matches(model)), None)


def forms_of(module: nn.Module) -> Forms | None:
    """The forms that an attention module can take, or None."""
    return next((forms(module) for matches, forms in reversed(_FORMS) if matches(module)), None)


def known_attention() -> str:
    """Names of the attention classes that can be read, for messages."""
    return ", ".join(sorted({family.name for family in _ATTENTION}))


def known_models() -> str:
    """Names of the model families, for messages."""
    return ", ".join(sorted({family.name for family in _MODELS}))


def _is_exactly(cls: type[nn.Module]) -> Matcher:
    return lambda module: type(module) is cls


def _is_named(name: str) -> Matcher:
    return lambda module: dotted_names(type(module))[0] == name


# ---------------------------------------------------------------- what readers and layouts share


def dotted_names(cls: type[nn.Module]) -> list[str]:
    """Names of a class and of its bases, with their modules: a match that imports nothing."""
    return [f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__]


def reinitialised(model: nn.Module) -> nn.Module:
    """A copy with fresh weights, for models that say how by ``init_weights()``, as timm's do.

    Raises:
        ValueError: if the model has none.
    """
    if not hasattr(model, "init_weights"):
        family = model_of(model)
        title = type(model).__name__
        where = "" if family is None else f"; register the family {family.name!r} with fresh=…"
        raise ValueError(f"{title} has no init_weights() to build it anew with{where}")
    fresh: Any = copy.deepcopy(model)
    state = torch.get_rng_state()
    for module in fresh.modules():  # what init_weights leaves out in some releases of timm
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    torch.set_rng_state(state)
    fresh.init_weights()
    return cast(nn.Module, fresh)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, N, H·d) to (B, H, N, d)."""
    return x.reshape(*x.shape[:2], num_heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, N, d) to (B, N, H·d)."""
    return x.transpose(1, 2).flatten(2)


def patches(images: Tensor, patch: tuple[int, int]) -> tuple[int, int]:
    """(gh, gw) of images (B, 3, H, W) cut into whole patches.

    Raises:
        ValueError: if an image is smaller than one.
    """
    height, width = images.shape[-2:]
    if height < patch[0] or width < patch[1]:
        raise ValueError(
            f"images of {height}×{width} pixels are smaller than a patch of {patch[0]}×{patch[1]}"
        )
    return height // patch[0], width // patch[1]
