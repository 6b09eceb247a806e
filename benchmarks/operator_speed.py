"""How fast a product with Â is in tiles, beside the dense form and PyTorch's fused attention.

    python benchmarks/operator_speed.py [--threads 1] [--device cuda] [--max-dense-gib 8]

Batch 1, 64 heads of width 16, float32. ``tiles`` builds an operator and multiplies once, ``again``
is a further product of the same operator, ``dense`` forms the matrices of all heads and multiplies,
``sdpa`` is softmax attention to the same vectors. Times are medians of runs in turns, then divided
by those of ``tiles`` and ``again``. Memory is the peak of one call, result included.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

from infsa_explain.attention.functional import token_graph
from infsa_explain.graph.operator import AttentionOperator

HEADS, WIDTH = 64, 16
Call = Callable[[], Tensor]


def forms(q: Tensor, k: Tensor, x: Tensor) -> dict[str, Call]:
    """The ways to multiply a token graph and x."""
    kept = AttentionOperator(q, k)
    return {
        "tiles": lambda: AttentionOperator(q, k).apply(x),
        "again": lambda: kept.apply(x),
        "dense": lambda: token_graph(q, k) @ x,
        "sdpa": lambda: scaled_dot_product_attention(q, k, x),
    }


def medians(calls: dict[str, Call], runs: int, threads: int) -> dict[str, float]:
    """Seconds of one call of each, taken in turns after one call to warm up."""
    timers = {
        name: Timer("f()", globals={"f": f}, num_threads=threads) for name, f in calls.items()
    }
    taken = [
        {name: timer.timeit(1).mean for name, timer in timers.items()} for _ in range(runs + 1)
    ]
    return {name: statistics.median(run[name] for run in taken[1:]) for name in calls}


def peak_mib(call: Call, device: str) -> float:
    """Most memory that is allocated at one time during a call, in MiB."""
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[197, 1025, 4097])
    parser.add_argument("--vectors", type=int, nargs="+", default=[1, WIDTH])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--max-dense-gib", type=float, default=8, help="skip the dense form above")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("tokens  vectors  form         ms  /tiles  /again  peak MiB", flush=True)
    for tokens, vectors in product(options.tokens, options.vectors):
        q, k, x = torch.randn(3, 1, HEADS, tokens, WIDTH, device=options.device).unbind()
        x = x[..., :vectors].contiguous()
        calls = forms(q, k, x)
        matrix = HEADS * tokens**2 * q.element_size()
        if 2 * matrix > options.max_dense_gib * 2**30:  # q kᵀ, and then its relu beside it
            del calls["dense"]
        seconds = medians(calls, options.runs, options.threads)
        for form, call in calls.items():
            time, memory = seconds[form], peak_mib(call, options.device)
            ratios = " ".join(f"{time / seconds[other]:7.2f}" for other in ("tiles", "again"))
            print(
                f"{tokens:6} {vectors:8}  {form:5} {1e3 * time:9.2f} {ratios} {memory:9.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
