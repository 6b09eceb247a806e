"""Writing the maps of images to files: what ``python -m infsa_explain map`` does."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from ..data.samples import Sample
from ..drawing.figures import figure
from ..drawing.heatmap import whole
from ..drawing.picture_files import check_picture, mark_of, save_picture
from ..files import check_folder, make_folder, replacing
from ..methods import check_place, get_method
from ..models.checkpoints import fingerprint
from .views import view

__all__ = ["MapWriter", "file_stems", "write_maps"]

#: Maximum length of a file name without its suffix, in bytes; systems allow 255 with it.
MAX_NAME_BYTES = 240


@dataclass(frozen=True)
class MapWriter:
    """Writes the maps of a model, image by image: a figure of the overlay, and the raw map.

    A file name consists of the image, the method, and every option that is not the default: the
    model's name, layer, head, γ, class and seed. Different maps therefore have different files.
    Where two models share a name, the second is refused instead of overwriting the first.

    Attributes:
        model: a supported ViT.
        methods: names of map methods.
        out: output folder, created when needed.
        name: model name in the file names; left out if empty.
        layer, head, gamma, target: as in :func:`infsa_explain.explain`; layer and head apply to the
            methods that have them.
        seed: seed of the fresh weights, for ``untrained-`` methods.
        force: overwrite files of other maps.
    """

    model: nn.Module
    methods: Sequence[str]
    out: Path
    name: str = ""
    layer: int | str = "last"
    head: int | None = None
    gamma: float | None = None
    target: int | str | None = None
    seed: int = 0
    force: bool = False

    @cached_property
    def _weights(self) -> str:
        return fingerprint(self.model)

    def check(self, stem: str, source: str) -> None:
        """Check that the maps of an image can be written, before any work is done.

        Args:
            stem: beginning of the file names.
            source: identifies the image, such as its path.

        Raises:
            ValueError: if a method is unknown or does not have the layer or head, the folder is a
                file, or, unless ``force``, files of other maps exist.
        """
        check_place(self.methods, self.layer, self.head)
        check_folder(self.out)
        for method in self.methods:
            raw, picture = self._paths(stem, method)
            mark = self._mark(method, source)
            check_picture(picture, mark, force=self.force)
            if raw.exists() and not (self.force or picture.exists()):
                raise ValueError(
                    f"{raw} exists already, without the picture that identifies it; choose "
                    "another --out, or --force"
                )

    def write(self, sample: Sample, stem: str, source: str) -> Iterator[Path]:
        """Write the maps of an image.

        Args:
            sample: the image; the figure shows the part that the model sees.
            stem, source: as for :meth:`check`.

        Yields:
            Each path after it is written. Nothing is written before all maps are computed.

        Raises:
            ValueError: as :meth:`check`, and as :func:`infsa_explain.explain`.
        """
        self.check(stem, source)
        seen = view(
            self.model,
            sample.image,
            boxes=sample.boxes,
            seed=sample.image_id,
            untrained_seed=self.seed,
        )
        looks = seen.explain_all(
            self.methods, self.layer, self.head, gamma=self.gamma, target=self.target
        )
        make_folder(self.out)
        for method, look in zip(self.methods, looks, strict=True):
            raw, picture = self._paths(stem, method)
            drawn = figure(
                seen.pixels,
                look.scores,
                title=seen.prediction,
                caption=look.caption,
                boxes=seen.boxes,
                region=whole(seen.pixels),
            )
            # The picture is written first: it identifies the raw map.
            save_picture(drawn, picture, self._mark(method, source), dpi=150)
            with replacing(raw) as temporary:
                np.save(temporary, look.scores)
            yield from (raw, picture)

    def _choice(self, method: str) -> dict[str, Any]:
        """The options that determine a method's map; None for defaults."""
        entry = get_method(method)
        choice = entry.choice(self.layer, self.head)
        return {
            "layer": None if str(choice["layer"]) in ("-1", "last") else str(choice["layer"]),
            "head": choice["head"],
            "gamma": None if entry.control else self.gamma,
            "class": self.target if entry.class_specific else None,
            "seed": self.seed or None if entry.untrained else None,
        }

    def _paths(self, stem: str, method: str) -> tuple[Path, Path]:
        """Paths of the raw map and of the picture."""
        marks = [
            f"{key}-{value}" for key, value in self._choice(method).items() if value is not None
        ]
        parts = [_safe(part) for part in (self.name, method, *marks) if part]
        name = ".".join([stem, *parts])
        if len(name.encode()) > MAX_NAME_BYTES:
            digest = hashlib.sha256(name.encode()).hexdigest()[:8]
            name = f"{name.encode()[: MAX_NAME_BYTES - 9].decode(errors='ignore')}-{digest}"
        return self.out / f"{name}.npy", self.out / f"{name}.png"

    def _mark(self, method: str, source: str) -> str:
        facts = {"weights": self._weights, "image": source, "method": method}
        return mark_of(facts | self._choice(method))


def write_maps(
    model: nn.Module,
    sample: Sample,
    methods: Sequence[str],
    out: str | os.PathLike[str],
    *,
    stem: str | None = None,
    source: str | None = None,
    **options: Any,
) -> Iterator[Path]:
    """Write the maps of one image, with a :class:`MapWriter`.

    Args:
        model, methods, out: as for :class:`MapWriter`.
        sample: the image; the figure shows the part that the model sees.
        stem: beginning of the file names; from :func:`file_stems` if None.
        source: identifies the image; its ``image_id`` if None.
        **options: further attributes of :class:`MapWriter`.

    Yields:
        Each path after it is written. Nothing is written before all maps are computed.

    Raises:
        ValueError: as :meth:`MapWriter.check` and :func:`infsa_explain.explain`.
    """
    check_folder(out)  # as given: Path("") is the current folder
    (stem,) = file_stems([sample.image_id]) if stem is None else [stem]
    source = sample.image_id if source is None else source
    yield from MapWriter(model, methods, Path(out), **options).write(sample, stem, source)


def file_stems(image_ids: Iterable[str]) -> list[str]:
    """File names for images: at most 200 bytes, without folders, and unique.

    >>> file_stems(["../my photos/-a b.jpg", "..", "a.jpg", "a.jpg"])
    ['_my_photos_-a_b.jpg', 'image', 'a.jpg', 'a.jpg-2']
    """
    stems: list[str] = []
    for image_id in image_ids:
        stem = short = _safe(image_id).encode()[:200].decode(errors="ignore") or "image"
        for number in count(2):
            if stem not in stems:
                break
            stem = f"{short}-{number}"
        stems.append(stem)
    return stems


def _safe(text: str) -> str:
    """A text with all characters replaced that are unsafe in a file name."""
    return re.sub(r"[^\w.-]+", "_", text).lstrip(".-")
