"""Capture: the same logits to the last bit, and the very graphs that the layers compute."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import timm
import torch
from timm.layers.attention import Attention
from torch import nn

import infsa_explain
import infsa_explain.models
from infsa_explain.attention import linear as streamed
from infsa_explain.attention.layers import LinearInfSA
from infsa_explain.data import PhotoDigits
from infsa_explain.evaluate import Morf, measure
from infsa_explain.vits import attention_kinds, timm_vits
from infsa_explain.vits.capturing import capture, dead_heads

NAMES = {
    "linear": "infvit_linear_digits",
    "pure": "infvit_pure_digits",
    "softmax": "vit_softmax_digits",
}
PREFIX = {"class_token": True, "global_pool": "token", "reg_tokens": 2}
VARIANTS = {"plain": {}, "registers": PREFIX, "qk_norm": {"qk_norm": True}}


def build(kind="softmax", **kwargs):
    torch.manual_seed(0)
    model = timm.create_model(
        NAMES[kind], img_size=32, embed_dim=96, num_heads=8, depth=3, **kwargs
    )
    with torch.no_grad():  # graphs far from uniform
        model.pos_embed.normal_()
        for block in model.blocks:
            block.attn.qkv.weight.normal_(std=0.2)
            for norm in (block.attn.q_norm, block.attn.k_norm):
                if not isinstance(norm, nn.Identity):
                    norm.weight.uniform_(0.5, 2)
                    norm.bias.normal_()
    return model.eval()


def images(batch=2, height=32, width=32):
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(1))


def hooks(model):
    return sum(
        len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks)
        for m in model.modules()
    )


@pytest.fixture(params=NAMES)
def kind(request):
    return request.param


@pytest.fixture(params=VARIANTS)
def variant(request):
    return VARIANTS[request.param]


def test_logits_are_the_same_to_the_last_bit(kind, variant):
    model = build(kind, **variant)
    assert all(block.attn.fused_attn for block in model.blocks)
    x = images()
    with torch.no_grad():
        before = model(x)
    graphs = capture(model, x)
    with torch.no_grad():
        after = model(x)
    assert torch.equal(graphs.logits, before)
    assert torch.equal(after, before)
    assert graphs.num_prefix_tokens == (3 if variant is PREFIX else 0)
    assert graphs.grid == (4, 4)
    assert [op.shape for op in graphs.operators] == [(2, 8, graphs.num_prefix_tokens + 16)] * 3
    assert [layer.kind for layer in graphs.layers] == [kind] * 3


@torch.no_grad()
def test_graphs_are_those_of_the_layers(kind, variant):
    """q and k from the tokens that enter each block, by hand; then the formula in float64."""
    model = build(kind, **variant)
    x = images()
    graphs = capture(model, x)
    tokens = model.norm_pre(model._pos_embed(model.patch_embed(x)))
    for op, block in zip(graphs.operators, model.blocks, strict=True):
        attn = block.attn
        qkv = nn.functional.linear(block.norm1(tokens), attn.qkv.weight, attn.qkv.bias)
        q, k, _ = (
            part.reshape(*tokens.shape[:2], 8, 12).transpose(1, 2) for part in qkv.chunk(3, -1)
        )
        q, k = (f(z).double().numpy() for f, z in ((attn.q_norm, q), (attn.k_norm, k)))
        products = q @ np.swapaxes(k, -1, -2)
        if kind == "softmax":
            e = np.exp(products / np.sqrt(12))
            expected = e / e.sum(-1, keepdims=True)
        else:
            affinity = np.maximum(products / 12, 0)
            expected = affinity / (np.linalg.norm(affinity, axis=(-2, -1), keepdims=True) + 1e-6)
        np.testing.assert_allclose(op.dense().numpy(), expected, rtol=0, atol=1e-5)
        tokens = block(tokens)


@torch.no_grad()
def test_softmax_graphs_are_timms_own_unfused_maps(variant):
    """timm, told not to fuse, hands its attention map to attn_drop."""
    model = build("softmax", **variant)
    graphs = capture(model, images())
    maps = []
    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_pre_hook(lambda m, inputs: maps.append(inputs[0]))
    model(images())
    assert len(maps) == 3
    for op, expected in zip(graphs.operators, maps, strict=True):
        assert expected.std() > 0.01
        torch.testing.assert_close(op.dense(), expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_qk_norm_is_honoured():
    model = build("softmax", qk_norm=True)
    normed = capture(model, images()).operators[0]
    model.blocks[0].attn.q_norm, model.blocks[0].attn.k_norm = nn.Identity(), nn.Identity()
    plain = capture(model, images()).operators[0]
    assert (normed.dense() - plain.dense()).abs().max() > 0.05


def test_gammas():
    model = build("pure")
    with torch.no_grad():
        model.blocks[1].attn.gamma_logit.copy_(torch.linspace(-3, 3, 8))
    gammas = capture(model, images()).gammas
    expected = [np.full(8, 0.95), 1 / (1 + np.exp(-np.linspace(-3, 3, 8))), np.full(8, 0.95)]
    for gamma, by_hand in zip(gammas, expected, strict=True):
        np.testing.assert_allclose(gamma.numpy(), by_hand, atol=1e-6)
        assert not gamma.requires_grad
    for gamma in capture(build("softmax"), images()).gammas:
        np.testing.assert_allclose(gamma.numpy(), np.full(8, 0.95), atol=1e-7)


@pytest.mark.parametrize("training", [True, False])
def test_model_and_images_are_left_as_found(kind, training):
    model = build(kind, **PREFIX).train(training)
    model(images()).sum().backward()
    model.blocks[1].attn.register_forward_hook(lambda *_: None)  # a hook of someone else's
    state = copy.deepcopy(model.state_dict())
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    x = images().requires_grad_()
    graphs = capture(model, x)
    assert hooks(model) == 1
    assert all(m.training == training for m in model.modules())
    assert torch.is_grad_enabled()
    assert not graphs.logits.requires_grad
    assert x.grad is None
    assert torch.equal(x.detach(), images())
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])
    assert {n for n, p in model.named_parameters() if p.grad is not None} == grads.keys()
    for name, p in model.named_parameters():
        assert p.requires_grad
        if name in grads:
            assert torch.equal(p.grad, grads[name])


def test_hooks_are_removed_after_an_exception(kind):
    model = build(kind)

    def fail(*_):
        raise RuntimeError("on purpose")

    handle = model.blocks[1].mlp.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        capture(model, images())
    handle.remove()
    assert hooks(model) == 0
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("size", [(16, 40), (40, 16), (32, 32)])
def test_images_that_are_not_square(kind, size):
    model = build(kind, dynamic_img_size=True, **PREFIX)
    graphs = capture(model, images(2, *size))
    assert graphs.grid == (size[0] // 8, size[1] // 8)
    with torch.no_grad():
        assert torch.equal(graphs.logits, model(images(2, *size)))
    assert graphs.operators[0].num_tokens == 3 + size[0] * size[1] // 64


def test_padded_images():
    """dynamic_img_pad: 20×30 pixels are padded to 24×32, a grid of 3×4."""
    model = build(dynamic_img_size=True, dynamic_img_pad=True)
    assert capture(model, images(1, 20, 30)).grid == (3, 4)


def test_some_layers(kind):
    """The same queries and keys as of all layers, and no hook of the others reads."""
    model, x = build(kind, **PREFIX), images()
    every = capture(model, x)
    assert (every.indices, every.kinds) == ((0, 1, 2), (kind,) * 3)
    for given, indices in ([-1], (2,)), ([2, 0, 0], (0, 2)), ((1,), (1,)), ([], ()):
        some = capture(model, x, layers=given)
        assert (some.indices, some.kinds) == (indices, (kind,) * 3)
        assert torch.equal(some.logits, every.logits)
        assert len(some.layers) == len(indices)
        for index in indices:
            assert torch.equal(some.layer(index).operator.q, every.operators[index].q)
            assert torch.equal(some.layer(index).operator.k, every.operators[index].k)
    with pytest.raises(ValueError, match=r"layer 0 was not captured, only \[1\]"):
        capture(model, x, layers=[1]).layer(0)
    with pytest.raises(ValueError, match=r"layer 3 is out of range: the model has 3"):
        capture(model, x, layers=[3])
    assert hooks(model) == 0


class Adapted(nn.Linear):
    """A projection that does more than its weight says."""

    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("arguments", [{}, {"qk_norm": True}, {"qkv_bias": False}])
def test_queries_and_keys_in_chunks(kind, arguments, adapted, monkeypatch):
    monkeypatch.setattr(streamed, "CHUNK", 7)
    layer, x = build(kind, **arguments).blocks[0].attn, torch.randn(2, 40, 96)
    if adapted:
        layer.qkv.__class__ = Adapted
    with torch.no_grad():
        found = timm_vits.queries_keys(layer, x)
        q, k, _ = layer.qkv(x).reshape(2, 40, 3, 8, 12).permute(2, 0, 3, 1, 4)
        expected = layer.q_norm(q), layer.k_norm(k)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtype_of_the_model(kind, dtype):
    """float64 graphs stay so; those of a bfloat16 model are float32."""
    graphs = capture(build(kind).to(dtype), images().to(dtype))
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    assert {op.q.dtype for op in graphs.operators} == {expected}
    assert {gamma.dtype for gamma in graphs.gammas} == {torch.float32}


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("name", ["resnet10t", "test_efficientnet"])
def test_a_cnn_is_refused(name):
    model = timm.create_model(name).eval()
    message = r"^\w+ has no attention layer that can be read \(known: Attention, Att"
    with pytest.raises(ValueError, match=message):
        capture(model, torch.zeros(1, 3, 64, 64))


def test_a_block_that_cannot_be_read_is_not_skipped():
    """Two maps for three layers would make every product over layers wrong."""

    class Unknown(Attention):
        pass

    model = build()
    model.blocks[1].attn = Unknown(96, 8)
    with pytest.raises(
        ValueError,
        match=r"2 attention layers that can be read, and others: blocks\.1 \(PiecewiseBlock\)",
    ):
        capture(model, images())


def test_a_layer_that_runs_twice_is_refused():
    model = build()
    model.blocks[2] = model.blocks[0]
    with pytest.raises(ValueError, match="attention layer blocks.0.attn ran twice"):
        capture(model, images())
    assert hooks(model) == 0


def test_a_layer_that_does_not_run_is_refused():
    model = build()
    model.spare = LinearInfSA(96, 8)
    with pytest.raises(ValueError, match="did not run in the forward pass: spare$"):
        capture(model, images())
    assert hooks(model) == 0


def test_tokens_that_do_not_fit_the_grid_are_refused():
    class EveryOther(nn.Module):
        def forward(self, x):
            return x[:, ::2]

    model = build()
    model.norm_pre = EveryOther()
    with pytest.raises(ValueError, match="8 tokens, expected 0 prefix tokens and a grid of 4×4"):
        capture(model, images())


@pytest.mark.parametrize("size", [(4, 32), (32, 7), (1, 1)])
def test_images_smaller_than_a_patch_are_refused(size):
    message = f"images of {size[0]}×{size[1]} pixels are smaller than a patch of 8×8"
    for dynamic in (True, False):
        with pytest.raises(ValueError, match=message):
            capture(build(dynamic_img_size=dynamic), images(1, *size))


def test_images_of_a_size_that_the_model_refuses():
    with pytest.raises(ValueError, match=r"InfViT refuses the images: Input height \(64\) does"):
        capture(build(), images(1, 64, 64))
    with pytest.raises(ValueError, match=r"InfViT refuses the images: .* should be divisible"):
        capture(build(dynamic_img_size=True), images(1, 34, 32))


# ---------------------------------------------------------------- dead heads and kinds


def kill(model, layer, head):
    """No weights, queries of 1 and keys of −1: every product of the head is negative."""
    rows = slice(12 * head, 12 * (head + 1))
    qkv = model.blocks[layer].attn.qkv
    with torch.no_grad():
        for part, value in ((0, 1.0), (1, -1.0)):
            qkv.weight.unflatten(0, (3, -1))[part, rows] = 0
            qkv.bias.unflatten(0, (3, -1))[part, rows] = value
    return model


def test_dead_heads(kind):
    model = build(kind)
    with torch.no_grad():  # every other head alive
        for block in model.blocks:
            block.attn.qkv.bias.unflatten(0, (3, -1))[:2] = 3.0
    assert not dead_heads(capture(model, images())).any()
    for head in range(8):
        kill(model, 1, head)
    kill(model, 2, 5)
    expected = torch.zeros(3, 2, 8, dtype=torch.bool)
    if kind != "softmax":
        expected[1] = True
        expected[2, :, 5] = True
    assert torch.equal(dead_heads(capture(model, images())), expected)


def test_a_linear_head_can_be_dead_where_its_graph_is_not(monkeypatch):
    """q = ±1 with −1 in the majority and k = 1: the central query is negative, A+ is not zero."""
    model = build("linear", **PREFIX)

    def negative(layer, x):
        q = -torch.ones(len(x), 8, x.shape[1], 12)
        q[:, :, 0] = 1
        return q, torch.ones_like(q)

    monkeypatch.setattr(timm_vits, "queries_keys", negative)
    graphs = capture(model, images())
    assert dead_heads(graphs)[0].all()
    assert not graphs.operators[0].dead().any()


def test_attention_kinds(kind):
    assert attention_kinds(build(kind)) == {kind}
    mixed = build("softmax")
    mixed.blocks[2].attn = LinearInfSA(96, 8)
    assert attention_kinds(mixed) == {"softmax", "linear"}
    assert [layer.kind for layer in capture(mixed, images()).layers] == [
        "softmax",
        "softmax",
        "linear",
    ]


@pytest.mark.parametrize("model", ["vit_base_patch16_224", None])
@pytest.mark.parametrize(
    "call",
    [
        lambda model: infsa_explain.explain(model, images()),
        lambda model: infsa_explain.capture(model, images()),
        lambda model: infsa_explain.convert(model),
        lambda model: infsa_explain.preprocess(model, images()),
        lambda model: measure(model, PhotoDigits("val", 1), Morf(("degree",))),
    ],
    ids=["explain", "capture", "convert", "preprocess", "measure"],
)
def test_a_name_is_no_model(call, model):
    with pytest.raises(ValueError, match="^model must be an nn.Module, got (str; load it|NoneT)"):
        call(model)
