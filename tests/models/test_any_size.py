"""Models that work piece by piece in inference, against timm's own code on the whole."""

from __future__ import annotations

import pytest
import torch
from timm.models import VisionTransformer
from timm.models.vision_transformer import PatchEmbed
from torch import nn

from infsa_explain.attention import linear as streamed
from infsa_explain.models import any_size
from infsa_explain.models.any_size import PiecewiseVisionTransformer
from infsa_explain.models.infvit import InfViT

VARIANTS = {
    "class token": {},
    "registers": {"reg_tokens": 2},
    "registers without embedding": {"reg_tokens": 2, "no_embed_class": True},
    "pooled": {"class_token": False, "global_pool": "avg"},
    "no embedding": {"pos_embed": "none"},
    "padded": {"dynamic_img_pad": True},
    "layer scale": {"init_values": 0.1},
    "fixed size": {"dynamic_img_size": False, "img_size": (64, 96)},
    "accumulated": {"accumulate": True},
}


def build(attention="linear", **arguments):
    torch.manual_seed(0)
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 96, "depth": 2, "num_heads": 3}
    arguments = {**size, "dynamic_img_size": True, "num_classes": 5, **arguments}
    model = InfViT(attention=attention, **arguments).eval()
    nn.init.normal_(model.head.weight)
    return model


@pytest.fixture
def few(monkeypatch):
    """Pieces of 7 tokens and 40 channels."""
    monkeypatch.setattr(any_size, "CHUNK", 7)
    monkeypatch.setattr(streamed, "CHUNK", 7)
    monkeypatch.setattr(any_size, "CHANNELS", 40)


def images(height=64, width=96):
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


def whole(model, x):
    """timm's own code: without the pieces, as long as gradients are on."""
    with torch.enable_grad():
        return model(x).detach()


@pytest.mark.parametrize("kind", ["linear", "pure", "softmax"])
@pytest.mark.parametrize("arguments", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.usefixtures("few")
def test_outputs(kind, arguments):
    model = build(kind, **arguments)
    x = images(60 if "dynamic_img_pad" in arguments else 64)
    with torch.no_grad():
        found = model(x)
    assert found.requires_grad is False
    torch.testing.assert_close(found, whole(model, x), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("few")
def test_outputs_are_those_of_timm():
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 96, "depth": 2, "num_heads": 3}
    arguments |= {"dynamic_img_size": True, "num_classes": 5}
    model, twin = PiecewiseVisionTransformer(**arguments), VisionTransformer(**arguments)
    twin.load_state_dict(model.state_dict())
    with torch.no_grad():
        found, truth = model.eval()(images()), twin.eval()(images())
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("few")
def test_one_strip_of_patches_when_a_row_has_more_than_a_piece():
    """12 patches a row, pieces of 7: strips are one row high."""
    embed = any_size.PiecewisePatchEmbed(32, 8, embed_dim=4, flatten=False, output_fmt="NHWC")
    embed.strict_img_size = False
    embed.eval()
    rows = []
    embed.proj.register_forward_hook(lambda module, given, out: rows.append(out.shape[-2:]))
    with torch.no_grad():
        found = embed(images())
    assert rows == [(1, 12)] * 8
    torch.testing.assert_close(found, PatchEmbed.forward(embed, images()), rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("few")
def test_pieces_are_for_inference_alone():
    model, calls = build(), []
    model.blocks[0].mlp.register_forward_hook(lambda module, given, out: calls.append(out.shape[1]))
    with torch.no_grad():
        model(images())
    assert calls == [7] * 13 + [6]  # 96 patches and the class token
    for mode, gradients in ((True, True), (True, False), (False, True)):
        calls.clear()
        with torch.set_grad_enabled(gradients):
            model.train(mode)(images())
        assert calls == [97]


@pytest.mark.usefixtures("few")
def test_hooks_on_all_blocks_run():
    model, seen = build(), []
    model.blocks.register_forward_hook(lambda module, given, out: seen.append(out.shape))
    with torch.no_grad():
        found = model(images())
        model.blocks._forward_hooks.clear()
        torch.testing.assert_close(model(images()), found, rtol=0, atol=0)
    assert seen == [(2, 97, 96)]


@pytest.mark.usefixtures("few")
def test_inputs_and_weights_are_as_found():
    model, x = build(), images()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    image = x.clone()
    with torch.no_grad():
        model(x)
    assert torch.equal(x, image)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", ["linear", "pure"])
def test_checkpointing_changes_no_gradient(kind):
    model, x = build(kind).train(), images()
    gradients = []
    for checkpointing in (False, True):
        model.set_grad_checkpointing(checkpointing)
        model.zero_grad()
        model(x).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(checkpointed, plain, rtol=1e-5, atol=1e-6)


def test_memory_of_inference_is_a_few_copies_of_the_tokens(monkeypatch):
    """From 192 to 768 patches, memory grows by less than 5 times that of the tokens alone.

    The whole model's MLP alone would take 8 times it: 4 · D before the GELU, and after.
    """
    monkeypatch.setattr(any_size, "CHUNK", 32)
    monkeypatch.setattr(streamed, "CHUNK", 32)
    model = build(embed_dim=192)

    def peak(height, width):
        x, in_use, largest = torch.randn(1, 3, height, width), 0, 0
        with torch.no_grad(), torch.profiler.profile(profile_memory=True) as profile:
            model(x)
        for event in profile.profiler.kineto_results.events():
            if event.name() == "[memory]":
                in_use += event.nbytes()
                largest = max(largest, in_use)
        return largest

    grown = peak(192, 256) - peak(96, 128)
    assert 0 < grown < 5 * (768 - 192) * 192 * 4
