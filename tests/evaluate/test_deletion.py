"""``Morf`` against the same numbers put together by hand from the parts."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import timm
import torch
from infsa_metrics import deletion_curve, extreme_orders, filled_once, pixel_fill

import infsa_explain.models  # noqa: F401  (registers the names)
from infsa_explain.data import PhotoDigits, Subset
from infsa_explain.data.samples import Sample
from infsa_explain.evaluate import (
    Morf,
    choose_methods,
    deletion,
    fingerprint,
    measure,
)
from infsa_explain.methods import explain
from infsa_explain.models.untraining import untrained
from infsa_explain.report import Report, summarise_morf
from infsa_explain.vits.preprocessing import preprocess
from infsa_explain.vits.tokens import drop_fill

DATA = PhotoDigits("val", 5)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    network = timm.create_model("infvit_linear_digits", depth=2, embed_dim=32, num_heads=4)
    torch.nn.init.normal_(network.head.weight, std=1.0)  # so that predictions move
    return network.eval()


def by_hand(model, sample, method, order, predict, target):
    images = preprocess(model, sample.image)
    maps = explain(model, images, method, seeds=[sample.image_id]).maps
    return deletion_curve(
        predict, images, torch.tensor([target]), maps, order=order, steps=6, seeds=[sample.image_id]
    )


@pytest.mark.parametrize("fill", ["mean", "black", "blur", "noise", "drop"])
def test_rows_are_the_curves_of_single_images(model, fill):
    rows = measure(model, DATA, Morf(("visits", "random"), fill=fill, steps=6))
    assert len(rows) == 5 * 2 * 2
    predict = drop_fill(model)
    if fill != "drop":
        half = (0.5, 0.5, 0.5)
        predict = pixel_fill(model, fill, mean=half, std=half, seed=0)
    for row in rows[::3]:
        sample = next(s for s in (DATA[i] for i in range(5)) if s.image_id == row["image"])
        with torch.no_grad():
            predicted = int(model(preprocess(model, sample.image)).argmax())
        assert row["predicted"] == row["target"] == predicted
        assert row["label"] == sample.label
        curve = by_hand(model, sample, row["method"], row["order"], predict, predicted)
        np.testing.assert_allclose(row["probabilities"], curve.probabilities[0], atol=2e-6)
        assert row["aoc"] == pytest.approx(curve.aoc().item(), abs=2e-6)
        assert row["auc"] == pytest.approx(curve.auc().item(), abs=2e-6)
        assert row["still_predicted"] == curve.predicted()[0].tolist()
        assert row["still_predicted"][0] == 1
        assert row["still_predicted_auc"] == pytest.approx(curve.predicted_auc().item(), abs=1e-9)


@pytest.mark.parametrize("fill", ["mean", "drop"])
def test_areas_between_the_extreme_orders(model, fill):
    data = Subset(DATA, [0, 1])
    rows = measure(model, data, Morf(("degree", "random"), fill=fill, steps=2, normalise=True))
    images = torch.cat([preprocess(model, data[i].image) for i in range(2)])
    predict = drop_fill(model) if fill == "drop" else pixel_fill(model, fill)
    with torch.no_grad():
        targets = model(images).argmax(-1)
    extremes = extreme_orders(predict, images, targets, (14, 14), steps=2)
    for row in rows:
        if row["order"] == "lerf":
            assert "naopc" not in row
            continue
        i = [data[0].image_id, data[1].image_id].index(row["image"])
        best, worst = extremes.best_aoc[i].item(), extremes.worst_aoc[i].item()
        assert (row["best_aoc"], row["worst_aoc"]) == pytest.approx((best, worst), abs=1e-5)
        assert row["naopc"] == pytest.approx((row["aoc"] - worst) / (best - worst), abs=1e-4)
    other = [dict(row, model="other") for row in rows]
    report = Report(rows + other)
    assert report.summaries["morf"][0].naopc.n == 2
    assert [t.headings for t in report.tables()][2][2] == "NAOPC ↑ [95%]"
    assert {c.quantity for c in report.comparisons} == {"MoRF-AOC over random", "SRG", "NAOPC"}


def test_rows_do_not_depend_on_the_company_of_other_images(model):
    options = Morf(("linear", "random", "degree"), steps=5)
    together = measure(model, DATA, options)
    alone = measure(model, Subset(DATA, [3]), options)
    same = [row for row in together if row["image"] == DATA[3].image_id]
    assert [row["method"] for row in alone] == [row["method"] for row in same]
    for a, b in zip(alone, same, strict=True):
        np.testing.assert_allclose(a["probabilities"], b["probabilities"], atol=2e-6)


@pytest.mark.filterwarnings("ignore:.* has no map for some images")
def test_a_constant_map_ties_everywhere_and_a_control_nowhere(model):
    class Flat(torch.nn.Module):  # no query, so no weights: every head of every layer is dead
        def forward(self, x):
            return torch.zeros_like(x)

    dead = copy.deepcopy(model)
    for block in dead.blocks:
        block.norm1 = Flat()
        torch.nn.init.zeros_(block.attn.qkv.bias)
    rows = measure(dead, DATA, Morf(("linear", "random"), steps=4))
    assert {row["tied"] for row in rows if row["method"] == "linear"} == {1.0}
    assert {row["tied"] for row in rows if row["method"] == "random"} == {0.0}


def test_target_label_follows_the_label_and_the_floor_voids(model):
    rows = measure(model, DATA, Morf(("degree",), steps=3, target="label", floor=0.9))
    assert all(row["target"] == row["label"] for row in rows)
    assert [row["aoc"] is None for row in rows] == [row["p0"] <= 0.9 for row in rows]
    assert any(row["aoc"] is None for row in rows)


def test_the_floor_where_none_is_given(model):
    """A label that the model gives no chance has p_s / p_0 of any size, and outweighs all."""
    assert (Morf().floor, Morf(target="label").floor, Morf(target="label", floor=0).floor) == (
        0, 0.01, 0
    )  # fmt: skip
    sure = copy.deepcopy(model)
    with torch.no_grad():
        sure.head.bias[DATA[0].label] -= 30
    rows = measure(sure, Subset(DATA, [0]), Morf(("degree",), steps=3, target="label"))
    assert all(row["p0"] < 1e-9 and row["aoc"] is None and row["auc"] < 1 for row in rows)
    (summary,) = summarise_morf(rows)
    assert (summary.aoc.n, summary.aoc.excluded, summary.auc.n) == (0, 1, 1)
    table, _ = Report(rows).tables()
    assert "excluded: images whose clean probability is not above --floor" in table.note
    rows = measure(sure, Subset(DATA, [0]), Morf(("degree",), steps=3, target="label", floor=0))
    assert all(row["aoc"] is not None for row in rows)
    for floor in (-0.1, 1, float("nan")):
        with pytest.raises(ValueError, match=r"floor must be a probability in \[0, 1\), got"):
            measure(sure, DATA, Morf(("degree",), floor=floor))


def test_target_label_without_labels_is_refused(model):
    sample = DATA[0]
    unlabelled = Subset(DATA, [0])
    unlabelled.__class__ = type(
        "Unlabelled",
        (Subset,),
        {"__getitem__": lambda self, i: Sample(sample.image, None, sample.boxes, "mystery.png")},
    )
    with pytest.raises(ValueError, match=r"mystery\.png has no label"):
        measure(model, unlabelled, Morf(("degree",), target="label", steps=2))


def test_amp_gives_nearly_the_same_curve(model):
    exact, half = (
        measure(model, DATA, Morf(("degree",), steps=3, amp=amp)) for amp in (False, True)
    )
    for a, b in zip(exact, half, strict=True):
        np.testing.assert_allclose(a["probabilities"], b["probabilities"], atol=0.03)


@pytest.mark.parametrize(
    ("name", "options", "images", "size"),
    [
        ("infvit_linear_digits", {}, 16, 10),  # 2,048 patches, 196 of an image
        ("infvit_linear_photos", {}, 16, 32),
        ("infvit_linear_digits", {"batch_size": 64}, 16, 64),
        # the images of one step, which have as many patches left: half of them on average
        ("infvit_linear_digits", {"fill": "drop"}, 16, 16),
        ("infvit_linear_digits", {"fill": "drop"}, 50, 20),
        ("infvit_linear_digits", {"fill": "drop", "batch_size": 8}, 16, 8),
    ],
)
def test_masked_images_a_pass(name, options, images, size):
    model = timm.create_model(name, depth=1)
    x = torch.zeros(images, 3, *model.patch_embed.img_size)
    assert Morf(**options).pass_size(model, x) == size


def test_a_large_image_is_a_pass_of_its_own():
    model = timm.create_model("infvit_linear_digits", depth=1, img_size=400)
    assert Morf().pass_size(model, torch.zeros(2, 3, 400, 400)) == 1


def test_images_that_outgrew_memory_once_are_halved_from_then_on(model, monkeypatch):
    expected = measure(model, DATA, Morf(("degree",), steps=4))
    sizes = []

    def short_of_memory(*args, **kwargs):
        inputs, predict = filled_once(*args, **kwargs)

        def predict_masked(inputs, removed):
            sizes.append(len(inputs))
            if len(inputs) > 3:
                raise torch.OutOfMemoryError
            return predict(inputs, removed)

        return inputs, predict_masked

    monkeypatch.setattr(deletion, "filled_once", short_of_memory)
    with pytest.warns(UserWarning, match="out of memory with .* masked images") as warned:
        rows = measure(model, DATA, Morf(("degree",), steps=4, batch_size=8))
    # two orders of 5 images × 5 points, eight at a time, then four, then two
    assert sizes == [8, 4, *[2] * 12, 1, *[2] * 12, 1]
    assert len(warned) == 2
    for a, b in zip(rows, expected, strict=True):
        np.testing.assert_allclose(a["probabilities"], b["probabilities"], atol=2e-6)


def test_untrained_control_is_the_map_of_a_fresh_copy(model):
    state = torch.random.get_rng_state()
    fresh, again = untrained(model, seed=3), untrained(model, seed=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert fingerprint(fresh) == fingerprint(again) != fingerprint(model)
    assert fresh.blocks[0].attn.gamma.tolist() == pytest.approx([0.95] * 4)
    rows = measure(model, DATA, Morf(("untrained-degree",), steps=6, seed=3))
    sample = DATA[2]
    half = (0.5, 0.5, 0.5)
    images = preprocess(model, sample.image)
    curve = deletion_curve(
        pixel_fill(model, "mean", mean=half, std=half),
        images,
        model(images).argmax(-1),
        explain(fresh, images, "degree").maps,
        steps=6,
        seeds=[sample.image_id],
    )
    (own,) = [r for r in rows if r["image"] == sample.image_id and r["order"] == "morf"]
    np.testing.assert_allclose(own["probabilities"], curve.probabilities[0], atol=2e-6)
    with pytest.raises(ValueError, match="did you mean"):
        choose_methods(model, ["untrained-vists"])


@pytest.mark.parametrize("target", ["Three ", "3", 3])
def test_one_class_for_all(model, target):
    """By name or number: followed in deletion, and explained by methods that are of a class."""
    named = copy.deepcopy(model)
    named.class_names = ["zero", "one", "two", "three", *"456789"]
    rows = measure(named, DATA, Morf(("gradcam",), steps=6, target=target, floor=0))
    half = (0.5, 0.5, 0.5)
    predict = pixel_fill(model, "mean", mean=half, std=half)
    for row in rows:
        sample = next(s for s in (DATA[i] for i in range(5)) if s.image_id == row["image"])
        images = preprocess(model, sample.image)
        curve = deletion_curve(
            predict,
            images,
            torch.tensor([3]),
            explain(model, images, "gradcam", target=3).maps,
            order=row["order"],
            steps=6,
            seeds=[sample.image_id],
        )
        np.testing.assert_allclose(row["probabilities"], curve.probabilities[0], atol=2e-6)
        assert row["target"] == 3
    assert Morf(target=target).floor == 0.01  # p₀ may be anything
    with pytest.raises(ValueError, match="got 'truth'; the model's .*; or 'predicted', or 'label'"):
        Morf(("visits",), target="truth").check(named)
    with pytest.raises(ValueError, match="class of the model, 0 to 9, got"):
        measure(named, DATA, Morf(("visits",), steps=6, target=10))


def test_a_head_is_for_methods_that_have_heads(model):
    """Controls stand beside them without one; others without heads are refused."""
    rows = measure(model, DATA, Morf(("degree", "random", "untrained-degree"), head=2, steps=6))
    heads = {row["method"]: row["head"] for row in rows}
    assert heads == {"degree": 2, "random": None, "untrained-degree": 2}
    for name in ("gradcam", "rollout", "relevance", "occlusion"):
        with pytest.raises(ValueError, match=f"head must be left out for {name}, without heads"):
            choose_methods(model, ["degree", name, "random"], 2)
    every = choose_methods(model, None, 2)
    assert {"visits", "gradient-degree", "random", "centre", "untrained-visits"} <= set(every)
    assert not {"gradcam", "rollout", "series", "relevance", "smoothgrad"} & set(every)


def test_methods_are_checked_before_any_work(model):
    softmax = timm.create_model("vit_softmax_digits", depth=1)
    assert "attention" in choose_methods(softmax, None)
    assert "attention" not in choose_methods(model, None)
    assert choose_methods(model, ["visits", "visits"]) == ["visits"]
    with pytest.raises(ValueError, match="'attention' is not for linear attention"):
        choose_methods(model, ["attention"])
    with pytest.raises(ValueError, match="did you mean pagerank"):
        choose_methods(model, ["pagerankk"])
    with pytest.raises(ValueError, match="unknown fill 'grey'"):
        measure(model, DATA, Morf(("degree",), fill="grey"))
