"""Deletion behind the patch embedding, where a removed patch changes one token and no other.

A plain patch embedding reads every patch alone. So the tokens of an image with some patches filled
are those of the fill at these patches and the image's own elsewhere, and both are computed once for
a whole deletion curve.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from infsa_metrics import FILLS, class_probabilities, pixel_fill
from infsa_metrics.deletion import PredictMasked
from infsa_metrics.outputs import Output, eval_mode
from timm.layers.format import Format
from timm.layers.patch_embed import PatchEmbed
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from ..models.any_size import PiecewisePatchEmbed
from ..models.infvit import InfViT
from ..vits.capturing import patch_grid
from ..vits.tokens import classify_kept, drop_fill

__all__ = ["embeds_patches_alone", "patch_fill"]

#: Models that show their images to the patch embedding and to nothing else.
KNOWN = (VisionTransformer, VisionTransformerDistilled, InfViT)


@torch.no_grad()
def patch_fill(
    model: nn.Module,
    images: Tensor,
    fill: str = "mean",
    *,
    output: Output = "auto",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    seed: int = 0,
) -> tuple[Tensor, PredictMasked]:
    """What a deletion curve of some images needs, with as little work a step as the model allows.

    Where :func:`embeds_patches_alone`, patches are embedded here, once; otherwise it is
    ``pixel_fill`` or :func:`~infsa_explain.vits.tokens.drop_fill`. The numbers are the same.

    Args:
        model: normalised images (B, 3, H, W) to logits (B, K).
        images: (B, 3, H, W).
        fill: ``"mean"``, ``"black"``, ``"blur"``, ``"noise"``, another name in
            ``infsa_metrics.FILLS``, or ``"drop"``.
        output, mean, std, seed: as ``pixel_fill`` takes them.

    Returns:
        ``inputs`` and ``predict_masked(inputs, removed)``, for ``deletion_curve`` to take in place
        of images and ``pixel_fill``. Inputs are the images themselves, or (B, 2, gh·gw, D): the
        patch embeddings of each image and of its fill.

    Raises:
        ValueError: for an unknown fill or what it lacks; on calling ``predict_masked``, for a mask
            that is not of the model's grid, or ``"drop"`` in another model than timm's
            ``VisionTransformer``.

    Example:
        >>> import infsa_explain
        >>> from infsa_metrics import deletion_curve
        >>> model, images = infsa_explain.load("infvit_linear_digits"), torch.rand(2, 3, 112, 112)
        >>> inputs, predict_masked = patch_fill(model, images, "mean")
        >>> inputs.shape
        torch.Size([2, 2, 196, 128])
        >>> scores, targets = torch.rand(2, 14, 14), torch.tensor([3, 8])
        >>> deletion_curve(predict_masked, inputs, targets, scores, steps=4).probabilities.shape
        torch.Size([2, 5])
    """
    if fill not in FILLS and fill != "drop":
        raise ValueError(f"unknown fill {fill!r}; one of {', '.join([*FILLS, 'drop'])}")
    if not embeds_patches_alone(model, images):
        if fill == "drop":
            return images, drop_fill(model, output)
        return images, pixel_fill(model, fill, output=output, mean=mean, std=std, seed=seed)
    body, grid = _behind_embedding(model), patch_grid(model, images)
    replace = FILLS["mean" if fill == "drop" else fill](mean, std, seed)
    embed: Any = model.patch_embed
    pair = [embed(x) for x in (images, replace(images).expand_as(images))]
    places = pair[0].shape[1:-1]  # (gh·gw,), or (gh, gw) where the model resamples positions

    def predict_masked(inputs: Tensor, removed: Tensor) -> Tensor:
        if removed.shape != (len(inputs), *grid):
            expected = (len(inputs), *grid)
            raise ValueError(f"removed must be {expected}, got {tuple(removed.shape)}")
        clean, filled = inputs.reshape(len(inputs), 2, *places, -1).unbind(1)
        with eval_mode(body):
            if fill == "drop":
                logits = classify_kept(body, clean, filled, removed)
            else:
                at = removed.reshape(*clean.shape[:-1], 1)
                logits = body(torch.where(at, filled, clean))
        return class_probabilities(logits, output)

    return torch.stack(pair, 1).flatten(2, -2), predict_masked


def embeds_patches_alone(model: nn.Module, images: Tensor) -> bool:
    """Whether every patch of these images becomes a token of its own, and that is all of them.

    So it is in a timm Vision Transformer (InfViTs among them) whose patch embedding is a
    convolution with a stride of its size, normed at most token by token, if images are whole
    patches and nobody hooked in or replaced what would be passed by.
    """
    embed: Any = getattr(model, "patch_embed", None)
    if type(model) not in KNOWN or type(embed) not in (PatchEmbed, PiecewisePatchEmbed):
        return False
    convolution, patch = embed.proj, embed.patch_size
    return (
        type(convolution) is nn.Conv2d
        and convolution.kernel_size == convolution.stride == patch
        and convolution.padding == (0, 0)
        and convolution.dilation == (1, 1)
        and isinstance(embed.norm, (nn.Identity, nn.LayerNorm))
        and (embed.flatten or embed.output_fmt == Format.NHWC)
        and all(size % side == 0 for size, side in zip(images.shape[-2:], patch, strict=True))
        and all(map(_as_written, (model, *embed.modules())))
    )


class _Embedded(nn.Identity):
    """In the place of a patch embedding whose work is done."""

    def __init__(self, grid_size: tuple[int, int]) -> None:
        super().__init__()
        self.grid_size = grid_size


def _behind_embedding(model: Any) -> nn.Module:
    """The model from its tokens on: a copy without patch embedding that shares all the rest."""
    body: nn.Module = copy.copy(model)
    body._modules = {**model._modules, "patch_embed": _Embedded(model.patch_embed.grid_size)}
    return body


def _as_written(module: nn.Module) -> bool:
    """Whether a call does what the module's class says and no more."""
    hooked = module._forward_hooks or module._forward_pre_hooks
    return not (hooked or module._compiled_call_impl or "forward" in vars(module))
