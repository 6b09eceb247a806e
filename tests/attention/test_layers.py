"""InfSA against its formulas in numpy float64, and against numbers of the released code."""

from __future__ import annotations

import math

import numpy as np
import pytest
import timm
import torch
from timm.layers.attention import Attention
from torch import nn
from torch.nn.functional import linear

from infsa_explain.attention.functional import frobenius_norm
from infsa_explain.attention.layers import (
    LinearInfSA,
    PureInfSA,
    linear_infsa,
    linear_weights,
    pure_infsa,
    token_graph,
)

LAYERS = [PureInfSA, LinearInfSA]
FUNCTIONS = [pure_infsa, linear_infsa]
GAMMA = torch.tensor([0.2, 0.5, 0.95])


def double(tensor):
    return tensor.detach().double().numpy()


def graph_by_hand(q, k, eps=1e-6):
    """Â of (N, d) queries and keys, loop by loop."""
    affinities = np.array([[max(0.0, qi @ kj / len(qi)) for kj in k] for qi in q])
    return affinities / (math.sqrt((affinities**2).sum()) + eps)


def weights_by_hand(q, k, eps=1e-6):
    """`a` of (N, d) queries and keys."""
    energy = np.sqrt((q**2).sum(1))
    central = sum(e / energy.sum() * qi for e, qi in zip(energy, q, strict=True))
    scores = np.array([max(0.0, kj @ central / len(central)) for kj in k])
    return scores / (scores.sum() + eps)


def attended_by_hand(function, q, k, v, gamma):
    """What `function` is to return, (B, H, N, d) float64, head by head."""
    q, k, v = double(q), double(k), double(v)
    gamma = np.broadcast_to(gamma, q.shape[1]).astype(float)
    out = np.empty_like(v)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            if function is pure_infsa:
                out[b, h] = gamma[h] * graph_by_hand(q[b, h], k[b, h]) @ v[b, h]
            else:
                out[b, h] = gamma[h] * weights_by_hand(q[b, h], k[b, h]) @ v[b, h]
    return out


@pytest.fixture
def qkv():
    torch.manual_seed(0)
    return torch.randn(3, 2, 3, 7, 5).unbind(0)


class TestFormulas:
    @pytest.mark.parametrize("function", FUNCTIONS)
    @pytest.mark.parametrize("gamma", [0.9, GAMMA], ids=["one gamma", "gamma per head"])
    def test_outputs(self, qkv, function, gamma):
        truth = attended_by_hand(function, *qkv, gamma)
        np.testing.assert_allclose(function(*qkv, gamma), truth, rtol=0, atol=1e-6)
        exact = function(*(x.double() for x in qkv), gamma)
        assert exact.dtype == torch.float64
        np.testing.assert_allclose(exact, truth, rtol=0, atol=1e-15)

    def test_token_graph(self, qkv):
        q, k, _ = (x.double() for x in qkv)
        graph = token_graph(q, k)
        for b in range(2):
            for h in range(3):
                truth = graph_by_hand(q[b, h].numpy(), k[b, h].numpy())
                np.testing.assert_allclose(graph[b, h], truth, rtol=0, atol=1e-15)

    def test_row_i_is_i_attends_to(self):
        q = torch.tensor([[1.0, 0], [0, 0]])[None, None]
        k = torch.tensor([[0.0, 0], [1, 0]])[None, None]
        torch.testing.assert_close(token_graph(q, k, 0)[0, 0], torch.tensor([[0.0, 1], [0, 0]]))

    def test_linear_weights(self, qkv):
        q, k, _ = (x.double() for x in qkv)
        weights = linear_weights(q, k)
        for b in range(2):
            for h in range(3):
                truth = weights_by_hand(q[b, h].numpy(), k[b, h].numpy())
                np.testing.assert_allclose(weights[b, h], truth, rtol=0, atol=1e-15)

    def test_a_central_key_in_place_of_a_central_query(self, qkv):
        q, k, v = qkv
        energy = k.norm(dim=-1, keepdim=True)
        central = (energy / energy.sum(-2, keepdim=True) * k).sum(-2, keepdim=True)
        scores = torch.relu(q @ central.mT / q.shape[-1])[..., 0]
        expected = scores / (scores.sum(-1, keepdim=True) + 1e-6)
        torch.testing.assert_close(linear_weights(q, k, central="keys"), expected)
        out = linear_infsa(q, k, v, 0.5, central="keys")
        torch.testing.assert_close(out[:, :, 0], 0.5 * (expected[..., None, :] @ v)[:, :, 0])
        with pytest.raises(ValueError, match="central must be 'queries' or 'keys', got 'values'"):
            linear_weights(q, k, central="values")

    def test_linear_weights_sum_to_one_or_are_all_zero(self):
        torch.manual_seed(0)
        k = torch.randn(1, 4, 9, 5)
        q = torch.ones(1, 4, 9, 5)
        k[:, 2:] = -k[:, 2:].abs()
        sums = linear_weights(q, k).sum(-1)[0]
        torch.testing.assert_close(sums, torch.tensor([1.0, 1, 0, 0]), rtol=0, atol=1e-5)
        assert not linear_weights(q, k)[0, 2:].any()

    def test_linear_gives_every_token_the_same_row(self, qkv):
        out = linear_infsa(*qkv, GAMMA)
        assert out.shape == (2, 3, 7, 5)
        assert torch.equal(out, out[:, :, :1].expand_as(out))

    def test_inputs_are_not_changed(self, qkv):
        before = [x.clone() for x in qkv]
        for function in FUNCTIONS:
            function(*qkv, 0.9)
        assert all(torch.equal(x, y) for x, y in zip(qkv, before, strict=True))


@pytest.mark.shared
class TestReleasedCode:
    """`rho` of the released code is our γ, and its scores contain it."""

    @pytest.fixture(scope="class")
    def golden(self, shared):
        with np.load(shared / "golden" / "infsa_reference.npz") as file:
            return {key: torch.from_numpy(file[key]) for key in file}

    def test_scores(self, golden):
        q, k = golden["q"], golden["k"]
        pure, a = 0.9 * token_graph(q, k), 0.9 * linear_weights(q, k)
        torch.testing.assert_close(pure, golden["pure_scores_rho0.9"], rtol=0, atol=1e-5)
        torch.testing.assert_close(a, golden["linear_scores_rho0.9"], rtol=0, atol=1e-5)

    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_functions(self, golden, function):
        out = function(golden["q"], golden["k"], golden["v"], 0.9)
        truth = golden[f"{function.__name__}_out_rho0.9"]
        torch.testing.assert_close(out, truth, rtol=0, atol=1e-5)

    @pytest.mark.parametrize(("layer", "name"), zip(LAYERS, ["pure", "linear"], strict=True))
    def test_modules(self, golden, layer, name):
        module = layer(24, 3, qkv_bias=True)
        given = {key.partition(".")[2]: golden[key] for key in golden if key.startswith(name)}
        state = {"gamma_logit": given["rho_logit"].expand(3)}
        for part in ("weight", "bias"):
            state[f"qkv.{part}"] = torch.cat([given[f"{x}_proj.{part}"] for x in "qkv"])
            state[f"proj.{part}"] = given[f"out_proj.{part}"]
        module.load_state_dict(state)
        torch.testing.assert_close(module(golden["x"]), given["module_out"], rtol=0, atol=1e-5)


class TestPrecision:
    @pytest.mark.parametrize("function", FUNCTIONS)
    @pytest.mark.parametrize(("dtype", "digits"), [(torch.float16, 11), (torch.bfloat16, 8)])
    def test_large_magnitudes_in_half_precision(self, function, dtype, digits):
        torch.manual_seed(0)
        # Σ relu² is about 1e12 here, and float16 ends at 65,504.
        q, k, v = (scale * torch.randn(1, 2, 300, 16) for scale in (100, 100, 1))
        q, k, v = (q + 50).to(dtype), (k + 50).to(dtype), v.to(dtype)
        out = function(q, k, v, 0.9)
        assert out.dtype == dtype
        truth = attended_by_hand(function, q, k, v, 0.9)
        # One rounding to the dtype, and float32 sums of 300 terms of size |v| / 300 before it.
        np.testing.assert_allclose(double(out), truth, rtol=2.0**-digits, atol=1e-6)

    @pytest.mark.parametrize("function", [pure_infsa, linear_infsa, token_graph, linear_weights])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize(
        ("query", "key"),
        [(1e20, 1), (1, 1e20), (1e20, 1e20), (1e37, 1e37), (1e20, 1e-20), (1e-30, 1e37)],
    )
    def test_magnitudes_at_the_ends_of_float32(self, qkv, function, dtype, query, key):
        """Only the product of the two scales counts, and no more once it dwarfs ε."""
        q, k, v = (x.to(dtype) for x in qkv)
        factor = torch.tensor([query, 1, key])[:, None, None]  # of the three heads' queries, keys
        far = (q * factor).to(dtype), (k * factor.flip(0)).to(dtype)
        given = (v, 0.9) if function in FUNCTIONS else ()
        found = function(*far, *given)
        assert found.dtype == (dtype if given else torch.float32)
        exact = [x.double() for x in (*far, v)]
        truth = function(*exact[:2], *((exact[2], 0.9) if given else ()))
        assert truth.isfinite().all()
        assert truth.abs().amax(-1).all()
        rtol = 2.0**-8 if given and dtype == torch.bfloat16 else 2e-6
        torch.testing.assert_close(found.double(), truth, rtol=rtol, atol=1e-6)

    @pytest.mark.parametrize("size", [1e-20, 1e-30])
    def test_magnitudes_that_epsilon_dwarfs(self, qkv, size):
        """Â = A / (‖A‖ + ε) is A / ε there, not zero as long as float32 has the number."""
        q, k, _ = qkv
        small = q * size, k
        exact = [x.double() for x in small]
        for function in (token_graph, linear_weights):
            found, truth = function(*small), function(*exact)
            assert 0 < truth.max() < 1e7 * size
            torch.testing.assert_close(found.double() / size, truth / size, rtol=1e-5, atol=0.1)

    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_gradients_at_the_ends_of_float32(self, qkv, function):
        """Outputs do not change with the scale of queries and keys, so gradients shrink by it."""
        v = qkv[2]
        gradients = []
        for scale in (1.0, 2.0**64):
            q, k = ((x * scale).requires_grad_() for x in qkv[:2])
            (function(q, k, v, 0.9, eps=0) * v).sum().backward()
            gradients.append([q.grad * scale, k.grad * scale])
        for plain, far in zip(*gradients, strict=True):
            assert plain.abs().max() > 1e-3
            torch.testing.assert_close(far, plain, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_what_is_not_finite_stays_so(self, qkv, function):
        """But for a key at −∞ times the central query, which has no weight."""
        for position, value in ((0, math.inf), (0, math.nan), (1, math.nan)):
            given = [x.clone() for x in qkv]
            given[position][0, 1, 2, 3] = value
            out = function(*given, 0.9)
            assert out[0, 1].isnan().any()
            assert out[0, 0].isfinite().all()
            assert out[1].isfinite().all()

    def test_norm_of_a_large_graph(self):
        graph = np.random.default_rng(0).random((4097, 4097), dtype=np.float32)
        truth = math.sqrt(np.einsum("ij,ij->", graph, graph, dtype=np.float64))
        assert frobenius_norm(torch.from_numpy(graph)).item() == pytest.approx(truth, rel=1e-7)

    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_autocast_does_not_reach_the_functions(self, qkv, function):
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(function(*qkv, 0.9), function(*qkv, 0.9).float())
            inside = function(*qkv, 0.9), linear_weights(*qkv[:2]), token_graph(*qkv[:2])
        outside = function(*qkv, 0.9), linear_weights(*qkv[:2]), token_graph(*qkv[:2])
        for a, b in zip(inside, outside, strict=True):
            assert a.dtype == torch.float32
            assert torch.equal(a, b)

    def test_weights_of_half_inputs_are_float32(self, qkv):
        q, k, _ = (x.bfloat16() for x in qkv)
        assert linear_weights(q, k).dtype == token_graph(q, k).dtype == torch.float32

    @pytest.mark.parametrize("layer", LAYERS)
    def test_layers_under_autocast(self, layer):
        torch.manual_seed(0)
        module, x = layer(32, 4, qkv_bias=True), torch.randn(2, 50, 32)
        truth = module(x)
        with torch.autocast("cpu", torch.bfloat16):
            out = module(x)
        assert out.dtype == torch.bfloat16
        # bfloat16 has 8 digits; two projections round inputs, weights and outputs to it.
        torch.testing.assert_close(
            out.float(), truth, rtol=0, atol=4 * 2.0**-8 * truth.abs().max().item()
        )


class TestGradients:
    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_gradcheck(self, function):
        torch.manual_seed(0)
        q, k, v = (torch.randn(1, 2, 4, 3, dtype=torch.float64).requires_grad_() for _ in range(3))
        gamma = torch.tensor([0.3, 0.9], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(function, (q, k, v, gamma), eps=1e-7, atol=1e-6)

    @pytest.mark.parametrize(("layer", "function"), zip(LAYERS, FUNCTIONS, strict=True))
    def test_gamma_learns(self, layer, function):
        """∂L/∂logit_h = γ_h (1 − γ_h) ∂L/∂γ_h, and the output is linear in γ_h."""
        torch.manual_seed(0)
        module = layer(12, 3, qkv_bias=True).double()
        nn.init.normal_(module.gamma_logit)
        x, weight = torch.randn(2, 2, 6, 12, dtype=torch.float64).unbind(0)
        (module(x) * weight).sum().backward()
        heads = torch.from_numpy(attended_by_hand(function, *module.queries_keys_values(x), 1.0))
        towards = (weight @ module.proj.weight).unflatten(-1, (3, 4)).transpose(1, 2)
        gamma = module.gamma
        truth = gamma * (1 - gamma) * (heads * towards).sum((0, 2, 3))
        torch.testing.assert_close(module.gamma_logit.grad, truth, rtol=0, atol=1e-12)
        assert (module.gamma_logit.grad != 0).all()

    @pytest.mark.parametrize("function", FUNCTIONS)
    @pytest.mark.parametrize(("query", "key"), [(1.0, -1.0), (0.0, 0.0), (0.0, 1.0)])
    def test_a_dead_head_gives_zeros_and_finite_gradients(self, function, query, key):
        q, k = (torch.full((1, 1, 5, 3), value).requires_grad_() for value in (query, key))
        v = torch.ones(1, 1, 5, 3, requires_grad=True)
        gamma = torch.tensor([0.9], requires_grad=True)
        out = function(q, k, v, gamma)
        assert not out.any()
        out.sum().backward()
        assert torch.isfinite(q.grad).all()
        assert torch.isfinite(k.grad).all()
        assert not v.grad.any()
        assert not gamma.grad.any()


class TestLayers:
    @pytest.mark.parametrize("layer", LAYERS)
    @pytest.mark.parametrize(
        "arguments",
        [
            {},
            {"qkv_bias": True},
            {"qk_norm": True},
            {"scale_norm": True},
            {"proj_bias": False},
            {"attn_head_dim": 5, "dim_out": 7, "qkv_bias": True},
            {"qk_norm": True, "scale_norm": True, "qkv_bias": True, "gated": True},
        ],
        ids=lambda arguments: " ".join(arguments) or "defaults",
    )
    def test_forward_and_state_dict(self, layer, arguments):
        """The layer is timm's with another attention: projections, norms and gate by hand."""
        torch.manual_seed(0)
        arguments = {"norm_layer": nn.LayerNorm, **arguments}
        module = layer(12, num_heads=3, **arguments).double()
        for parameter in module.parameters():
            nn.init.normal_(parameter)
        state = module.state_dict()
        twin = Attention(12, num_heads=3, **arguments).state_dict()
        shapes = {key: value.shape for key, value in state.items()}
        assert shapes == {key: value.shape for key, value in twin.items()} | {"gamma_logit": (3,)}

        def norm(x, name):
            if f"{name}.weight" not in state:
                return x
            mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
            x = (x - mean) / (variance + 1e-5).sqrt()
            return x * state[f"{name}.weight"] + state[f"{name}.bias"]

        x = torch.randn(2, 6, 12, dtype=torch.float64)
        head_dim = arguments.get("attn_head_dim", 4)
        qkv = linear(x, state["qkv.weight"], state.get("qkv.bias"))
        q, k, v = qkv.reshape(2, 6, 3, 3, head_dim).permute(2, 0, 3, 1, 4)
        q, k = norm(q, "q_norm"), norm(k, "k_norm")
        function = pure_infsa if layer is PureInfSA else linear_infsa
        heads = attended_by_hand(function, q, k, v, torch.sigmoid(state["gamma_logit"]))
        out = norm(torch.from_numpy(heads).transpose(1, 2).reshape(2, 6, -1), "norm")
        if "gated" in arguments:
            out = out * torch.sigmoid(linear(x, state["gate.weight"], state["gate.bias"]))
        truth = linear(out, state["proj.weight"], state.get("proj.bias"))
        torch.testing.assert_close(module(x), truth, rtol=0, atol=1e-10)

    @pytest.mark.parametrize("layer", LAYERS)
    def test_starts_at_gamma_095_and_positive_biases(self, layer):
        module = layer(1024, 64, qkv_bias=True)
        torch.testing.assert_close(module.gamma, torch.full((64,), 0.95))
        # 1.3 · 0.02 · √1024
        assert torch.equal(module.qkv.bias[:2048], torch.full((2048,), 0.832))

    @pytest.mark.parametrize("layer", LAYERS)
    def test_the_biases_survive_timm(self, layer):
        """timm's constructor zeroes the biases of every Linear, then asks for `init_weights`."""
        model = timm.create_model(
            "vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=48, attn_layer=layer
        )
        for block in model.blocks:
            q, k, v = block.attn.qkv.bias.detach().chunk(3)
            start = torch.full((48,), 1.3 * 0.02 * math.sqrt(48))
            torch.testing.assert_close(q, start)
            torch.testing.assert_close(k, start)
            assert not v.any()
            torch.testing.assert_close(block.attn.gamma, torch.full((3,), 0.95))

    @pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # PyTorch's
    @pytest.mark.parametrize("layer", LAYERS)
    def test_compiled_it_is_one_graph_and_the_same(self, layer):
        torch.manual_seed(0)
        module = layer(12, 3, qkv_bias=True)
        x = torch.randn(2, 6, 12, requires_grad=True)
        inputs = [x, *module.parameters()]
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), module(x), rtol=0, atol=1e-6)
        found = torch.autograd.grad(compiled(x).square().sum(), inputs)
        truth = torch.autograd.grad(module(x).square().sum(), inputs)
        for a, b in zip(found, truth, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), module(x), rtol=0, atol=1e-6)

    @pytest.mark.parametrize("layer", LAYERS)
    def test_masks_are_refused(self, layer):
        module, x = layer(12, 3), torch.zeros(1, 4, 12)
        with pytest.raises(ValueError, match=f"{layer.__name__} takes no attention mask"):
            module(x, attn_mask=torch.zeros(4, 4))
        with pytest.raises(ValueError, match=f"{layer.__name__} takes no attention mask"):
            module(x, is_causal=True)

    @pytest.mark.parametrize("layer", LAYERS)
    def test_attn_drop_is_refused(self, layer):
        with pytest.raises(ValueError, match=r"attn_drop must be 0, got 0\.1"):
            layer(12, 3, attn_drop=0.1)

    @pytest.mark.parametrize("layer", LAYERS)
    def test_proj_drop_drops_tokens_apart(self, layer):
        torch.manual_seed(0)
        module, x = layer(12, 3, proj_drop=0.5), torch.randn(1, 200, 12)
        kept = module(x) != 0
        module.eval()
        torch.testing.assert_close(kept.double().mean().item(), 0.5, rtol=0, atol=0.05)
        assert not torch.equal(kept[0, 0], kept[0, 1])
        assert (module(x) != 0).all()
