"""Deletion curves against closed forms, on models whose probabilities are derived by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from infsa_metrics import DeletionCurve, deletion_curve, rank_patches, srg

GRID = (3, 4)
P = 12


def random_batch(size, seed=0):
    """Images (B, 1, 3, 4) of positive patch weights, targets of two classes, and random maps."""
    g = torch.Generator().manual_seed(seed)
    images = torch.rand(size, 1, *GRID, generator=g, dtype=torch.float64) + 0.1
    targets = torch.randint(2, (size,), generator=g)
    return images, targets, torch.rand(size, *GRID, generator=g)


def share_left(images, removed):
    """p(class 0) = weight of the patches left / weight of all; class 1 takes half of the rest."""
    weights = images[:, 0]
    left = (weights * ~removed).sum((1, 2)) / weights.sum((1, 2))
    return torch.stack([left, (1 - left) / 2], 1)


def constant(images, removed):
    return torch.full((len(images), 3), 0.25)


def only_clean(images, removed):
    """1 for an untouched image, 0 for any other."""
    return (~removed).all(2).all(1).double()[:, None]


def curve_by_hand(weights, scores, counts):
    """The curve of ``share_left``'s class 0, in numpy: one minus the sorted weights' partial sums.

    Computed from the cumulative sum of weights in order of falling score, with no mask.
    """
    order = np.argsort(-scores.ravel())
    gone = np.concatenate([[0.0], np.cumsum(weights.ravel()[order])])
    return 1 - gone[counts] / weights.sum()


def trapezoid(p, x):
    return float(np.sum((p[1:] + p[:-1]) / 2 * np.diff(x)))


@pytest.mark.parametrize("order", ["morf", "lerf"])
def test_constant_model_has_aoc_zero(order):
    images, targets, scores = random_batch(3)
    curve = deletion_curve(constant, images, targets, scores, order=order)
    assert curve.aoc().tolist() == [0.0, 0.0, 0.0]
    assert curve.auc().tolist() == [0.25, 0.25, 0.25]
    assert curve.order == order


@pytest.mark.parametrize(
    ("steps", "counts"),
    [
        (None, list(range(13))),
        (12, list(range(13))),
        (2, [0, 5, 12]),
        (4, [0, 2, 5, 8, 12]),  # 12 (s/4)^1.25 = 0, 2.12, 5.05, 8.38, 12
        (6, [0, 1, 3, 5, 7, 10, 12]),  # 12 (s/6)^1.25 = 0, 1.28, 3.04, 5.05, 7.23, 9.55, 12
        (10, [0, 1, 2, 3, 4, 5, 6, 8, 9, 11, 12]),  # 0.67 → 1, 1.60, 2.66, 3.82, 5.05, 6.34, …
        ("few", [0, 5, 12]),  # 12 // 4 − 1 = 2 steps, 3 points of 13
        ([0, 5, 12], [0, 5, 12]),
        (np.array([0, 2, 12]), [0, 2, 12]),
    ],
)
def test_curve_of_a_sum_of_patches(steps, counts):
    images, _, scores = random_batch(3)
    targets = torch.zeros(3, dtype=torch.long)
    curve = deletion_curve(share_left, images, targets, scores, steps=steps)
    fractions = np.array(counts) / P
    np.testing.assert_allclose(curve.fractions.numpy(), fractions, rtol=0, atol=1e-15)
    for i in range(3):
        expected = curve_by_hand(images[i].numpy(), scores[i].numpy(), counts)
        np.testing.assert_allclose(curve.probabilities[i].numpy(), expected, atol=1e-14)
        area = trapezoid(expected, fractions)
        assert curve.auc()[i].item() == pytest.approx(area, abs=1e-14)
        assert curve.aoc()[i].item() == pytest.approx(1 - area, abs=1e-14)  # p_0 = 1


def test_aoc_is_relative_to_the_clean_probability_and_auc_is_not():
    images, targets, scores = random_batch(4)

    def halved(images, removed):
        return share_left(images, removed)[:, :1] / 2

    full = deletion_curve(share_left, images, targets * 0, scores)
    half = deletion_curve(halved, images, targets * 0, scores)
    torch.testing.assert_close(half.aoc(), full.aoc(), rtol=0, atol=1e-14)
    torch.testing.assert_close(half.auc(), full.auc() / 2, rtol=0, atol=1e-14)


def test_aoc_bound_is_reached():
    images, targets, scores = random_batch(2)
    one_a_step = deletion_curve(only_clean, images, targets * 0, scores)
    assert one_a_step.aoc().tolist() == pytest.approx([1 - 1 / (2 * P)] * 2, abs=1e-15)
    coarse = deletion_curve(only_clean, images, targets * 0, scores, steps=[0, 3, 12])
    assert coarse.aoc().tolist() == pytest.approx([1 - 3 / P / 2] * 2, abs=1e-15)


def test_aoc_is_negative_where_removal_helps():
    def rises(images, removed):  # from 0.25 in a straight line to 0.75: mean 0.5, twice p_0
        return (0.25 + 0.5 * removed.double().mean((1, 2)))[:, None]

    images, targets, scores = random_batch(1)
    curve = deletion_curve(rises, images, targets * 0, scores)
    assert curve.aoc().item() == pytest.approx(-1.0, abs=1e-14)


def test_aoc_is_nan_at_or_below_the_floor():
    p = torch.tensor([[0.0, 0.5], [0.1, 0.1], [0.2, 0.0]], dtype=torch.float64)
    curve = DeletionCurve(torch.tensor([0.0, 1.0], dtype=torch.float64), p, torch.zeros(3), "morf")
    expected = torch.tensor([math.nan, 0.0, 0.5], dtype=torch.float64)
    torch.testing.assert_close(curve.aoc(), expected, equal_nan=True, rtol=0, atol=0)
    assert curve.aoc(floor=0.1).isnan().tolist() == [True, True, False]
    assert curve.probabilities.equal(p)


def test_morf_removes_the_best_patch_first_and_lerf_the_worst():
    """The sign trap: the perfect map has the higher AOC, and the lower area, under MoRF."""
    images, _, _ = random_batch(2)
    targets, scores = torch.zeros(2, dtype=torch.long), images[:, 0]
    morf = deletion_curve(share_left, images, targets, scores, order="morf")
    lerf = deletion_curve(share_left, images, targets, scores, order="lerf")
    weights = images.flatten(1)
    first = 1 - weights.amax(1) / weights.sum(1)
    last = 1 - weights.amin(1) / weights.sum(1)
    torch.testing.assert_close(morf.probabilities[:, 1], first, rtol=0, atol=1e-14)
    torch.testing.assert_close(lerf.probabilities[:, 1], last, rtol=0, atol=1e-14)
    gain = srg(morf, lerf)
    assert (gain > 0.1).all()
    # the two curves mirror each other: p_lerf(f) = 1 − p_morf(1 − f), so SRG = 1 − 2 AUC(MoRF)
    torch.testing.assert_close(gain, 1 - 2 * morf.auc(), rtol=0, atol=1e-14)
    with pytest.raises(ValueError, match="morf must be a curve of order 'morf', got 'lerf'"):
        srg(lerf, morf)


def test_reversed_scores_swap_morf_and_lerf():
    images, targets, scores = random_batch(3)
    morf, lerf = (
        deletion_curve(share_left, images, targets, scores, order=o) for o in ("morf", "lerf")
    )
    morf_of_negated, lerf_of_negated = (
        deletion_curve(share_left, images, targets, -scores, order=o) for o in ("morf", "lerf")
    )
    assert morf_of_negated.probabilities.equal(lerf.probabilities)
    assert lerf_of_negated.probabilities.equal(morf.probabilities)
    assert srg(morf_of_negated, lerf_of_negated).equal(-srg(morf, lerf))


def test_lerf_walks_the_ranking_of_tied_scores_backwards():
    images, targets, scores = random_batch(3)
    scores = scores.round()  # zeros and ones
    kwargs = {"seeds": ["a", "b", "c"]}
    morf = deletion_curve(share_left, images, targets * 0, scores, order="morf", **kwargs)
    lerf = deletion_curve(share_left, images, targets * 0, scores, order="lerf", **kwargs)
    mirrored = 1 - morf.probabilities.flip(1)
    torch.testing.assert_close(lerf.probabilities, mirrored, rtol=0, atol=1e-14)


def test_only_the_order_of_the_scores_counts():
    images, targets, scores = random_batch(3)
    plain = deletion_curve(share_left, images, targets, scores)
    cubed = deletion_curve(share_left, images, targets, 100 * scores.double() ** 3 - 7)
    assert cubed.probabilities.equal(plain.probabilities)


@pytest.mark.parametrize("batch_size", [1, 5, 13, 1000])
def test_batches_do_not_change_the_curve(batch_size):
    images, targets, scores = random_batch(3)
    scores = (scores * 3).round()
    ids = ["cat.jpg", "dog.jpg", 7]
    whole = deletion_curve(share_left, images, targets, scores, seeds=ids)
    sizes = []

    def counting(images, removed):
        sizes.append(len(images))
        return share_left(images, removed)

    again = deletion_curve(counting, images, targets, scores, seeds=ids, batch_size=batch_size)
    assert again.probabilities.equal(whole.probabilities)
    # every batch is full but the last: 3 images × 13 points share them
    assert sizes[:-1] == [batch_size] * (len(sizes) - 1)
    assert sum(sizes) == 39
    for i in (2, 0, 1):
        one = slice(i, i + 1)
        single = deletion_curve(share_left, images[one], targets[one], scores[one], seeds=ids[one])
        assert single.probabilities.equal(whole.probabilities[one])
        assert single.tied.equal(whole.tied[one])


@pytest.mark.parametrize(
    ("grid", "steps"), [((14, 14), 24), ((8, 8), 15), ((37, 37), 24), ((2, 2), 2), ((1, 2), 2)]
)
def test_few_steps_cost_a_quarter_at_most(grid, steps):
    def predict_masked(images, removed):
        return (~removed).double().mean((1, 2))[:, None]

    images, targets = torch.zeros(1, 1, 1, 1), torch.tensor([0])
    curve = deletion_curve(predict_masked, images, targets, torch.rand(1, *grid), steps="few")
    assert curve.probabilities.shape == (1, steps + 1)
    torch.testing.assert_close(curve.probabilities[0], 1 - curve.fractions, rtol=0, atol=1e-15)
    patches = grid[0] * grid[1]
    assert steps == 2 or steps + 1 <= (patches + 1) / 4


def test_images_at_one_step_share_a_batch():
    """They have as many patches left: a model that takes patches out runs them in one pass."""
    images, targets, scores = random_batch(4)
    left = []

    def counting(images, removed):
        left.append((~removed).sum((1, 2)).tolist())
        return share_left(images, removed)

    deletion_curve(counting, images, targets, scores, steps=[0, 1, 5, 12], batch_size=4)
    assert left == [[12] * 4, [11] * 4, [7] * 4, [0] * 4]
    left.clear()
    deletion_curve(counting, images, targets, scores, steps=[0, 5, 12], batch_size=3)
    assert left == [[12] * 3, [12, 7, 7], [7, 7, 0], [0] * 3]


def test_inputs_may_be_what_the_model_takes_in_place_of_images():
    images, targets, scores = random_batch(3)
    features = images.flatten(2).unsqueeze(1)  # (B, 1, 1, 12)
    expected = deletion_curve(share_left, images, targets, scores)

    def predict_masked(features, removed):
        return share_left(features.view(-1, 1, *GRID), removed)

    curve = deletion_curve(predict_masked, features, targets, scores)
    assert curve.probabilities.equal(expected.probabilities)


def test_seeds_are_the_place_by_default():
    scores = torch.zeros(3, 5, 5)
    assert rank_patches(scores).equal(rank_patches(scores, [0, 1, 2]))
    assert rank_patches(scores, ["0", "1", "2"]).equal(rank_patches(scores, [0, 1, 2]))


def test_rank_patches_sorts_from_high_to_low():
    _, _, scores = random_batch(4)
    expected = np.argsort(-scores.flatten(1).numpy(), axis=1)
    np.testing.assert_array_equal(rank_patches(scores).numpy(), expected)


def test_ties_are_a_permutation_of_the_identity_alone():
    ids = [f"image-{i}" for i in range(4)]
    ranking = rank_patches(torch.zeros(4, 5, 5), ids)
    assert ranking.sort(1).values.equal(torch.arange(25).expand(4, 25))
    assert len({tuple(row) for row in ranking.tolist()}) == 4
    moved = rank_patches(torch.full((3, 5, 5), -2.5), ["other", ids[3], ids[1]])
    assert moved[1:].equal(ranking[[3, 1]])


def test_ties_do_not_follow_the_raster():
    """Over 2,000 identities each of 9 tied patches comes first about equally often: χ², 8 d.o.f."""
    first = rank_patches(torch.zeros(2000, 3, 3), range(2000))[:, 0]
    counts = first.bincount(minlength=9).double()
    chi2 = ((counts - 2000 / 9) ** 2 / (2000 / 9)).sum().item()
    assert chi2 < 26.1  # the 99.9th percentile


def test_ties_stay_within_their_group():
    scores = torch.tensor([[[1.0, 0.0, 2.0], [0.0, 1.0, -0.0]]])
    orders = {tuple(rank_patches(scores, [i])[0].tolist()) for i in range(400)}
    assert {o[0] for o in orders} == {2}
    assert {frozenset(o[1:3]) for o in orders} == {frozenset({0, 4})}
    assert len(orders) == math.factorial(2) * math.factorial(3)  # all of them are drawn


@pytest.mark.parametrize(
    ("scores", "tied"),
    [
        ([[1.0, 2.0], [3.0, 4.0]], 0.0),
        ([[1.0, 2.0], [3.0, 1.0]], 0.5),
        ([[0.0, 0.0], [-0.0, 4.0]], 0.75),
        ([[5.0, 2.0], [2.0, 5.0]], 1.0),
        ([[5.0, 2.0]], 0.0),
    ],
)
def test_tied_share(scores, tied):
    scores = torch.tensor([scores])
    curve = deletion_curve(constant, torch.zeros(1, 1, 2, 2), torch.tensor([0]), scores)
    assert curve.tied.tolist() == [tied]


def test_inputs_are_untouched_even_by_a_model_that_writes():
    images, targets, scores = random_batch(2)
    before = [t.clone() for t in (images, targets, scores)]

    def writes(images, removed):
        images.zero_()
        removed.fill_(True)
        return torch.ones(len(images), 2)

    curve = deletion_curve(writes, images, targets, scores)
    assert all(a.equal(b) for a, b in zip((images, targets, scores), before, strict=True))
    assert curve.probabilities.eq(1).all()


def test_no_gradient_is_kept_and_results_are_float64():
    images, targets, scores = random_batch(2)
    images, scores = images.float().requires_grad_(), scores.requires_grad_()
    seen = []

    def watch(images, removed):
        seen.append(torch.is_grad_enabled())
        return share_left(images, removed).half()

    curve = deletion_curve(watch, images, targets, scores)
    assert seen == [False]
    assert not curve.probabilities.requires_grad
    parts = (curve.fractions, curve.probabilities, curve.tied, curve.aoc())
    assert {t.dtype for t in parts} == {torch.float64}
    assert curve.probabilities.mul_(0).sum() == 0  # an ordinary tensor, not an inference one


def test_empty_batch():
    images, targets, scores = random_batch(0)
    curve = deletion_curve(constant, images, targets, scores)
    assert curve.probabilities.shape == (0, 13)
    assert curve.aoc().shape == curve.tied.shape == (0,)


def three_classes(images, removed):
    """p = (left, (1 − left) / 2, (1 − left) / 2) with left the share of the weights left."""
    p = share_left(images, removed)
    return torch.cat([p, p[:, 1:]], 1)


@pytest.mark.parametrize("order", ["morf", "lerf"])
@pytest.mark.parametrize("steps", [None, 4])
def test_accuracy_under_deletion(order, steps):
    """Class 0 leads while left > (1 − left) / 2, so while left > 1/3; then 1 and 2 share it."""
    images, _, scores = random_batch(5)
    first, second = torch.zeros(5, dtype=torch.long), torch.ones(5, dtype=torch.long)
    kwargs = {"order": order, "steps": steps}
    curve = deletion_curve(three_classes, images, first, scores, **kwargs)
    leads = (curve.probabilities > 1 / 3).double()
    assert 0 < leads.mean() < 1
    assert curve.predicted().equal(leads)
    assert curve.predicted()[:, 0].tolist() == [1.0] * 5
    followers = deletion_curve(three_classes, images, second, scores, **kwargs)
    assert followers.predicted().equal((1 - leads) / 2)
    for i in range(5):
        area = trapezoid(leads[i].numpy(), curve.fractions.numpy())
        assert curve.predicted_auc()[i].item() == pytest.approx(area, abs=1e-14)
    accuracy = curve.predicted().mean(0)  # the area of the mean is the mean of the areas
    mean_area = torch.trapezoid(accuracy, curve.fractions)
    torch.testing.assert_close(mean_area, curve.predicted_auc().mean(), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("row", "target", "share"),
    [
        ([0.5, 0.3, 0.2], 0, 1.0),
        ([0.5, 0.3, 0.2], 1, 0.0),
        ([0.4, 0.4, 0.2], 0, 1 / 2),
        ([0.4, 0.4, 0.2], 1, 1 / 2),  # not by the number of the class
        ([0.4, 0.4, 0.2], 2, 0.0),
        ([0.25, 0.25, 0.25], 2, 1 / 3),
        ([0.0, 0.0, 0.0], 1, 1 / 3),
        ([0.4, 0.4 - 1e-7, 0.2], 0, 1.0),  # only equal numbers tie
        ([0.4, math.nan, 0.2], 0, math.nan),
        ([0.4], 0, math.nan),
    ],
)
@pytest.mark.parametrize("kind", [torch.float64, torch.float32, np.array])
def test_ties_for_the_largest_probability_are_shared(row, target, share, kind):
    def fixed(images, removed):
        rows = [row] * len(images)
        return np.array(rows) if kind is np.array else torch.tensor(rows, dtype=kind)

    images, _, scores = random_batch(2)
    curve = deletion_curve(fixed, images, torch.full((2,), target), scores, steps=2)
    expected = torch.full((2, 3), share, dtype=torch.float64)
    torch.testing.assert_close(curve.predicted(), expected, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(
        curve.predicted_auc(), expected[:, 0], equal_nan=True, rtol=0, atol=1e-15
    )


def test_an_independent_label_is_predicted_above_one_half():
    p = torch.tensor([[0.9, 0.5, 0.2], [0.4, 0.6, 0.0]], dtype=torch.float64)

    def sigmoid(images, removed):  # the other label is always likelier
        step = (removed.sum((1, 2)) // 6).clamp(max=2)
        return torch.stack([p[images[:, 0, 0, 0].long(), step], torch.ones(len(images))], 1)

    images = torch.arange(2.0).view(2, 1, 1, 1).expand(2, 1, *GRID)
    targets = torch.zeros(2, dtype=torch.long)
    curve = deletion_curve(sigmoid, images, targets, SCORES, steps=[0, 6, 12])
    assert curve.probabilities.equal(p)
    assert curve.predicted().tolist() == [[0.0] * 3] * 2
    independent = [[1.0, 0.5, 0.0], [0.0, 1.0, 0.0]]
    assert curve.predicted(independent=True).tolist() == independent
    assert curve.predicted_auc(independent=True).tolist() == [0.5, 0.5]


def test_features_have_no_predicted_class():
    images, _, scores = random_batch(2)
    features = torch.ones(2, 2, dtype=torch.float64)
    curve = deletion_curve(share_left, images, features, scores, steps=2)
    assert curve.predicted().isnan().all()
    assert curve.predicted_auc().isnan().all()


def test_a_curve_made_by_hand_has_no_predicted_class():
    p = torch.tensor([[0.8, 0.4]])
    curve = DeletionCurve(torch.tensor([0.0, 1.0]), p, torch.zeros(1), "morf")
    assert curve.predicted().isnan().all()
    assert curve.predicted(independent=True).tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("batch_size", [1, 5, 1000])
def test_accuracy_costs_no_passes_and_does_not_depend_on_batches(batch_size):
    images, targets, scores = random_batch(3)
    whole = deletion_curve(three_classes, images, targets, scores)
    shown = 0

    def counting(images, removed):
        nonlocal shown
        shown += len(images)
        return three_classes(images, removed)

    curve = deletion_curve(counting, images, targets, scores, batch_size=batch_size)
    assert curve.predicted().equal(whole.predicted())
    assert shown == 3 * (P + 1)


IMAGES, TARGETS, SCORES = random_batch(2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": IMAGES[0]}, r"images must be of shape \(B, C, H, W\), got \(1, 3, 4\)"),
        ({"order": "most"}, "order must be 'morf' or 'lerf', got 'most'"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"patch_scores": SCORES[0]}, r"patch_scores must be of shape \(B, gh, gw\), got \(3, 4\)"),
        ({"patch_scores": SCORES[:1]}, "patch_scores must be 2 maps, one for each image, got 1"),
        ({"patch_scores": SCORES / 0}, "finite scores, got 24 that are NaN or infinite"),
        ({"patch_scores": SCORES * math.nan}, "finite scores, got 24"),
        ({"patch_scores": SCORES[:, :0]}, r"patch_scores must be of shape .*, got \(2, 0, 4\)"),
        ({"patch_scores": SCORES + 0j}, "^patch_scores must be real scores, got torch.complex64"),
        ({"targets": TARGETS.float()}, "targets must be .* integer dtype, got torch.float32"),
        ({"targets": TARGETS[:1]}, r"targets must be of shape \(2,\), got \(1,\)"),
        ({"targets": TARGETS - 5}, "targets must be class indices from 0"),
        ({"targets": TARGETS + 5}, "targets must be indices below K = 2, got"),
        ({"steps": 0}, "steps must be None, 'few', 2 to 12 steps, or a sequence of .*, got 0"),
        ({"steps": 1}, "2 to 12 steps, .*, got 1, with which the curves of all maps are alike"),
        ({"steps": [0, 12]}, r"all 12 patches, with one between them, got \[0, 12\]"),
        (
            {"patch_scores": SCORES[:, :1, :1]},
            "patch_scores must be maps of several patches",
        ),
        ({"steps": 13}, "steps must be None, 'few', 2 to 12 steps"),
        ({"steps": True}, "steps must be None, 'few', 2 to 12 steps"),
        ({"steps": 2.5}, "steps must be None, 'few', 2 to 12 steps"),
        ({"steps": "some"}, "counts that rise from 0 to all 12 patches, .*, got some"),
        ({"steps": [1, 12]}, "steps must be counts that rise from 0 to all 12 patches"),
        ({"steps": [0, 11]}, "counts that rise from 0 to all 12 patches"),
        ({"steps": [0, 4, 4, 12]}, "counts that rise from 0 to all 12 patches"),
        ({"steps": [0, 0.5, 12]}, "counts that rise from 0 to all 12 patches"),
        ({"steps": []}, "counts that rise from 0 to all 12 patches"),
        ({"seeds": ["a"]}, "seeds must be 2 identities, one for each image, got 1"),
        ({"seeds": "ab"}, "seeds must be a sequence of ints or strings, got 'ab'"),
        ({"seeds": [0.5, 1.5]}, "seeds must be a sequence of ints or strings"),
        (
            {"predict_masked": lambda x, m: [1]},
            r"the result of predict_masked must be probabilities of shape \(26, K\), got list$",
        ),
        ({"predict_masked": lambda x, m: torch.ones(3, 2)}, r"shape \(26, K\), got \(3, 2\)"),
        ({"predict_masked": lambda x, m: torch.full((26, 2), 7.0)}, "not logits or NaN, got 7"),
        ({"predict_masked": lambda x, m: torch.full((26, 2), math.nan)}, "NaN, got nan to nan"),
    ],
)
def test_errors_name_the_argument(change, message):
    arguments = {
        "predict_masked": share_left,
        "images": IMAGES,
        "targets": TARGETS,
        "patch_scores": SCORES,
    }
    with pytest.raises(ValueError, match=message):
        deletion_curve(**(arguments | change))


def test_curve_errors():
    images, targets, scores = random_batch(2)
    morf = deletion_curve(constant, images, targets, scores)
    with pytest.raises(ValueError, match=r"floor must be a probability in \[0, 1\), got 1"):
        morf.aoc(floor=1)
    lerf = deletion_curve(constant, images, targets, scores, order="lerf", steps=3)
    with pytest.raises(ValueError, match="^lerf must be a curve of order 'lerf', got 'morf'$"):
        srg(morf, morf)
    expected = "^morf, lerf must be curves of the same images at the same fractions, "
    with pytest.raises(ValueError, match=expected + r"got \(2, 13\) and \(2, 4\)$"):
        srg(morf, lerf)
    fewer = deletion_curve(constant, images[:1], targets[:1], scores[:1], order="lerf")
    with pytest.raises(ValueError, match=expected + r"got \(2, 13\) and \(1, 13\)$"):
        srg(morf, fewer)
    early, late = (
        deletion_curve(constant, images, targets, scores, order=order, steps=[0, count, 12])
        for order, count in (("morf", 2), ("lerf", 5))
    )
    with pytest.raises(ValueError, match=expected):
        srg(early, late)
