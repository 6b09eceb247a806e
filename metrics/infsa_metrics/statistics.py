"""What a mean over images is worth: bootstrap intervals, paired tests, Holm's correction.

One value per image comes in; NaN marks an image whose measure is undefined. Those are left out and
counted. SciPy does the work.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Values = Tensor | NDArray[Any] | Sequence[float]

_BATCH_ELEMENTS = 2**20  # resampled values held at once
_LAST_DIGIT = 2**12  # of a mean, in units of the largest value's last; sums differ by less


@dataclass(frozen=True)
class MeanInterval:
    """A mean over ``n`` images with its bootstrap interval; ``excluded`` images were NaN."""

    mean: float
    low: float
    high: float
    n: int
    excluded: int


@dataclass(frozen=True)
class PairedTest:
    """The mean of a − b over ``n`` pairs: its interval, p-value in (0, 1] and Cohen's d_z."""

    difference: float
    low: float
    high: float
    p_value: float
    n: int
    excluded: int
    effect_size: float


def bootstrap_mean(
    values: Values, *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> MeanInterval:
    """Mean of per-image values with a bootstrap confidence interval over images.

    The interval is BCa (Efron 1987), or the percentile one where the values vary too little for
    BCa to be computed. Constant values give ``low = high = mean``.

    Args:
        values: (n,), in any unit; NaN is excluded and counted.
        confidence: coverage of the interval, in (0, 1).
        resamples: number of bootstrap resamples, at least 1.
        seed: of the resampling; the same seed gives the same interval.

    Returns:
        Mean and interval in the unit of ``values``; all NaN for n = 0, the interval NaN for n = 1.

    Raises:
        ValueError: for values that are not 1-D numbers or are infinite, or an option out of range.

    Example:
        >>> interval = bootstrap_mean([1.0, 2.0, 3.0, float("nan")])
        >>> interval.mean, interval.n, interval.excluded
        (2.0, 3, 1)
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be a number in (0, 1), got {confidence}")
    if not isinstance(resamples, Integral) or resamples < 1:
        raise ValueError(f"resamples must be a whole number, at least 1, got {resamples}")
    x = _vector("values", values)
    x, excluded = x[~np.isnan(x)], int(np.isnan(x).sum())
    n = len(x)
    if n < 2:
        mean = float(x[0]) if n else np.nan
        return MeanInterval(mean, np.nan, np.nan, n, excluded)
    low, high = _bootstrap_interval(x, confidence, resamples, seed)
    mean = float(x[0]) if np.ptp(x) == 0 else float(x.mean())  # a constant to the last digit
    return MeanInterval(mean, low, high, n, excluded)


def paired_test(a: Values, b: Values, *, seed: int = 0, resamples: int = 9999) -> PairedTest:
    """Sign-flip permutation test of two methods measured on the same images.

    Under the null hypothesis each difference a_i − b_i is as likely with the other sign. All 2ⁿ
    signs are tried where 2ⁿ <= ``resamples`` (the p-value is then exact); else that many random
    ones, and the p-value is at least 1 / (resamples + 1), before doubling for two sides.

    Args:
        a: (n,), in any unit.
        b: (n,), of the same images in the same order; a pair with a NaN is excluded and counted.
        seed: of the flips and of the bootstrap.
        resamples: number of random sign patterns, and of bootstrap resamples, at least 1.

    Returns:
        ``difference`` = mean(a − b), positive where a is larger, with its 95% bootstrap interval;
        the two-sided p-value, 1 where no pair differs; the effect size d_z = mean / standard
        deviation of the differences (Cohen 1988), NaN where they do not vary. All NaN for n = 0.

    Raises:
        ValueError: for values that are not 1-D numbers, are infinite or differ in length.

    Example:
        >>> test = paired_test([3.0, 5.0, 4.0], [2.0, 3.0, 1.0])
        >>> test.difference, test.p_value, test.effect_size  # all three up: 2 of the 8 signs
        (2.0, 0.25, 2.0)
    """
    x, y = _vector("a", a), _vector("b", b)
    if len(x) != len(y):
        raise ValueError(f"b must be {len(x)} values, as many as in a, got {len(y)}")
    d = x - y
    mean = bootstrap_mean(d, resamples=resamples, seed=seed)
    d = d[~np.isnan(d)]
    p_value = _sign_flip_p(d, resamples, seed)
    d_z = mean.mean / float(d.std(ddof=1)) if mean.n > 1 and np.ptp(d) > 0 else np.nan
    return PairedTest(mean.mean, mean.low, mean.high, p_value, mean.n, mean.excluded, d_z)


def holm(p_values: Values) -> NDArray[np.float64]:
    """Holm's step-down adjustment of a family of p-values (Holm 1979).

    The i-th smallest of m p-values is multiplied by m − i + 1; then each is raised to the largest
    before it, and capped at 1. Comparing the result with α controls the family-wise error rate.

    Args:
        p_values: (m,) in [0, 1]; NaN passes through and does not count towards m.

    Returns:
        (m,) adjusted p-values, in the order given, none smaller than it was.

    Raises:
        ValueError: for values outside [0, 1], or not 1-D.

    Example:
        >>> holm([0.01, 0.04, 0.03]).tolist()
        [0.03, 0.06, 0.06]
    """
    p = _vector("p_values", p_values)
    if np.any((p < 0) | (p > 1)):
        raise ValueError(f"p_values must be values in [0, 1], got {p.tolist()}")
    adjusted = p.copy()
    order = p.argsort()[: np.count_nonzero(~np.isnan(p))]  # NaN sorts last
    scaled = p[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(scaled))
    return adjusted


def _bootstrap_interval(
    x: NDArray[np.float64], confidence: float, resamples: int, seed: int
) -> tuple[float, float]:
    """Return the BCa interval of the mean, or where that is undefined the percentile interval."""
    from scipy import stats  # takes a while to import

    if np.ptp(x) == 0:
        return float(x[0]), float(x[0])
    digit = _LAST_DIGIT * np.spacing(abs(x).max())

    def mean(sample: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
        """A mean that is the same in any order: BCa counts resamples equal to the sample's."""
        rounded: NDArray[np.float64] = np.rint(sample.mean(axis) / digit) * digit
        return rounded

    def interval(method: Literal["BCa", "percentile"]) -> tuple[float, float]:
        low, high = stats.bootstrap(
            (x,),
            mean,
            n_resamples=resamples,
            batch=max(1, _BATCH_ELEMENTS // len(x)),
            confidence_level=confidence,
            method=method,
            rng=np.random.default_rng(seed),
        ).confidence_interval
        return float(low), float(high)

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        low_high = interval("BCa")
    return interval("percentile") if np.isnan(low_high).any() else low_high


def _sign_flip_p(d: NDArray[np.float64], resamples: int, seed: int) -> float:
    if len(d) < 2:  # both signs of a single difference are equally extreme
        return 1.0 if len(d) else np.nan
    from scipy import stats

    test = stats.permutation_test(
        (d,),
        np.mean,
        permutation_type="samples",  # of one sample: flips signs
        vectorized=True,
        n_resamples=resamples,
        batch=max(1, _BATCH_ELEMENTS // len(d)),
        rng=np.random.default_rng(seed),
    )
    return float(test.pvalue)


def _vector(argument: str, values: Values) -> NDArray[np.float64]:
    if isinstance(values, Tensor):
        values = values.detach().cpu().double().numpy()
    try:
        x = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{argument} must be 1-D numbers, got {values!r:.80}") from error
    if x.ndim != 1:
        raise ValueError(f"{argument} must be of shape (n,), got {x.shape}")
    if np.isinf(x).any():
        raise ValueError(f"{argument} must be finite values or NaN, got an infinity")
    return x
