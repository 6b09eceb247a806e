"""How time grows with the number of tokens: its local exponent, and its extrapolation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import ndtri, stdtrit

from ..ranges import Range, count

__all__ = ["Estimate", "exponent", "extrapolate", "ratio"]

#: Number of sizes, the largest ones, that an exponent is fitted to.
FITTED = 3
#: Probability that an interval contains the value.
LEVEL = 0.95
#: The standard deviation of a relative measurement error is between these two.
LEAST_ERROR, LARGEST_ERROR = 0.03, 0.08
#: A larger relative error of the fit is not of measurement: the overhead is not negligible.
OVERHEAD = 1.5 * LARGEST_ERROR
#: In 95 of 100 cases, two times with the largest error differ by at most this factor.
SLACK = math.exp(float(ndtri(0.5 + LEVEL / 2)) * math.sqrt(2) * LARGEST_ERROR)
Array = NDArray[np.float64]
#: Ranges of numbers of tokens, and of seconds.
TOKENS, SECONDS = count(1, 10**12), Range(0, math.inf, open_low=True, open_high=True)


@dataclass(frozen=True)
class Estimate:
    """A positive number with its 95% interval.

    Attributes:
        value: the best estimate.
        low, high: the interval; both equal ``value`` for a number that was measured.
    """

    value: float
    low: float
    high: float

    @classmethod
    def measured(cls, value: float) -> Estimate:
        """A measured number, which has no interval."""
        return cls(value, value, value)

    @property
    def interval(self) -> tuple[float, float] | tuple[None, None]:
        """The interval, or twice None for a measured number."""
        return (None, None) if self.low == self.high else (self.low, self.high)


def exponent(times: Mapping[int, float]) -> float | None:
    """The b in seconds ∝ tokensᵇ, by a least-squares line through the logarithms.

    It describes growth near the largest measured sizes. It is not used for extrapolation: the
    exponent of a quadratic mechanism is below 2 while its linear part matters, and rises to 2.

    Args:
        times: number of tokens → seconds; the largest three are used.

    Returns:
        The exponent, or None for fewer than two sizes.

    Raises:
        ValueError: if a number is not positive and finite.

    >>> round(exponent({100: 1.0, 200: 4.0, 400: 16.0}), 6)
    2.0
    """
    _require(times)
    points = sorted(times.items())[-FITTED:]
    if len(points) < 2:
        return None
    tokens, seconds = np.log(points).T
    return float(np.polyfit(tokens, seconds, 1)[0])


def extrapolate(times: Mapping[int, float], tokens: int) -> Estimate | None:
    """Seconds at a number of tokens N, by a fit of t(N) = a N + b N² with a, b ≥ 0.

    The coefficients minimise the sum of squared relative errors. A constant overhead c > 0 is added
    where the errors without it exceed 12%, which is more than measurements have: on a GPU, or with
    a tiny model, it may be most of the time of small sizes.

    The interval predicts the result of one measurement at N. It is Student's t times the standard
    error, from the residuals of the fit, with as many degrees of freedom as there are sizes beyond
    coefficients; residuals below 3% count as 3%. It is cut to what the form allows: N/Nmax to
    (N/Nmax)² times the time at the largest measured size Nmax, give or take a quarter, by which two
    times with errors of 8% may differ. An overhead, which is at most the shortest time, does not
    grow. Without degrees of freedom these limits are the interval.

    Args:
        times: number of tokens → measured seconds.
        tokens: number of tokens to extrapolate to.

    Returns:
        Seconds with their 95% interval, or None for fewer than two sizes.

    Raises:
        ValueError: if a number is not positive and finite.

    >>> times = {n: 1e-3 * n + 1e-6 * n**2 for n in (200, 500, 1000, 2000, 4000)}
    >>> seconds = extrapolate(times, 16_000)
    >>> f"{seconds.value:.1f} [{seconds.low:.1f}, {seconds.high:.1f}]"
    '272.0 [235.4, 308.6]'
    """
    _require(times)
    TOKENS.require("tokens", tokens)
    if len(times) < 2:
        return None
    sizes, seconds = np.array(sorted(times.items()), dtype=np.float64).T
    growth, largest = tokens / sizes[-1], seconds[-1]
    limits = [largest * growth, largest * growth**2]
    fit = _fit(sizes, seconds, tokens, [1, 2])
    if fit.error > OVERHEAD:
        with_overhead = _fit(sizes, seconds, tokens, [0, 1, 2])
        if with_overhead.coefficients[0] > 0:
            fit = with_overhead
            overhead = min(seconds.min() * SLACK, largest)  # no time is below the overhead
            limits.append(overhead + (largest - overhead) * growth)
    lowest, highest = float(min(limits)) / SLACK, float(max(limits)) * SLACK
    value = min(max(fit.value, lowest), highest)
    if fit.freedom < 1:
        return Estimate(value, lowest, highest)
    error = math.hypot(fit.spread, value) * max(fit.error, LEAST_ERROR)
    margin = float(stdtrit(fit.freedom, 0.5 + LEVEL / 2)) * error
    return Estimate(value, max(lowest, value - margin), min(highest, value + margin))


def ratio(numerator: Estimate, denominator: Estimate) -> Estimate:
    """The quotient of two estimates, whose errors are taken as independent.

    The distances from the values to the ends of their intervals are combined as the root of the sum
    of squares, on the logarithmic scale and each side by itself (MOVER, Zou & Donner 2008,
    doi:10.1002/sim.3095).

    Args:
        numerator: an estimate.
        denominator: another one.

    Returns:
        The quotient with its 95% interval.

    >>> half = ratio(Estimate(1.0, 0.5, 2.0), Estimate.measured(2.0))
    >>> half.value, round(half.low, 6), round(half.high, 6)
    (0.5, 0.25, 1.0)
    """
    value = numerator.value / denominator.value
    down = math.hypot(
        math.log(numerator.value / numerator.low), math.log(denominator.high / denominator.value)
    )
    up = math.hypot(
        math.log(numerator.high / numerator.value), math.log(denominator.value / denominator.low)
    )
    return Estimate(value, value * math.exp(-down), value * math.exp(up))


@dataclass(frozen=True)
class _Fit:
    """A least-squares fit: its coefficients and its value at N, the standard error of that value as
    a multiple of the relative error of a time, that error by the residuals, degrees of freedom.
    """

    coefficients: Array
    value: float
    spread: float
    error: float
    freedom: int


def _fit(sizes: Array, seconds: Array, tokens: int, powers: Sequence[int]) -> _Fit:
    """Fit a sum of powers of the number of tokens, with coefficients of at least 0."""
    largest = sizes[-1]  # all sizes are divided by it, so that the terms are of one magnitude
    terms = (sizes[:, None] / largest) ** powers / seconds[:, None]
    at_tokens = (tokens / largest) ** np.array(powers, dtype=np.float64)
    coefficients, residual = nnls(terms, np.ones(len(sizes)))
    freedom = len(sizes) - len(powers)
    return _Fit(
        coefficients=coefficients,
        value=float(coefficients @ at_tokens),
        spread=float(np.linalg.norm(at_tokens @ np.linalg.pinv(terms))),
        error=float(residual) / math.sqrt(max(freedom, 1)),
        freedom=freedom,
    )


def _require(times: Mapping[int, float]) -> None:
    for tokens, seconds in times.items():
        TOKENS.require("tokens", tokens)
        SECONDS.require(f"times[{tokens}]", seconds)
