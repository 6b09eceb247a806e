"""The class that a map is of: by number, by name, or the predicted one."""

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

from ..graphs import Graphs

__all__ = ["Target", "class_index", "class_names", "targets_of"]

#: A class by number or name, for all images or one each; None for the predicted ones.
Target: TypeAlias = int | str | Sequence[int | str] | Tensor | NDArray[Any] | None


def class_names(model: nn.Module) -> list[str] | None:
    """The names of a model's classes in the order of its outputs; None where it has none."""
    names: Sequence[str] | None = getattr(model, "class_names", None)
    return list(names) if names else None


def class_index(model: nn.Module, name: str) -> int:
    """The class of that name, whatever its case, with spaces, underscores or hyphens.

    What is no name and a number is the class of that number.

    Raises:
        ValueError: for a name that no class has, or several have; names the nearest.

    >>> import infsa_explain
    >>> model = infsa_explain.load("infvit_linear_digits")
    >>> model.class_names = ["zero", "Golden_Retriever", "goldfish"]
    >>> class_index(model, "golden retriever"), class_index(model, "2")
    (1, 2)
    """
    names = class_names(model) or []
    found = [i for i, own in enumerate(names) if own == name]
    found = found or [i for i, own in enumerate(names) if _plain(own) == _plain(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(
            f"target {name!r} is the name of classes {', '.join(map(str, found))}; give the number"
        )
    if re.fullmatch(r"[0-9]{1,18}", name):
        return int(name)
    if not names:
        raise ValueError(
            f"target {name!r} is a name, and the model has none for its classes: give a number, or "
            "set its class_names"
        )
    near = get_close_matches(_plain(name), [_plain(own) for own in names], n=3)
    likely = [own for own in names if _plain(own) in near] or names[:3]
    raise ValueError(
        f"target must be the name or the number of a class, got {name!r}; the model's classes are "
        f"{', '.join(map(repr, likely))}{', …' if len(likely) < len(names) else ''}"
    )


def targets_of(graphs: Graphs, target: Target) -> Tensor:
    """The class that each image is explained for, (B,) long, on the model's device.

    Raises:
        ValueError: for a class that the model has no output for, or not one per image.
    """
    batch, classes = graphs.logits.shape
    if target is None:
        return graphs.logits.argmax(-1)
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


def _plain(name: str) -> str:
    """A name in one spelling: case, spaces, underscores, hyphens and composed letters alike."""
    letters = unicodedata.normalize("NFC", name).casefold()
    return " ".join(re.split(r"[\s_-]+", letters.strip()))
