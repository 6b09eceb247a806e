"""Linear-InfSA: the layer against its textbook form, which forms every key, value and output.

    python tests/bench/linear_speed.py [--threads 1]

Both have the same weights; medians of several runs, side by side, and the ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor

from infsa_explain.attention import LinearInfSA, linear_infsa

RUNS = 9


def textbook(layer: LinearInfSA, x: Tensor) -> Tensor:
    q, k, v = layer.queries_keys_values(x)
    return layer.proj(linear_infsa(q, k, v, layer.gamma).transpose(1, 2).flatten(2))


def seconds(call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    print("| N | D | heads | textbook | ours | ratio | largest difference |")
    print("| --: | --: | --: | --: | --: | --: | --: |")
    for tokens, width, heads in ((197, 1024, 64), (1025, 1024, 64), (4097, 1024, 64)):
        torch.manual_seed(0)
        layer, x = LinearInfSA(width, heads, qkv_bias=True).eval(), torch.randn(1, tokens, width)
        with torch.no_grad():
            error = (layer(x) - textbook(layer, x)).abs().max()
            times = [
                (seconds(lambda: textbook(layer, x)), seconds(lambda: layer(x)))  # noqa: B023
                for _ in range(RUNS)
            ]
        slow, fast = (statistics.median(column) for column in zip(*times, strict=True))
        ratio = statistics.median(a / b for a, b in times)
        print(
            f"| {tokens} | {width} | {heads} | {1e3 * slow:.1f} ms | {1e3 * fast:.1f} ms "
            f"| {ratio:.1f} | {error:.0e} |"
        )


if __name__ == "__main__":
    main()
