"""Products with the token graph in tiles, against numpy float64 and autograd of the dense form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from infsa_explain.attention import pure, tiles
from infsa_explain.attention.layers import pure_infsa
from infsa_explain.attention.pure import affinity_product

#: Graphs, queries, keys, width of keys, width of values; tiles of 4×6 cut the larger ones.
SHAPES = [(1, 1, 1, 1, 1), (3, 4, 6, 5, 2), (2, 9, 13, 3, 4), (5, 17, 17, 16, 16), (7, 3, 2, 2, 3)]


@pytest.fixture(params=[(256, 2304, 2**20), (4, 6, 2**20), (4, 6, 1)], ids=str)
def tile_sizes(request, monkeypatch):
    """Tiles of the usual size; small ones of all graphs at once; and of one graph each."""
    monkeypatch.setattr(pure, "_passes", lambda *qv: tiles)
    for name, value in zip(("ROWS", "COLUMNS", "CPU_BYTES"), request.param, strict=True):
        monkeypatch.setattr(tiles, name, value)


def inputs(graphs, n, m, d, e, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = (n, d), (m, d), (m, e)
    return [torch.randn(graphs, *shape, generator=generator, dtype=dtype) for shape in shapes]


def by_hand(q, k, v):
    """A v and ‖A‖_F in numpy float64."""
    q, k, v = (x.detach().double().numpy() for x in (q, k, v))
    graph = np.maximum(q @ k.swapaxes(1, 2), 0)
    return graph @ v, np.sqrt((graph**2).sum((1, 2)))


def dense(q, k, v):
    """The same in torch, for its gradients; a norm of zero has none."""
    graph = torch.relu(q @ k.transpose(1, 2))
    return graph @ v, torch.linalg.matrix_norm(graph)


def relative(found, truth):
    found, truth = (torch.as_tensor(x).detach().double() for x in (found, truth))
    return ((found - truth).norm() / truth.norm().clamp_min(1e-300)).item()


def gradients(function, qkv, g, h):
    product, norm = function(*qkv)
    return torch.autograd.grad((product * g).sum() + (norm * h).sum(), qkv)


class TestForward:
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    @pytest.mark.parametrize(
        ("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6)]
    )
    @pytest.mark.usefixtures("tile_sizes", "onednn_multiplies")
    def test_product_and_norm(self, shape, dtype, tolerance):
        qkv = inputs(*shape, dtype)
        before = [x.clone() for x in qkv]
        product, norm = affinity_product(*qkv)
        assert product.dtype == norm.dtype == dtype
        assert product.shape == (shape[0], shape[1], shape[4])
        for found, truth in zip((product, norm), by_hand(*qkv), strict=True):
            assert relative(found, truth) <= tolerance
        assert all(torch.equal(x, y) for x, y in zip(qkv, before, strict=True))

    def test_large_graphs(self):
        """Float32 against float64 where one float32 sum over N² terms is off by 1e-4."""
        qkv = inputs(1, 4097, 4097, 16, 16, torch.float32)
        product, norm = affinity_product(*qkv)
        q, k, v = qkv
        rows = [by_hand(some, k, v) for some in q.split(256, dim=1)]
        assert relative(product, np.concatenate([x for x, _ in rows], 1)) <= 1e-6
        assert relative(norm, np.linalg.norm([x for _, x in rows], axis=0)) <= 1e-7

    def test_strided_inputs(self):
        """As a layer's projection gives them: heads within tokens."""
        qkv = torch.randn(7, 3, 2, 5).permute(1, 2, 0, 3)  # (3, G, N, d)
        for found, truth in zip(affinity_product(*qkv), by_hand(*qkv), strict=True):
            assert relative(found, truth) <= 1e-6

    def test_autocast_changes_nothing(self):
        qkv = [x.requires_grad_() for x in inputs(2, 9, 9, 4, 4, torch.float32)]
        outside = affinity_product(*qkv)
        expected = torch.autograd.grad(outside[0].sum(), qkv)
        with torch.autocast("cpu", torch.bfloat16):
            inside = affinity_product(*qkv)
            found = torch.autograd.grad(inside[0].sum(), qkv)
        for a, b in zip((*inside, *found), (*outside, *expected), strict=True):
            assert torch.equal(a, b)

    @pytest.mark.parametrize("count", [1, 255, 256, 257, 1025, 4097])
    def test_shares_are_even(self, count):
        shares = tiles._shares(count, 256)
        sizes = [share.stop - share.start for share in shares]
        assert [i for s in shares for i in range(s.start, s.stop)] == list(range(count))
        assert len(shares) == -(-count // 256)
        assert max(sizes) - min(sizes) < len(shares)


class TestBackward:
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    @pytest.mark.parametrize(
        ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-6)]
    )
    @pytest.mark.usefixtures("tile_sizes", "onednn_multiplies")
    def test_gradients_are_those_of_the_dense_form(self, shape, dtype, tolerance):
        qkv = [x.abs_().requires_grad_() for x in inputs(*shape, dtype)]
        with torch.no_grad():
            qkv[0][:, ::2] *= -1  # rows without an edge
        g, h = (
            torch.randn(shape[0], shape[1], shape[4], dtype=dtype),
            torch.randn(shape[0]).to(dtype),
        )
        exact = [x.detach().double().requires_grad_() for x in qkv]
        truth = gradients(dense, exact, g.double(), h.double())
        for found, expected in zip(gradients(affinity_product, qkv, g, h), truth, strict=True):
            assert found.dtype == dtype
            assert relative(found, expected) <= tolerance

    @pytest.mark.usefixtures("tile_sizes")
    def test_gradcheck(self):
        qkv = [x.requires_grad_() for x in inputs(2, 7, 8, 3, 2)]
        assert torch.autograd.gradcheck(affinity_product, qkv, eps=1e-7, atol=1e-6)

    def test_a_layer_in_float32(self):
        """Through γ and the norm, at a size that tiles cut, to 1e-6 of float64 autograd."""

        def textbook(q, k, v, gamma):
            graph = torch.relu(q @ k.transpose(-2, -1) / q.shape[-1])
            graph = graph / (torch.linalg.matrix_norm(graph, keepdim=True) + 1e-6)
            return gamma[:, None, None] * graph @ v

        torch.manual_seed(0)
        single = [*torch.randn(3, 1, 2, 600, 16).unbind(), torch.tensor([0.3, 0.9])]
        single = [x.requires_grad_() for x in single]
        exact = [x.detach().double().requires_grad_() for x in single]
        g = torch.randn(1, 2, 600, 16)
        found, truth = pure_infsa(*single), textbook(*exact)
        assert relative(found, truth) <= 1e-6
        for a, b in zip(
            torch.autograd.grad((found * g).sum(), single),
            torch.autograd.grad((truth * g.double()).sum(), exact),
            strict=True,
        ):
            assert relative(a, b) <= 1e-6

    @pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)])
    def test_gradients_of_some_inputs(self, wanted):
        qkv = inputs(2, 9, 9, 4, 4)
        some = [x.requires_grad_(i in wanted) for i, x in enumerate(qkv)]
        found = torch.autograd.grad(affinity_product(*some)[0].sum(), [some[i] for i in wanted])
        exact = [x.detach().requires_grad_() for x in qkv]
        truth = torch.autograd.grad(dense(*exact)[0].sum(), exact)
        for i, gradient in zip(wanted, found, strict=True):
            assert relative(gradient, truth[i]) <= 1e-13

    def test_an_empty_graph_has_zero_gradients(self):
        qkv = [torch.ones(1, 5, 3), -torch.ones(1, 5, 3), torch.ones(1, 5, 2)]
        qkv = [x.requires_grad_() for x in qkv]
        product, norm = affinity_product(*qkv)
        assert not product.any()
        assert not norm.any()
        for gradient in torch.autograd.grad(product.sum() + norm.sum(), qkv):
            assert not gradient.any()

    def test_no_second_derivative(self):
        qkv = [x.requires_grad_() for x in inputs(1, 4, 4, 2, 2)]
        (gradient,) = torch.autograd.grad(
            affinity_product(*qkv)[1].sum(), qkv[0], create_graph=True
        )
        with pytest.raises(NotImplementedError, match="once, not twice"):
            gradient.sum().backward()


def test_memory_is_linear_in_the_tokens(monkeypatch):
    """Forward and backward at twice the tokens take twice the memory, beyond the tiles."""
    monkeypatch.setattr(tiles, "ROWS", 8)
    monkeypatch.setattr(tiles, "COLUMNS", 8)
    monkeypatch.setattr(tiles, "CPU_BYTES", 1)

    def peak(tokens):
        qkv = [x.requires_grad_() for x in inputs(1, tokens, tokens, 16, 16)]
        with torch.profiler.profile(profile_memory=True) as profile:
            affinity_product(*qkv)[0].sum().backward()
        in_use = largest = 0
        for event in profile.profiler.kineto_results.events():
            if event.name() == "[memory]":
                in_use += event.nbytes()
                largest = max(largest, in_use)
        return largest

    small, large = peak(64), peak(128)
    assert 0 < large <= 2 * small
