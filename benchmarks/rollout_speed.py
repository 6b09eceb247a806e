"""Attention rollout beside one through timm's `AttentionExtract`.

    python benchmarks/rollout_speed.py [--models vit_tiny_patch16_224 vit_base_patch16_224]

The peer reads attention maps by timm's own tool, from its traced graph and by hooks, with fused
attention off, as the tool needs it, and multiplies them out. Time is from images to maps, of a
tool made before. Untrained weights; maps agree, and the largest difference is printed.
"""

from __future__ import annotations

import argparse

import timm
import torch
from timm.layers import set_fused_attn
from timm.utils import AttentionExtract
from torch import Tensor
from turns import report, versions

from infsa_explain import explain


def rollout(maps: list[Tensor], class_token: bool) -> Tensor:
    """Π ½(A + I) of attention maps (B, H, N, N), as the classifier sees it: (B, N)."""
    identity = torch.eye(maps[0].shape[-1])
    flow = identity
    for attention in maps:
        flow = (attention.mean(1) + identity) / 2 @ flow
    return flow[:, 0] if class_token else flow.mean(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models", nargs="+", default=["vit_tiny_patch16_224", "vit_base_patch16_224"]
    )
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{versions('torch', 'timm')}; {options.images} images")
    for name in options.models:
        set_fused_attn(True)
        torch.manual_seed(0)
        model = timm.create_model(name).eval()
        set_fused_attn(False)
        plain = timm.create_model(name).eval()
        plain.load_state_dict(model.state_dict())
        images = torch.randn(options.images, 3, *model.patch_embed.img_size)
        class_token = model.num_prefix_tokens > 0
        calls = {"ours": lambda: explain(model, images, "rollout").tokens}  # noqa: B023
        for method in ("fx", "hook"):
            tool = AttentionExtract(plain, method=method)

            @torch.no_grad()
            def through_timm(tool=tool, images=images, class_token=class_token):
                return rollout(list(tool(images).values()), class_token)

            calls[f"AttentionExtract, {method}"] = through_timm
        ours, *theirs = (call() for call in calls.values())
        ratio = max(((found - ours).abs().max() / ours.max()).item() for found in theirs)
        print(f"{name}, largest difference {ratio:.0e} of the largest score")
        report(calls, options.runs, "  ")


if __name__ == "__main__":
    main()
