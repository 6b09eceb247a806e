"""Average precision and ROC-AUC of a batch of maps beside scikit-learn and torchmetrics.

    python benchmarks/localization_speed.py [--maps 64 --size 224]

scikit-learn is called map by map, torchmetrics map by map and with every map a label of its own
(``multilabel``). Values agree, and the largest difference is printed. Ratios are to ours.
"""

from __future__ import annotations

import argparse

import torch
from infsa_metrics import average_precision, box_mask, roc_auc
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor
from torch.nn.functional import interpolate
from turns import optional, report, versions


def batch(maps: int, size: int) -> tuple[Tensor, Tensor]:
    """Random 14×14 maps, upsampled as heat maps are, and one random box around the middle each."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(maps, 1, 14, 14, generator=generator)
    scores = interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False)[:, 0]
    boxes = torch.rand(maps, 4, generator=generator) * 0.4 * size
    boxes[:, 2:] += 0.6 * size
    return scores, torch.stack([box_mask(box[None], size, size) for box in boxes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--maps", type=int, default=64)
    parser.add_argument("--size", type=int, default=224, help="pixels a side")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    scores, mask = batch(args.maps, args.size)
    rows = [(s.flatten().numpy(), m.flatten().numpy()) for s, m in zip(scores, mask, strict=True)]
    print(f"{versions('torch', 'scikit-learn')}; {args.maps} maps of {args.size}×{args.size}")
    torchmetrics = optional("torchmetrics")
    for ours, theirs in ((average_precision, average_precision_score), (roc_auc, roc_auc_score)):
        calls = {
            f"{ours.__name__}, ours": lambda: ours(scores, mask),  # noqa: B023
            "scikit-learn": lambda: torch.tensor([theirs(m, s) for s, m in rows]),  # noqa: B023
        }
        if torchmetrics:
            name = "average_precision" if ours is average_precision else "auroc"
            binary, multilabel = (
                getattr(torchmetrics.functional.classification, f"{kind}_{name}")
                for kind in ("binary", "multilabel")
            )
            calls["torchmetrics"] = lambda: torch.stack(
                [binary(s, m.long()) for s, m in zip(scores, mask, strict=True)]  # noqa: B023
            )
            labels = scores.flatten(1).T, mask.flatten(1).T.long(), args.maps
            calls["torchmetrics, multilabel"] = lambda: multilabel(*labels, average="none")  # noqa: B023
        found = [call().double() for call in calls.values()]
        difference = max((other - found[0]).abs().max().item() for other in found[1:])
        print(f"largest difference {difference:.0e}")
        report(calls, args.rounds, "  ")


if __name__ == "__main__":
    main()
