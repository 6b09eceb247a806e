"""Pictures on disk: each knows what it is of, and none takes the place of a picture of another.

A picture holds the digest of what it shows (weights, method, layer, head, image) among its
metadata. The same picture may be written again; where something else stands, that is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..files import check_file, replacing

__all__ = ["FORMATS", "check_picture", "mark_of", "save_picture"]

#: Endings of the pictures that can be written, and how each is told what it shows.
FORMATS: dict[str, Callable[[str], dict[str, Any]]] = {
    ".png": lambda mark: {"metadata": {"Description": mark}},
    ".jpg": lambda mark: {"pil_kwargs": {"comment": mark.encode()}},
    ".jpeg": lambda mark: {"pil_kwargs": {"comment": mark.encode()}},
    ".svg": lambda mark: {"metadata": {"Description": mark}},
    ".pdf": lambda mark: {"metadata": {"Subject": mark}},
}


def mark_of(facts: Mapping[str, Any]) -> str:
    """A line for the metadata of a picture that tells what it shows from all else."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return f"infsa-explain {digest}"


def check_picture(path: str | os.PathLike[str], mark: str, *, force: bool = False) -> None:
    """Refuse to write a picture, before there is one.

    Raises:
        ValueError: for a format that is none of ``FORMATS``, a path that is no file's, or, unless
            ``force``, a file that is there and does not have the mark.
    """
    picture = Path(path)
    check_file(picture)
    if picture.suffix.lower() not in FORMATS:
        known = ", ".join(FORMATS)
        raise ValueError(f"--out must be a name with one of the endings {known}, got {path!s:.80}")
    if not force and picture.exists() and mark.encode() not in picture.read_bytes():
        raise ValueError(
            f"{picture} is there already, and is not a picture of the same models, images and "
            "options; choose another --out, or --force"
        )


def save_picture(figure: Figure, path: str | os.PathLike[str], mark: str, *, dpi: int) -> None:
    """Write a figure with its mark, whole or not at all; a file that is there is replaced."""
    options = FORMATS[Path(path).suffix.lower()](mark)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=dpi, **options)
