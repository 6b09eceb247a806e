"""Outputs that are not logits of exclusive classes: one logit, independent labels, features."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from infsa_metrics import (
    class_logits,
    class_probabilities,
    deletion_curve,
    infidelity,
    output_tensor,
    pixel_fill,
)
from infsa_metrics.outputs import eval_mode
from small_vits import build, images, small_vit
from torch import nn

from infsa_explain import captum_attribution, capture, explain
from infsa_explain.data import PhotoDigits
from infsa_explain.evaluate import Accuracy, Boxes, Focus, Infidelity, Morf, Sanity, measure
from infsa_explain.methods import applicable_methods, get_method
from infsa_explain.report import Report
from infsa_explain.vits import classifies, model_output

OF_A_CLASS = [name for name in applicable_methods({"softmax"}) if get_method(name).class_specific]
DIGITS = PhotoDigits("val", 3)


class Returning(nn.Module):
    """A model whose output is made into another form."""

    def __init__(self, model, form):
        super().__init__()
        self.model, self.form = model, form

    def forward(self, x):
        return self.form(self.model(x))


class Output:
    def __init__(self, logits):
        self.logits = logits


FORMS = {
    "attribute": Output,
    "dict": lambda z: {"loss": None, "logits": z},
    "tuple": lambda z: (z, z),
    "loss first": lambda z: (z.sum(), z),
    "list": lambda z: [z],
}

# ---------------------------------------------------------------- tensors in outputs


@pytest.mark.parametrize("form", FORMS)
def test_logits_are_found(form):
    z = torch.randn(2, 5)
    assert output_tensor(FORMS[form](z)) is z


def test_features_are_found():
    tokens, pooled = torch.randn(2, 7, 4), torch.randn(2, 4)
    assert output_tensor({"last_hidden_state": tokens, "pooler_output": pooled}) is pooled
    found = output_tensor({"last_hidden_state": tokens, "pooler_output": None})
    assert torch.equal(found, tokens[:, 0])


@pytest.mark.parametrize(
    ("output", "described"),
    [
        ({"scores": torch.zeros(1, 2)}, "a dict with 'scores'"),
        ({}, "a dict with nothing"),
        (torch.zeros(3), r"a tensor of shape \(3,\)"),
        ((torch.zeros(1, 2, 3), 4), r"a tuple of \(1, 2, 3\), int"),
        ({"logits": torch.zeros(1, 2, 3)}, "a dict with 'logits'"),
        (None, "a NoneType"),
    ],
)
def test_what_holds_no_logits_is_described(output, described):
    with pytest.raises(ValueError, match=f"must hold logits of shape .B, C., got {described}"):
        output_tensor(output)


# ---------------------------------------------------------------- what they mean


def test_probabilities():
    z = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)
    e = np.exp([1.0, -2.0, 0.5])
    np.testing.assert_allclose(class_probabilities(z)[0], e / e.sum(), rtol=1e-12)
    np.testing.assert_allclose(class_probabilities(z, "sigmoid")[0], e / (1 + e), rtol=1e-12)
    assert class_probabilities(z, "embedding") is z


def test_a_single_logit_is_a_yes_or_no_question():
    z = torch.tensor([[3.0], [-1.0]], dtype=torch.float64)
    yes = 1 / (1 + np.exp([-3.0, 1.0]))
    for output in ("auto", "sigmoid"):
        found = class_probabilities(z, output)
        np.testing.assert_allclose(found, np.stack([1 - yes, yes], 1), rtol=1e-12)
    assert class_logits(z).argmax(1).tolist() == [1, 0]
    with pytest.raises(ValueError, match="output must be 'sigmoid' .* single logit"):
        class_probabilities(z, "softmax")
    with pytest.raises(ValueError, match="output must be one of auto, softmax, .* got 'relu'"):
        class_logits(z, "relu")


def test_half_precision_becomes_float32():
    assert class_probabilities(torch.zeros(1, 2, dtype=torch.bfloat16)).dtype == torch.float32


# ---------------------------------------------------------------- one logit


def one_logit():
    """A model with one logit, far from undecided on some image."""
    model = small_vit(num_classes=1)
    with torch.no_grad():
        model.head.weight.mul_(20)
    return model


def test_a_deletion_curve_of_one_logit_follows_the_answer():
    model, x = one_logit(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        z = model(x)[:, 0].double()
    answers = (z > 0).long()
    curve = deletion_curve(pixel_fill(model), x, answers, torch.rand(2, 4, 4), steps=4)
    p = torch.where(z > 0, z.sigmoid(), (-z).sigmoid())
    torch.testing.assert_close(curve.probabilities[:, 0], p, atol=1e-6, rtol=0)
    assert curve.aoc().abs().min() > 1e-3
    losses = infidelity(pixel_fill(model), x, answers, torch.rand(2, 4, 4), samples=10)
    assert losses.max() > 1e-4


def test_measures_of_one_logit():
    rows = measure(one_logit(), DIGITS, Morf(methods=("visits", "relevance"), steps=4))
    assert {row["predicted"] for row in rows} <= {0, 1}
    assert all(row["p0"] >= 0.5 for row in rows)
    assert len({round(row["aoc"], 6) for row in rows}) > 6


def test_both_answers_of_one_logit_have_a_gradient():
    model, x = one_logit(), torch.randn(1, 3, 32, 32)
    no, yes = (explain(model, x, "occlusion", target=answer).maps for answer in (0, 1))
    torch.testing.assert_close(no, -yes, atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match=r"a class of the model, 0 to 1, got \[2\]"):
        explain(model, x, "gradcam", target=2)


def test_accuracy_of_one_logit_is_that_of_two_classes():
    samples = [sample._replace(label=i % 2) for i, sample in enumerate(DIGITS)]
    model = one_logit()
    rows = measure(model, listed(samples), Accuracy())
    logits = capture(model, torch.cat([preprocessed(model, s) for s in samples])).logits[:, 0]
    assert [row["predicted"] for row in rows] == (logits > 0).long().tolist()
    assert [row["rank"] for row in rows] == [
        int(row["predicted"] != sample.label) for row, sample in zip(rows, samples, strict=True)
    ]


def listed(samples):
    class Listed(list):
        name, classes = "listed", ["0", "1"]

        def fingerprint(self):
            return "0"

    return Listed(samples)


def preprocessed(model, sample):
    from infsa_explain import preprocess

    return preprocess(model, sample.image)


def test_a_softmax_of_one_logit_is_refused_before_any_image():
    with pytest.raises(ValueError, match="output must be 'sigmoid' for a model with a single"):
        Morf(output="softmax").check(one_logit())


# ---------------------------------------------------------------- independent labels


def test_deletion_of_independent_labels_follows_a_sigmoid():
    model = small_vit()
    (row,) = measure(
        model, PhotoDigits("val", 1), Morf(methods=("centre",), steps=4, output="sigmoid")
    )[:1]
    z = capture(model, preprocessed(model, DIGITS[0])).logits[0]
    assert row["p0"] == pytest.approx(float(z.max().sigmoid()), abs=1e-6)


def test_a_model_that_says_of_itself_that_labels_are_independent():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        image_size=32, patch_size=8, num_labels=4, problem_type="multi_label_classification",
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config).eval()
    assert model_output(model) == "sigmoid"
    assert model_output(model, "softmax") == "softmax"
    config.problem_type = "regression"
    with pytest.raises(ValueError, match="accuracy needs classes, and .* is a regression"):
        Accuracy().check(model)
    with pytest.raises(ValueError, match="deletion needs classes, and .* is a regression"):
        Morf().check(model)


# ---------------------------------------------------------------- no classifier


def headless():
    return small_vit(num_classes=0)


def identity_for_a_head():
    model = small_vit()
    model.head = nn.Identity()
    return model


def torchvision_without_heads():
    from torchvision.models import VisionTransformer as Torchvision

    torch.manual_seed(0)
    model = Torchvision(32, 8, 2, 2, 24, 48).eval()
    model.heads = nn.Identity()
    return model


@pytest.mark.filterwarnings("ignore:.* has no map for some images")  # dead heads
@pytest.mark.parametrize("model", [headless, identity_for_a_head, torchvision_without_heads])
def test_a_model_without_a_classifier_is_told(model):
    model = model()
    assert not classifies(model)
    for options in (Morf(), Infidelity()):
        with pytest.raises(ValueError, match="no classifier; give target='embedding'"):
            options.check(model)
    with pytest.raises(ValueError, match="accuracy needs classes"):
        Accuracy().check(model)
    for name in OF_A_CLASS:
        with pytest.raises(ValueError, match=f"{name} explains a class, and the model has no"):
            explain(model, torch.zeros(1, 3, 32, 32), name)
        with pytest.raises(ValueError, match=f"method '{name}' explains a class"):
            Boxes(methods=(name,)).check(model)
    methods = {row["method"] for row in measure(model, DIGITS, Boxes())}
    assert {"visits", "random", "centre"} <= methods
    assert not methods & set(OF_A_CLASS)


def test_pixel_fill_refuses_features():
    with pytest.raises(ValueError, match="model must be a classifier, got num_classes = 0"):
        pixel_fill(headless())


def test_a_model_with_a_classifier_has_no_embedding_to_follow():
    with pytest.raises(
        ValueError, match="got 'embedding', which is for a model without a classifier"
    ):
        explain(small_vit(), torch.zeros(1, 3, 32, 32), "gradcam", target="embedding")
    with pytest.raises(ValueError, match="got 'embedding'; build it with num_classes=0"):
        Morf(target="embedding").check(small_vit())


@pytest.mark.parametrize("name", OF_A_CLASS)
def test_maps_of_the_embedding_are_those_of_a_class_with_its_direction(name):
    """A classifier whose one row is the clean image's features has the same maps."""
    model, x = headless(), torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        features = model(x)
    truth = small_vit(num_classes=2)
    truth.load_state_dict(
        model.state_dict() | {"head.weight": torch.zeros(2, 24), "head.bias": torch.zeros(2)}
    )
    with torch.no_grad():
        truth.head.weight[0] = nn.functional.normalize(features)[0]
    found = explain(model, x, name, target="embedding").maps
    torch.testing.assert_close(found, explain(truth, x, name, target=0).maps, atol=1e-6, rtol=1e-4)


def test_deletion_of_the_embedding_follows_the_cosine():
    model, x = headless(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        features, empty = model(x), model(torch.zeros_like(x))
    predict = pixel_fill(model, output="embedding")
    curve = deletion_curve(predict, x, features, torch.rand(2, 4, 4), steps=4)
    cosine = torch.cosine_similarity(empty.double(), features.double()).clamp(min=0)
    torch.testing.assert_close(curve.probabilities[:, 0], torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(curve.probabilities[:, -1], cosine, atol=1e-6, rtol=0)


def test_opposite_features_count_as_zero():
    answers = torch.tensor([[1.0, 0.0], [-1.0, 0.5], [0.0, 2.0]])

    def predict(images, removed):
        return answers[removed.flatten(1).sum(1)]

    features = torch.tensor([[3.0, 4.0]])
    scores = torch.tensor([[[2.0, 1.0]]])
    curve = deletion_curve(predict, torch.zeros(1, 3, 2, 2), features, scores)
    np.testing.assert_allclose(curve.probabilities, [[0.6, 0, 0.8]], atol=1e-7)
    for bad, message in (
        (torch.zeros(1, 2), "finite and not all zero"),
        (torch.ones(2, 2), r"features of shape \(1, D\)"),
        (torch.ones(1, 3), r"the result of predict_masked must be features of shape \(3, 3\)"),
    ):
        with pytest.raises(ValueError, match=message):
            deletion_curve(predict, torch.zeros(1, 3, 2, 2), bad, scores)


def test_every_measure_follows_the_embedding():
    maps = {"methods": ("visits", "relevance", "untrained-visits"), "target": "embedding"}
    measures = Morf(**maps, steps=4), Infidelity(**maps, samples=5), Focus(**maps)
    rows = measure(headless(), DIGITS, *measures, Boxes(**maps), Sanity(**maps, draws=1))
    assert {row["measure"] for row in rows} == {"morf", "infidelity", "focus", "boxes", "sanity"}
    morf = [row for row in rows if row["measure"] == "morf"]
    assert {row["target"] for row in morf} == {"embedding"}
    assert {row["predicted"] for row in morf} == {None}
    assert all(row["p0"] == pytest.approx(1) for row in morf)


# ---------------------------------------------------------------- forms of output, every measure


@pytest.mark.parametrize("form", FORMS)
def test_every_measure_takes_every_form_of_output(form):
    measures = (
        Morf(methods=("relevance",), steps=3),
        Infidelity(methods=("visits",), samples=3),
        Accuracy(),
    )
    plain = measure(small_vit(), DIGITS, *measures)
    assert measure(Returning(small_vit(), FORMS[form]), DIGITS, *measures) == plain


@pytest.mark.parametrize("method", ["relevance", "integrated-gradients", "occlusion", "gradcam"])
def test_every_map_takes_every_form_of_output(method):
    x = torch.randn(1, 3, 32, 32)
    truth = explain(small_vit(), x, method).maps
    for form in FORMS.values():
        wrapped = Returning(small_vit(), form)
        torch.testing.assert_close(explain(wrapped, x, method).maps, truth, atol=1e-6, rtol=1e-5)
    attribution = captum_attribution(Returning(small_vit(), FORMS["dict"]), method)
    assert torch.equal(attribution.forward_func(x), small_vit()(x))


# ---------------------------------------------------------------- eval mode


def test_modes_are_put_back_when_the_last_holder_leaves():
    model = build("softmax").train()
    model.blocks[1].eval()
    modes = [module.training for module in model.modules()]
    outer, inner = eval_mode(model), eval_mode(model)
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert not any(module.training for module in model.modules())
    inner.__exit__(None, None, None)
    assert [module.training for module in model.modules()] == modes


def test_names_of_timm_without_classes():
    model = timm.create_model("vit_softmax_digits", num_classes=0).eval()
    assert model_output(model) == "embedding"
    assert capture(model, torch.zeros(1, 3, 112, 112)).output == "embedding"
    assert capture(build("linear"), images()).output == "auto"


# ---------------------------------------------------------------- no map


@pytest.mark.filterwarnings("ignore:gradcam has no map for some images")
def test_images_without_a_map_are_counted_and_no_table_is_of_them_alone():
    model = small_vit()
    nn.init.zeros_(model.head.weight)
    rows = measure(model, DIGITS, Boxes(methods=("gradcam", "visits")))
    lacking = [row for row in rows if row.get("no_map")]
    assert [row["method"] for row in lacking] == ["gradcam"] * 3
    # A constant map: all pixels tie, and precision is the prevalence at every recall.
    assert all(row["ap"] == pytest.approx(row["prevalence"]) for row in lacking)
    with pytest.raises(ValueError, match="boxes: gradcam has no map of any image with model"):
        Report(lacking)
    (table,) = Report(rows).tables()
    assert [cells[1] for cells in table.cells] == ["visits"]
    assert table.note.endswith("gradcam of model has no map, and is left out")
    del lacking[0]["no_map"]
    (table,) = Report(rows).tables()
    assert [cells[1] for cells in table.cells] == ["gradcam", "visits"]
    assert table.note.endswith("gradcam of model has no map in 2 of 3 rows: constant there")
