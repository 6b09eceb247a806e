"""Visits of the absorbing walk beside `torch.linalg.inv` of I − γÂ.

    python benchmarks/visits_speed.py [--heads 8] [--tokens 197 1025 2049]

The peer forms Â in float32, inverts I − γÂ head by head and takes the mean row, which is what one
writes from the formula; a solve of one right-hand side is beside it. Ours has a certified bound;
errors are relative to the inverse in float64. Random queries and keys with a positive mean, of
width 16; γ = 0.95.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor
from turns import report, versions

from infsa_explain.attention.functional import token_graph
from infsa_explain.graph.centrality import visits
from infsa_explain.graph.operator import AttentionOperator

GAMMA, WIDTH, MEAN = 0.95, 16, 0.5


def by_inverse(q: Tensor, k: Tensor) -> Tensor:
    identity = torch.eye(q.shape[2], dtype=q.dtype)
    heads = [torch.linalg.inv(identity - GAMMA * graph).mean(0) for graph in token_graph(q, k)[0]]
    return torch.stack(heads)[None]


def by_solve(q: Tensor, k: Tensor) -> Tensor:
    identity = torch.eye(q.shape[2], dtype=q.dtype)
    start = torch.full((q.shape[2],), 1 / q.shape[2], dtype=q.dtype)
    return torch.stack(
        [torch.linalg.solve(identity - GAMMA * graph.T, start) for graph in token_graph(q, k)[0]]
    )[None]


def error(found: Tensor, truth: Tensor) -> float:
    return ((found.double() - truth).norm(dim=-1) / truth.norm(dim=-1)).max().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--tokens", type=int, nargs="+", default=[197, 1025, 2049])
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(versions("torch"))
    for tokens in options.tokens:
        generator = torch.Generator().manual_seed(0)
        q, k = torch.randn(2, 1, options.heads, tokens, WIDTH, generator=generator) + MEAN
        truth = by_inverse(q.double(), k.double())
        result = visits(AttentionOperator(q, k), GAMMA)
        print(
            f"{tokens} tokens, {options.heads} heads; errors: ours "
            f"{error(result.scores, truth):.0e} (bound {result.error_bound.max().item():.0e}), "
            f"inverse {error(by_inverse(q, k), truth):.0e}, solve "
            f"{error(by_solve(q, k), truth):.0e}"
        )
        calls = {
            "ours": lambda: visits(AttentionOperator(q, k), GAMMA),  # noqa: B023
            "torch.linalg.inv": lambda: by_inverse(q, k),  # noqa: B023
            "torch.linalg.solve": lambda: by_solve(q, k),  # noqa: B023
        }
        report(calls, options.runs, "  ")


if __name__ == "__main__":
    main()
