"""From a method's scores to a map: layers, heads, prefix tokens, diagnostics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..centrality import Centrality, Perron
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

__all__ = ["Explanation", "explain", "explain_graphs"]

PERRON_FIELDS = ("error_bound", "residual", "converged", "unique", "resolved", "value", "second")


@dataclass(frozen=True)
class Explanation:
    """Maps of a batch, and what is known of them.

    Attributes:
        maps: (B, gh, gw) float32, raw: never clipped or rescaled; higher is more important.
        tokens: (B, N) with the prefix tokens.
        method: the method's name.
        layers: indices of the layers that were used.
        heads: indices of the heads that were used, or None for a method of the whole model.
        diagnostics: of the layers used, each (L, B, H): ``dead_heads`` bool (a control uses none,
            and has those of all), and where the method has them ``min_absorption``,
            ``invalid_rows``, ``error_bound`` (of the scores, relative; of a Perron vector, unit
            2-norm), ``residual``, ``converged``, ``unique``, ``resolved``, ``value``, ``second``.
            The bound of a method of the whole model, such as ``series``, is (B,).
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
    target: int | Sequence[int] | Tensor | None = None,
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
            For methods that are of a class; the others have one map whatever it is.
        gamma: survival per step in (0, 1) in place of the model's own γ (0.95 for softmax).
        seeds: B identities of the images, for methods that draw; their places in the batch if None.

    Returns:
        :class:`Explanation`. A head whose scores are all zero, or undefined, is left out of the
        mean; where no head is left, or a method of the whole model scores every patch zero, the
        map is NaN.

    Raises:
        ValueError: for an unknown method (the nearest are named), a layer, head or target out of
            range, or a method that is constant or undefined for this kind of attention.
    """
    chosen = get_method(method)
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


def explain_graphs(
    graphs: Graphs,
    method: Method,
    *,
    layer: int | str = -1,
    head: int | None = None,
    target: int | Sequence[int] | Tensor | None = None,
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
    batch, heads, _ = graphs.operators[0].shape
    request = Request(
        gamma, list(range(batch)) if seeds is None else seeds, targets_of(graphs, target)
    )
    if len(request.seeds) != batch:
        raise ValueError(f"seeds must be one per image ({batch}), got {len(request.seeds)}")
    if method.scope == "model":
        layers: tuple[int, ...] = () if method.control else tuple(range(depth))
        used_heads = None
        results = []
        whole = method.scores(graphs, request)
        tokens = (whole.scores if isinstance(whole, Centrality) else whole).float()
        alive = (tokens[:, graphs.num_prefix_tokens :] != 0).any(-1, keepdim=True)
        tokens = tokens.where(alive, torch.nan)
    else:
        layers, whole = _layers(layer, depth), None
        used_heads = tuple(range(heads)) if head is None else (layer_index(head, heads, "head"),)
        results = [method.scores(graphs.layer(i), request, graphs) for i in layers]
        per_layer = [
            _mean_over_heads(_scores(result, graphs.layer(i)), used_heads, graphs)
            for i, result in zip(layers, results, strict=True)
        ]
        tokens = torch.stack(per_layer).nanmean(0).float()
    dead = [dead_heads_of(graphs.layer(i)) for i in layers or range(depth)]
    diagnostics = {"dead_heads": torch.stack(dead), **_diagnostics(results)}
    if isinstance(whole, Centrality):
        diagnostics |= {"error_bound": whole.error_bound, "converged": whole.converged}
    maps = tokens[:, graphs.num_prefix_tokens :].reshape(batch, *graphs.grid)
    return Explanation(maps, tokens, method.name, layers, used_heads, diagnostics, graphs.logits)


def targets_of(graphs: Graphs, target: int | Sequence[int] | Tensor | None) -> Tensor:
    """The class that each image is explained for, (B,) long, on the model's device.

    Raises:
        ValueError: for a class that the model has no output for, or not one per image.
    """
    batch, classes = graphs.logits.shape
    if target is None:
        return graphs.logits.argmax(-1)
    targets = torch.as_tensor(target, device=graphs.logits.device)
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


def _mean_over_heads(scores: Tensor, heads: tuple[int, ...], graphs: Graphs) -> Tensor:
    """(B, H, N) to (B, N): each head scaled to sum 1 over the patches, dead heads left out."""
    scores = scores[:, list(heads)]
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
        Perron: PERRON_FIELDS,
    }.get(type(results[0]), ())
    return {name: torch.stack([getattr(result, name) for result in results]) for name in names}


def _layers(layer: int | str, depth: int) -> tuple[int, ...]:
    if layer == "mean":
        return tuple(range(depth))
    return (layer_index(-1 if layer == "last" else layer, depth),)
