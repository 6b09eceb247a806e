"""Commands that measure: deletion curves, boxes, alignment, accuracy, and all at once."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

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

#: What a newcomer sees first: two methods, two controls.
FIRST_METHODS = ["visits,linear,centre,random"]
FillOption = Annotated[str, typer.Option(help="mean, black, blur, noise or drop.")]
StepsOption = Annotated[
    str,
    typer.Option(help="Of the curve: a number from 2, 'few' (at most 24), or 'full': every patch."),
]
FloorOption = Annotated[
    float | None,
    typer.Option(
        help="Clean probability up to which an image has no AOC, and is counted apart.",
        show_default="0.01 for --target label, else 0",
    ),
]
MaskedOption = Annotated[
    int | None,
    typer.Option("--batch-size", help="Masked images a forward pass; what is fastest if omitted."),
]
BoxesOption = Annotated[str, typer.Option(help="Of an image: all, or those of its label.")]
AmpOption = Annotated[bool, typer.Option("--amp", help="bfloat16; slow if emulated.")]


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


def conditions(layer: str, head: int | None, target: str) -> str:
    """What the titles of tables say of the maps."""
    of_head = "" if head is None else f", head {head}"
    of_class = "" if target == "predicted" else f", class: {target}"
    return f", layer {layer}{of_head}{of_class}"


def morf(
    model: ModelOption = [LINEAR_DIGITS],  # noqa: B006  (typer copies it)
    checkpoint: CheckpointsOption = [],  # noqa: B006
    data: DataOption = "photo-digits",
    split: SplitOption = "val",
    label_map: LabelMapOption = None,
    labels: LabelsOption = "auto",
    methods: MethodsOption = FIRST_METHODS,  # typer copies it
    layer: LayerOption = "last",
    head: HeadOption = None,
    gamma: GammaOption = None,
    fill: FillOption = "mean",
    steps: StepsOption = "few",
    target: TargetOption = "predicted",
    output: OutputOption = "auto",
    floor: FloorOption = None,
    limit: LimitOption = 50,
    batch_size: MaskedOption = None,
    device: DeviceOption = "auto",
    amp: AmpOption = False,
    seed: SeedOption = 0,
    out: OutOption = None,
    force: ForceOption = False,
    resume: ResumeOption = False,
    strict: StrictOption = False,
    shard: ShardOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove patches, most relevant first, and watch the prediction go: MoRF-AOC.

    Example: infsa-explain morf --model vit_softmax_digits --methods all --out runs/softmax
    """
    from ..evaluate import Morf

    measure = Morf(
        methods=method_names(methods),
        layer=layer,
        head=head,
        gamma=gamma,
        fill=fill,
        steps=number_of_steps(steps),
        target=target,
        floor=floor,
        seed=seed,
        batch_size=batch_size,
        amp=amp,
        output=chosen_output(output),
    )
    run(
        load_models(model, checkpoint, device),
        Source(data, split, limit, seed, label_map, labels),
        [measure],
        Saving(out, force, resume, strict, shard),
        conditions=conditions(layer, head, target),
        as_json=as_json,
    )


def boxes(
    model: ModelOption = [LINEAR_DIGITS],  # noqa: B006  (typer copies it)
    checkpoint: CheckpointsOption = [],  # noqa: B006
    data: DataOption = "photo-digits",
    split: SplitOption = "val",
    label_map: LabelMapOption = None,
    labels: LabelsOption = "auto",
    methods: MethodsOption = FIRST_METHODS,  # typer copies it
    layer: LayerOption = "last",
    head: HeadOption = None,
    gamma: GammaOption = None,
    target: TargetOption = "predicted",
    boxes: BoxesOption = "all",
    tolerance: Annotated[
        float, typer.Option(help="Of the pointing game, as a share of the shorter side.")
    ] = 15 / 224,
    limit: LimitOption = 200,
    device: DeviceOption = "auto",
    seed: SeedOption = 0,
    out: OutOption = None,
    force: ForceOption = False,
    resume: ResumeOption = False,
    strict: StrictOption = False,
    shard: ShardOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare maps with the objects' boxes: PR-AUC and its relatives.

    Example: infsa-explain boxes --methods all --limit 500 --out runs/boxes
    """
    from ..evaluate import Boxes

    measure = Boxes(
        methods=method_names(methods),
        layer=layer,
        head=head,
        gamma=gamma,
        target=target,
        seed=seed,
        tolerance=tolerance,
        boxes=chosen_boxes(boxes),
    )
    run(
        load_models(model, checkpoint, device),
        Source(data, split, limit, seed, label_map, labels),
        [measure],
        Saving(out, force, resume, strict, shard),
        conditions=conditions(layer, head, target),
        as_json=as_json,
    )


def align(
    model: ModelOption = [LINEAR_DIGITS],  # noqa: B006  (typer copies it)
    checkpoint: CheckpointsOption = [],  # noqa: B006
    data: DataOption = "photo-digits",
    split: SplitOption = "val",
    side: Annotated[str, typer.Option(help="Perron vector: left (received) or right.")] = "left",
    layer: Annotated[str, typer.Option(help="Layer index, 'last', or 'all'.")] = "all",
    steps: Annotated[
        list[str],
        typer.Option(
            "--steps",
            help="k > 1, with commas: weights iterated k times, beside them; repeat for more.",
        ),
    ] = [],  # noqa: B006
    gamma: GammaOption = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Side of the images in pixels, if not the model's.")
    ] = None,
    untrained: Annotated[
        bool, typer.Option("--untrained", help="Random weights: to try speed and memory.")
    ] = False,
    limit: LimitOption = 50,
    batch_size: Annotated[int, typer.Option(help="Images a forward pass.")] = 8,
    device: DeviceOption = "auto",
    seed: SeedOption = 0,
    out: OutOption = None,
    force: ForceOption = False,
    resume: ResumeOption = False,
    strict: StrictOption = False,
    shard: ShardOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare Linear-InfSA's weights with the Perron vector they stand for, and with what is free.

    Example: infsa-explain align --model infvit_linear_photos --data FOLDER --steps 2,4,8
    """
    from ..evaluate import Alignment

    if side not in ("left", "right"):
        raise ValueError(f"--side must be 'left' or 'right', got {side!r}")
    arguments = {"pretrained": not untrained} | ({} if size is None else {"img_size": size})
    measure = Alignment(
        side="right" if side == "right" else "left",
        layers={"all": None, "last": (-1,)}[layer]
        if layer in ("all", "last")
        else (integer("--layer", layer, "'last' or 'all'"),),
        steps=tuple(
            integer("--steps", k, "several, with commas")
            for k in (listed("--steps", steps) if steps else ())
        ),
        gamma=gamma,
        control=not untrained,
        seed=seed,
    )
    run(
        load_models(model, checkpoint, device, **arguments),
        Source(data, split, limit, seed),
        [measure],
        Saving(out, force, resume, strict, shard),
        conditions=f", {side} side",
        as_json=as_json,
        batch_size=batch_size,
    )


def accuracy(
    model: ModelOption = [LINEAR_DIGITS],  # noqa: B006  (typer copies it)
    checkpoint: CheckpointsOption = [],  # noqa: B006
    data: DataOption = "photo-digits",
    split: SplitOption = "val",
    label_map: LabelMapOption = None,
    labels: LabelsOption = "auto",
    limit: LimitOption = 500,
    batch_size: Annotated[int, typer.Option(help="Images a forward pass.")] = 64,
    device: DeviceOption = "auto",
    amp: AmpOption = False,
    seed: SeedOption = 0,
    out: OutOption = None,
    force: ForceOption = False,
    resume: ResumeOption = False,
    strict: StrictOption = False,
    shard: ShardOption = None,
    as_json: JsonOption = False,
) -> None:
    """Classify images: top-1 and top-5 accuracy.

    Example: infsa-explain accuracy --model vit_base_patch16_224 --data V2 --label-map imagenet-1k
    """
    from ..evaluate import Accuracy

    run(
        load_models(model, checkpoint, device),
        Source(data, split, limit, seed, label_map, labels),
        [Accuracy(amp=amp)],
        Saving(out, force, resume, strict, shard),
        conditions="",
        as_json=as_json,
        batch_size=batch_size,
    )


def evaluate(
    model: ModelOption = [LINEAR_DIGITS],  # noqa: B006  (typer copies it)
    checkpoint: CheckpointsOption = [],  # noqa: B006
    data: DataOption = "photo-digits",
    split: SplitOption = "val",
    label_map: LabelMapOption = None,
    labels: LabelsOption = "auto",
    metrics: Annotated[
        list[str],
        typer.Option(
            "--metrics",
            help=f"With commas, of {', '.join(MEASURES)}; 'all' for every one; repeat for more.",
            show_default="morf,boxes,align,focus,sanity; boxes where there are any",
        ),
    ] = [],  # noqa: B006
    methods: MethodsOption = FIRST_METHODS,  # typer copies it
    layer: LayerOption = "last",
    head: HeadOption = None,
    gamma: GammaOption = None,
    target: TargetOption = "predicted",
    output: OutputOption = "auto",
    fill: FillOption = "mean",
    steps: StepsOption = "few",
    floor: FloorOption = None,
    boxes: BoxesOption = "all",
    limit: LimitOption = 50,
    batch_size: MaskedOption = None,
    device: DeviceOption = "auto",
    amp: AmpOption = False,
    seed: SeedOption = 0,
    out: OutOption = None,
    force: ForceOption = False,
    resume: ResumeOption = False,
    strict: StrictOption = False,
    shard: ShardOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure everything at once: a model's attention, by every measure, in one run.

    Example: infsa-explain evaluate --model infvit_linear_digits --model vit_softmax_digits
    --methods all --limit 500 --out runs/twins
    """
    from ..evaluate import measure_class, measure_names

    options = {
        "methods": method_names(methods),
        "layer": layer,
        "head": head,
        "gamma": gamma,
        "target": target,
        "output": chosen_output(output),
        "fill": fill,
        "steps": number_of_steps(steps),
        "floor": floor,
        "boxes": chosen_boxes(boxes),
        "batch_size": batch_size,
        "amp": amp,
        "seed": seed,
    }
    names = listed("--metrics", metrics) if metrics else []
    everything = "all" in names
    chosen = measure_names() if everything or not names else names
    if unknown := [name for name in chosen if name not in measure_names()]:
        known = ", ".join(measure_names())
        raise ValueError(f"--metrics must be of {known}, got {', '.join(unknown)}")
    classes = [measure_class(name) for name in chosen]
    run(
        load_models(model, checkpoint, device),
        Source(data, split, limit, seed, label_map, labels),
        [with_options(m, options) for m in classes if names or m.by_default],
        Saving(out, force, resume, strict, shard),
        conditions=conditions(layer, head, target),
        as_json=as_json,
        optional=everything or not names,
    )


def with_options(measure: type[Measure], options: dict[str, Any]) -> Measure:
    """A measure with those of the options that it has."""
    own = {field.name: field.default for field in fields(cast(Any, measure))}
    return measure(
        **{
            name: value
            for name, value in options.items()
            if name in own
            and name not in measure.own_options
            and not (name == "batch_size" and value is None and own[name] is not None)
        }
    )


def sanity(
    model: ModelOption = [LINEAR_DIGITS],  # noqa: B006  (typer copies it)
    checkpoint: CheckpointsOption = [],  # noqa: B006
    data: DataOption = "photo-digits",
    split: SplitOption = "val",
    label_map: LabelMapOption = None,
    labels: LabelsOption = "auto",
    methods: MethodsOption = FIRST_METHODS,  # typer copies it
    layer: LayerOption = "last",
    head: HeadOption = None,
    gamma: GammaOption = None,
    target: TargetOption = "predicted",
    noise: Annotated[
        float,
        typer.Option(help="Standard deviation of noise, as a share of the image's range."),
    ] = 0.05,
    draws: Annotated[int, typer.Option(help="Noisy copies of an image.")] = 4,
    limit: LimitOption = 50,
    device: DeviceOption = "auto",
    seed: SeedOption = 0,
    out: OutOption = None,
    force: ForceOption = False,
    resume: ResumeOption = False,
    strict: StrictOption = False,
    shard: ShardOption = None,
    as_json: JsonOption = False,
) -> None:
    """Do maps depend on what the model learnt, hold still under noise, and agree with one another?

    Example: infsa-explain sanity --model vit_softmax_digits --methods all --out runs/sanity
    """
    from ..evaluate import Sanity

    measure = Sanity(
        methods=method_names(methods),
        layer=layer,
        head=head,
        gamma=gamma,
        target=target,
        seed=seed,
        noise=noise,
        draws=draws,
    )
    run(
        load_models(model, checkpoint, device),
        Source(data, split, limit, seed, label_map, labels),
        [measure],
        Saving(out, force, resume, strict, shard),
        conditions=conditions(layer, head, target),
        as_json=as_json,
    )
