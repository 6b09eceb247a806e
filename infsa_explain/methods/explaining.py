"""From a method's scores to a map: layers, heads, prefix tokens, diagnostics."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from ..centrality import Centrality, Perron
from ..families import unwrapped
from ..graphs import (
    Graphs,
    Layer,
    attention_layers,
    capture,
    dead_heads_of,
    edgeless_heads,
    layer_index,
)
from .registry import Method, MethodNotApplicable, Request, get_method

__all__ = ["Explanation", "Target", "explain", "explain_graphs"]

#: What is explained: a class, or one per image; None for the predicted one; or "embedding".
Target = int | str | Sequence[int] | Tensor | None


@dataclass(frozen=True)
class Explanation:
    """Maps of a batch, and what is known of them.

    Attributes:
        maps: (B, gh, gw) float32, raw: never clipped or rescaled; higher is more important.
        tokens: (B, N) with the prefix tokens.
        method: the method's name.
        layers: indices of the layers that were used.
        heads: indices of the heads that were used, or None for a method of the whole model.
        diagnostics: of the layers used, each (L, B, H), NaN (``dead_heads``: false) for heads that
            a layer with fewer lacks: ``dead_heads`` bool (a control uses none,
            and has those of all), and where the method has them ``min_absorption``,
            ``invalid_rows``, ``error_bound`` (relative), ``residual``, ``converged``, ``unique``.
        logits: (B, C), of the pass that was explained.
    """

    maps: Tensor
    tokens: Tensor
    method: str
    layers: tuple[int, ...]
    heads: tuple[int, ...] | None
    diagnostics: dict[str, Tensor] = field(repr=False)
    logits: Tensor = field(repr=False)


def explain(
    model: nn.Module,
    images: Tensor,
    method: str = "visits",
    layer: int | str = -1,
    head: int | None = None,
    *,
    target: Target = None,
    gamma: float | None = None,
    seeds: Sequence[int | str] | None = None,
) -> Explanation:
    """Map where a Vision Transformer looks.

    Each head's scores are scaled to sum to 1 over the patch tokens before heads are averaged, and
    so are the layers'. Prefix tokens take part in the graph and are dropped from the map.

    Args:
        model: a supported ViT, in any mode; it is left as found.
        images: (B, 3, H, W), normalised as the model expects, on the model's device.
        method: a name in ``METHODS``.
        layer: an index (negative from the end), ``"last"``, or ``"mean"`` over all.
        head: an index, or None for the mean over heads. Methods of the whole model have none.
        target: the class to explain, one for all images or one each; the predicted one if None.
            For methods that are of a class; the others have one map whatever it is. A model with a
            single logit has two classes, 0 for no and 1 for yes. For a model without a classifier
            ``"embedding"``: the projection of its features on those of the clean image.
        gamma: survival per step in (0, 1) in place of the model's own γ (0.95 for softmax).
        seeds: B identities of the images, for methods that draw; their places in the batch if None.

    Returns:
        :class:`Explanation`. A head whose scores are all zero, or undefined, is left out of the
        mean; where no head is left, or a method of the whole model scores every patch zero, the
        map is NaN.

    Raises:
        ValueError: for an unknown method (the nearest are named), a layer, head or target out of
            range, a method that is constant or undefined for this kind of attention, or one that
            is of a class for a model without a classifier.
    """
    chosen = get_method(method)
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
) -> Explanation:
    """As :func:`explain`, from graphs that were captured before: several methods, one pass."""
    for kind in sorted(set(graphs.kinds) - method.kinds):
        raise MethodNotApplicable(
            f"{method.name} is not for {kind} attention, only for {', '.join(sorted(method.kinds))}"
        )
    depth = len(graphs.kinds)
    if method.scope == "model" and len(graphs.layers) < depth:
        raise ValueError(
            f"{method.name} is of the whole model, and only layers {list(graphs.indices)} of "
            f"{depth} were captured"
        )
    require_class(graphs, method, target)
    batch = len(graphs.logits)
    request = Request(
        gamma, list(range(batch)) if seeds is None else seeds, targets_of(graphs, target)
    )
    if len(request.seeds) != batch:
        raise ValueError(f"seeds must be one per image ({batch}), got {len(request.seeds)}")
    if method.scope == "model":
        layers: tuple[int, ...] = () if method.control else tuple(range(depth))
        used_heads = None
        results = []
        tokens = method.scores(graphs, request).float()
        alive = (tokens[:, graphs.num_prefix_tokens :] != 0).any(-1, keepdim=True)
        tokens = tokens.where(alive, torch.nan)
    else:
        layers = _layers(layer, depth)
        used_heads = _heads(graphs, layers, head)
        results = [method.scores(graphs.layer(i), request, graphs) for i in layers]
        per_layer = [
            _mean_over_heads(_scores(result, graphs.layer(i)), head, graphs)
            for i, result in zip(layers, results, strict=True)
        ]
        tokens = torch.stack(per_layer).nanmean(0).float()
    dead = [dead_heads_of(graphs.layer(i)) for i in layers or range(depth)]
    diagnostics = {"dead_heads": _stack(dead, fill=False), **_diagnostics(results)}
    maps = tokens[:, graphs.num_prefix_tokens :].reshape(batch, *graphs.grid)
    _warn_of_missing(maps, method)
    return Explanation(maps, tokens, method.name, layers, used_heads, diagnostics, graphs.logits)


def _warn_of_missing(maps: Tensor, method: Method) -> None:
    """Warn of images that have no map; the text is the same for all, so that it is said once."""
    if maps.isnan().all(-1).all(-1).any():
        zero = "its scores are zero everywhere"
        if method.class_specific:
            zero = "the gradient of what is explained is zero"
        dead = "" if method.scope == "model" else ", or every head is dead"
        warnings.warn(f"{method.name} has no map for some images (NaN): {zero}{dead}", stacklevel=3)


def targets_of(graphs: Graphs, target: Target) -> Tensor:
    """What each image is explained for, on the model's device.

    Returns:
        (B,) long, classes; or (B, D), for a model without a classifier, its features at unit
        length.

    Raises:
        ValueError: for a class that the model has no output for, or not one per image.
    """
    if graphs.output == "embedding":
        features = graphs.logits
        if isinstance(target, Tensor) and target.shape == features.shape:
            features = target.to(features)
        elif target is not None and not (isinstance(target, str) and target == "embedding"):
            raise ValueError(
                "target must be 'embedding' for a model without a classifier, or the features "
                f"themselves, {tuple(features.shape)}; got {target!r}"
            )
        return normalize(features)
    if isinstance(target, str):
        raise ValueError(
            f"target must be a class, got {target!r}; 'embedding' is for a model without a "
            "classifier (num_classes=0)"
            if target == "embedding"
            else f"target must be the index of a class, got {target!r}"
        )
    batch, classes = graphs.class_logits.shape
    if target is None:
        return graphs.class_logits.argmax(-1)
    targets = torch.as_tensor(target, device=graphs.logits.device)
    targets = targets.clone() if targets.is_inference() else targets
    if targets.ndim == 0:
        targets = targets.expand(batch)
    if targets.shape != (batch,) or targets.is_floating_point():
        raise ValueError(
            f"target must be a class, or one per image ({batch}), got {tuple(targets.shape)} of "
            f"{targets.dtype}"
        )
    if targets.min() < 0 or targets.max() >= classes:
        raise ValueError(
            f"target must be a class of the model, 0 to {classes - 1}, got {targets.tolist()}"
        )
    return targets.long()


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
    return (layer_index(head, min(counts), "head"),)


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
    return scores.masked_fill(edgeless_heads(layer)[..., None], torch.nan)


def _diagnostics(results: list[Tensor | Centrality | Perron]) -> dict[str, Tensor]:
    if not results:
        return {}
    names = {
        Centrality: ("error_bound", "converged", "min_absorption", "invalid_rows"),
        Perron: ("residual", "converged", "unique", "value", "second"),
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
    return (layer_index(-1 if layer == "last" else layer, depth),)
