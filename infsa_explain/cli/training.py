"""The command that trains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import LINEAR_DIGITS, DataOption, DeviceOption, SeedOption, torch_device
from .output import progress


def train(
    model: Annotated[str, typer.Option(help="A name in timm's registry.")] = LINEAR_DIGITS,
    data: DataOption = "photo-digits",
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/train"),
    epochs: Annotated[int | None, typer.Option(help="Epochs, if not the recipe's.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images a step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    accumulate: Annotated[
        bool, typer.Option("--accumulate", help="Pool over the outputs of all blocks.")
    ] = False,
    init: Annotated[Path | None, typer.Option(help="Checkpoint to start from.")] = None,
    device: DeviceOption = "auto",
    amp: Annotated[
        bool | None, typer.Option("--amp/--no-amp", help="bfloat16 autocast, if not the recipe's.")
    ] = None,
    seed: SeedOption = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
) -> None:
    """Train a model; ends with a safetensors checkpoint and its card in --out.

    Example: infsa-explain train --model infvit_pure_digits --out runs/pure
    """
    from ..recipes import recipe_for
    from ..train import Epoch
    from ..train import train as run

    recipe = recipe_for(
        model,
        data,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        amp=amp,
        seed=seed,
        model_args={"accumulate": True} if accumulate else None,
    )
    with progress("steps", None) as advance:

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
            init=None if init is None else str(init),
            device=torch_device(device),
            on_epoch=on_epoch,
            on_step=lambda step, steps: advance(1, steps),
        )
    print(f"written: {checkpoint} and its card")
