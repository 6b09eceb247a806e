"""Gradients of the class's logit at the pixels, through Captum, as scores of patches.

Attributions of pixels become a map as the authors of SmoothGrad draw theirs (``saliency`` of
Google PAIR): absolute values, summed over channels; then averaged over the pixels of each patch.
So a map says how much a patch matters, not in which sense. Where an attribution needs an image
without content, it is zero: the mean colour, after normalisation.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import RLock

import numpy as np
import torch
from infsa_metrics import class_logits, output_tensor
from torch import Tensor
from torch.nn.functional import avg_pool2d

from ..vits.capturing import Graphs, patch_grid
from ..vits.watching import forward_pass
from .backward import require_gradients, scores_of
from .controls import with_prefix
from .registry import Request, model_method

#: Images that the model sees at once, whatever the number of steps: it bounds the memory.
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


def pixel_method(name: str) -> Callable[[Attribute], Attribute]:
    """Register an attribution of pixels, from gradients, as a method that scores tokens."""

    def register(attribute: Attribute) -> Attribute:
        @model_method(name, class_specific=True)
        @wraps(attribute)
        def scores(graphs: Graphs, request: Request) -> Tensor:
            require_gradients(graphs.model)
            pixels = pixel_attributions(attribute, graphs, request)
            return with_prefix(patch_means(pixels.abs().sum(1), graphs), graphs)

        return attribute

    return register


@pixel_method("input-x-gradient")
def input_x_gradient(logits: Logits, image: Tensor, target: int) -> Tensor:
    """Input times gradient, |x ∂f/∂x|.

    Shrikumar et al., Not Just a Black Box, arXiv 1605.01713.
    """
    from captum.attr import InputXGradient

    attributions: Tensor = InputXGradient(logits).attribute(image, target=target)
    return attributions


@pixel_method("smoothgrad")
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


@pixel_method("integrated-gradients")
def integrated_gradients(logits: Logits, image: Tensor, target: int) -> Tensor:
    """Integrated gradients, |x ∫ ∂f(αx)/∂x dα| from the mean colour, 64 Gauss-Legendre steps.

    Before the absolute value they sum to f(x) − f(0), if the steps are many enough. On images of
    the bundled benchmark the median gap was 2% and less in the bundled softmax models, and 16 to
    64% in the InfSA ones, which are steep where a head is about to die. Sundararajan et al.,
    Axiomatic Attribution for Deep Networks, arXiv 1703.01365.
    """
    from captum.attr import IntegratedGradients

    attributions: Tensor = IntegratedGradients(logits).attribute(
        image, target=target, n_steps=STEPS, internal_batch_size=PASS
    )
    return attributions


@pixel_method("gradient-shap")
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


def pixel_attributions(attribute: Attribute, graphs: Graphs, request: Request) -> Tensor:
    """Attributions of every image to its class: (B, 3, H, W), on the CPU, float32 or better.

    One image at a time, so that neither memory nor what is drawn depends on the batch, and with
    Captum's arithmetic on the CPU, so that it draws the same whatever the device. The model runs
    where and as it is, without autocast.
    """
    model, given = graphs.model, graphs.images
    dtype = next((parameter.dtype for parameter in model.parameters()), given.dtype)
    exact = torch.promote_types(given.dtype, torch.float32)

    def outputs(images: Tensor) -> Tensor:
        raw = output_tensor(model(images.to(given.device, dtype)))
        return class_logits(raw, graphs.output).to(images)

    rows = []
    with (
        forward_pass(model),
        torch.no_grad(),  # Captum enables gradients itself, where it needs them
        torch.autocast(given.device.type, enabled=False),
    ):
        for i, (seed, target) in enumerate(zip(request.seeds, request.targets, strict=True)):
            image = given[i : i + 1].detach().to("cpu", exact, copy=True).requires_grad_()
            with seeded(seed):
                if target.ndim:  # features: their projection on the clean image's is the one class

                    def projection(images: Tensor, target: Tensor = target) -> Tensor:
                        return scores_of(outputs(images), target.cpu())[:, None]

                    rows.append(attribute(projection, image, 0))
                else:
                    rows.append(attribute(outputs, image, int(target)))
    return torch.cat(rows)


#: Captum draws from generators that all threads share.
_DRAWING = RLock()


@contextmanager
def seeded(identity: int | str) -> Iterator[None]:
    """Seed the generators that Captum draws from, torch's and numpy's, and put them back after."""
    digest = hashlib.sha256(f"noise for {identity}".encode()).digest()
    seed = int.from_bytes(digest[:4], "big")
    with _DRAWING, torch.random.fork_rng(devices=[]):
        found = np.random.get_state()  # noqa: NPY002
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(found)  # noqa: NPY002


def patch_means(pixels: Tensor, graphs: Graphs) -> Tensor:
    """Mean over the pixels of each patch, (B, H, W) to (B, P).

    Patches start at the top left. Pixels beyond the last whole patch count for none where the
    model leaves them out; where it pads, the last patches have the pixels that there are.
    """
    gh, gw = graphs.grid
    means = avg_pool2d(pixels[:, None], patch_size(graphs), ceil_mode=True)
    return means[:, 0, :gh, :gw].flatten(1)


def patch_size(graphs: Graphs) -> tuple[int, int]:
    """(height, width) of a patch in pixels, from the grid of an image of 2²⁰ pixels a side.

    The grid of the images themselves does not tell: 31 pixels are three patches of 8 or of 10. Of
    a model with one grid for all sizes, the images' own size is divided.
    """
    side = 2**20
    grid = patch_grid(graphs.model, torch.empty(1, 3, side, side, device="meta"))
    if grid == graphs.grid:
        height, width = graphs.images.shape[-2:]
        return math.ceil(height / grid[0]), math.ceil(width / grid[1])
    return round(side / grid[0]), round(side / grid[1])
