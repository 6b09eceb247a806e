"""One image as one model sees it, ready to be explained by any method, with words for captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

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

__all__ = ["Look", "View", "class_text", "prediction", "view"]


class Look(NamedTuple):
    """A map, and what it is of.

    Attributes:
        explanation: of the one image.
        gammas: every γ that went into the map, one per layer and head; none where the method
            has no γ.
        of: the class that the map is of, in words; empty where the method is of none.
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
        """Method, layers, heads, γ and class in words; an empty text for what there is not."""
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
        graphs: of one pass of the model.
        seed: identity of the image, for methods that draw.
        untrained_seed: of the fresh weights, for ``untrained-`` methods.
    """

    model: nn.Module
    pixels: NDArray[np.uint8]
    boxes: NDArray[np.float64]
    graphs: Graphs
    seed: int | str
    untrained_seed: int = 0

    @property
    def prediction(self) -> str:
        """As :func:`prediction` has it."""
        return prediction(self.model, self.graphs.logits[0])

    def explain(
        self,
        method: str | Method,
        layer: int | str = -1,
        head: int | None = None,
        gamma: float | None = None,
        target: int | str | None = None,
    ) -> Look:
        """A map of the image; arguments and errors as of :func:`infsa_explain.explain`."""
        chosen = get_method(method) if isinstance(method, str) else method
        explanation = explain_graphs(
            self.graphs,
            chosen,
            layer=layer,
            head=head,
            gamma=gamma,
            target=target,
            seeds=[self.seed],
            untrained_seed=self.untrained_seed,
        )
        heads = explanation.heads
        used = [g if heads is None or g.ndim == 0 else g[list(heads)] for g in explanation.gammas]
        of = ""
        if chosen.class_specific:
            shown = targets_of(self.graphs, target)
            named = shown.ndim == 1
            of = f"of {class_text(self.model, int(shown))}" if named else "of the embedding"
        return Look(explanation, tuple(float(x) for g in used for x in g.flatten()), of)

    def explain_all(
        self,
        methods: Sequence[str],
        layer: int | str = -1,
        head: int | None = None,
        gamma: float | None = None,
        target: int | str | None = None,
    ) -> list[Look]:
        """Maps by several methods; a layer and a head are for those that have them.

        Raises:
            ValueError: as :meth:`explain`, for a head where a method has none and is no control, or
                for a layer where none has layers.
        """
        check_place(methods, layer, head)
        return [
            self.explain(name, gamma=gamma, target=target, **get_method(name).choice(layer, head))
            for name in methods
        ]


def view(
    model: nn.Module,
    image: AnyImage,
    *,
    boxes: ArrayLike | None = None,
    seed: int | str = 0,
    untrained_seed: int = 0,
) -> View:
    """Run a model on one image, to be explained.

    Args:
        model: a supported ViT, in any mode; it is left as found.
        image: a path, a Pillow image, an array or a tensor, as
            :func:`infsa_explain.data.pixels.to_pixels` takes them. A float image whose values are
            no colours is taken as it is, normalised and of the model's input size.
        boxes: (K, 4) of x0, y0, x1, y1 in pixel edges of the image, half-open.
        seed: identity of the image, for methods that draw.
        untrained_seed: of the fresh weights, for ``untrained-`` methods.

    Returns:
        :class:`View`.

    Raises:
        ValueError: for an image that is none of these, or a model that cannot be read.

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
    framed = np.asarray(np.zeros((0, 4)) if boxes is None else boxes, dtype=np.float64)
    if framed.ndim != 2 or framed.shape[1] != 4:
        raise ValueError(f"boxes must be (K, 4) of x0, y0, x1, y1, got {framed.shape}")
    normalised = _normalised(image)
    if normalised is not None:
        pixels = to_pixels(normalised, config["mean"], config["std"])
        batch = normalised.to(next(model.parameters()).device, torch.float32)[None]
    else:
        whole = to_pixels(image)
        pixels = visible_region(model, whole)
        batch = preprocess(model, whole)
        edges = frame_boxes(model, framed.astype(np.float32), *whole.shape[:2])
        zoom = np.array([pixels.shape[1] / batch.shape[3], pixels.shape[0] / batch.shape[2]] * 2)
        framed = edges.numpy() * zoom
    return View(model, pixels, framed, capture(model, batch), seed, untrained_seed)


def prediction(model: nn.Module, logits: Tensor) -> str:
    """The predicted class and its probability, such as "predicted: goldfish, 93%".

    Args:
        model: its classes are numbers if :func:`~infsa_explain.vits.class_names` has none.
        logits: (C,).

    Returns:
        An empty text for a model without a classifier.
    """
    output = model_output(model)
    if output == "embedding":
        return ""
    probabilities = class_probabilities(logits[None], output)[0]
    best = int(probabilities.argmax())
    return f"predicted: {_name(model, best) or f'class {best}'}, {probabilities[best]:.0%}"


def class_text(model: nn.Module, index: int) -> str:
    """Such as "class goldfish", or "class 3" for a model without names."""
    return f"class {_name(model, index) or index}"


def _name(model: nn.Module, index: int) -> str:
    """What a model calls a class, by its first synonym; empty without names."""
    names = class_names(model)
    return first_synonym(names[index]) if names else ""


def layers_text(layers: Sequence[int]) -> str:
    """Such as "layer 3", "layers 0 to 11"; nothing for a method without layers."""
    if len(layers) > 2 and list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f"layers {layers[0]} to {layers[-1]}"
    numbers = ", ".join(str(layer) for layer in layers)
    return f"layer{'s' if len(layers) > 1 else ''} {numbers}" if layers else ""


def heads_text(heads: Sequence[int] | None) -> str:
    """Such as "head 3", "mean of 8 heads"; nothing for a method without heads."""
    if heads is None:
        return ""
    return f"head {heads[0]}" if len(heads) == 1 else f"mean of {len(heads)} heads"


def gammas_text(gammas: Sequence[float]) -> str:
    """Such as "γ 0.95", "γ 0.93 to 0.96"; nothing where there is none."""
    if not gammas:
        return ""
    low, high = f"{min(gammas):.2f}", f"{max(gammas):.2f}"
    return f"γ {low}" if low == high else f"γ {low} to {high}"


def _normalised(image: AnyImage) -> Tensor | None:
    """A float image with values that are no colours, (3, H, W); None for any other."""
    if not is_array(image) or image.ndim != 3:
        return None
    array = channels_last(image)
    if not np.issubdtype(array.dtype, np.floating) or holds_colours(array):
        return None
    return torch.tensor(np.moveaxis(array, 2, 0))
