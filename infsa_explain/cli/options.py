"""The table of options: what every command takes, written once.

A command is a function with an option for each of its parameters. :func:`command_function` looks
them up in ``OPTIONS`` and makes the function that typer reads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import typer

from .values import (
    converted_layers,
    image_sides,
    layer_indices,
    listed,
    method_names,
    number_of_steps,
    step_counts,
)

__all__ = ["OPTIONS", "Option", "command_function", "flags_of", "is_readable", "options_of"]

LINEAR_DIGITS = "infvit_linear_digits"
#: Two models of the same size that a newcomer sees side by side.
TWINS = [LINEAR_DIGITS, "vit_softmax_digits"]
#: PyTorch's generators take no larger seed.
MAX_SEED = 2**63 - 1
#: What ``--help`` shows in place of a value.
METAVARS = {str: "TEXT", int: "INTEGER", float: "NUMBER", Path: "PATH"}


class Option(NamedTuple):
    """An option of a command.

    Attributes:
        type: its type, as typer reads it; a ``Literal`` lists its choices.
        default: its value where it is left out.
        help: its help text.
        metavar: what stands for its value in ``--help``; by default the name of its type.
        flags: its spellings on the command line; by default the parameter's name, with dashes.
        shown: the default in words, for ``--help``.
        least: its smallest value.
        most: its largest value.
        parse: makes what the command takes of what typer gives.
        argument: whether it is an argument, without a flag.
        panel: the heading above it in ``--help``.
    """

    type: Any
    default: Any
    help: str
    metavar: str = ""
    flags: tuple[str, ...] = ()
    shown: str = ""
    least: int | None = None
    most: int | None = None
    parse: Callable[[Any], Any] = lambda value: value
    argument: bool = False
    panel: str = "Options"

    def spellings(self, name: str) -> tuple[str, ...]:
        """Its flags as the option of a parameter."""
        return self.flags or (f"--{name.replace('_', '-')}",)


IMAGE_SIDE = "Side of the images in pixels, if not the model's."
METHODS_HELP = "Names with commas, or 'all' that suit the model; repeat for more."
GAMMA = Option(float | None, None, "Survival per step γ, in place of the model's own.")
CLASS = Option(
    str | None,
    None,
    "Class that is explained, by name or number; 'embedding' for a model without a classifier.",
    shown="the predicted one",
)
IMAGES = Option(list[Path], [], "Image files.", argument=True)

#: Options by heading and name. ``"command.name"`` is that option of one command, where it differs.
TABLE: dict[str, dict[str, Option]] = {
    "Arguments": {
        "map.images": IMAGES._replace(help="Image files; embedded images if none."),
        "gallery.images": IMAGES._replace(help="Image files; those of --data if none."),
        "folder": Option(Path, ..., "Run folder, of evaluate or any other measure.", argument=True),
        "folders": Option(list[Path], ..., "Run folders on the same images.", argument=True),
    },
    "Models": {
        "model": Option(
            list[str],
            [LINEAR_DIGITS],
            "Bundled name, timm name, hf-hub: name, or checkpoint file; repeat for more models.",
        ),
        "checkpoint": Option(
            list[Path],
            [],
            "Weights for --model; repeat for several trainings of one model, which are averaged.",
        ),
        "map.model": Option(
            str, LINEAR_DIGITS, "Bundled name, timm name, hf-hub: name, or checkpoint file."
        ),
        "map.checkpoint": Option(
            Path | None, None, "Weights for --model: safetensors, or a torch state dict."
        ),
        "report.model": Option(
            list[str],
            [],
            "The run's models; repeat for more. Models that only the run folder names are taken "
            "if they are bundled or files: nothing is downloaded unasked.",
        ),
        "report.checkpoint": Option(
            list[Path], [], "Weights for --model; repeat for several trainings of one model."
        ),
        "methods.model": Option(
            str, "vit_base_patch16_224", "The model for --time; it gets random weights."
        ),
        "train.model": Option(
            str | None,
            None,
            "A name in timm's registry.",
            shown=f"that of --init, or {LINEAR_DIGITS}",
        ),
        "pretrained": Option(bool, False, "Fine-tune the weights that the name has."),
        "init": Option(Path | None, None, "Checkpoint to fine-tune."),
        "img_size": Option(int | None, None, IMAGE_SIDE),
        "size": Option(int | None, None, IMAGE_SIDE, least=1),
        "control": Option(
            bool,
            False,
            "Take random weights, to try speed and memory.",
            flags=("--untrained",),
            parse=lambda untrained: not untrained,
        ),
        "accumulate": Option(bool, False, "Pool over the outputs of all blocks."),
        "convert": Option(
            Literal["linear", "pure", "softmax"] | None, None, "Attention to convert to first."
        ),
        "convert_layers": Option(
            list[str],
            [],
            "Layers to convert, if not all: indices such as -4,-3,-2,-1, or a pattern of names; "
            "repeat for more layers.",
            parse=converted_layers,
        ),
    },
    "Images": {
        "data": Option(str, "photo-digits", "photo-digits, a folder, a COCO .json, or a .csv."),
        "report.data": Option(
            str | None, None, "Where the run's images are, if not where they were."
        ),
        "split": Option(Literal["train", "val", "test"], "val", "Split of --data."),
        "label_map": Option(
            str | None, None, "Labels of --data: imagenet-1k, or a file of class names."
        ),
        "labels": Option(
            Literal["auto", "name", "position"],
            "auto",
            "How classes of --data are matched to the model's: by name; by position, where the "
            "first folder is the first output; or auto, by name where there are names.",
        ),
        "limit": Option(int, 50, "Number of images.", least=1),
        "images": Option(
            bool, True, "Draw the best and worst images.", flags=("--images/--no-images",)
        ),
    },
    "Measures": {
        "metrics": Option(
            list[str],
            [],
            "Names with commas, of {names}; 'all' for every one; repeat for more.",
            shown="morf,boxes,align,focus,sanity; boxes where there are any",
            parse=lambda values: listed("--metrics", values) if values else [],
        ),
    },
    "Maps": {
        "methods": Option(
            list[str], ["visits,linear,centre,random"], METHODS_HELP, parse=method_names
        ),
        "gallery.methods": Option(list[str], ["visits,perron", "rollout"], METHODS_HELP),
        "method": Option(list[str], ["visits"], METHODS_HELP, flags=("--method", "--methods")),
        "layer": Option(str, "last", "Layer index, 'last', or 'mean' over all layers."),
        "head": Option(int | None, None, "Head index; the mean over heads if omitted."),
        "gamma": GAMMA,
        "gamma_rho": Option(
            float | None,
            None,
            "γρ of every graph, in place of γ: walks on all kinds of graphs are as long.",
        ),
        "visits_start": Option(
            Literal["counted", "excluded"],
            "counted",
            "Whether the start of a walk is one of its visits.",
        ),
        "target": Option(
            str,
            "predicted",
            "Class that is explained and followed: predicted, label, or one class for all images "
            "by name or number; embedding for a model without a classifier.",
        ),
        "map.target": CLASS,
        "gallery.target": CLASS,
    },
    "How it is measured": {
        "output": Option(
            Literal["auto", "softmax", "sigmoid"],
            "auto",
            "What the model's outputs are; sigmoid for independent labels.",
        ),
        "fill": Option(
            str, "mean", "What removed patches become: mean, black, blur, noise or drop."
        ),
        "steps": Option(
            str,
            "few",
            "Steps of the curve: a number from 2, 'few' (at most 24), or 'full' (every patch).",
            parse=number_of_steps,
        ),
        "floor": Option(
            float | None,
            None,
            "Images with a clean probability up to this one have no AOC and are counted apart.",
            shown="0.01 for --target label, else 0",
        ),
        "normalise": Option(
            bool, False, "Search the best and worst order of every image, too (NAOPC); slow."
        ),
        "boxes": Option(
            Literal["all", "label"], "all", "Boxes of an image: all, or those of its label."
        ),
        "tolerance": Option(
            float, 15 / 224, "Of the pointing game, as a share of the image's shorter side."
        ),
        "noise": Option(
            float, 0.05, "Standard deviation of the noise, as a share of the image's range."
        ),
        "draws": Option(int, 4, "Noisy copies of an image."),
        "side": Option(
            Literal["left", "right"], "left", "Perron vector: left (received) or right (emitted)."
        ),
        "layers": Option(
            str, "all", "Layer index, 'last', or 'all'.", flags=("--layer",), parse=layer_indices
        ),
        "align.steps": Option(
            list[str],
            [],
            "Numbers k > 1, with commas: show weights iterated k times, too; repeat for more.",
            parse=step_counts,
        ),
        "align.gamma": GAMMA,
    },
    "Training": {
        "epochs": Option(int | None, None, "Epochs, if not the recipe's."),
        "train.batch_size": Option(int | None, None, "Images in a step."),
        "lr": Option(float | None, None, "Peak learning rate."),
        "weight_decay": Option(float | None, None, "Weight decay of AdamW."),
        "warmup_epochs": Option(int | None, None, "Epochs of rising learning rate."),
        "layer_decay": Option(
            float | None, None, "Learning rate of a layer, as a share of the next layer's."
        ),
        "drop_path": Option(float | None, None, "Rate of stochastic depth."),
    },
    "What is timed": {
        "sizes": Option(
            list[str],
            ["224,512"],
            "Sides of the images, multiples of 16, with commas; repeat for more.",
            parse=image_sides,
        ),
        "mechanisms": Option(
            list[str],
            ["all"],
            "Names with commas, or 'all'; softmax-fused is always added; repeat for more.",
            parse=partial(listed, "--mechanisms"),
        ),
        "depth": Option(int, 4, "Layers."),
        "width": Option(int, 1024, "Width of the tokens."),
        "heads": Option(int, 64, "Heads in a layer."),
        "bench.batch_size": Option(int, 1, "Images in a batch."),
        "train": Option(bool, False, "Time a training step, not inference."),
        "time": Option(bool, False, "Also show how long each takes for one image, measured now."),
        "compiled": Option(bool, False, "Use torch.compile.", flags=("--compile",)),
        "repeats": Option(int, 5, "Batches that are timed, after one to warm up."),
        "budget": Option(
            float, 120, "Seconds for one cell; a longer one is extrapolated and marked ~."
        ),
    },
    "Computing": {
        "batch_size": Option(
            int | None, None, "Masked images in a forward pass; the fastest if omitted."
        ),
        "images_a_pass": Option(int, 8, "Images in a forward pass.", flags=("--batch-size",)),
        "device": Option(str, "auto", "auto, cpu or cuda."),
        "amp": Option(bool, False, "Use bfloat16; slow where it is emulated."),
        "train.amp": Option(
            bool | None,
            None,
            "Use bfloat16.",
            flags=("--amp/--no-amp",),
            shown="the recipe's, where the device has bfloat16",
        ),
        "seed": Option(int, 0, "Seed of all random draws.", least=0, most=MAX_SEED),
    },
    "Output": {
        "out": Option(Path | None, None, "Run folder to write."),
        "map.out": Option(Path, Path("maps"), "Folder for the overlays."),
        "gallery.out": Option(
            Path, Path("gallery.png"), "Picture to write: .png, .jpg, .svg or .pdf."
        ),
        "report.out": Option(
            Path | None, None, "File to write.", shown="report.html in the folder"
        ),
        "train.out": Option(Path, Path("runs/train"), "Run folder."),
        "force": Option(bool, False, "Write over a run in --out."),
        "map.force": Option(bool, False, "Write over pictures of something else."),
        "gallery.force": Option(bool, False, "Write over a picture of something else."),
        "resume": Option(bool, False, "Go on with the run in --out."),
        "bench.resume": Option(bool, False, "Measure what the bench.csv in --out lacks."),
        "strict": Option(bool, False, "Stop at an image that cannot be read."),
        "shard": Option(
            str | None, None, "i/n: the i-th of n parts of the images, into the same --out."
        ),
        "as_json": Option(bool, False, "Print JSON instead of a table.", flags=("--json",)),
    },
}
#: Defaults of single commands.
DEFAULTS: dict[str, Any] = {
    "gallery.model": TWINS,
    "boxes.limit": 200,
    "accuracy.limit": 500,
    "accuracy.images_a_pass": 64,
    "gallery.limit": 4,
}
#: The table without its headings.
OPTIONS: dict[str, Option] = {
    name: option._replace(panel=panel)
    for panel, options in TABLE.items()
    for name, option in options.items()
}


def options_of(command: str, names: Iterable[str]) -> dict[str, Option]:
    """The options of a command, by the names of its parameters."""
    options = {}
    for name in names:
        key = f"{command}.{name}"
        option = OPTIONS[key] if key in OPTIONS else OPTIONS[name]
        options[name] = option._replace(default=DEFAULTS.get(key, option.default))
    return options


def flags_of(options: Mapping[str, Option]) -> set[str]:
    """The flags of options by name."""
    spellings = (flag for name, option in options.items() for flag in option.spellings(name))
    return {flag for spelling in spellings for flag in spelling.split("/")}


def command_function(
    call: Callable[..., None], options: Mapping[str, Option], text: str
) -> Callable[..., None]:
    """The function of a command, for typer.

    Args:
        call: what the command does; takes the parsed values of its options by name.
        options: of the command, by name, in the order of ``--help``.
        text: its help.
    """

    def command(**values: Any) -> None:
        call(**{name: option.parse(values[name]) for name, option in options.items()})

    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default,
            annotation=_for_typer(name, option),
        )
        for name, option in options.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = text
    return command


def _for_typer(name: str, option: Option) -> Any:
    """The type of a parameter, with what typer shows of it."""
    if option.argument:
        argument = typer.Argument(help=option.help, rich_help_panel=option.panel)
        return Annotated[option.type, argument]
    settings = typer.Option(
        *option.spellings(name),
        help=option.help,
        metavar=option.metavar or _metavar(option.type),
        min=option.least,
        callback=None if option.most is None else _at_most(option.most),
        show_default=option.shown or True,
        rich_help_panel=option.panel,
    )
    return Annotated[option.type, settings]


def _metavar(type_: Any) -> str | None:
    """What stands for a value of a type in ``--help``; None for a flag."""
    if get_origin(type_) is Literal:
        return f"[{'|'.join(get_args(type_))}]"
    inner = get_args(type_)  # T of list[T] and of T | None
    return METAVARS.get(type_) or (_metavar(inner[0]) if inner else None)


def is_readable(type_: Any) -> bool:
    """Whether typer can read a value of a type from the command line."""
    if get_origin(type_) in (Union, UnionType):
        return all(part is NoneType or is_readable(part) for part in get_args(type_))
    if get_origin(type_) is Literal:
        return all(isinstance(choice, str) for choice in get_args(type_))
    return type_ is bool or type_ in METAVARS


def _at_most(most: int) -> Callable[[int], int]:
    """A check of a number; typer's own would show ``most`` in ``--help``."""

    def check(value: int) -> int:
        if value > most:
            raise typer.BadParameter(f"Input should be less than or equal to {most}")
        return value

    return check
