"""The command that draws."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .options import (
    LINEAR_DIGITS,
    CheckpointOption,
    DeviceOption,
    GammaOption,
    HeadOption,
    LayerOption,
    SeedOption,
    load_models,
)
from .output import one_line


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

    from ..data import ImageError, PhotoDigits, Sample, read_image
    from ..data.samples import readable
    from ..mapping import file_stems, write_maps

    (network,) = load_models([model], [checkpoint] if checkpoint else [], device).values()
    methods = [name.strip() for name in method.split(",")]
    data = PhotoDigits("val", 4, seed)
    digits = [] if images else [data[i] for i in range(len(data))]
    names = [readable(path.name) for path in images] or [digit.image_id for digit in digits]
    none = np.zeros((0, 4), np.float32)
    left_out = 0
    for i, stem in enumerate(file_stems(names)):  # one at a time, for photos may be large
        try:
            sample = Sample(read_image(images[i]), None, none, names[i]) if images else digits[i]
        except ImageError as error:
            if len(images) == 1:
                raise
            print(f"left out: {one_line(str(error))}", file=sys.stderr)
            left_out += 1
            continue
        for written in write_maps(
            network, sample, methods, out, stem=stem, layer=layer, head=head, gamma=gamma
        ):
            print(written)
    if left_out == len(names):
        raise ValueError(f"none of the {left_out} images could be read")
