"""Taking patches out, against a forward pass written by hand."""

from __future__ import annotations

import pytest
import timm
import torch

import infsa_explain.models  # noqa: F401  (registers the models)
from infsa_explain.vits.tokens import drop_fill, forward_patches

MODELS = {
    "linear": ("infvit_linear_digits", {}),
    "pure": ("infvit_pure_digits", {}),
    "softmax": ("vit_softmax_digits", {}),
    "registers": (
        "vit_softmax_digits",
        {"class_token": True, "global_pool": "token", "reg_tokens": 2},
    ),
    "accumulate": ("infvit_linear_digits", {"accumulate": True}),
}


def build(kind, **kwargs):
    torch.manual_seed(0)
    name, arguments = MODELS[kind]
    model = timm.create_model(
        name, img_size=32, embed_dim=16, num_heads=2, depth=2, **arguments, **kwargs
    )
    with torch.no_grad():  # place and prefix must matter: timm starts them near zero
        model.pos_embed.normal_()
        for token in (model.cls_token, model.reg_token):
            if token is not None:
                token.normal_()
        model.head.weight.normal_()
    return model.eval()


def images(batch=3):
    return torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def by_hand(model, x, keep):
    """Patches + position, gather, blocks, norm, pool and head, for one image."""
    patches = model.patch_embed(x)
    prefix = [t for t in (model.cls_token, model.reg_token) if t is not None]
    tokens = torch.cat([*prefix, patches], 1) + model.pos_embed
    count = sum(t.shape[1] for t in prefix)
    tokens = tokens[:, [*range(count), *(count + i for i in keep)]]
    if getattr(model, "accumulation_logit", None) is not None:
        gamma = model.accumulation_logit.sigmoid()
        outputs = []
        for block in model.blocks:
            tokens = block(tokens)
            outputs.append(tokens)
        tokens = sum(gamma ** (i + 1) * output for i, output in enumerate(outputs))
    else:
        tokens = model.blocks(tokens)
    tokens = model.norm(tokens)
    pooled = tokens[:, 0] if model.global_pool == "token" else tokens[:, count:].mean(1)
    return model.head(model.fc_norm(pooled))


@pytest.fixture(params=MODELS)
def model(request):
    return build(request.param)


@torch.no_grad()
def test_all_patches_are_the_model_itself(model):
    x = images()
    keep = torch.arange(16).expand(3, -1)
    torch.testing.assert_close(forward_patches(model, x, keep), model(x), rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_subset_is_the_forward_pass_by_hand(model):
    x = images()
    keep = torch.tensor([[0, 3, 5], [15, 2, 7], [8, 9, 10]])
    expected = torch.cat([by_hand(model, x[i : i + 1], keep[i].tolist()) for i in range(3)])
    torch.testing.assert_close(forward_patches(model, x, keep), expected, rtol=0, atol=1e-5)
    assert (expected - model(x)).abs().max() > 1e-2  # else the comparison would show nothing


@torch.no_grad()
def test_drop_fill_with_different_numbers_of_patches_in_one_batch(model):
    x = images(5)
    removed = torch.zeros(5, 4, 4, dtype=torch.bool)
    removed[1, 1:3, 1:3] = True
    removed[2] = True
    removed[3, 0, 0] = True
    removed[4, 2, :] = True
    before = x.clone(), removed.clone()
    p = drop_fill(model)(x, removed)
    rows = [
        by_hand(model, x[i : i + 1], (~removed[i].flatten()).nonzero().flatten().tolist())
        for i in (0, 1, 3, 4)
    ]
    rows.insert(2, model(torch.zeros_like(x[:1])))  # nothing left: the image that is all mean
    torch.testing.assert_close(p, torch.cat(rows).softmax(-1), rtol=0, atol=1e-6)
    assert torch.equal(x, before[0])
    assert torch.equal(removed, before[1])


@torch.no_grad()
def test_images_with_as_many_patches_share_a_pass(model):
    """Kept, in order: 16, 4, 0, 4, 0, 16, 4."""
    x, removed = images(7), torch.zeros(7, 4, 4, dtype=torch.bool)
    removed[[1, 3, 6], 1:] = True
    removed[[2, 4]] = True
    removed[3] = removed[3].flip(0)
    predict, passes = drop_fill(model), []
    alone = torch.cat([predict(x[i : i + 1], removed[i : i + 1]) for i in range(7)])
    handle = model.blocks[0].register_forward_pre_hook(
        lambda block, inputs: passes.append((len(inputs[0]), inputs[0].shape[1]))
    )
    together = predict(x, removed)
    handle.remove()
    prefix = model.num_prefix_tokens
    # those with nothing left are images of the mean, whole
    assert passes == [(2, 16 + prefix), (3, 4 + prefix), (2, 16 + prefix)]
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
    assert (together[1] - together[3]).abs().max() > 1e-4


@torch.no_grad()
def test_drop_fill_of_a_model_in_training():
    model, x = build("softmax", proj_drop_rate=0.5), images()
    removed = torch.zeros(3, 4, 4, dtype=torch.bool)
    removed[:, 0] = True
    expected = drop_fill(model)(x, removed)
    model.train()
    model.norm.eval()
    torch.testing.assert_close(drop_fill(model)(x, removed), expected, rtol=0, atol=1e-6)
    assert [name for name, module in model.named_modules() if not module.training] == ["norm"]


@torch.no_grad()
def test_drop_fill_of_a_wide_image():
    model = build("softmax", dynamic_img_size=True)
    x = torch.randn(2, 3, 16, 32, generator=torch.Generator().manual_seed(2))
    p = drop_fill(model)(x, torch.zeros(2, 2, 4, dtype=torch.bool))
    torch.testing.assert_close(p, model(x).softmax(-1), rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match=r"removed must be \(2, 2, 4\), got \(2, 4, 2\)"):
        drop_fill(model)(x, torch.zeros(2, 4, 2, dtype=torch.bool))


def test_no_hook_is_left_after_an_exception(model):
    before = model.training
    with pytest.raises(ValueError, match="keep must hold indices of patches, 0 to 15"):
        forward_patches(model, images(), torch.full((3, 1), 16))
    model.blocks[1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        forward_patches(model, images(), torch.zeros(3, 1, dtype=torch.long))
    assert not model.patch_drop._forward_hooks
    assert model.training == before


def fail(*_):
    raise RuntimeError("on purpose")


@pytest.mark.parametrize(
    "keep", [torch.full((3, 1), -1), torch.full((3, 1), 16), torch.zeros(3, 0, dtype=torch.long)]
)
def test_indices_that_are_no_patches_are_refused(model, keep):
    """−1 would be a prefix token where there is one."""
    with pytest.raises(ValueError, match="keep must hold indices of patches, 0 to 15"):
        forward_patches(model, images(), keep)


def test_a_model_that_is_no_vit_is_refused():
    with pytest.raises(ValueError, match=r"out of Linear: its family 'unknown' does not say where"):
        forward_patches(torch.nn.Linear(2, 2), images(), torch.zeros(3, 1, dtype=torch.long))


def test_no_images():
    with pytest.raises(ValueError, match="at least one image"):
        drop_fill(build("softmax"))(images()[:0], torch.zeros(0, 4, 4, dtype=torch.bool))
