"""Picture files that identify their content, so that none overwrites a different picture.

The metadata of a picture holds a digest of what it shows (weights, method, layer, head, image). A
picture may be replaced by one with the same digest; any other file is left alone.
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

#: Suffix → the options of ``savefig`` that store a mark in the metadata of that format.
FORMATS: dict[str, Callable[[str], dict[str, Any]]] = {
    ".png": lambda mark: {"metadata": {"Description": mark}},
    ".jpg": lambda mark: {"pil_kwargs": {"comment": mark.encode()}},
    ".jpeg": lambda mark: {"pil_kwargs": {"comment": mark.encode()}},
    ".svg": lambda mark: {"metadata": {"Description": mark}},
    ".pdf": lambda mark: {"metadata": {"Subject": mark}},
}


def mark_of(facts: Mapping[str, Any]) -> str:
    """The mark of a picture: a line with the digest of the facts that determine its content."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return f"infsa-explain {digest}"


def check_picture(path: str | os.PathLike[str], mark: str, *, force: bool = False) -> None:
    """Check that a picture can be written, before it is drawn.

    Args:
        path: the file; its suffix is the format.
        mark: of the picture, from :func:`mark_of`.
        force: allow a file with another mark to be overwritten.

    Raises:
        ValueError: if the format is not one of ``FORMATS``, the path is empty or a folder, or,
            unless ``force``, the file exists with another mark.
    """
    check_file(path)
    picture = Path(path)
    if picture.suffix.lower() not in FORMATS:
        suffixes = ", ".join(FORMATS)
        raise ValueError(
            f"--out must be a name with one of the endings {suffixes}, got {path!s:.80}"
        )
    if not force and picture.exists() and mark.encode() not in picture.read_bytes():
        raise ValueError(
            f"{picture} exists already, and is not a picture of the same models, images and "
            "options; choose another --out, or --force"
        )


def save_picture(figure: Figure, path: str | os.PathLike[str], mark: str, *, dpi: int) -> None:
    """Write a figure with its mark, atomically; an existing file is replaced.

    Args:
        figure: the picture.
        path: the file; its suffix is the format.
        mark: from :func:`mark_of`.
        dpi: dots per inch.
    """
    options = FORMATS[Path(path).suffix.lower()](mark)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=dpi, **options)
