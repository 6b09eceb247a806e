"""Pure InfSA in tiles against its textbook form and PyTorch's fused softmax attention.

    python benchmarks/pure_speed.py [--threads 1] [--device cuda] [--max-gib 2]

Heads of width 16, float32. ``textbook`` forms relu(q kᵀ / d), divides it by its norm and multiplies
by v; ``dense`` divides after the product; ``sdpa`` is `scaled_dot_product_attention`. Inference is
one call; a step is one call and the gradients of q, k and v. Forms take turns; times are medians,
``×`` is the median of a form's time by ours of the same turn. With one thread on a CPU the time is
that of the processor, so that other work on the machine counts little; otherwise the clock's.
Memory is the peak of one call, result included. A form whose matrices exceed --max-gib runs on
fewer heads, as the column says, and its time and memory are scaled up. On a GPU ``ours`` is the
Triton kernels where they pass their check; they have not been measured on one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile

from infsa_explain.attention.functional import EPS, frobenius_norm, pure_infsa

WIDTH, GAMMA = 16, 0.95
SIZES = ((8, 64, 197), (1, 64, 1025), (1, 64, 4097))
Form = Callable[[Tensor, Tensor, Tensor], Tensor]


def textbook(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    graph = torch.relu(q @ k.transpose(-2, -1) / q.shape[-1])
    return GAMMA * (graph / (torch.linalg.matrix_norm(graph, keepdim=True) + EPS)) @ v


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    graph = torch.relu(q @ k.transpose(-2, -1) / q.shape[-1])
    return GAMMA / (frobenius_norm(graph) + EPS)[..., None, None] * (graph @ v)


def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return pure_infsa(q, k, v, GAMMA)


#: A form, and how many N×N matrices of a head it holds at once in inference and in training.
FORMS: dict[str, tuple[Form, int, int]] = {
    "textbook": (textbook, 2, 5),
    "dense": (dense, 2, 4),
    "ours": (ours, 0, 0),
    "sdpa": (scaled_dot_product_attention, 0, 0),
}


def step(form: Form, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    inputs = [x.requires_grad_() for x in (q.detach(), k.detach(), v.detach())]
    return torch.autograd.grad(form(*inputs).square().sum(), inputs)[0]


def peak_bytes(call: Callable[[], object], device: str) -> int:
    """Most memory that is allocated at one time during a call."""
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def seconds(call: Callable[[], object], device: str) -> float:
    alone = device == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    began = clock()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--max-gib", type=float, default=2, help="of matrices, for forms with any")
    parser.add_argument("--largest", type=int, default=4097, help="leave out larger N")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"PyTorch {torch.__version__}, {options.device}, {options.threads} thread(s)")
    print("| B | H | N | work | form | heads run | time | × | peak memory |")
    print("| --: | --: | --: | --- | --- | --: | --: | --: | --: |")
    for batch, heads, tokens in SIZES:
        if tokens > options.largest:
            continue
        torch.manual_seed(0)
        qkv = torch.randn(3, batch, heads, tokens, WIDTH, device=options.device)
        for training in (False, True):
            calls, run = {}, {}
            for name, (form, *matrices) in FORMS.items():
                size = matrices[training] * batch * tokens**2 * qkv.element_size()
                some = min(heads, max(1, int(options.max_gib * 2**30 / size))) if size else heads
                inputs = qkv[:, :, :some].contiguous().unbind()
                run[name] = some
                calls[name] = (
                    (lambda f=form, x=inputs: step(f, *x))
                    if training
                    else (lambda f=form, x=inputs: f(*x))
                )
            times: dict[str, list[float]] = {name: [] for name in calls}
            for turn in range(options.runs + 1):
                for name, call in calls.items():
                    taken = seconds(call, options.device) * heads / run[name]
                    if turn:  # the first is to warm up
                        times[name].append(taken)
            for name, call in calls.items():
                ratio = statistics.median(
                    a / b for a, b in zip(times[name], times["ours"], strict=True)
                )
                memory = peak_bytes(call, options.device) * heads / run[name] / 2**20
                print(
                    f"| {batch} | {heads} | {tokens} | {('inference', 'step')[training]} | {name} "
                    f"| {run[name]} | {1e3 * statistics.median(times[name]):.1f} ms "
                    f"| {ratio:.2f} | {memory:.0f} MiB |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
