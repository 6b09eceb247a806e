"""Commands that show what came out: a page of a run, and a sheet of maps."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import (
    LINEAR_DIGITS,
    CheckpointsOption,
    DataOption,
    DeviceOption,
    GammaOption,
    HeadOption,
    LayerOption,
    MethodsOption,
    ModelOption,
    SeedOption,
    Source,
    SplitOption,
    load_models,
)

if TYPE_CHECKING:
    from torch import nn

    from ..data import ImageData

#: What a newcomer sees side by side.
TWINS = [LINEAR_DIGITS, "vit_softmax_digits"]


def report(
    folder: Annotated[Path, typer.Argument(help="Run folder, of evaluate or any other measure.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write.", show_default="report.html in the folder")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Where the run's images are, if not where they were.")
    ] = None,
    images: Annotated[
        bool, typer.Option("--images/--no-images", help="Draw the best and worst images.")
    ] = True,
    device: DeviceOption = "auto",
) -> None:
    """Make one self-contained page of a run: verdict, tables, curves, pictures, diagnostics.

    Example: infsa-explain report runs/twins
    """
    from ..report.html import write_page
    from ..report.pictures import Gallery, draw_gallery
    from ..report.reading import read_run
    from ..report.verdict import judge

    run = read_run(folder)
    gallery: Gallery | str = "the report was made without them"
    if images:
        try:
            gallery = draw_gallery(run.report, run.config, *_opened(run.config, data, device))
        except (ValueError, OSError) as error:
            if data is not None:
                raise
            gallery = str(error)
            print(f"no images: {error}", file=sys.stderr)
    for sentence in run.missing:
        print(sentence, file=sys.stderr)
    page = write_page(run, gallery, out)
    print(judge(run.report).text().replace("`", ""))
    print(f"\nwritten: {page} ({page.stat().st_size / 1e6:.1f} MB)")


def _opened(
    config: dict[str, Any], data: str | None, device: str
) -> tuple[dict[str, nn.Module], ImageData]:
    """The models and the images of a run, as its command had them.

    Of several checkpoints of a model the first.

    Raises:
        ValueError: if something cannot be found again, or is not what it was.
    """
    from ..report.pictures import check_same

    if "source" not in config:
        raise ValueError("the run does not say where its images came from")
    source = Source(**config["source"])
    images = (source if data is None else source._replace(data=data)).open()
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--checkpoint", action="append", default=[], type=Path)
    given, _ = parser.parse_known_args(shlex.split(config.get("command", "")))
    models = load_models(given.model or list(config["models"]), given.checkpoint, device)
    check_same(
        config, {" ".join(filter(None, key)): model for key, model in models.items()}, images
    )
    first = {name: model for (name, _), model in reversed(models.items())}
    return first, images


def gallery(
    images: Annotated[list[Path], typer.Argument(help="Images; those of --data if none.")] = [],  # noqa: B006
    model: ModelOption = TWINS,
    checkpoint: CheckpointsOption = [],  # noqa: B006
    data: DataOption = "photo-digits",
    split: SplitOption = "val",
    methods: MethodsOption = "visits,perron,rollout",
    layer: LayerOption = "last",
    head: HeadOption = None,
    gamma: GammaOption = None,
    limit: Annotated[int, typer.Option(help="Number of images.")] = 4,
    device: DeviceOption = "auto",
    seed: SeedOption = 0,
    out: Annotated[Path, typer.Option(help="Picture to write: .png, .svg or .pdf.")] = Path(
        "gallery.png"
    ),
) -> None:
    """Draw images × models × methods as one picture.

    Example: infsa-explain gallery --model infvit_linear_digits --methods visits,perron,centre
    """
    import numpy as np

    from ..contact_sheets import contact_sheet
    from ..data import Sample, read_image

    networks = load_models(model, checkpoint, device)
    if images:
        none = np.zeros((0, 4), np.float32)
        samples = [Sample(read_image(path), None, none, path.name) for path in images]
    else:
        found = Source(data, split, limit, seed).open()
        samples = [found[i] for i in range(min(limit, len(found)))]
    figure = contact_sheet(
        {" ".join(filter(None, key)): network for key, network in networks.items()},
        samples,
        [name.strip() for name in methods.split(",")],
        layer=layer,
        head=head,
        gamma=gamma,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120)
    print(f"written: {out}")
