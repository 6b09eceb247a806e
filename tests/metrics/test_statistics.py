"""Statistics against enumeration, numpy and coverage in simulation."""

from __future__ import annotations

import math
import warnings
from dataclasses import astuple

import numpy as np
import pytest
import torch
from infsa_metrics import bootstrap_mean, holm, paired_test
from infsa_metrics.statistics import paired_tests
from scipy import stats

NAN = math.nan


def normal(n, seed=0, loc=0.3):
    return np.random.default_rng(seed).normal(loc, 1, n)


def by_hand(x, clusters, resamples, seed, start=10):
    """|t*| of a studentised bootstrap over units, one resample after the other, sorted."""
    numbers = {}
    units = np.array([numbers.setdefault(c, len(numbers)) for c in clusters])
    groups = [x[units == u] for u in range(len(numbers))]
    assert len(groups) >= start
    rng = np.random.default_rng(seed)
    t = []
    for _ in range(resamples):
        drawn = [groups[i] for i in rng.integers(0, len(groups), len(groups))]
        t.append(abs(np.concatenate(drawn).mean() - x.mean()) / error(drawn))
    return np.sort(t)


def error(groups):
    """Standard error of a mean over clusters, by linearisation."""
    images = np.concatenate(groups)
    residuals = np.array([(g - images.mean()).sum() for g in groups])
    u = len(groups)
    return np.sqrt(u / (u - 1) * (residuals**2).sum()) / len(images)


@pytest.mark.parametrize("cluster_size", [1, 3])
def test_interval_and_p_value_by_hand(cluster_size):
    x = normal(45)
    clusters = [f"video {i // cluster_size if i > 4 else 0}" for i in range(45)]
    if cluster_size == 1:
        clusters = list(range(45))
    groups = [x[[c == name for c in clusters]] for name in dict.fromkeys(clusters)]
    t = by_hand(x, clusters, 499, seed=7)
    options = {"resamples": 499, "seed": 7, "clusters": clusters}
    result = bootstrap_mean(x, confidence=0.9, **options)
    half = t[-50] * error(groups)  # exceeded by 49 of 499, and the sample: 50 of 500
    assert (result.low, result.high) == pytest.approx((x.mean() - half, x.mean() + half), rel=1e-12)
    assert (result.n, result.units, result.excluded) == (45, len(groups), 0)
    test = paired_test(x, 0 * x, **options)
    reached = (t >= abs(x.mean()) / error(groups)).sum()
    assert test.p_value == pytest.approx((reached + 1) / 500, abs=1e-15)


def test_without_clusters_units_are_images():
    x = normal(30)
    assert bootstrap_mean(x) == bootstrap_mean(x, clusters=range(30))
    assert bootstrap_mean(x) == bootstrap_mean(x, clusters=[None] * 30)
    assert bootstrap_mean(x[:20], clusters=[None, "a"] * 10).units == 11


def test_p_and_interval_tell_the_same():
    """p <= 0.05 exactly where the interval excludes 0, of one test and of a family."""
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(40):
        x = rng.exponential(size=30) - 1 + rng.normal(0, 0.2)
        tests = [paired_test(x, 0 * x, resamples=999)]
        family = {i: (x * i + rng.normal(size=30) * (3 - i), 0 * x) for i in (1, 2)}
        tests += paired_tests(family, resamples=999).values()
        for test in tests:
            excludes = not test.low <= 0 <= test.high
            assert excludes == (test.p_value <= 0.05)
            seen.add(excludes)
    assert seen == {True, False}


def test_families_by_hand():
    """The largest |t*| over three tests that share their resamples."""
    rng = np.random.default_rng(2)
    columns = rng.normal(0.2, 1, (3, 25)) + rng.normal(size=25)
    t = []
    draws = np.random.default_rng(5)
    for _ in range(199):
        at = draws.integers(0, 25, 25)
        drawn = columns[:, at]
        errors = drawn.std(axis=1, ddof=1) / 5
        t.append((np.abs(drawn.mean(1) - columns.mean(1)) / errors).max())
    tests = paired_tests({i: (x, 0 * x) for i, x in enumerate(columns)}, seed=5, resamples=199)
    for i, x in enumerate(columns):
        observed = abs(x.mean()) / (x.std(ddof=1) / 5)
        assert tests[i].p_value == pytest.approx(((t >= observed).sum() + 1) / 200, abs=1e-15)
        half = np.sort(t)[-10] * x.std(ddof=1) / 5
        assert tests[i].high == pytest.approx(x.mean() + half, rel=1e-12)


def test_a_family_of_many_alike_costs_little():
    """Tests of the same numbers need no correction; independent ones need about Bonferroni's."""
    x = normal(50, loc=0.35)
    alone = paired_test(x, 0 * x)
    alike = paired_tests({i: (x, 0 * x) for i in range(10)})
    assert {test.p_value for test in alike.values()} == {alone.p_value}
    others = {i: (normal(50, seed=i + 50), np.zeros(50)) for i in range(9)}
    p = paired_tests({"x": (x, 0 * x), **others})["x"].p_value
    assert 5 * alone.p_value < p < 12 * alone.p_value


def test_family_wise_error_rate():
    """300 families of 5 skewed, correlated tests without effects: any p <= 0.05 in 5% + 3 s.e."""
    rng = np.random.default_rng(3)
    alarms = 0
    for _ in range(300):
        x = rng.exponential(size=(5, 60)) + rng.exponential(size=60) - 2
        tests = paired_tests({i: (y, 0 * y) for i, y in enumerate(x)}, resamples=399)
        alarms += any(test.p_value <= 0.05 for test in tests.values())
    assert alarms / 300 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)


def test_more_than_5000_units():
    """The normal distribution, of which the bootstrap at 5,000 differs by less than 1%."""
    x = np.random.default_rng(0).exponential(size=5002)
    normal_one, bootstrap = bootstrap_mean(x[:5001]), bootstrap_mean(x[:5000])
    assert normal_one.high - normal_one.mean == pytest.approx(1.96 * stats.sem(x[:5001]), rel=0.03)
    assert bootstrap.high - bootstrap.mean == pytest.approx(1.96 * stats.sem(x[:5000]), rel=0.04)


@pytest.mark.parametrize("n", [3, 9])
def test_few_units_have_students_t(n):
    x = normal(n)
    low, high = stats.t.interval(0.95, n - 1, loc=x.mean(), scale=stats.sem(x))
    result, test = bootstrap_mean(x), paired_test(x, 0 * x)
    assert (result.low, result.high) == pytest.approx((low, high), rel=1e-12)
    assert test.p_value == pytest.approx(stats.ttest_1samp(x, 0).pvalue, rel=1e-12)
    pair = paired_tests({0: (x, 0 * x), 1: (x + 1, 0 * x)})[0]
    assert pair.p_value == pytest.approx(min(1, 2 * test.p_value), rel=1e-12)


class TestProportions:
    @pytest.mark.parametrize(("hits", "n"), [(50, 50), (0, 12), (49, 50), (3, 7)])
    def test_wilson(self, hits, n):
        x = [1.0] * hits + [0.0] * (n - hits)
        expected = stats.binomtest(hits, n).proportion_ci(method="wilson")
        result = bootstrap_mean(x, proportion=True)
        assert (result.low, result.high) == pytest.approx(tuple(expected), abs=1e-12)

    def test_coverage(self):
        """Of 98% correct at n = 50, where a bootstrap covers 59%."""
        rng = np.random.default_rng(0)
        covered = [
            (r := bootstrap_mean(rng.random(50) < 0.98, proportion=True)).low <= 0.98 <= r.high
            for _ in range(500)
        ]
        assert np.mean(covered) > 0.9

    def test_clusters_count_as_one_where_they_agree(self):
        x = np.repeat([1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0], 5)
        clusters = np.repeat(np.arange(12), 5)
        result = bootstrap_mean(x, clusters=clusters, proportion=True)
        p, n = 8 / 12, 11  # p (1 − p) / error², error² = p (1 − p) / 11
        expected = stats.binomtest(8, 12)
        assert expected.statistic == pytest.approx(p)
        z = stats.norm.ppf(0.975)
        half = z / (1 + z**2 / n) * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
        assert result.high - result.low == pytest.approx(2 * half, rel=1e-9)

    def test_all_correct_in_clusters(self):
        result = bootstrap_mean(np.ones(60), clusters=np.repeat(range(12), 5), proportion=True)
        expected = stats.binomtest(12, 12).proportion_ci(method="wilson")
        assert (result.low, result.high) == pytest.approx(tuple(expected), abs=1e-12)

    def test_other_values_are_refused(self):
        with pytest.raises(ValueError, match=r"values must be in \[0, 1\] for a proportion"):
            bootstrap_mean([0.0, 2.0], proportion=True)


class TestTrainings:
    def test_by_hand(self):
        values = np.random.default_rng(0).normal(0.5, 0.1, (3, 40)) + [[0.0], [0.05], [-0.02]]
        over_images = values.mean(0).var(ddof=1) / 40
        over_trainings = values.mean(1).var(ddof=1) / 3
        total = over_images + over_trainings
        freedom = total**2 / (over_images**2 / 39 + over_trainings**2 / 2)
        half = stats.t.ppf(0.975, freedom) * math.sqrt(total)
        result = bootstrap_mean(values)
        assert result.mean == pytest.approx(values.mean(), rel=1e-14)
        assert (result.low, result.high) == pytest.approx(
            (values.mean() - half, values.mean() + half), rel=1e-12
        )
        assert (result.n, result.units, result.trainings) == (40, 40, 3)
        test = paired_test(values, 0.45 + 0 * values)
        t = (values.mean() - 0.45) / math.sqrt(total)
        assert test.p_value == pytest.approx(2 * stats.t.sf(abs(t), freedom), rel=1e-9)

    def test_coverage_of_the_mean_over_trainings(self):
        """Three trainings that differ as much as the images' mean is uncertain."""
        rng = np.random.default_rng(0)
        covered = []
        for _ in range(500):
            x = rng.normal(0, 1, 50) + rng.normal(0, 0.15, (3, 1)) + rng.normal(0, 0.5, (3, 50))
            result = bootstrap_mean(x)
            covered.append(result.low <= 0 <= result.high)
        assert np.mean(covered) > 0.95 - 3 * math.sqrt(0.95 * 0.05 / 500)

    def test_an_image_without_a_value_in_one_training_is_excluded(self):
        values = np.random.default_rng(0).random((2, 12))
        values[1, 3] = NAN
        result = bootstrap_mean(values)
        assert (result.n, result.excluded) == (11, 1)
        assert result.mean == pytest.approx(np.delete(values, 3, 1).mean(), rel=1e-14)


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


def test_values_that_hardly_vary():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = bootstrap_mean([0.0] * 11 + [1e-300])  # its square, the variance, is 0
    assert (result.low, result.high) == (result.mean, result.mean)


def test_noise_in_the_last_digits_moves_an_interval_no_further():
    rng = np.random.default_rng(0)
    for x in rng.random((10, 17)):
        other = bootstrap_mean(x + 1e-8 * rng.standard_normal(17))
        assert astuple(bootstrap_mean(x)) == pytest.approx(astuple(other), abs=1e-7)


def test_the_seed_decides():
    x = normal(20)
    assert bootstrap_mean(x, seed=3) == bootstrap_mean(x, seed=3)
    assert bootstrap_mean(x, seed=3) != bootstrap_mean(x, seed=4)
    test, interval = paired_test(x, 0 * x, seed=3), bootstrap_mean(x, seed=3)
    assert (test.low, test.high) == (interval.low, interval.high)
    assert test == paired_test(x, 0 * x, seed=3)
    assert test.p_value != paired_test(x, 0 * x, seed=4).p_value


def test_documented_defaults():
    x = normal(20)
    assert bootstrap_mean(x) == bootstrap_mean(x, confidence=0.95, resamples=9999, seed=0)
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


def test_difference_and_effect_size():
    a, b = normal(16, seed=2), normal(16, seed=3, loc=0)
    d = a - b
    result = paired_test(a, b)
    assert result.difference == pytest.approx(d.mean(), abs=1e-15)
    assert result.effect_size == pytest.approx(d.mean() / np.std(d, ddof=1), rel=1e-14)
    interval = bootstrap_mean(d)
    assert (result.low, result.high) == (interval.low, interval.high)
    assert (result.n, result.excluded) == (16, 0)


def test_swapping_the_arms_only_changes_the_sign():
    a, b = normal(10, seed=4), normal(10, seed=5)
    one, other = paired_test(a, b), paired_test(b, a)
    assert one.p_value == other.p_value
    assert one.difference == -other.difference
    assert one.effect_size == -other.effect_size


def test_p_values_come_near_the_t_test():
    a = normal(200, seed=6, loc=0.0)
    result = paired_test(a, np.zeros(200))
    p = stats.ttest_1samp(a, 0).pvalue
    assert 0.01 < p < 0.5
    assert result.p_value == pytest.approx(p, abs=4 * math.sqrt(p / 9999) + 0.005)


def test_smallest_p_value():
    result = paired_test(np.full(50, 2.0) + normal(50) / 100, np.ones(50), resamples=999)
    assert result.p_value == pytest.approx(1 / 1000, abs=1e-15)


@pytest.mark.parametrize("draw", ["normal", "exponential", "standard_t"])
def test_false_alarms_are_as_rare_as_promised(draw):
    """300 samples of 50 without an effect: p <= 0.05 in at most 5% + 3 s.e. of them."""
    rng = np.random.default_rng(8)
    options = {"normal": (), "exponential": (), "standard_t": (3,)}[draw]
    x = getattr(rng, draw)(*options, size=(300, 50)) - (draw == "exponential")
    p = [paired_test(row, 0 * row, resamples=399).p_value for row in x]
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
        (
            lambda: bootstrap_mean([[[1.0, 2.0]]]),
            r"^values .*\(n,\) or \(T, n\), got \(1, 1, 2\)",
        ),
        (lambda: bootstrap_mean(1.0), r"values must be of shape \(n,\) or .*, got \(\)"),
        (lambda: bootstrap_mean([1.0, math.inf]), "values must be finite values or NaN"),
        (lambda: bootstrap_mean(["a"]), r"values must be numbers, got \['a'\]"),
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
        (
            lambda: bootstrap_mean([1.0, 2.0], resamples=-1),
            "resamples must be .* at least 0, got -1",
        ),
        (lambda: paired_test(1.0, [1.0]), r"^a must be of shape .*, got \(\)$"),
        (
            lambda: bootstrap_mean([1.0], clusters=[1, 2]),
            "clusters must be one for each of 1",
        ),
        (lambda: holm([[0.5], [0.5]]), r"^p_values must be of shape \(n,\), got \(2, 1\)$"),
        (lambda: paired_test([1.0, 2.0], [1.0]), r"b must be of the shape of a, \(1, 2\)"),
        (lambda: paired_test([1.0, 2.0], [1.0, 2.0], resamples=-1), "resamples must be .* got -1"),
        (lambda: holm([0.5, 1.5]), r"p_values must be values in \[0, 1\], got \[0.5, 1.5\]"),
        (lambda: holm([-0.1]), "p_values must be values in"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
