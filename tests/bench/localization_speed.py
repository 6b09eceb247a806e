"""Average precision and ROC-AUC of a batch of maps against a loop over scikit-learn.

Run as ``python tests/bench/localization_speed.py``. The two take turns in one process, so that
whatever else the machine does weighs on both; the times are medians over the rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from infsa_metrics import average_precision, box_mask, roc_auc
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor
from torch.nn.functional import interpolate


def batch(maps: int, size: int) -> tuple[Tensor, Tensor]:
    """Random 14×14 maps, upsampled as heat maps are, and one random box around the middle each."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(maps, 1, 14, 14, generator=generator)
    scores = interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False)[:, 0]
    boxes = torch.rand(maps, 4, generator=generator) * 0.4 * size
    boxes[:, 2:] += 0.6 * size
    return scores, torch.stack([box_mask(box[None], size, size) for box in boxes])


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--maps", type=int, default=64)
    parser.add_argument("--size", type=int, default=224, help="pixels a side")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, help="of PyTorch; its own choice if not given")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)

    scores, mask = batch(args.maps, args.size)
    rows = [(s.flatten().numpy(), m.flatten().numpy()) for s, m in zip(scores, mask, strict=True)]
    print(f"{args.maps} maps of {args.size}×{args.size}, {torch.get_num_threads()} thread(s)")
    print(f"{'':20}{'ours':>10}{'sklearn':>10}{'ratio':>8}   ms a map, median of {args.rounds}")
    for ours, theirs in ((average_precision, average_precision_score), (roc_auc, roc_auc_score)):
        peers = (lambda: ours(scores, mask), lambda: [theirs(m, s) for s, m in rows])  # noqa: B023
        rounds = [[seconds(peer) for peer in peers] for _ in range(args.rounds)]
        a, b = (median(times) / args.maps * 1e3 for times in zip(*rounds, strict=True))
        print(f"{ours.__name__:20}{a:10.3f}{b:10.3f}{b / a:8.1f}")


if __name__ == "__main__":
    main()
