"""Statistics against enumeration, numpy and coverage in simulation."""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import astuple

import numpy as np
import pytest
import torch
from infsa_metrics import bootstrap_mean, holm, paired_test
from scipy import stats

NAN = math.nan


def normal(n, seed=0, loc=0.3):
    return np.random.default_rng(seed).normal(loc, 1, n)


def test_mean_and_interval_are_scipys_bca():
    x = normal(40)
    result = bootstrap_mean(x, confidence=0.9, resamples=2000, seed=7)
    rng = np.random.default_rng(7)
    low, high = stats.bootstrap(
        (x,), np.mean, n_resamples=2000, confidence_level=0.9, rng=rng
    ).confidence_interval
    assert (result.low, result.high) == pytest.approx((low, high), abs=1e-12)
    assert result.mean == pytest.approx(x.sum() / 40, abs=1e-14)
    assert (result.n, result.excluded) == (40, 0)


def test_interval_is_near_students_for_normal_data():
    x = normal(400)
    result = bootstrap_mean(x)
    low, high = stats.t.interval(0.95, 399, loc=x.mean(), scale=stats.sem(x))
    assert (result.low, result.high) == pytest.approx((low, high), abs=0.01)


def test_coverage():
    """200 exponential samples of 60: the 90% interval holds the true mean 1 in 90% ± 3 s.e."""
    rng = np.random.default_rng(1)
    hits = 0
    for seed in range(200):
        result = bootstrap_mean(rng.exponential(size=60), confidence=0.9, resamples=500, seed=seed)
        hits += result.low <= 1 <= result.high
    assert abs(hits / 200 - 0.9) < 3 * math.sqrt(0.9 * 0.1 / 200)


def test_nan_is_excluded_and_counted():
    x = normal(30)
    with_nan = np.insert(x, [0, 7, 30], NAN)
    result, plain = bootstrap_mean(with_nan), bootstrap_mean(x)
    assert (result.mean, result.low, result.high) == (plain.mean, plain.low, plain.high)
    assert (result.n, result.excluded) == (30, 3)


@pytest.mark.parametrize("values", [[], [NAN, NAN]])
def test_no_values(values):
    result = bootstrap_mean(values)
    assert np.isnan([result.mean, result.low, result.high]).all()
    assert (result.n, result.excluded) == (0, len(values))


def test_one_value_has_no_interval():
    result = bootstrap_mean([0.5, NAN])
    assert result.mean == 0.5
    assert np.isnan([result.low, result.high]).all()
    assert (result.n, result.excluded) == (1, 1)


@pytest.mark.parametrize("value", [0.0, 0.1, -3.3])
@pytest.mark.parametrize("n", [2, 3, 9])  # the sum of three times 0.1, divided by 3, is not 0.1
def test_constant_values(value, n):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = bootstrap_mean([value] * n)
    assert (result.mean, result.low, result.high, result.n) == (value, value, value, n)


@pytest.mark.filterwarnings("ignore:Degrees of freedom:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_one_resample_is_its_own_interval():
    result = bootstrap_mean([1.0, 2.0, 4.0], resamples=1, seed=5)
    means = [sum(x) / 3 for x in itertools.product([1.0, 2.0, 4.0], repeat=3)]
    assert result.mean == pytest.approx(7 / 3)
    assert result.low == result.high
    assert min(abs(result.low - mean) for mean in means) < 1e-11


def test_values_that_hardly_vary_fall_back_to_the_percentile_interval():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = bootstrap_mean([0.0, 0.0, 1e-300])  # its square, the variance, is 0
    assert (result.low, result.high) == (0.0, pytest.approx(1e-300, rel=1e-9))


def test_noise_in_the_last_digits_moves_an_interval_no_further():
    """BCa counts the resamples below the mean: those equal to it must not fall to either side."""
    rng = np.random.default_rng(0)
    for x in rng.random((10, 7)):
        other = bootstrap_mean(x + 1e-8 * rng.standard_normal(7))
        assert astuple(bootstrap_mean(x)) == pytest.approx(astuple(other), abs=1e-7)


def test_the_seed_decides():
    x = normal(20)
    assert bootstrap_mean(x, seed=3) == bootstrap_mean(x, seed=3)
    assert bootstrap_mean(x, seed=3) != bootstrap_mean(x, seed=4)
    test, interval = paired_test(x, 0 * x, seed=3), bootstrap_mean(x, resamples=9999, seed=3)
    assert (test.low, test.high) == (interval.low, interval.high)
    assert test == paired_test(x, 0 * x, seed=3)  # 2²⁰ signs: drawn
    assert test.p_value != paired_test(x, 0 * x, seed=4).p_value


def test_documented_defaults():
    x = normal(20)
    assert bootstrap_mean(x) == bootstrap_mean(x, confidence=0.95, resamples=10_000, seed=0)
    assert paired_test(x, 0 * x) == paired_test(x, 0 * x, seed=0, resamples=9999)


def test_tensors_arrays_and_sequences_agree():
    x = normal(12).round(2)
    expected = bootstrap_mean(x)
    assert bootstrap_mean(x.tolist()) == expected
    assert bootstrap_mean(tuple(x)) == expected
    assert bootstrap_mean(torch.tensor(x, requires_grad=True)) == expected
    assert bootstrap_mean(torch.tensor([1.0, 0.5], dtype=torch.bfloat16)).mean == 0.75
    y = torch.tensor(x)
    bootstrap_mean(y)
    assert y.numpy().tolist() == x.tolist()


def test_exhaustive_sign_flips():
    a, b = normal(6, seed=2), normal(6, seed=3, loc=0)
    d = a - b
    flips = [np.mean(d * signs) for signs in itertools.product([1, -1], repeat=6)]
    expected = np.mean(np.abs(flips) >= abs(d.mean()) - 1e-12)
    result = paired_test(a, b)
    assert result.p_value == pytest.approx(expected, abs=1e-15)
    assert result.difference == pytest.approx(d.mean(), abs=1e-15)
    assert result.effect_size == pytest.approx(d.mean() / np.std(d, ddof=1), rel=1e-14)
    interval = bootstrap_mean(d, resamples=9999)
    assert (result.low, result.high) == (interval.low, interval.high)
    assert (result.n, result.excluded) == (6, 0)


def test_swapping_the_arms_only_changes_the_sign():
    a, b = normal(10, seed=4), normal(10, seed=5)
    one, other = paired_test(a, b), paired_test(b, a)
    assert one.p_value == other.p_value
    assert one.difference == -other.difference
    assert one.effect_size == -other.effect_size


def test_random_sign_flips_come_near_the_t_test():
    a = normal(200, seed=6, loc=0.0)
    result = paired_test(a, np.zeros(200))
    p = stats.ttest_1samp(a, 0).pvalue
    assert 0.01 < p < 0.5
    assert result.p_value == pytest.approx(p, abs=4 * math.sqrt(p / 9999) + 0.005)


def test_smallest_p_value_of_random_flips():
    result = paired_test(np.full(50, 2.0) + normal(50) / 100, np.ones(50), resamples=999)
    assert result.p_value == pytest.approx(2 / 1000, abs=1e-15)


def test_false_alarms_are_as_rare_as_promised():
    """300 samples of 8 without an effect: p <= 0.05 in at most 5% + 3 s.e. of them."""
    rng = np.random.default_rng(8)
    p = [paired_test(*rng.normal(size=(2, 8)), resamples=256).p_value for _ in range(300)]
    assert np.mean(np.array(p) <= 0.05) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)


def test_equal_arms():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = paired_test([0.1, 0.2, 0.3], [0.1, 0.2, 0.3])
    assert (result.difference, result.low, result.high, result.p_value) == (0, 0, 0, 1)
    assert math.isnan(result.effect_size)


def test_constant_difference_has_a_p_value_but_no_effect_size():
    result = paired_test([2.0, 3.0, 4.0], [1.0, 2.0, 3.0])
    assert (result.difference, result.low, result.high) == (1.0, 1.0, 1.0)
    assert result.p_value == 2 / 8
    assert math.isnan(result.effect_size)


def test_two_small_differences():
    """0.1 and 0.3: of four signs two are as extreme; mean 0.2, standard deviation 0.1 √2."""
    result = paired_test([0.1, 0.3], [0.0, 0.0])
    assert result.p_value == 0.5
    assert result.effect_size == pytest.approx(math.sqrt(2), rel=1e-14)


def test_pairs_with_a_nan_are_excluded():
    a, b = [1.0, NAN, 3.0, 4.5, 2.0], [0.5, 1.0, NAN, 1.0, 3.0]
    result, plain = paired_test(a, torch.tensor(b)), paired_test([1.0, 4.5, 2.0], [0.5, 1.0, 3.0])
    assert (result.difference, result.p_value) == (plain.difference, plain.p_value)
    assert (result.n, result.excluded) == (3, 2)


def test_no_pair_and_one_pair():
    nothing = paired_test([NAN], [1.0])
    assert np.isnan([nothing.difference, nothing.p_value, nothing.effect_size]).all()
    assert (nothing.n, nothing.excluded) == (0, 1)
    one = paired_test([3.0], [1.0])
    assert (one.difference, one.p_value, one.n) == (2.0, 1.0, 1)
    assert np.isnan([one.low, one.high, one.effect_size]).all()


def test_holm_by_hand():
    # sorted 0.005 0.01 0.03 0.04, times 4 3 2 1: 0.02 0.03 0.06 0.04; the last is raised to 0.06
    np.testing.assert_allclose(
        holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02], rtol=1e-14
    )
    np.testing.assert_allclose(holm([0.6, 0.4, 0.9]), [1, 1, 1], rtol=0)
    np.testing.assert_allclose(holm([0.02, 0.02]), [0.04, 0.04], rtol=1e-14)
    assert holm([0.3]).tolist() == [0.3]
    assert holm([0.0, 1.0]).tolist() == [0.0, 1.0]
    assert holm([]).tolist() == []


def test_holm_rejects_what_the_step_down_procedure_rejects():
    """Holm's own procedure: go up the sorted p-values while p_(i) <= α / (m − i + 1)."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        p, alpha = rng.random(7) ** 3, rng.random() * 0.3
        rejected = np.zeros(7, dtype=bool)
        for i, index in enumerate(np.argsort(p)):
            if p[index] > alpha / (7 - i):
                break
            rejected[index] = True
        np.testing.assert_array_equal(holm(p) <= alpha, rejected)


def test_holm_passes_nan_through():
    given = np.array([NAN, 0.01, NAN, 0.04, 0.03])
    result = holm(given)
    np.testing.assert_allclose(result, [NAN, 0.03, NAN, 0.06, 0.06], rtol=1e-14)
    assert given[1] == 0.01
    assert np.isnan(holm([NAN])).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap_mean([[1.0, 2.0]]), r"values must be of shape \(n,\), got \(1, 2\)"),
        (lambda: bootstrap_mean(1.0), r"values must be of shape \(n,\), got \(\)"),
        (lambda: bootstrap_mean([1.0, math.inf]), "values must be finite values or NaN"),
        (lambda: bootstrap_mean(["a"]), r"values must be 1-D numbers, got \['a'\]"),
        (
            lambda: bootstrap_mean([1.0, 2.0], confidence=95),
            r"confidence must .* \(0, 1\), got 95",
        ),
        (
            lambda: bootstrap_mean([1.0, 2.0], confidence=0),
            r"confidence must .* \(0, 1\), got 0",
        ),
        (
            lambda: bootstrap_mean([1.0, 2.0], confidence=1),
            r"confidence must .* \(0, 1\), got 1",
        ),
        (lambda: bootstrap_mean([1.0, 2.0], resamples=0), "resamples must be .* at least 1, got 0"),
        (lambda: paired_test([[1.0]], [1.0]), r"^a must be of shape \(n,\), got \(1, 1\)$"),
        (lambda: paired_test([1.0], [[1.0]]), r"^b must be of shape \(n,\), got \(1, 1\)$"),
        (lambda: holm([[0.5]]), r"^p_values must be of shape \(n,\), got \(1, 1\)$"),
        (lambda: paired_test([1.0, 2.0], [1.0]), "b must be 2 values, as many as in a, got 1"),
        (lambda: paired_test([1.0, 2.0], [1.0, 2.0], resamples=0), "resamples must be .* got 0"),
        (lambda: holm([0.5, 1.5]), r"p_values must be values in \[0, 1\], got \[0.5, 1.5\]"),
        (lambda: holm([-0.1]), "p_values must be values in"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
