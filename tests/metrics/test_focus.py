"""Focus measures against SciPy, double loops and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from infsa_metrics import effective_patches, entropy, gini, token_similarity
from scipy import stats

FOCUS = [entropy, gini, effective_patches]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def random_scores(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gini_by_hand(s):
    """Half the mean absolute difference of all pairs over the mean."""
    return np.abs(s[:, None] - s).mean() / (2 * s.mean())


@pytest.mark.parametrize("dtype", DTYPES)
def test_against_scipy(dtype):
    scores = random_scores(2, 3, 40).to(dtype)
    rows = scores.double().numpy()
    expected = stats.entropy(rows, axis=-1)
    np.testing.assert_allclose(entropy(scores), expected, rtol=1e-13)
    np.testing.assert_allclose(effective_patches(scores), np.exp(expected), rtol=1e-13)
    expected = np.apply_along_axis(gini_by_hand, -1, rows)
    np.testing.assert_allclose(gini(scores), expected, rtol=1e-12)
    assert all(f(scores).shape == (2, 3) and f(scores).dtype == torch.float64 for f in FOCUS)


levels = st.sampled_from([0.0, 0.1, 0.25, 1.0, 7.0])


@given(hnp.arrays(np.float64, st.integers(1, 30), elements=levels).filter(lambda s: s.any()))
def test_ties_and_zeros(s):
    scores = torch.from_numpy(s)
    assert entropy(scores).item() == pytest.approx(stats.entropy(s), abs=1e-12)
    assert gini(scores).item() == pytest.approx(gini_by_hand(s), abs=1e-12)


@pytest.mark.parametrize("equal", [1, 3, 10])
def test_equal_scores_and_zeros(equal):
    scores = torch.zeros(10)
    scores[:equal] = 0.1
    assert entropy(scores).item() == pytest.approx(math.log(equal), abs=1e-14)
    assert effective_patches(scores).item() == pytest.approx(equal, abs=1e-13)
    assert gini(scores).item() == pytest.approx(1 - equal / 10, abs=1e-14)
    assert gini(scores).item() >= 0


@pytest.mark.parametrize("measure", FOCUS)
def test_neither_scale_nor_place_counts(measure):
    scores = random_scores(5, 40)
    expected = measure(scores)
    for changed in (scores * 1e300, scores * 1e-300, scores / scores.sum(), scores.flip(1)):
        torch.testing.assert_close(measure(changed), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("measure", FOCUS)
def test_all_zero_is_nan(measure):
    scores = random_scores(3, 8)
    expected = measure(scores)
    scores[1] = 0
    values = measure(scores)
    assert values.isnan().tolist() == [False, True, False]
    assert values[::2].equal(expected[::2])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("measure", FOCUS)
def test_a_batch_is_its_rows_and_inputs_stay(measure, dtype):
    scores = random_scores(2, 50).to(dtype)
    before = scores.clone()
    assert measure(scores).equal(torch.stack([measure(row) for row in scores]))
    assert not measure(scores.clone().requires_grad_()).requires_grad
    assert scores.equal(before)


@pytest.mark.parametrize("measure", FOCUS)
def test_bad_scores(measure):
    for bad in (-1e-9, torch.nan, torch.inf, -torch.inf):
        with pytest.raises(ValueError, match="scores must be finite values of at least 0"):
            measure(torch.tensor([0.5, bad]))
    for empty in (torch.tensor(1.0), torch.zeros(3, 0)):
        with pytest.raises(ValueError, match=r"scores must be of shape \(\.\.\., P\)"):
            measure(empty)


def similarity_by_hand(tokens):
    cosines = [
        a @ b / math.sqrt((a @ a) * (b @ b))
        for i, a in enumerate(tokens)
        for j, b in enumerate(tokens)
        if i != j
    ]
    return np.mean(cosines)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_similarity_against_all_pairs(shift, dtype):
    tokens = (random_scores(3, 13, 6) - shift).to(dtype)
    expected = [similarity_by_hand(t) for t in tokens.double().numpy()]
    np.testing.assert_allclose(token_similarity(tokens), expected, rtol=0, atol=1e-13)
    assert token_similarity(tokens).dtype == torch.float64


def test_similarity_in_closed_form():
    orthogonal = torch.eye(7)[None] * torch.arange(1, 8)[:, None]
    assert token_similarity(orthogonal).item() == pytest.approx(0, abs=1e-15)
    simplex = torch.eye(7, dtype=torch.float64)[None] - 1 / 7  # as far apart as 7 can be
    assert token_similarity(simplex).item() == pytest.approx(-1 / 6, abs=1e-15)
    same = random_scores(1, 1, 5) * torch.arange(1, 10)[:, None]  # one direction, any length
    assert token_similarity(same).item() == pytest.approx(1, abs=1e-14)
    assert token_similarity(same).item() <= 1
    assert token_similarity(torch.tensor([[[1.0, 2.0], [-1.0, -2.0]]])).item() == pytest.approx(-1)


def test_similarity_does_not_depend_on_lengths():
    tokens = random_scores(2, 9, 5)
    lengths = 10.0 ** torch.linspace(-300, 300, 9, dtype=torch.float64)[:, None]
    torch.testing.assert_close(token_similarity(tokens * lengths), token_similarity(tokens))


def test_similarity_is_nan_where_undefined():
    tokens = random_scores(2, 9, 5)
    expected = token_similarity(tokens)
    tokens[0, 3] = 0
    values = token_similarity(tokens)
    assert values.isnan().tolist() == [True, False]
    assert values[1] == expected[1]
    assert token_similarity(random_scores(50, 1, 5)).isnan().all()  # whatever the rounding


def test_similarity_of_a_batch_is_its_images_and_inputs_stay():
    tokens = random_scores(2, 9, 5)
    before = tokens.clone()
    singles = [token_similarity(tokens[i : i + 1]) for i in range(2)]
    assert token_similarity(tokens).equal(torch.cat(singles))
    assert not token_similarity(tokens.clone().requires_grad_()).requires_grad
    assert tokens.equal(before)


def test_bad_tokens():
    with pytest.raises(ValueError, match=r"tokens must be of shape \(B, N, D\), got \(3, 4\)"):
        token_similarity(torch.ones(3, 4))
    with pytest.raises(ValueError, match=r"tokens must be of shape \(B, N, D\), got \(1, 0, 4\)"):
        token_similarity(torch.ones(1, 0, 4))
    for bad in (torch.nan, torch.inf):
        with pytest.raises(ValueError, match="tokens must be finite values"):
            token_similarity(torch.tensor([[[1.0, bad]]]))


@pytest.mark.parametrize("measure", FOCUS)
def test_bad_scores_are_counted(measure):
    with pytest.raises(ValueError, match="^scores must be .* of at least 0, got 2 others$"):
        measure(torch.tensor([[0.5, -1.0, 1.0], [0.0, 1.0, torch.nan]]))


def test_tokens_that_are_not_finite_are_named():
    with pytest.raises(ValueError, match="^tokens must be finite values, got NaN or infinity$"):
        token_similarity(torch.tensor([[[1.0, torch.nan]]]))


def test_rounding_leaves_no_similarity_above_one():
    found = token_similarity(random_scores(200, 1, 5) * random_scores(200, 9, 1, seed=1))
    np.testing.assert_allclose(found, np.ones(200), rtol=0, atol=1e-14)
    assert (found <= 1).all()
