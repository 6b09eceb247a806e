"""Numbers that a caller gives, checked against the range that makes sense."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, NamedTuple

__all__ = ["MANY", "SEEDS", "Range", "count"]

#: No count of images, layers, epochs or repeats is larger.
MANY = 1_000_000


class Range(NamedTuple):
    """The numbers from ``low`` to ``high``, both included unless told.

    Attributes:
        low: the smallest number.
        high: the largest number.
        above: ``low`` itself is out of range.
        below: ``high`` itself is out of range.
        whole: only whole numbers are in range.
    """

    low: float
    high: float
    above: bool = False
    below: bool = False
    whole: bool = False

    def require(self, name: str, value: Any) -> None:
        """Refuse a value that is no number, NaN, or out of range.

        Raises:
            ValueError: names the argument, the range and the value.

        >>> Range(0, 1, below=True).require("drop_path", 1.0)
        Traceback (most recent call last):
        ValueError: drop_path must be a number in [0, 1), got 1.0
        """
        kind = Integral if self.whole else Real
        sound = isinstance(value, kind) and not isinstance(value, bool) and not math.isnan(value)
        low = sound and (value > self.low if self.above else value >= self.low)
        high = sound and (value < self.high if self.below else value <= self.high)
        if low and high:
            return
        if self.whole:
            wanted = f"a whole number from {self.low} to {self.high}"
        else:
            left, right = "(" if self.above else "[", ")" if self.below else "]"
            wanted = f"a number in {left}{self.low:g}, {self.high:g}{right}"
        raise ValueError(f"{name} must be {wanted}, got {value!r:.40}")


def count(least: int = 1, most: int = MANY) -> Range:
    """Whole numbers from ``least`` to ``most``.

    >>> count().require("epochs", 0)
    Traceback (most recent call last):
    ValueError: epochs must be a whole number from 1 to 1000000, got 0
    """
    return Range(least, most, whole=True)


#: Seeds that every generator of random numbers takes.
SEEDS = count(0, 2**63 - 1)
