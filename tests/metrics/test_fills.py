"""Fills pixel by pixel against numpy, seen through a model that records what it is shown."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from infsa_metrics import FILLS, deletion_curve, filled_once, pixel_fill, register_fill
from scipy import ndimage, special
from torch import nn

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


class Recorder:
    """Logits = the mean of each channel; keeps the images it was shown."""

    def __call__(self, images):
        self.images = images.clone()
        return images.mean((2, 3))


def batch(size=2, height=8, width=12, grid=(2, 3)):
    g = torch.Generator().manual_seed(0)
    images = torch.randn(size, 3, height, width, generator=g)
    return images, torch.rand(size, *grid, generator=g) < 0.5


def by_hand(images, removed, replacement):
    """Patch by patch in numpy, for a grid that divides the image."""
    out = images.numpy().copy()
    height, width = (out.shape[2] // removed.shape[1], out.shape[3] // removed.shape[2])
    for b, i, j in np.argwhere(removed.numpy()):
        rows = slice(i * height, (i + 1) * height)
        columns = slice(j * width, (j + 1) * width)
        out[b, :, rows, columns] = replacement[b, :, rows, columns]
    return out


def replacement_by_hand(fill, images):
    x = images.numpy().astype(np.float64)
    if fill == "mean":
        return np.zeros_like(x)
    if fill == "black":
        return np.broadcast_to((-np.array(MEAN) / np.array(STD))[:, None, None], x.shape)
    if fill == "blur":  # σ = 8 / 8, cut off at 3
        return ndimage.gaussian_filter(x, sigma=1, axes=(2, 3), radius=3, mode="mirror")
    noise = torch.randn(x.shape[1:], generator=torch.Generator().manual_seed(5)).numpy()
    return np.broadcast_to(noise, x.shape)


@pytest.mark.parametrize(
    ("fill", "atol"), [("mean", 0), ("black", 1e-7), ("blur", 1e-6), ("noise", 0)]
)
def test_removed_pixels_are_replaced_and_no_others(fill, atol):
    images, removed = batch()
    before = images.clone(), removed.clone()
    model = Recorder()
    p = pixel_fill(model, fill, mean=MEAN, std=STD, seed=5)(images, removed)
    expected = by_hand(images, removed, replacement_by_hand(fill, images))
    np.testing.assert_allclose(model.images.numpy(), expected, rtol=0, atol=atol)
    kept = ~removed.repeat_interleave(4, 1).repeat_interleave(4, 2)[:, None].expand_as(images)
    assert model.images[kept].equal(images[kept])
    np.testing.assert_allclose(p, special.softmax(expected.mean((2, 3)), axis=1), atol=1e-6)
    assert images.equal(before[0])
    assert removed.equal(before[1])


@pytest.mark.parametrize("fill", FILLS)
def test_every_fill_leaves_the_clean_image_and_does_not_depend_on_the_batch(fill):
    images, removed = batch(3)
    model = Recorder()
    predict = pixel_fill(model, fill, mean=MEAN, std=STD)
    clean = predict(images, torch.zeros_like(removed))
    assert model.images.equal(images)
    torch.testing.assert_close(clean, images.mean((2, 3)).softmax(1), rtol=0, atol=0)
    predict(images, removed)
    together = model.images
    for i in range(3):
        predict(images[[i]], removed[[i]])
        torch.testing.assert_close(model.images[0], together[i], rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("fill", FILLS)
def test_every_fill_keeps_the_dtype(fill, dtype):
    images, removed = batch()
    model = Recorder()
    p = pixel_fill(model, fill, mean=MEAN, std=STD)(images.to(dtype), removed)
    assert model.images.dtype == dtype
    assert p.dtype == torch.promote_types(dtype, torch.float32)
    assert p.sum(1).tolist() == pytest.approx([1.0, 1.0], abs=1e-6)


def test_noise_follows_the_seed():
    images, _ = batch()
    removed, model = torch.ones(2, 1, 1, dtype=torch.bool), Recorder()
    shown = []
    for seed in (1, 1, 2):
        pixel_fill(model, "noise", seed=seed)(images, removed)
        shown.append(model.images)
    assert shown[0].equal(shown[1])
    assert not shown[0].equal(shown[2])
    assert shown[0][0].equal(shown[0][1])
    pixel_fill(model, "noise")(images, removed)
    default = model.images
    pixel_fill(model, "noise", seed=0)(images, removed)
    assert default.equal(model.images)


def test_blur_of_a_constant_image_is_that_image():
    images, model = torch.full((1, 3, 16, 16), 0.7), Recorder()
    pixel_fill(model, "blur")(images, torch.ones(1, 4, 4, dtype=torch.bool))
    torch.testing.assert_close(model.images, images, rtol=0, atol=1e-6)


def test_black_with_one_value_for_all_channels():
    images, model = torch.ones(1, 3, 2, 2), Recorder()
    pixel_fill(model, "black", mean=[0.5], std=[0.25])(images, torch.ones(1, 1, 1).bool())
    assert model.images.unique().tolist() == [-2.0]


@pytest.mark.parametrize(("size", "grid"), [(7, 3), (10, 4), (5, 5), (9, 2), (225, 14)])
def test_a_pixel_belongs_to_the_patch_its_centre_lies_in(size, grid):
    owner = [
        next(g for g in range(grid) if g / grid <= (i + 0.5) / size < (g + 1) / grid)
        for i in range(size)
    ]
    images, model = torch.ones(grid, 1, size, 6), Recorder()
    removed = torch.eye(grid, dtype=torch.bool)[:, :, None]
    pixel_fill(model, "mean")(images, removed)
    expected = [[float(o != g) for o in owner] for g in range(grid)]
    assert model.images[:, 0, :, 0].tolist() == expected
    # and the same across
    pixel_fill(model, "mean")(images.transpose(2, 3), removed.transpose(1, 2))
    assert model.images[:, 0, 0].tolist() == expected


def test_module_runs_in_eval_mode_and_is_left_as_found():
    class Fails(nn.Module):
        def forward(self, x):
            raise RuntimeError("inside the model")

    norm = nn.BatchNorm2d(3)
    model = nn.Sequential(norm, nn.Dropout(0.5), nn.Flatten(), nn.Linear(3 * 8 * 12, 4))
    norm.eval()
    model[3].weight.requires_grad_(False)
    images, removed = batch()
    mean_before = norm.running_mean.clone()
    predict = pixel_fill(model)
    first, second = predict(images, removed), predict(images, removed)
    assert first.equal(second)
    assert [m.training for m in model.modules()] == [True, False, True, True, True]
    norm.train()
    assert predict(images, removed).equal(first)
    assert norm.running_mean.equal(mean_before)
    assert all(p.grad is None for p in model.parameters())
    failing = Fails()
    with pytest.raises(RuntimeError, match="inside the model"):
        pixel_fill(failing)(images, removed)
    assert failing.training


def test_with_a_deletion_curve():
    """A linear softmax model under the mean fill: p from the sum of the pixels left, by hand."""
    images, _ = batch(2)
    scores = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(1))
    curve = deletion_curve(pixel_fill(Recorder()), images, torch.tensor([0, 2]), scores)
    for b, target in enumerate((0, 2)):
        order = np.argsort(-scores[b].numpy().ravel())
        for s in range(7):
            removed = np.isin(np.arange(6), order[:s]).reshape(2, 3)
            left = np.kron(~removed, np.ones((4, 4)))
            logits = (images[b].double().numpy() * left).mean((1, 2))
            expected = special.softmax(logits)[target]
            assert curve.probabilities[b, s].item() == pytest.approx(expected, abs=1e-6)


def test_register_fill():
    @register_fill("sevens")
    def sevens(mean, std, seed):
        return lambda images: torch.full_like(images, 7)

    try:
        images, removed = batch()
        model = Recorder()
        pixel_fill(model, "sevens")(images, torch.ones_like(removed))
        assert model.images.eq(7).all()
        with pytest.raises(ValueError, match="name must be a new fill, got 'sevens'"):
            register_fill("sevens")
    finally:
        del FILLS["sevens"]


@pytest.mark.parametrize(
    ("fill", "settings", "message"),
    [
        ("grey", {}, "fill must be one of mean, black, blur, noise, got 'grey'"),
        ("black", {}, "mean, std must be one mean and one std > 0 for each channel, got mean=None"),
        ("black", {"mean": MEAN}, "std=None"),
        ("black", {"mean": MEAN, "std": (1.0,)}, "one mean and one std"),
        ("black", {"mean": MEAN, "std": (1.0, 0.0, 1.0)}, "std > 0"),
    ],
)
def test_errors_on_building(fill, settings, message):
    with pytest.raises(ValueError, match=message):
        pixel_fill(Recorder(), fill, **settings)


@pytest.mark.parametrize(
    ("images", "removed", "message"),
    [
        (torch.ones(3, 4, 4), torch.ones(1, 2, 2).bool(), "images must be floats of shape"),
        (torch.ones(1, 3, 4, 4).byte(), torch.ones(1, 2, 2).bool(), "got .* torch.uint8"),
        (torch.ones(1, 3, 4, 4), torch.ones(1, 2, 2), "removed must be bool .* torch.float32"),
        (torch.ones(1, 3, 4, 6), torch.ones(2, 2, 2).bool(), r"bool of shape \(1, gh <= 4"),
        (torch.ones(1, 3, 4, 6), torch.ones(1, 5, 2).bool(), r"gw <= 6\), got \(1, 5, 2\)"),
        (torch.ones(1, 3, 4, 6), torch.ones(1, 0, 2).bool(), r"removed must be .* got \(1, 0, 2\)"),
        (torch.ones(1, 3, 4, 4), torch.ones(1, 2).bool(), r"got \(1, 2\)"),
    ],
)
def test_errors_on_calling(images, removed, message):
    with pytest.raises(ValueError, match=message):
        pixel_fill(Recorder())(images, removed)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda x: {"scores": x[:, 0, 0]}, r"must hold logits of shape \(B, C\), got a dict with"),
        (lambda x: x, r"must hold logits of shape \(B, C\), got a tensor of shape \(2, 3, 8, 12\)"),
        (lambda x: (x, 1), r"got a tuple of \(2, 3, 8, 12\), int"),
        (
            lambda x: x[:1, 0, 0],
            r"the output of the model must be logits of shape \(2, K\), got \(1, 12\)",
        ),
    ],
)
def test_errors_of_the_model(model, message):
    with pytest.raises(ValueError, match=message):
        pixel_fill(model)(*batch())


def test_black_refuses_other_channels():
    predict = pixel_fill(Recorder(), "black", mean=(0.5, 0.5), std=(1.0, 1.0))
    with pytest.raises(ValueError, match="3 values, one for each channel.* got 2"):
        predict(*batch())


@pytest.mark.parametrize("fill", ["mean", "black", "blur", "noise"])
def test_filled_once_gives_the_same(fill):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 12, 5))
    images = torch.rand(4, 3, 8, 12, generator=torch.Generator().manual_seed(0))
    removed = torch.rand(4, 2, 3, generator=torch.Generator().manual_seed(1)) < 0.5
    options = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.4), "seed": 3}
    inputs, predict = filled_once(model, images, fill, **options)
    expected = pixel_fill(model, fill, **options)(images, removed)
    torch.testing.assert_close(predict(inputs, removed), expected, rtol=0, atol=1e-6)
    assert torch.equal(inputs[:, :3], images)


def test_filled_once_fills_once():
    calls = []

    @register_fill("counted")
    def counted(mean, std, seed):
        return lambda images: calls.append(len(images)) or torch.zeros_like(images)

    try:
        images, scores = torch.rand(2, 1, 4, 4), torch.rand(2, 2, 2)
        inputs, predict = filled_once(lambda x: x.mean((2, 3)), images, "counted")
        deletion_curve(predict, inputs, torch.tensor([0, 0]), scores)
        assert calls == [2]
    finally:
        FILLS.pop("counted")
