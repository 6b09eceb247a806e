"""A full deletion curve, one patch a step, beside Quantus' RegionPerturbation and a plain loop.

    python benchmarks/morf_peers.py [--model infvit_linear_digits --images 8 --runs 3]

All remove the same patches in the same order, fill them with zeros (the mean, after
normalisation) and give the same probabilities, whose largest difference is printed. Quantus runs
one pass a step for all images (patch_size is the model's, regions_evaluation all patches); the
loop is what one writes without a library, one image after the other, all steps of it in passes of
64. The unit is the bare forward passes of as many images, at the batch size that `Morf` takes.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import timm
import torch
from infsa_metrics import deletion_curve, filled_once
from turns import optional, report, versions

import infsa_explain.models  # noqa: F401  (registers the models)
from infsa_explain.evaluate import Morf


def loop(model, images, targets, scores, batch_size=64):
    """Probabilities (B, P + 1)."""
    side = images.shape[-1] // scores.shape[-1]
    curves = []
    for image, target, score in zip(images, targets, scores, strict=True):
        steps = [image]
        for patch in score.flatten().argsort(descending=True).tolist():
            row, column = (side * x for x in divmod(patch, scores.shape[-1]))
            steps.append(steps[-1].clone())
            steps[-1][:, row : row + side, column : column + side] = 0
        batches = torch.stack(steps).split(batch_size)
        curves.append(torch.cat([model(batch).softmax(-1)[:, target] for batch in batches]))
    return torch.stack(curves)


def quantus_curve(quantus, model, images, targets, scores):
    """What probabilities fall by, (B, P)."""
    side = images.shape[-1] // scores.shape[-1]
    metric = quantus.RegionPerturbation(
        patch_size=side,
        regions_evaluation=scores[0].numel(),
        perturb_baseline=0.0,
        normalise=False,
        disable_warnings=True,
    )
    maps = scores.repeat_interleave(side, 1).repeat_interleave(side, 2)[:, None]
    return np.array(
        metric(model, images.numpy(), targets.numpy(), maps.numpy(), softmax=True, device="cpu")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="infvit_linear_digits")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = timm.create_model(options.model).eval()
    images = torch.randn(options.images, 3, *model.patch_embed.img_size)
    scores = torch.rand(options.images, *model.patch_embed.grid_size)
    size = Morf().pass_size(model, images)

    @torch.no_grad()
    def forwards():
        passes = options.images * (scores[0].numel() + 1)
        batch = images.repeat(-(-size // len(images)), 1, 1, 1)[:size]
        for start in range(0, passes, size):
            model(batch[: passes - start])

    with torch.no_grad():
        targets = model(images).argmax(-1)

        def curve():
            inputs, predict = filled_once(model, images)
            return deletion_curve(predict, inputs, targets, scores, batch_size=size)

        ours = curve().probabilities
        print(f"{versions('torch', 'timm')}; {options.model}, {options.images} images")
        difference = (loop(model, images, targets, scores) - ours).abs().max()
        print(f"largest difference of probabilities: loop {difference:.0e}")
        calls = {
            f"forward passes, {size} images each": forwards,
            "ours": curve,
            "plain loop": torch.no_grad()(lambda: loop(model, images, targets, scores)),
        }
        if quantus := optional("quantus"):
            warnings.filterwarnings("ignore", module="quantus")
            given = quantus, model, images, targets, scores
            fall = torch.from_numpy(quantus_curve(*given))
            difference = (ours[:, :1] - ours[:, 1:] - fall).abs().max()
            print(f"largest difference of probabilities: Quantus {difference:.0e}")
            calls["Quantus RegionPerturbation"] = lambda: quantus_curve(*given)
        report(calls, options.runs)


if __name__ == "__main__":
    main()
