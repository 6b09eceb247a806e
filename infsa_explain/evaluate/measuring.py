"""Model × data × measures: rows, one or more an image and measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from ..data.matching import Labels
from ..data.samples import ImageData, Sample
from ..memory import Halving
from .batches import Batch, OnImage, OnSkip, Subject, sample_batches, warn
from .labelling import labelled
from .registry import Measure
from .rows import Row

__all__ = ["measure"]


def measure(
    model: nn.Module,
    data: ImageData,
    *measures: Measure,
    name: str = "model",
    checkpoint: str = "",
    batch_size: int = 16,
    labels: Labels = "auto",
    on_row: Callable[[Row], None] = lambda row: None,
    on_image: OnImage = lambda images: None,
    on_skip: OnSkip = warn,
) -> list[Row]:
    """Measure a model on every image of a data set.

    All measures of a batch share its pass through the model and its maps. Out of memory, the batch
    is halved and done again.

    Args:
        model: a supported ViT in eval mode.
        data: the images.
        measures: what to measure, such as ``Morf(steps=24)``.
        name: of the model, in the rows.
        checkpoint: tells apart several trained from different seeds, in the rows; reports average
            them.
        batch_size: images at a time.
        labels: how the images' labels become the model's, as
            :func:`infsa_explain.data.match_labels` has it.
        on_row: called with every row as it is ready.
        on_image: called with the number of images just done, those left out among them.
        on_skip: called with a sentence for an image that cannot be read, which is left out.

    Returns:
        Rows with ``measure``, ``model``, ``checkpoint``, ``image``, and what the measure says. NaN
        is None. A row has ``cluster`` if its image is one of several that are not independent, and
        ``no_map``, true, if a method has no map of the image, which counts as a constant map.

    Raises:
        ValueError: for options out of range, a method that does not suit the model, images that
            lack what is measured, such as boxes, or labels that a measure needs and that are not
            the model's.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    for chosen in measures:
        chosen.check(model)
        chosen.check_data(data)
    data = labelled(model, data, measures, labels).data
    subject = Subject(model)

    def of_samples(samples: Sequence[Sample]) -> list[Row]:
        batch = Batch(subject, samples)
        rows = [
            {"measure": chosen.name, "model": name, "checkpoint": checkpoint, **row}
            for chosen in measures
            for row in chosen.rows(batch)
        ]
        clusters = {sample.image_id: sample.cluster for sample in samples}
        for row in rows:
            if (cluster := clusters[row["image"]]) is not None:
                row["cluster"] = cluster
            if row["image"] in batch.missing.get(row.get("method", ""), ()):
                row["no_map"] = True
        return rows

    of_as_many_as_fit = Halving(of_samples, batch_size, "images")
    rows: list[Row] = []
    for samples in sample_batches(data, batch_size, on_image, on_skip):
        for part in of_as_many_as_fit(samples):
            for row in part:
                rows.append(row)
                on_row(row)
    return rows
