""":func:`explain`: from a method's scores to a map, over heads and layers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..graph.centrality import Centrality, Perron
from ..vits import attention_layers, unwrapped
from ..vits.capturing import Graphs, Layer, capture, index_of, layer_index
from ..vits.kinds import is_edgeless
from .explanation import Explanation
from .registry import (
    LayerChoice,
    Method,
    MethodNotApplicable,
    Request,
    Scored,
    VisitsStart,
    get_method,
)
from .targets import Target, targets_of

if TYPE_CHECKING:
    from ..data.pixels import AnyImage
    from ..vits.preprocessing import Framing

__all__ = ["Explanation", "explain", "explain_graphs"]

#: Fields of a method's result that become diagnostics.
DIAGNOSTICS: dict[type, tuple[str, ...]] = {
    Centrality: ("error_bound", "converged", "min_absorption", "invalid_rows"),
    Perron: ("error_bound", "residual", "converged", "unique", "resolved", "value", "second"),
}


def explain(
    model: nn.Module,
    images: AnyImage | Iterable[AnyImage],
    method: str = "visits",
    layer: LayerChoice = -1,
    head: int | None = None,
    *,
    target: Target = None,
    gamma: float | None = None,
    gamma_rho: float | None = None,
    visits_start: VisitsStart = "counted",
    seeds: Sequence[int | str] | None = None,
    untrained_seed: int = 0,
) -> Explanation:
    """Map where a Vision Transformer looks. Each argument is one choice that decides the map.

    The scores of each head are scaled to sum to 1 over the patch tokens before heads are averaged,
    and the scores of each layer before layers are averaged. Prefix tokens are part of the graph and
    are dropped from the map.

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
        layer: an index, negative from the end, ``"last"``, or ``"mean"`` over all layers. To be
            left out for methods of the whole model.
        head: an index, or None for the mean over heads. To be left out for methods without heads.
        target: the class to explain, by number, or by name (``"goldfish"``) if the model has names;
            one for all images or one per image; None for the predicted class. Methods that are not
            of a class ignore it. A model with a single logit has two classes, 0 for no and 1 for
            yes. For a model without a classifier, ``"embedding"`` explains the projection of its
            features on those of the clean image.
        gamma: survival per step, in (0, 1), instead of the model's own γ (0.95 for softmax).
        gamma_rho: γρ of every graph, in (0, 1), instead of a γ: walks on graphs of different kinds
            then have the same mean length, where ρ is 1 for softmax and less for InfSA.
        visits_start: whether the start of a walk is one of its visits, ``"counted"`` or
            ``"excluded"``. The start is uniform; without it, maps of visits are sharper.
        seeds: B identities of the images, for methods that draw random numbers; their indices in
            the batch if None.
        untrained_seed: of the fresh weights, for ``untrained-`` methods.

    Returns:
        :class:`Explanation`. A head with scores that are all zero or undefined is left out of the
        mean. If no head is left, or a method of the whole model scores every patch zero, the map
        is NaN.

    Raises:
        ValueError: for an unknown method (the nearest are named), a layer, head or target that is
            out of range or that the method does not have, anything that is no image, a method that
            is constant or undefined for this kind of attention, or a method of a class for a model
            without a classifier.

    >>> import infsa_explain
    >>> from infsa_explain.data import PhotoDigits
    >>> model = infsa_explain.load("infvit_linear_digits")
    >>> explain(model, PhotoDigits("val")[0].image, "relevance", target="8").maps.shape
    torch.Size([1, 14, 14])
    """
    chosen = get_method(method)
    chosen.check(layer, head)
    model = unwrapped(model)
    layers = _layers(layer, len(attention_layers(model))) if chosen.layers else None
    return explain_graphs(
        capture(model, images, layers),
        chosen,
        layer=layer,
        head=head,
        target=target,
        gamma=gamma,
        gamma_rho=gamma_rho,
        visits_start=visits_start,
        seeds=seeds,
        untrained_seed=untrained_seed,
    )


@torch.inference_mode(False)  # inference mode has no gradients
def explain_graphs(
    graphs: Graphs,
    method: Method,
    *,
    layer: LayerChoice = -1,
    head: int | None = None,
    target: Target = None,
    gamma: float | None = None,
    gamma_rho: float | None = None,
    visits_start: VisitsStart = "counted",
    seeds: Sequence[int | str] | None = None,
    untrained_seed: int = 0,
) -> Explanation:
    """As :func:`explain`, from captured graphs: several methods may share one pass.

    Args:
        graphs: as of :func:`infsa_explain.capture`, of all layers that are used.
        method: as of :func:`get_method`.
        layer, head, target, gamma, gamma_rho, visits_start, seeds, untrained_seed: as for
            :func:`explain`.

    Returns:
        :class:`Explanation`.

    Raises:
        ValueError: as :func:`explain`, or if a layer was not captured.
    """
    _check(graphs, method, layer, head, target)
    batch = len(graphs.logits)
    identities = list(range(batch)) if seeds is None else seeds
    if len(identities) != batch:
        raise ValueError(f"seeds must be one per image ({batch}), got {len(identities)}")
    # The class that the trained model predicts, for maps of the untrained model too.
    targets = targets_of(graphs, target)
    request = Request(gamma, identities, targets, gamma_rho=gamma_rho, visits_start=visits_start)
    if method.untrained:
        graphs = _untrained(graphs, untrained_seed)
    if method.layers:
        scored = _layer_by_layer(graphs, method, request, layer, head)
    else:
        scored = _whole_model(graphs, method, request)
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
    """Scores of tokens, (B, N), with the layers and heads that were used."""

    tokens: Tensor
    layers: tuple[int, ...]
    heads: tuple[int, ...] | None
    diagnostics: dict[str, Tensor]


def _check(
    graphs: Graphs, method: Method, layer: LayerChoice, head: int | None, target: Target
) -> None:
    """Refuse a method that is not for the model, the captured layers or the other arguments."""
    for kind in sorted(set(graphs.kinds) - method.kinds):
        raise MethodNotApplicable(
            f"{method.name} is not for {kind} attention, only for {', '.join(sorted(method.kinds))}"
        )
    method.check(layer, head)
    depth = len(graphs.kinds)
    if not method.layers and len(graphs.layers) < depth:
        raise ValueError(
            f"{method.name} is of the whole model, and only layers {list(graphs.indices)} of "
            f"{depth} were captured"
        )
    require_class(graphs, method, target)


def _whole_model(graphs: Graphs, method: Method, request: Request) -> _Scored:
    """Scores by a method of the whole model."""
    result = method.scores(graphs, request)
    certified = isinstance(result, Centrality)
    batch, _, number = graphs.operators[0].shape
    tokens = _scores(result, (batch, number), method).float()
    nonzero = (tokens[:, graphs.num_prefix_tokens :] != 0).any(-1, keepdim=True)
    diagnostics = {}
    if certified:
        diagnostics = {"error_bound": result.error_bound, "converged": result.converged}
    layers = () if method.control else tuple(range(len(graphs.kinds)))
    return _Scored(tokens.where(nonzero, torch.nan), layers, None, diagnostics)


def _layer_by_layer(
    graphs: Graphs, method: Method, request: Request, layer: LayerChoice, head: int | None
) -> _Scored:
    """Scores by a method of layers or heads, averaged over the chosen ones."""
    layers = _layers(layer, len(graphs.kinds))
    heads = _heads(graphs, layers, head) if method.heads else None
    results = [method.scores(graphs.layer(i), request, graphs) for i in layers]
    per_layer = [
        _mean_over_heads(_by_head(result, graphs.layer(i), method), head, graphs)
        for i, result in zip(layers, results, strict=True)
    ]
    tokens = torch.stack(per_layer).nanmean(0).float()
    return _Scored(tokens, layers, heads, _diagnostics(results))


def _warn_of_missing(maps: Tensor, method: Method) -> None:
    """Warn if an image has no map. The text is constant, so that Python prints it once."""
    if maps.isnan().all(-1).all(-1).any():
        zero = "its scores are zero everywhere"
        if method.class_specific:
            zero = "the gradient of what is explained is zero"
        dead = ", or every head is dead" if method.layers else ""
        warnings.warn(f"{method.name} has no map for some images (NaN): {zero}{dead}", stacklevel=3)


#: Graphs of the model with fresh weights by seed, for graphs that are in use.
_UNTRAINED: WeakKeyDictionary[Graphs, dict[int, Graphs]] = WeakKeyDictionary()


def _untrained(graphs: Graphs, seed: int) -> Graphs:
    """The same layers for the same images, of the model with fresh weights."""
    from ..models.untraining import untrained  # which imports timm

    by_seed = _UNTRAINED.setdefault(graphs, {})
    if seed not in by_seed:
        by_seed[seed] = capture(untrained(graphs.model, seed), graphs.images, graphs.indices)
    return by_seed[seed]


def _framing(graphs: Graphs) -> Framing | None:
    """Where the model's input lies in an image, if the images have that input's size."""
    from ..vits.preprocessing import Framing, data_config

    try:
        config = data_config(graphs.model)
    except ValueError:
        return None
    same = tuple(graphs.images.shape[-2:]) == tuple(config["input_size"][-2:])
    return Framing(config) if same else None


def require_class(graphs: Graphs, method: Method, target: Target) -> None:
    """Refuse a method of a class for a model without a classifier, if no target is given.

    Raises:
        MethodNotApplicable: says what to pass as ``target``.
    """
    if method.class_specific and graphs.output == "embedding" and target is None:
        raise MethodNotApplicable(
            f"{method.name} explains a class, and the model has no classifier; give "
            "target='embedding' to explain its features, or pass a model with a classifier"
        )


def _heads(graphs: Graphs, layers: tuple[int, ...], head: int | None) -> tuple[int, ...]:
    """Indices of the used heads; if layers differ in their number, of the layer with most."""
    counts = [graphs.layer(i).operator.shape[1] for i in layers]
    if head is None:
        return tuple(range(max(counts)))
    words = "a whole number, or None for the mean over heads"
    return (index_of(head, min(counts), "head", words),)


def _by_head(result: Scored, layer: Layer, method: Method) -> Tensor:
    """Scores (B, H, N), NaN in heads without an edge: visits and PageRank are uniform there.

    A method that scores layers counts as one head.
    """
    batch, heads, number = layer.operator.shape
    if not method.heads:
        return _scores(result, (batch, number), method)[:, None]
    scores = _scores(result, (batch, heads, number), method)
    return scores.masked_fill(is_edgeless(layer.operator)[..., None], torch.nan)


def _scores(result: Scored, shape: tuple[int, ...], method: Method) -> Tensor:
    """The scores in the result of a method, which must have that shape."""
    scores = result.scores if isinstance(result, Centrality) else result
    scores = scores.vector if isinstance(scores, Perron) else scores
    if scores.shape != shape:
        raise ValueError(
            f"{method.name} must return scores of shape {shape}, for scope {method.scope!r}, got "
            f"{tuple(scores.shape)}"
        )
    return scores


def _mean_over_heads(scores: Tensor, head: int | None, graphs: Graphs) -> Tensor:
    """(B, H, N) to (B, N): each head scaled to sum 1 over the patches, dead heads left out."""
    if head is not None:
        scores = scores[:, [head]]
    total = scores[..., graphs.num_prefix_tokens :].sum(-1, keepdim=True)
    return (scores / total.where(total > 0, torch.nan)).nanmean(1)


def _diagnostics(results: Sequence[Scored]) -> dict[str, Tensor]:
    names = DIAGNOSTICS.get(type(results[0]), ())
    return {name: _stack([getattr(result, name) for result in results]) for name in names}


def _stack(per_layer: list[Tensor], fill: float = torch.nan) -> Tensor:
    """(B, H) per layer to (L, B, H), with ``fill`` for heads that a layer lacks.

    If a layer lacks heads and ``fill`` is NaN, bool becomes float.
    """
    most = max(x.shape[-1] for x in per_layer)
    if all(x.shape[-1] == most for x in per_layer):
        return torch.stack(per_layer)
    wide = [x if x.is_floating_point() or not math.isnan(fill) else x.float() for x in per_layer]
    return torch.stack([pad(x, (0, most - x.shape[-1]), value=fill) for x in wide])


def _layers(layer: LayerChoice, depth: int) -> tuple[int, ...]:
    """Indices of the layers that a choice stands for."""
    if layer == "mean":
        return tuple(range(depth))
    return (layer_index(layer, depth, "a whole number, 'last' or 'mean'"),)
