"""From a method's scores to a map: layers, heads, prefix tokens, diagnostics."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Unpack, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad

from ..graph.centrality import Centrality, Perron
from ..vits import unwrapped
from ..vits.capturing import (
    Graphs,
    Layer,
    attention_layers,
    capture,
    layer_index,
)
from ..vits.kinds import is_edgeless
from .registry import Method, MethodNotApplicable, Request, get_method
from .targets import Target, targets_of

if TYPE_CHECKING:
    from ..data.pixels import AnyImage, Region
    from ..drawing.heatmap import Display
    from ..vits.preprocessing import Framing

__all__ = ["Explanation", "Target", "explain", "explain_graphs"]

PERRON_FIELDS = ("error_bound", "residual", "converged", "unique", "resolved", "value", "second")


@dataclass(frozen=True)
class Explanation:
    """Maps of a batch, and what is known of them.

    Attributes:
        maps: (B, gh, gw) float32, raw: never clipped or rescaled; higher is more important.
        tokens: (B, N) with the prefix tokens.
        method: the method's name.
        layers: indices of the layers that were used.
        heads: indices of the heads that were used, or None for a method without heads.
        diagnostics: of the layers used, each (L, B, H), NaN (``dead_heads``: false) for heads that
            a layer with fewer lacks: ``dead_heads`` bool (a control uses none,
            and has those of all), and where the method has them ``min_absorption``,
            ``invalid_rows``, ``error_bound`` (of the scores, relative; of a Perron vector, unit
            2-norm), ``residual``, ``converged``, ``unique``, ``resolved``, ``value``, ``second``.
            The bound of a method of the whole model, such as ``series``, is (B,).
        logits: (B, C), of the pass that was explained.
        framing: where the model's preprocessing puts an image; None where the model does not say,
            or the images were of another size than it makes them.
        gammas: every γ that the method used, a scalar or (H,), layer by layer.
    """

    maps: Tensor
    tokens: Tensor
    method: str
    layers: tuple[int, ...]
    heads: tuple[int, ...] | None
    diagnostics: dict[str, Tensor] = field(repr=False)
    logits: Tensor = field(repr=False)
    framing: Framing | None = field(default=None, repr=False)
    gammas: tuple[Tensor, ...] = field(default=(), repr=False)

    def overlay(
        self,
        image: AnyImage,
        index: int | None = None,
        *,
        region: Region | None = None,
        **display: Unpack[Display],
    ) -> NDArray[np.uint8]:
        """Draw a map over the image it is of, where the model saw it.

        Args:
            image: the whole image, before it was resized and cropped, as for
                :func:`infsa_explain.overlay`; also another copy of it, of another size.
            index: of the map in the batch; not needed for a batch of one.
            region: as for :func:`infsa_explain.overlay`, for images that were not prepared by
                :func:`infsa_explain.preprocess`, whose crop is known.
            **display: as for :func:`infsa_explain.overlay`.

        Returns:
            (H, W, 3) uint8 RGB, in the image's own size. What the model did not see is darkened.

        Raises:
            ValueError: without an ``index`` for several maps or with one that is out of range, for
                a map that is NaN, as it is where every head is dead, or as
                :func:`infsa_explain.overlay`.

        >>> import infsa_explain
        >>> model = infsa_explain.load("infvit_linear_digits")
        >>> photo = np.full((300, 400, 3), 128, dtype=np.uint8)
        >>> drawn = infsa_explain.explain(model, photo).overlay(photo)
        >>> drawn.shape, drawn[0, 0].tolist()  # the model saw the middle square
        ((300, 400, 3), [51, 51, 51])
        """
        from ..data.pixels import to_pixels
        from ..drawing.heatmap import overlay  # which imports matplotlib

        count = len(self.maps)
        if index is None and count > 1:
            raise ValueError(f"index must say which of the {count} maps is drawn, got None")
        chosen = 0 if index is None else index
        if not -count <= chosen < count:
            raise ValueError(f"index must be one of {count} maps, 0 to {count - 1}, got {index}")
        scores = self.maps[chosen]
        if scores.isnan().all():
            raise ValueError(f"map {chosen} of {self.method} is NaN: there is nothing to draw")
        pixels = to_pixels(image, display.pop("mean", None), display.pop("std", None))
        if region is None and self.framing is not None:
            region = self.framing.region(*pixels.shape[:2])
        return overlay(pixels, scores, region=region, **display)


def explain(
    model: nn.Module,
    images: AnyImage | Iterable[AnyImage],
    method: str = "visits",
    layer: int | str = -1,
    head: int | None = None,
    *,
    target: Target = None,
    gamma: float | None = None,
    seeds: Sequence[int | str] | None = None,
    untrained_seed: int = 0,
) -> Explanation:
    """Map where a Vision Transformer looks.

    Each head's scores are scaled to sum to 1 over the patch tokens before heads are averaged, and
    so are the layers'. Prefix tokens take part in the graph and are dropped from the map.

    Args:
        model: a supported ViT, in any mode; it is left as found.
        images: paths, Pillow images, uint8 tensors, or arrays with the channels last, one or
            several; they are preprocessed by :func:`infsa_explain.preprocess`. Float tensors or
            arrays with the channels first, (B, 3, H, W) or (3, H, W), count as preprocessed: they
            must be normalised as the model expects, and a tensor must be on the model's device.
            Values in [0, 1] are not normalised by ``explain``; whole numbers up to 255 give a
            warning.
        method: a name in ``METHODS``, or with ``untrained-`` before it the control that takes the
            map from the model with fresh weights.
        layer: an index (negative from the end), ``"last"``, or ``"mean"`` over all; no index for
            methods of the whole model.
        head: an index, or None for the mean over heads; left out for methods without heads, which
            are those of the whole model, and Grad-CAM.
        target: the class to explain, by number or by name (``"goldfish"``) where the model has
            names; one for all images or one each; the predicted one if None. For methods that are
            of a class; the others have one map whatever it is. A model with a single logit has two
            classes, 0 for no and 1 for yes. For a model without a classifier ``"embedding"``: the
            projection of its features on those of the clean image.
        gamma: survival per step in (0, 1) in place of the model's own γ (0.95 for softmax).
        seeds: B identities of the images, for methods that draw; their places in the batch if None.
        untrained_seed: of the fresh weights, for ``untrained-`` methods.

    Returns:
        :class:`Explanation`. A head whose scores are all zero, or undefined, is left out of the
        mean; where no head is left, or a method of the whole model scores every patch zero, the
        map is NaN.

    Raises:
        ValueError: for an unknown method (the nearest are named), a layer, head or target out of
            range or that the method does not have, images that are none, a method that is constant
            or undefined for this kind of attention, or one that is of a class for a model without a
            classifier.

    >>> import infsa_explain
    >>> from infsa_explain.data import PhotoDigits
    >>> model = infsa_explain.load("infvit_linear_digits")
    >>> explain(model, PhotoDigits("val")[0].image, "relevance", target="8").maps.shape
    torch.Size([1, 14, 14])
    """
    chosen = get_method(method)
    chosen.check(layer, head)
    model = unwrapped(model)
    used = None if chosen.scope == "model" else _layers(layer, len(attention_layers(model)))
    return explain_graphs(
        capture(model, images, used),
        chosen,
        layer=layer,
        head=head,
        target=target,
        gamma=gamma,
        seeds=seeds,
        untrained_seed=untrained_seed,
    )


@torch.inference_mode(False)  # in which nothing has a gradient
def explain_graphs(
    graphs: Graphs,
    method: Method,
    *,
    layer: int | str = -1,
    head: int | None = None,
    target: Target = None,
    gamma: float | None = None,
    seeds: Sequence[int | str] | None = None,
    untrained_seed: int = 0,
) -> Explanation:
    """As :func:`explain`, from graphs that were captured before: several methods, one pass."""
    _check(graphs, method, layer, head, target)
    batch = len(graphs.logits)
    identities = list(range(batch)) if seeds is None else seeds
    if len(identities) != batch:
        raise ValueError(f"seeds must be one per image ({batch}), got {len(identities)}")
    # Of the class that the trained model predicts, also where the map is of the untrained one.
    request = Request(gamma, identities, targets_of(graphs, target))
    if method.untrained:
        graphs = _untrained(graphs, untrained_seed)
    if method.scope == "model":
        scored = _whole_model(graphs, method, request)
    else:
        scored = _layer_by_layer(graphs, method, request, layer, head)
    dead = [graphs.layer(i).dead() for i in scored.layers or range(len(graphs.kinds))]
    maps = scored.tokens[:, graphs.num_prefix_tokens :].reshape(batch, *graphs.grid)
    _warn_of_missing(maps, method)
    return Explanation(
        maps,
        scored.tokens,
        method.name,
        scored.layers,
        scored.heads,
        {"dead_heads": _stack(dead, fill=False), **scored.diagnostics},
        graphs.logits,
        _framing(graphs),
        tuple(request.gammas),
    )


class _Scored(NamedTuple):
    """Scores of tokens, (B, N), and the layers and heads that they come from."""

    tokens: Tensor
    layers: tuple[int, ...]
    heads: tuple[int, ...] | None
    diagnostics: dict[str, Tensor]


def _check(
    graphs: Graphs, method: Method, layer: int | str, head: int | None, target: Target
) -> None:
    """Refuse a method that does not suit the model, its captured layers, or the other arguments."""
    for kind in sorted(set(graphs.kinds) - method.kinds):
        raise MethodNotApplicable(
            f"{method.name} is not for {kind} attention, only for {', '.join(sorted(method.kinds))}"
        )
    method.check(layer, head)
    depth = len(graphs.kinds)
    if method.scope == "model" and len(graphs.layers) < depth:
        raise ValueError(
            f"{method.name} is of the whole model, and only layers {list(graphs.indices)} of "
            f"{depth} were captured"
        )
    require_class(graphs, method, target)


def _whole_model(graphs: Graphs, method: Method, request: Request) -> _Scored:
    """Scores by a method that reads all layers, or none."""
    result = method.scores(graphs, request)
    certified = isinstance(result, Centrality)
    tokens = (result.scores if certified else result).float()
    alive = (tokens[:, graphs.num_prefix_tokens :] != 0).any(-1, keepdim=True)
    diagnostics = {}
    if certified:
        diagnostics = {"error_bound": result.error_bound, "converged": result.converged}
    layers = () if method.control else tuple(range(len(graphs.kinds)))
    return _Scored(tokens.where(alive, torch.nan), layers, None, diagnostics)


def _layer_by_layer(
    graphs: Graphs, method: Method, request: Request, layer: int | str, head: int | None
) -> _Scored:
    """Scores by a method of one layer: the layer's, or the mean over all layers."""
    layers = _layers(layer, len(graphs.kinds))
    heads = _heads(graphs, layers, head) if method.heads else None
    results = [method.scores(graphs.layer(i), request, graphs) for i in layers]
    per_layer = [
        _layer_scores(result, graphs.layer(i), method.heads, head, graphs)
        for i, result in zip(layers, results, strict=True)
    ]
    tokens = torch.stack(per_layer).nanmean(0).float()
    return _Scored(tokens, layers, heads, _diagnostics(results))


def _warn_of_missing(maps: Tensor, method: Method) -> None:
    """Warn of images that have no map; the text is the same for all, so that it is said once."""
    if maps.isnan().all(-1).all(-1).any():
        zero = "its scores are zero everywhere"
        if method.class_specific:
            zero = "the gradient of what is explained is zero"
        dead = "" if method.scope == "model" else ", or every head is dead"
        warnings.warn(f"{method.name} has no map for some images (NaN): {zero}{dead}", stacklevel=3)


#: The graphs of the models with fresh weights, by seed, of graphs that are in use.
_UNTRAINED: WeakKeyDictionary[Graphs, dict[int, Graphs]] = WeakKeyDictionary()


def _untrained(graphs: Graphs, seed: int) -> Graphs:
    """The same layers of the same images, in the model with fresh weights."""
    from ..models.untraining import untrained  # which imports timm

    by_seed = _UNTRAINED.setdefault(graphs, {})
    if seed not in by_seed:
        by_seed[seed] = capture(untrained(graphs.model, seed), graphs.images, graphs.indices)
    return by_seed[seed]


def _framing(graphs: Graphs) -> Framing | None:
    """Where the model's input lies in an image, if the images are as its preprocessing has them."""
    from ..vits.preprocessing import Framing, data_config

    try:
        config = data_config(graphs.model)
    except ValueError:
        return None
    same = tuple(graphs.images.shape[-2:]) == tuple(config["input_size"][-2:])
    return Framing(config) if same else None


def _layer_scores(
    result: Tensor | Centrality | Perron,
    layer: Layer,
    has_heads: bool,
    head: int | None,
    graphs: Graphs,
) -> Tensor:
    """(B, N) of one layer, summing to 1 over the patches; NaN where there is no map."""
    if not has_heads:
        return _mean_over_heads(cast(Tensor, result)[:, None], None, graphs)
    return _mean_over_heads(_scores(result, layer), head, graphs)


def require_class(graphs: Graphs, method: Method, target: Target) -> None:
    """Refuse a map of a class where there are none, and nothing else was asked for.

    Raises:
        MethodNotApplicable: for a method that is of a class and a model without a classifier,
            unless ``target`` is ``"embedding"``.
    """
    if method.class_specific and graphs.output == "embedding" and target is None:
        raise MethodNotApplicable(
            f"{method.name} explains a class, and the model has no classifier; give "
            "target='embedding' to explain its features, or pass a model with a classifier"
        )


def _heads(graphs: Graphs, layers: tuple[int, ...], head: int | None) -> tuple[int, ...]:
    """Indices of the heads that are used; of layers that differ, those of the one with most."""
    counts = [graphs.layer(i).operator.shape[1] for i in layers]
    if head is None:
        return tuple(range(max(counts)))
    words = "a whole number, or None for the mean over heads"
    return (layer_index(head, min(counts), "head", words),)


def _mean_over_heads(scores: Tensor, head: int | None, graphs: Graphs) -> Tensor:
    """(B, H, N) to (B, N): each head scaled to sum 1 over the patches, dead heads left out."""
    if head is not None:
        scores = scores[:, [head]]
    total = scores[..., graphs.num_prefix_tokens :].sum(-1, keepdim=True)
    return (scores / total.where(total > 0, torch.nan)).nanmean(1)


def _scores(result: Tensor | Centrality | Perron, layer: Layer) -> Tensor:
    """(B, H, N), NaN in heads without an edge: visits and PageRank are uniform there."""
    if isinstance(result, Centrality):
        result = result.scores
    elif isinstance(result, Perron):
        result = result.vector
    scores: Tensor = result
    return scores.masked_fill(is_edgeless(layer.operator)[..., None], torch.nan)


def _diagnostics(results: list[Tensor | Centrality | Perron]) -> dict[str, Tensor]:
    if not results:
        return {}
    names = {
        Centrality: ("error_bound", "converged", "min_absorption", "invalid_rows"),
        Perron: PERRON_FIELDS,
    }.get(type(results[0]), ())
    return {name: _stack([getattr(result, name) for result in results]) for name in names}


def _stack(per_layer: list[Tensor], fill: float = torch.nan) -> Tensor:
    """(B, H) a layer to (L, B, H); ``fill`` stands for heads that a layer lacks.

    Truth values become numbers where a layer lacks heads and ``fill`` is NaN.
    """
    most = max(x.shape[-1] for x in per_layer)
    if all(x.shape[-1] == most for x in per_layer):
        return torch.stack(per_layer)
    wide = [x if x.is_floating_point() or not math.isnan(fill) else x.float() for x in per_layer]
    return torch.stack([pad(x, (0, most - x.shape[-1]), value=fill) for x in wide])


def _layers(layer: int | str, depth: int) -> tuple[int, ...]:
    if layer == "mean":
        return tuple(range(depth))
    words = "a whole number, 'last' or 'mean'"
    return (layer_index(-1 if layer == "last" else layer, depth, expected=words),)
