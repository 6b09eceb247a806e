"""The best and the worst order of removal, against all orders and against closed forms."""

from __future__ import annotations

from itertools import permutations

import infsa_metrics.extremes as extremes
import numpy as np
import pytest
import torch
from infsa_metrics import deletion_curve, extreme_orders, naopc


def tangled(images, removed):
    """A probability that depends on pairs of patches, so that no order is obvious."""
    weights = images[:, 0].flatten(1).double()
    left = (~removed).flatten(1).double()
    pairs = torch.einsum(
        "bi,bj,bij->b", left, left, torch.cos(weights[:, :, None] * weights[:, None])
    )
    p = torch.sigmoid((left * weights).sum(1) - 2 + 0.3 * pairs / left.shape[1])
    return torch.stack([p, 1 - p], 1)


def additive(images, removed):
    """p = the share of weight that is left."""
    weights = images[:, 0].double()
    return ((weights * ~removed).sum((1, 2)) / weights.sum((1, 2)))[:, None]


def batch(size, grid, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, 1, *grid, generator=generator, dtype=torch.float64)
    return images, torch.randint(2, (size,), generator=generator)


def area_of(order, predict, image, target, grid, steps):
    scores = torch.empty(1, grid[0] * grid[1])
    scores[0, list(order)] = -torch.arange(len(order), dtype=torch.float32)
    curve = deletion_curve(predict, image, target, scores.reshape(1, *grid), steps=steps)
    return float(curve.aoc())


@pytest.mark.parametrize("steps", [None, 3, [0, 1, 4, 6]])
def test_all_orders_of_six_patches(steps):
    grid = (2, 3)
    images, targets = batch(3, grid)
    found = extreme_orders(tangled, images, targets, grid, steps=steps)
    assert found.exact
    for i in range(3):
        image, target = images[i : i + 1], targets[i : i + 1]
        areas = [
            area_of(order, tangled, image, target, grid, steps) for order in permutations(range(6))
        ]
        assert float(found.best_aoc[i]) == pytest.approx(max(areas), abs=1e-12)
        assert float(found.worst_aoc[i]) == pytest.approx(min(areas), abs=1e-12)
        for order, area in (
            (found.best[i], found.best_aoc[i]),
            (found.worst[i], found.worst_aoc[i]),
        ):
            same = area_of(order.tolist(), tangled, image, target, grid, steps)
            assert same == pytest.approx(float(area), abs=1e-12)


@pytest.mark.parametrize("steps", [None, "few", 5])
@pytest.mark.parametrize("exact", [True, False])
def test_an_additive_model_is_taken_apart_by_weight(steps, exact, monkeypatch):
    """The heaviest patches first are best and last are worst; the beam search finds both."""
    monkeypatch.setattr(extremes, "EXACT_PATCHES", 12 if exact else 0)
    grid = (3, 4)
    images, targets = batch(2, grid)[0].abs() + 0.1, torch.zeros(2, dtype=torch.long)
    found = extreme_orders(additive, images, targets, grid, steps=steps, beam=1)
    assert found.exact == exact
    for order, expected in (("morf", found.best_aoc), ("lerf", found.worst_aoc)):
        curve = deletion_curve(additive, images, targets, images[:, 0], order=order, steps=steps)
        torch.testing.assert_close(curve.aoc(), expected, rtol=0, atol=1e-12)
    if steps is None:
        assert found.best.tolist() == images.flatten(1).argsort(descending=True).tolist()
        assert found.worst.tolist() == images.flatten(1).argsort().tolist()


@pytest.mark.parametrize("steps", [None, 4])
def test_a_beam_search_never_beats_all_orders(steps, monkeypatch):
    grid = (3, 3)
    images, targets = batch(4, grid, seed=3)
    exact = extreme_orders(tangled, images, targets, grid, steps=steps)
    monkeypatch.setattr(extremes, "EXACT_PATCHES", 0)
    previous = None
    for beam in (1, 4, 400):
        found = extreme_orders(tangled, images, targets, grid, steps=steps, beam=beam)
        assert not found.exact
        assert (found.best_aoc <= exact.best_aoc + 1e-12).all()
        assert (found.worst_aoc >= exact.worst_aoc - 1e-12).all()
        for i in range(4):  # the order that is returned has the area that is returned
            one, target = images[i : i + 1], targets[i : i + 1]
            area = area_of(found.best[i].tolist(), tangled, one, target, grid, steps)
            assert area == pytest.approx(float(found.best_aoc[i]), abs=1e-12)
        if steps is None and beam == 400:  # wider than any level: nothing is cut
            torch.testing.assert_close(found.best_aoc, exact.best_aoc, rtol=0, atol=1e-12)
            torch.testing.assert_close(found.worst_aoc, exact.worst_aoc, rtol=0, atol=1e-12)
        assert previous is None or found.passes >= previous
        previous = found.passes


@pytest.mark.parametrize("exact", [True, False])
def test_batches_change_nothing(exact, monkeypatch):
    monkeypatch.setattr(extremes, "EXACT_PATCHES", 12 if exact else 0)
    grid = (3, 3)
    images, targets = batch(3, grid)
    whole = extreme_orders(tangled, images, targets, grid)
    for i in range(3):
        alone = extreme_orders(tangled, images[i : i + 1], targets[i : i + 1], grid, batch_size=7)
        assert torch.equal(alone.best[0], whole.best[i])
        assert torch.equal(alone.worst[0], whole.worst[i])
        assert float(alone.best_aoc) == pytest.approx(float(whole.best_aoc[i]), abs=1e-14)


def test_passes_are_counted_and_none_is_made_twice():
    seen = []

    def counted(images, removed):
        seen.extend(mask.numpy().tobytes() for mask in removed)
        return tangled(images, removed)

    found = extreme_orders(counted, *batch(1, (3, 3)), (3, 3))
    assert found.passes == len(seen) == len(set(seen)) == 2**9


def test_naopc_of_the_extremes_is_0_and_1_and_of_any_map_between():
    grid = (2, 4)
    images, targets = batch(5, grid)
    found = extreme_orders(tangled, images, targets, grid)
    assert naopc(found.best_aoc, found).tolist() == [1] * 5
    assert naopc(found.worst_aoc, found).tolist() == [0] * 5
    maps = torch.rand(5, *grid, generator=torch.Generator().manual_seed(1))
    share = naopc(deletion_curve(tangled, images, targets, maps).aoc(), found)
    assert ((share > 0) & (share < 1)).all()
    aoc = deletion_curve(tangled, images, targets, maps).aoc()
    by_hand = (aoc - found.worst_aoc) / (found.best_aoc - found.worst_aoc)
    np.testing.assert_allclose(share, by_hand, rtol=1e-12)


def test_a_model_that_never_reacts_has_no_naopc():
    constant = lambda images, removed: torch.full((len(images), 2), 0.5)  # noqa: E731
    found = extreme_orders(constant, *batch(2, (2, 2)), (2, 2))
    assert found.best_aoc.tolist() == found.worst_aoc.tolist() == [0, 0]
    assert naopc([0.0, 0.0], found).isnan().all()
    zero = lambda images, removed: torch.zeros(len(images), 2)  # noqa: E731
    assert extreme_orders(zero, *batch(1, (2, 2)), (2, 2)).best_aoc.isnan().all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"images": torch.zeros(2, 2, 3)}, r"images must be of shape \(B, C, H, W\), got"),
        ({"beam": 0}, "beam must be an integer of at least 1, got 0"),
        ({"beam": 2.5}, "beam must be an integer of at least 1, got 2.5"),
        ({"beam": True}, "beam must be an integer of at least 1, got True"),
        ({"batch_size": 2.5}, "batch_size must be an integer of at least 1, got 2.5"),
        ({"grid": (0, 3)}, r"grid must be \(gh, gw\), .*, got \(0, 3\)"),
        ({"grid": (1, 1)}, r"grid must be \(gh, gw\), .* several patches, got \(1, 1\)"),
        ({"grid": (2.0, 3)}, r"grid must be \(gh, gw\), integers .*, got \(2.0, 3\)"),
        ({"grid": (6,)}, r"grid must be \(gh, gw\), .*, got \(6,\)"),
        ({"grid": 6}, r"grid must be \(gh, gw\), .*, got 6"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"steps": 1}, "steps must be .*, got 1"),
        ({"targets": torch.zeros(3, dtype=torch.long)}, r"targets must be of shape \(2,\), got"),
    ],
)
def test_what_is_refused(options, words):
    images, targets = batch(2, (2, 3))
    arguments = {"images": images, "targets": targets, "grid": (2, 3), **options}
    with pytest.raises(ValueError, match=words):
        extreme_orders(tangled, **arguments)


@pytest.mark.parametrize("grid", [(2, 2), (4, 4)])
def test_no_images_have_no_orders(grid):
    found = extreme_orders(tangled, torch.zeros(0, 1, *grid), torch.zeros(0, dtype=int), grid)
    assert found.best.shape == found.worst.shape == (0, grid[0] * grid[1])
    assert naopc(torch.zeros(0), found).shape == (0,)
    assert found.passes == 0


def test_rounding_alone_gives_no_naopc():
    """p is 0.7, off by at most two units in the last place of float32, in no order."""

    def rounded(images, removed):
        places = removed.flatten(1).double() @ torch.arange(1.0, 9, dtype=torch.float64)
        return (0.7 + ((places * 7919) % 5 - 2) * 6e-8).float()[:, None]

    found = extreme_orders(rounded, torch.ones(1, 1, 2, 4), [0], (2, 4))
    assert 0 < found.best_aoc - found.worst_aoc < 1e-6
    assert naopc([0.0], found).isnan().all()


def test_areas_of_other_images_are_refused():
    found = extreme_orders(tangled, *batch(2, (2, 2)), (2, 2))
    with pytest.raises(ValueError, match=r"aoc must be of shape \(2,\), got \(3,\)"):
        naopc([0.1, 0.2, 0.3], found)
