"""Linear-InfSA without keys and values against its textbook form, gradients against autograd's."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from infsa_explain.attention import linear as streamed
from infsa_explain.attention.layers import LinearInfSA, linear_infsa
from infsa_explain.attention.linear import linear_heads

EPS = 1e-6


def textbook(layer, x):
    """With every key and value."""
    q, k, v = layer.queries_keys_values(x)
    out = linear_infsa(q, k, v, layer.gamma)
    return layer.proj(out.transpose(1, 2).flatten(2))


def by_textbook(x, weight, bias):
    """What ``linear_heads`` of 3 heads returns."""
    qkv = linear(x, weight, bias).unflatten(-1, (3, 3, -1)).permute(2, 0, 3, 1, 4)
    return linear_infsa(*qkv, 1.0)[:, :, 0]


def given(dtype=torch.float64, tokens=11):
    """Tokens (2, N, 8), weight and bias of 3 heads 4 wide, all with gradients."""
    generator = torch.Generator().manual_seed(0)
    shapes = (2, tokens, 8), (36, 8), (36,)
    return [
        torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes
    ]


def gradients(values, inputs):
    """Of a sum with unequal weights."""
    direction = torch.linspace(-1, 2, values.numel(), dtype=values.dtype).view(values.shape)
    return torch.autograd.grad((values * direction).sum(), inputs)


def assert_close(found, truth, **tolerances):
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, **tolerances)


class TestLayer:
    @pytest.mark.parametrize("chunk", [4096, 7, 1])
    @pytest.mark.parametrize(
        "arguments", [{"qkv_bias": True}, {"qkv_bias": False}, {"qkv_bias": True, "qk_norm": True}]
    )
    def test_outputs_and_gradients(self, monkeypatch, chunk, arguments):
        monkeypatch.setattr(streamed, "CHUNK", chunk)
        torch.manual_seed(0)
        layer = LinearInfSA(24, 3, norm_layer=nn.LayerNorm, **arguments).double()
        nn.init.normal_(layer.gamma_logit)
        x = torch.randn(2, 17, 24, dtype=torch.float64, requires_grad=True)
        inputs = [x, *layer.parameters()]
        found, expected = layer(x), textbook(layer, x)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
        with torch.no_grad():
            torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-14)
        assert_close(gradients(found, inputs), gradients(expected, inputs), rtol=1e-10, atol=1e-12)

    def test_a_projection_that_does_more_than_its_weight_says(self):
        """As one with a low-rank adapter does."""
        torch.manual_seed(0)
        layer, x = LinearInfSA(24, 3, qkv_bias=True).double(), torch.randn(2, 17, 24).double()

        class Adapted(nn.Linear):
            def forward(self, x):
                return super().forward(x).square()

        layer.qkv.__class__ = Adapted
        torch.testing.assert_close(layer(x), textbook(layer, x), rtol=0, atol=1e-14)

    @pytest.mark.parametrize("tokens", [5, 1030])
    def test_inference_and_training_agree(self, tokens):
        torch.manual_seed(0)
        layer, x = LinearInfSA(64, 4, qkv_bias=True).eval(), torch.randn(2, tokens, 64)
        with torch.no_grad():
            found = layer(x)
        torch.testing.assert_close(found, layer(x), rtol=0, atol=1e-6)
        truth = textbook(layer.double(), x.double())
        torch.testing.assert_close(found.double(), truth, rtol=0, atol=1e-6)

    def test_memory_does_not_grow_with_the_tokens(self, monkeypatch):
        """The paper's O(d_h) state: beyond its output, a view, the layer allocates chunks only."""
        monkeypatch.setattr(streamed, "CHUNK", 64)
        layer = LinearInfSA(32, 4).eval()

        def peak(tokens):
            x, largest = torch.randn(1, tokens, 32), 0
            with torch.profiler.profile(profile_memory=True) as profile:
                out = layer(x)
            assert out.stride(1) == 0
            in_use = 0
            for event in profile.profiler.kineto_results.events():
                if event.name() == "[memory]":
                    in_use += event.nbytes()
                    largest = max(largest, in_use)
            return largest

        with torch.no_grad():
            assert peak(640) == peak(6400) > 0
        layer.requires_grad_(False)
        assert peak(640) == peak(6400) > 0


class TestGradients:
    """Of ``linear_heads``, by formula, against autograd's of the textbook form."""

    @pytest.mark.usefixtures("onednn_multiplies")
    def test_in_float32(self):
        inputs = given(torch.float32)
        exact = [y.detach().double().requires_grad_() for y in inputs]
        values, truth = linear_heads(*inputs, 3, EPS), by_textbook(*exact)
        assert type(values.grad_fn).__name__ == "_LinearHeadsBackward"
        torch.testing.assert_close(values.double(), truth, rtol=1e-5, atol=1e-6)
        found = [y.double() for y in gradients(values, inputs)]
        assert_close(found, gradients(truth, exact), rtol=1e-5, atol=2e-6)

    @pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)])
    def test_of_some_inputs(self, wanted):
        inputs = [y.requires_grad_(i in wanted) for i, y in enumerate(given())]
        some = [inputs[i] for i in wanted]
        truth = gradients(by_textbook(*inputs), some)
        assert_close(gradients(linear_heads(*inputs, 3, EPS), some), truth, rtol=1e-10, atol=1e-12)

    def test_of_a_dead_head_and_of_a_silent_query(self):
        """No key meets the central query of head 0; two tokens are all zero."""
        x, weight, _ = given()
        with torch.no_grad():
            x.abs_()[:, :2] = 0
            weight[0:4], weight[12:16] = 1, -1
        found = gradients(linear_heads(x, weight, None, 3, EPS), (x, weight))
        truth = gradients(by_textbook(x, weight, None), (x, weight))
        assert_close(found, truth, rtol=1e-10, atol=1e-12)
        assert not found[1][0:4].any()

    def test_numerically(self):
        function = lambda *inputs: linear_heads(*inputs, 3, EPS)  # noqa: E731
        assert torch.autograd.gradcheck(function, given(tokens=4))
        assert torch.autograd.gradgradcheck(function, given(tokens=4))

    def test_of_some_inputs_twice(self):
        x, weight, _ = given(tokens=4)
        function = lambda x: linear_heads(x, weight.detach(), None, 3, EPS)  # noqa: E731
        assert torch.autograd.gradgradcheck(function, x)

    def test_with_activation_checkpointing(self):
        inputs = given()
        values = checkpoint(linear_heads, *inputs, 3, EPS, use_reentrant=False)
        truth = gradients(by_textbook(*inputs), inputs)
        assert_close(gradients(values, inputs), truth, rtol=1e-10, atol=1e-12)

    @pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")  # PyTorch's own decompositions
    def test_forward(self):
        x, weight, bias = given()
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            found = forward_ad.unpack_dual(linear_heads(dual, weight, bias, 3, EPS)).tangent
            truth = forward_ad.unpack_dual(by_textbook(dual, weight, bias)).tangent
        torch.testing.assert_close(found, truth, rtol=1e-10, atol=1e-12)

    def test_of_each_image_by_vmap(self):
        x, weight, bias = (y.detach() for y in given())

        def loss(x, function):
            return function(x[None], weight, bias).square().sum()

        def of_each(function):
            return torch.func.vmap(torch.func.grad(lambda x: loss(x, function)))(x)

        found = of_each(lambda *inputs: linear_heads(*inputs, 3, EPS))
        torch.testing.assert_close(found, of_each(by_textbook), rtol=1e-10, atol=1e-12)

    def test_under_autocast_they_are_those_of_bfloat16(self):
        inputs = given(torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            values = linear_heads(*inputs, 3, EPS)
        assert values.dtype == torch.float32
        truth = gradients(by_textbook(*inputs), inputs)
        for a, b in zip(gradients(values, inputs), truth, strict=True):
            assert 1e-4 < (a - b).norm() / b.norm() < 2e-2
