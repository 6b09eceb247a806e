"""The class that a map explains: by number, by name, or the predicted one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from ..vits import class_names
from ..vits.capturing import Graphs

__all__ = ["Target", "class_index", "targets_of"]

#: A class by number or name, for all images or one per image; None for the predicted classes.
Target: TypeAlias = int | str | Sequence[int | str] | Tensor | NDArray[Any] | None


def class_index(model: nn.Module, name: str) -> int:
    """The class of that name, in any case, with spaces, underscores or hyphens.

    Names are those of :func:`infsa_explain.vits.class_names`. If a class has several synonyms,
    separated by commas, each of them is accepted. Digits that are no name are a class's number.

    Raises:
        ValueError: for a name that no class has, or several have; names the nearest.

    >>> import infsa_explain
    >>> model = infsa_explain.load("infvit_linear_photos")
    >>> class_index(model, "Goose"), class_index(model, "2")
    (1, 2)
    """
    names = class_names(model) or []
    matches = [i for i, other in enumerate(names) if other == name]
    matches = matches or [i for i, other in enumerate(names) if _plain(name) in _spellings(other)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        numbers = ", ".join(map(str, matches))
        raise ValueError(f"target {name!r} is the name of classes {numbers}; give the number")
    if re.fullmatch(r"[0-9]{1,18}", name):
        return int(name)
    if not names:
        raise ValueError(
            f"target {name!r} is a name, and the model has none for its classes: give a number, or "
            "set its class_names"
        )
    spellings = [spelling for other in names for spelling in _spellings(other)]
    near = set(get_close_matches(_plain(name), spellings, n=3))
    likely = [other for other in names if near & set(_spellings(other))] or names[:3]
    raise ValueError(
        f"target must be the name or the number of a class, got {name!r}; the model's classes are "
        f"{', '.join(map(repr, likely))}{', …' if len(likely) < len(names) else ''}"
    )


def targets_of(graphs: Graphs, target: Target) -> Tensor:
    """The target of each image, on the model's device.

    Returns:
        (B,) long, classes; or (B, D), features at unit length, for a model without a classifier.

    Raises:
        ValueError: for a class that the model does not have, or a number of targets other than one
            or one per image.
    """
    if graphs.output == "embedding":
        return _features(graphs.logits, target)
    if isinstance(target, str) and target == "embedding":
        raise ValueError(
            "target must be a class, got 'embedding', which is for a model without a classifier "
            "(num_classes=0)"
        )
    batch, classes = graphs.class_logits.shape
    if target is None:
        return graphs.class_logits.argmax(-1)
    if isinstance(target, str):
        target = class_index(graphs.model, target)
    elif isinstance(target, np.ndarray):
        target = target.tolist()
    if isinstance(target, Sequence):
        target = [class_index(graphs.model, t) if isinstance(t, str) else t for t in target]
    try:
        targets = torch.as_tensor(target, device=graphs.logits.device)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"target must be a class, or one per image ({batch}), got {target!r:.80}"
        ) from None
    targets = targets.clone() if targets.is_inference() else targets
    if targets.ndim == 0:
        targets = targets.expand(batch)
    whole = not (targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool)
    if targets.shape != (batch,) or not whole:
        raise ValueError(
            f"target must be a class, or one per image ({batch}), got {tuple(targets.shape)} of "
            f"{targets.dtype}"
        )
    if targets.min() < 0 or targets.max() >= classes:
        raise ValueError(
            f"target must be a class of the model, 0 to {classes - 1}, got {targets.tolist()}"
        )
    return targets.long()


def _features(features: Tensor, target: Target) -> Tensor:
    """The target of a model without a classifier: its features (B, D), or those in ``target``."""
    if isinstance(target, Tensor) and target.shape == features.shape:
        return normalize(target.to(features))
    if target is not None and not (isinstance(target, str) and target == "embedding"):
        raise ValueError(
            "target must be 'embedding' for a model without a classifier, or the features "
            f"themselves, {tuple(features.shape)}; got {target!r:.60}"
        )
    return normalize(features)


def _spellings(name: str) -> list[str]:
    """A name, and each of its synonyms."""
    return [_plain(name), *map(_plain, name.split(","))]


def _plain(name: str) -> str:
    """A name in lower case, with single spaces for underscores and hyphens, in Unicode's NFC."""
    letters = unicodedata.normalize("NFC", name).casefold()
    return " ".join(re.split(r"[\s_-]+", letters.strip()))
