"""Extrapolation of times: the fit and its interval against SciPy's, coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import curve_fit
from scipy.stats import t as student
from supported_models import ROOT, script

from infsa_explain.bench import Estimate, exponent, extrapolate, ratio
from infsa_explain.bench.growth import SLACK
from infsa_explain.bench.reporting import duration_cell, ratio_cell

PAGES = ("docs/speed.md", "README.md")


def form(tokens, a, b):
    return a * tokens + b * tokens**2


@pytest.mark.parametrize(("a", "b"), [(1e-3, 0.0), (0.0, 5e-7), (1.7e-3, 5e-7)])
def test_exact_times_of_the_form_are_continued_exactly(a, b):
    times = {n: form(n, a, b) for n in (197, 1025, 4097, 16385)}
    for tokens in (65_537, 331_777, 10_000):
        seconds = extrapolate(times, tokens)
        assert seconds.value == pytest.approx(form(tokens, a, b), rel=1e-9)
        assert seconds.low < seconds.value < seconds.high


def test_the_power_law_of_a_quadratic_mechanism_falls_short():
    times = {n: form(n, 1.75e-3, 5e-7) for n in (197, 1025, 4097, 16385)}
    largest = times[16_385]
    by_exponent = largest * (331_777 / 16_385) ** exponent(times)
    assert extrapolate(times, 331_777).value / by_exponent == pytest.approx(3.4, abs=0.1)


def test_the_interval_is_that_of_scipys_weighted_least_squares():
    sizes = np.array([197, 1025, 4097, 9217, 16385, 20737])
    seconds = form(sizes, 1.7e-3, 5e-7) * np.array([1.07, 0.94, 1.05, 0.97, 1.04, 0.95])
    best, covariance = curve_fit(form, sizes, seconds, p0=(1e-3, 1e-7), sigma=seconds)
    at_tokens = np.array([65_537, 65_537**2])
    value = best @ at_tokens
    error = np.sqrt(np.sum((form(sizes, *best) / seconds - 1) ** 2) / 4)
    margin = student.ppf(0.975, 4) * np.sqrt(
        at_tokens @ covariance @ at_tokens + (error * value) ** 2
    )
    estimate = extrapolate(dict(zip(sizes.tolist(), seconds, strict=True)), 65_537)
    assert error > 0.03
    assert estimate.value == pytest.approx(value, rel=1e-6)
    assert estimate.low == pytest.approx(value - margin, rel=1e-5)
    assert estimate.high == pytest.approx(value + margin, rel=1e-5)


def test_residuals_below_three_percent_count_as_three_percent():
    times = {n: form(n, 0, 1e-6) for n in (100, 1000, 2000, 4000, 8000)}
    estimate = extrapolate(times, 16_000)
    terms = np.array([[n / times[n], n**2 / times[n]] for n in times])
    covariance = 0.03**2 * np.linalg.inv(terms.T @ terms)
    at_tokens = np.array([16_000, 16_000**2])
    error = math.sqrt(at_tokens @ covariance @ at_tokens + (0.03 * 256) ** 2)
    assert estimate.value == pytest.approx(256, rel=1e-9)
    assert estimate.low == pytest.approx(256 - student.ppf(0.975, 3) * error, rel=1e-6)


def test_no_interval_is_beyond_what_the_form_allows():
    two = {1000: 1.0, 2000: 3.0}  # a + 1000 b = 1e-3, a + 2000 b = 1.5e-3: b = 5e-7, a = 5e-4
    estimate = extrapolate(two, 8000)
    assert estimate.value == pytest.approx(36)
    assert estimate.low == pytest.approx(4 * 3 / SLACK)
    assert estimate.high == pytest.approx(16 * 3 * SLACK)
    assert pytest.approx(1.248, abs=1e-3) == SLACK
    rng = np.random.default_rng(0)
    for _ in range(100):
        times = dict(zip((200, 1000, 4000, 9000), rng.uniform(0.1, 10, 4), strict=True))
        estimate = extrapolate(times, 36_000)
        overhead = min(min(times.values()) * SLACK, times[9000])  # at most, and it does not grow
        least = overhead + 4 * (times[9000] - overhead)
        assert least / SLACK * (1 - 1e-12) <= estimate.low <= estimate.value
        assert estimate.value <= estimate.high <= 16 * times[9000] * SLACK


def test_between_the_sizes_the_limits_are_exchanged():
    estimate = extrapolate({100: 1.0, 1000: 40.0}, 500)
    assert (estimate.low, estimate.high) == pytest.approx((10 / SLACK, 20 * SLACK))


def test_growth_below_linear_is_continued_linearly():
    estimate = extrapolate({100: 1.0, 200: 1.9, 400: 3.6}, 800)
    rates = np.array([100, 200 / 1.9, 400 / 3.6])  # N/t; b = 0, and a = Σ(N/t) / Σ(N/t)²
    assert estimate.value == pytest.approx(800 * rates.sum() / np.square(rates).sum())


def test_an_overhead_is_fitted_where_it_is_not_negligible():
    """A model so small that starting its layers takes most of the time."""
    times = {n: 0.01 + form(n, 1e-6, 1e-9) for n in (197, 1025, 4097, 5185, 16385, 20737)}
    estimate = extrapolate(times, 65_537)
    assert estimate.value == pytest.approx(0.01 + form(65_537, 1e-6, 1e-9), rel=1e-6)
    assert estimate.high / estimate.low < 1.5
    linear = {n: 0.01 + form(n, 1e-6, 0) for n in (197, 1025, 4097, 16385)}
    truth = 0.01 + 0.331777
    estimate = extrapolate(linear, 331_777)
    assert linear[16_385] * 331_777 / 16_385 > 1.5 * truth  # more than linear from the largest
    assert estimate.value == pytest.approx(truth, rel=1e-6)
    overhead, largest = linear[197] * SLACK, linear[16_385]
    least = overhead + (largest - overhead) * 331_777 / 16_385
    assert estimate.low == pytest.approx(least / SLACK)
    assert estimate.low < truth


def test_a_misfit_that_no_overhead_explains_is_left_to_the_residuals():
    """Times that grow faster than the form: the overhead would be 0."""
    times = {n: 1e-9 * n**2.5 for n in (200, 1000, 4000, 16_000)}
    estimate = extrapolate(times, 64_000)
    assert estimate.low >= 4 * times[16_000] / SLACK
    assert estimate.high <= 16 * times[16_000] * SLACK


def test_one_size_gives_no_estimate():
    assert extrapolate({}, 10) is None
    assert extrapolate({100: 1.0}, 1000) is None


@pytest.mark.parametrize(
    ("times", "tokens", "message"),
    [
        ({100: 0.0, 200: 1.0}, 400, r"times\[100\] must be a number in \(0, inf\), got 0\.0"),
        ({100: math.nan, 200: 1.0}, 400, r"times\[100\] must be a number"),
        ({0: 1.0, 200: 1.0}, 400, "tokens must be a whole number from 1 to .*, got 0"),
        ({100: 1.0, 200: 1.0}, -1, "tokens must be a whole number from 1 to .*, got -1"),
    ],
)
def test_numbers_that_are_not_positive_are_refused(times, tokens, message):
    with pytest.raises(ValueError, match=message):
        extrapolate(times, tokens)


def test_a_ratio_combines_both_intervals():
    numerator, denominator = Estimate(8.0, 4.0, 24.0), Estimate(2.0, 1.0, 4.0)
    combined = ratio(numerator, denominator)
    assert combined.value == 4
    assert combined.low == pytest.approx(4 / math.exp(math.hypot(math.log(2), math.log(2))))
    assert combined.high == pytest.approx(4 * math.exp(math.hypot(math.log(3), math.log(2))))
    alone = ratio(numerator, Estimate.measured(2.0))
    assert (alone.low, alone.high) == pytest.approx((2, 12))
    assert ratio(Estimate.measured(6.0), Estimate.measured(2.0)).interval == (None, None)


def test_cells_round_intervals_outwards():
    assert duration_cell(Estimate.measured(0.353)) == "353 ms"
    assert duration_cell(Estimate(16.78, 16.51, 16.99)) == "~16.8 s [16, 17]"
    assert duration_cell(Estimate(53_545.0, 30_100.0, 76_900.0)) == "~53,545 s [30,000, 77,000]"
    assert duration_cell(Estimate(9.0, 0.0841, 9.01)) == "~9,000 ms [84, 9,100]"
    assert ratio_cell(Estimate(0.5, 0.29, 1.001)) == "~0.50 [0.29, 1.1]"
    assert ratio_cell(Estimate.measured(2.514), "×") == "2.51×"


def test_coverage_of_the_intervals():
    """Fewer simulations than ``experiments/extrapolation_coverage.py``, with the same outcome."""
    rows = script("extrapolation_coverage").coverage(simulations=60)
    assert len(rows) == 72
    for kind, mean in (("time", 0.997), ("measurement", 0.984), ("ratio", 0.998)):
        shares = [getattr(row, kind) for row in rows]
        assert np.mean(shares) == pytest.approx(mean, abs=0.006)
        assert min(shares) >= 0.88  # 60 simulations at a coverage of 95%


def test_intervals_hold_for_measured_times_that_were_left_out():
    """The tables of docs/speed.md: the smallest sizes of a row predict the larger ones."""
    page = (ROOT / "docs/speed.md").read_text(encoding="utf-8")
    counts = script("extrapolated_cells").held_out(page)
    assert counts == {2: (45, 46), 3: (26, 26), 4: (10, 10), 5: (1, 1)}


@pytest.mark.parametrize("page", PAGES)
def test_the_extrapolated_cells_follow_from_the_printed_times(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "~" in text
    assert script("extrapolated_cells").with_cells(text) == text


def test_cells_are_made_anew_from_the_printed_times():
    """Ratios of the old form are replaced; those of two measured times stay as printed."""
    page = (
        "| mechanism | 160² | 320² | 640² |\n| --- | --: | --: | --: |\n"
        "| softmax, fused | 200 ms (1.00×) | 3.0 s (1.00×) | ~1 s (1.00×) |\n"
        "| Some | 100 ms (2.01×) | 1.0 s (3.03×) | 4.0 s (17×) |\n"
        "| Other | OOM (predicted) | | OOM (predicted) |\n"
    )
    changed = script("extrapolated_cells").with_cells(page).splitlines()
    fused = extrapolate({101: 0.2, 401: 3.0}, 1601)
    assert (
        changed[2]
        == f"| softmax, fused | 200 ms (1.00×) | 3.0 s (1.00×) | {duration_cell(fused)} (1.00×) |"
    )
    speed = ratio_cell(ratio(fused, Estimate.measured(4.0)), "×", ".0f")
    assert changed[3] == f"| Some | 100 ms (2.01×) | 1.0 s (3.03×) | 4.0 s ({speed}) |"
    assert changed[4] == "| Other | OOM (predicted) |  | OOM (predicted) |"
