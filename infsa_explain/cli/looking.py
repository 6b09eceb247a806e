"""The command that draws."""

from __future__ import annotations

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

    from ..data import PhotoDigits, Sample, read_image
    from ..mapping import write_maps

    (network,) = load_models([model], [checkpoint] if checkpoint else [], device).values()
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
