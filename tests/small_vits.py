"""Small ViTs of every kind of attention to test with, and attention that is formed."""

from __future__ import annotations

import timm
import torch
from timm.models import VisionTransformer
from torch import nn

import infsa_explain.models  # noqa: F401  (registers the models)
from infsa_explain.attention.layers import LinearInfSA, PureInfSA

NAMES = {
    "linear": "infvit_linear_digits",
    "pure": "infvit_pure_digits",
    "softmax": "vit_softmax_digits",
}
#: A class token, which the classifier reads, and two registers.
PREFIX = {"class_token": True, "global_pool": "token", "reg_tokens": 2}
#: Patches alone, which the classifier pools.
PATCHES = {"class_token": False, "global_pool": "avg", "reg_tokens": 0}


def build(kind, **kwargs):
    """Three layers of eight heads on 4×4 patches, with graphs far from uniform."""
    torch.manual_seed(0)
    arguments = {"img_size": 32, "embed_dim": 96, "depth": 3, **PREFIX, **kwargs}
    model = timm.create_model(NAMES[kind], **arguments)
    with torch.no_grad():
        model.pos_embed.normal_()
        for block in model.blocks:
            block.attn.qkv.weight.normal_(std=0.2)
            if kind != "softmax":
                block.attn.gamma_logit.copy_(torch.linspace(-1, 3, 8))
    return model.eval()


def small_vit(**arguments):
    """timm's own ViT, two layers on 4×4 patches, every weight away from its start."""
    torch.manual_seed(0)
    shape = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
    model = VisionTransformer(**shape | {"num_classes": 10} | arguments).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return model


def images(batch=2, height=32, width=32):
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(1))


def explicit_attention(kind, found):
    """o = A v with A formed, as nobody does who fuses: A, v and the gradient of A are kept."""

    def attend(q, k, v, gamma=None, scale=None):
        products = q @ k.transpose(-2, -1)
        if kind == "softmax":
            matrix = torch.softmax(products * (scale or q.shape[-1] ** -0.5), -1)
        elif kind == "pure":
            affinity = torch.relu(products / q.shape[-1])
            norm = affinity.square().sum((-2, -1), keepdim=True).sqrt()
            matrix = gamma.view(-1, 1, 1) * affinity / (norm + 1e-6)
        else:
            energy = q.norm(dim=-1, keepdim=True)
            central = (energy * q).sum(-2, keepdim=True) / energy.sum(-2, keepdim=True)
            scores = torch.relu(central @ k.transpose(-2, -1) / q.shape[-1])
            weights = scores / (scores.sum(-1, keepdim=True) + 1e-6)
            matrix = (gamma.view(-1, 1, 1) * weights).expand_as(products).clone()
        if q.shape == k.shape:  # and no pooling by attention
            matrix.retain_grad()
            found.append((matrix, v))
        return matrix @ v

    return attend


def attend_by(attend, kind, model, monkeypatch):
    """Let every layer of a model attend by this function of q, k, v and γ."""
    if kind == "softmax":
        monkeypatch.setattr(
            nn.functional,
            "scaled_dot_product_attention",
            lambda q, k, v, *_, scale=None, **__: attend(q, k, v, scale=scale),
        )
    for module in model.modules():
        if isinstance(module, PureInfSA | LinearInfSA):
            module.heads = lambda x, module=module: attend(
                *module.queries_keys_values(x), module.gamma
            )
        elif hasattr(module, "attend"):
            module.attend = lambda q, k, v, module=module: attend(q, k, v, module.gamma)


def attention_and_gradients(model, kind, x, targets, monkeypatch):
    """A and ∂y/∂A of every layer of a model in float64, (B, H, N, N) each, in numpy.

    The model is left with attention that is formed.
    """
    found = []
    with monkeypatch.context() as patched:
        attend_by(explicit_attention(kind, found), kind, model, patched)
        logits = model(x)
        logits[range(len(x)), targets].sum().backward()
    return [(matrix.detach().numpy(), matrix.grad.numpy()) for matrix, _ in found]
