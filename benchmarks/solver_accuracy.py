"""Dense against iterative: time, peak memory, certified bound and true error of visits.

    python benchmarks/solver_accuracy.py [--heads 4] [--tokens 197 1025 4097]

Dense: one float64 N×N matrix a head, `torch.linalg.solve`. Iterative: ours, as `visits` calls it
beyond 128 tokens. Each runs in a process of its own; memory is what its peak rose by. The true
error is that against the dense solution, which is itself off by about 1e-15. Queries and keys are
random with a positive mean, as in trained models, of width 16; γ = 0.95, uniform start.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from infsa_explain.graph.centrality import Centrality, visits
from infsa_explain.graph.operator import AttentionOperator

GAMMA, WIDTH, MEAN = 0.95, 16, 0.5


def queries_keys(heads: int, tokens: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, heads, tokens, WIDTH, generator=generator) + MEAN
    return q, k


def dense(q: Tensor, k: Tensor) -> Tensor:
    """Visits by one direct float64 solve a head, (1, H, N)."""
    tokens = q.shape[2]
    scores = []
    for head in range(q.shape[1]):
        graph = torch.relu(q[0, head].double() @ k[0, head].double().T / WIDTH)
        graph *= -GAMMA / (torch.linalg.matrix_norm(graph) + 1e-6)
        graph.diagonal().add_(1)
        start = torch.full((tokens,), 1 / tokens, dtype=torch.float64)
        scores.append(torch.linalg.solve(graph.T, start))
    return torch.stack(scores)[None]


def iterative(q: Tensor, k: Tensor) -> Centrality:
    return visits(AttentionOperator(q, k), GAMMA)


def peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run(name: str, heads: int, tokens: int, results: Connection) -> None:
    q, k = queries_keys(heads, tokens)
    torch.linalg.solve(torch.eye(8), torch.ones(8))  # the libraries, before the clock starts
    visits(AttentionOperator(*queries_keys(1, 140)), GAMMA)
    before, start = peak_bytes(), time.perf_counter()
    result = dense(q, k) if name == "dense" else iterative(q, k)
    seconds, memory = time.perf_counter() - start, peak_bytes() - before
    # As arrays: tensors would be sent through shared memory that ends with this process.
    if isinstance(result, Centrality):
        bound = result.error_bound.max().item()
        results.send((seconds, memory, result.scores.numpy(), bound, result.iterations))
    else:
        results.send((seconds, memory, result.numpy(), None, 0))


def measure(name: str, heads: int, tokens: int) -> tuple[float, int, Tensor, float | None, int]:
    receiver, sender = multiprocessing.get_context("spawn").Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(
        target=run, args=(name, heads, tokens, sender)
    )
    process.start()
    seconds, memory, scores, bound, iterations = receiver.recv()
    process.join()
    return seconds, memory, torch.from_numpy(scores), bound, iterations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--tokens", type=int, nargs="+", default=[197, 1025, 4097])
    arguments = parser.parse_args()
    print(
        f"{arguments.heads} heads, {torch.get_num_threads()} threads, PyTorch {torch.__version__}"
    )
    print("\n| N | solver | products | time | peak memory | bound | true error |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for tokens in arguments.tokens:
        exact = None
        for name in ("dense", "iterative"):
            seconds, memory, scores, bound, iterations = measure(name, arguments.heads, tokens)
            exact = scores if exact is None else exact
            error = ((scores - exact).norm(dim=-1) / scores.norm(dim=-1)).max().item()
            certificate = ("", "") if bound is None else (f"{bound:.1e}", f"{error:.1e}")
            print(
                f"| {tokens} | {name} | {iterations or ''} | {seconds:.3f} s "
                f"| {memory / 2**20:.0f} MiB | {certificate[0]} | {certificate[1]} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
