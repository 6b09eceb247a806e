"""Attributions of pixels, by Captum, as scores of patches.

A pixel attribution becomes a map as the authors of SmoothGrad draw theirs (``saliency`` of Google
PAIR): absolute values, summed over channels, then averaged over the pixels of each patch. So a map
says how much a patch matters, not in which direction. Occlusion keeps its sign. The image without
content, where a method needs one, is zero: the mean colour after normalisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps

import torch
from infsa_metrics import class_logits, output_tensor
from torch import Tensor
from torch.nn.functional import avg_pool2d

from ..vits.capturing import Graphs, patch_grid
from ..vits.passes import forward_pass
from ..vits.seeding import seed_of, seeded
from .backward import require_gradients, scores_of
from .controls import with_prefix
from .registry import Request, register_method

__all__ = ["pixel_attributions", "register_pixel_method"]

#: Images in one pass of the model, whatever the number of steps. It bounds the memory.
PASS = 8
#: Steps of the path integral.
STEPS = 64
#: Draws of noise or of baselines, a multiple of PASS.
SAMPLES = 24
#: Standard deviation of SmoothGrad's noise, as a share of the image's range.
NOISE = 0.15

#: images (n, 3, H, W) → logits (n, C)
Logits = Callable[[Tensor], Tensor]
#: (logits, image (1, 3, H, W), class) → attributions (1, 3, H, W)
Attribute = Callable[[Logits, Tensor, int], Tensor]


def register_pixel_method(name: str) -> Callable[[Attribute], Attribute]:
    """Register an attribution of pixels by gradients as a map method, a decorator."""

    def register(attribute: Attribute) -> Attribute:
        @register_method(name, scope="model", class_specific=True)
        @wraps(attribute)
        def scores(graphs: Graphs, request: Request) -> Tensor:
            require_gradients(graphs.model)
            pixels = pixel_attributions(attribute, graphs, request)
            return with_prefix(patch_means(pixels.abs().sum(1), graphs), graphs)

        return attribute

    return register


# ---------------------------------------------------------------- the methods


@register_pixel_method("input-x-gradient")
def input_x_gradient(logits: Logits, image: Tensor, target: int) -> Tensor:
    """Input times gradient, |x ∂f/∂x|.

    Shrikumar et al., Not Just a Black Box, arXiv 1605.01713.
    """
    from captum.attr import InputXGradient

    attributions: Tensor = InputXGradient(logits).attribute(image, target=target)
    return attributions


@register_pixel_method("smoothgrad")
def smoothgrad(logits: Logits, image: Tensor, target: int) -> Tensor:
    """SmoothGrad, |mean of ∂f/∂x| at 24 images with Gaussian noise, σ = 0.15 of the range.

    Smilkov et al., SmoothGrad: removing noise by adding noise, arXiv 1706.03825.
    """
    from captum.attr import NoiseTunnel, Saliency

    attributions: Tensor = NoiseTunnel(Saliency(logits)).attribute(
        image,
        nt_type="smoothgrad",
        nt_samples=SAMPLES,
        nt_samples_batch_size=PASS,
        stdevs=NOISE * float(image.max() - image.min()),
        abs=False,
        target=target,
    )
    return attributions


@register_pixel_method("integrated-gradients")
def integrated_gradients(logits: Logits, image: Tensor, target: int) -> Tensor:
    """Integrated gradients, |x ∫ ∂f(αx)/∂x dα| from the mean colour, 64 Gauss-Legendre steps.

    With enough steps, the attributions sum to f(x) − f(0) before the absolute value. On images of
    the bundled benchmark the median gap was 2% or less for the bundled softmax models, and 16 to
    64% for the InfSA models, which are steep where a head is about to die. Sundararajan et al.,
    Axiomatic Attribution for Deep Networks, arXiv 1703.01365.
    """
    from captum.attr import IntegratedGradients

    attributions: Tensor = IntegratedGradients(logits).attribute(
        image, target=target, n_steps=STEPS, internal_batch_size=PASS
    )
    return attributions


@register_pixel_method("gradient-shap")
def gradient_shap(logits: Logits, image: Tensor, target: int) -> Tensor:
    """Expected gradients, |E (x − z) ∂f(z + α(x − z))/∂x| over 24 images z of noise, α in [0, 1].

    The baselines z are standard normal, as pixels are after normalisation. Lundberg and Lee,
    arXiv 1705.07874; Erion et al., arXiv 1906.10670.
    """
    from captum.attr import GradientShap

    shap = GradientShap(logits)
    passes = []
    for _ in range(SAMPLES // PASS):
        noise = torch.randn(PASS, *image.shape[1:], dtype=torch.float32).to(image)
        passes.append(shap.attribute(image, noise, n_samples=PASS, stdevs=0.0, target=target))
    return torch.stack(passes).mean(0)


@register_method("occlusion", scope="model", class_specific=True)
def occlusion(graphs: Graphs, request: Request) -> Tensor:
    """Occlusion, f(x) − f(x without a patch): the logit that is lost; below 0 where it gains.

    The patch takes the mean colour, zero after normalisation. Each patch takes one pass of the
    model. Zeiler and Fergus, Visualizing and Understanding CNNs, arXiv 1311.2901.
    """
    from captum.attr import FeatureAblation

    height, width = graphs.images.shape[-2:]
    (ph, pw), (gh, gw) = patch_size(graphs), graphs.grid
    row, column = torch.arange(height)[:, None] // ph, torch.arange(width) // pw
    in_grid = (row < gh) & (column < gw)
    patch = (row * gw + column).where(in_grid, gh * gw)  # pixels outside the grid: one more index

    def attribute(logits: Logits, image: Tensor, target: int) -> Tensor:
        losses: Tensor = FeatureAblation(logits).attribute(
            image, target=target, feature_mask=patch[None, None], perturbations_per_eval=PASS
        )
        return losses

    pixels = pixel_attributions(attribute, graphs, request)
    losses = pixels[:, 0, ::ph, ::pw]  # all pixels of a patch have the same value
    return with_prefix(losses[:, :gh, :gw].flatten(1), graphs)


# ---------------------------------------------------------------- pixels, patches


def pixel_attributions(attribute: Attribute, graphs: Graphs, request: Request) -> Tensor:
    """Attributions of every image to its class: (B, 3, H, W), on the CPU, float32 or better.

    Images are attributed one by one, so that memory and random numbers do not depend on the batch,
    and Captum computes on the CPU, so that random numbers do not depend on the device. The model
    runs on its own device and in its own dtype, without autocast.
    """
    dtype = torch.promote_types(graphs.images.dtype, torch.float32)
    rows = []
    with (
        forward_pass(graphs.model),
        torch.no_grad(),  # Captum enables gradients where it needs them
        torch.autocast(graphs.images.device.type, enabled=False),
    ):
        for i, (identity, target) in enumerate(zip(request.seeds, request.targets, strict=True)):
            image = graphs.images[i : i + 1].detach().to("cpu", dtype, copy=True).requires_grad_()
            logits, index = _explained(graphs, target)
            with seeded(seed_of(f"noise for {identity}", 4)):
                rows.append(attribute(logits, image, index))
    return torch.cat(rows)


def _explained(graphs: Graphs, target: Tensor) -> tuple[Logits, int]:
    """The function to explain for one image, and the index of its output.

    A class of the model; or, for features as the target, their projection as the only output.
    """
    device = graphs.images.device
    dtype = next((parameter.dtype for parameter in graphs.model.parameters()), graphs.images.dtype)

    def logits(images: Tensor) -> Tensor:
        raw = output_tensor(graphs.model(images.to(device, dtype)))
        return class_logits(raw, graphs.output).to(images)

    def projection(images: Tensor) -> Tensor:
        return scores_of(logits(images), target.cpu())[:, None]

    return (projection, 0) if target.ndim else (logits, int(target))


def patch_means(pixels: Tensor, graphs: Graphs) -> Tensor:
    """Mean over the pixels of each patch, (B, H, W) to (B, P).

    Patches start at the top left. If the model ignores pixels beyond the last whole patch, they
    belong to no patch. If the model pads, the mean of the last patches is over real pixels only.
    """
    gh, gw = graphs.grid
    means = avg_pool2d(pixels[:, None], patch_size(graphs), ceil_mode=True)
    return means[:, 0, :gh, :gw].flatten(1)


def patch_size(graphs: Graphs) -> tuple[int, int]:
    """(height, width) of a patch in pixels.

    It is inferred from the grid of a 2²⁰-pixel image, so that rounding is negligible: the grid of
    the images themselves does not tell whether 31 pixels are three patches of 8 or of 10. If the
    model has the same grid for all sizes, the size of the images is divided.
    """
    side = 2**20
    grid = patch_grid(graphs.model, torch.empty(1, 3, side, side, device="meta"))
    if grid == graphs.grid:
        height, width = graphs.images.shape[-2:]
        return math.ceil(height / grid[0]), math.ceil(width / grid[1])
    return round(side / grid[0]), round(side / grid[1])
