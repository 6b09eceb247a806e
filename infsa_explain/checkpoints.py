"""Checkpoints on disk: weights as data, with what is needed to rebuild the model beside them.

A safetensors file that :func:`save` wrote holds in its metadata which model the weights are for.
Nothing that a checkpoint holds is ever run.
"""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor, nn

__all__ = ["fit", "read_checkpoint", "save"]


def read_checkpoint(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Weights and metadata of a safetensors file, or of a torch file read as data only.

    Raises:
        ValueError: if there is no such file or it is no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no checkpoint at {path}")
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
                return weights, file.metadata() or {}
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # PyTorch's message advises to run the file
        raise ValueError(
            f"cannot read {path} as a checkpoint of weights: it is damaged, or holds objects "
            "other than tensors, which could run code"
        ) from error
    except Exception as error:  # damaged bytes fail in every way there is
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"cannot read {path} as a checkpoint of weights: {reason}") from error
    for key in ("state_dict_ema", "state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"{path} holds no state dict (a mapping from names to tensors)")
    return state, {}


def fit(model: nn.Module, weights: dict[str, Tensor], source: str) -> None:
    """Load weights into a model, all of them.

    Raises:
        ValueError: if they do not fit; missing, unexpected and misshapen keys are named.
    """
    own = model.state_dict()
    shapes = [
        f"{key} is {tuple(weights[key].shape)}, expected {tuple(own[key].shape)}"
        for key in own.keys() & weights.keys()
        if own[key].shape != weights[key].shape
    ]
    problems = [
        f"{label}: {', '.join(sorted(keys)[:5])}{' …' if len(keys) > 5 else ''}"
        for label, keys in (
            ("missing", own.keys() - weights.keys()),
            ("unexpected", weights.keys() - own.keys()),
            ("shapes", shapes),
        )
        if keys
    ]
    if problems:
        raise ValueError(f"{source} does not fit {type(model).__name__}; {'; '.join(problems)}")
    model.load_state_dict(weights)


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    architecture: str,
    arguments: dict[str, Any],
    classes: list[str],
    dtype: torch.dtype = torch.float16,
) -> None:
    """Write a checkpoint that :func:`load` takes by its path alone.

    Args:
        model: the trained model.
        path: of a safetensors file.
        architecture: its name in timm's registry.
        arguments: those that differ from the name's defaults.
        classes: names of the classes, in order.
        dtype: on disk; float16 unless told otherwise.
    """
    weights = {key: value.detach().to("cpu", dtype) for key, value in model.state_dict().items()}
    metadata = {
        "architecture": architecture,
        "arguments": json.dumps(arguments),
        "classes": json.dumps(classes),
    }
    temporary = Path(path).with_suffix(".tmp")
    temporary.write_bytes(safetensors.torch.save(weights, metadata))
    temporary.replace(path)
