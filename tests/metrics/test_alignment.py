"""Agreement of two vectors against SciPy and NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from infsa_metrics import centred_cosine, cosine, spearman
from scipy import stats

rng = np.random.default_rng(0)
A, B = rng.random((3, 4, 50)), rng.random((3, 4, 50))
TIED_A, TIED_B = rng.integers(0, 5, (3, 4, 50)), rng.integers(0, 3, (3, 4, 50))


def each(function, a, b):
    return [[function(x, y) for x, y in zip(u, v, strict=True)] for u, v in zip(a, b, strict=True)]


@pytest.mark.parametrize(("a", "b"), [(A, B), (TIED_A, TIED_B), (A, TIED_B)])
def test_against_numpy_and_scipy(a, b):
    s, t = torch.from_numpy(a), torch.from_numpy(b)
    plain = each(lambda x, y: x @ y / np.linalg.norm(x) / np.linalg.norm(y), a, b)
    np.testing.assert_allclose(cosine(s, t), plain, rtol=1e-13)
    pearson = each(lambda x, y: np.corrcoef(x, y)[0, 1], a, b)
    np.testing.assert_allclose(centred_cosine(s, t), pearson, atol=1e-13)
    ranks = each(lambda x, y: stats.spearmanr(x, y).statistic, a, b)
    np.testing.assert_allclose(spearman(s, t), ranks, atol=1e-13)


@pytest.mark.parametrize("function", [cosine, centred_cosine, spearman])
def test_undefined_is_nan(function):
    good = torch.tensor([1.0, 2.0, 4.0])
    assert function(good, torch.zeros(3)).isnan()
    assert function(good, torch.tensor([1.0, torch.nan, 2.0])).isnan()
    assert function(good, good).item() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("function", [centred_cosine, spearman])
def test_a_constant_vector_has_no_direction_left(function):
    # 0.1 has no exact mean in binary: rounding must not make a direction of it.
    good = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    flat = torch.full_like(good, 0.1)
    assert function(good, flat).isnan()
    assert function(good, torch.stack([flat, good])).isnan().tolist() == [True, False]


def test_ranks_do_not_change_under_a_monotone_map():
    a, b = torch.from_numpy(A), torch.from_numpy(B)
    assert torch.equal(spearman(a.mul(9).exp() * 1e20, b), spearman(a, b))


def test_broadcasting_and_bad_shapes():
    a, b = torch.from_numpy(A), torch.from_numpy(B)
    assert torch.equal(spearman(a, b[0, 0].expand_as(a)), spearman(a, b[0, 0]))
    for one, other in ((a, b[..., 1:]), (torch.tensor(1.0), b), (b, torch.tensor(1.0))):
        with pytest.raises(ValueError, match="same last dimension"):
            cosine(one, other)


def test_rounding_leaves_no_cosine_beyond_one():
    a = torch.from_numpy(np.random.default_rng(1).normal(size=(500, 7)))
    found = torch.stack([cosine(a, 3 * a), -cosine(a, -3 * a)])
    np.testing.assert_allclose(found, np.ones((2, 500)), rtol=0, atol=1e-15)
    assert (found <= 1).all()
