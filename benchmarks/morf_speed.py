"""Deletion curves in forward passes: behind the patch embedding, by pixels, with tokens dropped.

    python benchmarks/morf_speed.py [--models vit_base_patch16_224 --images 4 --every 40]

The unit is the bare forward passes of as many images, at the batch size that ``Morf`` takes; 1.00
is the floor. Processor time on one thread, medians over runs side by side. Weights are untrained.
Patches go ``--every`` so many at a time, which makes what is done once for a curve weigh more than
it does with one patch a step (``--every 1``).
"""

from __future__ import annotations

import argparse
import statistics
import time

import timm
import torch
from infsa_metrics import deletion_curve, filled_once, pixel_fill

import infsa_explain.models  # noqa: F401  (registers the models)
from infsa_explain.evaluate import Morf
from infsa_explain.vits.tokens import drop_fill

MODELS = "infvit_linear_digits,infvit_pure_digits,vit_softmax_digits,vit_base_patch16_224"


def seconds(call) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def contenders(model, images, every):
    """What is timed, by name; the first is the unit."""
    grid = model.patch_embed.grid_size
    steps = [*range(0, grid[0] * grid[1], every), grid[0] * grid[1]]
    scores = torch.rand(len(images), *grid)
    targets = torch.zeros(len(images), dtype=torch.long)
    size, drop_size = (Morf(fill=fill).pass_size(model, images) for fill in ("mean", "drop"))

    def curve(inputs, predict, batch_size):
        chosen = {"steps": steps, "batch_size": batch_size}
        return deletion_curve(predict, inputs, targets, scores, **chosen)

    def forwards(batch_size):
        passes = len(images) * len(steps)
        batch = images.repeat(-(-batch_size // len(images)), 1, 1, 1)[:batch_size]
        for start in range(0, passes, batch_size):
            model(batch[: passes - start])

    return {
        f"forward passes, {size} images each": lambda: forwards(size),
        "forward passes, 64 images each": lambda: forwards(64),
        "curve": lambda: curve(*filled_once(model, images), size),
        "curve by pixels": lambda: curve(images, pixel_fill(model), size),
        "curve by pixels, 64 images a pass": lambda: curve(images, pixel_fill(model), 64),
        "curve, drop": lambda: curve(images, drop_fill(model), drop_size),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, timm {timm.__version__}, {arguments.images} images")
    for name in arguments.models.split(","):
        torch.manual_seed(0)
        model = timm.create_model(name).eval()
        images = torch.randn(arguments.images, 3, *model.patch_embed.img_size)
        calls = contenders(model, images, arguments.every)
        with torch.no_grad():
            runs = [[seconds(call) for call in calls.values()] for _ in range(arguments.runs)]
        for label, *times in zip(calls, *runs, strict=True):
            ratio = statistics.median(t / run[0] for t, run in zip(times, runs, strict=True))
            print(
                f"{name:22} {label:34} {statistics.median(times):7.2f} s {ratio:6.2f}", flush=True
            )


if __name__ == "__main__":
    main()
