"""Error bounds of computed Perron vectors, from products with the graph.

Let M be Â or Âᵀ, x a vector that is positive on a set T of tokens and zero elsewhere, where no
edge leads from outside T into T, and k a token of T. With g_i = (Mx)_i / x_i on T:

1. min g ≤ ρ ≤ max g, the spectral radius of M on T (Collatz and Wielandt).
2. S_ij = M_ij x_j / (g_i x_i) is a stochastic matrix. Let z_i be at least the expected number of
   steps until its walk from i reaches k. If ε max z < 1 for ε = max g / min g − 1, then M has one
   Perron vector on T, and it is x_i (1 + e_i) with e_k = 0 and |e_i| ≤ εz_i / (1 − ε max z).
3. If the spectral radius of M outside T is below min g, the Perron vector is zero there, and ρ is
   the spectral radius of the whole graph.

Proof of 2: an eigenvector x_i w_i of ρ satisfies Sw = (ρ/g) w. With w_k = 1 and w = 1 + e this is
(I − S₀) e = (1 − ρ/g)(1 + e), where S₀ is S without row and column k. I − S₀ is an M-matrix.
Its inverse N ≥ 0 counts visits before k, N·1 = z, and |1 − ρ/g| ≤ ε. So |e| ≤ εz (1 + max |e|).
If w_k were 0, max |w| ≤ ε max z · max |w| would follow, so w = 0.

z need not be exact: a vector z > 0 with (I − S₀) z ≥ m > 0 has N·1 ≤ z/m. After t steps
z = Σ_{s<t} S₀ˢ·1 has m = 1 − max S₀ᵗ·1. So a few products suffice if every token reaches k soon.
Outside T the same vector proves 3.

The bounds need no spectral gap, and M need be neither normal nor primitive. They hold for the Â
that float64 forms.

Source: Collatz 1942; Wielandt 1950; Berman and Plemmons, Nonnegative Matrices in the Mathematical
Sciences, chapter 6 (M-matrices); Cho and Meyer, Markov chain sensitivity measured by mean first
passage times, Linear Algebra and its Applications 316, 2000.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .solvers import FLOAT64, Step

__all__ = ["Enclosed", "enclose", "enclosed_radius", "enclosed_vector", "product_rounding"]

#: Below this a product may have lost digits to underflow; vectors are scaled to a maximum of 1.
FLOOR = 1e-280


class Enclosed(NamedTuple):
    """A vector with its bounds; ``distance`` is ``inf`` where nothing is proven.

    Attributes:
        vector: (..., N) non-negative, any scale.
        lower, upper: (...) bounds on the spectral radius ρ, if the vector is the Perron vector.
        entries: (...) upper bound on |exact_i / vector_i − 1| over the entries that are not zero,
            with the exact vector suitably scaled. Zeros are exact.
        distance: (...) upper bound on ‖vector − exact‖₂, both scaled to 2-norm 1.
    """

    vector: Tensor
    lower: Tensor
    upper: Tensor
    entries: Tensor
    distance: Tensor

    @property
    def spread(self) -> Tensor:
        """max g / min g − 1, (...)."""
        return self.upper / self.lower - 1


def product_rounding(tokens: int) -> float:
    """Relative error of (Mx)_i / x_i in float64, with a margin for the entries of M."""
    return (tokens + 16) * FLOAT64.eps / 2


def enclosed_radius(x: Tensor, image: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper bound on the spectral radius on the support, (...); 0 and inf for none.

    Args:
        x: (..., N), positive on the support and at most 1.
        image: (..., N) M x.
        support: (..., N) bool, closed: no edge leads into it.
    """
    rounding = product_rounding(x.shape[-1])
    ratios = image / x
    lower = ratios.where(support, torch.inf).amin(-1) * (1 - rounding)
    upper = ratios.where(support, 0.0).amax(-1) * (1 + rounding)
    exact = ((image >= FLOOR) & (x > 0)) | ~support
    usable = exact.all(-1) & support.any(-1) & upper.isfinite()
    return lower.where(usable, 0.0), upper.where(usable, torch.inf)


def enclose(
    step: Step,
    x: Tensor,
    image: Tensor,
    support: Tensor,
    hub: Tensor,
    *,
    tol: float,
    limit: int,
) -> Enclosed:
    """Bounds on the error of x, from at most ``limit`` steps of the walk S.

    Args:
        step: x ↦ Mx for x (B, H, N) in float64.
        x: (B, H, N) the computed vector, positive on the support and zero elsewhere, at most 1.
        image: (B, H, N) M x.
        support: (B, H, N) bool, T; nothing is proven where it is empty.
        hub: (B, H, 1) index of k.
        tol: distance at which to stop.
        limit: products at most.
    """
    rounding = product_rounding(x.shape[-1])
    lower, upper = enclosed_radius(x, image, support)
    # Outside T any positive vector will do; a tiny one hardly adds to the products in T.
    weights = torch.where(support, x, 1e-20 * x.where(support, 1.0).amin(-1, keepdim=True))
    over = torch.where(support, image, lower[..., None] * weights)
    away = torch.ones_like(x).scatter_(-1, hub, 0.0)  # S₀ᵗ·1, walks that have not reached k
    times = torch.zeros_like(x)
    for count in range(1, limit + 1):
        times = times + away
        away = (step(weights * away) / over).nan_to_num(nan=1.0, posinf=1.0).scatter_(-1, hub, 0.0)
        slack = 2 * count * rounding
        margin = 1 - away.amax(-1) * (1 + slack) - slack
        enclosed = enclosed_vector(x, lower, upper, times * support * (1 + slack), margin)
        # Once half of the walks have reached k, further steps gain little.
        if bool(((enclosed.distance <= tol) | (margin > 0.5) | (lower == 0)).all()):
            break
    return enclosed


def enclosed_vector(
    x: Tensor, lower: Tensor, upper: Tensor, times: Tensor, margin: Tensor
) -> Enclosed:
    """Bounds on the error of x, from bounds on the radius and on the hitting times.

    Args:
        x: (..., N), zero off the support.
        lower, upper: (...) bounds on the spectral radius.
        times: (..., N) z, zero off the support and at k; hitting times are at most times / margin.
        margin: (...) m; nothing is proven where it is not positive.
    """
    spread = upper / lower - 1 + FLOAT64.eps
    worst = spread * times.amax(-1) / margin
    proven = (lower > 0) & (margin > 0) & (worst < 1)  # False for NaN, too
    rounding = product_rounding(x.shape[-1])  # scaling x to 2-norm 1 is within it
    entries = worst / (1 - worst)
    shares = (spread / margin * (1 + entries))[..., None] * times
    sine = (shares * x).norm(dim=-1) / x.norm(dim=-1)
    chord = sine * (2 / (1 + (1 - sine**2).sqrt())).sqrt()
    return Enclosed(
        x,
        lower,
        upper,
        (entries * (1 + rounding) + rounding).where(proven, torch.inf),
        (chord * (1 + rounding) + rounding).where(proven & (sine < 1), torch.inf),
    )
