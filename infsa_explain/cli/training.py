"""The command that trains."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..interrupting import says_when_interrupted
from .options import (
    LINEAR_DIGITS,
    DataOption,
    DeviceOption,
    SeedOption,
    integer,
    listed,
    torch_device,
)
from .output import progress


def train(
    model: Annotated[
        str | None,
        typer.Option(
            help="A name in timm's registry.", show_default=f"that of --init, or {LINEAR_DIGITS}"
        ),
    ] = None,
    data: DataOption = "photo-digits",
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/train"),
    epochs: Annotated[int | None, typer.Option(help="Epochs, if not the recipe's.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images a step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay of AdamW.")] = None,
    warmup_epochs: Annotated[int | None, typer.Option(help="Epochs of rising lr.")] = None,
    layer_decay: Annotated[
        float | None, typer.Option(help="Factor of lr from each layer to the one before it.")
    ] = None,
    drop_path: Annotated[float | None, typer.Option(help="Rate of stochastic depth.")] = None,
    img_size: Annotated[
        int | None, typer.Option(help="Side of the images in pixels, if not the model's.")
    ] = None,
    accumulate: Annotated[
        bool, typer.Option("--accumulate", help="Pool over the outputs of all blocks.")
    ] = False,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="Fine-tune the weights that the name has.")
    ] = False,
    init: Annotated[Path | None, typer.Option(help="Checkpoint to fine-tune.")] = None,
    convert: Annotated[
        str | None, typer.Option(help="Attention to convert to first: linear, pure or softmax.")
    ] = None,
    convert_layers: Annotated[
        list[str],
        typer.Option(
            "--convert-layers",
            help="Layers to convert, if not all: -4,-3,-2,-1, or a pattern of names; repeat for "
            "more layers.",
        ),
    ] = [],  # noqa: B006  (typer copies it)
    device: DeviceOption = "auto",
    amp: Annotated[
        bool | None,
        typer.Option(
            "--amp/--no-amp",
            help="bfloat16 autocast.",
            show_default="the recipe's, where the device has bfloat16",
        ),
    ] = None,
    seed: SeedOption = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
) -> None:
    """Train a model; ends with a safetensors checkpoint and its card in --out.

    A new model learns by the recipe of its data; one from --init or --pretrained is fine-tuned,
    gently, with a new classifier if the data's classes are others.

    Example: infsa-explain train --model infvit_pure_digits --out runs/pure

    Example: infsa-explain train --model vit_small_patch14_dinov2 --init dinov2.safetensors
    --img-size 112 --convert linear --convert-layers -4,-3,-2,-1 --data FOLDER --out runs/linear
    """
    from ..training.loop import Epoch
    from ..training.loop import train as run
    from ..training.recipes import recipe_for

    if model is None and init is None:
        model = LINEAR_DIGITS
    if convert_layers and convert is None:
        raise ValueError("--convert-layers goes with --convert")
    arguments = {"accumulate": accumulate or None, "img_size": img_size}
    place = torch_device(device)
    recipe = recipe_for(
        model,
        data,
        device=place,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        weight_decay=weight_decay,
        warmup_epochs=warmup_epochs,
        layer_decay=layer_decay,
        drop_path=drop_path,
        amp=amp,
        seed=seed,
        model_args={key: value for key, value in arguments.items() if value is not None},
        pretrained=pretrained,
        init=None if init is None else str(init),
        convert=convert,
        convert_layers=_layers(convert_layers) if convert_layers else None,
    )

    def say() -> None:
        if (out / "last.pt").exists():
            print(
                f"the epochs so far are kept in {out}: the same command with --resume goes on",
                file=sys.stderr,
            )

    with says_when_interrupted(say), progress("steps", None) as advance:

        def on_epoch(epoch: Epoch) -> None:
            gamma = f", γ {epoch.gamma[0]:.2f} to {epoch.gamma[1]:.2f}" if epoch.gamma else ""
            print(
                f"epoch {epoch.epoch + 1}/{recipe.epochs}: loss {epoch.loss:.3f}, accuracy "
                f"{epoch.accuracy:.1%}, dead heads {epoch.dead_heads:.1%}{gamma}, "
                f"{epoch.seconds:.0f} s",
                flush=True,
            )

        checkpoint = run(
            recipe,
            out,
            resume=resume,
            device=place,
            on_epoch=on_epoch,
            on_step=lambda step, steps: advance(1, steps),
        )
    print(f"written: {checkpoint} and its card")


def _layers(values: list[str]) -> list[int] | str:
    """Indices with commas, repeated or both, or else a pattern."""
    if len(values) == 1 and not re.fullmatch(r"[\s,0-9-]*", values[0]):
        return values[0]
    names = listed("--convert-layers", values)
    return [integer("--convert-layers", name, "a single pattern") for name in names]
