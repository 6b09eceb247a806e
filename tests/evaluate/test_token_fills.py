"""Deletion behind the patch embedding, against images whose pixels are filled."""

from __future__ import annotations

from functools import partial

import pytest
import timm
import torch
from infsa_metrics import FILLS, deletion_curve, pixel_fill, register_fill
from timm.layers import PatchEmbed
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import infsa_explain.models  # noqa: F401  (registers the models)
from infsa_explain.evaluate.token_fills import embeds_patches_alone, patch_fill
from infsa_explain.vits.tokens import drop_fill

COLOURS = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.25), "seed": 3}
CLASS_TOKEN = {"class_token": True, "global_pool": "token"}
MODELS = {
    "linear": ("infvit_linear_digits", {}),
    "pure": ("infvit_pure_digits", {}),
    "softmax": ("vit_softmax_digits", {}),
    "accumulate": ("infvit_linear_digits", {"accumulate": True}),
    "pre-logits": ("infvit_pure_digits", {"pre_logits": True, **CLASS_TOKEN}),
    "registers": ("infvit_pure_digits", {"reg_tokens": 2, **CLASS_TOKEN}),
    "pooled, with a class token": ("vit_softmax_digits", {"class_token": True}),
    "positions of patches alone": (
        "vit_tiny_patch16_224",
        {"patch_size": 8, "no_embed_class": True, "reg_tokens": 1},
    ),
    "no positions, norms at the start": (
        "vit_tiny_patch16_224",
        {"patch_size": 8, "pos_embed": "none", "pre_norm": True},
    ),
    "norm of patches": (
        "infvit_linear_digits",
        {"embed_layer": partial(PatchEmbed, norm_layer=nn.LayerNorm)},
    ),
    "oblong patches": ("vit_softmax_digits", {"patch_size": (4, 8)}),
    "dynamic": ("infvit_linear_digits", {"dynamic_img_size": True, **CLASS_TOKEN}),
    "distilled": ("deit_tiny_distilled_patch16_224", {"patch_size": 8}),
}


def build(kind, **changes):
    """Two layers on 4×6 patches (or 8×6), in float64, with everything that is learnt drawn."""
    torch.manual_seed(0)
    name, arguments = MODELS[kind]
    sizes = {"img_size": (32, 48), "embed_dim": 16, "num_heads": 2, "depth": 2, "num_classes": 5}
    model = timm.create_model(name, **(sizes | arguments | changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model.double().eval()


def images(batch=3, height=32, width=48):
    g = torch.Generator().manual_seed(1)
    return torch.randn(batch, 3, height, width, generator=g, dtype=torch.float64)


def some(batch, *grid):
    """Masks: nothing, everything, then half of the patches."""
    removed = torch.rand(batch, *grid, generator=torch.Generator().manual_seed(2)) < 0.5
    removed[0], removed[1] = False, True
    return removed


def grid_of(model, x):
    return tuple(n // p for n, p in zip(x.shape[2:], model.patch_embed.patch_size, strict=True))


def filled_by_hand(model, x, removed, fill):
    """Probabilities of images whose removed patches were painted over."""
    replacement = {
        "mean": torch.zeros_like(x),
        "black": torch.stack(
            [torch.full_like(x[:, i], -COLOURS["mean"][i] / COLOURS["std"][i]) for i in range(3)], 1
        ),
        "blur": FILLS["blur"](None, None, 0)(x),
        "noise": FILLS["noise"](None, None, 3)(x).expand_as(x),
    }[fill]
    painted = x.clone()
    height, width = model.patch_embed.patch_size
    for i, row, column in removed.nonzero().tolist():
        at = slice(row * height, (row + 1) * height), slice(column * width, (column + 1) * width)
        painted[i, :, *at] = replacement[i, :, *at]
    return model(painted).softmax(-1)


@torch.no_grad()
@pytest.mark.parametrize("fill", ["mean", "black", "blur", "noise"])
@pytest.mark.parametrize("kind", MODELS)
def test_tokens_that_are_picked_are_pixels_that_are_filled(kind, fill):
    model = build(kind)
    x = images(4, 16, 40) if kind == "dynamic" else images(4)
    removed = some(4, *grid_of(model, x))
    before = x.clone(), removed.clone()
    inputs, predict = patch_fill(model, x, fill, **COLOURS)
    assert inputs.shape == (4, 2, removed[0].numel(), 16)  # it is not the pixels that are passed on
    expected = filled_by_hand(model, x, removed, fill)
    torch.testing.assert_close(predict(inputs, removed), expected, rtol=0, atol=1e-13)
    assert (expected[0] - expected[2]).abs().max() > 1e-3  # else the comparison would show nothing
    order = torch.tensor([2, 0, 2])
    torch.testing.assert_close(
        predict(inputs[order], removed[order]), expected[order], rtol=0, atol=1e-13
    )
    assert torch.equal(x, before[0])
    assert torch.equal(removed, before[1])


@torch.no_grad()
@pytest.mark.parametrize("kind", MODELS)
def test_dropped_tokens(kind):
    model, x = build(kind), images(4)
    removed = some(4, *grid_of(model, x))
    inputs, predict = patch_fill(model, x, "drop")
    expected = drop_fill(model)(x, removed)
    torch.testing.assert_close(predict(inputs, removed), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("fill", ["blur", "drop"])
def test_a_curve_embeds_its_images_once(fill, monkeypatch):
    model, x = build("pure"), images()
    scores, targets = torch.rand(3, 4, 6), torch.tensor([0, 1, 2])
    by_pixels = drop_fill(model) if fill == "drop" else pixel_fill(model, fill)
    expected = deletion_curve(by_pixels, x, targets, scores)
    seen, forward = [], PatchEmbed.forward

    def counted(self, x):
        seen.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(PatchEmbed, "forward", counted)
    inputs, predict = patch_fill(model, x, fill)
    curve = deletion_curve(predict, inputs, targets, scores, batch_size=7)
    assert seen == [3, 3]  # the images, and their fill
    torch.testing.assert_close(curve.probabilities, expected.probabilities, rtol=0, atol=1e-13)


@torch.no_grad()
def test_a_fill_of_ones_own():
    @register_fill("upside down")
    def upside_down(mean, std, seed):
        return lambda images: images.flip(2)

    try:
        model, x = build("softmax"), images()
        removed = some(3, 4, 6)
        inputs, predict = patch_fill(model, x, "upside down")
        expected = pixel_fill(model, "upside down")(x, removed)
        torch.testing.assert_close(predict(inputs, removed), expected, rtol=0, atol=1e-13)
    finally:
        del FILLS["upside down"]


@torch.no_grad()
def test_autocast_embeds_and_classifies_in_bfloat16():
    model, x = build("linear").float(), images().float()
    removed = some(3, 4, 6)
    with torch.autocast("cpu", torch.bfloat16):
        inputs, predict = patch_fill(model, x)
        p = predict(inputs, removed)
        expected = pixel_fill(model)(x, removed)
    assert inputs.dtype == torch.bfloat16
    assert p.dtype == torch.float32
    torch.testing.assert_close(p, expected, rtol=0, atol=1e-6)


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("fill", ["mean", "drop"])
def test_the_model_is_left_as_it_was(fill):
    model, x = build("registers", proj_drop_rate=0.5, pos_drop_rate=0.5), images()
    removed = some(3, 4, 6)
    inputs, predict = patch_fill(model, x, fill)
    expected = predict(inputs, removed)
    model.train()
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    attributes, modules = dict(vars(model)), dict(model.named_modules())
    inputs, predict = patch_fill(model, x, fill)
    torch.testing.assert_close(predict(inputs, removed), expected, rtol=0, atol=1e-13)
    model.blocks[1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        predict(inputs, removed)
    assert [module.training for module in model.modules()] == modes
    assert dict(model.named_modules()) == modules
    assert all(vars(model)[name] is value for name, value in attributes.items())
    assert hooks(model) == 1
    assert not inputs.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())


def fail(*_):
    raise RuntimeError("on purpose")


# ---------------------------------------------------------------- other models: pixels


class Shifted(VisionTransformer):
    """Its images are used twice."""

    def forward(self, x):
        return super().forward(x) + x.mean((1, 2, 3))[:, None]


def hooked(part):
    """A model with a hook that doubles what the part gives, or takes."""
    model = build("softmax")
    if part == "model":
        model.register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],))
    else:
        model.get_submodule(part).register_forward_hook(lambda module, inputs, out: 2 * out)
    return model


def with_convolution(**arguments):
    model = build("softmax", dynamic_img_size=True)
    model.patch_embed.proj = nn.Conv2d(3, 16, **arguments).double()
    return model


def with_forward():
    model = build("softmax")
    forward = model.forward
    model.forward = lambda x: 2 * forward(x)
    return model


def with_norm():
    model = build("softmax")
    model.patch_embed.norm = nn.BatchNorm1d(24).double().eval()
    return model


def shifted():
    sizes = {"img_size": (32, 48), "patch_size": 8, "embed_dim": 16, "num_heads": 2, "depth": 1}
    torch.manual_seed(0)
    return Shifted(num_classes=5, **sizes).double().eval()


def convolutional():
    layers = nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers).double()


OTHERS = {
    "no transformer": convolutional,
    "its own forward": shifted,
    "forward of the instance": with_forward,
    "overlapping patches": lambda: with_convolution(kernel_size=10, stride=8, padding=1),
    "patches that are shifted": lambda: with_convolution(kernel_size=8, stride=8, padding=4),
    "gaps between patches": lambda: with_convolution(kernel_size=4, stride=8),
    "dilated patches": lambda: with_convolution(kernel_size=8, stride=8, dilation=2),
    "a norm that is not of tokens": with_norm,
    "hook on the model": lambda: hooked("model"),
    "hook on the embedding": lambda: hooked("patch_embed"),
    "hook on the convolution": lambda: hooked("patch_embed.proj"),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", OTHERS)
def test_any_other_model_sees_pixels(kind):
    torch.manual_seed(0)
    model, x = OTHERS[kind](), images(4)
    assert not embeds_patches_alone(model, x)
    inputs, predict = patch_fill(model, x, "black", **COLOURS)
    assert inputs is x
    colours = {"mean": COLOURS["mean"], "std": COLOURS["std"]}
    removed = some(4, 4, 6)
    assert torch.equal(predict(x, removed), pixel_fill(model, "black", **colours)(x, removed))


@torch.no_grad()
def test_images_with_a_part_of_a_patch_are_pixels():
    """30×44 pixels are padded to 4×6 patches: by pixels, the mask is stretched over the image."""
    model = build("softmax", dynamic_img_size=True, dynamic_img_pad=True)
    assert embeds_patches_alone(model, images())
    x = images(height=30, width=44)
    inputs, predict = patch_fill(model, x, "drop")
    assert inputs is x
    removed = some(3, 4, 6)
    assert torch.equal(predict(x, removed), drop_fill(model)(x, removed))


def test_a_compiled_model_sees_pixels():
    model = build("softmax")
    model.compile()
    assert not embeds_patches_alone(model, images())
    assert not embeds_patches_alone(torch.compile(build("softmax")), images())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fill": "grey"}, "unknown fill 'grey'; one of mean, black, blur, noise, drop"),
        ({"fill": "black"}, "mean, std must be one mean and one std > 0 for each channel"),
        ({"model": convolutional(), "fill": "drop"}, "does not say where its patches are"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        inputs, predict = patch_fill(**({"model": build("softmax"), "images": images()} | change))
        predict(inputs, some(3, 4, 6))


@pytest.mark.parametrize("fill", ["mean", "drop"])
def test_a_mask_of_another_grid_is_refused(fill):
    inputs, predict = patch_fill(build("softmax"), images(), fill)
    with pytest.raises(ValueError, match=r"removed must be \(3, 4, 6\), got \(3, 6, 4\)"):
        predict(inputs, some(3, 6, 4))
