"""The command line: parses, calls, prints. Heavy imports wait until a command runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from torch import nn

__all__ = ["app"]

app = typer.Typer(
    name="infsa-explain",
    help="Where does a Vision Transformer look, and is that attention any good?",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

LINEAR_DIGITS = "infvit_linear_digits"
#: What a newcomer sees first: two methods, two controls.
FIRST_METHODS = "visits,linear,centre,random"

ModelOption = Annotated[
    list[str],
    typer.Option("--model", help="Bundled name, timm name, hf-hub: name or checkpoint; repeat."),
]
CheckpointOption = Annotated[
    Path | None, typer.Option(help="Weights for --model: safetensors, or a torch state dict.")
]
DataOption = Annotated[str, typer.Option(help="photo-digits, or a folder of images by class.")]
LayerOption = Annotated[str, typer.Option(help="Layer index, 'last', or 'mean' over all.")]
HeadOption = Annotated[int | None, typer.Option(help="Head index; the mean over heads if omitted.")]
GammaOption = Annotated[
    float | None, typer.Option(help="Survival per step, in place of the model's own.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
SeedOption = Annotated[int, typer.Option(help="Seed of everything that draws.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Where does a Vision Transformer look, and is that attention any good?"""


@app.command()
def morf(
    model: ModelOption = [LINEAR_DIGITS],  # noqa: B006  (typer copies it)
    checkpoint: CheckpointOption = None,
    data: DataOption = "photo-digits",
    split: Annotated[str, typer.Option(help="val or train.")] = "val",
    methods: Annotated[
        str, typer.Option(help="Comma-separated names, or 'all' that suit the model.")
    ] = FIRST_METHODS,
    layer: LayerOption = "last",
    head: HeadOption = None,
    gamma: GammaOption = None,
    fill: Annotated[str, typer.Option(help="mean, black, blur, noise or drop.")] = "mean",
    steps: Annotated[str, typer.Option(help="Points of the curve, or 'full': every patch.")] = "24",
    target: Annotated[str, typer.Option(help="Class followed: predicted, or label.")] = "predicted",
    floor: Annotated[float, typer.Option(help="Clean probability below which AOC is void.")] = 0.0,
    limit: Annotated[int, typer.Option(help="Number of images.")] = 50,
    batch_size: Annotated[int, typer.Option(help="Masked images a forward pass.")] = 16,
    device: DeviceOption = "auto",
    amp: Annotated[bool, typer.Option("--amp", help="bfloat16 autocast.")] = False,
    seed: SeedOption = 0,
    out: Annotated[Path | None, typer.Option(help="Run folder to write.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a run in --out.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove patches, most relevant first, and watch the prediction go: MoRF-AOC.

    Example: infsa-explain morf --model vit_softmax_digits --methods all --out runs/softmax
    """
    from . import evaluate, report
    from .data import open_data

    if target not in ("predicted", "label"):
        raise ValueError(f"--target must be 'predicted' or 'label', got {target!r}")
    if split not in ("val", "train"):
        raise ValueError(f"--split must be 'val' or 'train', got {split!r}")
    images = open_data(data, split="train" if split == "train" else "val", size=limit, seed=seed)
    loaded = _load(model, checkpoint, device)
    options = evaluate.MorfOptions(
        methods=None if methods == "all" else tuple(m.strip() for m in methods.split(",")),
        layer=layer,
        head=head,
        gamma=gamma,
        fill=fill,
        steps=None if steps == "full" else _integer("--steps", steps),
        target="label" if target == "label" else "predicted",
        floor=floor,
        seed=seed,
        batch_size=batch_size,
        amp=amp,
    )
    for each in loaded.values():
        evaluate.choose_methods(each, options.methods)
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        advance = stack.enter_context(_progress("images", len(images) * len(loaded)))
        folder = None
        if out is not None:
            config = evaluate.describe_run("morf", loaded, images, options)
            folder = stack.enter_context(evaluate.RunFolder(out, config, force=force))
        for name, each in loaded.items():
            rows += evaluate.evaluate_morf(
                each,
                images,
                options,
                name=name,
                on_row=folder.write if folder else lambda row: None,
                on_image=advance,
            )
    summaries = report.summarise_morf(rows)
    if folder is not None:
        report.write_morf(folder.path, rows)
    if as_json:
        _print_json(summaries)
        return
    points = "one patch a step" if options.steps is None else f"{options.steps} steps"
    title = f"{images.name}, {len(images)} images, layer {layer}, fill {fill}, {points}; percent"
    _print_table(title, report.HEADINGS, report.morf_table(summaries))
    if folder is not None:
        print(f"\nwritten to {folder.path}/: summary.md, curves.png, rows.jsonl, config.json")


@app.command("map")
def map_images(
    images: Annotated[list[Path], typer.Argument(help="Images; embedded ones if none.")] = [],  # noqa: B006
    model: Annotated[str, typer.Option(help="As in morf.")] = LINEAR_DIGITS,
    checkpoint: CheckpointOption = None,
    method: Annotated[
        str, typer.Option("--method", "--methods", help="Comma-separated names.")
    ] = "visits",
    layer: LayerOption = "last",
    head: HeadOption = None,
    gamma: GammaOption = None,
    device: DeviceOption = "auto",
    seed: SeedOption = 0,
    out: Annotated[Path, typer.Option(help="Folder for the overlays.")] = Path("maps"),
) -> None:
    """Lay maps over images: an overlay PNG beside a colour bar, and the raw map as .npy.

    Example: infsa-explain map cat.jpg --method visits,perron --layer mean --out maps
    """
    import numpy as np

    from .data import PhotoDigits, Sample, read_image
    from .mapping import write_maps

    (network,) = _load([model], checkpoint, device).values()
    methods = [name.strip() for name in method.split(",")]
    if images:
        none = np.zeros((0, 4), np.float32)
        samples = [Sample(read_image(path), None, none, path.name) for path in images]
    else:
        data = PhotoDigits("val", 4, seed)
        samples = [data[i] for i in range(len(data))]
    for sample in samples:
        for written in write_maps(
            network, sample, methods, out, layer=layer, head=head, gamma=gamma
        ):
            print(written)


@app.command()
def models() -> None:
    """List the bundled models and the InfViT names in timm's registry."""
    from .models import BUNDLED, card_facts, registered, weights_file

    rows = [(name, *card_facts(name)) for name in BUNDLED if Path(weights_file(name)).exists()]
    _print_table("bundled, trained", ("name", "attention", "parameters", "data", "accuracy"), rows)
    print("\nuntrained, in timm's registry: " + ", ".join(registered()))
    print("and any timm VisionTransformer, hf-hub: name, or checkpoint file")


@app.command()
def methods() -> None:
    """List the map methods."""
    from .methods import METHODS

    rows = [(m.name, ", ".join(sorted(m.kinds)), m.summary) for m in METHODS.values()]
    _print_table("map methods", ("name", "attention", "what it is"), rows)


@app.command()
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
    amp: Annotated[bool, typer.Option("--amp", help="bfloat16 autocast.")] = False,
    seed: SeedOption = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
) -> None:
    """Train a model; ends with a safetensors checkpoint and its card in --out.

    Example: infsa-explain train --model infvit_pure_digits --out runs/pure
    """
    from .recipes import recipe_for
    from .train import Epoch
    from .train import train as run

    recipe = recipe_for(
        model,
        data,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        amp=amp or None,
        seed=seed,
        model_args={"accumulate": True} if accumulate else None,
    )
    with _progress("steps", None) as advance:

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
            device=_device(device),
            on_epoch=on_epoch,
            on_step=lambda step, steps: advance(1, steps),
        )
    print(f"written: {checkpoint} and its card")


def _load(names: list[str], checkpoint: Path | None, device: str) -> dict[str, nn.Module]:
    from .models import load

    if checkpoint is not None and len(names) > 1:
        raise ValueError("--checkpoint goes with one --model")
    place = _device(device)
    return {
        Path(name).stem if Path(name).exists() else name: load(
            name, checkpoint=checkpoint, device=place
        )
        for name in names
    }


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError("--device cuda, but torch sees no CUDA device")
    if name.split(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"--device must be auto, cpu or cuda, got {name!r}")
    return name


def _integer(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{name} must be a number or 'full', got {value!r}") from None


@contextmanager
def _progress(what: str, total: int | None) -> Iterator[Any]:
    """A progress bar on stderr, none where that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), f"{what}, left", TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=total)

        def advance(done: int, of: int | None = total) -> None:
            bar.update(task, advance=done, total=of)

        yield advance


def _print_table(title: str, headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """A table as wide as it needs to be: it is read by people and by pipes."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    natural = Console(width=10_000).measure(table).maximum
    Console(markup=False, highlight=False, width=natural).print(table)


def _print_json(summaries: Any) -> None:
    import json
    from dataclasses import asdict

    print(json.dumps([asdict(summary) for summary in summaries], indent=2))
