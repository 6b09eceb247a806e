"""Range checks for numbers that callers pass."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, NamedTuple

__all__ = ["MANY", "SEEDS", "Range", "count"]

#: Upper limit for counts of images, layers, epochs and repeats.
MANY = 1_000_000


class Range(NamedTuple):
    """An interval of numbers, closed by default.

    Attributes:
        low: lower end.
        high: upper end.
        open_low: exclude ``low``.
        open_high: exclude ``high``.
        whole: accept only integers.
    """

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False
    whole: bool = False

    def require(self, name: str, value: Any) -> None:
        """Check a value.

        Args:
            name: of the argument, for the error.
            value: what was passed.

        Raises:
            ValueError: if the value is not a number, is NaN, or is out of range.

        >>> Range(0, 1, open_high=True).require("drop_path", 1.0)
        Traceback (most recent call last):
        ValueError: drop_path must be a number in [0, 1), got 1.0
        """
        kind = Integral if self.whole else Real
        sound = isinstance(value, kind) and not isinstance(value, bool) and not math.isnan(value)
        low = sound and (value > self.low if self.open_low else value >= self.low)
        high = sound and (value < self.high if self.open_high else value <= self.high)
        if low and high:
            return
        if self.whole:
            wanted = f"a whole number from {self.low} to {self.high}"
        else:
            left, right = "(" if self.open_low else "[", ")" if self.open_high else "]"
            wanted = f"a number in {left}{self.low:g}, {self.high:g}{right}"
        raise ValueError(f"{name} must be {wanted}, got {value!r:.40}")


def count(least: int = 1, most: int = MANY) -> Range:
    """The range of whole numbers from ``least`` to ``most``, both included.

    >>> count().require("epochs", 0)
    Traceback (most recent call last):
    ValueError: epochs must be a whole number from 1 to 1000000, got 0
    """
    return Range(least, most, whole=True)


#: Seeds that all random number generators accept.
SEEDS = count(0, 2**63 - 1)
