"""A data set some samples at a time; an image that cannot be read is told of and left out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..data import ImageError
from ..data.samples import ImageData, Sample

__all__ = ["SampleBatch", "sample_batches", "warn"]

#: Takes the sentence that says which image could not be read, and why.
OnSkip = Callable[[str], None]


class SampleBatch(NamedTuple):
    """Samples, and of how many images they are what could be read."""

    samples: list[Sample]
    images: int


def warn(message: str) -> None:
    """Warn of an image that is left out."""
    warnings.warn(f"left out: {message}", stacklevel=2)


def sample_batches(data: ImageData, size: int, on_skip: OnSkip = warn) -> Iterator[SampleBatch]:
    """A data set in its order, ``size`` images at a time.

    Args:
        data: the images.
        size: images a batch, at least 1.
        on_skip: called with a sentence for an image that cannot be read; may raise to stop.
    """
    for start in range(0, len(data), size):
        indices = range(start, min(start + size, len(data)))
        samples = []
        for i in indices:
            try:
                samples.append(data[i])
            except ImageError as error:
                on_skip(str(error))
        yield SampleBatch(samples, len(indices))
