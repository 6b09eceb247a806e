"""Whether maps depend on what they should: on the model's weights, and not on a little noise.

A map that stays the same when the model's weights are made random shows the image, not the model.
Compare the maps of both with :func:`rank_correlation` and :func:`ssim`: there, *lower* is better.
Neither sees how far a map spreads, and untrained models give maps that are nearly flat: those
count as they would stretched to the full range. In :func:`stability` *higher* is better, but a map
that ignores the image is perfectly stable. A constant map has no order; every measure here is NaN
for it, to be counted.

Sources: Adebayo et al. 2018, Sanity Checks for Saliency Maps (arXiv:1810.03292); on stability,
Alvarez-Melis & Jaakkola 2018 (arXiv:1806.08049).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from infsa_metrics.alignment import spearman
from infsa_metrics.arrays import Array, to_tensor

__all__ = ["agreement", "rank_correlation", "ssim", "stability"]

#: What keeps SSIM's two quotients defined, for maps in [0, 1]: Wang et al.'s K₁² and K₂².
C_1, C_2 = 0.01**2, 0.03**2


def rank_correlation(a: Array, b: Array) -> Tensor:
    """Spearman's ρ between two maps of an image, over their patches; 1 for the same order.

    Between a model's map and a randomised copy's, lower is better.

    Args:
        a: maps (B, gh, gw).
        b: maps of the same shape.

    Returns:
        (B,) float64 in [−1, 1], on the device of the maps; NaN where a map is constant or has a
        NaN.

    Raises:
        ValueError: if the maps are not both (B, gh, gw).

    Example:
        >>> map = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
        >>> rank_correlation(map, 1 / map).round(decimals=6)
        tensor([-1.], dtype=torch.float64)
    """
    a, b = _maps(a=a, b=b)
    return spearman(a.flatten(1), b.flatten(1))


def ssim(a: Array, b: Array, window: int = 7) -> Tensor:
    """Mean structural similarity of two maps of an image, each scaled to [0, 1] first.

    Between a model's map and a randomised copy's, lower is better. In a window with means μ,
    variances σ² and covariance σ_ab it is
    (2 μ_a μ_b + C₁)(2 σ_ab + C₂) / ((μ_a² + μ_b² + C₁)(σ_a² + σ_b² + C₂)), averaged over the
    windows that lie wholly within the grid. These are scikit-image's defaults: uniform windows,
    sample (co)variances; Wang et al. have Gaussian windows of 11.

    Args:
        a: maps (B, gh, gw), at least 2×2.
        b: maps of the same shape.
        window: side of the windows in patches, at least 2; the shorter side of a smaller grid.

    Returns:
        (B,) float64 in [−1, 1], on the device of the maps; 1 for maps that are the same but for
        scale and offset, NaN where a map is constant or not finite.

    Raises:
        ValueError: if the maps are not both (B, gh, gw) and at least 2×2, or for an unusable
            window.

    Source:
        Wang et al. 2004, Image quality assessment: from error visibility to structural similarity.

    Example:
        >>> a = torch.arange(64.0).view(1, 8, 8)
        >>> ssim(a, 3 * a + 1), ssim(a, -a)
        (tensor([1.], dtype=torch.float64), tensor([-0.9549], dtype=torch.float64))
    """
    a, b = _maps(a=a, b=b)
    if min(a.shape[1:]) < 2:
        raise ValueError(f"a, b must be grids of at least 2×2 patches, got {tuple(a.shape[1:])}")
    if not _is_int(window) or window < 2:
        raise ValueError(f"window must be an integer of at least 2, got {window!r}")
    side = min(window, *a.shape[1:])
    a, b = _unit_range(a), _unit_range(b)

    def mean(x: Tensor) -> Tensor:
        return avg_pool2d(x.unsqueeze(1), side, stride=1)  # the windows within the grid

    sample = side**2 / (side**2 - 1)
    mean_a, mean_b = mean(a), mean(b)
    var_a = sample * (mean(a * a) - mean_a**2)
    var_b = sample * (mean(b * b) - mean_b**2)
    cov = sample * (mean(a * b) - mean_a * mean_b)
    luminance = (2 * mean_a * mean_b + C_1) / (mean_a**2 + mean_b**2 + C_1)
    structure = (2 * cov + C_2) / (var_a + var_b + C_2)
    similarity: Tensor = (luminance * structure).mean((1, 2, 3))
    return similarity


def stability(
    explain: Callable[[Tensor], Tensor],
    images: Array,
    *,
    noise: float = 0.05,
    draws: int = 4,
    seeds: Sequence[int | str] | None = None,
) -> Tensor:
    """Mean Spearman's ρ between the map of an image and of the image with a little noise.

    Higher is better. The noise is Gaussian, independent in every pixel and channel, its standard
    deviation a share of the image's own range, as SmoothGrad measures it.

    Args:
        explain: gives maps (B, gh, gw) of images (B, C, H, W).
        images: (B, C, H, W) floats, never changed.
        noise: standard deviation over the image's maximum less its minimum, above 0.
        draws: of noise, at least 1.
        seeds: B image identities; each seeds its own image's noise, so that it does not depend on
            the image's place in a batch. ``None`` takes the place, 0 to B−1.

    Returns:
        (B,) float64 in [−1, 1], on the device of the maps; NaN where one of the maps is constant
        or has a NaN, or the image is constant, and so has no range.

    Raises:
        ValueError: for an argument of the wrong shape, type or range, or an ``explain`` whose
            answer is not B maps.

    Source:
        Smilkov et al. 2017, SmoothGrad (arXiv:1706.03825), for the noise.

    Example:
        >>> def brightness(images):
        ...     return images.mean(1)
        >>> stability(brightness, torch.arange(48.0).view(1, 3, 4, 4), noise=1e-6)
        tensor([1.], dtype=torch.float64)
    """
    images = to_tensor("images", images)
    copies = noisy_copies(images, noise=noise, draws=draws, seeds=seeds)
    first = next(copies)  # refuses options that will not do before anything is explained
    clean = _maps_of(explain, images)
    rho = [rank_correlation(clean, _maps_of(explain, noisy)) for noisy in (first, *copies)]
    mean = torch.stack(rho).mean(0)
    return mean.masked_fill((image_range(images) == 0).to(mean.device), torch.nan)


def image_range(images: Tensor) -> Tensor:
    """The maximum of each image less its minimum: (B, C, H, W) to (B,)."""
    return images.detach().amax((1, 2, 3)) - images.detach().amin((1, 2, 3))


def noisy_copies(
    images: Tensor,
    *,
    noise: float = 0.05,
    draws: int = 4,
    seeds: Sequence[int | str] | None = None,
) -> Iterator[Tensor]:
    """The images with noise, one copy of all of them a draw; see :func:`stability`.

    Args:
        images: (B, C, H, W) floats, never changed.
        noise, draws, seeds: as :func:`stability` takes them.

    Yields:
        (B, C, H, W), in the dtype and on the device of the images.

    Raises:
        ValueError: for an argument of the wrong shape, type or range, when the first is asked for.
    """
    if images.ndim != 4 or not images.is_floating_point():
        got = f"{tuple(images.shape)} {images.dtype}"
        raise ValueError(f"images must be floats of shape (B, C, H, W), got {got}")
    if not 0 < noise < math.inf:
        raise ValueError(f"noise must be a share above 0, got {noise}")
    if not _is_int(draws) or draws < 1:
        raise ValueError(f"draws must be an integer of at least 1, got {draws!r}")
    seeds = range(len(images)) if seeds is None else seeds
    if isinstance(seeds, str) or len(seeds) != len(images):
        raise ValueError(
            f"seeds must be {len(images)} identities, one for each image, got {seeds!r:.80}"
        )
    sigma = noise * image_range(images)[:, None, None, None]
    for draw in range(draws):
        pattern = torch.stack([_pattern(images.shape[1:], seed, draw) for seed in seeds])
        yield images.detach() + sigma * pattern.to(images)


def agreement(maps: Mapping[str, Array]) -> Tensor:
    """Spearman's ρ between the maps of every two methods, image by image.

    Args:
        maps: M methods' maps (B, gh, gw) of the same images, by name.

    Returns:
        (B, M, M) float64 in [−1, 1], in the order of ``maps``, on their device: symmetric, 1 on
        the diagonal; NaN in the row and column of a map that is constant or has a NaN.

    Raises:
        ValueError: if there is no method, or the maps are not all of one shape (B, gh, gw).

    Example:
        >>> map = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
        >>> agreement({"a": map, "b": -map}).round(decimals=6)
        tensor([[[ 1., -1.],
                 [-1.,  1.]]], dtype=torch.float64)
    """
    if not maps:
        raise ValueError("maps must hold at least one method, got none")
    flat = torch.stack([scores.flatten(1) for scores in _maps(**maps)], 1)  # (B, M, P)
    rho = spearman(flat[:, :, None], flat[:, None])
    diagonal = rho.diagonal(dim1=1, dim2=2)
    diagonal.masked_fill_(~diagonal.isnan(), 1)  # to the last digit
    return rho


def _unit_range(maps: Tensor) -> Tensor:
    """Maps (B, gh, gw) from 0 to 1 each, in float64; NaN where constant."""
    x = maps.detach().double()
    x = x - x.amin((1, 2), keepdim=True)
    return x / x.amax((1, 2), keepdim=True)


def _pattern(shape: torch.Size, seed: int | str, draw: int) -> Tensor:
    """Standard-normal noise that an image's identity and the number of the draw decide."""
    digest = hashlib.sha256(f"noise {draw} of {seed}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.randn(shape, generator=generator, dtype=torch.float32)


def _maps_of(explain: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    maps = explain(images)
    is_array = isinstance(maps, (Tensor, np.ndarray))
    if not is_array or maps.ndim != 3 or len(maps) != len(images):
        got = tuple(maps.shape) if is_array else type(maps).__name__
        raise ValueError(
            f"the result of explain must be maps of shape ({len(images)}, gh, gw), got {got}"
        )
    return to_tensor("explain", maps).detach()


def _maps(**maps: Array) -> list[Tensor]:
    """As tensors; raise unless all are of one shape (B, gh, gw)."""
    found = {name: to_tensor(name, scores) for name, scores in maps.items()}
    shapes = {tuple(scores.shape) for scores in found.values()}
    if len(shapes) > 1 or len(next(iter(shapes))) != 3 or 0 in next(iter(shapes))[1:]:
        got = ", ".join(f"{name} {tuple(scores.shape)}" for name, scores in found.items())
        raise ValueError(f"{', '.join(maps)} must be of one shape (B, gh, gw), got {got}")
    return list(found.values())


def _is_int(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
