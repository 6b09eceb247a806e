"""The best, the median and the worst image of every method, drawn anew with their maps.

A run keeps no pixels. Its images are read again, its models run again, and both are known to be the
same by their fingerprints.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from torch import nn

from ..data import ImageError
from ..data.matching import first_synonym
from ..data.samples import ImageData, Sample
from ..drawing.heatmap import overlay, whole
from ..evaluate import fingerprint, labelled
from ..evaluate.batches import Batch, MapOptions, Subject
from ..evaluate.registry import Measure
from ..evaluate.rows import Row
from ..evaluate.tables import by_model, unique
from ..evaluate.values import Images
from ..vits import class_names
from ..vits.preprocessing import frame_boxes, visible_region
from .writing import Report

__all__ = ["Gallery", "RankedImage", "check_same", "draw_gallery"]

#: Longer side of a picture, at most, and pixels of all pictures together, about half a byte each.
SIDE, PIXELS = 224, 8_000_000
QUALITY = 80


class RankedImage(NamedTuple):
    """One image with a map.

    Attributes:
        rank: ``"best"``, ``"median"`` or ``"worst"``.
        image: its id.
        value: of the measure that ranks, in percent.
        facts: label and prediction in words.
        plain: index of the image among those of the gallery.
        overlay: data URI; empty where there is no map.
        boxes: x, y, width and height in percent of the picture.
        aspect: width over height.
    """

    rank: str
    image: str
    value: str
    facts: str
    plain: int
    overlay: str
    boxes: list[tuple[float, float, float, float]]
    aspect: float


@dataclass(frozen=True)
class Gallery:
    """Pictures of a run.

    Attributes:
        measure: what ranks them.
        models: model → method → pictures, the best first.
        plain: data URIs of the images without maps.
    """

    measure: str
    models: dict[str, dict[str, list[RankedImage]]]
    plain: list[str]


def check_same(config: Mapping[str, Any], models: Mapping[str, nn.Module], data: ImageData) -> None:
    """Raise a ValueError if models or images are not those of a run.

    Args:
        config: of the run.
        models: by their names in the configuration.
        data: the images.
    """
    if data.fingerprint() != config["data"]["fingerprint"]:
        raise ValueError(
            f"{data.name!r} ({len(data)} images) is not the data of the run, "
            f"{config['data']['name']!r} ({config['data']['images']} images): its fingerprint is "
            f"{data.fingerprint()}, not {config['data']['fingerprint']}"
        )
    for name, model in models.items():
        theirs = config["models"].get(name, {}).get("weights")
        if fingerprint(model) != theirs:
            raise ValueError(f"the weights of {name!r} are not those of the run, {theirs}")


def draw_gallery(
    report: Report, config: Mapping[str, Any], models: Mapping[str, nn.Module], data: ImageData
) -> Gallery:
    """Rank every method's images by the first measure that judges maps, and draw three of each.

    Args:
        report: of the run's rows.
        config: of the run.
        models: model as rows name it → module, of one of its checkpoints.
        data: the images.

    Raises:
        ValueError: if no measure of the run judges maps, or an image of it is not in ``data``.
    """
    judging = [m for m in report.measures.values() if m.field and m.judged]
    if not judging:
        raise ValueError("a run without morf or boxes ranks no images")
    measure = judging[0]
    rows = measure.ranked_rows(report.rows[measure.name])
    stored = config["measures"][measure.name]
    names = {f.name for f in fields(MapOptions)} & stored.keys()  # older runs lack some
    options = MapOptions(**{name: stored[name] for name in names})
    picks = {
        (model, method): _picks([row for row in of_model if row["method"] == method], measure)
        for model, of_model in by_model(rows).items()
        if model in models
        for method in unique(of_model, "method")
    }
    wanted = {image for ranked in picks.values() for image in ranked}
    asked = config.get("source", {}).get("labels", "auto")
    images = {name: labelled(model, data, [options], asked).data for name, model in models.items()}
    samples = {
        name: _samples(relabelled, unique(rows, "image"), wanted)
        for name, relabelled in images.items()
    }
    row_of = {(row["model"], row["method"], row["image"]): row for row in reversed(rows)}
    count = sum(map(len, picks.values()))
    side = min(SIDE, math.isqrt(PIXELS // max(1, count)))
    subjects = {name: Subject(model) for name, model in models.items()}
    plain: dict[str, int] = {}
    drawn: dict[str, dict[str, list[RankedImage]]] = {}
    for (model, method), ranked in picks.items():
        batch = Batch(subjects[model], [samples[model][image] for image in ranked])
        maps = batch.explanation(method, options).maps.cpu().numpy()
        pictures = []
        for sample, scores, (rank, value) in zip(batch.samples, maps, ranked.values(), strict=True):
            row = row_of[model, method, sample.image_id]
            pixels = _fitted(visible_region(models[model], sample.image), side)
            pictures.append(
                RankedImage(
                    rank,
                    sample.image_id,
                    format(measure.scale * value, measure.spec),
                    _facts(row, models[model], images[model].classes),
                    plain.setdefault(_uri(pixels), len(plain)),
                    _uri(overlay(pixels, scores, region=whole(pixels)))
                    if np.isfinite(scores).all()
                    else "",
                    _boxes(batch, sample),
                    pixels.shape[1] / pixels.shape[0],
                )
            )
        drawn.setdefault(model, {})[method] = pictures
    return Gallery(measure.heading, drawn, list(plain))


def _picks(rows: Sequence[Row], measure: type[Measure]) -> dict[str, tuple[str, float]]:
    """Image → rank and value: the best, the median (the lower of two) and the worst."""
    images = Images.of(rows)
    values = images.values(rows, measure.value_of).of_images
    falling = -values if measure.higher_is_better else values
    order = [i for i in np.argsort(falling, kind="stable") if not np.isnan(values[i])]
    places = {"best": 0, "worst": len(order) - 1, "median": len(order) // 2} if order else {}
    chosen = {order[place]: rank for rank, place in reversed(places.items())}
    ranks = ("best", "median", "worst")
    return {
        images.names[i]: (rank, float(values[i]))
        for i, rank in sorted(chosen.items(), key=lambda pick: ranks.index(pick[1]))
    }


def _samples(data: ImageData, order: Sequence[str], wanted: set[str]) -> dict[str, Sample]:
    """Samples by id.

    Args:
        data: the images.
        order: ids of images of the run in the data's order. Some of the data may be missing, so
            that an image's place in the data is its place in ``order`` or after it.
        wanted: ids.
    """
    found = {}
    for place, image in enumerate(order):
        if image not in wanted:
            continue
        for i in range(place, len(data)):
            try:
                sample = data[i]
            except ImageError:
                continue
            if sample.image_id == image:
                found[image] = sample
                break
        else:
            raise ValueError(f"image {image!r} of the run cannot be read any more")
    return found


def _fitted(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """The picture with its longer side as long as said."""
    scale = side / max(pixels.shape[:2])
    size = [max(1, round(scale * length)) for length in pixels.shape[1::-1]]
    how = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(pixels, size, interpolation=how), dtype=np.uint8)


def _uri(pixels: NDArray[np.uint8]) -> str:
    """A picture as a data URI, in WebP."""
    _, encoded = cv2.imencode(".webp", pixels[..., ::-1], [cv2.IMWRITE_WEBP_QUALITY, QUALITY])
    return f"data:image/webp;base64,{base64.b64encode(encoded.tobytes()).decode()}"


def _boxes(batch: Batch, sample: Sample) -> list[tuple[float, float, float, float]]:
    """Boxes that the model sees, in percent of its frame: x, y, width, height."""
    height, width = batch.images.shape[-2:]
    edges = frame_boxes(batch.subject.model, sample.boxes, *sample.image.shape[:2]).numpy()
    shares = 100 * edges / np.array([width, height, width, height])
    return [
        (round(x0, 2), round(y0, 2), round(x1 - x0, 2), round(y1 - y0, 2))
        for x0, y0, x1, y1 in shares.tolist()
        if x1 > x0 and y1 > y0
    ]


def _facts(row: Row, model: nn.Module, classes: Sequence[str]) -> str:
    """Such as "predicted 8 (93%), labelled 3".

    Args:
        row: of the image.
        model: names its classes, or not.
        classes: of the data, by the labels that are the model's.
    """
    names = [first_synonym(name) for name in class_names(model) or classes]

    def name(index: int) -> str:
        return names[index] if index < len(names) else f"class {index}"

    label = row.get("label")
    if row.get("predicted") is None:  # no classifier, or a measure that does not say
        return "" if label is None else f"labelled {name(label)}"
    predicted = f"predicted {name(row['predicted'])}"
    if "p0" in row and row["target"] == row["predicted"]:
        predicted += f" ({row['p0']:.0%})"
    if label is None:
        return predicted
    if label == row["predicted"]:
        return f"{predicted}, as labelled"
    return f"{predicted}, labelled {name(label)}"
