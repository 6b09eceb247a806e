"""Infidelity and sensitivity against their definitions, worked out slowly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from infsa_metrics.faithfulness import infidelity, sensitivity_max
from scipy import stats

GRID = (4, 5)


def pictures(batch=2):
    return torch.randn(batch, 3, 8, 10, generator=torch.Generator().manual_seed(1))


def maps(batch=2):
    return torch.randn(batch, *GRID, generator=torch.Generator().manual_seed(2))


class Predictor:
    """p of three classes from brightness and place of what is left: not additive; remembers."""

    def __init__(self):
        self.removed, self.sizes = [], []
        self.weights = torch.randn(3, *GRID, generator=torch.Generator().manual_seed(3)).double()

    def __call__(self, images, removed):
        self.removed.append(removed.clone())
        self.sizes.append(len(images))
        patches = torch.nn.functional.avg_pool2d(images.double().sum(1), 2) * ~removed
        return torch.einsum("nij,kij->nk", patches, self.weights).tanh().softmax(-1)


def every_square(gh, gw):
    """All squares of at most half the shorter side, rounded up, as boolean masks."""
    masks = []
    for side in range(1, int(np.ceil(min(gh, gw) / 2)) + 1):
        for top, left in itertools.product(range(gh), range(gw)):
            if top + side <= gh and left + side <= gw:
                mask = np.zeros((gh, gw), dtype=bool)
                mask[top : top + side, left : left + side] = True
                masks.append(mask)
    return masks


def by_definition(predict, image, target, scores, masks, normalize):
    """E (β Σ I φ − (p(x) − p(x without I)))², β by least squares, one square at a time."""
    nothing = torch.zeros(1, *GRID, dtype=torch.bool)
    whole = predict(image[None], nothing)[0, target].item()
    lost, summed = [], []
    for mask in masks:
        p = predict(image[None], torch.tensor(np.asarray(mask))[None])[0, target].item()
        lost.append(whole - p)
        summed.append(scores.double().numpy()[np.asarray(mask)].sum())
    lost, summed = np.array(lost), np.array(summed)
    beta = np.linalg.lstsq(summed[:, None], lost, rcond=None)[0][0] if normalize else 1.0
    return ((beta * summed - lost) ** 2).mean()


def close(actual, expected, atol=1e-12):
    np.testing.assert_allclose(actual.numpy(), np.asarray(expected), rtol=0, atol=atol)


# ---------------------------------------------------------------- infidelity


@pytest.mark.parametrize("normalize", [True, False])
def test_infidelity_over_every_square(normalize):
    x, scores, targets = pictures(), maps(), torch.tensor([2, 0])
    found = infidelity(Predictor(), x, targets, scores, normalize=normalize, samples=None)
    masks = every_square(*GRID)
    assert len(masks) == 20 + 12
    expected = [
        by_definition(Predictor(), x[i], targets[i], scores[i], masks, normalize) for i in (0, 1)
    ]
    assert found.dtype == torch.float64
    assert min(expected) > 1e-4
    close(found, expected)


@pytest.mark.parametrize("normalize", [True, False])
def test_infidelity_over_drawn_squares(normalize):
    """Of those that there are, none twice."""
    x, scores, targets = pictures(1), maps(1), torch.tensor([1])
    predict = Predictor()
    found = infidelity(predict, x, targets, scores, normalize=normalize, samples=11, seeds=["a"])
    drawn = [mask.numpy() for batch in predict.removed for mask in batch if mask.any()]
    assert len({mask.tobytes() for mask in drawn}) == len(drawn) == 11
    assert {mask.tobytes() for mask in drawn} <= {mask.tobytes() for mask in every_square(*GRID)}
    close(found, [by_definition(Predictor(), x[0], 1, scores[0], drawn, normalize)])


def test_more_samples_than_squares_are_all_of_them():
    x, scores, targets = pictures(), maps(), torch.tensor([2, 0])
    every = infidelity(Predictor(), x, targets, scores, samples=None)
    close(infidelity(Predictor(), x, targets, scores, samples=1000), every)
    close(infidelity(Predictor(), x, targets, scores), every)  # 32 of at most 100


def test_infidelity_does_not_depend_on_the_batch():
    x, scores, targets = pictures(3), maps(3), torch.tensor([2, 0, 1])
    together = infidelity(Predictor(), x, targets, scores, samples=7, seeds=["a", 7, "c"])
    turned = infidelity(
        Predictor(), x[[1, 0]], targets[[1, 0]], scores[[1, 0]], samples=7, seeds=["7", "a"]
    )
    close(turned, together[[1, 0]], 0)
    other = infidelity(Predictor(), x, targets, scores, samples=7, seeds=["d", "e", "f"])
    assert (other != together).all()
    predict = Predictor()
    in_parts = infidelity(predict, x, targets, scores, samples=7, seeds=["a", 7, "c"], batch_size=3)
    close(in_parts, together)
    assert max(predict.sizes) == 3


def test_infidelity_knows_no_units():
    x, scores, targets = pictures(), maps().double(), torch.tensor([2, 0])
    expected = infidelity(Predictor(), x, targets, scores)
    for factor in (1e-3, 50.0, -1.0):
        close(infidelity(Predictor(), x, targets, factor * scores), expected)
    raw = infidelity(Predictor(), x, targets, scores, normalize=False)
    assert (raw > 50 * expected).all()
    zeros = infidelity(Predictor(), x, targets, 0 * scores)
    assert (zeros > expected).all()
    close(infidelity(Predictor(), x, targets, 0 * scores, normalize=False), zeros)


def test_scores_that_are_the_losses_have_none():
    """p = ½ + Σ over what is left of c, so that the loss of a square is the sum of its c."""
    loss = torch.rand(*GRID, generator=torch.Generator().manual_seed(4), dtype=torch.float64) / 50

    def predict(images, removed):
        return (0.5 + (loss * ~removed).sum((1, 2)))[:, None]

    x, targets = pictures(), torch.tensor([0, 0])
    scores = torch.stack([loss, 3 * loss])
    close(infidelity(predict, x, targets, scores), [0, 0], 1e-17)
    raw = infidelity(predict, x, targets, scores, normalize=False)
    masks = every_square(*GRID)
    twice = np.mean([(2 * loss.numpy()[mask].sum()) ** 2 for mask in masks])
    close(raw, [0, twice], 1e-17)


# ---------------------------------------------------------------- sensitivity


class Explainer:
    """Maps that are the images' squares, times the class; remembers what it was shown."""

    def __init__(self):
        self.shown, self.targets = [], []

    def __call__(self, images, targets):
        self.shown.append(images.clone())
        self.targets.append(targets.clone())
        return (1 + targets[:, None, None]) * images.square().mean(1)


def test_sensitivity_by_definition():
    x, targets, explain = pictures(), torch.tensor([2, 0]), Explainer()
    found = sensitivity_max(explain, x, targets, radius=0.3, samples=5)
    clean, first, _, second = explain.shown
    assert torch.equal(clean, x[:1])
    assert [t.tolist() for t in explain.targets] == [[2], [2] * 5, [0], [0] * 5]
    for value, image, shaken in zip(found, x, (first, second), strict=True):
        whole = image.square().mean(0).double()
        change = [(y.square().mean(0).double() - whole).norm() / whole.norm() for y in shaken]
        close(value, max(change), 1e-6)
        assert max(change) > 1.02 * min(change)


def test_sensitivity_of_a_map_that_is_its_image():
    """‖δ‖ / ‖x‖, and δ fills its cube: ‖δ‖² = n r² / 3 to four standard errors."""
    x = torch.ones(1, 3, 64, 64, dtype=torch.float64)
    found = sensitivity_max(lambda images, targets: images, x, torch.tensor([0]), samples=1)
    n = x.numel()
    expected = 0.02 / 3**0.5
    assert abs(found.item() - expected) < 4 * expected / 2 * (4 / 5 / n) ** 0.5


def test_noise_is_uniform():
    x, explain = pictures(1), Explainer()
    sensitivity_max(explain, x, torch.tensor([0]), radius=0.3, samples=20)
    noise = (explain.shown[1] - x).flatten().double().numpy()
    assert stats.kstest(noise, stats.uniform(-0.3, 0.6).cdf).pvalue > 0.01
    assert len(np.unique(noise)) > 4000  # of 4,800


def test_sensitivity_does_not_depend_on_the_batch():
    x, targets = pictures(3), torch.tensor([2, 0, 1])
    together = sensitivity_max(Explainer(), x, targets, seeds=["a", 7, "c"])
    turned = sensitivity_max(Explainer(), x[[1, 0]], targets[[1, 0]], seeds=["7", "a"])
    close(turned, together[[1, 0]], 0)
    assert (sensitivity_max(Explainer(), x, targets, seeds=["d", "e", "f"]) != together).all()
    explain = Explainer()
    in_parts = sensitivity_max(explain, x, targets, seeds=["a", 7, "c"], batch_size=3)
    close(in_parts, together)
    assert max(len(batch) for batch in explain.shown) == 3


def test_sensitivity_of_maps_that_look_at_nothing_and_of_none():
    x, targets = pictures(3), torch.tensor([0, 0, 0])

    def explain(images, targets):
        found = torch.ones(len(images), *GRID)
        if torch.equal(images[0], x[1]):
            found *= 0
        if (images[0] - x[2]).abs().max() < 0.1:
            found[:, 0, 0] = torch.nan
        return found

    close(sensitivity_max(explain, x, targets), [0, np.nan, np.nan])


@pytest.mark.parametrize(
    "shaped", [torch.Tensor.double, lambda maps: maps.flatten(1), lambda maps: maps.flatten(1, 2)]
)
def test_sensitivity_of_maps_of_any_shape_and_dtype(shaped):
    x, targets = pictures(), torch.tensor([0, 1])
    x[..., 0] = 0
    expected = sensitivity_max(lambda images, targets: images, x, targets)
    assert expected.dtype == torch.float64
    close(sensitivity_max(lambda images, targets: shaped(images), x, targets), expected, 0)


def test_one_noisy_map_of_zeros_has_no_direction():
    def explain(images, targets):
        found = images.clone()
        found[3:4] = 0  # of the ten noisy ones
        return found

    close(sensitivity_max(explain, pictures(1), torch.tensor([0])), [np.nan])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_noise_keeps_the_dtype_of_the_images(dtype):
    explain = Explainer()
    sensitivity_max(explain, pictures(1).to(dtype), torch.tensor([0]))
    assert [shown.dtype for shown in explain.shown] == [dtype] * 2


# ---------------------------------------------------------------- what is left, and refused


def test_documented_defaults():
    """100 of 174 squares, at most 64 at once; 10 noisy copies, at most 64 at once."""

    def predict(images, removed):
        sizes.append(len(images))
        return (~removed).double().square().mean((1, 2))[:, None]

    sizes = []
    infidelity(predict, pictures(1), torch.tensor([0]), torch.rand(1, 8, 8))
    assert sorted(sizes) == [1, 1, 36, 64]  # and the whole image, once a batch
    explain = Explainer()
    sensitivity_max(explain, pictures(1), torch.tensor([0]))
    assert [len(shown) for shown in explain.shown] == [1, 10]
    explain = Explainer()
    sensitivity_max(explain, pictures(1), torch.tensor([0]), samples=100)
    assert max(len(shown) for shown in explain.shown) == 64


def test_targets_of_any_integer_dtype():
    x, scores, targets = pictures(), maps(), torch.tensor([2, 0])
    for dtype in (torch.int32, torch.uint8):
        close(
            infidelity(Predictor(), x, targets.to(dtype), scores),
            infidelity(Predictor(), x, targets, scores),
            0,
        )
        close(
            sensitivity_max(Explainer(), x, targets.to(dtype)),
            sensitivity_max(Explainer(), x, targets),
            0,
        )


def test_nothing_is_changed():
    x, scores, targets = pictures(), maps(), torch.tensor([2, 0])
    state = torch.get_rng_state()
    infidelity(Predictor(), x, targets, scores)
    sensitivity_max(Explainer(), x, targets)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, pictures())
    assert torch.equal(scores, maps())


BOTH = [
    (
        {"images": torch.zeros(2, 8, 10)},
        r"images must be of shape .*, got \(2, 8, 10\)",
    ),
    (
        {"targets": torch.tensor([1.0, 0.0])},
        "targets must .* an integer dtype, got torch.float32",
    ),
    (
        {"targets": torch.tensor([True, False])},
        "targets must .* an integer dtype, got torch.bool",
    ),
    (
        {"targets": torch.tensor([1j, 0j])},
        "targets must .* an integer dtype, got torch.complex64",
    ),
    ({"targets": torch.tensor([1])}, r"targets must be of shape \(2,\), got \(1,\)"),
    ({"seeds": [1]}, r"seeds must be a sequence of 2 identities, got \[1\]"),
    ({"seeds": "ab"}, "seeds must be a sequence of 2 identities, got 'ab'"),
    ({"batch_size": 0}, "batch_size must be an integer from 1, got 0"),
    ({"samples": 0}, "samples must be .*an integer from 1, got 0"),
    ({"samples": 1.5}, "samples must be .*an integer from 1, got 1.5"),
]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *BOTH,
        ({"samples": -1}, "samples must be None or an integer from 1, got -1"),
        ({"patch_scores": maps(1)}, "patch_scores must be 2 maps, got 1"),
        ({"patch_scores": maps() * torch.nan}, "patch_scores must be finite scores, got 40"),
        ({"targets": torch.tensor([0, 3])}, "targets must be indices below K = 3, got 3"),
        (
            {"predict_masked": lambda images, removed: 10 * torch.ones(len(images), 3)},
            r"the result of predict_masked must be probabilities in \[0, 1\]",
        ),
    ],
)
def test_infidelity_refuses(wrong, message):
    arguments = {
        "predict_masked": Predictor(),
        "images": pictures(),
        "targets": torch.tensor([2, 0]),
        "patch_scores": maps(),
    }
    with pytest.raises(ValueError, match=message):
        infidelity(**arguments | wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *BOTH,
        ({"radius": 0}, "radius must be a number above 0, got 0"),
        ({"radius": float("nan")}, "radius must be a number above 0, got nan"),
        (
            {"explain": lambda images, targets: images[:0]},
            r"the result of explain must be maps of shape \(1, ...\), got \(0, 3, 8, 10\)",
        ),
        ({"explain": lambda images, targets: images.mean((1, 2, 3))}, r"maps .*, got \(1,\)"),
        (
            {"explain": lambda images, targets: [1]},
            "the result of explain must be maps .*, got list",
        ),
    ],
)
def test_sensitivity_refuses(wrong, message):
    arguments = {"explain": Explainer(), "images": pictures(), "targets": torch.tensor([2, 0])}
    with pytest.raises(ValueError, match=message):
        sensitivity_max(**arguments | wrong)
