"""Names and number of a model's classes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from torch import nn

from .registry import family_of
from .wrappers import require_module

__all__ = ["class_names", "number_of_classes"]

#: Attributes that hold the classifier.
CLASSIFIERS = ("classifier", "cls_classifier", "heads", "head", "fc")


def class_names(model: nn.Module) -> list[str] | None:
    """Names of a model's classes, in the order of its outputs; None if it has no names.

    The first of these that has as many names as the classifier has outputs: ``class_names``, which
    checkpoints of this package have; ``label_names`` in timm's ``pretrained_cfg``; ``id2label`` in
    Hugging Face's ``config``, except placeholders such as "LABEL_0"; ``categories`` in the ``meta``
    of torchvision's weights, if the model has the attribute ``meta`` or ``weights``; for a timm
    model, the names of the ImageNet with that number of classes, as timm does. Synonyms are
    separated by commas.

    A wrapper without weights of its own has the names of the model in it. A model without a
    classifier has no names.

    Raises:
        ValueError: if it is no ``nn.Module``.

    >>> from infsa_explain import load
    >>> class_names(load("infvit_linear_photos"))[:2]
    ['goldfish', 'goose']
    """
    for module in _chain(model):
        family = family_of(module)
        if family is not None and not family.classifies(module):
            return None
        number = _outputs(module)
        for names in _recorded_names(module):
            texts = [str(name).strip() for name in names]
            if texts and all(texts) and number in (None, len(texts)):
                return texts
    return None


def number_of_classes(model: nn.Module) -> int | None:
    """The number of classes of a model, by its classifier; None if it is unknown.

    A single output stands for two classes, no and yes.

    >>> from infsa_explain import load
    >>> number_of_classes(load("infvit_linear_digits", num_classes=3))
    3
    """
    return next((number for module in _chain(model) if (number := _outputs(module))), None)


def _chain(model: nn.Module) -> Iterator[nn.Module]:
    """The model, its only child that holds all of its weights, and so on down."""
    require_module(model)
    module: nn.Module | None = model
    while module is not None:
        yield module
        weights = {id(parameter) for parameter in module.parameters()}
        module = next(
            (
                child
                for child in module.children()
                if weights and {id(parameter) for parameter in child.parameters()} == weights
            ),
            None,
        )


def _outputs(module: Any) -> int | None:
    """Number of classes by the last linear layer of the classifier, or by ``num_classes``."""
    places = [getattr(module, name, None) for name in CLASSIFIERS]
    for place in places:
        layers = place.modules() if isinstance(place, nn.Module) else ()
        widths = [layer.out_features for layer in layers if isinstance(layer, nn.Linear)]
        if widths:
            return 2 if widths[-1] == 1 else widths[-1]
    number = getattr(module, "num_classes", None)
    return max(number, 2) if isinstance(number, int) and number > 0 else None


def _recorded_names(module: Any) -> Iterator[list[Any]]:
    """Every list of class names that a module has, in order of priority."""
    yield _in_order(getattr(module, "class_names", None))
    config = getattr(module, "pretrained_cfg", None)
    config = config if isinstance(config, Mapping) else {}
    descriptions = config.get("label_descriptions") or {}
    labels = _in_order(config.get("label_names"))
    yield [f"{name}, {descriptions[name]}" if name in descriptions else name for name in labels]
    names = _in_order(getattr(getattr(module, "config", None), "id2label", None))
    yield [] if all(re.fullmatch(r"LABEL_\d+", str(name)) for name in names) else names
    for meta in (
        getattr(module, "meta", None),
        getattr(getattr(module, "weights", None), "meta", None),
    ):
        yield _in_order(meta.get("categories")) if isinstance(meta, Mapping) else []
    if config:
        yield list(_imagenet(getattr(module, "num_classes", 0)))


def _in_order(names: Any) -> list[Any]:
    """A list of names, from a list or from a mapping of indices to names; else empty."""
    if isinstance(names, Mapping):
        by_index = {int(i): name for i, name in names.items() if str(i).isdecimal()}
        whole = by_index.keys() == set(range(len(names)))
        return [by_index[i] for i in range(len(names))] if whole else []
    return list(names) if isinstance(names, list | tuple) else []


@lru_cache(maxsize=4)
def _imagenet(number: int) -> tuple[str, ...]:
    """timm's names for the ImageNet with that number of classes; empty if there is none."""
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset({"num_classes": number})
    return () if subset is None else tuple(ImageNetInfo(subset).label_descriptions())
