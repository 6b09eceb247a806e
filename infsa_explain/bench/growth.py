"""How time grows with the number of tokens: its local exponent, and its extrapolation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
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
#: In 95 of 100 cases, two times with the largest error differ by at most this factor.
SLACK = math.exp(float(ndtri(0.5 + LEVEL / 2)) * math.sqrt(2) * LARGEST_ERROR)
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

    The coefficients minimise the sum of squared relative errors. The interval predicts the result
    of one measurement at N. It is Student's t with n − 2 degrees of freedom times the standard
    error, from the residuals of the fit; residuals below 3% count as 3%. It is cut to what the form
    allows: N/Nmax to (N/Nmax)² times the time at the largest measured size Nmax, give or take a
    quarter, by which two times with errors of 8% may differ. With two sizes these limits are the
    interval.

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
    scaled = sizes / sizes[-1]
    growth = tokens / sizes[-1]
    terms = np.stack([scaled, scaled**2], 1) / seconds[:, None]
    at_tokens = np.array([growth, growth**2])
    coefficients, residual = nnls(terms, np.ones(len(sizes)))
    linear, quadratic = (float(seconds[-1] * term) for term in at_tokens)
    lowest, highest = min(linear, quadratic) / SLACK, max(linear, quadratic) * SLACK
    value = min(max(float(coefficients @ at_tokens), lowest), highest)
    freedom = len(sizes) - 2
    if freedom == 0:
        return Estimate(value, lowest, highest)
    error = max(float(residual) / math.sqrt(freedom), LEAST_ERROR)
    of_fit = float(np.linalg.norm(at_tokens @ np.linalg.pinv(terms)))
    margin = float(stdtrit(freedom, 0.5 + LEVEL / 2)) * error * math.hypot(of_fit, value)
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


def _require(times: Mapping[int, float]) -> None:
    for tokens, seconds in times.items():
        TOKENS.require("tokens", tokens)
        SECONDS.require(f"times[{tokens}]", seconds)
