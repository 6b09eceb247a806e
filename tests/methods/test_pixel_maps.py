"""Attributions of pixels: closed forms of simple models, autograd and deletion by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from timm.models import VisionTransformer

import infsa_explain.models  # noqa: F401  (registers the models)
from infsa_explain.methods import METHODS, explain
from infsa_explain.methods.explaining import explain_graphs
from infsa_explain.methods.pixel_maps import (
    NOISE,
    PASS,
    SAMPLES,
    gradient_shap,
    input_x_gradient,
    integrated_gradients,
    patch_size,
    pixel_attributions,
    smoothgrad,
)
from infsa_explain.methods.registry import Request
from infsa_explain.vits.capturing import Graphs, capture
from infsa_explain.vits.seeding import seeded

GRADIENTS = ["input-x-gradient", "smoothgrad", "integrated-gradients", "gradient-shap"]
EVERY = [*GRADIENTS, "occlusion"]
DRAW = ["smoothgrad", "gradient-shap"]


class Polynomial(VisionTransformer):
    """logits = W x + ½ V x², with a ViT's layout, so that every attribution is known."""

    def __init__(self, size=(16, 24), quadratic=False, **layout):
        super().__init__(img_size=size, patch_size=8, embed_dim=8, depth=1, num_heads=1, **layout)
        w, v = torch.randn(2, 5, 3, *size, generator=torch.Generator().manual_seed(3))
        self.linear, self.quadratic = w, v if quadratic else torch.zeros_like(v)

    def forward(self, x):
        w, v = self.linear.to(x), self.quadratic.to(x)
        return torch.einsum("bchw,kchw->bk", x, w) + torch.einsum("bchw,kchw->bk", x * x, v) / 2


def vit(size=(16, 24), patch=8, seed=0, **options):
    torch.manual_seed(seed)
    model = VisionTransformer(
        img_size=size,
        patch_size=patch,
        embed_dim=24,
        depth=2,
        num_heads=2,
        num_classes=5,
        **options,
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    return model.eval()


def pictures(batch=2, size=(16, 24)):
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(1))


def graphs_of(model, x):
    """The graphs of a model without attention."""
    grid = tuple(n // 8 for n in x.shape[-2:])
    return Graphs([], 1, grid, model(x), True, model, x)


def request(targets, seeds=None):
    return Request(None, range(len(targets)) if seeds is None else seeds, torch.tensor(targets))


def scores(name, model, x, targets, seeds=None):
    return METHODS[name].scores(graphs_of(model, x), request(targets, seeds))


def by_patch(pixels, grid, patch=(8, 8)):
    """Mean over the pixels of each patch that there are, in numpy: (B, H, W) to (B, gh, gw)."""
    pixels, (ph, pw) = np.asarray(pixels, dtype=np.float64), patch
    rows = [
        [
            pixels[:, i * ph : (i + 1) * ph, j * pw : (j + 1) * pw].mean((1, 2))
            for j in range(grid[1])
        ]
        for i in range(grid[0])
    ]
    return np.moveaxis(np.array(rows), 2, 0)


def close(actual, expected, atol=1e-5, rtol=0.0):
    np.testing.assert_allclose(actual.detach().numpy(), np.asarray(expected), rtol=rtol, atol=atol)


# ---------------------------------------------------------------- closed forms


@pytest.mark.parametrize("name", ["input-x-gradient", "smoothgrad", "integrated-gradients"])
def test_linear_model(name):
    """|x w| by patch, and |w| where the image is no factor; the class token has 0."""
    model, x, targets = Polynomial(), pictures(), [4, 1]
    w = model.linear[targets]
    expected = by_patch((w if name == "smoothgrad" else x * w).abs().sum(1), (2, 3))
    tokens = scores(name, model, x, targets)
    assert torch.equal(tokens[:, 0], torch.zeros(2))
    close(tokens[:, 1:], expected.reshape(2, 6))


def test_occlusion_of_a_linear_model_is_the_sum_over_the_patch():
    model, x, targets = Polynomial(), pictures(), [4, 1]
    expected = 64 * by_patch((x * model.linear[targets]).sum(1), (2, 3))
    assert (expected < 0).any()  # the sign is kept
    tokens = scores("occlusion", model, x, targets)
    close(tokens[:, 1:], expected.reshape(2, 6), 5e-5)


def test_quadratic_model():
    """x ∂f/∂x is w x + v x², its mean along the path w x + v x² / 2: f itself, pixel by pixel."""
    model, x, targets = Polynomial(quadratic=True), pictures(), [0, 3]
    w, v = model.linear[targets], model.quadratic[targets]
    graphs = graphs_of(model, x)
    found = pixel_attributions(input_x_gradient, graphs, request(targets))
    close(found, w * x + v * x**2, 5e-6)
    found = pixel_attributions(integrated_gradients, graphs, request(targets))
    close(found, w * x + v * x**2 / 2, 5e-6)


def test_smoothgrad_is_the_mean_gradient_at_noisy_images():
    """At the images that the model was shown, by autograd; their noise is normal, σ as said."""
    model, x = vit(), pictures(1)
    shown = []
    handle = model.register_forward_pre_hook(lambda module, args: shown.append(args[0].detach()))
    graphs = capture(model, x)
    shown.clear()
    found = pixel_attributions(smoothgrad, graphs, request([2], ["a"]))
    handle.remove()
    assert {len(batch) for batch in shown} == {PASS}
    noisy = torch.cat(shown).requires_grad_()
    assert len(noisy) == SAMPLES
    (gradients,) = torch.autograd.grad(model(noisy)[:, 2].sum(), noisy)
    close(found[0], gradients.mean(0), 1e-6)
    expected = by_patch(gradients.mean(0, keepdim=True).abs().sum(1), (2, 3))
    close(explain_graphs(graphs, METHODS["smoothgrad"], target=2, seeds=["a"]).maps, expected, 1e-6)
    noise = ((noisy - x) / (x.max() - x.min()) / NOISE).detach()
    count = noise.numel()  # 27,648 draws: four standard errors
    assert abs(noise.mean()) < 4 / count**0.5
    assert abs(noise.std() - 1) < 4 / (2 * count) ** 0.5


def test_gradient_shap_is_the_expectation_over_baselines():
    """E (x − z)(w + v (z + x)/2) = w x + v (x² − 1)/2, for z with E z = 0 and E z² = 1."""
    model, x = Polynomial(quadratic=True), pictures(1)
    w, v = model.linear[1], model.quadratic[1]
    draws = 200
    found = pixel_attributions(
        gradient_shap, graphs_of(model, x.repeat(draws, 1, 1, 1)), request([1] * draws)
    )
    error = found - (w * x + v * (x**2 - 1) / 2)
    # every pixel has its own draws of z: over pixels, errors in units of their deviation are normal
    standard = error.mean(0) / (error.std(0) / draws**0.5)
    assert abs(standard.mean()) < 4 / standard.numel() ** 0.5
    assert abs(standard.std() - 1) < 0.1


def test_gradient_shap_of_a_linear_model():
    """w (x − z̄): with the same draws, two images differ by w (x − x')."""
    model, x = Polynomial(), pictures()
    a, b = pixel_attributions(gradient_shap, graphs_of(model, x), request([1, 1], ["a", "a"]))
    close(a - b, model.linear[1] * (x[0] - x[1]), 1e-5)


def test_input_x_gradient_by_autograd():
    model, x = vit(), pictures()
    leaf = x.clone().requires_grad_()
    logits = model(leaf)
    expected = by_patch((x * torch.autograd.grad(logits[:, 3].sum(), leaf)[0]).abs().sum(1), (2, 3))
    close(explain(model, x, "input-x-gradient", target=3).maps, expected, 1e-6)
    # and of the predicted class, each its own
    expected = [
        explain(model, x, "input-x-gradient", target=int(k)).maps[i]
        for i, k in enumerate(logits.argmax(-1))
    ]
    close(explain(model, x, "input-x-gradient").maps, torch.stack(expected), 1e-6)


def test_integrated_gradients_are_complete():
    """They sum to f(x) − f(0), to 2e-5 of it in float32; the same by a finer midpoint rule."""
    model, x = vit(), pictures()
    found = pixel_attributions(integrated_gradients, capture(model, x), request([0, 1]))
    with torch.no_grad():
        gained = (model(x) - model(0 * x))[[0, 1], [0, 1]]
    close(found.sum((1, 2, 3)), gained, rtol=2e-5, atol=0)
    steps = ((torch.arange(2000) + 0.5) / 2000)[:, None, None, None]
    path = (steps * x[:1]).requires_grad_()
    (gradients,) = torch.autograd.grad(model(path)[:, 0].sum(), path)
    close(found[0], x[0] * gradients.mean(0), 1e-4)


# ---------------------------------------------------------------- patches

#: Layouts in which pixels are left over, or missing, and a patch that is not square.
LAYOUTS = [
    pytest.param((21, 31), (8, 8), {}, (2, 3), id="left-over"),
    pytest.param((18, 33), (8, 8), {"dynamic_img_pad": True}, (3, 5), id="padded"),
    pytest.param((16, 24), (8, 4), {}, (2, 6), id="oblong"),
]


def laid_out(size, patch, options):
    padded = {"dynamic_img_size": True, "dynamic_img_pad": True} if options else {}
    build = (32, 48) if padded else size
    return vit(build, patch, class_token=False, global_pool="avg", **padded), pictures(1, size)


@pytest.mark.parametrize(("size", "patch", "options", "grid"), LAYOUTS)
def test_patches_are_the_models_own(size, patch, options, grid):
    model, x = laid_out(size, patch, options)
    graphs = capture(model, x)
    assert graphs.grid == grid
    assert patch_size(graphs) == patch
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(leaf)[:, 2].sum(), leaf)
    expected = by_patch((x * gradient).abs().sum(1), grid, patch)
    close(explain(model, x, "input-x-gradient", target=2).maps, expected, 1e-6)


@pytest.mark.parametrize(("size", "patch", "options", "grid"), LAYOUTS)
def test_occlusion_by_deletion(size, patch, options, grid):
    model, x = laid_out(size, patch, options)
    found = explain(model, x, "occlusion", target=2).maps[0]
    with torch.no_grad():
        for i, j in np.ndindex(grid):
            without = x.clone()
            rows, columns = (slice(n * p, (n + 1) * p) for n, p in zip((i, j), patch, strict=True))
            without[..., rows, columns] = 0
            close(found[i, j], (model(x) - model(without))[0, 2], 1e-5)


def test_patch_size_of_torchvision():
    from torchvision.models import VisionTransformer as TorchvisionViT

    model = TorchvisionViT(32, 16, 1, 1, 8, 16).eval()
    assert patch_size(capture(model, pictures(1, (32, 32)))) == (16, 16)


# ---------------------------------------------------------------- what is drawn


@pytest.mark.parametrize("name", EVERY)
def test_maps_do_not_depend_on_the_batch(name):
    model, x = vit(), pictures(3)
    together = explain(model, x, name, target=1, seeds=["a", "b", 7]).maps
    turned = explain(model, x[[2, 0]], name, target=1, seeds=["7", "a"]).maps
    close(turned, together[[2, 0]], 1e-6)
    other = explain(model, x, name, target=1, seeds=["c", "d", "e"]).maps
    assert torch.allclose(other, together, atol=1e-6) == (name not in DRAW)


@pytest.mark.parametrize("name", EVERY)
def test_generators_are_left_as_found_and_do_not_matter(name):
    model, x = vit(), pictures(1)
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    expected = torch.rand(4), np.random.rand(4)  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    first = explain(model, x, name).maps
    assert torch.equal(torch.rand(4), expected[0])
    assert np.array_equal(np.random.rand(4), expected[1])  # noqa: NPY002
    assert torch.equal(explain(model, x, name).maps, first)


def test_generators_are_put_back_after_an_exception():
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    states = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
    with pytest.raises(RuntimeError, match="inside"), seeded(7):
        torch.rand(3), np.random.rand(3)  # noqa: NPY002
        raise RuntimeError("inside")
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002


# ---------------------------------------------------------------- the state of things


@pytest.mark.parametrize("name", EVERY)
def test_frozen_and_without_gradients(name):
    model, x = vit(), pictures(1)
    expected = explain(model, x, name, target=1).maps
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    close(explain(model, x, name, target=1).maps, expected, 1e-7)
    for parameter in model.parameters():
        assert torch.equal(parameter.grad, torch.ones_like(parameter))
        parameter.requires_grad_(False)
    with torch.no_grad():
        close(explain(model, x, name, target=1).maps, expected, 1e-7)
    with torch.inference_mode():
        maps = explain(model, x.clone(), name, target=1).maps
    close(maps.clone(), expected, 1e-7)
    with torch.autocast("cpu", torch.bfloat16):
        close(explain(model, x, name, target=1).maps, expected, 1e-7)
        rounded = explain(model, x.bfloat16(), name, target=1).maps  # autocast lets it pass
    close(rounded, expected, 0.05 * float(expected.abs().max()))


@pytest.mark.parametrize("name", EVERY)
def test_mode_is_left_as_found(name):
    """The model runs in eval mode."""
    model, x = vit(proj_drop_rate=0.5).train(), pictures(1)
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    first = explain(model, x, name, target=1).maps
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(explain(model, x, name, target=1).maps, first)
    assert torch.equal(explain(model.eval(), x, name, target=1).maps, first)


@pytest.mark.parametrize("name", EVERY)
def test_a_model_in_half_precision(name):
    """Runs in its own precision, with what surrounds it in float32."""
    model, x = vit(), pictures(1)
    expected = explain(model, x, name, target=1).maps
    found = explain(model.bfloat16(), x.bfloat16(), name, target=1).maps
    assert found.dtype == torch.float32
    close(found, expected, 0.1 * float(expected.abs().max()))


def test_every_one_is_of_a_class_and_says_where_it_is_from():
    for name in EVERY:
        assert METHODS[name].class_specific
        assert METHODS[name].scope == "model"
        assert METHODS[name].summary.endswith(".")
