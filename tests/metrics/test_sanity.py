"""Similarity, stability and agreement of maps against SciPy, scikit-image and plain loops."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from infsa_metrics import agreement, rank_correlation, ssim, stability
from scipy import stats

RNG = np.random.default_rng(0)
A, B = RNG.random((2, 4, 8, 8))
TIED = RNG.integers(0, 4, (4, 8, 8))


def tensors(*arrays):
    return [torch.from_numpy(np.asarray(array)) for array in arrays]


def scipy_rho(a, b):
    return [stats.spearmanr(x.ravel(), y.ravel()).statistic for x, y in zip(a, b, strict=True)]


# ---------------------------------------------------------------- rank correlation


@pytest.mark.parametrize(("a", "b"), [(A, B), (A, TIED), (TIED, TIED[::-1])])
def test_rank_correlation_against_scipy(a, b):
    found = rank_correlation(*tensors(a, b.copy()))
    assert found.shape == (4,)
    np.testing.assert_allclose(found, scipy_rho(a, b), rtol=0, atol=1e-13)


@pytest.mark.parametrize("same", [lambda x: x, lambda x: 5 * x - 3, torch.exp, torch.sqrt])
def test_the_same_order_is_1_and_the_reverse_minus_1(same):
    (a,) = tensors(A)
    np.testing.assert_allclose(rank_correlation(a, same(a)), np.ones(4), rtol=0, atol=1e-14)
    np.testing.assert_allclose(rank_correlation(a, -same(a)), -np.ones(4), rtol=0, atol=1e-14)


def test_rank_correlation_by_hand():
    """1 − 6 Σd² / (n (n² − 1)) of ranks 1 2 3 4 and 2 1 4 3: Σd² = 4."""
    a, b = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.tensor([[[20.0, 10.0], [40.0, 30.0]]])
    assert rank_correlation(a, b).item() == pytest.approx(1 - 6 * 4 / (4 * 15), abs=1e-15)


# ---------------------------------------------------------------- structural similarity


def ssim_by_hand(a, b, side):
    """Wang et al.'s formula window by window, with NumPy's covariance."""
    a, b = ((x - x.min()) / (x.max() - x.min()) for x in (a, b))
    values = []
    for i in range(a.shape[0] - side + 1):
        for j in range(a.shape[1] - side + 1):
            x, y = (m[i : i + side, j : j + side].ravel() for m in (a, b))
            (var_x, cov), (_, var_y) = np.cov(x, y)
            luminance = (2 * x.mean() * y.mean() + 1e-4) / (x.mean() ** 2 + y.mean() ** 2 + 1e-4)
            values.append(luminance * (2 * cov + 9e-4) / (var_x + var_y + 9e-4))
    return np.mean(values)


@pytest.mark.parametrize(
    ("shape", "window", "side"),
    [
        ((8, 8), 7, 7),
        ((14, 14), 7, 7),
        ((14, 14), 11, 11),
        ((5, 9), 7, 5),
        ((9, 4), 7, 4),
        ((2, 3), 7, 2),
        ((6, 6), 2, 2),
    ],
)
def test_ssim_against_the_formula(shape, window, side):
    rng = np.random.default_rng(1)
    a = rng.random((3, *shape)) ** 3 * 1e-3
    b = np.stack([a[0] + rng.random(shape) * 1e-4, rng.random(shape), 5 - 2 * a[2]])
    found = ssim(*tensors(a, b), window=window)
    expected = [ssim_by_hand(x, y, side) for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "window", "expected"),
    [
        ((8, 8), 7, -0.01938937551414318),
        ((14, 14), 7, -0.03622327413438996),
        ((14, 14), 11, -0.017017456071662825),
        ((5, 9), 5, -0.06483106066161533),
    ],
)
def test_ssim_against_scikit_image(shape, window, expected):
    """Numbers of skimage.metrics.structural_similarity(a, b, win_size=window, data_range=1).

    scikit-image 0.26.0, of the two maps below, each scaled to [0, 1].
    """
    i, j = np.indices(shape)
    a, b = tensors((3 * i + 5 * j)[None] % 7 / 1.0, ((i * j) % 5 + 0.25 * i)[None])
    assert ssim(a, b, window=window).item() == pytest.approx(expected, abs=1e-13)


def test_ssim_does_not_see_scale_and_offset():
    a, b = tensors(A, B)
    np.testing.assert_allclose(ssim(a, a), np.ones(4), rtol=0, atol=1e-15)
    np.testing.assert_allclose(ssim(a, 1e9 * a + 7), np.ones(4), rtol=0, atol=1e-12)
    np.testing.assert_allclose(ssim(1e-30 * a, b), ssim(a, b), rtol=0, atol=1e-12)
    np.testing.assert_allclose(ssim(b, a), ssim(a, b), rtol=0, atol=1e-15)


def test_ssim_of_a_map_and_its_negative():
    """In one 2×2 window: means ½, variances v = 1/3, covariance −v."""
    a = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])
    expected = (-2 / 3 + 9e-4) / (2 / 3 + 9e-4)
    assert ssim(a, -a).item() == pytest.approx(expected, abs=1e-15)


# ---------------------------------------------------------------- what all have in common


def pairs(a, b):
    return agreement({"a": a, "b": b})[:, 0, 1]


PAIRED = [rank_correlation, ssim, pairs]


@pytest.mark.parametrize("measure", PAIRED)
def test_a_map_without_an_order_is_nan_and_counted(measure):
    """0.1 has no exact mean in binary: rounding must not make an order of it."""
    a, b = tensors(A, B.copy())
    b[1], b[2, 3, 3] = 0.1, torch.nan
    for found in (measure(a, b), measure(b, a)):
        assert found.isnan().tolist() == [False, True, True, False]


@pytest.mark.parametrize("measure", PAIRED)
def test_a_nearly_flat_map_counts_by_its_order(measure):
    """As an untrained model's: a share of 1e-4 upon a constant, in float32."""
    a = tensors(A)[0].float()
    np.testing.assert_allclose(measure(a, 1 + 1e-4 * a), np.ones(4), rtol=0, atol=1e-3)
    other = (a - a.mean()).roll(3, -1)
    np.testing.assert_allclose(measure(a, 1 + 1e-4 * other), measure(a, other), atol=3e-3)


@pytest.mark.parametrize("measure", PAIRED)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_an_image_does_not_depend_on_its_batch(measure, dtype):
    a, b = (maps.to(dtype).requires_grad_() for maps in tensors(A, B))
    before = a.detach().clone(), b.detach().clone()
    found = measure(a, b)
    assert found.dtype == torch.float64 and not found.requires_grad
    for place in range(4):
        alone = slice(place, place + 1)
        assert torch.equal(measure(a[alone], b[alone]), found[alone])
    assert torch.equal(a, before[0]) and torch.equal(b, before[1])


@pytest.mark.parametrize("measure", PAIRED)
@pytest.mark.parametrize(
    "shapes",
    [((2, 4, 4), (2, 4, 5)), ((2, 4, 4), (1, 4, 4)), ((4, 4),) * 2, ((2, 0, 4),) * 2],
)
def test_maps_that_do_not_fit_are_refused(measure, shapes):
    message = f"a, b must be of one shape (B, gh, gw), got a {shapes[0]}, b {shapes[1]}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        measure(*(torch.rand(shape) for shape in shapes))


def test_documented_defaults():
    a, b = tensors(*np.random.default_rng(2).random((2, 3, 14, 14)))
    assert torch.equal(ssim(a, b), ssim(a, b, window=7))
    x = images()
    assert torch.equal(stability(brightness, x), stability(brightness, x, noise=0.05, draws=4))


def test_what_ssim_refuses():
    with pytest.raises(ValueError, match=r"at least 2×2 patches, got \(1, 9\)"):
        ssim(torch.rand(2, 1, 9), torch.rand(2, 1, 9))
    for window in (1, 7.0, True):
        with pytest.raises(ValueError, match=f"window must be an integer .* got {window}"):
            ssim(*tensors(A, B), window=window)


# ---------------------------------------------------------------- agreement


def test_agreement_against_scipy():
    maps = {"b": B, "tied": TIED, "a": A}
    found = agreement({name: torch.from_numpy(array) for name, array in maps.items()})
    for image in range(4):
        columns = np.stack([array[image].ravel() for array in maps.values()], 1)
        expected = stats.spearmanr(columns).statistic
        np.testing.assert_allclose(found[image], expected, rtol=0, atol=1e-13)
    assert torch.equal(found, found.mT)
    assert torch.equal(found.diagonal(dim1=1, dim2=2), torch.ones(4, 3, dtype=torch.float64))


def test_agreement_is_nan_in_the_row_and_column_of_a_constant_map():
    a, b, flat = tensors(A, B, np.full((4, 8, 8), 0.1))
    found = agreement({"a": a, "flat": flat, "b": b}).isnan()
    expected = torch.tensor([[0, 1, 0], [1, 1, 1], [0, 1, 0]], dtype=torch.bool)
    assert torch.equal(found, expected.expand(4, 3, 3))


def test_agreement_of_nothing_is_refused():
    with pytest.raises(ValueError, match="^maps must hold at least one method, got none$"):
        agreement({})


# ---------------------------------------------------------------- stability


def images(batch=3, side=8, seed=0):
    return torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(seed))


def brightness(x):
    return x.mean(1)


def recorded(function):
    """A function that keeps what it was given."""
    given = []

    def explain(x):
        given.append(x.clone())
        return function(x)

    return explain, given


def test_stability_is_the_mean_over_draws_of_the_maps_it_asked_for():
    explain, given = recorded(brightness)
    x = images()
    found = stability(explain, x, noise=0.1, draws=3)
    clean, *noisy = [brightness(each).numpy() for each in given]
    assert len(noisy) == 3
    assert torch.equal(given[0], x)
    np.testing.assert_allclose(
        found, np.mean([scipy_rho(clean, each) for each in noisy], axis=0), rtol=0, atol=1e-13
    )
    assert (found > 0.5).all() and (found < 1).all()


def test_noise_is_a_share_of_each_images_own_range():
    """1.5 times as wide an image has 1.5 times the noise; all pixels and draws differ."""
    explain, given = recorded(brightness)
    x = (
        torch.linspace(-1, 1, 3 * 64 * 64).view(1, 3, 64, 64)
        * torch.tensor([2.0, 3.0])[:, None, None, None]
    )
    stability(explain, x, noise=0.05, draws=2, seeds=["a", "b"])
    noise = torch.stack(given[1:]) - x  # (draws, B, C, H, W)
    expected = torch.tensor([0.05 * 4, 0.05 * 6]).expand(2, 2)
    np.testing.assert_allclose(noise.std((2, 3, 4)), expected, rtol=0.02)  # 12,288 pixels: 0.6%
    np.testing.assert_allclose(noise.mean((2, 3, 4)), np.zeros((2, 2)), atol=0.01)
    independent = np.corrcoef(noise.transpose(0, 1).reshape(2 * 2 * 3, -1))
    np.testing.assert_allclose(independent, np.eye(12), atol=0.06)  # 4,096 pixels: 4 / 64


def test_more_noise_is_less_stable_and_a_map_of_no_image_perfectly_so():
    x = images(side=16)
    means = [stability(brightness, x, noise=noise).mean().item() for noise in (1e-7, 0.02, 0.2, 2)]
    assert means[0] == pytest.approx(1, abs=1e-3)
    assert means == sorted(means, reverse=True)
    assert means[-1] < 0.2
    blob = torch.rand(16, 16, generator=torch.Generator().manual_seed(1))
    still = stability(lambda x: blob.expand(len(x), 16, 16), x)
    np.testing.assert_allclose(still, np.ones(3), rtol=0, atol=1e-14)


def test_a_map_that_noise_turns_over():
    signs = iter([1, -1, -1, 1, 1])
    blob = images()[:, 0]
    found = stability(lambda x: next(signs) * blob, images(), draws=4)
    np.testing.assert_allclose(found, np.zeros(3), rtol=0, atol=1e-14)  # mean of −1, −1, 1, 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_noise_goes_with_the_image_not_with_its_place(dtype):
    x, seeds = images(batch=4).to(dtype), ["n01", "n02", 3, 4]
    found = stability(brightness, x, noise=0.1, seeds=seeds)
    turned = stability(brightness, x.flip(0), noise=0.1, seeds=seeds[::-1])
    assert torch.equal(turned.flip(0), found)
    for place in range(4):
        alone = stability(brightness, x[place : place + 1], noise=0.1, seeds=[seeds[place]])
        assert torch.equal(alone[0], found[place])
    assert torch.equal(stability(brightness, x, noise=0.1), stability(brightness, x, noise=0.1))
    assert not torch.equal(stability(brightness, x, noise=0.1), found)
    explain, given = recorded(brightness)
    stability(explain, x, draws=1)
    assert [shown.dtype for shown in given] == [dtype] * 2


def test_stability_without_an_order_or_a_range_is_nan():
    x = images(batch=4)
    blob = x[:1, 0].clone()
    x[1] = 0.3  # no range: no noise, and a map that holds perfectly still

    def explain(x):
        maps = brightness(x) + blob
        maps[2] = 0.1  # constant
        maps[3] = torch.nan
        return maps

    assert stability(explain, x).isnan().tolist() == [False, True, True, True]
    calls = iter([1.0, 1.0, 0.0])  # the second noisy map is constant
    assert stability(lambda x: next(calls) * blob, x[:1], draws=2).isnan().all()


@torch.no_grad()
def test_explain_may_take_gradients_and_inputs_stay():
    x = images()
    before = x.clone()

    def gradient(x):
        with torch.enable_grad():
            leaf = x.clone().requires_grad_()
            return torch.autograd.grad((leaf**3).sum(), leaf, create_graph=True)[0].mean(1)

    found = stability(gradient, x, noise=1e-7)
    np.testing.assert_allclose(found, np.ones(3), rtol=0, atol=1e-4)
    assert not found.requires_grad
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": torch.zeros(3, 8, 8)}, r"images must be floats .* got \(3, 8, 8\)"),
        ({"images": torch.zeros(1, 3, 8, 8, dtype=torch.uint8)}, "images must be floats"),
        ({"noise": 0.0}, "noise must be a share above 0, got 0.0"),
        ({"noise": float("inf")}, "noise must be a share above 0, got inf"),
        ({"noise": float("nan")}, "noise must be a share above 0, got nan"),
        ({"draws": 0}, "draws must be an integer of at least 1, got 0"),
        ({"draws": 1.5}, "draws must be an integer of at least 1, got 1.5"),
        ({"seeds": [1]}, r"seeds must be 3 identities, one for each image, got \[1\]"),
        ({"seeds": "abc"}, "seeds must be 3 identities, one for each image, got 'abc'"),
        ({"explain": lambda x: x}, r"the result of explain must be .* got \(3, 3, 8, 8\)"),
        (
            {"explain": lambda x: x[:1, 0]},
            r"the result of explain must be maps .*\(3, gh, gw\), got \(1, 8",
        ),
        ({"explain": lambda x: [x]}, "the result of explain must be .* got list"),
    ],
)
def test_what_stability_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        stability(**{"explain": brightness, "images": images()} | arguments)
