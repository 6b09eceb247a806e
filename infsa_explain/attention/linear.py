"""Linear-InfSA without forming keys and values: the outputs of its heads, and their gradients.

Every token receives the same Σ_j a_j v_j. So keys are multiplied by one query only, the central
query q̄ = Σ_j ‖q_j‖ q_j / E with E = Σ_j ‖q_j‖, and only a weighted sum of the values is needed:

    s_j = relu(q̄ k_j / d) = relu(u x_j + c),    u = W_kᵀ q̄ / d,  c = b_k q̄ / d
    z = Σ_j s_j x_j / (S + ε),  S = Σ_j s_j
    Σ_j a_j v_j = W_v z + b_v S / (S + ε)

These sums cost N·D·H, while W_k x and W_v x would cost N·D² each. Queries are formed, at N·D²,
since their norms are needed. Tokens are taken in chunks, so that memory stays bounded.

The gradients are as cheap. Writing ∂y for ∂L/∂y, with g = ∂(Σ_j a_j v_j):

    ∂W_v = g zᵀ,  ∂z = W_vᵀ g,  ∂(Σ s x) = ∂z / (S + ε),  ∂S = (ε b_v g / (S + ε) − z ∂z) / (S + ε)
    ∂s_j = x_j ∂(Σ s x) + ∂S where s_j > 0, else 0
    ∂u = Σ_j ∂s_j x_j,  ∂W_k = q̄ ∂uᵀ / d,  ∂q̄ = (W_k ∂u + b_k Σ_j ∂s_j) / d
    ∂q_j = (‖q_j‖ ∂q̄ + (q_j − q̄) ∂q̄ q_j / ‖q_j‖) / E,  ∂W_q = Σ_j ∂q_j x_jᵀ
    ∂x_j = W_qᵀ ∂q_j + s_j ∂(Σ s x) + ∂s_j u

which takes two more products of N·D². Autograd would read all tokens about a dozen times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .onednn import product, projection

__all__ = ["linear_heads"]

#: Tokens in a chunk, per thread on a CPU (their queries fit the cache) and in all elsewhere.
#: Memory does not grow with N in inference.
CHUNK, DEVICE_CHUNK = 512, 4096


def linear_heads(x: Tensor, weight: Tensor, bias: Tensor | None, heads: int, eps: float) -> Tensor:
    """Σ_j a_j v_j of Linear-InfSA, from tokens and the joint projection of q, k and v.

    Args:
        x: tokens, (B, N, D).
        weight: (3·H·d, D), of queries, then keys, then values.
        bias: (3·H·d,).
        heads: H.
        eps: ε, see :func:`infsa_explain.attention.functional.linear_weights`.

    Returns:
        (B, H, d), at least in float32. Gradients follow the formulas above. Second derivatives,
        forward-mode derivatives, mixed dtypes, autocast and ``torch.compile`` use autograd.

    >>> x, weight = torch.tensor([[[1.0], [3.0]]]), torch.ones(3, 1)
    >>> linear_heads(x, weight, None, heads=1, eps=0.0)  # a = (1/4, 3/4), v = (1, 3)
    tensor([[[2.5000]]])
    """
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    if _uses_formulas(x, weight, bias):
        values: Tensor = _LinearHeads.apply(x, weight, bias, heads, eps)
        return values
    return _forward(chunks(x), weight, bias, heads, eps)[0]


def chunks(x: Tensor, dim: int = 1) -> tuple[Tensor, ...]:
    """Split x into chunks of tokens along dimension ``dim``."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():  # it would unroll many chunks
        return torch.split(x, DEVICE_CHUNK, dim)
    return torch.split(x, CHUNK * torch.get_num_threads(), dim)


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32, or unchanged if it is float64."""
    return x if x.dtype == torch.float64 else x.float()


def _uses_formulas(x: Tensor, *parameters: Tensor) -> bool:
    """Whether gradients follow the formulas: first order, reverse mode, one dtype, no tracing."""
    return (
        torch.is_grad_enabled()
        and any(y.requires_grad for y in (x, *parameters))
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
        and not torch.is_autocast_enabled(x.device.type)
        and x.dtype in (torch.float32, torch.float64)
        and all(parameter.dtype == x.dtype for parameter in parameters)
    )


def _forward(
    x: Sequence[Tensor], weight: Tensor, bias: Tensor, heads: int, eps: float
) -> tuple[Tensor, ...]:
    """Σ a v, and for its gradients E, q̄, u, z, S + ε, and q and s of the last chunk of x."""
    w_q, b_q = weight.chunk(3)[0], bias.chunk(3)[0]
    energy = weighted = x[0].new_zeros((), dtype=torch.float32)
    for tokens in x:
        q = projection(tokens, w_q, b_q)
        q = q.view(*tokens.shape[:2], heads, -1)  # (B, n, H, d)
        with torch.autocast(q.device.type, enabled=False):
            q = at_least_float32(q)
            norm = torch.linalg.vector_norm(q, dim=-1, keepdim=True)
            energy = energy + norm.sum(1)
            weighted = weighted + (norm * q).sum(1)
    with torch.autocast(q.device.type, enabled=False):
        _, w_k, w_v = at_least_float32(weight).view(3, heads, q.shape[-1], -1)
        _, b_k, b_v = at_least_float32(bias).view(3, heads, -1)
        energy = energy.clamp_min(torch.finfo(energy.dtype).tiny)
        central = weighted / energy  # (B, H, d)
        u = torch.einsum("bhd,hdD->bhD", central, w_k) / q.shape[-1]
        c = torch.einsum("bhd,hd->bh", central, b_k) / q.shape[-1]
        total, summed = torch.zeros_like(c)[..., None], torch.zeros_like(u)
        for tokens in x:
            tokens = at_least_float32(tokens)
            scores = torch.relu(u @ tokens.mT + c[..., None])  # (B, H, n)
            total = total + scores.sum(-1, keepdim=True)
            summed = summed + scores @ tokens
        z = summed / (total + eps)
        values = torch.einsum("bhD,hdD->bhd", z, w_v) + total / (total + eps) * b_v
    return values, energy, central, u, z, total + eps, q, scores


class _LinearHeads(torch.autograd.Function):
    """Σ a v, with its gradients by the formulas of this module."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, heads: int, eps: float
    ) -> Tensor:
        values, *rest = _forward([x], weight, bias, heads, eps)
        ctx.save_for_backward(x, weight, bias, *rest)
        ctx.heads, ctx.eps = heads, eps
        return values

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return *_differentiable_gradients(ctx, g), None, None
        x, weight, bias, energy, central, u, z, total, q, scores = ctx.saved_tensors
        d = q.shape[-1]
        w_q, w_k, w_v = weight.view(3, *q.shape[2:], -1)  # (H, d, D)
        _, b_k, b_v = bias.view(3, *q.shape[2:])
        d_z = torch.einsum("bhd,hdD->bhD", g, w_v)
        d_summed = d_z / total
        d_total = ctx.eps / total * (b_v * g).sum(-1, keepdim=True)
        d_total = (d_total - (z * d_z).sum(-1, keepdim=True)) / total
        d_scores = torch.where(scores > 0, d_summed @ x.mT + d_total, 0)  # (B, H, N)
        d_u, d_c = d_scores @ x / d, d_scores.sum(-1, keepdim=True) / d
        d_central = torch.einsum("bhD,hdD->bhd", d_u, w_k) + d_c * b_k
        d_weighted = (d_central / energy)[:, None]
        norm = torch.linalg.vector_norm(q, dim=-1, keepdim=True)
        d_norm = (q * d_weighted).sum(-1, True) - (central[:, None] * d_weighted).sum(-1, True)
        d_q = torch.addcmul(norm * d_weighted, torch.where(norm > 0, d_norm / norm, 0), q)
        d_q = d_q.flatten(2)
        d_x = d_weight = d_bias = None
        if ctx.needs_input_grad[0]:
            d_x = projection(d_q, w_q.flatten(0, 1).mT)
            both = torch.cat([scores, d_scores], 1).mT, torch.cat([d_summed, u], 1)
            torch.baddbmm(d_x, *both, out=d_x)
        if any(ctx.needs_input_grad[1:3]):
            d_weight = torch.empty_like(weight)
            d_w_q, d_w_k, d_w_v = d_weight.view(3, *q.shape[2:], -1)
            product(d_q.flatten(0, 1).mT, x.flatten(0, 1), out=d_w_q.flatten(0, 1))
            torch.bmm(central.permute(1, 2, 0), d_u.transpose(0, 1), out=d_w_k)
            torch.bmm(g.permute(1, 2, 0), z.transpose(0, 1), out=d_w_v)
            d_b_k, d_b_v = (central * d_c).sum(0), (g * (1 - ctx.eps / total)).sum(0)
            d_bias = torch.cat([d_q.sum((0, 1)), d_b_k.flatten(), d_b_v.flatten()])
        return d_x, d_weight, d_bias, None, None


def _differentiable_gradients(ctx: Any, g: Tensor) -> list[Tensor | None]:
    """∂x, ∂weight and ∂bias by autograd, so that they can be differentiated again."""
    x, weight, bias, *_ = ctx.saved_tensors
    wanted = ctx.needs_input_grad[:3]
    values = _forward(chunks(x), weight, bias, ctx.heads, ctx.eps)[0]
    inputs = [y for y, want in zip((x, weight, bias), wanted, strict=True) if want]
    gradients = iter(torch.autograd.grad(values, inputs, g, create_graph=True))
    return [next(gradients) if want else None for want in wanted]
