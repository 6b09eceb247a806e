"""Options that several commands share, and what they stand for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

import typer

if TYPE_CHECKING:
    from infsa_metrics.outputs import Output
    from torch import nn

    from ..data import ImageData
    from ..data.matching import Labels

__all__ = [
    "LINEAR_DIGITS",
    "CheckpointOption",
    "CheckpointsOption",
    "ClassOption",
    "DataOption",
    "DeviceOption",
    "ForceOption",
    "GammaOption",
    "HeadOption",
    "JsonOption",
    "LabelMapOption",
    "LabelsOption",
    "LayerOption",
    "LimitOption",
    "MethodsOption",
    "ModelOption",
    "OutOption",
    "OutputOption",
    "OverwriteOption",
    "ResumeOption",
    "SeedOption",
    "ShardOption",
    "Source",
    "SplitOption",
    "StrictOption",
    "TargetOption",
    "chosen_output",
    "drawn_methods",
    "integer",
    "listed",
    "load_models",
    "method_names",
    "torch_device",
]

LINEAR_DIGITS = "infvit_linear_digits"
#: PyTorch's generators take no larger one.
MAX_SEED = 2**63 - 1

ModelOption = Annotated[
    list[str],
    typer.Option("--model", help="Bundled name, timm name, hf-hub: name or checkpoint; repeat."),
]
CheckpointOption = Annotated[
    Path | None, typer.Option(help="Weights for --model: safetensors, or a torch state dict.")
]
CheckpointsOption = Annotated[
    list[Path],
    typer.Option(
        "--checkpoint", help="Weights for --model; repeat for seeds of one model, averaged."
    ),
]
DataOption = Annotated[str, typer.Option(help="photo-digits, a folder, a COCO .json, or a .csv.")]
LabelsOption = Annotated[
    str,
    typer.Option(
        help="How the images' classes become the model's: name, position (the order of the "
        "folders is the order of the outputs), or auto: by name where there are names."
    ),
]
LabelMapOption = Annotated[
    str | None, typer.Option(help="Labels of --data: imagenet-1k, or a file of class names.")
]
MethodsOption = Annotated[
    list[str],
    typer.Option(
        "--methods", help="Names with commas, or 'all' that suit the model; repeat for more."
    ),
]
LayerOption = Annotated[str, typer.Option(help="Layer index, 'last', or 'mean' over all.")]
HeadOption = Annotated[int | None, typer.Option(help="Head index; the mean over heads if omitted.")]
GammaOption = Annotated[
    float | None, typer.Option(help="Survival per step, in place of the model's own.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
SeedOption = Annotated[
    int, typer.Option(min=0, max=MAX_SEED, help="Seed of everything that draws.")
]
SplitOption = Annotated[str, typer.Option(help="train, val or test.")]
LimitOption = Annotated[int, typer.Option(min=1, help="Number of images.")]
OutOption = Annotated[Path | None, typer.Option(help="Run folder to write.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Write over a run in --out.")]
OverwriteOption = Annotated[
    bool, typer.Option("--force", help="Write over pictures of something else.")
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Stop at an image that cannot be read.")
]
ShardOption = Annotated[
    str | None, typer.Option(help="i/n: the i-th of n parts of the images, into the same --out.")
]
TargetOption = Annotated[
    str,
    typer.Option(
        help="What is explained and followed: predicted class, label, one class for all by name or "
        "number, or the embedding of a model without a classifier."
    ),
]
OutputOption = Annotated[
    str,
    typer.Option(
        help="What the model's outputs are: softmax, sigmoid (independent labels), or auto."
    ),
]
ClassOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="Class explained, by name or number; embedding for a model without a classifier.",
        show_default="the predicted one",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def load_models(
    names: list[str], checkpoints: list[Path], device: str, **kwargs: Any
) -> dict[tuple[str, str], nn.Module]:
    """Models by the name and checkpoint that tables give them; ``kwargs`` as in ``models.load``."""
    from ..models.loading import load

    if checkpoints and len(names) > 1:
        raise ValueError("--checkpoint goes with one --model")
    place = torch_device(device)
    models: dict[tuple[str, str], nn.Module] = {}
    for name in names:
        title = Path(name).stem if Path(name).exists() else name
        given: list[Path | None] = [*checkpoints] or [None]
        for checkpoint in given:
            several = str(checkpoint) if len(checkpoints) > 1 else ""
            if (title, several) in models:
                raise ValueError(f"--model {title!r} {several} is given twice".replace("  ", " "))
            models[title, several] = load(name, checkpoint=checkpoint, device=place, **kwargs)
    return models


class Source(NamedTuple):
    """Which images: what --data, --split, --limit, --seed, --label-map and --labels say."""

    data: str
    split: str
    limit: int
    seed: int
    label_map: str | None = None
    labels: str = "auto"

    def open(self) -> ImageData:
        """The data set."""
        from ..data import open_data

        if self.split not in ("train", "val", "test"):
            raise ValueError(f"--split must be 'train', 'val' or 'test', got {self.split!r}")
        return open_data(
            self.data,
            split=cast(Literal["train", "val", "test"], self.split),
            size=self.limit,
            seed=self.seed,
            label_map=self.label_map,
        )

    def matching(self) -> Labels:
        """How labels become a model's."""
        if self.labels not in ("auto", "name", "position"):
            raise ValueError(f"--labels must be 'auto', 'name' or 'position', got {self.labels!r}")
        return cast("Labels", self.labels)


def listed(option: str, values: Sequence[str]) -> list[str]:
    """The names that an option lists, with commas, repeated or both; each once.

    >>> listed("--methods", ["visits, perron", "visits"])
    ['visits', 'perron']
    """
    names = [name.strip() for value in values for name in value.split(",")]
    if not names or "" in names:
        raise ValueError(f"{option} must be names with commas, got {','.join(values)!r}")
    return list(dict.fromkeys(names))


def method_names(methods: Sequence[str]) -> tuple[str, ...] | None:
    """The names that --methods lists; None for all that suit the model."""
    names = listed("--methods", methods)
    return None if "all" in names else tuple(names)


def chosen_output(output: str) -> Output:
    """What --output says."""
    if output not in ("auto", "softmax", "sigmoid"):
        raise ValueError(f"--output must be 'auto', 'softmax' or 'sigmoid', got {output!r}")
    return cast("Output", output)


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


def torch_device(name: str) -> str:
    """What --device says; of several CUDA devices that of this rank under ``torchrun``."""
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


def integer(option: str, value: str, otherwise: str) -> int:
    """The number that an option was given, which also takes a word."""
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{option} must be a number or {otherwise}, got {value!r}") from None
