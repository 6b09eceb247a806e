"""Work done on as many items at a time as memory takes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import torch

__all__ = ["Halving", "out_of_memory"]

#: What the errors say that have no type of their own.
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
    """A function of several items, halved whenever memory runs out.

    Called with any number of items it yields the function's results for one part after the other.
    A part that does not fit is done again in halves, and no later part is larger.

    Args:
        function: of a sequence of at least one item.
        size: items at a time, at first.
        what: the items' name, for the warning.

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
            # Out of the handler, where the error no longer holds on to what filled the memory.
            torch.cuda.empty_cache()
            warnings.warn(
                f"out of memory with {len(part)} {self.what} at a time: going on with {self.size}",
                stacklevel=2,
            )


def out_of_memory(error: Exception) -> bool:
    """Whether memory ran out; libraries say so by a RuntimeError like any other."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return any(words in str(error) for words in FULL)
