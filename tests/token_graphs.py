"""Token graphs to test with, and what they are by definition, in numpy."""

from __future__ import annotations

import numpy as np
import torch

from infsa_explain.graph.operator import AttentionOperator


def queries_keys(batch=2, heads=2, tokens=9, width=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(2, batch, heads, tokens, width, generator=g).unbind(0)


def graph(wanted):
    """The operator of a given non-negative matrix: q = the matrix, k = N·I, so q kᵀ / N is it."""
    q = torch.as_tensor(wanted, dtype=torch.float64)
    n = len(q)
    return AttentionOperator(q[None, None], n * torch.eye(n, dtype=torch.float64)[None, None])


def normalised(wanted):
    wanted = np.asarray(wanted, dtype=np.float64)
    return wanted / (np.linalg.norm(wanted) + 1e-6)


def by_definition(op):
    """Â of every graph in numpy float64, from q and k."""
    q, k = op.q.double().numpy(), op.k.double().numpy()
    products = np.einsum("bhid,bhjd->bhij", q, k)
    if op.kind == "softmax":
        e = np.exp(products * op.scale - (products * op.scale).max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)
    affinity = np.maximum(products / q.shape[-1], 0)
    return affinity / (np.sqrt((affinity**2).sum((-2, -1), keepdims=True)) + 1e-6)


def close(actual, expected, atol=1e-12, rtol=0.0):
    np.testing.assert_allclose(actual.numpy(), expected, rtol=rtol, atol=atol)
