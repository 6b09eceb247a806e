"""Linear-InfSA: the layer against its textbook form, which forms every key, value and output.

    python benchmarks/linear_speed.py [--threads 1]

The textbook is the released layer: queries, keys, values and output are projected at every token,
by PyTorch's own product. Its second column multiplies by the library that ours does, oneDNN on CPUs
with AVX512, so that the ratio is the algebra's alone; the third is one bare N×D by D×D product,
which ours cannot do without. Same weights, float32; medians of several runs side by side. A step is
forward and backward.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor
from torch.nn.functional import linear
from turns import take_turns, versions

from infsa_explain.attention import onednn
from infsa_explain.attention.layers import LinearInfSA, linear_infsa

RUNS = 15


def textbook(layer: LinearInfSA, x: Tensor, product=linear) -> Tensor:
    parts = zip(layer.qkv.weight.chunk(3), layer.qkv.bias.chunk(3), strict=True)
    q, k, v = (
        product(x, weight, bias).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        for weight, bias in parts
    )
    heads = linear_infsa(q, k, v, layer.gamma).transpose(1, 2).flatten(2)
    return product(heads, layer.proj.weight, layer.proj.bias)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    print(f"{versions('torch')}, {torch.get_num_threads()} thread(s); ratios are to ours")
    print(f"{torch.backends.cpu.get_cpu_capability()}; oneDNN: {onednn.usable(torch.ones(1))}")
    columns = "N (batch)", "ours", "textbook", "same library", "bare product", "step", "textbook"
    print(f"| {' | '.join(columns)} | difference |\n|{' --: |' * 8}")
    width, heads = 1024, 64
    for batch, tokens in ((1, 197), (8, 197), (1, 1025), (1, 4097)):
        torch.manual_seed(0)
        layer = LinearInfSA(width, heads, qkv_bias=True).eval()
        x = torch.randn(batch, tokens, width)
        weight, bias = (p[:width].detach() for p in (layer.qkv.weight, layer.qkv.bias))
        with torch.no_grad():
            error = (layer(x) - textbook(layer, x)).abs().max()
            calls = {
                "ours": lambda: layer(x),  # noqa: B023
                "textbook": lambda: textbook(layer, x),  # noqa: B023
                "same library": lambda: textbook(layer, x, onednn.projection),  # noqa: B023
                "bare product": lambda: onednn.projection(x, weight, bias),  # noqa: B023
            }
            (ours, _), *others = take_turns(calls, RUNS).values()
        inputs = x.requires_grad_(), *layer.parameters()
        steps = {
            "ours": lambda: torch.autograd.grad(layer(x).sum(), inputs),  # noqa: B023
            "textbook": lambda: torch.autograd.grad(textbook(layer, x).sum(), inputs),  # noqa: B023
        }
        (our_step, _), (_, step) = take_turns(steps, RUNS).values()
        ratios = " | ".join(f"{ratio:.2f}×" for _, ratio in others)
        print(
            f"| {tokens:,} ({batch}) | {1e3 * ours:.1f} ms | {ratios} | {1e3 * our_step:.0f} ms "
            f"| {step:.1f}× | {error:.0e} |"
        )


if __name__ == "__main__":
    main()
