"""Deletion curves of maps: model × data × methods, one row per image, order and method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from infsa_metrics import FILLS, deletion_curve, pixel_fill
from torch import Tensor, nn

from ..data.samples import ImageData, Sample
from ..graphs import attention_kinds, capture
from ..methods import METHODS, MethodNotApplicable, applicable_methods, get_method
from ..methods.explaining import explain_graphs
from ..models import untrained
from ..preprocessing import data_config, preprocess
from ..tokens import drop_fill
from .runs import Row

__all__ = ["MorfOptions", "evaluate_morf"]

#: Before a method's name: the same map, from the model untrained.
UNTRAINED = "untrained-"
Orders = tuple[Literal["morf", "lerf"], ...]


@dataclass(frozen=True)
class MorfOptions:
    """What decides the numbers of a deletion experiment.

    Attributes:
        methods: names of map methods; None for all that suit the model. ``untrained-visits``, and
            so with any name, is the control that takes the map from the model untrained.
        layer: an index, ``"last"`` or ``"mean"``.
        head: an index, or None for the mean over heads.
        gamma: in place of the model's own γ.
        fill: what removed patches become: ``"mean"``, ``"black"``, ``"blur"``, ``"noise"``, or
            ``"drop"``. Numbers with different fills are not comparable.
        steps: points of the curve, denser early; None for one patch a step.
        target: the class that is followed: ``"predicted"`` on the clean image, or ``"label"``.
        floor: images whose clean probability is not above it have no AOC and are counted apart.
        seed: of the noise fill.
        batch_size: masked images a forward pass.
        amp: bfloat16 autocast.
    """

    methods: tuple[str, ...] | None = None
    layer: int | str = "last"
    head: int | None = None
    gamma: float | None = None
    fill: str = "mean"
    steps: int | None = None
    target: Literal["predicted", "label"] = "predicted"
    floor: float = 0.0
    seed: int = 0
    batch_size: int = 64
    amp: bool = False


def evaluate_morf(
    model: nn.Module,
    data: ImageData,
    options: MorfOptions | None = None,
    *,
    name: str = "model",
    on_row: Callable[[Row], None] = lambda row: None,
    on_image: Callable[[int], None] = lambda images: None,
) -> list[Row]:
    """Deletion curves of every method on every image, most and least relevant first.

    Args:
        model: a supported ViT in eval mode.
        data: the images.
        options: see :class:`MorfOptions`.
        name: of the model, in the rows.
        on_row: called with every row as it is ready.
        on_image: called with the number of images just done.

    Returns:
        Rows with ``image``, ``model``, ``method``, ``order``, ``layers``, ``fill``, ``target``,
        ``label``, ``predicted``, ``p0``, ``aoc``, ``auc``, ``tied`` (share of patches), and
        ``fractions`` and ``probabilities`` of the curve. NaN is None.

    Raises:
        ValueError: for options out of range, or a method that does not suit the model.
    """
    options = options or MorfOptions()
    methods = choose_methods(model, options.methods)
    predict = _predictor(model, options)
    needs_fresh = any(method.startswith(UNTRAINED) for method in methods)
    fresh = untrained(model, options.seed) if needs_fresh else None
    rows: list[Row] = []
    chunk = 16
    for start in range(0, len(data), chunk):
        samples = [data[i] for i in range(start, min(start + chunk, len(data)))]
        for row in _rows(model, fresh, samples, methods, predict, options, name):
            rows.append(row)
            on_row(row)
        on_image(len(samples))
    return rows


def choose_methods(model: nn.Module, methods: Sequence[str] | None) -> list[str]:
    """The methods asked for, checked, or all that suit the model.

    Raises:
        ValueError: for a name that is unknown or a method that does not suit the model.
    """
    kinds = attention_kinds(model)
    if methods is None:
        return [*applicable_methods(kinds), f"{UNTRAINED}visits"]
    for method in methods:
        unsuited = kinds - get_method(method.removeprefix(UNTRAINED)).kinds
        if unsuited:
            raise MethodNotApplicable(
                f"method {method!r} is not for {', '.join(sorted(unsuited))} attention; "
                f"this model takes {', '.join(applicable_methods(kinds))}"
            )
    return list(dict.fromkeys(methods))


def _rows(
    model: nn.Module,
    fresh: nn.Module | None,
    samples: list[Sample],
    methods: list[str],
    predict: Callable[[Tensor, Tensor], Tensor],
    options: MorfOptions,
    name: str,
) -> Iterable[Row]:
    images = preprocess(model, [sample.image for sample in samples])
    seeds = [sample.image_id for sample in samples]
    graphs = capture(model, images)
    predicted = graphs.logits.argmax(-1).cpu()
    targets = predicted
    if options.target == "label":
        unlabelled = [s.image_id for s in samples if s.label is None]
        if unlabelled:
            raise ValueError(f"target='label', but {unlabelled[0]} has no label")
        targets = torch.tensor([s.label for s in samples])
    untrained_graphs = graphs if fresh is None else capture(fresh, images)
    for method in methods:
        explanation = explain_graphs(
            untrained_graphs if method.startswith(UNTRAINED) else graphs,
            METHODS[method.removeprefix(UNTRAINED)],
            layer=options.layer,
            head=options.head,
            gamma=options.gamma,
            seeds=seeds,
        )
        # Where every head is dead there is no map: all patches tie, and the draw decides.
        maps = explanation.maps.nan_to_num(nan=0.0)
        for order in ("morf", "lerf"):
            curve = deletion_curve(
                predict,
                images,
                targets,
                maps,
                order=order,
                steps=options.steps,
                seeds=seeds,
                batch_size=options.batch_size,
            )
            aoc, auc = curve.aoc(options.floor), curve.auc()
            for i, sample in enumerate(samples):
                yield {
                    "image": sample.image_id,
                    "model": name,
                    "method": method,
                    "order": order,
                    "layers": list(explanation.layers),
                    "head": options.head,
                    "fill": options.fill,
                    "target": int(targets[i]),
                    "label": sample.label,
                    "predicted": int(predicted[i]),
                    "p0": float(curve.probabilities[i, 0]),
                    "aoc": _number(aoc[i]),
                    "auc": _number(auc[i]),
                    "tied": float(curve.tied[i]),
                    "fractions": [round(x, 6) for x in curve.fractions.tolist()],
                    "probabilities": [round(x, 6) for x in curve.probabilities[i].tolist()],
                }


def _number(value: Tensor) -> float | None:
    return float(value) if value.isfinite() else None


def _predictor(model: nn.Module, options: MorfOptions) -> Callable[[Tensor, Tensor], Tensor]:
    """``predict_masked`` for the chosen fill."""
    if options.fill == "drop":
        predict = drop_fill(model)
    elif options.fill in FILLS:
        config = data_config(model)
        predict = pixel_fill(
            model, options.fill, mean=config["mean"], std=config["std"], seed=options.seed
        )
    else:
        raise ValueError(f"unknown fill {options.fill!r}; one of {', '.join([*FILLS, 'drop'])}")
    if not options.amp:
        return predict

    def autocast(images: Tensor, removed: Tensor) -> Tensor:
        with torch.autocast(images.device.type, dtype=torch.bfloat16):
            return predict(images, removed)

    return autocast
