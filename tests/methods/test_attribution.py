"""Every method as one of Captum's attributions, in Captum's own hands."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from captum.attr import Attribution, NoiseTunnel
from captum.attr import visualization as viz
from captum.metrics import infidelity, sensitivity_max
from matplotlib.backends.backend_agg import FigureCanvasAgg
from timm.models import VisionTransformer

from infsa_explain.drawing.heatmap import upsample
from infsa_explain.methods import METHODS, explain
from infsa_explain.methods.attribution import captum_attribution

SOFTMAX = [name for name, method in METHODS.items() if "softmax" in method.kinds]


def vit():
    torch.manual_seed(0)
    model = VisionTransformer(
        img_size=(16, 24), patch_size=8, embed_dim=24, depth=2, num_heads=2, num_classes=5
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    return model.eval()


def pictures(batch=2):
    return torch.randn(batch, 3, 16, 24, generator=torch.Generator().manual_seed(1))


def close(actual, expected, atol=1e-6):
    np.testing.assert_allclose(actual.detach().numpy(), np.asarray(expected), rtol=0, atol=atol)


@pytest.mark.filterwarnings("ignore:gradcam has no map for some images")
@pytest.mark.parametrize("method", SOFTMAX)
def test_channels_sum_to_the_enlarged_map(method):
    """As OpenCV enlarges it, which draws the overlays."""
    model, x = vit(), pictures()
    attribution = captum_attribution(model, method, seeds=["a", "b"])
    assert isinstance(attribution, Attribution)
    assert not attribution.has_convergence_delta()
    found = attribution.attribute(x, target=[3, 1])
    assert found.shape == x.shape
    maps = explain(model, x, method, target=[3, 1], seeds=["a", "b"]).maps
    assert maps[0].std() > 0
    for pixels, one in zip(found, maps, strict=True):  # Grad-CAM has no map of the second
        close(pixels.sum(0), upsample(one, (16, 24)) if one.isfinite().all() else one.max())
        close(pixels, pixels[:1].expand(3, -1, -1), 0)


def test_options_are_those_of_explain():
    model, x = vit(), pictures()
    options = {"layer": 0, "head": 1, "gamma": 0.3}
    found = captum_attribution(model, "visits", **options).attribute(x)
    maps = explain(model, x, "visits", **options).maps
    close(found.sum(1), [upsample(one, (16, 24)) for one in maps])
    assert not torch.allclose(found, captum_attribution(model, "visits").attribute(x), atol=1e-4)


@pytest.mark.parametrize("target", [3, [3], (3,), torch.tensor(3), torch.tensor([3])])
def test_one_class_for_all_in_any_of_captums_forms(target):
    attribution, x = captum_attribution(vit(), "input-x-gradient"), pictures()
    assert torch.equal(attribution.attribute(x, target), attribution.attribute(x, [3, 3]))
    assert not torch.equal(attribution.attribute(x, target), attribution.attribute(x, [1, 1]))


def test_a_tuple_for_a_tuple():
    attribution, x = captum_attribution(vit(), "degree"), pictures()
    (found,) = attribution.attribute((x,))
    assert torch.equal(found, attribution.attribute(x))


def test_copies_of_an_image_keep_its_identity():
    attribution, x = captum_attribution(vit(), "random", seeds=["a", "b"]), pictures()
    a, b = attribution.attribute(x)
    assert not torch.equal(a, b)
    copies = attribution.attribute(x.repeat_interleave(2, 0))
    assert torch.equal(copies, torch.stack([a, a, b, b]))
    with pytest.raises(ValueError, match=r"seeds must be one per image \(3\), got 2"):
        attribution.attribute(pictures(3))


def test_unknown_method_is_refused_at_once():
    with pytest.raises(ValueError, match="unknown method 'vists'; did you mean visits"):
        captum_attribution(vit(), "vists")


def test_forward_func_gives_logits_whatever_the_model_gives():
    model, x = vit(), pictures()
    plain = model(x)
    assert torch.equal(captum_attribution(model).forward_func(x), plain)
    forward = model.forward
    model.forward = lambda images: SimpleNamespace(logits=forward(images))
    assert torch.equal(captum_attribution(model).forward_func(x), plain)


# ---------------------------------------------------------------- in Captum's hands


def test_captum_draws_it():
    x = pictures(1)
    found = captum_attribution(vit(), "rollout").attribute(x)
    pixels = found[0].permute(1, 2, 0).numpy()
    figure, axes = viz.visualize_image_attr(
        pixels, method="heat_map", sign="positive", outlier_perc=0, use_pyplot=False
    )
    summed = found[0].sum(0).numpy()
    np.testing.assert_allclose(axes.images[0].get_array(), summed / summed.max(), atol=1e-6)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = np.asarray(canvas.buffer_rgba())[..., :3]
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) > 20


@pytest.mark.parametrize("method", ["visits", "occlusion"])
def test_captums_infidelity(method):
    """E (Σ I φ − (f(x) − f(x − I)))², by hand at the perturbations that Captum was given."""
    model, x, target = vit(), pictures(), torch.tensor([3, 1])
    attribution = captum_attribution(model, method)
    noise = torch.randn(2, 4, 3, 16, 24, generator=torch.Generator().manual_seed(2))
    found = infidelity(
        attribution.forward_func,
        lambda inputs: (noise.flatten(0, 1), inputs - noise.flatten(0, 1)),
        x,
        attribution.attribute(x, target),
        target=target,
        n_perturb_samples=4,
    )
    maps = explain(model, x, method, target=target).maps
    for i, k in enumerate(target):
        enlarged = torch.tensor(upsample(maps[i], (16, 24))) / 3
        predicted = (noise[i].double() * enlarged).sum((1, 2, 3))
        with torch.no_grad():
            lost = (model(x[i : i + 1]) - model(x[i] - noise[i]))[:, k]
        close(found[i], ((predicted - lost) ** 2).mean(), 1e-4)


@pytest.mark.parametrize("method", ["visits", "input-x-gradient"])
def test_captums_sensitivity(method):
    model, x, target = vit(), pictures(), torch.tensor([3, 1])
    shaken = x[:, None] + 0.1 * torch.randn(2, 4, 3, 16, 24)
    found = sensitivity_max(
        captum_attribution(model, method).attribute,
        x,
        lambda inputs: shaken.flatten(0, 1),
        n_perturb_samples=4,
        target=target,
    )
    for i, k in enumerate(target):
        maps = [
            upsample(one, (16, 24))
            for one in explain(
                model, torch.cat([x[i : i + 1], shaken[i]]), method, target=int(k)
            ).maps
        ]
        change = max(np.linalg.norm(one - maps[0]) for one in maps[1:])
        close(found[i], change / np.linalg.norm(maps[0]), 1e-5)


def test_controls_are_perfectly_steady():
    """A draw is the image's own: the noise that Captum adds does not change it."""
    for method in ("centre", "random"):
        attribution = captum_attribution(vit(), method, seeds=["a", "b"])
        assert torch.equal(sensitivity_max(attribution.attribute, pictures()), torch.zeros(2))


def test_noise_tunnel():
    """The mean of the maps of noisy images, which without noise is the map."""
    attribution, x = captum_attribution(vit(), "visits"), pictures()
    tunnel = NoiseTunnel(attribution)
    close(tunnel.attribute(x, nt_samples=3, stdevs=0.0), attribution.attribute(x), 1e-7)
    torch.manual_seed(0)
    found = tunnel.attribute(x, nt_samples=3, stdevs=0.5)
    torch.manual_seed(0)
    noise = torch.normal(0, torch.full((6, 3, 16, 24), 0.5))
    each = attribution.attribute(x.repeat_interleave(3, 0) + noise)
    close(found, each.view(2, 3, 3, 16, 24).mean(1), 1e-7)


def test_captum_waits_until_it_is_used():
    script = """
import sys, infsa_explain.methods, infsa_metrics.faithfulness
print("captum" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
