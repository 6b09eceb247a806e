"""Perron vectors in integers of 1,600 bits, the truth that bounds are tested against."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

BITS = 1600
SQUARINGS = 200


def _integers(matrix):
    """(N, N) fractions or floats, scaled to a largest entry of 2^BITS and cut off there."""
    exact = [[y if isinstance(y, Fraction) else Fraction(float(y)) for y in row] for row in matrix]
    largest = max(max(row) for row in exact)
    scaled = [[int(y * 2**BITS / largest) for y in row] for row in exact]
    return np.array(scaled, dtype=object)


def exact_perron(matrix):
    """The right Perron vector of a non-negative matrix, and whether there is one only.

    By (I + M/m) to the power of 2^200: its columns become Perron vectors, or vanish beside others.
    Eigenvalues that differ by 1e-60 are told apart; Jordan blocks of up to eight converge to 1e-60.

    Args:
        matrix: (N, N) numbers, whose exact values count; with a cycle.

    Returns:
        The vector, (N,) float64 of unit 2-norm, correctly rounded, and a bool.
    """
    power = _integers(matrix)
    power = power + np.diag([2**BITS] * len(power)).astype(object)
    for _ in range(SQUARINGS):
        power = power @ power
        shift = int(power.max()).bit_length() - BITS
        power = power // 2**shift if shift > 0 else power
    columns = [c for c in power.T if max(c) > 2**64]
    vectors = [np.array([float(Fraction(y, max(c))) for y in c]) for c in columns]
    unique = all(np.abs(v - vectors[0]).max() < 1e-12 for v in vectors)
    return vectors[0] / np.linalg.norm(vectors[0]), unique


def exact_stationary(chain):
    """The left Perron vector of a chain by the entries off its diagonal: rows sum to 1 exactly.

    By elimination in fractions on π (P − I) = 0 and Σ π = 1. Returns as :func:`exact_perron`, and
    None for a vector where there are several.
    """
    exact = [[Fraction(float(y)) for y in row] for row in chain]
    size = len(exact)
    for i, row in enumerate(exact):
        row[i] -= sum(row)  # P − I
    system = [[*column, Fraction(0)] for column in zip(*exact, strict=True)]
    system[-1] = [Fraction(1)] * (size + 1)
    for k in range(size):
        pivot = next((i for i in range(k, size) if system[i][k]), None)
        if pivot is None:
            return None, False
        system[k], system[pivot] = system[pivot], system[k]
        system[k] = [y / system[k][k] for y in system[k]]
        for i in range(size):
            if i != k and system[i][k]:
                factor = system[i][k]
                system[i] = [y - factor * z for y, z in zip(system[i], system[k], strict=True)]
    vector = np.array([float(row[-1]) for row in system])
    return vector / np.linalg.norm(vector), True
