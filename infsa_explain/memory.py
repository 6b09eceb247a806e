"""Batches that shrink when memory runs out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import torch

__all__ = ["Halving", "out_of_memory"]

#: Texts of out-of-memory errors that have no exception type of their own.
FULL = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "std::bad_alloc",
    "STATUS_ALLOC_FAILED",
)

Item = TypeVar("Item")
Result = TypeVar("Result")


class Halving(Generic[Item, Result]):
    """Applies a function to items in batches, and halves the batch size when memory runs out.

    Calling it yields the function's result for each batch. A batch that does not fit is tried again
    at half the size, which later batches keep.

    Args:
        function: takes a sequence of at least one item.
        size: initial batch size.
        what: plural name of the items, for the warning.

    >>> list(Halving(sum, 2, "numbers")([1, 2, 3]))
    [3, 3]
    """

    def __init__(self, function: Callable[[Sequence[Item]], Result], size: int, what: str) -> None:
        self.function, self.size, self.what = function, size, what

    def __call__(self, items: Sequence[Item]) -> Iterator[Result]:
        start = 0
        while start < len(items):
            part = items[start : start + self.size]
            try:
                result = self.function(part)
            except (MemoryError, RuntimeError) as error:
                if len(part) == 1 or not out_of_memory(error):
                    raise
                self.size = len(part) // 2
            else:
                yield result
                start += len(part)
                continue
            # Outside the handler the error no longer keeps the large tensors alive.
            torch.cuda.empty_cache()
            warnings.warn(
                f"out of memory with {len(part)} {self.what} at a time: going on with {self.size}",
                stacklevel=2,
            )


def out_of_memory(error: Exception) -> bool:
    """Whether an error means that memory ran out; libraries often raise a plain RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return any(words in str(error) for words in FULL)
