"""What the notebook's inspector shows for a choice of its controls: choices to pictures.

It needs no browser. :mod:`infsa_explain.viewing.widget` puts controls in front of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import cv2
import numpy as np
from infsa_metrics import class_probabilities
from numpy.typing import NDArray

from ..drawing.figures import Drawing, figure
from ..drawing.heatmap import Display, Scale, overlay, scale_of, whole
from ..methods import applicable_methods, get_method
from ..vits.capturing import attention_kinds
from .contributions import Contributions, contributions
from .views import Look, View, class_text, gammas_text, layers_text

__all__ = ["Choice", "Inspector", "Picture", "static"]

#: Longest side of the pictures, in pixels.
SIDE = 420
#: Share of the scores that lie below the top of the scale where outliers are clipped, in percent.
CLIP = 99.0

#: What the ends of the colour scale can be taken from.
SCALES = ("this map", "this map, outliers clipped", "all layers", "all heads")
COLORMAPS = ("viridis", "cividis", "magma", "inferno", "turbo", "gray")


@dataclass(frozen=True)
class Choice:
    """What the controls are set to.

    Attributes:
        method: a map method.
        layer: an index, or ``"mean"`` over all.
        head: an index, or None for the mean over heads.
        gamma: in place of the model's own γ, or None.
        target: the class that methods of a class explain; the predicted one if None.
        scale: what the ends of the colour scale are taken from, one of ``SCALES``: this map, this
            map up to its 99th percentile, or the maps of all layers or heads.
        colormap: a name that matplotlib knows.
        opacity: 0 to 1.
        patch: index of the selected patch in raster order, or None.
    """

    method: str = "visits"
    layer: int | str = -1
    head: int | None = None
    gamma: float | None = None
    target: int | None = None
    scale: str = SCALES[0]
    colormap: str = "viridis"
    opacity: float = 0.65
    patch: int | None = None


class Picture(NamedTuple):
    """A map as it is shown.

    Attributes:
        title, caption: a line above and one below.
        pixels: (H, W, 3) uint8 RGB, the map over the image.
        values: (gh, gw) float32, to be read off; NaN where there is no map.
        scale: what the ends of the colours stand for.
        unit: of the values, ``"score"`` or ``"share"``, to be read as a percentage.
        colours: (K, 3) uint8, the colours from the lower end to the upper, as on mid-grey.
    """

    title: str
    caption: str
    pixels: NDArray[np.uint8]
    values: NDArray[np.float32]
    scale: Scale
    unit: Literal["score", "share"]
    colours: NDArray[np.uint8]


@dataclass(frozen=True)
class Inspector:
    """An image under a model, and its pictures by choice.

    Attributes:
        view: the image and the model.
        methods: names of the map methods that suit the model.
        label: the class that the image is of, if known.
    """

    view: View
    methods: Sequence[str]
    label: int | None = None
    _looks: dict[tuple[Any, ...], Look] = field(default_factory=dict, repr=False)
    _parts: dict[tuple[Any, ...], Contributions] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, seen: View, label: int | None = None) -> Inspector:
        """The inspector of a view.

        Raises:
            ValueError: for a label that is no class of the model.
        """
        classes = seen.graphs.class_logits.shape[1]
        if label is not None and not 0 <= label < classes:
            raise ValueError(f"label must be a class of the model, 0 to {classes - 1}, got {label}")
        return cls(seen, applicable_methods(attention_kinds(seen.model)), label)

    def targets(self, chosen: int | None = None) -> list[tuple[int | None, str]]:
        """Classes to choose from, each with its name and probability.

        The predicted one, which None stands for, then the label, the rest of the five likeliest,
        and the chosen one. Empty without a classifier.
        """
        model, graphs = self.view.model, self.view.graphs
        if graphs.output == "embedding":
            return []
        probabilities = class_probabilities(graphs.logits, graphs.output)[0]
        best, *others = probabilities.argsort(descending=True)[:5].tolist()

        def text(index: int) -> str:
            return f"{class_text(model, index)}, {probabilities[index]:.1%}"

        targets: dict[int | None, str] = {None: f"predicted: {text(best)}"}
        if self.label is not None:
            targets[self.label] = f"label: {text(self.label)}"
        for index in others if chosen is None else [*others, chosen]:
            targets.setdefault(index, text(index))
        return list(targets.items())

    def pictures(self, choice: Choice) -> list[Picture]:
        """The map; and with a patch selected, where its visits come from and where they go.

        Raises:
            ValueError: as :func:`infsa_explain.explain` and :func:`infsa_explain.overlay`, or for
                a patch or a scale that there is not.
        """
        look = self.look(choice)
        scale = self._scale(choice, look)
        shown = [self._picture(self.view.prediction, look.caption, look.scores, scale, choice)]
        return shown if choice.patch is None else [*shown, *self._flows(choice, choice.patch)]

    def look(self, choice: Choice) -> Look:
        """The map of a choice; kept, for it to be drawn in other colours."""
        place = get_method(choice.method).choice(choice.layer, choice.head)
        key = choice.method, *place.values(), choice.gamma, choice.target
        if key not in self._looks:
            features = self.view.graphs.output == "embedding"
            self._looks[key] = self.view.explain(
                choice.method,
                gamma=choice.gamma,
                target="embedding" if features else choice.target,
                **place,
            )
        return self._looks[key]

    def _scale(self, choice: Choice, look: Look) -> Scale:
        if choice.scale not in SCALES:
            raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {choice.scale!r}")
        graphs, looks = self.view.graphs, [look]
        if get_method(choice.method).layers and choice.scale == "all layers":
            looks += [self.look(replace(choice, layer=i)) for i in range(len(graphs.layers))]
        elif get_method(choice.method).heads and choice.scale == "all heads":
            heads = range(graphs.operators[0].shape[1])
            looks += [self.look(replace(choice, head=i)) for i in heads]
        values = np.concatenate([one.scores.ravel() for one in looks]).astype(np.float64)
        known = values[~np.isnan(values)]
        if not known.size:
            return Scale(0.0, 0.0)
        return scale_of(known, CLIP if choice.scale == SCALES[1] else None)

    def _flows(self, choice: Choice, patch: int) -> list[Picture]:
        """Where the visits to a patch come from, and where walks from it go, in shares."""
        graphs, (_, columns) = self.view.graphs, self.view.graphs.grid
        if not 0 <= patch < graphs.grid[0] * columns:
            raise ValueError(f"patch must be an index on the grid {graphs.grid}, got {patch}")
        look = self.look(replace(choice, method="visits"))
        used = look.explanation
        key = graphs.num_prefix_tokens + patch, used.layers, used.heads, choice.gamma
        if key not in self._parts:
            self._parts[key] = contributions(graphs, *key)
        parts = self._parts[key]
        place = f"row {patch // columns}, column {patch % columns}"
        of = f"{layers_text(used.layers)}, {gammas_text(look.gammas)}"
        pictures = []
        for title, tokens in (
            (f"where visits to {place} come from", parts.sources),
            (f"where walks from {place} go", parts.destinations),
        ):
            shares = (tokens / tokens.sum(-1, keepdim=True))[0].cpu().numpy()
            patches = shares[graphs.num_prefix_tokens :]
            values = patches.reshape(graphs.grid).astype(np.float32)
            text, scale = of, Scale(0.0, 0.0)
            if not np.isnan(patches).any():
                text += f": itself {patches[patch]:.0%}"
                if graphs.num_prefix_tokens:
                    text += f", prefix tokens {shares[: graphs.num_prefix_tokens].sum():.0%}"
                # The patch itself stands out from all others: the scale is theirs.
                scale = scale_of(np.delete(patches, patch))
            pictures.append(self._picture(title, text, values, scale, choice, "share"))
        return pictures

    def notes(self, choice: Choice) -> str:
        """What to know of a map: how far the reading as an absorbing chain fails."""
        look = self.look(choice)
        invalid = look.explanation.diagnostics.get("invalid_rows")
        if invalid is None:
            return ""
        heads = look.explanation.heads
        share = float((invalid if heads is None else invalid[..., list(heads)]).nanmean())
        if not share > 0:  # NaN where no γ is involved
            return ""
        return (
            f"γ Σⱼ Âᵢⱼ exceeds 1 for {share:.1%} of the tokens i: these are visits of a branching "
            "walk, not of an absorbing chain."
        )

    def _picture(
        self,
        title: str,
        caption: str,
        values: NDArray[np.float32],
        scale: Scale,
        choice: Choice,
        unit: Literal["score", "share"] = "score",
    ) -> Picture:
        height, width = self.view.pixels.shape[:2]
        zoom = SIDE / max(height, width)
        ground = cv2.resize(
            self.view.pixels,
            (max(1, round(zoom * width)), max(1, round(zoom * height))),
            interpolation=cv2.INTER_AREA if zoom < 1 else cv2.INTER_CUBIC,
        )
        pixels = np.asarray(ground, dtype=np.uint8)
        colours: Display = {"opacity": choice.opacity, "colormap": choice.colormap}
        if np.isnan(values).all():
            caption += ": no map, every head is dead"
        else:
            ends: Display = {**colours, "vmin": scale.low, "vmax": scale.high}
            pixels = overlay(pixels, values.clip(*scale), region=whole(pixels), **ends)
        grey = np.full((1, 32, 3), 128, dtype=np.uint8)
        bar = overlay(grey, np.arange(32.0)[None], region=whole(grey), **colours)
        return Picture(title, caption, pixels, values, scale, unit, bar[0])


def static(seen: View, look: Look) -> Drawing:
    """The figure that stands for a widget where there is none."""
    return figure(
        seen.pixels,
        look.scores,
        title=seen.prediction,
        caption=look.caption,
        boxes=seen.boxes,
        region=whole(seen.pixels),
    )
