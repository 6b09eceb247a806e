"""Loading models: by name, from a checkpoint, or an ``nn.Module`` of the caller's."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import timm
import torch
from torch import Tensor, nn

from ..catalogue import BUNDLED, weights_file
from ..memory import out_of_memory
from ..ranges import count
from . import infvit  # noqa: F401  (registers the names with timm)
from .checkpoints import change, is_checkpoint, read_checkpoint, rebuild
from .fitting import fit, own_weights
from .hub import hub_or_cache
from .positions import recorded_size

__all__ = ["load"]


def load(
    model: str | os.PathLike[str] | nn.Module,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    pretrained: bool = True,
    device: str | torch.device = "cpu",
    **kwargs: Any,
) -> nn.Module:
    """A model with its weights, in eval mode.

    Args:
        model: a bundled name; a name in timm's registry or ``hf-hub:…``; the path of a checkpoint
            from :func:`infsa_explain.save`; or an ``nn.Module``.
        checkpoint: weights for ``model`` instead of the pretrained ones: safetensors, or a torch
            file, which is read as data only. Prefixes of wrappers and nested state dicts are
            recognised. Of several sets of weights, averaged ones are taken (EMA, DINO's teacher).
        pretrained: False for a name without its pretrained weights.
        device: of the result.
        **kwargs: arguments of the model. With another ``img_size`` than that of the weights, the
            position embedding is resampled. With another ``num_classes``, the classifier is fresh.
            Without ``num_classes``, a name gets the number of classes in the checkpoint; an
            ``nn.Module`` must have that number.

    Returns:
        The model, with an attribute ``class_names``, a list or None.

    Raises:
        ValueError: for an unknown name (the nearest are named), a checkpoint that does not fit
            (missing, unexpected and misshapen keys are named), or weights that cannot be fetched.

    Warns:
        UserWarning: if a checkpoint has several sets of weights or further tensors, or if its
            position embedding belongs, or seems to belong, to another grid with the same number of
            patches.

    >>> load("infvit_linear_digits").class_names[:3]
    ['0', '1', '2']
    """
    _check_sizes(**kwargs)
    if isinstance(model, nn.Module):
        loaded = _module(model, checkpoint)
    elif not isinstance(model, (str, os.PathLike)):
        raise ValueError(
            "model must be a name, the path of a checkpoint or an nn.Module, got "
            f"{type(model).__name__}"
        )
    elif checkpoint is not None:
        loaded = _name_and_checkpoint(os.fspath(model), checkpoint, kwargs)
    elif _is_path(model):
        loaded = _checkpoint_alone(model, kwargs)
    else:
        loaded = _pretrained(os.fspath(model), pretrained, kwargs)
    _check_grid(loaded.model, kwargs)
    names = loaded.class_names or getattr(loaded.model, "class_names", None)
    cast(Any, loaded.model).class_names = names
    return loaded.model.to(device).eval()


class _Loaded(NamedTuple):
    """A model with its weights, and the metadata of its checkpoint."""

    model: nn.Module
    metadata: Mapping[str, str] = MappingProxyType({})

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes in the metadata; None if there are none or for other classes."""
        names: list[str] | None = json.loads(self.metadata.get("classes", "null"))
        if names and len(names) != getattr(self.model, "num_classes", len(names)):
            return None
        return names


def _module(model: nn.Module, checkpoint: str | os.PathLike[str] | None) -> _Loaded:
    """A module of the caller, with the weights of a checkpoint if one is given."""
    if checkpoint is None:
        return _Loaded(model)
    weights, metadata = read_checkpoint(checkpoint)
    fit(model, weights, str(checkpoint), size=recorded_size(metadata))
    return _Loaded(model, metadata)


def _pretrained(name: str, pretrained: bool, arguments: dict[str, Any]) -> _Loaded:
    """A model by its name in timm's registry or on the hub."""
    model = _from_registry(name, pretrained, **arguments)
    if pretrained and name in BUNDLED:
        return _Loaded(model, read_checkpoint(weights_file(name))[1])
    return _Loaded(model)


def _checkpoint_alone(path: str | os.PathLike[str], arguments: dict[str, Any]) -> _Loaded:
    """The model of a checkpoint that says which model it is for."""
    weights, metadata = read_checkpoint(path)
    if "architecture" not in metadata:
        noted = f" (it notes {metadata['arch']!r})" if "arch" in metadata else ""
        raise ValueError(
            f"{path} does not say which model it is for{noted}; name one, with checkpoint set to "
            "this file"
        )
    return _rebuilt(weights, metadata, str(path), arguments)


def _name_and_checkpoint(
    name: str, checkpoint: str | os.PathLike[str], arguments: dict[str, Any]
) -> _Loaded:
    """A model by name, with the weights of a checkpoint."""
    weights, metadata = read_checkpoint(checkpoint)
    if name.split(".")[0] == metadata.get("architecture"):
        return _rebuilt(weights, metadata, str(checkpoint), arguments)
    classes = arguments.pop("num_classes", None)
    model = _with_classifier_of(weights, name, arguments, str(checkpoint))
    fit(model, weights, str(checkpoint), size=recorded_size(metadata))
    change(model, num_classes=classes)
    return _Loaded(model, metadata)


def _rebuilt(
    weights: dict[str, Tensor], metadata: dict[str, str], source: str, arguments: dict[str, Any]
) -> _Loaded:
    """The model in a checkpoint's metadata, with its weights, then changed by the arguments."""
    _must_be_known(metadata["architecture"])
    changes = {key: arguments.pop(key) for key in ("img_size", "num_classes") if key in arguments}
    model = rebuild(metadata, **arguments)
    fit(model, weights, source, size=recorded_size(metadata))
    change(model, **changes)
    return _Loaded(model, metadata)


def _from_registry(name: str, pretrained: bool, **kwargs: Any) -> nn.Module:
    """A model by its name. Without a connection, only the hub's local cache is used."""
    on_hub = name.startswith(("hf-hub:", "hf_hub:"))
    if not on_hub and not name.startswith("local-dir:"):
        _must_be_known(name)
    asks = on_hub or (pretrained and name not in BUNDLED)
    with hub_or_cache() if asks else nullcontext(True) as reachable:
        try:
            model: nn.Module = timm.create_model(name, pretrained=pretrained, **kwargs)
        except (OSError, RuntimeError, ConnectionError) as error:
            if out_of_memory(error):
                raise
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            if not reachable:
                reason = "Hugging Face's hub cannot be reached, and its cache lacks them"
            how = " with pretrained weights" if pretrained or on_hub else ""
            options = "".join(f" and {key}={value!r:.40}" for key, value in kwargs.items())
            raise ValueError(f"cannot load {name!r}{how}{options}: {reason}") from error
    return model


def _with_classifier_of(
    weights: dict[str, Tensor], name: str, kwargs: dict[str, Any], source: str
) -> nn.Module:
    """A model by its name, with the number of classes in the weights."""
    model = _from_registry(name, False, **kwargs)
    recorded = cast(Any, model).pretrained_cfg.get("classifier") or ()
    heads = (recorded,) if isinstance(recorded, str) else tuple(recorded)  # two if distilled
    state = model.state_dict()
    chosen = own_weights(
        model, weights, source, optional={key for key in state if key.startswith(heads)}
    )
    classifier = f"{heads[0]}.weight" if heads else ""
    classes = len(chosen.get(classifier, ()))
    if classes == len(state.get(classifier, ())):
        return model
    return _from_registry(name, False, num_classes=classes, **kwargs)


def _check_sizes(*, img_size: Any = None, num_classes: int | None = None, **others: Any) -> None:
    """Refuse an image size or a number of classes that is out of range."""
    sides = img_size if isinstance(img_size, (tuple, list)) else (img_size,)
    for side in () if img_size is None else sides:
        count().require("img_size", side)
    if num_classes is not None:
        count(0).require("num_classes", num_classes)


def _check_grid(model: Any, arguments: dict[str, Any]) -> None:
    """Refuse images smaller than a patch, which timm accepts."""
    patches = getattr(model, "patch_embed", None)
    if 0 in (getattr(patches, "grid_size", None) or ()):
        raise ValueError(
            f"img_size must be at least a patch, {cast(Any, patches).patch_size}, got "
            f"{arguments.get('img_size')}"
        )


def _is_path(model: str | os.PathLike[str]) -> bool:
    """Whether ``model`` is a file or folder, and no name in timm's registry."""
    return is_checkpoint(model) or (os.path.exists(model) and not timm.is_model(str(model)))


def _must_be_known(name: str) -> None:
    """Refuse a name that is not in timm's registry, with the nearest names."""
    if not timm.is_model(name.split(".")[0]):
        near = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ValueError(f"unknown model {name!r}{hint} (`models` lists them)")
