"""Every measure and every centrality on hard numbers: ties, outliers, 1e±20, constants, one token.

``HYPOTHESIS_PROFILE=nightly pytest tests/test_hard_numbers.py`` draws 500 examples a test.
"""

from __future__ import annotations

import infsa_metrics as m
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import linalg, stats
from sklearn.metrics import average_precision_score, roc_auc_score
from token_graphs import by_definition

from infsa_explain.graph import centrality
from infsa_explain.graph.operator import AttentionOperator

NAN = float("nan")
GRIDS = st.tuples(st.integers(1, 5), st.integers(1, 5))
SCALES = st.sampled_from([1e-20, 1.0, 1e20])
#: Values of a map: with many ties, of any size, all negative, or constant.
KINDS = {
    "ties": st.integers(-2, 2).map(float),
    "numbers": st.floats(-1e3, 1e3, allow_subnormal=False, width=32),
    "negative": st.floats(-9, -1, width=32),
}
SEEDS = st.integers(0, 2**31)
#: A measure of one kind each; a test below makes sure that none is forgotten.
BY_RANK = ("average_precision", "roc_auc", "pointing_game", "rank_accuracy", "iou_at_best")
BY_VALUE = ("mass_accuracy", "iou_at_mean")
SHARPNESS = ("entropy", "effective_patches", "gini")
ALIKE = ("cosine", "centred_cosine", "spearman")
OF_MAPS = ("rank_correlation", "ssim", "agreement", "stability")
DELETION = ("deletion_curve", "rank_patches", "srg")
FAITHFUL = ("infidelity", "sensitivity_max")
STATISTICS = ("bootstrap_mean", "paired_test", "paired_tests", "holm")
CURVES = ("precision_at_recall",)
OTHERS = ("prevalence", "token_similarity", "box_mask", "pixel_fill", "extreme_orders", "naopc")


def test_every_measure_is_here():
    here = {*BY_RANK, *BY_VALUE, *SHARPNESS, *ALIKE, *OF_MAPS, *DELETION, *FAITHFUL, *STATISTICS}
    no_measures = {"FILLS", "register_fill", "filled_once", "output_tensor", "class_logits"}
    no_measures |= {"class_probabilities"}
    functions = {name for name in m.__all__ if name[0].islower()} - no_measures
    assert functions == here | {*CURVES, *OTHERS}


def test_every_centrality_is_here():
    functions = {name for name in centrality.__all__ if name[0].islower()}
    assert functions == {
        *("visits", "katz", "degree", "pagerank", "doob_visits", "perron"),
        *("series", "certified_series"),
    }


@st.composite
def maps(draw, grid=None):
    """One map (1, gh, gw), maybe with one huge value, at any scale."""
    gh, gw = draw(GRIDS) if grid is None else grid
    x = draw(arrays(np.float64, (gh, gw), elements=KINDS[draw(st.sampled_from(sorted(KINDS)))]))
    if draw(st.booleans()):
        x.flat[draw(st.integers(0, x.size - 1))] = 1e12
    return torch.from_numpy(x * draw(SCALES))[None]


@st.composite
def maps_and_masks(draw):
    scores = draw(maps())
    mask = draw(arrays(bool, scores.shape, elements=st.booleans()))
    return scores, torch.from_numpy(mask)


def ranks(x):
    """A strictly increasing function of the values: 0, 1, 2, … with ties."""
    return torch.from_numpy(np.unique(x.numpy(), return_inverse=True)[1].reshape(x.shape)).double()


def close(actual, expected, tolerance=1e-12):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


class TestBoxes:
    @given(maps_and_masks())
    def test_only_the_order_counts(self, case):
        scores, mask = case
        for name in BY_RANK:
            measure = getattr(m, name)
            options = {"tolerance": 1} if name == "pointing_game" else {}
            value = measure(scores, mask, **options)
            close(value, measure(ranks(scores), mask, **options), 0)
            assert value.isnan().item() == (mask.all() or not mask.any())
            assert value.isnan() or 0 <= value <= 1
        curve = m.precision_at_recall(scores, mask, recalls=[0.2, 1.0])
        close(curve, m.precision_at_recall(ranks(scores), mask, recalls=[0.2, 1.0]), 0)
        if mask.any() and not mask.all():
            assert ((curve > 0) & (curve <= 1)).all()
            truth, order = mask.flatten(), ranks(scores).flatten()
            close(m.average_precision(scores, mask), average_precision_score(truth, order))
            close(m.roc_auc(scores, mask), roc_auc_score(truth, order))
            close(m.roc_auc(scores, mask) + m.roc_auc(-scores, mask), 1)

    @given(maps_and_masks(), SCALES)
    def test_a_scale_does_not_count(self, case, scale):
        scores, mask = case
        factor = 2.0 ** round(np.log2(scale))  # exact
        for name in (*BY_RANK, *BY_VALUE):
            close(getattr(m, name)(scores * factor, mask), getattr(m, name)(scores, mask), 1e-14)
        values = np.clip(scores.numpy(), 0, None)
        if mask.any() and not mask.all() and values.any():
            close(m.mass_accuracy(scores, mask), values[mask.numpy()].sum() / values.sum())

    @given(maps_and_masks(), st.sampled_from([-1e20, -1.0, 0.0, 1e-20, 1e20]))
    def test_a_constant_map_knows_nothing(self, case, value):
        mask = case[1]
        constant, share = torch.full(mask.shape, value, dtype=torch.float64), m.prevalence(mask)
        close(m.average_precision(constant, mask), share)
        close(m.precision_at_recall(constant, mask, recalls=[0.5])[:, 0], share)
        close(m.rank_accuracy(constant, mask), share)
        close(m.iou_at_best(constant, mask), share)
        close(m.pointing_game(constant, mask, tolerance=0), share)
        close(m.roc_auc(constant, mask), share * 0 + 0.5, 0)
        close(m.mass_accuracy(constant, mask), share if value > 0 else share * NAN)
        close(m.iou_at_mean(constant, mask), share * 0)

    @given(maps_and_masks(), st.sampled_from([torch.bfloat16, torch.float16, torch.float32]))
    def test_a_narrow_dtype_is_its_values(self, case, dtype):
        scores, mask = case
        narrow = scores.clamp(-1e4, 1e4).to(dtype)
        for name in (*BY_RANK, *BY_VALUE):
            close(getattr(m, name)(narrow, mask), getattr(m, name)(narrow.double(), mask))

    @given(maps_and_masks(), st.sampled_from([NAN, np.inf, -np.inf]), st.data())
    def test_nan_is_refused(self, case, bad, data):
        scores, mask = case[0].clone(), case[1]
        scores.view(-1)[data.draw(st.integers(0, scores.numel() - 1))] = bad
        for name in (*BY_RANK, *BY_VALUE):
            with pytest.raises(ValueError, match="scores must be finite values"):
                getattr(m, name)(scores, mask)
        with pytest.raises(ValueError, match="patch_scores must be finite scores, got 1 that"):
            m.rank_patches(scores)

    @given(arrays(np.float64, (3, 4), elements=st.floats(-3, 8)), GRIDS)
    def test_a_mask_is_the_union_of_its_boxes(self, corners, grid):
        boxes = torch.from_numpy(np.sort(corners.reshape(3, 2, 2), 1).reshape(3, 4))
        alone = [m.box_mask(boxes[i : i + 1], *grid) for i in range(3)]
        assert torch.equal(m.box_mask(boxes, *grid), torch.stack(alone).any(0))
        y, x = torch.meshgrid(*(torch.arange(n) + 0.5 for n in grid), indexing="ij")
        x0, y0, x1, y1 = boxes[0]
        assert torch.equal(alone[0], (x0 <= x) & (x < x1) & (y0 <= y) & (y < y1))


@st.composite
def additive_models(draw, least=1e-300):
    """A map, and a model whose p is p_0 times the weight that is left."""
    scores = draw(maps(draw(GRIDS.filter(lambda grid: grid != (1, 1)))))  # to be put in order
    rng = np.random.default_rng(draw(SEEDS))
    weights = torch.from_numpy(rng.dirichlet(np.ones(scores.numel()))).reshape(scores.shape)
    p_0 = draw(st.sampled_from([least, 1e-12, 0.3, 1.0]))

    def predict(images, removed):
        return (p_0 * (weights * ~removed).sum((1, 2))).clamp(max=1)[:, None]

    return scores, weights, p_0, predict


IMAGE, FIRST = torch.zeros(1, 3, 8, 8), torch.tensor([0])


class TestDeletion:
    @given(additive_models(), SEEDS)
    def test_only_the_order_counts(self, case, seed):
        scores, weights, p_0, predict = case
        options = {"seeds": [seed]}
        curves = {
            order: m.deletion_curve(predict, IMAGE, FIRST, scores, order=order, **options)
            for order in ("morf", "lerf")
        }
        for order, curve in curves.items():
            by_rank = m.deletion_curve(predict, IMAGE, FIRST, ranks(scores), order=order, **options)
            assert torch.equal(curve.probabilities, by_rank.probabilities)
            assert torch.equal(curve.tied, by_rank.tied)
        # What goes first one way goes last the other: the areas of an additive model add up.
        morf, lerf = curves.values()
        close(morf.aoc() + lerf.aoc(), 1)
        close(m.srg(morf, lerf), lerf.auc() - morf.auc(), 0)
        # By hand, from the ranking.
        (ranking,) = m.rank_patches(scores, [seed])
        assert sorted(ranking.tolist()) == list(range(scores.numel()))
        falling = scores.flatten()[ranking]
        assert bool((falling[1:] <= falling[:-1]).all())
        left = 1 - np.concatenate([[0], weights.flatten()[ranking].cumsum(0)])
        close(morf.probabilities[0] / p_0, left, 1e-9)
        close(morf.aoc(), 1 - np.trapezoid(left, dx=1 / scores.numel()), 1e-9)
        assert morf.aoc() <= 1 - 0.5 / scores.numel() + 1e-12

    @given(additive_models(), SEEDS, SCALES)
    def test_a_constant_map_removes_at_random(self, case, seed, value):
        scores, _, _, predict = case
        constant = torch.full_like(scores, value)
        (ranking,) = m.rank_patches(constant, [seed])
        order = torch.empty(scores.numel())
        order[ranking] = -torch.arange(scores.numel()).float()
        options = {"seeds": [seed]}
        curve = m.deletion_curve(predict, IMAGE, FIRST, constant, **options)
        drawn = m.deletion_curve(predict, IMAGE, FIRST, order.view_as(scores), **options)
        assert torch.equal(curve.probabilities, drawn.probabilities)
        assert curve.tied.item() == (scores.numel() > 1)

    @given(additive_models(), st.sampled_from([0.0, 1e-13, 0.01, 0.5]))
    def test_below_the_floor_aoc_is_void_and_counted(self, case, floor):
        scores, _, p_0, predict = case
        aoc = m.deletion_curve(predict, IMAGE, FIRST, scores).aoc(floor)
        assert aoc.isnan().item() == (p_0 <= floor)
        mean = m.bootstrap_mean(torch.cat([aoc, torch.tensor([0.5])]))
        assert (mean.n, mean.excluded) == (2 - (p_0 <= floor), int(p_0 <= floor))

    @given(additive_models(), st.sampled_from([NAN, -0.5, 1.5]))
    def test_what_is_no_probability_is_refused(self, case, bad):
        with pytest.raises(ValueError, match=r"probabilities in \[0, 1\], not logits or NaN"):
            m.deletion_curve(lambda x, removed: torch.full((len(x), 1), bad), IMAGE, FIRST, case[0])

    @given(maps(), st.sampled_from(sorted(m.FILLS)), st.sampled_from([torch.float32, torch.half]))
    def test_fills_of_any_grid(self, scores, fill, dtype):
        images = torch.randn(1, 3, 9, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
        colours = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.2)}
        seen = []

        def model(x):
            seen.append(x)
            return x.mean((2, 3))

        predict = m.pixel_fill(model, fill, **colours)
        removed = scores > scores.median()
        p = predict(images, removed)
        assert p.dtype == torch.float32 and p.isfinite().all()
        close(p.sum(1), 1, 1e-6)
        gone = torch.nn.functional.interpolate(removed[None].float(), (9, 7), mode="nearest-exact")
        kept = gone[0, 0] == 0
        assert torch.equal(seen[0][:, :, kept], images[:, :, kept])


class TestSharpness:
    @given(maps(), SCALES, st.randoms(use_true_random=False))
    def test_neither_scale_nor_place_counts(self, scores, scale, random):
        s = scores.abs().flatten()
        places = random.sample(range(len(s)), len(s))
        for name in SHARPNESS:
            value = getattr(m, name)(s)
            assert value.isnan().item() == (not s.any())
            close(getattr(m, name)(s[places] * scale), value, 1e-9)
        if s.any():
            assert -1e-12 <= m.entropy(s) <= np.log(len(s)) + 1e-12
            assert 1 - 1e-12 <= m.effective_patches(s) <= len(s) + 1e-9
            assert 0 <= m.gini(s) <= 1 - 1 / len(s) + 1e-12

    @given(st.integers(1, 99), st.sampled_from([1e-30, 1.0, 1e30]))
    def test_constant_and_single(self, patches, value):
        constant, single = torch.full((patches,), value), torch.zeros(patches)
        single[patches // 2] = value
        close(
            [getattr(m, name)(constant) for name in SHARPNESS], [np.log(patches), patches, 0], 1e-9
        )
        close([getattr(m, name)(single) for name in SHARPNESS], [0, 1, 1 - 1 / patches], 1e-12)

    @given(maps())
    def test_bad_scores(self, scores):
        for bad in (NAN, np.inf, -1.0):
            s = torch.cat([scores.abs().flatten(), torch.tensor([bad])])
            for name in SHARPNESS:
                with pytest.raises(ValueError, match="scores must be finite values of at least 0"):
                    getattr(m, name)(s)

    @given(
        arrays(np.float64, (5, 3), elements=st.floats(-9, 9, width=32)),
        st.lists(SCALES, min_size=5, max_size=5),
    )
    def test_tokens_of_any_length(self, tokens, scales):
        tokens = tokens[np.abs(tokens).max(1) > 1e-3]
        if len(tokens) < 2:
            return
        unit = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
        n = len(tokens)
        expected = ((unit @ unit.T).sum() - n) / (n * (n - 1))
        scaled = torch.from_numpy(tokens * np.array(scales)[:n, None])[None]
        close(m.token_similarity(scaled), expected)
        assert m.token_similarity(torch.zeros(1, 2, 3)).isnan()


pairs = GRIDS.flatmap(lambda grid: st.tuples(maps(grid), maps(grid)))


class TestAlike:
    @given(pairs, SCALES, SCALES)
    def test_a_scale_does_not_count_and_what_is_undefined_is_nan(self, pair, scale, other):
        a, b = (x.flatten(1) for x in pair)
        for name in ALIKE:
            value = getattr(m, name)(a, b)
            close(getattr(m, name)(a * scale, b * other), value, 1e-9)
            close(getattr(m, name)(b, a), value)
            constant = any(
                not x.any() if name == "cosine" else bool((x == x[0, 0]).all()) for x in (a, b)
            )
            assert value.isnan().item() == constant
            assert value.isnan() or -1 <= value <= 1
        close(m.spearman(ranks(a), ranks(b)), m.spearman(a, b), 0)
        if not m.spearman(a, b).isnan():
            close(m.spearman(a, b), stats.spearmanr(a[0], b[0]).statistic, 1e-9)

    @given(pairs, SCALES)
    def test_of_maps(self, pair, scale):
        a, b = pair
        rho = m.rank_correlation(a, b)
        close(rho, m.spearman(a.flatten(1), b.flatten(1)), 0)
        table = m.agreement({"a": a, "b": b, "again": a * scale})
        close(table[0, 0, 1], rho[0])
        close(table, table.mT)
        constant = bool((a == a[0, 0, 0]).all())
        close(table[0, 0, [0, 2]], [NAN if constant else 1] * 2, 1e-9)
        if min(a.shape[1:]) > 1:
            same = m.ssim(a * scale, a)
            close(same, NAN if constant else 1, 1e-9)
            assert m.ssim(a, b).isnan() or -1 - 1e-9 <= m.ssim(a, b) <= 1 + 1e-9

    @given(maps())
    def test_a_map_of_no_image_is_stable(self, scores):
        images = torch.arange(48.0).view(1, 3, 4, 4)
        value = m.stability(lambda x: scores, images, draws=1)
        close(value, NAN if bool((scores == scores[0, 0, 0]).all()) else 1, 1e-9)

    @given(pairs)
    def test_nan_comes_out_as_nan(self, pair):
        a, b = (x.flatten(1) for x in pair)
        a = torch.cat([a, torch.tensor([[NAN]])], 1)
        b = torch.cat([b, torch.tensor([[1.0]])], 1)
        for name in ALIKE:
            assert getattr(m, name)(a, b).isnan().all()


class TestFaithful:
    @given(additive_models(0.3), st.sampled_from([1e-6, 1.0, 1e6]), SEEDS)
    def test_infidelity_knows_no_units(self, case, scale, seed):
        scores, weights, p_0, predict = case
        relative = scores / scores.abs().max().clamp(min=1e-300)
        options = {"samples": 8, "seeds": [seed]}
        value = m.infidelity(predict, IMAGE, FIRST, relative, **options)
        close(m.infidelity(predict, IMAGE, FIRST, relative * scale, **options), value, 1e-9)
        none = m.infidelity(predict, IMAGE, FIRST, torch.zeros_like(scores), **options)
        assert 0 <= value <= none + 1e-12
        close(m.infidelity(predict, IMAGE, FIRST, weights, **options), 0, 1e-12)

    @given(maps(), SCALES, SEEDS)
    def test_sensitivity_is_relative(self, scores, scale, seed):
        def explain(images, targets):
            brightness = images.mean((1, 2, 3))[:, None, None]
            return (1 + brightness) * scores * scale

        images = torch.ones(1, 3, 4, 4)
        value = m.sensitivity_max(explain, images, FIRST, radius=0.1, samples=2, seeds=[seed])
        assert value.isnan() if not scores.any() else 0 < value <= 0.051  # 0.1 over 1 + 1


values = st.lists(st.one_of(st.floats(-1, 1, width=32), st.just(NAN)), min_size=0, max_size=12)


class TestStatistics:
    @given(values, SCALES)
    def test_a_mean_counts_what_it_leaves_out(self, x, scale):
        x = np.array(x, dtype=np.float64)
        mean, scaled = (m.bootstrap_mean(x * f, resamples=99) for f in (1.0, scale))
        known = x[~np.isnan(x)]
        assert (mean.n, mean.excluded) == (len(known), len(x) - len(known))
        assert (scaled.n, scaled.excluded) == (mean.n, mean.excluded)
        close(mean.mean, known.mean() if len(known) else NAN)
        close(scaled.mean / scale, mean.mean)
        if len(known) > 1:
            assert mean.low <= mean.mean <= mean.high
            close(mean.high - mean.mean, mean.mean - mean.low)
            close((scaled.high - scaled.low) / scale, mean.high - mean.low)

    @given(values, values, SCALES)
    def test_swapping_a_pair_turns_its_sign(self, a, b, scale):
        n = min(len(a), len(b))
        a, b = (np.array(x[:n], dtype=np.float64) * scale for x in (a, b))
        test, turned = (m.paired_test(*pair, resamples=99) for pair in ((a, b), (b, a)))
        close(test.difference / scale, -turned.difference / scale)
        assert test.n + test.excluded == n
        assert np.isnan(test.p_value) if test.n == 0 else 0 < test.p_value <= 1

    @given(st.lists(st.one_of(st.floats(0, 1), st.just(NAN)), max_size=9))
    def test_holm(self, p):
        p = np.array(p, dtype=np.float64)
        adjusted, known = m.holm(p), p[~np.isnan(p)]
        assert np.array_equal(np.isnan(adjusted), np.isnan(p))
        assert np.all(adjusted[~np.isnan(p)] >= known) and np.all(adjusted[~np.isnan(p)] <= 1)
        if len(known):
            close(np.nanmin(adjusted), min(1, known.min() * len(known)))

    @given(st.lists(st.floats(-1, 1), max_size=5), st.sampled_from([np.inf, -np.inf]))
    def test_infinity_is_refused(self, x, bad):
        with pytest.raises(ValueError, match="must be finite values or NaN, got an infinity"):
            m.bootstrap_mean([*x, bad])


@st.composite
def graphs(draw):
    """Queries and keys of one graph: some zero, some opposed, huge or tiny, maybe one token."""
    tokens, width = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    kind = st.one_of(st.integers(-1, 1).map(float), st.floats(-4, 4, width=32))
    elements = arrays(np.float64, (1, 1, tokens, width), elements=kind)
    q, k = torch.from_numpy(draw(elements)), torch.from_numpy(draw(elements))
    if draw(st.booleans()):
        q[0, 0, draw(st.integers(0, tokens - 1))] *= 1e6  # one token outweighs all
    scale = draw(SCALES)
    dtype = draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
    return AttentionOperator((q * scale).to(dtype), k.to(dtype), draw(KIND))


KIND = st.sampled_from(["infsa", "softmax"])
GAMMAS = st.sampled_from([0.05, 0.95, 0.999])


def certified(result, exact, norm):
    """Its bound holds, nothing is negative, and what is not known is said not to be."""
    scores = result.scores[0, 0].numpy()
    assert np.isfinite(scores).all() and (scores >= 0).all()
    error, size = (np.linalg.norm(x, norm) for x in (scores - exact, scores))
    assert error <= float(result.error_bound) * (size or 1) + 1e-300
    assert result.converged.all()


class TestCentralities:
    @given(graphs(), GAMMAS)
    def test_visits_and_katz(self, op, gamma):
        graph = by_definition(op.double)[0, 0]
        n, softmax = len(graph), op.kind == "softmax"
        inverse = np.linalg.inv(np.eye(n) - gamma * graph)
        for start in ("uniform", "class"):
            s = np.full(n, 1 / n) if start == "uniform" else np.eye(n)[0]
            certified(centrality.visits(op, gamma, start), s @ inverse, 1 if softmax else 2)
        katz = centrality.katz(op, gamma, "received")
        certified(katz, gamma * np.ones(n) @ graph @ inverse, 1 if softmax else 2)
        absorption = 1 - gamma * graph.sum(1)
        close(katz.min_absorption, absorption.min(), 1e-9)
        if not softmax:
            certified(centrality.katz(op, gamma), inverse @ (gamma * graph.sum(1)), 2)

    @given(graphs(), st.sampled_from([0.5, 0.85, 0.99]))
    def test_degree_and_pagerank(self, op, damping):
        graph = by_definition(op.double)[0, 0]
        np.testing.assert_allclose(centrality.degree(op).scores[0, 0], graph.sum(0), rtol=1e-9)
        sums = graph.sum(1, keepdims=True)
        steps = np.divide(graph, sums, out=np.full_like(graph, 1 / len(graph)), where=sums > 0)
        teleport = (1 - damping) / len(graph)
        exact = np.linalg.solve(
            np.eye(len(graph)) - damping * steps.T, np.full(len(graph), teleport)
        )
        result = centrality.pagerank(op, damping, max_iterations=5000)
        certified(result, exact, 1)
        close(result.scores.sum(), 1, 1e-6)

    @given(graphs(), st.sampled_from(["left", "right"]))
    def test_perron(self, op, side):
        if side == "right" and op.kind == "softmax":
            with pytest.raises(ValueError, match="right Perron vector"):
                centrality.perron(op, side)
            return
        graph = by_definition(op.double)[0, 0]
        acyclic = not np.linalg.matrix_power(graph > 0, len(graph)).any()
        result = centrality.perron(op, side)
        vector, value = result.vector[0, 0].numpy(), float(result.value)
        assert np.isnan(vector).all() == acyclic
        if acyclic:
            assert (value, bool(result.unique)) == (0, False)
            return
        assert (vector >= 0).all()
        close(np.linalg.norm(vector), 1, 1e-9)
        if result.converged.all():
            product = graph.T @ vector if side == "left" else graph @ vector
            assert np.linalg.norm(product - value * vector) <= 1.01e-6 * value
            # A residual moves an eigenvalue by as many times as much as its left and right
            # eigenvectors are far from parallel.
            values, left, right = linalg.eig(graph / graph.max(), left=True)
            radius = np.abs(values).max()
            condition = 1 / np.abs((left.conj() * right).sum(0)).clip(min=1e-300)
            worst = condition[np.abs(values) > 0.99 * radius].max()
            off = abs(value / graph.max() - radius)
            assert off <= (1e-3 + 2e-6 * worst) * radius

    @given(graphs(), GAMMAS)
    def test_doobs_walk(self, op, gamma):
        if op.kind == "softmax":
            with pytest.raises(ValueError, match="use visits"):
                centrality.doob_visits(op, gamma)
            return
        graph = by_definition(op.double)[0, 0]
        result = centrality.doob_visits(op, gamma)
        if not np.linalg.matrix_power(graph > 0, len(graph)).any():
            assert result.scores.isnan().all() and not result.converged.any()
            return
        scores = result.scores[0, 0]
        assert scores.isfinite().all() and (scores >= 0).all()
        # Every step survives with γρ: as many visits as the geometric series has in all; with at
        # most γc where rounding leaves h inexact.
        _, growth, _ = centrality._harmonic(op)
        exact = bool((growth[growth > 0] > (1 - 1e-6) * growth.max()).all())
        if result.converged.all():
            total, most = float(scores.sum()), 1 / float(result.min_absorption)
            assert total <= most * (1 + 1e-5)
            assert total == pytest.approx(most, rel=1e-3) or not exact

    @given(graphs(), graphs(), GAMMAS)
    def test_series(self, first, second, gamma):
        n = first.num_tokens
        if second.num_tokens != n:
            second = first
        a, b = (by_definition(op.double)[0, 0] for op in (first, second))
        expected = np.full(n, 1 / n) @ (gamma * a + gamma**2 * b @ a)
        actual = centrality.series([first, second], [gamma, gamma])[0]
        least = 1e-30  # about what float64 holds of Σ relu², over ε
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=least)

    @given(graphs(), st.sampled_from([NAN, np.inf]), st.booleans())
    def test_what_a_broken_model_computes_is_refused(self, op, bad, in_keys):
        q, k = op.q.clone(), op.k.clone()
        (k if in_keys else q)[0, 0, -1, 0] = bad
        with pytest.raises(ValueError, match=f"{'k' if in_keys else 'q'} holds NaN or infinite"):
            AttentionOperator(q, k, op.kind)
