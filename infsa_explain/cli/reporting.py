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
    ClassOption,
    DataOption,
    DeviceOption,
    GammaOption,
    HeadOption,
    LayerOption,
    MethodsOption,
    ModelOption,
    OverwriteOption,
    SeedOption,
    Source,
    SplitOption,
    drawn_methods,
    listed,
    load_models,
)

if TYPE_CHECKING:
    from torch import nn

    from ..data import ImageData

#: What a newcomer sees side by side.
TWINS = [LINEAR_DIGITS, "vit_softmax_digits"]
#: And by which methods; without the last, which has no heads, where a head is asked for.
DRAWN = ["visits,perron", "rollout"]


def report(
    folder: Annotated[Path, typer.Argument(help="Run folder, of evaluate or any other measure.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write.", show_default="report.html in the folder")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Where the run's images are, if not where they were.")
    ] = None,
    model: Annotated[
        list[str],
        typer.Option(
            "--model",
            help="The run's models; repeat. Those that a run folder names are taken only where "
            "they are bundled or files: nothing is downloaded unasked.",
        ),
    ] = [],  # noqa: B006  (typer copies it)
    checkpoint: Annotated[
        list[Path], typer.Option("--checkpoint", help="Weights for --model; repeat for seeds.")
    ] = [],  # noqa: B006
    images: Annotated[
        bool, typer.Option("--images/--no-images", help="Draw the best and worst images.")
    ] = True,
    device: DeviceOption = "auto",
) -> None:
    """Make one self-contained page of a run: verdict, tables, curves, pictures, diagnostics.

    Example: infsa-explain report runs/twins
    """
    from ..files import check_file
    from ..report.html import write_page
    from ..report.pictures import Gallery, draw_gallery
    from ..report.reading import read_run
    from ..report.verdict import judge

    if out is not None:
        check_file(out)
    run = read_run(folder)
    gallery: Gallery | str = "the report was made without them"
    if images:
        try:
            found = _opened(run.config, data, model, checkpoint, device)
            gallery = draw_gallery(run.report, run.config, *found)
        except (ValueError, OSError) as error:
            if data is not None or model:
                raise
            gallery = str(error)
            print(f"no images: {error}", file=sys.stderr)
    for sentence in run.missing:
        print(sentence, file=sys.stderr)
    page = write_page(run, gallery, out)
    print(judge(run.report).text().replace("`", ""))
    print(f"\nwritten: {page} ({page.stat().st_size / 1e6:.1f} MB)")


def _opened(
    config: dict[str, Any],
    data: str | None,
    names: list[str],
    checkpoints: list[Path],
    device: str,
) -> tuple[dict[str, nn.Module], ImageData]:
    """The models and the images of a run, as its command had them or the user names them.

    Of several checkpoints of a model the first.

    Raises:
        ValueError: if something cannot be found again, is not what it was, or would be downloaded
            because a run folder, which may be a stranger's, says so.
    """
    from ..report.pictures import check_same

    try:
        source = Source(**config["source"])
    except (KeyError, TypeError):
        raise ValueError("the run does not say where its images came from") from None
    images = (source if data is None else source._replace(data=data)).open()
    if not names:
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        parser.add_argument("--model", action="append", default=[])
        parser.add_argument("--checkpoint", action="append", default=[], type=Path)
        given, _ = parser.parse_known_args(shlex.split(config.get("command", "")))
        names, checkpoints = given.model or list(config["models"]), given.checkpoint
        _require_local(names, checkpoints)
    models = load_models(names, checkpoints, device)
    check_same(
        config, {" ".join(filter(None, key)): model for key, model in models.items()}, images
    )
    first = {name: model for (name, _), model in reversed(models.items())}
    return first, images


def _require_local(names: list[str], checkpoints: list[Path]) -> None:
    """Refuse a model that would be fetched from somewhere: that takes its user's word."""
    from ..catalogue import BUNDLED
    from ..models.checkpoints import is_checkpoint

    files = [Path(name) for name in names if is_checkpoint(name)] + checkpoints
    if missing := [file for file in files if not file.is_file()]:
        raise ValueError(f"the run's checkpoint {str(missing[0])!r} is not there")
    for name in names:
        local = name in BUNDLED or Path(name) in files or (checkpoints and ":" not in name)
        if not local:
            raise ValueError(
                f"the run's model {name!r} is not bundled, and nothing is downloaded because a "
                f"run folder says so; if you trust it, add --model {shlex.quote(name)}"
            )


def gallery(
    images: Annotated[list[Path], typer.Argument(help="Images; those of --data if none.")] = [],  # noqa: B006
    model: ModelOption = TWINS,
    checkpoint: CheckpointsOption = [],  # noqa: B006
    data: DataOption = "photo-digits",
    split: SplitOption = "val",
    methods: MethodsOption = DRAWN,
    layer: LayerOption = "last",
    head: HeadOption = None,
    gamma: GammaOption = None,
    target: ClassOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of images.")] = 4,
    device: DeviceOption = "auto",
    seed: SeedOption = 0,
    out: Annotated[Path, typer.Option(help="Picture to write: .png, .jpg, .svg or .pdf.")] = Path(
        "gallery.png"
    ),
    force: OverwriteOption = False,
) -> None:
    """Draw images × models × methods as one picture.

    The same command writes its own picture again; a picture of something else is not written over.

    Example: infsa-explain gallery --model infvit_linear_digits --methods visits,perron,centre
    """
    import numpy as np

    from ..data import Sample, read_image
    from ..data.samples import readable
    from ..drawing.picture_files import check_picture, mark_of, save_picture
    from ..models.checkpoints import fingerprint
    from ..viewing.contact_sheets import contact_sheet

    check_picture(out, "", force=True)
    if methods == DRAWN and head is not None:
        methods = DRAWN[:1]
    listed("--methods", methods)
    networks = load_models(model, checkpoint, device)
    names = drawn_methods("--methods", methods, networks.values(), head, target)
    if images:
        none = np.zeros((0, 4), np.float32)
        samples = [Sample(read_image(path), None, none, readable(path.name)) for path in images]
        sources = [readable(path.absolute()) for path in images]
    else:
        found = Source(data, split, limit, seed).open()
        samples = [found[i] for i in range(min(limit, len(found)))]
        sources = [found.fingerprint(), *(sample.image_id for sample in samples)]
    titled = {" ".join(filter(None, key)): network for key, network in networks.items()}
    mark = mark_of(
        {
            "models": {name: fingerprint(network) for name, network in titled.items()},
            "images": sources,
            "methods": names,
            "layer": layer,
            "head": head,
            "gamma": gamma,
            "class": target,
            "seed": seed,
        }
    )
    check_picture(out, mark, force=force)
    figure = contact_sheet(
        titled,
        samples,
        names,
        layer=layer,
        head=head,
        gamma=gamma,
        target=target,
        untrained_seed=seed,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    save_picture(figure, out, mark, dpi=120)
    print(f"written: {out}")
