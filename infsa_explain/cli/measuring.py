"""Commands that measure: deletion curves, boxes, alignment, accuracy, sanity, and all at once.

A command is a row of ``COMMANDS``: the measures it makes, the options it takes from ``OPTIONS``,
and what its defaults are where they differ. Its function is built from that, so that an option is
written once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

import typer

from ..catalogue import MEASURES
from .options import (
    LINEAR_DIGITS,
    CheckpointsOption,
    DataOption,
    DeviceOption,
    ForceOption,
    GammaOption,
    HeadOption,
    JsonOption,
    LabelMapOption,
    LabelsOption,
    LayerOption,
    LimitOption,
    MethodsOption,
    ModelOption,
    OutOption,
    OutputOption,
    ResumeOption,
    SeedOption,
    ShardOption,
    Source,
    SplitOption,
    StrictOption,
    TargetOption,
    chosen_output,
    integer,
    listed,
    load_models,
    method_names,
)
from .running import Saving, run

if TYPE_CHECKING:
    from ..evaluate import Measure

__all__ = ["COMMANDS", "measuring_command"]

Values = dict[str, Any]


def number_of_steps(steps: str) -> int | Literal["few"] | None:
    """What --steps says; None for one patch a step."""
    if steps == "full":
        return None
    return "few" if steps == "few" else integer("--steps", steps, "'few' or 'full'")


def chosen_boxes(boxes: str) -> Literal["all", "label"]:
    """What --boxes says."""
    if boxes not in ("all", "label"):
        raise ValueError(f"--boxes must be 'all' or 'label', got {boxes!r}")
    return "label" if boxes == "label" else "all"


def chosen_side(side: str) -> Literal["left", "right"]:
    """What --side says."""
    if side not in ("left", "right"):
        raise ValueError(f"--side must be 'left' or 'right', got {side!r}")
    return "right" if side == "right" else "left"


def chosen_layers(layer: str) -> tuple[int, ...] | None:
    """What --layer of align says; None for all."""
    if layer in ("all", "last"):
        return None if layer == "all" else (-1,)
    return (integer("--layer", layer, "'last' or 'all'"),)


def iterated_weights(steps: list[str]) -> tuple[int, ...]:
    """What --steps of align says."""
    names = listed("--steps", steps) if steps else []
    return tuple(integer("--steps", k, "several, with commas") for k in names)


class Option(NamedTuple):
    """An option of a command.

    Attributes:
        type: its type, with its help, as typer reads it.
        default: its default.
        parse: makes what a measure takes of what typer gives.
        field: the measure's name for it, if another.
    """

    type: Any
    default: Any
    parse: Callable[[Any], Any] = lambda value: value
    field: str = ""


#: Options of commands by name, as typer spells them with ``--`` and dashes.
OPTIONS: dict[str, Option] = {
    "model": Option(ModelOption, [LINEAR_DIGITS]),
    "checkpoint": Option(CheckpointsOption, []),
    "data": Option(DataOption, "photo-digits"),
    "split": Option(SplitOption, "val"),
    "label_map": Option(LabelMapOption, None),
    "labels": Option(LabelsOption, "auto"),
    "metrics": Option(
        Annotated[
            list[str],
            typer.Option(
                "--metrics",
                help=f"With commas, of {', '.join(MEASURES)}; 'all' for every one; repeat for "
                "more.",
                show_default="morf,boxes,align,focus,sanity; boxes where there are any",
            ),
        ],
        [],
    ),
    # What a newcomer sees first: two methods, two controls.
    "methods": Option(MethodsOption, ["visits,linear,centre,random"], method_names),
    "layer": Option(LayerOption, "last"),
    "head": Option(HeadOption, None),
    "gamma": Option(GammaOption, None),
    "target": Option(TargetOption, "predicted"),
    "output": Option(OutputOption, "auto", chosen_output),
    "fill": Option(Annotated[str, typer.Option(help="mean, black, blur, noise or drop.")], "mean"),
    "steps": Option(
        Annotated[
            str,
            typer.Option(
                help="Of the curve: a number from 2, 'few' (at most 24), or 'full': every patch."
            ),
        ],
        "few",
        number_of_steps,
    ),
    "floor": Option(
        Annotated[
            float | None,
            typer.Option(
                help="Clean probability up to which an image has no AOC, and is counted apart.",
                show_default="0.01 for --target label, else 0",
            ),
        ],
        None,
    ),
    "boxes": Option(
        Annotated[str, typer.Option(help="Of an image: all, or those of its label.")],
        "all",
        chosen_boxes,
    ),
    "tolerance": Option(
        Annotated[
            float, typer.Option(help="Of the pointing game, as a share of the shorter side.")
        ],
        15 / 224,
    ),
    "noise": Option(
        Annotated[
            float,
            typer.Option(help="Standard deviation of noise, as a share of the image's range."),
        ],
        0.05,
    ),
    "draws": Option(Annotated[int, typer.Option(help="Noisy copies of an image.")], 4),
    "limit": Option(LimitOption, 50),
    "batch_size": Option(
        Annotated[
            int | None,
            typer.Option(
                "--batch-size", help="Masked images a forward pass; what is fastest if omitted."
            ),
        ],
        None,
    ),
    "device": Option(DeviceOption, "auto"),
    "amp": Option(
        Annotated[bool, typer.Option("--amp", help="bfloat16; slow if emulated.")], False
    ),
    "seed": Option(SeedOption, 0),
    "out": Option(OutOption, None),
    "force": Option(ForceOption, False),
    "resume": Option(ResumeOption, False),
    "strict": Option(StrictOption, False),
    "shard": Option(ShardOption, None),
    "as_json": Option(JsonOption, False),
}
IMAGES_A_PASS = Annotated[int, typer.Option(help="Images a forward pass.")]
#: Options of one command alone, or that mean something else there.
ALIGN: dict[str, Option] = {
    "side": Option(
        Annotated[str, typer.Option(help="Perron vector: left (received) or right.")],
        "left",
        chosen_side,
    ),
    "layer": Option(
        Annotated[str, typer.Option(help="Layer index, 'last', or 'all'.")],
        "all",
        chosen_layers,
        "layers",
    ),
    "steps": Option(
        Annotated[
            list[str],
            typer.Option(
                "--steps",
                help="k > 1, with commas: weights iterated k times, beside them; repeat for more.",
            ),
        ],
        [],
        iterated_weights,
    ),
    "size": Option(
        Annotated[
            int | None,
            typer.Option(min=1, help="Side of the images in pixels, if not the model's."),
        ],
        None,
    ),
    "untrained": Option(
        Annotated[
            bool, typer.Option("--untrained", help="Random weights: to try speed and memory.")
        ],
        False,
        lambda untrained: not untrained,
        "control",
    ),
    "batch_size": Option(IMAGES_A_PASS, 8),
}
ACCURACY = {"batch_size": Option(IMAGES_A_PASS, 64)}

SOURCE = ("model", "checkpoint", "data", "split", "label_map", "labels")
MAPS = ("methods", "layer", "head", "gamma")
SAVING = ("seed", "out", "force", "resume", "strict", "shard", "as_json")


class Command(NamedTuple):
    """A measuring command.

    Attributes:
        help: its help; the first line says what it does.
        options: names of its options, in the order of ``--help``.
        limit: images by default.
        own: options of its own, in place of those of the same name.
    """

    help: str
    options: tuple[str, ...]
    limit: int = 50
    own: Mapping[str, Option] = {}

    def option(self, name: str) -> Option:
        """An option, with this command's default."""
        option = self.own.get(name) or OPTIONS[name]
        return option._replace(default=self.limit) if name == "limit" else option


#: Commands by name: a measure's, or ``evaluate``, which makes several.
COMMANDS: dict[str, Command] = {
    "morf": Command(
        """Remove patches, most relevant first, and watch the prediction go: MoRF-AOC.

        Example: infsa-explain morf --model vit_softmax_digits --methods all --out runs/softmax
        """,
        (*SOURCE, *MAPS, "fill", "steps", "target", "output", "floor", "limit", "batch_size")
        + ("device", "amp", *SAVING),
    ),
    "boxes": Command(
        """Compare maps with the objects' boxes: PR-AUC and its relatives.

        Example: infsa-explain boxes --methods all --limit 500 --out runs/boxes
        """,
        (*SOURCE, *MAPS, "target", "boxes", "tolerance", "limit", "device", *SAVING),
        limit=200,
    ),
    "align": Command(
        """Compare Linear-InfSA's weights with the Perron vector they stand for, and with controls.

        Example: infsa-explain align --model infvit_linear_photos --data FOLDER --steps 2,4,8
        """,
        (*SOURCE[:4], "side", "layer", "steps", "gamma", "size", "untrained", "limit", "batch_size")
        + ("device", *SAVING),
        own=ALIGN,
    ),
    "sanity": Command(
        """Do maps depend on what the model learnt, hold still under noise, agree with one another?

        Example: infsa-explain sanity --model vit_softmax_digits --methods all --out runs/sanity
        """,
        (*SOURCE, *MAPS, "target", "noise", "draws", "limit", "device", *SAVING),
    ),
    "evaluate": Command(
        """Measure everything at once: a model's attention, by every measure, in one run.

        Example: infsa-explain evaluate --model infvit_linear_digits --model vit_softmax_digits
        --methods all --limit 500 --out runs/twins
        """,
        (*SOURCE, "metrics", *MAPS, "target", "output", "fill", "steps", "floor", "boxes", "limit")
        + ("batch_size", "device", "amp", *SAVING),
    ),
    "accuracy": Command(
        """Classify images: top-1 and top-5 accuracy.

        Example: infsa-explain accuracy --model vit_base_patch16_224 --data V2
        --label-map imagenet-1k
        """,
        (*SOURCE, "limit", "batch_size", "device", "amp", *SAVING),
        limit=500,
        own=ACCURACY,
    ),
}


def measuring_command(name: str) -> Callable[..., None]:
    """The function of a command of ``COMMANDS``, for typer."""
    command = COMMANDS[name]
    options = {option: command.option(option) for option in command.options}

    def measuring(**values: Any) -> None:
        _measure(name, options, values)

    keyword = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.Signature(
        [
            inspect.Parameter(option, keyword, default=spec.default, annotation=spec.type)
            for option, spec in options.items()
        ]
    )
    measuring.__name__, measuring.__doc__ = name, command.help
    measuring.__annotations__ = {option: spec.type for option, spec in options.items()}
    measuring.__signature__ = signature  # type: ignore[attr-defined]
    return measuring


def _measure(name: str, options: Mapping[str, Option], values: Values) -> None:
    """Make the measures of a command with the values of its options, and run them."""
    from ..evaluate import measure_class

    parsed = {spec.field or o: spec.parse(values[o]) for o, spec in options.items()}
    several = name == "evaluate"
    measures = _chosen(values["metrics"]) if several else [measure_class(name)]
    arguments: Values = {}
    if values.get("untrained"):
        arguments["pretrained"] = False
    if values.get("size") is not None:
        arguments["img_size"] = values["size"]
    source = [values.get(o, OPTIONS[o].default) for o in ("data", "split", "limit", "seed")]
    labels = [values.get(o, OPTIONS[o].default) for o in ("label_map", "labels")]
    built = [with_options(measure, parsed, shared=several) for measure in measures]
    run(
        load_models(values["model"], values["checkpoint"], values["device"], **arguments),
        Source(*source, *labels),
        built,
        Saving(*(values[o] for o in ("out", "force", "resume", "strict", "shard"))),
        conditions=conditions(values),
        as_json=values["as_json"],
        optional=several and (not values["metrics"] or "all" in listed("", values["metrics"])),
        **({"batch_size": values["batch_size"]} if _counts_images(options) else {}),
    )


def _counts_images(options: Mapping[str, Option]) -> bool:
    """Whether --batch-size is the number of images, not of masked ones."""
    return "batch_size" in options and options["batch_size"].type is IMAGES_A_PASS


def _chosen(metrics: list[str]) -> list[type[Measure]]:
    """The measures that --metrics names; those by default if it is not given.

    Raises:
        ValueError: for an unknown name.
    """
    from ..evaluate import measure_class, measure_names

    known = measure_names()
    names = listed("--metrics", metrics) if metrics else known
    if unknown := [name for name in names if name not in (*known, "all")]:
        raise ValueError(f"--metrics must be of {', '.join(known)}, got {', '.join(unknown)}")
    classes = [measure_class(name) for name in (known if "all" in names else names)]
    return [measure for measure in classes if metrics or measure.by_default]


def with_options(measure: type[Measure], options: Values, *, shared: bool) -> Measure:
    """A measure with those of the options that it has.

    Args:
        measure: its class.
        options: by the measure's names for them.
        shared: whether other measures have them, too: then without those that this one alone
            understands otherwise.
    """
    defaults = {field.name: field.default for field in fields(cast(Any, measure))}
    known = {
        name: value
        for name, value in options.items()
        if name in defaults and not (shared and name in measure.own_options)
    }
    if known.get("batch_size", 0) is None and defaults["batch_size"] is not None:
        del known["batch_size"]
    return measure(**known)


def conditions(values: Values) -> str:
    """What the titles of tables say of the maps."""
    if "side" in values:
        return f", {values['side']} side"
    if "methods" not in values:
        return ""
    of_head = "" if values["head"] is None else f", head {values['head']}"
    of_class = "" if values["target"] == "predicted" else f", class: {values['target']}"
    return f", layer {values['layer']}{of_head}{of_class}"
