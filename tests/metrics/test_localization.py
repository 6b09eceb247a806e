"""Localization measures against scikit-learn, loops over pixels, and cases worked out by hand."""

from __future__ import annotations

import math
from itertools import combinations

import infsa_metrics
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from infsa_metrics import (
    average_precision,
    box_mask,
    iou_at_best,
    iou_at_mean,
    mass_accuracy,
    pointing_game,
    precision_at_recall,
    prevalence,
    rank_accuracy,
    roc_auc,
)
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score
from torchvision.tv_tensors import BoundingBoxes, BoundingBoxFormat

RANKED = [average_precision, roc_auc, pointing_game, rank_accuracy, iou_at_best]
MEASURES = [*RANKED, mass_accuracy, iou_at_mean]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def random_batch(size=4, shape=(9, 11), levels=None, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    scores = torch.rand(size, *shape, generator=g)
    if levels:
        scores = (scores * levels).floor() / levels
    return scores.to(dtype), torch.rand(size, *shape, generator=g) < 0.3


def pointing_by_hand(scores, mask, tolerance):
    """Every maximum against every pixel of the mask."""
    maxima, positives = np.argwhere(scores == scores.max()), np.argwhere(mask)
    hits = [min(((p - m) ** 2).sum() for p in positives) <= tolerance**2 for m in maxima]
    return sum(hits) / len(hits)


def rank_by_hand(scores, mask):
    """All ways to fill the K places: the pixels above the last score, and some of those at it."""
    scores, mask = scores.ravel(), mask.ravel()
    k = mask.sum()
    last = np.sort(scores)[-k]
    above, tied = np.flatnonzero(scores > last), np.flatnonzero(scores == last)
    ways = [[*above, *some] for some in combinations(tied, k - len(above))]
    return np.mean([mask[way].sum() / k for way in ways])


def iou(a, b):
    return (a & b).sum() / (a | b).sum()


def by_hand(measure, scores, mask):
    """One image's value in NumPy, from one that scikit-learn or a loop gives."""
    s, m = scores.double().numpy(), mask.numpy()
    return {
        average_precision: lambda: average_precision_score(m.ravel(), s.ravel()),
        roc_auc: lambda: roc_auc_score(m.ravel(), s.ravel()),
        pointing_game: lambda: pointing_by_hand(s, m, 15),
        rank_accuracy: lambda: rank_by_hand(s, m),
        iou_at_best: lambda: max(iou(s >= t, m) for t in np.unique(s)),
        mass_accuracy: lambda: s[m & (s > 0)].sum() / s[s > 0].sum(),
        iou_at_mean: lambda: iou(s > math.fsum(s.ravel()) / s.size, m),
    }[measure]()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("measure", MEASURES)
def test_against_numpy_and_scikit_learn(measure, dtype):
    scores, mask = random_batch(dtype=dtype)
    expected = [by_hand(measure, s, m) for s, m in zip(scores, mask, strict=True)]
    values = measure(scores, mask)
    assert values.dtype == torch.float64
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-12)


@st.composite
def tied_maps(draw):
    """A map of few levels, negative ones and zeros of both signs too, and a mask neither empty
    nor full."""
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=2, max_side=4).filter(lambda s: s != (1, 1)))
    levels = st.sampled_from([-2.0, -0.0, 0.0, 0.1, 0.3, 3.0])
    scores = draw(hnp.arrays(np.float64, shape, elements=levels))
    mask = draw(hnp.arrays(bool, shape).filter(lambda m: m.any() and not m.all()))
    dtype = draw(st.sampled_from(DTYPES))
    return torch.from_numpy(scores)[None].to(dtype), torch.from_numpy(mask)[None]


@given(tied_maps())
def test_ties(case):
    scores, mask = case
    for measure in RANKED:
        expected = by_hand(measure, scores[0], mask[0])
        assert measure(scores, mask).item() == pytest.approx(expected, abs=1e-12)
    if (scores > 0).any():
        expected = by_hand(mass_accuracy, scores[0], mask[0])
        assert mass_accuracy(scores, mask).item() == pytest.approx(expected, abs=1e-12)


@given(tied_maps(), st.sampled_from([0, 1, 1.5, 2, 2.9, 40]))
def test_pointing_game_at_any_tolerance(case, tolerance):
    scores, mask = case
    expected = pointing_by_hand(scores[0].double().numpy(), mask[0].numpy(), tolerance)
    value = pointing_game(scores, mask, tolerance=tolerance).item()
    assert value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("levels", [2**18, 50, 2])
def test_large_maps_to_1e9(levels, dtype):
    scores, mask = random_batch(7, (224, 224), levels, dtype=dtype)  # more than one block
    for ours, theirs in ((average_precision, average_precision_score), (roc_auc, roc_auc_score)):
        expected = [
            theirs(m.flatten().numpy(), s.flatten().double().numpy())
            for s, m in zip(scores, mask, strict=True)
        ]
        np.testing.assert_allclose(ours(scores, mask), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("measure", RANKED)
def test_only_the_order_of_the_scores_counts(measure):
    """Scores beyond [0, 1] are not squashed: a sigmoid would tie the largest of these."""
    scores, mask = random_batch(levels=40)
    expected = measure(scores, mask)
    for rescaled in (scores * 1e20, scores * 1e-20, scores * 100 - 50, scores.mul(9).exp()):
        assert measure(rescaled, mask).equal(expected)
    assert measure((scores * 1e20).float(), mask).equal(expected)
    assert measure((scores * 1e-20).float(), mask).equal(expected)


@pytest.mark.parametrize("measure", [mass_accuracy, iou_at_mean])
def test_a_positive_factor_does_not_count(measure):
    scores, mask = random_batch()
    for factor in (1e20, 1e-20):
        torch.testing.assert_close(measure(scores * factor, mask), measure(scores, mask))


@pytest.mark.parametrize(("patches", "side"), [(8, 64), (9, 64)])
def test_pixels_that_interpolation_moved_apart_tie(patches, side):
    """A constant map and a plateau are as flat upsampled as they were."""
    mask = box_mask(torch.tensor([[side // 6, side // 5, side // 2, side // 2 + 3]]), side, side)
    share = prevalence(mask[None]).item()
    flat = torch.full((1, 1, patches, patches), 0.3)
    flat[..., 0, 0] = 0  # a corner, outside the mask
    pixels = torch.nn.functional.interpolate(flat, (side, side), mode="bilinear")[0]
    plateau = pixels[0] > 0.3 * (1 - 1e-6)
    assert pixels[0][plateau].unique().numel() > 1  # the test would be empty without rounding
    within = mask.sum().item() / plateau.sum().item()
    assert average_precision(pixels, mask[None]).item() == pytest.approx(within, abs=1e-12)
    assert pointing_game(pixels, mask[None], tolerance=0).item() == pytest.approx(within, abs=1e-12)
    assert rank_accuracy(pixels, mask[None]).item() == pytest.approx(within, abs=1e-12)
    assert iou_at_best(pixels, mask[None]).item() == pytest.approx(within, abs=1e-12)
    outside = (~plateau).sum().item() / (side**2 * (1 - share))
    auc = outside + (1 - outside) / 2  # pixels off the plateau rank lower, those on it tie
    assert roc_auc(pixels, mask[None]).item() == pytest.approx(auc, abs=1e-12)


def test_differences_that_only_float64_holds_count():
    mask = torch.tensor([[[True, False]]])
    scores = torch.tensor([[[1 + 1e-14, 1.0]]], dtype=torch.float64)
    assert average_precision(scores, mask).item() == 1
    assert average_precision(-scores, mask).item() == 0.5
    assert roc_auc(scores.float(), mask).item() == 0.5
    assert roc_auc(torch.tensor([[[1 + 1.2e-6, 1.0]]]), mask).item() == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.0, -0.3, 0.1])
def test_constant_map(value, dtype):
    _, mask = random_batch()
    scores = torch.full(mask.shape, value, dtype=dtype)
    share = mask.double().mean((1, 2))
    assert prevalence(mask).equal(share)
    for measure in (average_precision, rank_accuracy, iou_at_best):
        torch.testing.assert_close(measure(scores, mask), share, rtol=0, atol=1e-12)
    torch.testing.assert_close(pointing_game(scores, mask, tolerance=0), share)
    assert roc_auc(scores, mask).tolist() == [0.5] * 4
    assert iou_at_mean(scores, mask).tolist() == [0.0] * 4
    expected = share if value > 0 else torch.full_like(share, torch.nan)
    torch.testing.assert_close(mass_accuracy(scores, mask), expected, equal_nan=True)


@pytest.mark.parametrize("value", [0.1, -0.3, 0.7])
def test_rounding_puts_no_pixel_of_a_constant_map_above_its_mean(value):
    for width in range(2, 100):
        scores = torch.full((1, 1, width), value, dtype=torch.float64)
        mask = torch.arange(width)[None, None] == 0
        assert iou_at_mean(scores, mask).item() == 0


def test_perfect_and_worst_map():
    _, mask = random_batch()
    for measure in MEASURES:
        assert measure(mask.double(), mask).tolist() == [1.0] * 4
    for measure in (roc_auc, rank_accuracy, mass_accuracy, iou_at_mean):
        assert measure((~mask).double(), mask).tolist() == [0.0] * 4
    # every object pixel comes in with the last threshold, whose precision is the prevalence
    torch.testing.assert_close(average_precision((~mask).double(), mask), prevalence(mask))


def test_by_hand():
    scores = torch.tensor([[[4.0, 3.0, 3.0], [2.0, 1.0, -6.0]]])
    mask = torch.tensor([[[True, True, False], [False, True, False]]])
    # thresholds 4, 3, 2, 1: precision 1, 2/3, 2/4, 3/5; recall rises by 1/3 at 4, 3 and 1
    assert average_precision(scores, mask).item() == pytest.approx((1 + 2 / 3 + 3 / 5) / 3)
    # of the nine pairs 4 wins three, 3 wins two and ties one, 1 wins one
    assert roc_auc(scores, mask).item() == pytest.approx(6.5 / 9)
    assert rank_accuracy(scores, mask).item() == pytest.approx(2 / 3)  # 4, 3, 3
    assert mass_accuracy(scores, mask).item() == pytest.approx(8 / 13)
    assert iou_at_mean(scores, mask).item() == pytest.approx(2 / 5)  # mean 7/6: 4, 3, 3, 2
    assert iou_at_best(scores, mask).item() == pytest.approx(3 / 5)  # 4, 3, 3, 2, 1
    assert prevalence(mask).item() == 0.5


def test_the_tolerance_is_a_circle_around_the_maximum():
    scores, mask = torch.zeros(1, 40, 40), torch.zeros(1, 40, 40, dtype=torch.bool)
    scores[0, 5, 5] = 1
    mask[0, 5 + 9, 5 + 12] = True  # at distance 15
    assert pointing_game(scores, mask).item() == 1
    assert pointing_game(scores, mask, tolerance=14.9).item() == 0
    mask = mask.roll(1, 2)  # within 15 by row and by column, at distance √(9² + 13²) = 15.8
    assert pointing_game(scores, mask).item() == 0
    assert pointing_game(scores, mask, tolerance=16).item() == 1
    scores[0, 30, 30] = 1  # a second maximum, too far
    assert pointing_game(scores, mask, tolerance=16).item() == 0.5


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("full", [False, True])
def test_nothing_to_tell_apart_is_nan(measure, full):
    scores, mask = random_batch()
    expected = measure(scores, mask)
    mask[1] = full
    assert measure(scores, mask).isnan().tolist() == [False, True, False, False]
    assert measure(scores, mask)[2:].equal(expected[2:])
    assert prevalence(mask).isnan().tolist() == [False, True, False, False]


@pytest.mark.parametrize("levels", [None, 3])
@pytest.mark.parametrize("measure", MEASURES)
def test_a_batch_is_its_images(measure, levels):
    scores, mask = random_batch(2, levels=levels)
    singles = [measure(scores[i : i + 1], mask[i : i + 1]) for i in range(2)]
    assert measure(scores, mask).equal(torch.cat(singles))
    empty = measure(scores[:0], mask[:0])
    assert empty.shape == (0,) and empty.dtype == torch.float64


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("measure", MEASURES)
def test_inputs_stay_as_they_are(measure, dtype):
    scores, mask = random_batch(levels=5, dtype=dtype)
    before, mask_before = scores.clone(), mask.clone()
    strided = scores.mT.contiguous().mT.requires_grad_()
    assert measure(strided, mask).equal(measure(scores, mask))
    assert not measure(strided, mask).requires_grad
    assert scores.equal(before) and mask.equal(mask_before)


def test_pytorch_keeps_its_threads():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        average_precision(*random_batch())
        assert torch.get_num_threads() == 3
        with pytest.raises(ValueError, match="tolerance"):
            pointing_game(*random_batch(), tolerance=-1)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("measure", MEASURES)
def test_on_a_gpu(measure, dtype):
    scores, mask = random_batch(levels=7, dtype=dtype)
    values = measure(scores.cuda(), mask.cuda())
    assert values.is_cuda
    torch.testing.assert_close(values.cpu(), measure(scores, mask), rtol=0, atol=1e-12)


@pytest.mark.parametrize("measure", MEASURES)
def test_bad_maps(measure):
    scores, mask = random_batch()
    with pytest.raises(ValueError, match=r"equal shapes, got \(4, 9, 11\) and \(4, 9, 10\)"):
        measure(scores, mask[:, :, 1:])
    with pytest.raises(ValueError, match=r"shape \(B, H, W\), got \(9, 11\)"):
        measure(scores[0], mask[0])
    with pytest.raises(ValueError, match=r"shape \(B, H, W\), got \(4, 0, 11\)"):
        measure(scores[:, :0], mask[:, :0])
    with pytest.raises(ValueError, match=r"mask must be bool, got torch.float64"):
        measure(scores, mask.double())
    with pytest.raises(ValueError, match=r"scores must be of a floating dtype, got torch.int64"):
        measure(scores.long(), mask)
    for bad in (torch.nan, torch.inf, -torch.inf):
        broken = scores.clone()
        broken[1, 2, 3] = broken[3, 0, 0] = bad
        for dtype in DTYPES:
            with pytest.raises(ValueError, match=r"finite values, got .* in maps \[1, 3\]"):
                measure(broken.to(dtype), mask)


@pytest.mark.parametrize("tolerance", [-1, torch.inf, torch.nan])
def test_bad_tolerance(tolerance):
    with pytest.raises(ValueError, match="tolerance must be a finite number of at least 0"):
        pointing_game(*random_batch(), tolerance=tolerance)


def test_bad_mask_for_prevalence():
    with pytest.raises(ValueError, match="mask must be bool"):
        prevalence(torch.zeros(1, 2, 2))
    with pytest.raises(ValueError, match=r"mask must be of shape \(B, H, W\), got \(2, 2\)"):
        prevalence(torch.zeros(2, 2, dtype=torch.bool))


halves = st.integers(-6, 16).map(lambda n: n / 2)


@given(st.lists(st.tuples(halves, halves, halves, halves), max_size=3))
def test_box_mask_pixel_by_pixel(corners):
    boxes = [(min(a, b), min(c, d), max(a, b), max(c, d)) for a, b, c, d in corners]
    expected = [
        [
            any(x0 <= x + 0.5 < x1 and y0 <= y + 0.5 < y1 for x0, y0, x1, y1 in boxes)
            for x in range(6)
        ]
        for y in range(4)
    ]
    assert box_mask(torch.tensor(boxes).reshape(-1, 4), 4, 6).tolist() == expected


def test_box_mask_edges():
    whole = torch.tensor([[0, 0, 6, 4]])  # integers will do
    assert box_mask(whole, 4, 6).all()
    one = box_mask(torch.tensor([[2.5, 1.5, 3.5, 2.5]]), 4, 6)  # centre to centre: half-open
    assert one.nonzero().tolist() == [[1, 2]]
    assert not box_mask(torch.tensor([[2.6, 1.0, 3.4, 2.0]]), 4, 6).any()  # between two centres
    assert box_mask(torch.tensor([[5.0, 3.0, 60.0, 40.0]]), 4, 6).nonzero().tolist() == [[3, 5]]


def test_box_mask_takes_torchvision_boxes():
    boxes = torch.tensor([[1.0, 1.0, 3.0, 2.0], [4.0, 0.0, 5.0, 4.0]])
    tagged = BoundingBoxes(boxes, format=BoundingBoxFormat.XYXY, canvas_size=(4, 6))
    mask = box_mask(tagged, 4, 6)
    assert type(mask) is torch.Tensor
    assert mask.equal(box_mask(boxes, 4, 6)) and mask.sum() == 6


@pytest.mark.parametrize(
    ("boxes", "size", "message"),
    [
        ([0.0, 0.0, 1.0, 1.0], (2, 2), r"boxes must be of shape \(n, 4\), got \(4,\)"),
        ([[0.0, 0.0, 1.0]], (2, 2), r"boxes must be of shape \(n, 4\), got \(1, 3\)"),
        ([[0.0, 0.0, torch.nan, 1.0]], (2, 2), "boxes must be finite"),
        ([[0.0, 0.0, torch.inf, 1.0]], (2, 2), "boxes must be finite"),
        ([[1.0, 0.0, 0.0, 1.0]], (2, 2), "x0 <= x1"),
        ([[0.0, 1.0, 1.0, 0.0]], (2, 2), "y0 <= y1"),
        ([[0.0, 0.0, 1.0, 1.0]], (0, 2), "height, width must be at least 1, got 0 and 2"),
    ],
)
def test_bad_boxes(boxes, size, message):
    with pytest.raises(ValueError, match=message):
        box_mask(torch.tensor(boxes), *size)


def test_exported():
    names = [measure.__name__ for measure in [*MEASURES, prevalence, box_mask]]
    assert set(names) <= set(infsa_metrics.__all__)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("levels", [3, 1000])
def test_precision_at_recall_is_a_point_of_scikit_learns_curve(dtype, levels):
    generator = torch.Generator().manual_seed(levels)
    scores = torch.randint(0, levels, (6, 9, 7), generator=generator).to(dtype)
    mask = torch.rand(6, 9, 7, generator=generator) < 0.3
    mask[4], mask[5] = True, False
    recalls = [0.05, 0.3, 0.5, 0.9, 1.0]
    found = precision_at_recall(scores, mask, recalls=recalls)
    assert found[4:].isnan().all()
    for i in range(4):
        precision, recall, _ = precision_recall_curve(mask[i].ravel(), scores[i].ravel())
        # Its recall falls; of those of at least r, the last has the highest threshold.
        expected = [precision[np.flatnonzero(recall >= r - 1e-12)[-1]] for r in recalls]
        np.testing.assert_allclose(found[i], expected, atol=1e-12)


@pytest.mark.parametrize("recall", [0, -0.1, 1.1, float("nan")])
def test_recalls_are_shares(recall):
    with pytest.raises(ValueError, match=r"recalls must be numbers in \(0, 1\]"):
        precision_at_recall(torch.zeros(1, 2, 2), torch.ones(1, 2, 2).bool(), recalls=[0.5, recall])
