"""A ViT that computes in pieces at inference, so that large images fit in memory.

Without gradients, only the N tokens and their projections in one attention layer take memory
proportional to N. Patches are embedded in strips of the image, position embeddings are resampled in
groups of channels, and MLPs take groups of tokens. Up to :data:`CHUNK` tokens, and in training,
timm's own code runs. Outputs agree up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from timm.layers.patch_embed import PatchEmbed
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

__all__ = ["PiecewiseBlock", "PiecewisePatchEmbed", "PiecewiseVisionTransformer"]

#: Tokens per piece.
CHUNK = 4096
#: Channels of a position embedding per piece.
CHANNELS = 64


def in_pieces(module: nn.Module, tokens: int) -> bool:
    """Whether a module computes in pieces: at inference, with more than CHUNK tokens."""
    return tokens > CHUNK and not module.training and not torch.is_grad_enabled()


class PiecewiseBlock(Block):
    """timm's ``Block``, whose second norm and MLP take at most CHUNK tokens at a time."""

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Tokens (B, N, D) to (B, N, D)."""
        if not in_pieces(self, x.shape[1]):
            out: Tensor = super().forward(x, attn_mask=attn_mask, is_causal=is_causal)
            return out
        x = x + self.ls1(self.attn(self.norm1(x), attn_mask=attn_mask, is_causal=is_causal))
        for tokens in torch.split(x, CHUNK, dim=1):
            tokens += self.ls2(self.mlp(self.norm2(tokens)))
        return x


class PiecewisePatchEmbed(PatchEmbed):
    """timm's ``PatchEmbed``, which embeds a large image strip by strip.

    Only in models with ``dynamic_img_size``, where its output is (B, gh, gw, D).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, 3, H, W) to patches."""
        gh, gw = self.dynamic_feat_size((x.shape[2], x.shape[3]))
        embed: Callable[[Tensor], Tensor] = super().forward
        if self.flatten or self.strict_img_size or not in_pieces(self, gh * gw):
            return embed(x)
        strips = torch.split(x, max(1, CHUNK // gw) * self.patch_size[0], dim=2)
        patches = torch.cat([embed(strip).flatten(1, 2) for strip in strips], dim=1)
        return patches.view(len(x), gh, gw, -1)


class PiecewiseVisionTransformer(VisionTransformer):
    """timm's ``VisionTransformer`` with these parts, and the same arguments and weights."""

    def __init__(self, **kwargs: Any) -> None:
        parts = {"block_fn": PiecewiseBlock, "embed_layer": PiecewisePatchEmbed}
        super().__init__(**{**parts, **kwargs})

    def forward_features(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Images (B, 3, H, W) to token features (B, N, D), block by block in inference.

        ``nn.Sequential`` would keep the input of the first block in memory. It is only called if
        it has a hook.
        """
        hooked = self.blocks._forward_hooks or self.blocks._forward_pre_hooks
        masked = attn_mask is not None or is_causal
        if self.training or torch.is_grad_enabled() or hooked or masked:
            features: Tensor = super().forward_features(x, attn_mask, is_causal)
            return features
        x = self.norm_pre(self.patch_drop(self._pos_embed(self.patch_embed(x))))
        for block in self.blocks:
            x = block(x)
        normed: Tensor = self.norm(x)
        return normed

    def _pos_embed(self, x: Tensor) -> Tensor:
        """Prefix tokens and position embedding: patches (B, gh, gw, D) to tokens (B, N, D)."""
        if x.ndim != 4 or self.pos_embed is None or not in_pieces(self, x[0, :, :, 0].numel()):
            whole: Tensor = super()._pos_embed(x)
            return whole
        prefix = [token.expand(len(x), -1, -1) for token in self._prefix()]
        tokens = torch.cat([*prefix, x.flatten(1, 2)], dim=1)
        embedded = 0 if self.no_embed_class else self.num_prefix_tokens
        first = self.num_prefix_tokens - embedded
        for channels, embedding in zip(
            torch.split(tokens[:, first:], CHANNELS, dim=-1),
            torch.split(self.pos_embed, CHANNELS, dim=-1),
            strict=True,
        ):
            old = self.patch_embed.grid_size
            channels += resample_abs_pos_embed(embedding, x.shape[1:3], old, embedded)
        out: Tensor = self.pos_drop(tokens)
        return out

    def _prefix(self) -> list[Tensor]:
        """The class token and the registers, if the model has them."""
        return [token for token in (self.cls_token, self.reg_token) if token is not None]
