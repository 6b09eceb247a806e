"""Checkpoints on disk: weights as data, with what is needed to rebuild the model beside them.

A safetensors file that :func:`save` wrote holds in its metadata which model the weights are for.
Nothing that a checkpoint holds is ever run.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import pickle
from pathlib import Path
from typing import Any

import safetensors.torch
import timm
import torch
from safetensors import safe_open
from timm.layers import resample_abs_pos_embed
from timm.models import get_model_args
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from .conversion import convert
from .files import replacing
from .graphs import attention_layers
from .preprocessing import data_config

__all__ = ["change", "fingerprint", "fit", "read_checkpoint", "rebuild", "save"]

#: Arguments of timm's factory itself: those of a model lie in a file that a stranger may have made.
OUTSIDE = inspect.signature(timm.create_model).parameters.keys() - {"kwargs"}


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

    Positions that were learned at another size, of a square image, are resampled as timm does.

    Raises:
        ValueError: if they do not fit; missing, unexpected and misshapen keys are named.
    """
    weights = _at_size_of(model, weights)
    problems = misfits(model, weights)
    if problems:
        raise ValueError(f"{source} does not fit {type(model).__name__}; {problems}")
    model.load_state_dict(weights)


def _at_size_of(model: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights, with the position embedding of a timm ViT brought to the model's grid."""
    positions, own = weights.get("pos_embed"), getattr(model, "pos_embed", None)
    if not isinstance(model, VisionTransformer) or positions is None or own is None:
        return weights
    prefix = 0 if model.no_embed_class else model.num_prefix_tokens
    patches = positions.shape[1] - prefix
    if positions.shape[1] == own.shape[1] or math.isqrt(patches) ** 2 != patches:
        return weights
    grid = list(model.patch_embed.grid_size)
    resampled = resample_abs_pos_embed(positions.float(), grid, num_prefix_tokens=prefix)
    return weights | {"pos_embed": resampled}


def misfits(model: nn.Module, weights: dict[str, Tensor]) -> str:
    """Keys that a model and a state dict do not share, or share in another shape; "" if none."""
    own = model.state_dict()
    shapes = [
        f"{key} is {tuple(weights[key].shape)}, expected {tuple(own[key].shape)}"
        for key in own.keys() & weights.keys()
        if own[key].shape != weights[key].shape
    ]
    return "; ".join(
        f"{label}: {', '.join(sorted(keys)[:5])}{' …' if len(keys) > 5 else ''}"
        for label, keys in (
            ("missing", own.keys() - weights.keys()),
            ("unexpected", weights.keys() - own.keys()),
            ("shapes", shapes),
        )
        if keys
    )


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    classes: list[str] | None = None,
    architecture: str | None = None,
    arguments: dict[str, Any] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a checkpoint that :func:`load` takes by its path alone.

    Beside the weights are the model's name and arguments, the kind of attention of each layer,
    so that what :func:`convert` made of it is kept, how its images are prepared, and its classes.

    Args:
        model: a ViT of timm's registry, converted or not.
        path: of a safetensors file.
        classes: names of the classes, in order; the model's ``class_names`` unless told.
        architecture: its name in timm's registry; as timm noted it unless told.
        arguments: those that differ from the name's defaults; as timm noted them unless told.
        dtype: of floating-point weights on disk; their own unless told.

    Raises:
        ValueError: if the model is no supported ViT of timm's registry, or its name and arguments
            are not plain data or build another one.

    >>> import tempfile, timm
    >>> from infsa_explain import convert, load
    >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=3, num_classes=5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(convert(vit, "linear", layers=[-1]), f"{folder}/vit.safetensors")
    ...     loaded = load(f"{folder}/vit.safetensors")
    >>> [type(block.attn).__name__ for block in loaded.blocks]
    ['Attention', 'Attention', 'LinearInfSA']
    """
    name = architecture or getattr(model, "pretrained_cfg", {}).get("architecture")
    if name is None:
        raise ValueError(
            f"{type(model).__name__} was not built by timm.create_model, so that its name and "
            "arguments are not known; give architecture and arguments, or save its state dict, "
            "which load takes as checkpoint of a model"
        )
    if classes is None:
        classes = getattr(model, "class_names", None)
    facts = {
        "arguments": get_model_args(model) if arguments is None else arguments,
        "attention": [family.kind for _, family in attention_layers(model).values()],
        "preparation": {k: v for k, v in data_config(model).items() if k != "input_size"},
        "classes": classes,
    }
    try:
        metadata = {"architecture": name} | {key: json.dumps(fact) for key, fact in facts.items()}
    except TypeError as error:
        raise ValueError(
            f"arguments of {name} must be plain data, got {facts['arguments']}"
        ) from error
    state = model.state_dict()
    problems = misfits(rebuild(metadata, device="meta"), state)
    if problems:
        raise ValueError(
            f"{name} with the arguments {metadata['arguments']} is another model; {problems}"
        )
    weights = {
        key: value.detach().to("cpu", dtype if value.is_floating_point() else None).contiguous()
        for key, value in state.items()
    }
    with replacing(path) as temporary:
        temporary.write_bytes(safetensors.torch.save(weights, metadata))


def rebuild(metadata: dict[str, str], **kwargs: Any) -> nn.Module:
    """The model that a checkpoint's metadata describe, without its weights.

    ``kwargs`` are further arguments of the model, before those in the metadata.
    """
    arguments = json.loads(metadata.get("arguments", "{}"))
    if outside := sorted(OUTSIDE & arguments.keys()):
        raise ValueError(
            f"the checkpoint is refused: its arguments hold {', '.join(outside)}, which could have "
            "other files read or fetched"
        )
    arguments |= kwargs
    preparation = json.loads(metadata.get("preparation", "{}"))
    overlay = {k: tuple(v) if isinstance(v, list) else v for k, v in preparation.items()}
    model: nn.Module = timm.create_model(
        metadata["architecture"], pretrained_cfg_overlay=overlay, **arguments
    )
    kinds = json.loads(metadata.get("attention", "[]"))
    if kinds and len(kinds) != len(attention_layers(model)):
        raise ValueError(
            f"{metadata['architecture']} with these arguments has "
            f"{len(attention_layers(model))} attention layers, not {len(kinds)}"
        )
    for kind in dict.fromkeys(kinds):
        model = convert(model, kind, [i for i, other in enumerate(kinds) if other == kind])
    return model


def change(
    model: Any, img_size: int | tuple[int, int] | None = None, num_classes: int | None = None
) -> None:
    """Take images of another size, its position embedding resampled, or get another classifier."""
    if img_size is not None:
        model.set_input_size(img_size)
    if num_classes is not None and num_classes != model.num_classes:
        model.reset_classifier(num_classes)


def fingerprint(model: nn.Module) -> str:
    """Hex digest of a model's weights."""
    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        digest.update(key.encode())
        digest.update(value.detach().cpu().float().numpy().tobytes())
    return digest.hexdigest()[:16]
