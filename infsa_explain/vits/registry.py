"""The registry of model families: how models are told apart, read, built anew, and converted.

Three things are registered. A :class:`Family` knows the models of one source. A *reader*
(:func:`register_attention`) gives queries and keys of an attention module, which models of several
families may share. *Forms* (:func:`register_forms`) are the classes that an attention module takes
when it is converted. Of several that match, the one registered last is used.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

__all__ = [
    "ATTENTION",
    "FAMILIES",
    "AttentionReader",
    "Family",
    "Forms",
    "Layout",
    "Reading",
    "attention_of",
    "family_of",
    "forms_of",
    "register_attention",
    "register_family",
    "register_forms",
]

Matcher = Callable[[nn.Module], bool]

# ---------------------------------------------------------------- attention


class Reading(NamedTuple):
    """What an attention module computes from its tokens.

    Attributes:
        q, k: queries and keys, (B, H, N, d), after any norm and rotation.
        gamma: γ per head, (H,); None for softmax.
        scale: of the softmax; None for 1/√d.
        values: gives v, (B, H, N, d). None if the reader does not say: then methods that need the
            gradient of attention are refused.
        output: from the heads' outputs A v, (B, H, N, d), to the module's output, (B, N, D),
            differentiable. Terms that do not depend on the heads may be left out. Needed if
            ``values`` is given.
    """

    q: Tensor
    k: Tensor
    gamma: Tensor | None = None
    scale: float | None = None
    values: Callable[[], Tensor] | None = None
    output: Callable[[Tensor], Tensor] | None = None


Reader = Callable[..., Reading]


class AttentionReader(NamedTuple):
    """How attention modules of one class are read; see :func:`register_attention`."""

    name: str
    matches: Matcher
    kind: str
    read: Reader
    inputs: tuple[str, ...]


#: Readers in the order of their registration.
ATTENTION: list[AttentionReader] = []


def register_attention(
    attention: type[nn.Module] | str | Matcher, kind: str, *, inputs: tuple[str, ...] = ()
) -> Callable[[Reader], Reader]:
    """Register how queries and keys of an attention module are read from the tokens entering it.

    Args:
        attention: the module's class (without its subclasses, which may compute something else),
            its dotted name, which needs no import, or a function that recognises a module.
        kind: ``"softmax"``, ``"pure"`` or ``"linear"``.
        inputs: names of further arguments of the module's ``forward`` that the reader takes.

    Returns:
        A decorator for ``reader(module, x, **inputs)``, with x (B, N, D), which returns a
        :class:`Reading`. A reader raises a ValueError for a module that it cannot read.
    """
    if isinstance(attention, str):
        name, matches = attention.rpartition(".")[2], _has_name(attention)
    else:
        name = attention.__name__
        matches = _has_class(attention) if isinstance(attention, type) else attention

    def register(reader: Reader) -> Reader:
        ATTENTION.append(AttentionReader(name, matches, kind, reader, inputs))
        return reader

    return register


def attention_of(module: nn.Module) -> AttentionReader | None:
    """The reader of a module, or None if it is no attention that can be read."""
    return next((reader for reader in reversed(ATTENTION) if reader.matches(module)), None)


def known_attention() -> str:
    """Names of the attention classes that can be read, for messages."""
    return ", ".join(sorted({reader.name for reader in ATTENTION}))


def _has_class(cls: type[nn.Module]) -> Matcher:
    return lambda module: type(module) is cls


def _has_name(name: str) -> Matcher:
    return lambda module: dotted_names(type(module))[0] == name


# ---------------------------------------------------------------- models


class Layout(NamedTuple):
    """How a model arranges an image as tokens.

    Attributes:
        grid: (gh, gw), the patch grid. Patch tokens are its raster scan and come last.
        num_prefix_tokens: class, register and distillation tokens. They come first.
        reads_class_token: True if the classifier reads the class token, which is the first token;
            False if it pools over the patches.
    """

    grid: tuple[int, int]
    num_prefix_tokens: int
    reads_class_token: bool


class Family:
    """The models of one source. A new family is a subclass with :func:`register_family`.

    ``name``, ``matches`` and ``layout`` are required. The other methods have defaults.
    """

    #: For messages and tables.
    name: ClassVar[str] = "unknown"

    def matches(self, model: nn.Module) -> bool:
        """Whether a model is of this family."""
        raise NotImplementedError

    def layout(self, model: Any, images: Tensor) -> Layout:
        """How a model arranges images (B, 3, H, W) as tokens.

        Raises:
            ValueError: if an image is smaller than a patch.
        """
        raise NotImplementedError

    def data(self, model: Any) -> dict[str, Any]:
        """How images are prepared, with the keys of timm's ``pretrained_cfg``.

        The model's own ``pretrained_cfg`` has priority, except over ``input_size``.
        """
        return {}

    def classifies(self, model: Any) -> bool:
        """Whether a model has a classifier. Without one its outputs are features."""
        return getattr(model, "num_classes", None) != 0

    def fresh(self, model: Any) -> nn.Module:
        """A model of the same architecture with fresh weights, drawn by torch's generator.

        Default: a copy on which ``init_weights()`` was called.

        Raises:
            ValueError: if the family does not say how.
        """
        return reinitialised(model)

    def drop(self, model: Any) -> nn.Module:
        """The module whose output is all tokens (B, N, D) with positions, before the first block.

        There the fill ``drop`` takes patches out.

        Raises:
            ValueError: if the family does not say where, which is the default, or tokens cannot be
                taken out.
        """
        raise ValueError(
            f"tokens cannot be taken out of {type(model).__name__}: its family {self.name!r} does "
            "not say where (method drop); choose another fill"
        )

    def blocks(self, model: Any) -> list[str] | None:
        """Names of the model's blocks, first to last.

        Default: None, which stands for the members of the list that holds all attention layers.
        """
        return None


#: Families in the order of their registration.
FAMILIES: list[Family] = []

FamilyClass = TypeVar("FamilyClass", bound=type[Family])


def register_family(family: FamilyClass) -> FamilyClass:
    """Register a family of models: a decorator for a subclass of :class:`Family`.

    Raises:
        ValueError: if it has no name.
    """
    if family.name == Family.name:
        raise ValueError(f"name must be a class attribute of {family.__name__}, got none")
    FAMILIES.append(family())
    return family


def family_of(model: nn.Module) -> Family | None:
    """The family of a model, or None."""
    return next((family for family in reversed(FAMILIES) if family.matches(model)), None)


def known_families() -> str:
    """Names of the model families, for messages."""
    return ", ".join(sorted({family.name for family in FAMILIES}))


def reinitialised(model: nn.Module) -> nn.Module:
    """A copy with fresh weights, for models with a method ``init_weights()``, such as timm's.

    Raises:
        ValueError: if the model has none.
    """
    if not hasattr(model, "init_weights"):
        family = family_of(model)
        mend = "register a family with" if family is None else f"give its family {family.name!r}"
        raise ValueError(
            f"{type(model).__name__} cannot be built with fresh weights: it has no init_weights(); "
            f"{mend} a method fresh(model)"
        )
    fresh: Any = copy.deepcopy(model)
    state = torch.get_rng_state()
    for module in fresh.modules():  # what init_weights leaves out in some releases of timm
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    torch.set_rng_state(state)
    fresh.init_weights()
    return cast(nn.Module, fresh)


# ---------------------------------------------------------------- conversion


class Forms(NamedTuple):
    """The classes of one attention module with softmax, Pure InfSA and Linear-InfSA.

    The classes have the same attributes, except for ``gamma_logit`` (H,), which only InfSA has. So
    a module is converted by a change of its class.
    """

    softmax: type[nn.Module]
    pure: type[nn.Module]
    linear: type[nn.Module]
    num_heads: int
    dropout: float


#: Matchers and forms in the order of their registration.
FORMS: list[tuple[Matcher, Callable[[Any], Forms]]] = []


def register_forms(matches: Matcher) -> Callable[[Callable[[Any], Forms]], Callable[[Any], Forms]]:
    """Register the forms of the attention modules that match: a decorator for ``forms(module)``."""

    def register(forms: Callable[[Any], Forms]) -> Callable[[Any], Forms]:
        FORMS.append((matches, forms))
        return forms

    return register


def forms_of(module: nn.Module) -> Forms | None:
    """The forms that an attention module can take, or None."""
    return next((forms(module) for matches, forms in reversed(FORMS) if matches(module)), None)


# ---------------------------------------------------------------- shared by the families


def dotted_names(cls: type[nn.Module]) -> list[str]:
    """Names of a class and of its bases, with their modules: recognised without an import."""
    return [f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__]


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, N, H·d) to (B, H, N, d)."""
    return x.reshape(*x.shape[:2], num_heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, N, d) to (B, N, H·d)."""
    return x.transpose(1, 2).flatten(2)


def whole_patches(images: Tensor, patch: tuple[int, int]) -> tuple[int, int]:
    """(gh, gw) of images (B, 3, H, W) cut into whole patches.

    Raises:
        ValueError: if an image is smaller than a patch.
    """
    height, width = images.shape[-2:]
    if height < patch[0] or width < patch[1]:
        raise ValueError(
            f"images of {height}×{width} pixels are smaller than a patch of {patch[0]}×{patch[1]}"
        )
    return height // patch[0], width // patch[1]
