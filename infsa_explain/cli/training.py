"""The command that trains."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..interrupting import says_when_interrupted
from .options import LINEAR_DIGITS
from .output import progress
from .values import torch_device

if TYPE_CHECKING:
    from ..training.loop import Epoch


def train(
    *,
    model: str | None,
    accumulate: bool,
    pretrained: bool,
    init: Path | None,
    convert: Literal["linear", "pure", "softmax"] | None,
    convert_layers: list[int] | str | None,
    img_size: int | None,
    data: str,
    epochs: int | None,
    batch_size: int | None,
    lr: float | None,
    weight_decay: float | None,
    warmup_epochs: int | None,
    layer_decay: float | None,
    drop_path: float | None,
    device: str,
    amp: bool | None,
    seed: int,
    out: Path,
    resume: bool,
) -> None:
    """Train or fine-tune a model.

    It ends with a safetensors checkpoint and its card in --out. A new model is trained by the
    recipe of its data. A model from --init or --pretrained is fine-tuned at a small learning rate,
    with a new classifier if the data has other classes.

    Example: infsa-explain train --model infvit_pure_digits --out runs/pure

    Example: infsa-explain train --model vit_small_patch14_dinov2 --init dinov2.safetensors
    --img-size 112 --convert linear --convert-layers -4,-3,-2,-1 --data FOLDER --out runs/linear
    """
    from ..training.loop import train as run
    from ..training.recipes import recipe_for

    if model is None and init is None:
        model = LINEAR_DIGITS
    if convert_layers is not None and convert is None:
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
        convert_layers=convert_layers,
    )

    with (
        says_when_interrupted(lambda: _say_what_is_kept(out)),
        progress("steps", None) as advance,
    ):
        checkpoint = run(
            recipe,
            out,
            resume=resume,
            device=place,
            on_epoch=lambda epoch: _print_epoch(epoch, recipe.epochs),
            on_step=lambda step, steps: advance(1, steps),
        )
    print(f"written: {checkpoint} and its card")


def _print_epoch(epoch: Epoch, epochs: int) -> None:
    """One line about an epoch that is done."""
    gamma = f", γ {epoch.gamma[0]:.2f} to {epoch.gamma[1]:.2f}" if epoch.gamma else ""
    print(
        f"epoch {epoch.epoch + 1}/{epochs}: loss {epoch.loss:.3f}, accuracy {epoch.accuracy:.1%}, "
        f"dead heads {epoch.dead_heads:.1%}{gamma}, {epoch.seconds:.0f} s",
        flush=True,
    )


def _say_what_is_kept(out: Path) -> None:
    """On stderr: where an interrupted training goes on."""
    if (out / "last.pt").exists():
        print(
            f"the epochs so far are kept in {out}: the same command with --resume goes on",
            file=sys.stderr,
        )
