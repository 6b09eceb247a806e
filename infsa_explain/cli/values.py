"""What the values of options stand for: lists of names, numbers, devices, models and images."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import nn

    from ..data import ImageData, Sample
    from ..data.matching import Labels

__all__ = [
    "Source",
    "converted_layers",
    "drawn_methods",
    "image_sample",
    "image_sides",
    "integer",
    "layer_indices",
    "listed",
    "load_models",
    "method_names",
    "number_of_steps",
    "step_counts",
    "title_of",
    "torch_device",
]


def listed(option: str, values: Sequence[str]) -> list[str]:
    """The names that an option lists, separated by commas, repeated or both; each once.

    >>> listed("--methods", ["visits, perron", "visits"])
    ['visits', 'perron']
    """
    names = [name.strip() for value in values for name in value.split(",")]
    if not names or "" in names:
        raise ValueError(f"{option} must be names with commas, got {','.join(values)!r}")
    return list(dict.fromkeys(names))


def integer(option: str, value: str, otherwise: str) -> int:
    """The number given to an option that also takes a word."""
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{option} must be a number or {otherwise}, got {value!r}") from None


def method_names(values: Sequence[str]) -> tuple[str, ...] | None:
    """``--methods``; None for all that suit the model."""
    names = listed("--methods", values)
    return None if "all" in names else tuple(names)


def number_of_steps(value: str) -> int | Literal["few"] | None:
    """``--steps`` of a deletion curve; None for one patch a step."""
    if value == "full":
        return None
    return "few" if value == "few" else integer("--steps", value, "'few' or 'full'")


def layer_indices(value: str) -> tuple[int, ...] | None:
    """``--layer`` of align; None for all layers."""
    if value in ("all", "last"):
        return None if value == "all" else (-1,)
    return (integer("--layer", value, "'last' or 'all'"),)


def step_counts(values: Sequence[str]) -> tuple[int, ...]:
    """``--steps`` of align; empty where the option is left out."""
    names = listed("--steps", values) if values else []
    return tuple(integer("--steps", name, "several, with commas") for name in names)


def image_sides(values: Sequence[str]) -> list[int]:
    """``--sizes``."""
    names = listed("--sizes", values)
    return [integer("--sizes", name, "several with commas") for name in names]


def converted_layers(values: Sequence[str]) -> list[int] | str | None:
    """``--convert-layers``: indices, or a pattern of names; None for all layers."""
    if not values:
        return None
    if len(values) == 1 and not re.fullmatch(r"[\s,0-9-]*", values[0]):
        return values[0]
    names = listed("--convert-layers", values)
    return [integer("--convert-layers", name, "a single pattern") for name in names]


def torch_device(name: str) -> str:
    """``--device``; of several CUDA devices the one of this rank under ``torchrun``."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and torch.cuda.is_available():
        return f"cuda:{os.environ['LOCAL_RANK']}" if "LOCAL_RANK" in os.environ else "cuda"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError("--device cuda, but torch sees no CUDA device")
    if name.split(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"--device must be auto, cpu or cuda, got {name!r}")
    return name


def load_models(
    names: Sequence[str], checkpoints: Sequence[Path], device: str, **kwargs: Any
) -> dict[tuple[str, str], nn.Module]:
    """``--model`` with ``--checkpoint`` on ``--device``.

    Args:
        names: of the models.
        checkpoints: weights, of a single model.
        device: as ``--device`` names it.
        kwargs: as :func:`infsa_explain.load` takes them.

    Returns:
        Models by the name and the checkpoint that rows have; the checkpoint is empty if there is
        one at most.

    Raises:
        ValueError: checkpoints for several models, or a model given twice.
    """
    from ..models.loading import load

    if checkpoints and len(names) > 1:
        raise ValueError("--checkpoint goes with one --model")
    place = torch_device(device)
    models: dict[tuple[str, str], nn.Module] = {}
    for name in names:
        model = Path(name).stem if Path(name).exists() else name
        several: list[Path | None] = [*checkpoints]
        for weights in several or [None]:
            checkpoint = str(weights) if len(checkpoints) > 1 else ""
            if (model, checkpoint) in models:
                raise ValueError(f"--model {title_of((repr(model), checkpoint))} is given twice")
            models[model, checkpoint] = load(name, checkpoint=weights, device=place, **kwargs)
    return models


def title_of(key: tuple[str, str]) -> str:
    """Name and checkpoint of a model in one string.

    >>> title_of(("a", "")), title_of(("a", "b.pt"))
    ('a', 'a b.pt')
    """
    return " ".join(filter(None, key))


def drawn_methods(
    option: str,
    values: Sequence[str],
    models: Iterable[nn.Module],
    head: int | None,
    target: str | None,
) -> list[str]:
    """The names that an option lists; for 'all' those that suit every model, head and target."""
    from ..evaluate import choose_methods

    names = listed(option, values)
    if "all" not in names:
        return names
    first, *others = (choose_methods(model, None, head, target or "predicted") for model in models)
    return [name for name in first if all(name in other for other in others)]


def image_sample(path: Path) -> Sample:
    """An image file as a sample without label and boxes.

    Raises:
        ImageError: if it cannot be read.
    """
    import numpy as np

    from ..data import Sample, read_image
    from ..data.samples import readable

    return Sample(read_image(path), None, np.zeros((0, 4), np.float32), readable(path.name))


class Source(NamedTuple):
    """Which images, and how their labels are matched to a model's; the options of these names."""

    data: str
    split: Literal["train", "val", "test"]
    limit: int
    seed: int
    label_map: str | None = None
    labels: Labels = "auto"

    def open(self) -> ImageData:
        """The data set."""
        from ..data import open_data

        return open_data(
            self.data,
            split=self.split,
            size=self.limit,
            seed=self.seed,
            label_map=self.label_map,
        )
