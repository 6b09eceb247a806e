"""Arrays where tensors go."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Array", "to_tensor"]

#: What every measure takes, and lists of numbers.
Array: TypeAlias = Tensor | NDArray[Any]


def to_tensor(argument: str, value: Array) -> Tensor:
    """A tensor as it is; a copy of an array or of lists of numbers as one, on the CPU.

    Raises:
        ValueError: for what holds no numbers; names the argument.

    Example:
        >>> to_tensor("mask", np.array([True, False]))
        tensor([ True, False])
    """
    if isinstance(value, Tensor):
        return value
    try:
        return torch.from_numpy(np.array(value))
    except (TypeError, ValueError) as error:
        kind = type(value).__name__
        raise ValueError(f"{argument} must be a tensor or an array, got {kind}: {error}") from None
