"""The inspector as a Jupyter widget; :mod:`infsa_explain.viewing.inspector` computes its
pictures."""

from __future__ import annotations

import base64
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import anywidget
import cv2
import numpy as np
import traitlets

from ..methods import get_method
from .inspector import COLORMAPS, SCALES, Choice, Inspector, Picture, static

__all__ = ["InspectorWidget"]

STATIC = Path(__file__).parent
CONTROLS = tuple(field.name for field in fields(Choice))


class InspectorWidget(anywidget.AnyWidget):
    """An :class:`Inspector` with controls; every field of :class:`Choice` is a trait.

    If a value is not valid, ``message`` says why, and the pictures do not change.
    """

    _esm = STATIC / "inspector.js"
    _css = STATIC / "inspector.css"

    method = traitlets.Unicode().tag(sync=True)
    layer = traitlets.Union([traitlets.Int(), traitlets.Unicode()]).tag(sync=True)
    head = traitlets.Int(allow_none=True).tag(sync=True)
    gamma = traitlets.Float(allow_none=True).tag(sync=True)
    target = traitlets.Int(allow_none=True).tag(sync=True)
    scale = traitlets.Unicode().tag(sync=True)
    colormap = traitlets.Unicode().tag(sync=True)
    opacity = traitlets.Float().tag(sync=True)
    patch = traitlets.Int(allow_none=True).tag(sync=True)

    menus = traitlets.Dict().tag(sync=True)
    pictures = traitlets.List(traitlets.Dict()).tag(sync=True)
    gammas = traitlets.List(traitlets.Float()).tag(sync=True)
    message = traitlets.Unicode().tag(sync=True)
    revision = traitlets.Int(0).tag(sync=True)

    def __init__(self, inspector: Inspector, choice: Choice) -> None:
        self.inspector = inspector
        graphs, seen = inspector.view.graphs, inspector.view
        first = inspector.look(replace(choice, method="visits")).explanation
        layer = first.layers[0] if len(first.layers) == 1 else "mean"
        head = first.heads[0] if first.heads and choice.head is not None else None
        menus = {
            "methods": [
                {
                    "name": name,
                    "summary": m.summary,
                    "scope": m.scope,
                    "heads": m.heads,
                    "of_a_class": m.class_specific,
                }
                for name, m in ((name, get_method(name)) for name in inspector.methods)
            ],
            "layers": len(graphs.layers),
            "heads": graphs.operators[0].shape[1],
            "targets": [list(entry) for entry in inspector.targets(choice.target)],
            "grid": list(graphs.grid),
            "scales": list(SCALES),
            "colormaps": list(COLORMAPS),
            "boxes": (seen.boxes / np.array([seen.pixels.shape[1::-1] * 2])).tolist(),
        }
        super().__init__(menus=menus, **vars(replace(choice, layer=layer, head=head)))
        self._draw()
        self.observe(self._draw, names=list(CONTROLS))

    def _choice(self) -> Choice:
        return Choice(**{name: getattr(self, name) for name in CONTROLS})

    def _draw(self, change: object = None) -> None:
        choice = self._choice()
        with self.hold_sync():
            try:
                self.pictures = [_packed(picture) for picture in self.inspector.pictures(choice)]
                self.gammas = list(self.inspector.look(choice).gammas)
                self.message = self.inspector.notes(choice)
            except ValueError as error:
                self.message = str(error)
            self.revision += 1  # so that the browser is told even if nothing else changed

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Add a picture, which saved notebooks show when no widgets are available."""
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        jpeg = static(self.inspector.view, self.inspector.look(self._choice())).jpeg()
        return {**data, "image/jpeg": base64.b64encode(jpeg).decode()}, metadata


def _packed(picture: Picture) -> dict[str, Any]:
    """A picture for the browser: JPEG, float32 values in raster order, CSS colours."""
    encoded, jpeg = cv2.imencode(".jpg", picture.pixels[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 92])
    if not encoded:
        raise ValueError("the picture could not be encoded as JPEG")
    return {
        "title": picture.title,
        "caption": picture.caption,
        "jpeg": jpeg.tobytes(),
        "size": list(picture.pixels.shape[1::-1]),
        "values": picture.values.astype("<f4").tobytes(),
        "low": picture.scale.low,
        "high": picture.scale.high,
        "unit": picture.unit,
        "colours": ["rgb({} {} {})".format(*colour) for colour in picture.colours.tolist()],
    }
