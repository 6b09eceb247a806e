"""The command that draws."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .options import (
    LINEAR_DIGITS,
    CheckpointOption,
    ClassOption,
    DeviceOption,
    GammaOption,
    HeadOption,
    LayerOption,
    OverwriteOption,
    SeedOption,
    drawn_methods,
    listed,
    load_models,
)
from .output import one_line


def map_images(
    images: Annotated[list[Path], typer.Argument(help="Images; embedded ones if none.")] = [],  # noqa: B006
    model: Annotated[str, typer.Option(help="As in morf.")] = LINEAR_DIGITS,
    checkpoint: CheckpointOption = None,
    method: Annotated[
        list[str],
        typer.Option(
            "--method",
            "--methods",
            help="Names with commas, or 'all' that suit the model; repeat for more.",
        ),
    ] = ["visits"],  # noqa: B006
    layer: LayerOption = "last",
    head: HeadOption = None,
    gamma: GammaOption = None,
    target: ClassOption = None,
    device: DeviceOption = "auto",
    seed: SeedOption = 0,
    out: Annotated[Path, typer.Option(help="Folder for the overlays.")] = Path("maps"),
    force: OverwriteOption = False,
) -> None:
    """Lay maps over images: an overlay PNG beside a colour bar, and the raw map as .npy.

    Files are named after the image and the method, and after model, layer, head, γ and class
    where these are not the default. The same command writes its own files again; where files of
    another model or image are in the way it says so.

    Example: infsa-explain map cat.jpg --method visits,perron --layer mean --out maps
    """
    import numpy as np

    from ..data import ImageError, PhotoDigits, Sample, read_image
    from ..data.samples import readable
    from ..files import check_folder
    from ..viewing.writing import MapWriter, file_stems

    check_folder(out)
    listed("--method", method)
    (network,) = load_models([model], [checkpoint] if checkpoint else [], device).values()
    methods = drawn_methods("--method", method, [network], head, target)
    data = PhotoDigits("val", 4, seed)
    digits = [] if images else [data[i] for i in range(len(data))]
    names = [readable(path.name) for path in images] or [digit.image_id for digit in digits]
    sources = [readable(path.absolute()) for path in images] or names
    stems = file_stems(names)
    writer = MapWriter(
        network,
        methods,
        out,
        name=_name(model, checkpoint),
        layer=layer,
        head=head,
        gamma=gamma,
        target=target,
        seed=seed,
        force=force,
    )
    for stem, source in zip(stems, sources, strict=True):
        writer.check(stem, source)
    none = np.zeros((0, 4), np.float32)
    left_out = 0
    for i, stem in enumerate(stems):  # one at a time, for photos may be large
        try:
            sample = Sample(read_image(images[i]), None, none, names[i]) if images else digits[i]
        except ImageError as error:
            if len(images) == 1:
                raise
            print(f"left out: {one_line(str(error))}", file=sys.stderr)
            left_out += 1
            continue
        for written in writer.write(sample, stem, sources[i]):
            print(written)
    if left_out == len(names):
        raise ValueError(f"none of the {left_out} images could be read")


def _name(model: str, checkpoint: Path | None) -> str:
    """The model in the names of its pictures; none for the model that is there by default."""
    name = Path(model).stem if Path(model).exists() else model
    if checkpoint is not None:
        return checkpoint.stem if checkpoint.stem.startswith(name) else f"{name}.{checkpoint.stem}"
    return "" if model == LINEAR_DIGITS else name
