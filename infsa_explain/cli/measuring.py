"""Commands that measure: deletion curves, boxes, alignment, accuracy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from .options import (
    LINEAR_DIGITS,
    CheckpointOption,
    DataOption,
    DeviceOption,
    ForceOption,
    GammaOption,
    HeadOption,
    JsonOption,
    LabelMapOption,
    LayerOption,
    LimitOption,
    MethodsOption,
    ModelOption,
    OutOption,
    ResumeOption,
    SeedOption,
    SplitOption,
    StrictOption,
    integer,
    load_models,
    method_names,
    open_images,
)
from .output import print_json, print_table, progress

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from torch import nn

    from ..data import ImageData

#: What a newcomer sees first: two methods, two controls.
FIRST_METHODS = "visits,linear,centre,random"


def morf(
    model: ModelOption = [LINEAR_DIGITS],  # noqa: B006  (typer copies it)
    checkpoint: CheckpointOption = None,
    data: DataOption = "photo-digits",
    split: SplitOption = "val",
    label_map: LabelMapOption = None,
    methods: MethodsOption = FIRST_METHODS,
    layer: LayerOption = "last",
    head: HeadOption = None,
    gamma: GammaOption = None,
    fill: Annotated[str, typer.Option(help="mean, black, blur, noise or drop.")] = "mean",
    steps: Annotated[str, typer.Option(help="Points of the curve, or 'full': every patch.")] = "24",
    target: Annotated[str, typer.Option(help="Class followed: predicted, or label.")] = "predicted",
    floor: Annotated[float, typer.Option(help="Clean probability below which AOC is void.")] = 0.0,
    limit: LimitOption = 50,
    batch_size: Annotated[int, typer.Option(help="Masked images a forward pass.")] = 16,
    device: DeviceOption = "auto",
    amp: Annotated[bool, typer.Option("--amp", help="bfloat16 autocast.")] = False,
    seed: SeedOption = 0,
    out: OutOption = None,
    force: ForceOption = False,
    resume: ResumeOption = False,
    strict: StrictOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove patches, most relevant first, and watch the prediction go: MoRF-AOC.

    Example: infsa-explain morf --model vit_softmax_digits --methods all --out runs/softmax
    """
    from .. import evaluate, report

    if target not in ("predicted", "label"):
        raise ValueError(f"--target must be 'predicted' or 'label', got {target!r}")
    images = open_images(data, split, limit, seed, label_map)
    loaded = load_models(model, checkpoint, device)
    options = evaluate.MorfOptions(
        methods=method_names(methods),
        layer=layer,
        head=head,
        gamma=gamma,
        fill=fill,
        steps=None if steps == "full" else integer("--steps", steps, "'full'"),
        target="label" if target == "label" else "predicted",
        floor=floor,
        seed=seed,
        batch_size=batch_size,
        amp=amp,
    )
    for each in loaded.values():
        evaluate.choose_methods(each, options.methods)
    measure = evaluate.evaluate_morf, report.write_morf
    run = _measure("morf", measure, loaded, images, options, out, force, resume, strict)
    summaries = report.summarise_morf(run.rows)
    if as_json:
        print_json(summaries)
        return
    points = "one patch a step" if options.steps is None else f"{options.steps} steps"
    title = f"{images.name}, {len(images)} images, layer {layer}, fill {fill}, {points}; percent"
    print_table(title, report.MORF_HEADINGS, report.morf_table(summaries))
    print(report.caution(s.aoc for s in summaries), end="")
    run.say_where()


def boxes(
    model: ModelOption = [LINEAR_DIGITS],  # noqa: B006  (typer copies it)
    checkpoint: CheckpointOption = None,
    data: DataOption = "photo-digits",
    split: SplitOption = "val",
    label_map: LabelMapOption = None,
    methods: MethodsOption = FIRST_METHODS,
    layer: LayerOption = "last",
    head: HeadOption = None,
    gamma: GammaOption = None,
    boxes: Annotated[str, typer.Option(help="Of an image: all, or those of its label.")] = "all",
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
    as_json: JsonOption = False,
) -> None:
    """Compare maps with the objects' boxes: PR-AUC and its relatives.

    Example: infsa-explain boxes --methods all --limit 500 --out runs/boxes
    """
    from .. import evaluate, report

    if boxes not in ("all", "label"):
        raise ValueError(f"--boxes must be 'all' or 'label', got {boxes!r}")
    images = open_images(data, split, limit, seed, label_map)
    loaded = load_models(model, checkpoint, device)
    options = evaluate.BoxOptions(
        methods=method_names(methods),
        layer=layer,
        head=head,
        gamma=gamma,
        seed=seed,
        tolerance=tolerance,
        boxes="label" if boxes == "label" else "all",
    )
    for each in loaded.values():
        evaluate.choose_methods(each, options.methods)
    measure = evaluate.evaluate_boxes, report.write_boxes
    run = _measure("boxes", measure, loaded, images, options, out, force, resume, strict)
    summaries = report.summarise_boxes(run.rows)
    if as_json:
        print_json(summaries)
        return
    title = f"{images.name}, {len(images)} images, layer {layer}; percent"
    print_table(title, report.BOX_HEADINGS, report.box_table(summaries))
    print(report.caution(s.measures["ap"] for s in summaries), end="")
    run.say_where()


def align(
    model: ModelOption = [LINEAR_DIGITS],  # noqa: B006  (typer copies it)
    checkpoint: CheckpointOption = None,
    data: DataOption = "photo-digits",
    split: SplitOption = "val",
    side: Annotated[str, typer.Option(help="Perron vector: left (received) or right.")] = "left",
    layer: Annotated[str, typer.Option(help="Layer index, 'last', or 'all'.")] = "all",
    steps: Annotated[
        str, typer.Option(help="Comma-separated k > 1: weights iterated k times, beside them.")
    ] = "",
    gamma: GammaOption = None,
    size: Annotated[
        int | None, typer.Option(help="Side of the images in pixels, if not the model's.")
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
    as_json: JsonOption = False,
) -> None:
    """Compare Linear-InfSA's weights with the Perron vector they stand for, and with what is free.

    Example: infsa-explain align --model infvit_linear_photos --data FOLDER --steps 2,4,8
    """
    from .. import evaluate, report
    from ..report.alignment import PUBLISHED_COSINE

    images = open_images(data, split, limit, seed)
    arguments = {"pretrained": not untrained} | ({} if size is None else {"img_size": size})
    loaded = load_models(model, checkpoint, device, **arguments)
    options = evaluate.AlignmentOptions(
        side="right" if side == "right" else "left",
        layers={"all": None, "last": (-1,)}[layer]
        if layer in ("all", "last")
        else (integer("--layer", layer, "'last' or 'all'"),),
        steps=tuple(integer("--steps", k, "several, with commas") for k in steps.split(",") if k),
        gamma=gamma,
        control=not untrained,
        seed=seed,
        batch_size=batch_size,
    )
    if side not in ("left", "right"):
        raise ValueError(f"--side must be 'left' or 'right', got {side!r}")
    measure = evaluate.evaluate_alignment, report.write_alignment
    run = _measure("align", measure, loaded, images, options, out, force, resume, strict)
    vectors, layers = report.summarise_alignment(run.rows), report.summarise_layers(run.rows)
    if as_json:
        print_json(vectors)
        return
    title = f"{images.name}, {len(images)} images: agreement with the {side} Perron vector"
    print_table(title, report.ALIGNMENT_HEADINGS, report.alignment_table(vectors))
    print_table("\n`linear` by layer", report.LAYER_HEADINGS, report.layer_table(layers))
    print(report.caution(s.cosine for s in vectors), end="")
    print(f"\npublished: cosine {PUBLISHED_COSINE} (arXiv 2603.00175), without a control")
    run.say_where()


def accuracy(
    model: ModelOption = [LINEAR_DIGITS],  # noqa: B006  (typer copies it)
    checkpoint: CheckpointOption = None,
    data: DataOption = "photo-digits",
    split: SplitOption = "val",
    label_map: LabelMapOption = None,
    limit: LimitOption = 500,
    batch_size: Annotated[int, typer.Option(help="Images a forward pass.")] = 64,
    device: DeviceOption = "auto",
    amp: Annotated[bool, typer.Option("--amp", help="bfloat16 autocast.")] = False,
    seed: SeedOption = 0,
    out: OutOption = None,
    force: ForceOption = False,
    resume: ResumeOption = False,
    strict: StrictOption = False,
    as_json: JsonOption = False,
) -> None:
    """Classify images: top-1 and top-5 accuracy.

    Example: infsa-explain accuracy --model vit_base_patch16_224 --data V2 --label-map imagenet-1k
    """
    from .. import evaluate, report

    images = open_images(data, split, limit, seed, label_map)
    loaded = load_models(model, checkpoint, device)
    options = evaluate.AccuracyOptions(batch_size=batch_size, amp=amp)
    measure = evaluate.evaluate_accuracy, report.write_accuracy
    run = _measure("accuracy", measure, loaded, images, options, out, force, resume, strict)
    summaries = report.summarise_accuracy(run.rows)
    if as_json:
        print_json(summaries)
        return
    title = f"{images.name}, {len(images)} images; percent"
    print_table(title, report.ACCURACY_HEADINGS, report.accuracy_table(summaries))
    print(report.caution(s.top1 for s in summaries), end="")
    run.say_where()


class _Run(NamedTuple):
    """What a measure gave: its rows, and the run folder where there is one."""

    rows: list[dict[str, Any]]
    folder: Path | None

    def say_where(self) -> None:
        """Print what was written."""
        if self.folder is not None:
            files = ", ".join(sorted(path.name for path in self.folder.iterdir()))
            print(f"\nwritten to {self.folder}/: {files}")


def _measure(
    command: str,
    measure: tuple[Callable[..., list[dict[str, Any]]], Callable[[Path, Any], Any]],
    models: dict[str, nn.Module],
    images: ImageData,
    options: DataclassInstance,
    out: Path | None,
    force: bool,
    resume: bool,
    strict: bool,
) -> _Run:
    """Apply a measure, (evaluate, write its summary), to every model.

    The rows go to a run folder as they come, the summary at the end.
    """
    from ..data import Subset
    from ..evaluate import RunFolder, describe_run

    evaluate, write = measure
    rows: list[dict[str, Any]] = []
    skipped: list[str] = []

    def on_skip(message: str) -> None:
        if strict:
            raise ValueError(message)
        skipped.append(message)
        print(f"left out: {message}", file=sys.stderr)

    with ExitStack() as stack:
        advance = stack.enter_context(progress("images", len(images) * len(models)))
        folder = None
        if out is not None:
            config = describe_run(command, models, images, options)
            folder = stack.enter_context(RunFolder(out, config, force=force, resume=resume))
            rows += folder.rows
        for name, model in models.items():
            done = 0 if folder is None else folder.done.get(name, 0)
            advance(done)

            def on_image(count: int, name: str = name) -> None:
                if folder is not None:
                    folder.commit(name, count)
                advance(count)

            rows += evaluate(
                model,
                Subset(images, range(done, len(images))) if done else images,
                options,
                name=name,
                on_row=(lambda row: None) if folder is None else folder.write,
                on_image=on_image,
                on_skip=on_skip,
            )
    if skipped:
        print(f"{len(skipped)} times an image could not be read and was left out", file=sys.stderr)
    if not rows:
        raise ValueError(f"none of the {len(images)} images could be read")
    if folder is not None:
        write(folder.path, rows)
    return _Run(rows, None if folder is None else folder.path)
