"""Models as they are used: in training mode, in threads, wrapped, compiled, patched, quantised."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from small_vits import build, images, small_vit
from timm.layers.attention import Attention
from timm.utils import ModelEmaV2, ModelEmaV3
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torchvision.transforms import Normalize

import infsa_explain
from infsa_explain import capture, explain, preprocess
from infsa_explain.data import PhotoDigits
from infsa_explain.evaluate import Accuracy, Alignment, Boxes, Focus, Morf, Sanity, measure
from infsa_explain.methods import applicable_methods
from infsa_explain.vits.preprocessing import data_config

METHODS = ("visits", "relevance", "rollout", "integrated-gradients", "occlusion", "random")
DIGITS = PhotoDigits("val", 3)


def pictures():
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def same_maps(model, shown, truth, methods=METHODS):
    for method in methods:
        expected = explain(truth, pictures(), method).maps
        torch.testing.assert_close(
            explain(model, shown, method).maps, expected, atol=1e-6, rtol=1e-4
        )


# ---------------------------------------------------------------- mode and gradients


@pytest.mark.parametrize("method", METHODS)
def test_dropout_does_not_reach_a_map(method):
    model = small_vit(proj_drop_rate=0.5, attn_drop_rate=0.3)
    expected = explain(model, pictures(), method).maps
    model.train()
    for _ in range(2):
        assert torch.equal(explain(model, pictures(), method).maps, expected)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("method", applicable_methods({"softmax"}))
def test_inference_mode_changes_no_map(method):
    model = small_vit()
    expected = explain(model, pictures(), method).maps
    with torch.inference_mode():
        found = explain(model, pictures().clone(), method).maps
    assert not found.is_inference()
    assert torch.equal(found, expected)


def test_targets_made_in_inference_mode():
    model = small_vit()
    expected = explain(model, pictures(), "relevance", target=[3, 4]).maps
    with torch.inference_mode():
        found = explain(model, pictures(), "relevance", target=torch.tensor([3, 4])).maps
    assert torch.equal(found, expected)


def test_a_model_made_in_inference_mode_has_no_gradient():
    with torch.inference_mode():
        model = small_vit()
    assert torch.equal(
        explain(model, pictures(), "visits").maps, explain(small_vit(), pictures(), "visits").maps
    )
    for method in ("relevance", "integrated-gradients"):
        with pytest.raises(ValueError, match="was made under torch.inference_mode"):
            explain(model, pictures(), method)


@pytest.mark.parametrize("method", ["gradcam", "relevance", "input-x-gradient", "gradient-visits"])
def test_a_gradient_of_zero_is_said(method):
    model = small_vit()
    nn.init.zeros_(model.head.weight)
    with pytest.warns(UserWarning, match=f"{method} has no map .* the gradient of what"):
        assert explain(model, pictures(), method).maps.isnan().all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantised_layers_are_refused_by_gradients_alone():
    layers = {nn.Linear}
    model = torch.ao.quantization.quantize_dynamic(small_vit(), layers, dtype=torch.qint8)
    assert explain(model, pictures(), "visits").maps.isfinite().all()
    assert explain(model, pictures(), "occlusion").maps.isfinite().all()
    for method in ("relevance", "gradcam", "smoothgrad", "gradient-degree"):
        with pytest.raises(ValueError, match=r"quantised layer blocks.0.attn.qkv \(Linear\)"):
            explain(model, pictures(), method)


# ---------------------------------------------------------------- what runs is what is read


def no_attention(self, x, **_):
    return x


def test_a_replaced_forward_is_refused():
    model = small_vit()
    model.blocks[1].attn.forward = no_attention.__get__(model.blocks[1].attn)
    with pytest.raises(ValueError, match=r"layer blocks.1.attn .Attention. was replaced by no_att"):
        explain(model, pictures(), "visits")
    del model.blocks[1].attn.forward
    same_maps(model, pictures(), small_vit(), ["visits"])


def test_a_forward_replaced_in_the_class_is_refused(monkeypatch):
    monkeypatch.setattr(Attention, "forward", no_attention)
    with pytest.raises(ValueError, match="was replaced by no_attention"):
        capture(small_vit(), pictures())


def test_a_forward_that_is_wrapped_and_says_so_is_read():
    """As accelerate wraps it to move weights."""
    from functools import partial, update_wrapper

    model = small_vit()
    layer = model.blocks[0].attn
    original = layer.forward
    layer.forward = update_wrapper(partial(lambda x, **rest: original(x, **rest)), original)
    same_maps(model, pictures(), small_vit(), ["visits"])


# ---------------------------------------------------------------- threads


@pytest.mark.parametrize("training", [False, True])
def test_threads_share_a_model(training):
    model = small_vit(proj_drop_rate=0.2).train(training)
    methods = ("visits", "relevance", "smoothgrad", "rollout")
    expected = {method: explain(model, pictures(), method).maps for method in methods}
    plain = copy.deepcopy(model).eval()(pictures())
    faults, strangers = [], []
    stop = threading.Event()

    def ours():
        try:
            for _ in range(4):
                for method, maps in expected.items():
                    if not torch.equal(explain(model, pictures(), method).maps, maps):
                        faults.append(f"{method} differs")
        except Exception as error:
            faults.append(error)

    def strange():
        try:
            while not stop.is_set():
                with torch.no_grad():
                    strangers.append(model(pictures()))
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=ours) for _ in range(4)]
    stranger = threading.Thread(target=strange)
    for thread in (stranger, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    stranger.join()
    assert faults == []
    assert strangers
    if not training:
        assert all(torch.equal(output, plain) for output in strangers)
    assert model.training == training
    assert hooks(model) == 0


# ---------------------------------------------------------------- wrappers


class Around(nn.Module):
    """A model with something before and behind it."""

    def __init__(self, model, before=None, behind=None):
        super().__init__()
        self.model, self.before, self.behind = model, before, behind

    def forward(self, x):
        x = self.model(x if self.before is None else self.before(x))
        return x if self.behind is None else self.behind(x)


def colours(model):
    config = data_config(model)
    mean, std = (torch.tensor(config[key])[:, None, None] for key in ("mean", "std"))
    return config, mean, std


def normalising(model):
    config, mean, std = colours(model)
    return nn.Sequential(Normalize(config["mean"], config["std"]), model), pictures() * std + mean


def normalising_bytes(model):
    _, mean, std = colours(model)
    shown = 255 * (pictures() * std + mean)
    return Around(model, before=lambda x: (x / 255 - mean) / std), shown


WRAPPERS = {
    "DataParallel": lambda model: (nn.DataParallel(model), pictures()),
    "average": lambda model: (AveragedModel(model), pictures()),
    "EMA": lambda model: (ModelEmaV2(model), pictures()),
    "EMA 3": lambda model: (ModelEmaV3(model), pictures()),
    "normalising": normalising,
    "normalising bytes": normalising_bytes,
    "a module around": lambda model: (Around(model), pictures()),
    "behind": lambda model: (Around(model, behind=lambda z: 1 * z), pictures()),
    "dict": lambda model: (Around(model, behind=lambda z: {"logits": z}), pictures()),
    "two deep": lambda model: (nn.Sequential(Around(nn.Sequential(model))), pictures()),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_maps_of_a_wrapped_model(name):
    wrapped, shown = WRAPPERS[name](small_vit())
    same_maps(wrapped, shown, small_vit())


@pytest.mark.parametrize("name", WRAPPERS)
def test_measures_of_a_wrapped_model(name):
    wrapped, _ = WRAPPERS[name](small_vit())
    measures = (
        Morf(methods=("visits", "untrained-visits"), steps=3),
        Boxes(methods=("visits",)),
        Accuracy(),
        Focus(methods=("visits",)),
        Sanity(methods=("visits",), draws=1),
    )
    found, expected = (measure(m, DIGITS, *measures) for m in (wrapped, small_vit()))
    for row, truth in zip(found, expected, strict=True):
        assert row.keys() == truth.keys()
        for key, value in truth.items():
            if key == "stages":  # names of the parts
                continue
            assert row[key] == pytest.approx(value, abs=1e-4), key


def test_a_classifier_behind_a_backbone():
    vit = small_vit()
    backbone, head = copy.deepcopy(vit), copy.deepcopy(vit.head)
    backbone.reset_classifier(0)
    same_maps(nn.Sequential(backbone, head), pictures(), vit)


@pytest.mark.parametrize(
    ("model", "size", "message"),
    [
        (
            lambda m: Around(m, nn.Upsample(32)),
            64,
            "must keep the images' shape .2, 3, 64, 64., go",
        ),
        (
            lambda m: Around(m, lambda x: 2 * x, lambda z: 2 * z),
            32,
            "before its .* and the outputs",
        ),
        (lambda m: nn.ModuleList([m, small_vit()]), 32, "2 Vision Transformers, 0, 1; pass one"),
    ],
)
def test_wrappers_that_cannot_be_looked_through(model, size, message):
    wrapped = model(small_vit())
    with pytest.raises(ValueError, match=message):
        explain(wrapped, torch.zeros(2, 3, size, size) + 0.1, "visits")
    assert hooks(wrapped) == 0


def test_preprocessing_of_a_model_that_normalises_otherwise():
    odd = Around(small_vit(), lambda x: 3 * x - 1)
    with pytest.raises(ValueError, match="give the model a pretrained_cfg"):
        preprocess(odd, DIGITS[0].image)
    odd.pretrained_cfg = {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    assert 0 <= preprocess(odd, DIGITS[0].image).min() <= 0.1


def test_steps_before_the_vit_are_left_out_of_what_is_filled():
    """A removed patch gets the mean colour, which is zero only behind the normalisation."""
    wrapped, shown = normalising(small_vit())
    graphs = capture(wrapped, shown)
    assert graphs.model is wrapped[1]
    torch.testing.assert_close(graphs.images, pictures(), atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["function", "method", "block"])
def test_compiled_models(way):
    model = small_vit()
    if way == "function":
        model = torch.compile(model, backend="eager")
    elif way == "method":
        model.compile(backend="eager")
    else:
        model.blocks[1] = torch.compile(model.blocks[1], backend="eager")
    with torch.no_grad():
        model(pictures())
    same_maps(model, pictures(), small_vit(), ["visits", "relevance", "rollout"])


# ---------------------------------------------------------------- dtypes and heads


@pytest.mark.parametrize("kind", ["linear", "pure", "softmax"])
def test_another_default_dtype_changes_no_map(kind):
    model = build(kind)
    methods = applicable_methods({kind})
    expected = {method: explain(model, images(), method).maps for method in methods}
    x = images()
    torch.set_default_dtype(torch.float64)
    try:
        for method in methods:
            found = explain(model, x, method).maps
            assert found.dtype == torch.float32
            if method in ("smoothgrad", "gradient-shap"):  # Captum draws in the default dtype
                assert found.isfinite().all()
                continue
            torch.testing.assert_close(found, expected[method], atol=1e-6, rtol=1e-4)
    finally:
        torch.set_default_dtype(torch.float32)


def test_layers_with_different_numbers_of_heads():
    model = small_vit()
    model.blocks[1].attn = Attention(24, 3, qkv_bias=True).eval()
    x = pictures()
    for method in applicable_methods({"softmax"}):
        assert explain(model, x, method, layer="mean").maps.isfinite().all()
    both = explain(model, x, "visits", layer="mean")
    alone = [explain(model, x, "visits", layer=layer) for layer in (0, 1)]
    torch.testing.assert_close(both.maps, (alone[0].maps + alone[1].maps) / 2)
    assert [result.heads for result in (*alone, both)] == [(0, 1), (0, 1, 2), (0, 1, 2)]
    bound = both.diagnostics["error_bound"]
    assert bound.isnan().tolist() == [[[False, False, True]] * 2, [[False] * 3] * 2]
    assert torch.equal(bound[1], alone[1].diagnostics["error_bound"][0])
    assert explain(model, x, "visits", layer=1, head=2).heads == (2,)
    with pytest.raises(ValueError, match="head 2 is out of range"):
        explain(model, x, "visits", layer="mean", head=2)
    rows = measure(model, DIGITS, Alignment())
    assert sorted({(row["layer"], row["head"]) for row in rows}) == [
        (0, 0), (0, 1), (1, 0), (1, 1), (1, 2),
    ]  # fmt: skip


def test_the_package_is_unchanged_by_all_this():
    model = infsa_explain.load("infvit_linear_digits")
    image = preprocess(model, DIGITS[0].image)
    with torch.no_grad():
        assert torch.equal(capture(model, image).logits, model(image))
