"""A data set some samples at a time; an image that cannot be read is told of and left out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

from ..data import ImageError
from ..data.samples import ImageData, Sample

__all__ = ["sample_batches", "warn"]

#: Takes the number of images just done, those left out among them.
OnImage = Callable[[int], None]
#: Takes the sentence that says which image could not be read, and why.
OnSkip = Callable[[str], None]


def warn(message: str) -> None:
    """Warn of an image that is left out."""
    warnings.warn(f"left out: {message}", stacklevel=2)


def sample_batches(
    data: ImageData, size: int, on_image: OnImage, on_skip: OnSkip = warn
) -> Iterator[list[Sample]]:
    """A data set in its order, ``size`` images at a time, less those that cannot be read.

    Args:
        data: the images.
        size: images a batch, at least 1.
        on_image: called with the number of images of a batch when it has been dealt with, which
            is when the next is asked for.
        on_skip: called with a sentence for an image that cannot be read; may raise to stop.

    Yields:
        Samples, at least one.
    """
    for start in range(0, len(data), size):
        indices = range(start, min(start + size, len(data)))
        samples = []
        for i in indices:
            try:
                samples.append(data[i])
            except ImageError as error:
                on_skip(str(error))
        if samples:
            yield samples
        on_image(len(indices))
