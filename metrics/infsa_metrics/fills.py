"""Pixel fills: what stands where a patch was removed.

``pixel_fill`` turns any image classifier into the ``predict_masked`` of a deletion curve. A fill is
one function in a registry: it takes the preprocessing's mean and std and a seed, and returns what
maps normalised images to their replacement. Figures made with different fills are not comparable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from infsa_metrics.arrays import Array, to_tensor
from infsa_metrics.deletion import PredictMasked
from infsa_metrics.outputs import Output, class_probabilities, eval_mode, output_tensor

#: images (B, C, H, W) -> what their removed pixels become, broadcastable to (B, C, H, W)
Replacement = Callable[[Tensor], Tensor]
#: (mean, std, seed) -> Replacement
Fill = Callable[[Sequence[float] | None, Sequence[float] | None, int], Replacement]

#: Every fill by name; ``register_fill`` adds to it.
FILLS: dict[str, Fill] = {}


def register_fill(name: str) -> Callable[[Fill], Fill]:
    """Register a fill under a name, as a decorator.

    Raises:
        ValueError: if the name is taken.

    Example:
        >>> @register_fill("ones")
        ... def ones(mean, std, seed):
        ...     return torch.ones_like
        >>> FILLS.pop("ones")(None, None, 0)(torch.zeros(1, 1, 1, 2))
        tensor([[[[1., 1.]]]])
    """
    if name in FILLS:
        raise ValueError(f"name must be a new fill, got {name!r}, which is registered already")

    def add(fill: Fill) -> Fill:
        FILLS[name] = fill
        return fill

    return add


@register_fill("mean")
def mean_fill(mean: Sequence[float] | None, std: Sequence[float] | None, seed: int) -> Replacement:
    """The data set's mean colour: zero after normalisation."""
    return torch.zeros_like


@register_fill("black")
def black_fill(mean: Sequence[float] | None, std: Sequence[float] | None, seed: int) -> Replacement:
    """Black before normalisation: (0 − mean) / std in each channel."""
    if (
        mean is None
        or std is None
        or len(mean) != len(std)
        or min(std, default=0) <= 0
        or not all(map(math.isfinite, [*mean, *std]))
    ):
        got = f"mean={mean}, std={std}"
        raise ValueError(f"mean, std must be one mean and one std > 0 for each channel, got {got}")
    colour = -torch.tensor(mean, dtype=torch.float64) / torch.tensor(std, dtype=torch.float64)

    def replace(images: Tensor) -> Tensor:
        if len(colour) not in (1, images.shape[1]):
            expected = f"{images.shape[1]} values, one for each channel, or one for all"
            raise ValueError(f"mean, std must be {expected}, got {len(colour)}")
        return colour.to(images)[:, None, None]

    return replace


@register_fill("blur")
def blur_fill(mean: Sequence[float] | None, std: Sequence[float] | None, seed: int) -> Replacement:
    """The image itself under a heavy Gaussian blur: σ = min(H, W) / 8, cut off at 3σ."""
    from torchvision.transforms.v2.functional import gaussian_blur

    def replace(images: Tensor) -> Tensor:
        side = min(images.shape[-2:])
        sigma = side / 8
        width = 2 * min(math.ceil(3 * sigma), side - 1) + 1
        # A Gaussian is separable: two passes of `width` taps in place of one of width².
        rows: Tensor = gaussian_blur(images, [width, 1], [sigma])
        blurred: Tensor = gaussian_blur(rows, [1, width], [sigma])
        return blurred

    return replace


@register_fill("noise")
def noise_fill(mean: Sequence[float] | None, std: Sequence[float] | None, seed: int) -> Replacement:
    """One standard-normal pattern (C, H, W) of the seed, the same for every image and device."""

    def replace(images: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(images.shape[1:], generator=generator, dtype=torch.float32).to(images)

    return replace


def pixel_fill(
    model: Callable[[Tensor], Any],
    fill: str = "mean",
    *,
    output: Output = "auto",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    seed: int = 0,
) -> PredictMasked:
    """Make ``predict_masked`` for a model: fill the removed patches' pixels, then classify.

    A pixel belongs to the patch its centre lies in, so H and W need not be multiples of the grid
    that the mask's shape gives. A module is put in eval mode for each call, and left as found.

    Args:
        model: normalised images (B, C, H, W) -> logits (B, K), in any form that
            :func:`~infsa_metrics.outputs.output_tensor` reads.
        fill: ``"mean"``, ``"black"``, ``"blur"``, ``"noise"``, or another name in ``FILLS``.
        output: what the model's outputs are: ``"softmax"``, ``"sigmoid"``, ``"embedding"`` or
            ``"auto"``; see :mod:`infsa_metrics.outputs`.
        mean: the preprocessing's mean, per channel in [0, 1]; only ``"black"`` needs it.
        std: the preprocessing's standard deviation, per channel; only ``"black"`` needs it.
        seed: of the ``"noise"`` pattern.

    Returns:
        ``predict_masked(images (B, C, H, W) float, removed (B, gh, gw) bool)``, which gives
        probabilities (B, K) in float32 (float64 if the logits are), or for ``"embedding"``
        features (B, D), and changes neither argument.

    Raises:
        ValueError: for an unknown fill or a missing ``mean`` or ``std``, or a model that says it
            has no classifier (``num_classes`` 0) if ``output`` is not ``"embedding"``; on calling,
            for images or a mask of the wrong shape or dtype, or a model that does not return
            logits (B, K).

    Example:
        >>> def brightness(images):
        ...     return images.mean((2, 3))
        >>> images, removed = torch.ones(1, 2, 4, 4), torch.tensor([[[True, False]]])
        >>> images[:, 1] = 0
        >>> pixel_fill(brightness, "mean")(images, removed)  # softmax([0.5, 0])
        tensor([[0.6225, 0.3775]])
    """
    replace = _replacement(model, fill, output, mean, std, seed)

    def predict_masked(images: Array, removed: Array) -> Tensor:
        images, removed = to_tensor("images", images), to_tensor("removed", removed)
        pixels = _pixel_mask(images, removed)
        return _classified(model, torch.where(pixels, replace(images), images), output)

    return predict_masked


def filled_once(
    model: Callable[[Tensor], Any],
    images: Tensor,
    fill: str = "mean",
    *,
    output: Output = "auto",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    seed: int = 0,
) -> tuple[Tensor, PredictMasked]:
    """:func:`pixel_fill` for one deletion curve of these images: their fill is computed once.

    Args:
        model, fill, output, mean, std, seed: as :func:`pixel_fill` takes them.
        images: (B, C, H, W), normalised.

    Returns:
        ``inputs`` (B, 2·C, H, W), each image above its fill, and ``predict_masked(inputs,
        removed)``: what ``deletion_curve`` takes in place of the images and ``pixel_fill``.

    Raises:
        ValueError: as :func:`pixel_fill`.

    Example:
        >>> images, removed = torch.ones(1, 2, 4, 4), torch.tensor([[[True, False]]])
        >>> inputs, predict = filled_once(lambda x: x.mean((2, 3)), images)
        >>> inputs.shape, predict(inputs, removed)
        (torch.Size([1, 4, 4, 4]), tensor([[0.5000, 0.5000]]))
    """
    replace = _replacement(model, fill, output, mean, std, seed)

    def predict_masked(inputs: Tensor, removed: Tensor) -> Tensor:
        clean, filled = inputs.chunk(2, 1)
        return _classified(model, torch.where(_pixel_mask(clean, removed), filled, clean), output)

    return torch.cat([images, replace(images).expand_as(images)], 1), predict_masked


def _replacement(
    model: Any,
    fill: str,
    output: Output,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    seed: int,
) -> Replacement:
    """What gives the fill of images, checked together with what the model's outputs are."""
    if fill not in FILLS:
        raise ValueError(f"fill must be one of {', '.join(FILLS)}, got {fill!r}")
    if output != "embedding" and getattr(model, "num_classes", None) == 0:
        raise ValueError(
            "model must be a classifier, got num_classes = 0; give output='embedding' to follow "
            "its features"
        )
    return FILLS[fill](mean, std, seed)


def _classified(model: Callable[[Tensor], Any], images: Tensor, output: Output) -> Tensor:
    """Probabilities of images, checked to be one row each."""
    with eval_mode(model):
        raw = output_tensor(model(images))
    if len(raw) != len(images):
        raise ValueError(
            f"the output of the model must be logits of shape ({len(images)}, K), "
            f"got {tuple(raw.shape)}"
        )
    return class_probabilities(raw, output)


def _pixel_mask(images: Tensor, removed: Tensor) -> Tensor:
    """Spread a mask over patches to pixels: (B, gh, gw) -> (B, 1, H, W)."""
    if images.ndim != 4 or not images.is_floating_point():
        got = f"{tuple(images.shape)} {images.dtype}"
        raise ValueError(f"images must be floats of shape (B, C, H, W), got {got}")
    sizes, grid = images.shape[2:], removed.shape[1:]
    fits = removed.ndim == 3 and all(0 < g <= n for g, n in zip(grid, sizes, strict=True))
    if not fits or len(removed) != len(images) or removed.dtype != torch.bool:
        expected = f"bool of shape ({len(images)}, gh <= {sizes[0]}, gw <= {sizes[1]})"
        got = f"{tuple(removed.shape)} {removed.dtype}"
        raise ValueError(f"removed must be {expected}, got {got}")
    # the patch of pixel i is floor((i + ½) g / n), in whole numbers
    rows, columns = (
        (2 * torch.arange(n, device=removed.device) + 1) * g // (2 * n)
        for n, g in zip(sizes, grid, strict=True)
    )
    return removed[:, None, rows[:, None], columns].to(images.device)
