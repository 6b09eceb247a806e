"""Checkpoints on disk: weights, with what is needed to rebuild the model.

:func:`save` writes the name and arguments of the model into the metadata of a safetensors file. No
code in a checkpoint is ever run.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import pickle
import re
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch
import timm
import torch
from safetensors import safe_open
from timm.models import get_model_args
from torch import Tensor, nn
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from ..files import read_json, replacing
from ..vits import attention_layers, require_module
from ..vits.preprocessing import data_config
from .conversion import convert
from .fitting import misfits
from .positions import size_of

__all__ = ["change", "fingerprint", "is_checkpoint", "read_checkpoint", "rebuild", "save"]

#: Endings of checkpoints; the last is that of the index of a checkpoint in several files.
INDEX = ".index.json"
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".pt.tar", ".pth.tar", INDEX)
#: Classes that a torch file may hold besides tensors and plain values: a container of arguments.
HARMLESS: list[Any] = [argparse.Namespace]
#: Start of the file that Git LFS puts in place of a large file until it is fetched.
POINTER = b"version https://git-lfs"

#: Arguments of timm's factory, not of a model. A checkpoint may not set them: strangers make files.
OUTSIDE = inspect.signature(timm.create_model).parameters.keys() - {"kwargs"}


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether a path has the ending of a checkpoint."""
    return os.fspath(path).lower().endswith(SUFFIXES)


def read_checkpoint(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors and the metadata of a safetensors file, or of a torch file read as data only.

    Args:
        path: of such a file, or of the ``.index.json`` of a checkpoint in several files.

    Returns:
        Tensors by name, those of nested state dicts as ``state_dict/head.weight``; and metadata. Of
        a torch file these are ``img_size`` in JSON and ``arch``, the model's name, if it records
        them.

    Raises:
        ValueError: if the file is missing, is no checkpoint, holds no tensors, or holds objects
            that could run code.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name the checkpoint file in it")
    if not path.is_file():
        raise ValueError(f"no checkpoint at {path}")
    if path.name.endswith(INDEX):
        return _read_parts(path)
    if part := re.fullmatch(r"(.+)-\d{5}-of-\d{5}(\.\w+)", path.name):
        raise ValueError(
            f"{path} is one of several parts of a checkpoint; name {part[1]}{part[2]}{INDEX} "
            "beside it, which lists them"
        )
    weights, metadata = _read_file(path)
    if not weights:
        raise ValueError(
            f"{path} holds no state dict (a mapping from names to tensors), but "
            + metadata.get("content", "nothing")
        )
    return weights, metadata


def _read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        if path.suffix.lower() == ".safetensors":
            with safe_open(path, framework="pt") as file:
                weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
                return weights, file.metadata() or {}
        with safe_globals(HARMLESS), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about old formats
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes raise errors of many classes
        reason = _reason(path, error)
        raise ValueError(f"cannot read {path} as a checkpoint of weights: {reason}") from error
    return _tensors(content), _notes(content)


def _reason(path: Path, error: Exception) -> str:
    """Why a file cannot be read, and what the user can do."""
    with suppress(OSError), path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            return "it is Git LFS's pointer to the file; get the file itself with `git lfs pull`"
    if not is_checkpoint(path):
        return f"files that can be read end with {', '.join(SUFFIXES)}; convert it to one of them"
    if "TorchScript" in str(error):
        return "it is a TorchScript program; save the state_dict() of its model"
    if not isinstance(error, pickle.UnpicklingError):
        return f"{type(error).__name__}: {error}".splitlines()[0]
    try:  # PyTorch's own message advises to run the file
        objects = sorted(get_unsafe_globals_in_checkpoint(path))
    except Exception:  # damaged, or of an old format
        objects = []
    if not objects:
        return (
            "it is damaged, or holds objects other than tensors, which could run code; save the "
            "state_dict() of the model alone"
        )
    shown = ", ".join(objects[:3]) + (" …" if len(objects) > 3 else "")
    return (
        f"beside tensors it holds Python objects ({shown}), which could run code; where you trust "
        "it, read it once with torch.load(path, weights_only=False) and save its state dict alone"
    )


def _tensors(content: Any) -> dict[str, Tensor]:
    """Tensors of nested mappings; names are joined by slashes.

    Each mapping is visited once, so that a mapping that contains itself is no endless loop.
    """
    tensors: dict[str, Tensor] = {}
    visited: set[int] = set()
    mappings = [("", content)]
    for folder, mapping in mappings:  # the list grows in the loop
        if not isinstance(mapping, dict) or id(mapping) in visited:
            continue
        visited.add(id(mapping))
        for key, value in mapping.items():
            if isinstance(value, Tensor):
                tensors[f"{folder}{key}"] = value
            else:
                mappings.append((f"{folder}{key}/", value))
    return tensors


def _notes(content: Any) -> dict[str, str]:
    """What a torch file records of its model, and a description of its content."""
    if not isinstance(content, dict):
        return {"content": f"a {type(content).__name__}"}
    keys = ", ".join(map(str, list(content)[:8]))
    notes = {"content": f"a mapping with the keys {keys}" if content else "an empty mapping"}
    places = [content, *map(content.get, ("args", "config", "hparams", "hyper_parameters"))]
    for place in (vars(p) if isinstance(p, argparse.Namespace) else p for p in places):
        if not isinstance(place, dict):
            continue
        for key in ("img_size", "image_size", "input_size"):
            if size := size_of(place.get(key)):
                notes.setdefault("img_size", json.dumps(size))
        for key in ("arch", "architecture", "model", "model_name"):
            if isinstance(place.get(key), str):
                notes.setdefault("arch", place[key])
    return notes


def _read_parts(index: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of all files that are listed in an index."""
    content = read_json(index)
    listed = content.get("weight_map") if isinstance(content, dict) else None
    names = sorted(set(map(str, listed.values()))) if isinstance(listed, dict) else []
    if not names:
        raise ValueError(f"{index} lists no files of a checkpoint (in weight_map)")
    weights: dict[str, Tensor] = {}
    for name in names:
        if Path(name).name != name:
            raise ValueError(f"{index}: {name!r:.80} is no file beside it")
        if not (index.parent / name).is_file():
            raise ValueError(f"{index} lists {name}, which is not beside it; copy all of its files")
        weights |= _read_file(index.parent / name)[0]
    return weights, {}


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

    The file holds the weights, the model's name and arguments, the kind of attention of each layer
    (so that converted models can be saved), how its images are prepared, and its classes.

    Args:
        model: a ViT of timm's registry, converted or not.
        path: of a safetensors file.
        classes: names of the classes, in order; default: the model's ``class_names``.
        architecture: its name in timm's registry; default: as recorded by timm.
        arguments: those that differ from the defaults of that name; default: as recorded by timm.
        dtype: of floating-point weights on disk; default: unchanged.

    Raises:
        ValueError: if the model is no supported ViT of timm's registry, or its name and arguments
            are not plain data or build another model.

    >>> import tempfile, timm
    >>> from infsa_explain import convert, load
    >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=3, num_classes=5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(convert(vit, "linear", layers=[-1]), f"{folder}/vit.safetensors")
    ...     loaded = load(f"{folder}/vit.safetensors")
    >>> [type(block.attn).__name__ for block in loaded.blocks]
    ['Attention', 'Attention', 'LinearInfSA']
    """
    require_module(model)
    metadata = _metadata(model, classes, architecture, arguments)
    state = model.state_dict()
    problems = misfits(rebuild(metadata, device="meta"), state)
    if problems:
        raise ValueError(
            f"{metadata['architecture']} with the arguments {metadata['arguments']} is another "
            f"model; {problems}"
        )
    weights = {
        key: value.detach().to("cpu", dtype if value.is_floating_point() else None).contiguous()
        for key, value in state.items()
    }
    with replacing(path) as temporary:
        temporary.write_bytes(safetensors.torch.save(weights, metadata))


def _metadata(
    model: nn.Module,
    classes: list[str] | None,
    architecture: str | None,
    arguments: dict[str, Any] | None,
) -> dict[str, str]:
    """What :func:`rebuild` needs, and the classes; see :func:`save`."""
    name = architecture or getattr(model, "pretrained_cfg", {}).get("architecture")
    if name is None:
        raise ValueError(
            f"{type(model).__name__} was not built by timm.create_model, so that its name and "
            "arguments are not known; give architecture and arguments, or save its state dict, "
            "which load takes as checkpoint of a model"
        )
    facts = {
        "arguments": get_model_args(model) if arguments is None else arguments,
        "attention": [reader.kind for _, reader in attention_layers(model).values()],
        "preparation": {k: v for k, v in data_config(model).items() if k != "input_size"},
        "classes": getattr(model, "class_names", None) if classes is None else classes,
    }
    try:
        return {"architecture": name} | {key: json.dumps(fact) for key, fact in facts.items()}
    except TypeError as error:
        raise ValueError(
            f"arguments of {name} must be plain data, got {facts['arguments']}"
        ) from error


def rebuild(metadata: dict[str, str], **kwargs: Any) -> nn.Module:
    """The model that the metadata of a checkpoint describe, without its weights.

    ``kwargs`` are arguments of the model that replace those in the metadata.
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
    """Change the image size, with resampled position embedding, or the number of classes."""
    if img_size is not None:
        model.set_input_size(img_size)
    if num_classes is not None and num_classes != model.num_classes:
        model.reset_classifier(num_classes)


def fingerprint(model: nn.Module) -> str:
    """Hex digest of a model's weights."""
    require_module(model)
    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        digest.update(key.encode())
        digest.update(value.detach().cpu().float().numpy().tobytes())
    return digest.hexdigest()[:16]
