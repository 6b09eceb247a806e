"""Time and peak memory of large images: inference, a training step, and maps.

    python benchmarks/any_size.py inference --size 9216
    python benchmarks/any_size.py step --size 4096
    python benchmarks/any_size.py map --size 4096

One image of normal noise, batch 1, float32, by default of ``infvit_linear_4l``, untrained, whose
position embedding is resampled. A step is AdamW's, with activation checkpointing
(timm's ``set_grad_checkpointing``); a map is ``explain(model, image, method="linear")``. Memory is
the largest resident set of the process, the libraries and the image included; a run prints one
line, and a second size wants a second process.
"""

from __future__ import annotations

import argparse
import resource
import time

import torch
from torch import Tensor, nn

import infsa_explain


def inference(model: nn.Module, image: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval()(image)


def step(model: nn.Module, image: Tensor) -> Tensor:
    model.train().set_grad_checkpointing()
    optimiser = torch.optim.AdamW(model.parameters())
    loss = nn.functional.cross_entropy(model(image), torch.tensor([0]))
    loss.backward()
    optimiser.step()
    return loss.detach()


def explain(model: nn.Module, image: Tensor) -> Tensor:
    return infsa_explain.explain(model.eval(), image, method="linear").maps


WORK = {"inference": inference, "step": step, "map": explain}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", choices=WORK)
    parser.add_argument("--size", type=int, default=2048, help="pixels a side")
    parser.add_argument("--model", default="infvit_linear_4l")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = infsa_explain.load(options.model, pretrained=False, dynamic_img_size=True)
    parameters = sum(p.numel() for p in model.parameters())
    image = torch.randn(1, 3, options.size, options.size)
    began = time.perf_counter()
    result = WORK[options.work](model, image)
    taken = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{options.model}, {parameters / 1e6:.1f}M parameters, {options.work} at "
        f"{options.size}×{options.size}: {taken:.0f} s, peak {peak:.2f} GiB, "
        f"{options.threads} thread(s), PyTorch {torch.__version__}, "
        f"result finite: {bool(result.isfinite().all())}"
    )


if __name__ == "__main__":
    main()
