"""The command that draws."""

from __future__ import annotations

import sys
from pathlib import Path

from .options import LINEAR_DIGITS
from .output import one_line
from .values import drawn_methods, image_sample, listed, load_models


def map_images(
    *,
    images: list[Path],
    model: str,
    checkpoint: Path | None,
    method: list[str],
    layer: str,
    head: int | None,
    gamma: float | None,
    target: str | None,
    device: str,
    seed: int,
    out: Path,
    force: bool,
) -> None:
    """Lay maps over images: overlay PNGs, and raw maps as .npy.

    An overlay stands beside its colour bar. Files are named after the image and the method, and
    after model, layer, head, γ and class where these are not the default. The same command writes
    its own files again; it refuses to write over those of another model or image.

    Example: infsa-explain map cat.jpg --method visits,perron --layer mean --out maps
    """
    from ..data import ImageError, PhotoDigits
    from ..data.samples import readable
    from ..files import check_folder
    from ..viewing.writing import MapWriter, file_stems

    check_folder(out)
    listed("--method", method)
    (network,) = load_models([model], [checkpoint] if checkpoint else [], device).values()
    methods = drawn_methods("--method", method, [network], head, target)
    embedded = PhotoDigits("val", 4, seed)
    digits = [] if images else [embedded[i] for i in range(len(embedded))]
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
    left_out = 0
    for i, stem in enumerate(stems):  # one at a time: photos may be large
        try:
            sample = image_sample(images[i]) if images else digits[i]
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
    """What file names call the model; empty for the default model."""
    name = Path(model).stem if Path(model).exists() else model
    if checkpoint is not None:
        return checkpoint.stem if checkpoint.stem.startswith(name) else f"{name}.{checkpoint.stem}"
    return "" if model == LINEAR_DIGITS else name
