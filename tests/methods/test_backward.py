"""The backward pass: what it leaves alone, when it runs, and what it refuses.

That ∂y/∂A is right is tried on every family in ``test_families.py``.
"""

from __future__ import annotations

import gc

import pytest
import torch
from small_vits import NAMES, build, images
from torch import nn

from infsa_explain.methods import MethodNotApplicable, explain, explain_graphs, get_method
from infsa_explain.methods.backward import _LATEST, gradients
from infsa_explain.vits import Reading, register_attention, registry
from infsa_explain.vits.capturing import capture

CLASSES = torch.tensor([3, 7])


@pytest.fixture(params=NAMES)
def kind(request):
    return request.param


def count_passes(model):
    """A list that grows with every forward pass."""
    passes = []
    model.register_forward_hook(lambda *_: passes.append(1))
    return passes


def close(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        for name in ("tokens", "tokens_gradient", "output_gradient"):
            torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=1e-6)
        for mine, theirs in zip(one.heads(), other.heads(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
            assert not mine.requires_grad


@pytest.mark.parametrize(
    "around",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["no_grad", "inference_mode", "autocast"],
)
def test_the_state_around_plays_no_part(kind, around):
    model = build(kind)
    expected = gradients(capture(model, images()), CLASSES)
    with around():
        graphs = capture(model, images())
        close(gradients(graphs, CLASSES), expected)
    assert expected[0].output_gradient.abs().max() > 1e-3


def test_frozen_parameters_are_no_obstacle(kind):
    model = build(kind)
    expected = gradients(capture(model, images()), CLASSES)
    close(gradients(capture(model.requires_grad_(False), images()), CLASSES), expected)
    assert not any(p.requires_grad for p in model.parameters())


def test_checkpointed_blocks_are_no_obstacle(kind):
    """timm's run again in the backward pass, where nothing watches any more."""
    model = build(kind)
    expected = gradients(capture(model, images()), CLASSES)
    model.set_grad_checkpointing()
    close(gradients(capture(model, images()), CLASSES), expected)


def test_gradients_that_were_there_stay(kind):
    model = build(kind).train()
    model(images()).sum().backward()
    before = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    x = images().requires_grad_()
    gradients(capture(model, x), CLASSES)[0].heads()
    assert x.grad is None
    assert model.training
    for name, p in model.named_parameters():
        assert (p.grad is None) == (name not in before)
        assert p.grad is None or torch.equal(p.grad, before[name])


def test_hooks_are_removed_after_an_exception(kind):
    model = build(kind)
    graphs = capture(model, images())

    def fail(*_):
        raise RuntimeError("on purpose")

    handle = model.blocks[1].mlp.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        gradients(graphs, CLASSES)
    handle.remove()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_one_pass_for_all_methods_and_layers_of_a_target(kind):
    model = build(kind)
    passes = count_passes(model)
    graphs = capture(model, images())
    for method in ("gradient-visits", "gradient-degree", "relevance", "gradcam"):
        explain_graphs(graphs, get_method(method), layer="mean", target=[3, 7])
    assert len(passes) == 2
    explain_graphs(graphs, get_method("relevance"), target=3)
    assert len(passes) == 3


def test_nothing_is_kept_when_the_graphs_are_gone():
    graphs = capture(build("pure"), images())
    before = len(_LATEST)
    gradients(graphs, CLASSES)
    assert len(_LATEST) == before + 1
    del graphs
    gc.collect()
    assert len(_LATEST) == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_precision(kind, dtype):
    """float64 stays so; what a bfloat16 model gives is carried on in float32."""
    passed = gradients(capture(build(kind).to(dtype), images().to(dtype)), CLASSES)[1]
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    assert {x.dtype for x in passed.heads()} == {expected}
    truth = gradients(capture(build(kind), images()), CLASSES)[1]
    for mine, theirs in zip(passed.heads(), truth.heads(), strict=True):
        error = (mine.float() - theirs).norm() / theirs.norm()
        assert error < (1e-5 if dtype == torch.float64 else 0.2)


class Undifferentiable(nn.Module):
    def __init__(self, vit):
        super().__init__()
        self.vit, self.patch_embed = vit, vit.patch_embed

    @torch.no_grad()
    def forward(self, x):
        return self.vit(x)


def test_a_model_whose_output_has_no_gradient():
    model = Undifferentiable(build("softmax", class_token=False, reg_tokens=0, global_pool="avg"))
    with pytest.raises(ValueError, match="no gradient passes through layer vit.blocks.0.attn"):
        explain(model, images(), "gradcam")


def test_a_layer_that_does_not_say_what_its_values_are(monkeypatch):
    monkeypatch.setattr(registry, "ATTENTION", [*registry.ATTENTION])
    model = build("softmax")

    class Own(type(model.blocks[1].attn)):
        pass

    model.blocks[1].attn.__class__ = Own

    @register_attention(Own, "softmax")
    def read(module, x):
        q = x[:, None].expand(-1, 8, -1, -1)
        return Reading(q, q)

    explain(model, images(), "gradcam")  # needs none
    explain(model, images(), "gradient-visits")  # of the last layer
    message = "the gradient of attention cannot be had in layer blocks.1.attn: its Reading has no"
    for method, options in (("relevance", {}), ("gradient-visits", {"layer": 1})):
        with pytest.raises(MethodNotApplicable, match=message):
            explain(model, images(), method, **options)
