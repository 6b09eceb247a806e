"""The uncertainty of means over images: intervals, paired tests, and tests of a whole family.

One value per image comes in. NaN marks an image whose value is undefined; it is left out and
counted. Images that are not independent (frames of one video, digits of one handwriting) share a
*cluster*; then clusters are resampled, not images.

Intervals and p-values come from one distribution, the *studentised bootstrap*: units (images or
clusters) are drawn with replacement, and each resample gives t* = (mean* − mean) / error*, with its
own standard error. The interval is mean ± c · error, with c the 95% quantile of |t*|. The p-value
is the share of |t*| that reach |mean / error|. So p ≤ 0.05 exactly where the interval excludes 0.
For a family of tests the largest |t*| of the family takes the place of |t*|: all intervals hold
together with 95%, and p-values are adjusted for the number of tests and their correlation.

With fewer than 10 units a bootstrap knows too little, and Student's t is used, by Bonferroni in a
family. With more than 5,000 units t* is normal for all practical purposes, and is drawn as such.
`experiments/coverage.py` measures how often these intervals cover the true mean.

Sources: Hall 1988, Theoretical comparison of bootstrap confidence intervals (the symmetric
studentised bootstrap); Davison and Hinkley 1997, Bootstrap methods and their application, chapters
2 and 3 (clusters); Westfall and Young 1993, Resampling-based multiple testing (the maximum); Wilson
1927 (proportions); Satterthwaite 1946 (trainings).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "MeanInterval",
    "PairedTest",
    "bootstrap_mean",
    "holm",
    "paired_test",
    "paired_tests",
]

Values = Tensor | NDArray[Any] | Sequence[float] | Sequence[Sequence[float]]
#: One cluster a value, by any name; None for a value that is independent of all others.
Clusters = Sequence[Hashable] | None
Key = TypeVar("Key", bound=Hashable)
Array = NDArray[np.float64]

#: Numbers of units with which the bootstrap is used: see the module's text.
BOOTSTRAP_UNITS = range(10, 5001)
#: Resamples whose counts are in memory at once, in numbers of units.
_BATCH_ELEMENTS = 2**22


@dataclass(frozen=True)
class MeanInterval:
    """A mean over images with its confidence interval.

    Attributes:
        mean: over all images with a value.
        low, high: ends of the interval; NaN if there are fewer than two units.
        n: images with a value.
        excluded: images without one.
        units: independent units, the clusters or else the images.
        trainings: trainings that the mean is over.
    """

    mean: float
    low: float
    high: float
    n: int
    excluded: int
    units: int = 0
    trainings: int = 1


@dataclass(frozen=True)
class PairedTest:
    """The mean of a − b over ``n`` images: its interval, two-sided p-value and effect size.

    Attributes:
        difference: mean of a − b; positive where a is larger.
        low, high: ends of its interval; of a family, simultaneous.
        p_value: in (0, 1]; of a family, adjusted.
        n, excluded: images where both have a value, and others.
        effect_size: Cohen's d_z, the mean in standard deviations of the differences; NaN where
            they do not vary.
        units, trainings: as in :class:`MeanInterval`.
    """

    difference: float
    low: float
    high: float
    p_value: float
    n: int
    excluded: int
    effect_size: float
    units: int = 0
    trainings: int = 1


def bootstrap_mean(
    values: Values,
    *,
    clusters: Clusters = None,
    proportion: bool = False,
    confidence: float = 0.95,
    resamples: int = 9999,
    seed: int = 0,
) -> MeanInterval:
    """Mean of per-image values with a confidence interval over images.

    The interval is that of the studentised bootstrap; constant values give ``low = high = mean``.
    A proportion has Wilson's interval; with clusters, for the number of independent images that
    would have the same variance. Several trainings of one model have an interval over trainings and
    images: the variances of the mean are added, with degrees of freedom by Satterthwaite.

    Args:
        values: (n,) in any unit, or (T, n) of T trainings on the same images; NaN is excluded.
        clusters: n names of clusters; images of one cluster are not independent. None, as a whole
            or for one image, if independent of all others.
        proportion: whether values are 0 or 1, of which the mean is a share.
        confidence: coverage of the interval, in (0, 1).
        resamples: number of bootstrap resamples; 0 for Student's t in place of the bootstrap.
        seed: of the resampling; the same seed gives the same interval.

    Returns:
        Mean and interval in the unit of ``values``; all NaN for n = 0, the interval NaN for a
        single unit.

    Raises:
        ValueError: if values are not numbers of shape (n,) or (T, n) or are infinite, if those of
            a proportion are not in [0, 1], if there is not one cluster for each value, or an option
            is out of range.

    Example:
        >>> interval = bootstrap_mean([1.0, 2.0, 3.0, 4.0, float("nan")])
        >>> interval.mean, interval.n, interval.excluded
        (2.5, 4, 1)
        >>> top5 = bootstrap_mean([1.0] * 50, proportion=True)  # all correct
        >>> round(top5.low, 3), top5.high
        (0.929, 1.0)
    """
    _check_options(confidence, resamples)
    sample = _Sample.of(_matrix("values", values), clusters)
    if proportion and not sample.is_share:
        raise ValueError("values must be in [0, 1] for a proportion, got others")
    if sample.units < 2:
        nan = np.nan
        return MeanInterval(sample.mean, nan, nan, sample.n, sample.excluded, sample.units)
    if proportion and sample.trainings == 1:
        low, high = _wilson(sample, confidence)
    else:
        if resamples and sample.is_resampled:
            quantile = _Maximum([sample], resamples, seed).quantile(1 - confidence)
            half = quantile * sample.error
        else:
            half = sample.student(1 - confidence)[0]
        low, high = sample.mean - half, sample.mean + half
    n, excluded, units = sample.n, sample.excluded, sample.units
    return MeanInterval(sample.mean, low, high, n, excluded, units, sample.trainings)


def paired_test(
    a: Values, b: Values, *, clusters: Clusters = None, seed: int = 0, resamples: int = 9999
) -> PairedTest:
    """Test of the mean difference between two methods measured on the same images.

    A family of one: see :func:`paired_tests`.

    Args:
        a: (n,) in any unit, or (T, n) of T trainings.
        b: the same shape, of the same images in the same order; a pair with a NaN is excluded.
        clusters: as in :func:`bootstrap_mean`.
        seed: of the resampling.
        resamples: number of bootstrap resamples; 0 for Student's t in place of the bootstrap.

    Returns:
        The mean difference, its 95% interval, and the two-sided p-value, which is at most 0.05
        exactly where the interval excludes 0. p is 1 where no pair differs, and NaN for n = 0.

    Raises:
        ValueError: as :func:`bootstrap_mean`, or if the shapes differ.

    Example:
        >>> test = paired_test([3.0, 5.0, 4.0, 6.0], [2.0, 3.0, 1.0, 4.0])
        >>> test.difference, test.n
        (2.0, 4)
    """
    return paired_tests({"": (a, b)}, clusters=clusters, seed=seed, resamples=resamples)[""]


def paired_tests(
    pairs: Mapping[Key, tuple[Values, Values]],
    *,
    clusters: Clusters = None,
    seed: int = 0,
    resamples: int = 9999,
) -> dict[Key, PairedTest]:
    """Tests of one family: p-values and intervals that hold for all of them together.

    Fix the family before you look at the data: one model and one question, such as "which maps
    beat the control?". With a probability of 95% all intervals cover their differences; each p is
    adjusted for the family by the largest |t*| of each resample (Westfall and Young's single step).
    With several trainings, by Bonferroni.

    Args:
        pairs: name → (a, b), all of the same images in the same order; see :func:`paired_test`.
        clusters: as in :func:`bootstrap_mean`.
        seed: of the resampling, which all tests share.
        resamples: number of bootstrap resamples; 0 for Student's t in place of the bootstrap.

    Returns:
        name → :class:`PairedTest`.

    Raises:
        ValueError: as :func:`paired_test`, or if the tests are of different numbers of images.

    Example:
        >>> a, b, control = [3.0, 5.0, 4.0, 6.0], [2.0, 2.0, 2.0, 2.1], [2.0, 3.0, 1.0, 4.0]
        >>> tests = paired_tests({"a": (a, control), "b": (b, control)})
        >>> tests["a"].p_value < tests["b"].p_value
        True
    """
    _check_options(0.95, resamples)
    samples = {key: _differences(a, b, clusters) for key, (a, b) in pairs.items()}
    if len({sample.values.shape[1] for sample in samples.values()}) > 1:
        raise ValueError("pairs must all be of the same images, got different numbers of them")
    resampled = [sample for sample in samples.values() if sample.is_resampled]
    maximum = _Maximum(resampled, resamples, seed) if resamples and resampled else None
    size = sum(sample.units > 1 for sample in samples.values())
    return {key: _tested(sample, maximum, size) for key, sample in samples.items()}


def _tested(sample: _Sample, maximum: _Maximum | None, size: int) -> PairedTest:
    """The test of one sample of differences, in a family of ``size`` tests."""
    if sample.units < 2:  # of one difference, either sign is as likely
        half, p_value = np.nan, 1.0 if sample.units else np.nan
    elif sample.is_resampled and maximum is not None:
        half = maximum.quantile(0.05) * sample.error
        p_value = maximum.p_value(abs(sample.mean) / sample.error)
    else:
        half, p_value = sample.student(0.05 / size)
        p_value = min(1.0, size * p_value)
    spread = sample.spread
    return PairedTest(
        sample.mean,
        sample.mean - half,
        sample.mean + half,
        p_value,
        sample.n,
        sample.excluded,
        sample.mean / spread if spread > 0 else np.nan,
        sample.units,
        sample.trainings,
    )


def holm(p_values: Values) -> Array:
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
    p = _matrix("p_values", p_values)
    if len(p) != 1:
        raise ValueError(f"p_values must be of shape (n,), got {p.shape}")
    p = p[0]
    if np.any((p < 0) | (p > 1)):
        raise ValueError(f"p_values must be values in [0, 1], got {p.tolist()}")
    adjusted: Array = p.copy()
    order = p.argsort()[: np.count_nonzero(~np.isnan(p))]  # NaN sorts last
    scaled = p[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(scaled))
    return adjusted


class _Sample(NamedTuple):
    """Values of one mean, summed by unit.

    Attributes:
        values: (T, n) as given, NaN where undefined.
        sums, counts: (U,) of every unit: the sum of its images' values, and their number.
        mean: over all images.
        excluded: images without a value.
        trainings: T.
    """

    values: Array
    sums: Array
    counts: Array
    mean: float
    excluded: int
    trainings: int

    @classmethod
    def of(cls, values: Array, clusters: Clusters) -> _Sample:
        """Sum values (T, n) by unit; of several trainings their mean, image by image."""
        if clusters is not None and len(clusters) != values.shape[1]:
            raise ValueError(
                f"clusters must be one for each of {values.shape[1]} values, got {len(clusters)}"
            )
        images: Array = values.mean(0)
        defined = ~np.isnan(images)
        units = _unit_numbers(clusters, len(images))
        counts = np.zeros(max(units, default=-1) + 1)
        sums = np.zeros_like(counts)
        np.add.at(counts, units[defined], 1)
        np.add.at(sums, units[defined], images[defined])
        kept = images[defined]
        mean = float("nan")
        if len(kept):  # a constant to its last digit
            mean = float(kept[0]) if np.ptp(kept) == 0 else float(kept.mean())
        excluded = int((~defined).sum())
        return cls(values, sums, counts, mean, excluded, len(values))

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    @property
    def units(self) -> int:
        """Units with a value."""
        return int((self.counts > 0).sum())

    @property
    def residuals(self) -> Array:
        """Σ (x − mean) over the images of every unit, (U,)."""
        residuals = self.sums - self.mean * self.counts
        rounding = 2.0**12 * np.spacing(np.abs(self.sums).max(initial=0))  # all that a constant has
        kept: Array = np.where(np.abs(residuals) > rounding, residuals, 0.0)
        return kept

    @property
    def error(self) -> float:
        """Standard error of the mean over units."""
        u = self.units
        squares = float((self.residuals[self.counts > 0] ** 2).sum())
        return float(np.sqrt(u / (u - 1) * squares)) / self.n if u > 1 else np.nan

    @property
    def spread(self) -> float:
        """Standard deviation of the images' values."""
        images = self.values.mean(0)
        images = images[~np.isnan(images)]
        return float(images.std(ddof=1)) if len(images) > 1 and np.ptp(images) > 0 else 0.0

    @property
    def is_resampled(self) -> bool:
        """Whether intervals and tests come from resamples."""
        return self.trainings == 1 and self.units >= BOOTSTRAP_UNITS.start and self.error > 0

    def student(self, alpha: float) -> tuple[float, float]:
        """Half the width of a 1 − alpha interval by Student's t, and the p-value of a mean of 0.

        With several trainings, the variance of the mean is the sum of that over units and that
        over trainings, and the degrees of freedom follow Satterthwaite. Without any variance the
        width is 0, and p is that of flipping signs: all of them agree by chance in 2 of 2ⁿ cases.
        """
        from scipy.special import stdtr, stdtrit

        variances, freedoms = [self.error**2], [self.units - 1]
        if self.trainings > 1:
            means = np.nanmean(self.values, axis=1)
            variances.append(float(means.var(ddof=1)) / self.trainings)
            freedoms.append(self.trainings - 1)
        total = sum(variances)
        if total == 0:
            return 0.0, 1.0 if self.mean == 0 else 2.0 ** -min(freedoms[0], 1000)
        freedom = total**2 / sum(v**2 / f for v, f in zip(variances, freedoms, strict=True))
        half = float(stdtrit(freedom, 1 - alpha / 2)) * np.sqrt(total)
        return float(half), float(2 * stdtr(freedom, -abs(self.mean) / np.sqrt(total)))

    @property
    def is_share(self) -> bool:
        """Whether every value is in [0, 1]."""
        return bool((np.isnan(self.values) | ((self.values >= 0) & (self.values <= 1))).all())


def _unit_numbers(clusters: Clusters, size: int) -> NDArray[np.intp]:
    """The number of every image's unit, (n,), from 0; an image without a cluster is its own."""
    if clusters is None:
        return np.arange(size, dtype=np.intp)
    numbers: dict[Hashable, int] = {}
    names: list[Hashable]
    names = [(i,) if name is None else name for i, name in enumerate(clusters)]
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.intp)


class _Maximum:
    """The distribution of max |t*| over a family of samples that share their units."""

    def __init__(self, samples: Sequence[_Sample], resamples: int, seed: int) -> None:
        residuals = np.stack([sample.residuals for sample in samples], axis=1)  # (U, m)
        counts = np.stack([sample.counts for sample in samples], axis=1)
        present = counts.any(1)
        residuals, counts = residuals[present], counts[present]
        errors = np.array([sample.error for sample in samples])
        units = len(counts)
        if units not in BOOTSTRAP_UNITS:
            rng = np.random.default_rng(seed)
            correlation = np.corrcoef(residuals.T).reshape(len(errors), -1)
            normal = rng.multivariate_normal(0 * errors, correlation, resamples, method="svd")
            self._sorted = np.sort(np.abs(normal).max(1))
            return
        equal = bool((counts == 1).all())  # then every resample has as many images
        maxima = [
            _largest_t(weights.astype(float), residuals, counts, errors, equal)
            for weights in _resamples(units, resamples, seed)
        ]
        self._sorted = np.sort(np.concatenate(maxima))

    def quantile(self, alpha: float) -> float:
        """c, exceeded by max |t*| with probability ``alpha``."""
        rank = int(np.floor(alpha * (len(self._sorted) + 1) + 1e-9))  # from the largest down
        return float(self._sorted[-max(1, rank)])

    def p_value(self, t: float) -> float:
        """The share of resamples whose max |t*| reaches t, the sample itself included."""
        reached = len(self._sorted) - np.searchsorted(self._sorted, t, side="left")
        return float((reached + 1) / (len(self._sorted) + 1))


@lru_cache(maxsize=4)
def _resamples(units: int, resamples: int, seed: int) -> list[NDArray[np.uint8]]:
    """How often each resample holds each unit, (resamples, units), in batches.

    Kept, since all means of a run are over about the same number of units.
    """
    rng = np.random.default_rng(seed)
    batches = []
    for start in range(0, resamples, size := max(1, _BATCH_ELEMENTS // units)):
        rows = min(size, resamples - start)
        drawn = rng.integers(0, units, (rows, units)) + units * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * units)
        batches.append(counts.reshape(rows, units).astype(np.uint8))
    return batches


def _largest_t(
    weights: Array, residuals: Array, counts: Array, errors: Array, equal: bool
) -> Array:
    """max |t*| over m samples, (R,).

    Args:
        weights: (R, U), how often each resample holds each unit.
        residuals, counts: (U, m), with residuals that sum to 0 over units.
        errors: (m,), standard errors of the samples.
        equal: whether all counts are 1.
    """
    units = len(residuals)
    total = weights @ residuals  # Σ w r = mean* · Σ w n, as the sample's mean is taken off
    squares = weights @ residuals**2
    if equal:
        images = np.full_like(total, units)
        squares -= total**2 / units
    else:
        images = weights @ counts
        with np.errstate(all="ignore"):
            shift = total / images
        squares += -2 * shift * (weights @ (residuals * counts)) + shift**2 * (weights @ counts**2)
    with np.errstate(all="ignore"):
        means = total / images
        own_errors = np.sqrt(units / (units - 1) * np.maximum(squares, 0)) / images
    # A resample without variation takes the error of the sample.
    own_errors = np.where(own_errors > 1e-9 * errors, own_errors, errors)
    t = np.abs(np.where(images > 0, means, 0.0)) / own_errors
    largest: Array = t.max(1)
    return largest


def _wilson(sample: _Sample, confidence: float) -> tuple[float, float]:
    """Wilson's interval of a proportion, (low, high).

    With clusters n is the number of independent images with the same variance of the mean; where
    the proportion is 0 or 1, and no variance is seen, the number of clusters.
    """
    from scipy.special import ndtri

    p, n = sample.mean, float(sample.n)
    if sample.units < sample.n:
        effective = p * (1 - p) / sample.error**2 if sample.error > 0 else float(sample.units)
        n = min(n, max(effective, 1.0))
    z = float(ndtri((1 + confidence) / 2))
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    return max(0.0, float(centre - half)), min(1.0, float(centre + half))


def _differences(a: Values, b: Values, clusters: Clusters) -> _Sample:
    x, y = _matrix("a", a), _matrix("b", b)
    if x.shape != y.shape:
        raise ValueError(f"b must be of the shape of a, {x.shape}, got {y.shape}")
    return _Sample.of(x - y, clusters)


def _check_options(confidence: float, resamples: int) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be a number in (0, 1), got {confidence}")
    if not isinstance(resamples, Integral) or resamples < 0:
        raise ValueError(f"resamples must be a whole number, at least 0, got {resamples}")


def _matrix(argument: str, values: Values) -> Array:
    """Values as (T, n) float64, checked; (1, n) of (n,)."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().double().numpy()
    try:
        x = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{argument} must be numbers, got {values!r:.80}") from error
    if x.ndim not in (1, 2) or (x.ndim == 2 and len(x) == 0):
        raise ValueError(f"{argument} must be of shape (n,) or (T, n), got {x.shape}")
    if np.isinf(x).any():
        raise ValueError(f"{argument} must be finite values or NaN, got an infinity")
    return np.atleast_2d(x)
