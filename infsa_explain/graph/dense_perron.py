"""The Perron vector of one graph from its matrix, for graphs that products alone do not settle.

The tokens of a non-negative matrix M fall into classes, the strongly connected components of its
graph. ρ is the largest spectral radius of a class. A class of radius ρ has a Perron vector if no
other class of radius ρ has access to it; the vector is positive on all tokens that have access.
There are as many independent Perron vectors as such classes.

A softmax graph is a Markov chain: each class that no edge leaves has radius 1. The elimination of
Grassmann, Taksar and Heyman never subtracts. So it finds the stationary distribution to many digits
in every entry, however weak the links are. For other graphs the vector comes from inverse iteration
(Noda), and :mod:`infsa_explain.graph.perron_bounds` bounds its error.

Source: Frobenius 1912; Schneider, The influence of the marked reduced graph of a nonnegative matrix
on the Jordan form and on related properties, Linear Algebra and its Applications 84, 1986; Noda
1971; Grassmann, Taksar and Heyman 1985; O'Cinneide, Entrywise perturbation theory and error
analysis for Markov chains, Numerische Mathematik 65, 1993.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.lapack import dgebal
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

from .perron_bounds import FLOOR, Enclosed, enclosed_radius, enclosed_vector, product_rounding

__all__ = ["DensePerron", "perron_of_chain", "perron_of_matrix"]

#: Radii with overlapping bounds and this relative difference are equal as far as float64 can tell.
SAME = 1e-11
UNIT = float(np.finfo(np.float64).eps) / 2
#: Tokens eliminated at once.
BLOCK = 32

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Indices = NDArray[np.intp]


class DensePerron(NamedTuple):
    """A Perron vector of one matrix, (N,).

    Attributes:
        enclosed: the vector, with its bounds.
        unique: whether it is proven that there is one Perron vector.
        several: whether there are several, as far as float64 can tell.
    """

    enclosed: Enclosed
    unique: bool = False
    several: bool = False


class Class(NamedTuple):
    """A strongly connected component with a cycle, its Perron vector and bounds on its radius."""

    tokens: Indices
    vector: Vector
    lower: float
    upper: float


@np.errstate(all="ignore")
def perron_of_chain(chain: Matrix) -> DensePerron:
    """The left Perron vector of a softmax graph, its stationary distribution.

    Rows sum to 1. The diagonal follows from the other entries and is not used, so its rounding
    does not matter.

    Args:
        chain: (N, N) Â, row i is "i attends to".
    """
    _, labels = connected_components(csr_array(chain > 0), connection="strong")
    leaving = np.nonzero(chain * (labels[:, None] != labels))[0]
    final = [label for label in np.unique(labels) if label not in labels[leaving]]
    vector, relative = np.zeros(len(chain)), 0.0
    for label in final:
        tokens = np.flatnonzero(labels == label)
        vector[tokens], error = stationary(chain[np.ix_(tokens, tokens)])
        relative = max(relative, error)
    slack = product_rounding(len(chain))
    if len(final) > 1:
        return DensePerron(_enclosed(vector, 1 - slack, 1 + slack), several=True)
    return DensePerron(_enclosed(vector, 1 - slack, 1 + slack, relative + slack), unique=True)


def stationary(chain: Matrix) -> tuple[Vector, float]:
    """The stationary distribution of an irreducible chain, and a bound on its entries' error.

    Tokens are eliminated one by one: the chain is watched only while it is at the other tokens.
    This changes the transitions between the others; the changes of 32 tokens are added at once.
    Nothing is subtracted. So the transitions between the k remaining tokens have a relative error
    of (k + 2) u, u = 2⁻⁵³. Each entry of a stationary distribution is a ratio of two sums of
    products of k − 1 transitions (the Markov chain tree theorem), so the error moves it by at most
    2 (k − 1)(k + 2) u. Putting token k back adds 2 k u. The sum over k is below (2/3 N³ + N²) u.

    Args:
        chain: (N, N) non-negative; the diagonal is not used.

    Returns:
        The distribution, (N,), and the bound; ``inf`` if numbers underflowed.
    """
    rates, size, underflow = chain.copy(), len(chain), False
    positive = bool((rates + np.eye(size) >= FLOOR).all())  # then no entry ever becomes tiny
    stop = size
    while stop > 1:
        first = max(1, stop - (BLOCK if positive else 1))
        for k in range(stop - 1, first - 1, -1):
            rates[:k, k] /= rates[k, :k].sum()
            rates[first:k, :k] += np.outer(rates[first:k, k], rates[k, :k])
            rates[:first, first:k] += np.outer(rates[:first, k], rates[k, first:k])
        inward, outward = rates[:first, first:stop], rates[first:stop, :first]
        others = rates[:first, :first]
        others += inward @ outward
        underflow |= not positive and bool(
            ((others < FLOOR) & ((others > 0) | (inward > 0) @ (outward > 0))).any()
        )
        stop = first
    vector = np.ones(size)
    for k in range(1, size):
        vector[k] = vector[:k] @ rates[:k, k]
        if vector[k] > 1e100:
            vector[: k + 1] /= vector[k]
    underflow |= not bool((vector >= FLOOR).all() and np.isfinite(vector).all())
    error = (2 / 3 * size**3 + size**2) * UNIT
    return vector / vector.sum(), np.inf if underflow else error * (1 + error)


@np.errstate(all="ignore")
def perron_of_matrix(matrix: Matrix) -> DensePerron:
    """The right Perron vector of a non-negative matrix that has a cycle.

    Args:
        matrix: (N, N) M.
    """
    graph = csr_array(matrix)
    top = _top_classes(matrix, graph)
    reverse = csr_array(matrix.T)
    heads = [c.tokens[0] for c in top]
    access = [breadth_first_order(reverse, token, return_predecessors=False) for token in heads]
    # A class has no Perron vector if another one of the same radius has access to it.
    first = [i for i, tokens in enumerate(access) if np.isin(heads, tokens).sum() == 1]
    lower, upper = max(c.lower for c in top), max(c.upper for c in top)
    vectors = [_extended(matrix, top[i], access[i]) for i in first]
    if len(first) > 1:
        same = upper <= (1 + SAME) * min(c.lower for c in top)
        mixture = np.sum([v / np.linalg.norm(v) for v in vectors], axis=0)
        return DensePerron(_enclosed(mixture, lower, upper), several=same)
    # The radius of one token is exact. Others that overlap may be equal or not.
    exact = all(len(c.tokens) == 1 for c in top)
    if len(top) > 1 and not exact:
        return DensePerron(_enclosed(vectors[0], lower, upper))
    return _certified(matrix, vectors[0], access[first[0]], top[first[0]].tokens)


def _top_classes(matrix: Matrix, graph: csr_array) -> list[Class]:
    """The classes whose spectral radius may be the largest."""
    count, labels = connected_components(graph, connection="strong")
    order = np.argsort(labels, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(labels, minlength=count))[:-1])
    limits = [matrix[np.ix_(i, i)].sum(1).max() * (1 + product_rounding(len(i))) for i in members]
    candidates: list[Class] = []
    largest = 0.0
    for index in np.argsort(limits)[::-1]:
        if limits[index] < largest or limits[index] == 0:
            break
        candidates.append(_class(matrix, members[index], limits[index]))
        largest = max(largest, candidates[-1].lower)
    return [c for c in candidates if c.upper >= largest]


def _class(matrix: Matrix, tokens: Indices, limit: float) -> Class:
    if len(tokens) == 1:
        radius = float(matrix[tokens[0], tokens[0]])
        return Class(tokens, np.ones(1), radius, radius)
    vector, lower, upper = _inverse_iteration(matrix[np.ix_(tokens, tokens)])
    return Class(tokens, vector, lower, min(upper, limit))


def _inverse_iteration(block: Matrix) -> tuple[Vector, float, float]:
    """The Perron vector of an irreducible matrix, and bounds on its radius.

    The best of a few steps. The matrix is balanced first (LAPACK's gebal) by powers of two, which
    is exact. So entries that differ by orders of magnitude are found as well as others.
    """
    balanced, _, _, scale, _ = dgebal(block, scale=1, permute=0)
    x, best, idle = np.ones(len(block)), (np.ones(len(block)), 0.0, np.inf), 0
    while idle < 3:
        lower, upper = _radius(x, balanced @ x)
        idle = 0 if upper - lower < 0.9 * (best[2] - best[1]) else idle + 1
        if upper - lower < best[2] - best[1]:
            best = x, lower, upper
        try:
            x = np.abs(np.linalg.solve(upper * np.eye(len(block)) - balanced, x))
        except np.linalg.LinAlgError:
            break
        x = balanced @ (x / x.max())  # makes the relative error of small entries as small
        x /= x.max()
    x, lower, upper = best
    x = x * scale
    return x / x.max(), lower, upper


def _radius(x: Vector, image: Vector) -> tuple[float, float]:
    """Lower and upper bound on the spectral radius by Collatz and Wielandt."""
    full = torch.ones(len(x), dtype=torch.bool)
    lower, upper = enclosed_radius(torch.from_numpy(x), torch.from_numpy(image), full)
    return lower.item(), upper.item()


def _extended(matrix: Matrix, top: Class, access: Indices) -> Vector:
    """The vector of a class, extended to all tokens with access to it: (N,)."""
    vector = np.zeros(len(matrix))
    vector[top.tokens] = top.vector
    others = np.setdiff1d(access, top.tokens)
    if len(others):
        radius = (top.lower + top.upper) / 2
        inward = matrix[np.ix_(others, top.tokens)] @ top.vector
        block = matrix[np.ix_(others, others)]
        try:
            x = np.abs(np.linalg.solve(radius * np.eye(len(others)) - block, inward))
        except np.linalg.LinAlgError:
            x = inward
        for _ in range(2):  # makes the relative error of small entries as small
            x = (block @ x + inward) / radius
        vector[others] = x
    vector /= vector.max()
    return vector


def _certified(matrix: Matrix, vector: Vector, access: Indices, tokens: Indices) -> DensePerron:
    """Bounds on the vector of a class, with hitting times from a direct solve.

    Tokens without access to the class have a smaller radius and do not matter.
    """
    block, x = matrix[np.ix_(access, access)], vector[access]
    image = block @ x
    lower, upper = _radius(x, image)
    bare = DensePerron(_enclosed(vector, lower, upper), unique=True)
    if not lower:
        return bare
    hub = int(np.argmax(np.where(np.isin(access, tokens), x * block.sum(0), -1)))
    off = np.arange(len(x)) != hub
    times = np.zeros(len(x))
    # (I − S₀) z = 1, as (diag(g) − M₀) y = Mx for y = x · z
    system = np.diag(image / x) - block
    try:
        times[off] = np.linalg.solve(system[np.ix_(off, off)], image[off]) / x[off]
    except np.linalg.LinAlgError:
        return bare
    if not (times[off] > 0).all():
        return bare
    slack = 2 * product_rounding(len(x))
    margins = times * (1 - slack) - (1 + slack) * (block @ (x * times)) / image
    arguments = (x, lower, upper, times, margins[off].min(initial=1.0))
    enclosed = enclosed_vector(*(torch.tensor(y, dtype=torch.float64) for y in arguments))
    return DensePerron(enclosed._replace(vector=torch.from_numpy(vector)), unique=True)


def _enclosed(vector: Vector, lower: float, upper: float, error: float = np.inf) -> Enclosed:
    """A vector with a bound on the relative error of every entry, and so on its distance."""
    bounds = torch.tensor([lower, upper, error, error], dtype=torch.float64)
    return Enclosed(torch.from_numpy(vector), *bounds)
