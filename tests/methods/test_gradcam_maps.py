"""Grad-CAM against its two equations, with the gradient that PyTorch keeps of a norm's output."""

from __future__ import annotations

import numpy as np
import pytest
from small_vits import NAMES, PATCHES, build, images

from infsa_explain.methods import explain


@pytest.mark.parametrize("layer", [0, 1, -1])
@pytest.mark.parametrize("variant", [{}, PATCHES], ids=["class token", "patches"])
@pytest.mark.parametrize("kind", NAMES)
def test_gradcam_by_hand(kind, variant, layer):
    """α_c = mean over patches of ∂y/∂x_c; relu(Σ_c α_c x_c), scaled to sum 1 over the patches."""
    model, x = build(kind, **variant).double(), images().double()
    result = explain(model, x, "gradcam", layer=layer, target=[3, 7])
    assert result.heads is None
    with pytest.raises(ValueError, match="head must be left out for gradcam, which has no heads"):
        explain(model, x, "gradcam", layer=layer, head=5, target=[3, 7])
    kept = []

    def keep(module, args, output):
        output.retain_grad()
        kept.append(output)

    model.blocks[layer].norm1.register_forward_hook(keep)
    model(x)[[0, 1], [3, 7]].sum().backward()
    tokens, slope = kept[0].detach().numpy(), kept[0].grad.numpy()
    prefix = model.num_prefix_tokens
    alpha = slope[:, prefix:].mean(1)
    assert np.abs(alpha).max() > 1e-5
    scores = np.maximum(np.einsum("bc,bnc->bn", alpha, tokens), 0)
    assert (scores == 0).any()
    scores = scores / scores[:, prefix:].sum(-1, keepdims=True)
    np.testing.assert_allclose(result.tokens.numpy(), scores, rtol=1e-5, atol=1e-9)
