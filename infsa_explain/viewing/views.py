"""One image as one model sees it, ready to be explained by any method, with words for captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict, cast

import numpy as np
import torch
from infsa_metrics import class_probabilities
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from ..data.matching import first_synonym
from ..data.pixels import AnyImage, channels_last, holds_colours, is_array, to_pixels
from ..methods import Method, check_place, get_method
from ..methods.explaining import Explanation, explain_graphs
from ..methods.targets import targets_of
from ..vits import class_names, model_output
from ..vits.capturing import Graphs, capture
from ..vits.preprocessing import data_config, frame_boxes, preprocess, visible_region

__all__ = [
    "Look",
    "MapChoice",
    "View",
    "ViewOptions",
    "class_text",
    "pop_choice",
    "prediction",
    "view",
]


class MapChoice(TypedDict, total=False):
    """Which of a method's maps: keyword arguments of :meth:`View.explain`.

    Attributes:
        layer: an index, ``"last"`` (default), or ``"mean"`` over all layers, for methods that score
            layers.
        head: an index, or None for the mean over heads (default).
        gamma: replaces the model's own γ, in (0, 1).
        target: the class to explain, by number or name; the predicted class by default.
    """

    layer: int | str
    head: int | None
    gamma: float | None
    target: int | str | None


def pop_choice(options: dict[str, Any]) -> MapChoice:
    """Remove the options of :class:`MapChoice` from a dict, and return them."""
    names = [name for name in MapChoice.__annotations__ if name in options]
    return cast(MapChoice, {name: options.pop(name) for name in names})


class ViewOptions(MapChoice, total=False):
    """Which map, and of which image.

    Attributes:
        layer, head, gamma, target: as for :class:`MapChoice`.
        boxes: (K, 4) of x0, y0, x1, y1 in pixel edges of the image, half-open; drawn as outlines.
        seed: identity of the image, for methods that draw random numbers; 0 by default.
    """

    boxes: ArrayLike | None
    seed: int | str


class Look(NamedTuple):
    """A map with the facts for its caption.

    Attributes:
        explanation: the result of ``explain``, for one image.
        gammas: the γ of every layer and head in the map; empty if the method has no γ.
        of: the class that the map explains, in words; empty if the method explains no class.
    """

    explanation: Explanation
    gammas: tuple[float, ...]
    of: str = ""

    @property
    def scores(self) -> NDArray[np.float32]:
        """The map, (gh, gw), raw."""
        scores: NDArray[np.float32] = self.explanation.maps[0].cpu().numpy()
        return scores

    @property
    def facts(self) -> list[str]:
        """Method, layers, heads, γ and class in words; facts that do not apply are empty."""
        layers, heads = self.explanation.layers, self.explanation.heads
        words = [layers_text(layers), heads_text(heads), gammas_text(self.gammas), self.of]
        return [self.explanation.method, *words]

    @property
    def caption(self) -> str:
        """The facts in a line, such as "visits, layer 3, mean of 8 heads, γ 0.95"."""
        return ", ".join(filter(None, self.facts))


@dataclass(frozen=True)
class View:
    """One image as one model sees it.

    Attributes:
        model: a supported ViT.
        pixels: (H, W, 3) uint8 RGB, the part of the image that the model sees, at the image's own
            resolution.
        boxes: (K, 4) x0, y0, x1, y1 in pixel edges of ``pixels``, half-open.
        graphs: captured in one pass of the model.
        seed: identity of the image, for methods that draw random numbers.
        untrained_seed: seed of the fresh weights, for ``untrained-`` methods.
    """

    model: nn.Module
    pixels: NDArray[np.uint8]
    boxes: NDArray[np.float64]
    graphs: Graphs
    seed: int | str
    untrained_seed: int = 0

    @property
    def prediction(self) -> str:
        """The predicted class and its probability, as :func:`prediction` writes them."""
        return prediction(self.model, self.graphs.logits[0])

    def explain(
        self,
        method: str | Method,
        layer: int | str = -1,
        head: int | None = None,
        *,
        gamma: float | None = None,
        target: int | str | None = None,
    ) -> Look:
        """A map of the image; arguments and errors as of :func:`infsa_explain.explain`."""
        method = get_method(method) if isinstance(method, str) else method
        explanation = explain_graphs(
            self.graphs,
            method,
            layer=layer,
            head=head,
            gamma=gamma,
            target=target,
            seeds=[self.seed],
            untrained_seed=self.untrained_seed,
        )
        heads = explanation.heads
        gammas = [g if heads is None or g.ndim == 0 else g[list(heads)] for g in explanation.gammas]
        of = ""
        if method.class_specific:
            explained = targets_of(self.graphs, target)
            of = "of the embedding"
            if explained.ndim == 1:
                of = f"of {class_text(self.model, int(explained))}"
        return Look(explanation, tuple(float(x) for g in gammas for x in g.flatten()), of)

    def explain_leniently(self, method: str, choice: MapChoice) -> Look:
        """As :meth:`explain`, but a layer or head that the method does not have is ignored."""
        place = get_method(method).choice(choice.get("layer", -1), choice.get("head"))
        return self.explain(method, **cast(MapChoice, {**choice, **place}))

    def explain_all(
        self,
        methods: Sequence[str],
        layer: int | str = -1,
        head: int | None = None,
        *,
        gamma: float | None = None,
        target: int | str | None = None,
    ) -> list[Look]:
        """Maps by several methods; layer and head apply to the methods that have them.

        Raises:
            ValueError: as :meth:`explain`, if a head is asked for and a method other than a control
                has no heads, or if a layer is asked for and no method has layers.
        """
        check_place(methods, layer, head)
        choice = MapChoice(layer=layer, head=head, gamma=gamma, target=target)
        return [self.explain_leniently(name, choice) for name in methods]


def view(
    model: nn.Module,
    image: AnyImage,
    *,
    boxes: ArrayLike | None = None,
    seed: int | str = 0,
    untrained_seed: int = 0,
) -> View:
    """Run a model on one image, so that it can be explained by any method.

    Args:
        model: a supported ViT, in any mode; it is left as found.
        image: a path, a Pillow image, an array or a tensor, as
            :func:`infsa_explain.data.pixels.to_pixels` takes them. A float image whose values are
            not colours is taken as preprocessed: normalised, and of the model's input size.
        boxes: (K, 4) of x0, y0, x1, y1 in pixel edges of the image, half-open.
        seed: identity of the image, for methods that draw random numbers.
        untrained_seed: seed of the fresh weights, for ``untrained-`` methods.

    Returns:
        :class:`View`.

    Raises:
        ValueError: if the image is none of these, ``boxes`` has another shape, or the model is not
            supported.

    >>> import infsa_explain
    >>> model = infsa_explain.load("infvit_linear_digits")
    >>> wide = np.random.default_rng(0).integers(256, size=(224, 448, 3), dtype=np.uint8)
    >>> seen = view(model, wide, boxes=[[112, 0, 224, 112]])
    >>> seen.pixels.shape, seen.boxes.tolist()  # the middle of a wide image
    ((224, 224, 3), [[0.0, 0.0, 112.0, 112.0]])
    >>> seen.explain("perron", layer=2).caption
    'perron, layer 2, mean of 8 heads'
    """
    config = data_config(model)
    edges = np.asarray(np.zeros((0, 4)) if boxes is None else boxes, dtype=np.float64)
    if edges.ndim != 2 or edges.shape[1] != 4:
        raise ValueError(f"boxes must be (K, 4) of x0, y0, x1, y1, got {edges.shape}")
    normalised = _normalised(image)
    if normalised is not None:
        pixels = to_pixels(normalised, config["mean"], config["std"])
        batch = normalised.to(next(model.parameters()).device, torch.float32)[None]
    else:
        whole_image = to_pixels(image)
        pixels = visible_region(model, whole_image)
        batch = preprocess(model, whole_image)
        in_input = frame_boxes(model, edges.astype(np.float32), *whole_image.shape[:2]).numpy()
        (height, width), (rows, columns) = pixels.shape[:2], batch.shape[2:]
        edges = in_input * (np.array([width, height] * 2) / [columns, rows, columns, rows])
    return View(model, pixels, edges, capture(model, batch), seed, untrained_seed)


def prediction(model: nn.Module, logits: Tensor) -> str:
    """The predicted class and its probability, such as "predicted: goldfish, 93%".

    Args:
        model: classes are numbers if :func:`~infsa_explain.vits.class_names` returns none.
        logits: (C,).

    Returns:
        A text; empty if the model has no classifier.
    """
    output = model_output(model)
    if output == "embedding":
        return ""
    probabilities = class_probabilities(logits[None], output)[0]
    best = int(probabilities.argmax())
    return f"predicted: {_name(model, best) or f'class {best}'}, {probabilities[best]:.0%}"


def class_text(model: nn.Module, index: int) -> str:
    """A class in words: "class goldfish", or "class 3" if the model has no class names.

    Args:
        model: whose class it is.
        index: of the class.
    """
    return f"class {_name(model, index) or index}"


def _name(model: nn.Module, index: int) -> str:
    """The first synonym of a model's class; empty if the model has no class names."""
    names = class_names(model)
    return first_synonym(names[index]) if names else ""


def layers_text(layers: Sequence[int]) -> str:
    """Layers in words: "layer 3", "layers 0 to 11"; empty if there are none."""
    if len(layers) > 2 and list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f"layers {layers[0]} to {layers[-1]}"
    numbers = ", ".join(str(layer) for layer in layers)
    return f"layer{'s' if len(layers) > 1 else ''} {numbers}" if layers else ""


def heads_text(heads: Sequence[int] | None) -> str:
    """Heads in words: "head 3", "mean of 8 heads"; empty for None."""
    if heads is None:
        return ""
    return f"head {heads[0]}" if len(heads) == 1 else f"mean of {len(heads)} heads"


def gammas_text(gammas: Sequence[float]) -> str:
    """γ in words: "γ 0.95", "γ 0.93 to 0.96"; empty if there is none."""
    if not gammas:
        return ""
    low, high = f"{min(gammas):.2f}", f"{max(gammas):.2f}"
    return f"γ {low}" if low == high else f"γ {low} to {high}"


def _normalised(image: AnyImage) -> Tensor | None:
    """A float image whose values are not colours, as (3, H, W); None for any other image."""
    if not is_array(image) or image.ndim != 3:
        return None
    array = channels_last(image)
    if not np.issubdtype(array.dtype, np.floating) or holds_colours(array):
        return None
    return torch.tensor(np.moveaxis(array, 2, 0))
