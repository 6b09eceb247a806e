"""What models of several makers call their classes."""

from __future__ import annotations

import pytest
import timm
import torch
import torchvision
from timm.data import ImageNetInfo
from timm.utils import ModelEmaV3
from torch import nn

from infsa_explain.models.loading import load
from infsa_explain.vits import class_names, number_of_classes

SMALL = {"depth": 1, "embed_dim": 24, "num_heads": 2, "patch_size": 8, "img_size": 32}
ANIMALS = ["ant", "bee", "cat"]


def vit(classes=3, **cfg):
    return timm.create_model(
        "vit_tiny_patch16_224", num_classes=classes, pretrained_cfg_overlay=cfg, **SMALL
    )


def huggingface(classes=None, **kwargs):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
        image_size=32, patch_size=8, **kwargs,
    )  # fmt: skip
    if classes is not None:
        config.id2label = classes
    return transformers.ViTForImageClassification(config)


class TestOwn:
    def test_bundled(self):
        assert class_names(load("infvit_linear_digits")) == list("0123456789")
        assert number_of_classes(load("infvit_linear_digits")) == 10
        assert class_names(load("infvit_linear_photos"))[3:5] == ["monarch", "beacon"]
        assert class_names(load("infvit_linear_digits", num_classes=3)) is None

    def test_names_of_another_classifier_are_passed_over(self):
        model = load("infvit_linear_digits")
        model.head = nn.Linear(128, 3)
        assert (class_names(model), number_of_classes(model)) == (None, 3)

    def test_a_single_output_is_two_classes(self):
        model = vit(1)
        assert (class_names(model), number_of_classes(model)) == (None, 2)
        model.class_names = ["no", "yes"]
        assert class_names(model) == ["no", "yes"]

    def test_a_model_of_any_kind(self):
        class Bias(nn.Module):
            def __init__(self):
                super().__init__()
                self.bias = nn.Parameter(torch.zeros(3))

        model = Bias()
        assert (class_names(model), number_of_classes(model)) == (None, None)
        model.class_names = ANIMALS
        assert class_names(model) == ANIMALS


class TestTimm:
    def test_imagenets(self):
        assert class_names(vit(1000)) == ImageNetInfo().label_descriptions()
        assert class_names(vit(21843)) == ImageNetInfo("imagenet-21k-goog").label_descriptions()
        assert class_names(vit(999)) is None
        assert class_names(vit(0)) is None

    def test_label_names(self):
        assert class_names(vit(label_names=ANIMALS)) == ANIMALS
        assert class_names(vit(label_names=dict(enumerate(ANIMALS)))) == ANIMALS
        described = vit(label_names=["n1", "n2", "n3"], label_descriptions={"n1": "ant"})
        assert class_names(described) == ["n1, ant", "n2", "n3"]
        assert class_names(vit(4, label_names=ANIMALS)) is None


class TestHuggingFace:
    def test_id2label(self):
        assert class_names(huggingface({0: "ant", 1: "bee", 2: "cat"})) == ANIMALS
        assert class_names(huggingface({"2": "cat", "0": "ant", "1": "bee"})) == ANIMALS

    def test_placeholders_are_no_names(self):
        model = huggingface(num_labels=3)
        assert model.config.id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
        assert (class_names(model), number_of_classes(model)) == (None, 3)

    def test_a_model_without_a_classifier_has_none(self):
        assert class_names(huggingface({0: "ant", 1: "bee"}).vit) is None

    def test_another_classifier(self):
        model = huggingface({0: "ant", 1: "bee", 2: "cat"})
        model.classifier = nn.Linear(24, 5)
        assert (class_names(model), number_of_classes(model)) == (None, 5)


class TestTorchvision:
    def build(self, classes=3):
        return torchvision.models.VisionTransformer(32, 8, 1, 2, 24, 48, num_classes=classes)

    def test_nothing_unless_the_model_carries_it(self):
        assert (class_names(self.build(1000)), number_of_classes(self.build(7))) == (None, 7)

    @pytest.mark.parametrize("carried", ["meta", "weights"])
    def test_categories(self, carried):
        model = self.build(1000)
        weights = torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1
        setattr(model, carried, weights.meta if carried == "meta" else weights)
        assert class_names(model)[:2] == ["tench", "goldfish"]


class TestWrapped:
    def test_without_weights_of_its_own(self):
        inner = load("infvit_linear_photos")
        names = class_names(inner)
        for model in (
            nn.Sequential(nn.Identity(), inner),
            nn.Sequential(nn.Sequential(inner)),
            nn.DataParallel(inner),
            ModelEmaV3(inner),
            torch.compile(inner),
        ):
            assert (class_names(model), number_of_classes(model)) == (names, 10)

    def test_with_another_classifier_after_it(self):
        model = nn.Sequential(load("infvit_linear_photos"), nn.Linear(10, 10))
        assert class_names(model) is None
