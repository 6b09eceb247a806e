"""The token graph as an operator, against its definition in numpy float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special

from infsa_explain.operator import AttentionOperator

KINDS = ("infsa", "softmax")


def queries_keys(batch=2, heads=3, tokens=11, width=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(2, batch, heads, tokens, width, generator=g).unbind(0)


def by_definition(q, k, kind, scale=None):
    """Â = relu(q kᵀ / d) / (‖·‖_F + 1e-6), or softmax(q kᵀ / √d), in numpy float64."""
    q, k = q.double().numpy(), k.double().numpy()
    width = q.shape[-1]
    if kind == "softmax":
        scale = width**-0.5 if scale is None else scale
        return special.softmax(scale * np.einsum("bhid,bhjd->bhij", q, k), axis=-1)
    affinity = np.maximum(np.einsum("bhid,bhjd->bhij", q, k) / width, 0)
    return affinity / (np.sqrt((affinity**2).sum((-2, -1), keepdims=True)) + 1e-6)


def close(actual, expected, atol=1e-5):
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual.double().numpy(), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("max_bytes", [1, 700, 2**28], ids=["row", "tiles", "whole"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
def test_products_and_sums_are_the_definitions(kind, max_bytes, dtype, atol):
    q, k = (x.to(dtype) for x in queries_keys())
    graph = by_definition(q, k, kind)
    op = AttentionOperator(q, k, kind, max_bytes=max_bytes)
    x = torch.randn(2, 3, 11, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
    close(op.dense(), graph, atol)
    close(op.apply(x), graph @ x.double().numpy(), atol)
    close(op.apply_transposed(x), np.swapaxes(graph, -1, -2) @ x.double().numpy(), atol)
    close(op.apply(x[..., 0]), (graph @ x.double().numpy())[..., 0], atol)
    close(op.apply_transposed(x[..., 0]), np.einsum("bhij,bhi->bhj", graph, x[..., 0]), atol)
    close(op.row_sums(), graph.sum(-1), atol)
    close(op.column_sums(), graph.sum(-2), atol)
    close(op.frobenius_norm(), np.sqrt((graph**2).sum((-2, -1))), atol)
    assert op.dense().dtype == op.apply(x).dtype == dtype
    assert op.frobenius_norm().dtype == torch.float64
    assert (op.shape, op.num_tokens) == ((2, 3, 11), 11)


@pytest.mark.parametrize("kind", KINDS)
def test_one_tile_equals_many(kind):
    q, k = queries_keys(tokens=30)
    whole, tiled = (AttentionOperator(q, k, kind, max_bytes=m) for m in (2**28, 2000))
    assert len(list(whole._tiles())) == 1
    assert len(list(tiled._tiles())) == 15  # 2000 // (2 · 3 · 30 · 4) = 2 rows of 30
    x = torch.randn(2, 3, 30, generator=torch.Generator().manual_seed(1))
    for name, arguments in (("dense", ()), ("apply", (x,)), ("apply_transposed", (x,))):
        one, many = (getattr(op, name)(*arguments) for op in (whole, tiled))
        torch.testing.assert_close(many, one, rtol=0, atol=1e-6)
    torch.testing.assert_close(tiled.frobenius_norm(), whole.frobenius_norm(), rtol=0, atol=5e-7)


def test_softmax_scale_is_honoured():
    q, k = queries_keys()
    close(
        AttentionOperator(q, k, "softmax", scale=0.3).dense(), by_definition(q, k, "softmax", 0.3)
    )
    close(
        AttentionOperator(q, k, "softmax", scale=0.3).double.dense(),
        by_definition(q, k, "softmax", 0.3),
        1e-14,
    )


def test_orientation():
    """Token 0 attends to token 1 and to nothing else: Â_01 = 1/(1 + 1e-6)."""
    q = torch.tensor([[[[2.0, 0], [0, 0]]]])
    k = torch.tensor([[[[0.0, 0], [1, 0]]]])
    op = AttentionOperator(q, k)
    edge = 1 / (1 + 1e-6)
    close(op.dense(), np.array([[[[0, edge], [0, 0]]]]), 1e-7)
    close(op.row_sums(), np.array([[[edge, 0]]]), 1e-7)
    close(op.column_sums(), np.array([[[0, edge]]]), 1e-7)


def test_a_graph_without_edges_is_zero_and_dead():
    q, k = queries_keys()
    q, k = q.abs(), -k.abs()
    k[1] = -k[1]  # the second image's graphs are alive
    op = AttentionOperator(q, k)
    assert op.dead().tolist() == [[True] * 3, [False] * 3]
    assert torch.equal(op.dense()[0], torch.zeros(3, 11, 11))
    assert torch.equal(op.apply(op.ones())[0], torch.zeros(3, 11))
    assert op.frobenius_norm()[0].tolist() == [0, 0, 0]
    close(op.dense(), by_definition(q, k, "infsa"))
    assert not AttentionOperator(q, k, "softmax").dead().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_input_is_computed_in_float32(dtype, kind):
    q, k = (x.to(dtype) for x in queries_keys())
    op = AttentionOperator(q, k, kind)
    assert op.dense().dtype == torch.float32
    close(op.dense(), by_definition(q, k, kind))  # of the very values that bf16 holds


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_does_not_lower_the_precision(kind):
    q, k = queries_keys()
    graph = by_definition(q, k, kind)
    with torch.autocast("cpu", torch.bfloat16):
        op = AttentionOperator(q, k, kind)
        close(op.dense(), graph, 1e-6)
        close(op.row_sums(), graph.sum(-1), 2e-6)
        close(op.column_sums(), graph.sum(-2), 2e-6)


def test_inputs_and_gradients_are_left_alone():
    q, k = queries_keys()
    before = q.clone(), k.clone()
    op = AttentionOperator(q.requires_grad_(), k)
    x = torch.ones(op.shape)
    assert not op.apply(x).requires_grad
    assert q.requires_grad
    assert q.grad is None
    assert torch.equal(q.detach(), before[0])
    assert torch.equal(k, before[1])
    assert torch.equal(x, torch.ones(op.shape))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("which", [0, 1])
def test_values_that_are_not_finite_are_refused(bad, which):
    pair = [x.clone() for x in queries_keys()]
    pair[which][1, 2, 3, 4] = bad
    with pytest.raises(ValueError, match=f"^{'qk'[which]} holds NaN or infinite values$"):
        AttentionOperator(*pair)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e10, 1e20])
def test_overflow_is_an_error_and_no_silent_zero(kind, size):
    """At 1e10 the products are finite and their squares are not; at 1e20 neither are."""
    q = torch.full((1, 1, 3, 2), size)
    if kind == "softmax" and size == 1e10:
        close(AttentionOperator(q, q, kind).dense(), np.full((1, 1, 3, 3), 1 / 3), 1e-7)
    else:
        with pytest.raises(ValueError, match="q kᵀ overflows torch.float32"):
            AttentionOperator(q, q, kind).dense()
    close(AttentionOperator(q.double(), q.double()).dense(), np.full((1, 1, 3, 3), 1 / 3), 1e-12)


@pytest.mark.parametrize(
    ("q", "k"), [((1, 2, 3), (1, 2, 3)), ((1, 2, 3, 4), (1, 2, 5, 4)), ((1, 2, 3, 4), (2, 2, 3, 4))]
)
def test_shapes_of_q_and_k_that_do_not_fit(q, k):
    with pytest.raises(ValueError, match=r"\(batch, heads, tokens, width\), got \(1, 2, 3"):
        AttentionOperator(torch.ones(q), torch.ones(k))


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 12), (2, 11, 3), (2, 3, 11, 1, 1)])
@pytest.mark.parametrize("product", ["apply", "apply_transposed"])
def test_shapes_of_x_that_do_not_fit(shape, product):
    op = AttentionOperator(*queries_keys())
    with pytest.raises(ValueError, match=r"x must be \(2, 3, 11\) or \(2, 3, 11, 'm'\), got"):
        getattr(op, product)(torch.ones(shape))


def test_unknown_kind():
    with pytest.raises(ValueError, match="kind must be 'infsa' or 'softmax', got 'linear'"):
        AttentionOperator(*queries_keys(), "linear")
