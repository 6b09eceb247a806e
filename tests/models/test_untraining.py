"""The cascade: what each stage makes random, and what it leaves exactly as it was."""

from __future__ import annotations

import copy
import types

import numpy as np
import pytest
import timm
import torch
from infsa_metrics import rank_correlation, ssim
from supported_models import support_table
from timm.layers.attention import Attention
from timm.models import VisionTransformer
from torch import nn

from infsa_explain import explain, load, preprocess
from infsa_explain.models import untraining
from infsa_explain.models.infvit import InfViT
from infsa_explain.models.untraining import cascade, has_starts, parts, untrained
from infsa_explain.vits.blocks import blocks_of

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}

EXAMPLES = {example.name: example for example in support_table().EXAMPLES if not example.refused}
#: With a parameter of the head that the model holds itself, and a layer before the classifier.
ACCUMULATE = "InfViT, accumulate"
#: What no forward pass uses.
IDLE = {"embeddings.mask_token", "dinov2_with_registers.embeddings.mask_token"}
#: A softmax feels the bias of all keys by rounding alone.
BIAS_OF_KEYS = ("k_proj.bias", "key.bias")


def built(name):
    """A small model, every parameter far from any fresh value, and images for it."""
    if name.startswith("Hugging Face"):
        pytest.importorskip("transformers")
    example = EXAMPLES["InfViT linear" if name == ACCUMULATE else name]
    if name == ACCUMULATE:
        model = InfViT(**SMALL, num_classes=5, accumulate=True, pre_logits=True).eval()
    else:
        model = example.model()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model, example.images()


@torch.no_grad()
def outputs(model, images):
    """What leaves each block, in order, and the logits or features of the model."""
    found = []
    handles = [
        block.register_forward_hook(lambda m, args, out: found.append(out))
        for block in blocks_of(model).values()
    ]
    result = model(images)
    for handle in handles:
        handle.remove()
    if not isinstance(result, torch.Tensor):
        result = result["logits"] if "logits" in result else result["pooler_output"]
    return *found, result


def block_names(model):
    return list(blocks_of(model))


def tensors(model):
    return dict(model.named_parameters()) | dict(model.named_buffers())


def changed(a, b):
    """Names of the parameters and buffers in which two models differ."""
    a, b = tensors(a), tensors(b)
    assert a.keys() == b.keys()
    return {name for name in a if not torch.equal(a[name], b[name])}


# ---------------------------------------------------------------- parts


@pytest.mark.parametrize("name", [*EXAMPLES, ACCUMULATE])
def test_parts_are_where_a_changed_parameter_is_first_felt(name):
    """Every parameter in turn: the outputs of the blocks before its part stay as they were."""
    model, images = built(name)
    found, before = parts(model), outputs(model, images)
    assert list(found) == ["embeddings", *block_names(model), "head"]
    assert sorted(n for names in found.values() for n in names) == sorted(tensors(model))
    for part, names in found.items():
        first = max(list(found).index(part) - 1, 0)  # of the outputs that may change
        for parameter in sorted({n for n, _ in model.named_parameters()} & set(names) - IDLE):
            value = model.get_parameter(parameter)
            kept = value.detach().clone()
            with torch.no_grad():
                value.add_(torch.linspace(0.2, 0.7, value.numel()).view_as(value))
            same = [torch.equal(a, b) for a, b in zip(before, outputs(model, images), strict=True)]
            with torch.no_grad():
                value.copy_(kept)
            assert all(same[:first]), parameter
            if not parameter.endswith(BIAS_OF_KEYS):
                assert not same[first], parameter


def test_blocks_of_a_wrapped_model_and_of_a_single_one():
    vit = VisionTransformer(**SMALL)
    assert list(blocks_of(nn.Sequential(nn.Identity(), vit))) == ["1.blocks.0", "1.blocks.1"]
    alone = VisionTransformer(**SMALL | {"depth": 1})
    assert list(parts(alone)) == ["embeddings", "blocks.0", "head"]
    assert list(parts(nn.Sequential(*vit.blocks))) == ["0", "1"]
    with pytest.raises(ValueError, match="Attention must be the members .* ModuleList"):
        blocks_of(Attention(32))


# ---------------------------------------------------------------- cascade


#: What `untrained` has no fresh value for.
STALE = ("rho_logit", "rope.freqs")


@pytest.mark.parametrize("name", [*EXAMPLES, ACCUMULATE])
def test_every_stage_makes_one_part_more_random(name):
    model, images = built(name)
    original, state = copy.deepcopy(model), torch.random.get_rng_state()
    before, previous = outputs(model, images), model
    depth, stages = len(before) - 1, []
    for stage, partial in cascade(model, seed=3):
        expected = {name for name, _ in model.named_parameters()} & set(parts(model)[stage])
        difference = changed(previous, partial)
        assert {n for n in expected if not n.endswith(STALE)} <= difference <= expected
        assert not partial.training
        below = max(depth - len(stages), 0)  # blocks that are not random yet
        after = outputs(partial, images)
        assert all(torch.equal(a, b) for a, b in zip(before[:below], after[:below], strict=True))
        assert not torch.equal(before[below], after[below])
        stages.append(stage)
        previous = partial
    assert stages == ["head", *block_names(model)[::-1], "embeddings"]
    assert changed(previous, untraining.untrained(model, 3)) == set()
    assert changed(original, model) == set()
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["InfViT linear", "Hugging Face ViT"])
def test_dtype_and_mode_are_kept(name, dtype, training):
    model, _ = built(name)
    model.to(dtype).train(training)
    for _, partial in cascade(model):
        assert {p.dtype for p in partial.parameters()} == {dtype}
        assert {m.training for m in partial.modules()} == {training}
    assert changed(partial, untrained(model)) == set()
    assert {m.training for m in model.modules()} == {training}


def test_buffers_go_with_their_part():
    """Batch norms before and behind the blocks: their statistics are fresh when their part is."""
    model, images = built("timm ViT")
    model.norm_pre, model.norm = nn.BatchNorm1d(17), nn.BatchNorm1d(17)
    model.train()(images)
    model.eval()
    tracked = []
    for stage, partial in cascade(model):
        trained = [
            torch.equal(getattr(partial, n).running_mean, getattr(model, n).running_mean)
            for n in ("norm_pre", "norm")
        ]
        counts = [getattr(partial, n).num_batches_tracked.item() for n in ("norm_pre", "norm")]
        tracked.append((stage, trained, counts))
    assert tracked == [
        ("head", [True, False], [1, 0]),
        ("blocks.1", [True, False], [1, 0]),
        ("blocks.0", [True, False], [1, 0]),
        ("embeddings", [False, False], [0, 0]),
    ]


def test_a_part_without_weights_has_no_stage():
    model = VisionTransformer(
        **SMALL,
        num_classes=0,
        final_norm=False,
        class_token=False,
        global_pool="avg",
        fc_norm=False,
    )
    assert [stage for stage, _ in cascade(model)] == ["blocks.1", "blocks.0", "embeddings"]


def test_copies_are_made_one_by_one_and_stay_as_they_are(monkeypatch):
    made = []

    def counted(model, seed):
        made.append(seed)
        return untrained(model, seed)

    monkeypatch.setattr(untraining, "untrained", counted)
    model, _ = built("timm ViT")
    stages = cascade(model, seed=7)
    assert isinstance(stages, types.GeneratorType) and made == []
    _, first = next(stages)
    assert made == [7]
    held = copy.deepcopy(first)
    assert len(list(stages)) == 3 and made == [7] * 4
    assert changed(first, held) == set()


def test_the_seed_decides():
    model, _ = built("InfViT pure")
    stages = [dict(cascade(model, seed)) for seed in (0, 0, 1)]
    for stage, partial in stages[0].items():
        assert changed(partial, stages[1][stage]) == set()
        assert changed(partial, stages[2][stage]) != set()


def test_what_cannot_be_randomised(monkeypatch):
    model, _ = built("timm ViT")
    monkeypatch.setattr(
        untraining, "untrained", lambda model, seed: VisionTransformer(**SMALL, num_classes=3)
    )
    with pytest.raises(ValueError, match=r"another model, .* in head\.bias, head\.weight$"):
        next(cascade(model))
    with pytest.raises(ValueError, match="ResNet has no attention layer"):
        next(cascade(timm.create_model("resnet10t")))


def test_maps_of_the_last_layer_do_not_see_the_head_and_lose_their_order_below_it(photographs):
    """The bundled model on photographs: ρ to its own maps, and none of them undefined."""
    model = load("infvit_linear_digits")
    images = preprocess(model, photographs)
    own = explain(model, images, "visits").maps
    found = {}
    for stage, partial in cascade(model):
        maps = explain(partial, images, "visits").maps
        found[stage] = rank_correlation(own, maps), ssim(own, maps)
    rho, structure = (torch.stack(each) for each in zip(*found.values(), strict=True))
    assert list(found) == ["head", "blocks.3", "blocks.2", "blocks.1", "blocks.0", "embeddings"]
    np.testing.assert_allclose(rho[0], np.ones(3), rtol=0, atol=1e-12)
    np.testing.assert_allclose(structure[0], np.ones(3), rtol=0, atol=1e-12)
    assert (rho[1:] < 0.5).all() and (structure[1:] < 0.5).all()


# ---------------------------------------------------------------- ways in which InfSA may start


def test_starts_of_infsa_layers():
    model = InfViT(**SMALL, num_classes=5, attention="pure")
    own, zero, xavier = (untrained(model, 1, start) for start in ("own", "zero-bias", "xavier"))
    for a, b, c in zip(own.blocks, zero.blocks, xavier.blocks, strict=True):
        width = a.attn.qkv.in_features
        same = a.attn.state_dict() | {"qkv.bias": torch.zeros(3 * width)}
        assert a.attn.qkv.bias[: 2 * width].gt(0).all()
        assert all(torch.equal(same[k], v) for k, v in b.attn.state_dict().items())
        bound = (6 / (2 * width)) ** 0.5  # of a square matrix
        for weight in (*c.attn.qkv.weight.chunk(3), c.attn.proj.weight):
            assert weight.abs().max() <= bound
            assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
        assert not c.attn.qkv.bias.any() and not c.attn.proj.bias.any()
        assert torch.equal(a.mlp.fc1.weight, c.mlp.fc1.weight)
    again = untrained(model, 1, "xavier").state_dict()
    assert all(torch.equal(again[k], v) for k, v in xavier.state_dict().items())


def test_other_starts_are_for_infsa_layers():
    assert not has_starts(VisionTransformer(**SMALL, num_classes=5))
    with pytest.raises(ValueError, match="start must be 'own' for a model without InfSA layers"):
        untrained(VisionTransformer(**SMALL, num_classes=5), start="xavier")
    with pytest.raises(ValueError, match="start must be one of own, zero-bias, xavier, got 'no'"):
        untrained(InfViT(**SMALL, num_classes=5, attention="pure"), start="no")
