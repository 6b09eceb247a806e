"""The token graph as an operator, against its definition in numpy float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special
from torch.profiler import ProfilerActivity, profile

import infsa_explain.graph.operator
from infsa_explain.graph.operator import AttentionOperator

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


def relative(actual, expected, tolerance):
    """‖actual − expected‖ / ‖expected‖ is within the tolerance, over all entries."""
    assert actual.shape == expected.shape
    error = np.linalg.norm(actual.double().numpy() - expected) / np.linalg.norm(expected)
    assert error <= tolerance


#: Bounds on the memory as numbers of entries, for two images, three heads and 11 tokens.
ENTRIES = {
    "one row": 1,
    "rows 4, 4, 3": 50,
    "one graph": 11 * 11,
    "graphs 4, 2": 5 * 11 * 11,
    "kept": 6 * 11 * 11,
}


@pytest.mark.parametrize("entries", ENTRIES.values(), ids=ENTRIES.keys())
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-6), (torch.bfloat16, 1e-6), (torch.float64, 1e-14)],
    ids=["float32", "bfloat16", "float64"],
)
def test_products_and_sums_are_the_definitions(kind, entries, dtype, tolerance):
    """bfloat16 q and k are computed with in float32: the truth is of the values that they hold."""
    q, k = (x.to(dtype) for x in queries_keys())
    computing = torch.float64 if dtype == torch.float64 else torch.float32
    graph = by_definition(q, k, kind)
    op = AttentionOperator(q, k, kind, max_bytes=entries * computing.itemsize)
    x = torch.randn(2, 3, 11, 4, generator=torch.Generator().manual_seed(1)).to(computing)
    numbers = x.double().numpy()
    relative(op.dense(), graph, tolerance)
    for index in np.ndindex(2, 3):
        relative(op.matrix(*index), graph[index], tolerance)
        assert op.matrix(*index).dtype == computing
    relative(op.apply(x), graph @ numbers, tolerance)
    relative(op.apply_transposed(x), np.swapaxes(graph, -1, -2) @ numbers, tolerance)
    relative(op.apply(x[..., 0]), (graph @ numbers)[..., 0], tolerance)
    relative(
        op.apply_transposed(x[..., 0]),
        np.einsum("bhij,bhi->bhj", graph, numbers[..., 0]),
        tolerance,
    )
    relative(op.row_sums(), graph.sum(-1), tolerance)
    relative(op.column_sums(), graph.sum(-2), tolerance)
    relative(op.frobenius_norm(), np.sqrt((graph**2).sum((-2, -1))), tolerance)
    for result in (op.dense(), op.apply(x), op.apply(x.double()), op.row_sums(), op.column_sums()):
        assert result.dtype == computing
    assert op.frobenius_norm().dtype == torch.float64
    assert (op.shape, op.num_tokens) == ((2, 3, 11), 11)


@pytest.mark.parametrize(
    ("entries", "sizes"),
    [
        (1, [(1, 1)] * 66),
        (50, [(1, 4), (1, 4), (1, 3)] * 6),
        (65, [(1, 4), (1, 4), (1, 3)] * 6),  # even shares, not 5, 5, 1
        (11 * 11, [(1, 11)] * 6),
        (5 * 11 * 11, [(5, 11), (1, 11)]),
        (6 * 11 * 11, [(6, 11)]),
    ],
)
def test_tiles_are_whole_graphs_or_even_shares_of_one(entries, sizes):
    op = AttentionOperator(*queries_keys(), max_bytes=4 * entries)
    tiles = [(tile.shape[0], tile.shape[1]) for _, _, tile in op._tiles()]
    assert tiles == sizes


def test_a_tile_on_the_cpu_fits_into_the_cache(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    op = AttentionOperator(*queries_keys(1, 2, tokens=1025, width=2))
    assert [tile.shape for _, _, tile in op._tiles()] == 2 * [(1, 513, 1025), (1, 512, 1025)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_bytes", [1, 2**28])
def test_one_token(kind, max_bytes):
    """Width 3; q = 2 and k = ±1, so that the affinities are 2 and 0."""
    q = torch.full((1, 2, 1, 3), 2.0)
    k = torch.tensor([1.0, -1]).view(1, 2, 1, 1).expand_as(q)
    op = AttentionOperator(q, k, kind, max_bytes=max_bytes)
    edges = np.array([1, 1] if kind == "softmax" else [2 / (2 + 1e-6), 0]).reshape(1, 2, 1)
    close(op.dense(), edges[..., None], 1e-7)
    close(op.apply(torch.full((1, 2, 1), 3.0)), 3 * edges, 3e-7)
    close(op.apply_transposed(torch.full((1, 2, 1), 3.0)), 3 * edges, 3e-7)
    close(op.column_sums(), edges, 1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_4097_tokens_in_float32(kind):
    """In tiles of the size that a CPU's cache sets; the truth comes in shares of rows too."""
    q, k = queries_keys(1, 1, 4097, 4)
    op = AttentionOperator(q, k, kind, max_bytes=2**25)
    x = torch.rand(1, 1, 4097, generator=torch.Generator().manual_seed(1)) + 0.5
    queries, keys, vector = (y.double().numpy()[0, 0] for y in (q, k, x))
    received, emitted, squares = np.zeros(4097), np.zeros(4097), 0.0
    for rows in np.array_split(np.arange(4097), 16):
        products = queries[rows] @ keys.T
        if kind == "softmax":
            tile = special.softmax(products / 2, axis=-1)
        else:
            tile = np.maximum(products / 4, 0)
        emitted[rows] = tile @ vector
        received += vector[rows] @ tile
        squares += (tile**2).sum()
    norm = 1 if kind == "softmax" else np.sqrt(squares) + 1e-6
    relative(op.apply(x), (emitted / norm)[None, None], 1e-6)
    relative(op.apply_transposed(x), (received / norm)[None, None], 1e-6)
    np.testing.assert_allclose(op.frobenius_norm().item(), np.sqrt(squares) / norm, rtol=1e-7)


def allocated(call):
    """The most bytes that torch has allocated at one time during a call."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(np.cumsum(sizes), default=0)


def test_the_measure_of_memory_sees_what_is_alive_together():
    one = 4 * 2**18
    assert allocated(lambda: torch.ones(2**18)) == one
    assert 2 * one <= allocated(lambda: torch.ones(2**18).relu().neg().neg()) < 2.01 * one


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("graphs", [0.2, 0.9, 2.5, 4], ids=["rows", "shares", "graphs", "kept"])
def test_memory_is_bounded(graphs, dtype, kind, monkeypatch):
    """Beyond the bound there are only vectors, a hundredth of the graph each."""
    monkeypatch.setattr(
        infsa_explain.graph.operator, "CACHE_BYTES", 2**30
    )  # on any number of threads
    q, k = (x.to(dtype) for x in queries_keys(1, 4, 400, 8))
    max_bytes = int(graphs * 400**2 * dtype.itemsize)
    vector = 4 * 400 * 8
    op = AttentionOperator(q, k, kind, max_bytes=max_bytes)
    x = op.ones()
    sums = allocated(op.column_sums)
    products = [allocated(lambda: op.apply(x)), allocated(lambda: op.apply_transposed(x))]
    assert 0.5 * max_bytes < max(sums, *products)  # the bound is used, and the measure sees it
    assert sums <= max_bytes + 8 * vector
    assert max(products) <= max_bytes + 3 * vector
    result = 4 * 400**2 * dtype.itemsize
    assert allocated(op.dense) <= result + vector
    fresh = AttentionOperator(q, k, kind, max_bytes=max_bytes)
    assert allocated(lambda: fresh.apply(x)) <= max_bytes + 8 * vector


@pytest.fixture
def formed(monkeypatch):
    """A list of how many rows each call has formed."""
    rows, form = [], AttentionOperator._form

    def counting(self, graphs, block, out):
        rows.append(out.shape[0] * out.shape[1])
        form(self, graphs, block, out)

    monkeypatch.setattr(AttentionOperator, "_form", counting)
    return rows


def test_sums_and_norm_cost_one_pass(formed):
    op = AttentionOperator(*queries_keys(), max_bytes=200)
    op.row_sums(), op.column_sums(), op.frobenius_norm(), op.dead()
    assert sum(formed) == 66
    op.apply(op.ones())
    assert sum(formed) == 2 * 66


def test_a_graph_is_kept_for_products_only_and_only_within_the_bound(formed):
    size = 6 * 11 * 11 * 4
    small, large = (AttentionOperator(*queries_keys(), max_bytes=m) for m in (size, size - 1))
    x = small.ones()
    for op, passes in ((small, 2), (large, 4)):  # one is for the norm
        formed.clear()
        op.apply(x), op.apply(x), op.apply_transposed(x)
        assert sum(formed) == passes * 66
    assert small.double.max_bytes == size  # where each entry takes twice the room
    formed.clear()
    small.double.apply(x), small.double.apply(x)
    assert sum(formed) == 3 * 66


def test_results_are_the_callers_own():
    op = AttentionOperator(*queries_keys())
    for name in ("dense", "row_sums", "column_sums", "frobenius_norm", "ones"):
        before = getattr(op, name)().clone()
        getattr(op, name)().zero_()
        assert torch.equal(getattr(op, name)(), before)
    before = op.apply(op.ones()).clone()
    op.dense().zero_(), op.apply(op.ones()).zero_()
    assert torch.equal(op.apply(op.ones()), before)


@pytest.mark.parametrize("max_bytes", [200, 2**28])
def test_memory_layout_plays_no_part(max_bytes):
    q, k = queries_keys()
    strided = [x.permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3) for x in (q, k)]
    one = AttentionOperator(q, k, max_bytes=max_bytes)
    other = AttentionOperator(*strided, max_bytes=max_bytes)
    x = torch.randn(2, 1, 4, 11, generator=torch.Generator().manual_seed(1)).transpose(2, 3)
    x = x.expand(2, 3, 11, 4)
    for name in ("apply", "apply_transposed"):
        expected = getattr(one, name)(x.contiguous())
        torch.testing.assert_close(getattr(other, name)(x), expected, rtol=0, atol=1e-7)


def test_softmax_of_large_products_is_stable():
    """Products of whole numbers, up to 4,000, are exact in float32."""
    g = torch.Generator().manual_seed(0)
    q, k = torch.randint(-20, 21, (2, 1, 2, 9, 4), generator=g).float().unbind()
    for max_bytes in (80, 2**28):
        op = AttentionOperator(q, k, "softmax", scale=2.0, max_bytes=max_bytes)
        close(op.dense(), by_definition(q, k, "softmax", 2.0), 1e-6)
        close(op.row_sums(), np.ones((1, 2, 9)), 1e-6)


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


@pytest.mark.parametrize("max_bytes", [200, 2**28])
@pytest.mark.parametrize("kind", KINDS)
def test_autocast_does_not_lower_the_precision(kind, max_bytes):
    q, k = queries_keys()
    graph = by_definition(q, k, kind)
    x = torch.randn(2, 3, 11, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        op = AttentionOperator(q, k, kind, max_bytes=max_bytes)
        close(op.apply(x), np.einsum("bhij,bhj->bhi", graph, x), 2e-6)
        close(op.apply_transposed(x), np.einsum("bhij,bhi->bhj", graph, x), 2e-6)
        close(op.dense(), graph, 1e-6)
        close(op.row_sums(), graph.sum(-1), 2e-6)
        close(op.column_sums(), graph.sum(-2), 2e-6)


def test_inputs_and_gradients_are_left_alone():
    q, k = queries_keys()
    before = q.clone(), k.clone()
    op = AttentionOperator(q.requires_grad_(), k)
    x = torch.ones(op.shape)
    assert not op.apply(x).requires_grad
    assert not op.apply_transposed(torch.ones(op.shape, requires_grad=True)).requires_grad
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


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_bytes", [2**16, 2**20, 2**28], ids=["rows", "graphs", "kept"])
def test_on_a_gpu(kind, max_bytes):
    q, k = queries_keys(tokens=197, width=16)
    graph = by_definition(q, k, kind)
    x = torch.randn(2, 3, 197, 2, generator=torch.Generator().manual_seed(1))
    q_gpu, k_gpu, x_gpu = q.cuda(), k.cuda(), x.cuda()

    def products():
        op = AttentionOperator(q_gpu, k_gpu, kind, max_bytes=max_bytes)
        return op.apply(x_gpu), op.apply_transposed(x_gpu), op.column_sums()

    products()  # cuBLAS allocates its workspace
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    emitted, received, column_sums = products()
    vector = 2 * 3 * 197 * 2 * 8
    assert torch.cuda.max_memory_allocated() - before <= max_bytes + 12 * vector
    relative(emitted.cpu(), graph @ x.double().numpy(), 1e-5)
    relative(received.cpu(), np.swapaxes(graph, -1, -2) @ x.double().numpy(), 1e-5)
    relative(column_sums.cpu(), graph.sum(-2), 1e-5)


def test_arrays_where_tensors_go():
    q, k = queries_keys()
    op, same = AttentionOperator(q, k), AttentionOperator(q.numpy(), k.numpy())
    x = torch.ones(op.shape)
    assert torch.equal(same.dense(), op.dense())
    assert torch.equal(same.apply(x.numpy()), op.apply(x))
