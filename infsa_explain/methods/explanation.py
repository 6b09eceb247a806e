"""The result of :func:`infsa_explain.explain`: maps, and what is known of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Unpack

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from ..data.pixels import AnyImage, Region
    from ..drawing.heatmap import Display
    from ..vits.preprocessing import Framing

__all__ = ["Explanation"]


@dataclass(frozen=True)
class Explanation:
    """Maps of a batch, with diagnostics.

    Attributes:
        maps: (B, gh, gw) float32, raw: never clipped or rescaled; higher is more important.
        tokens: (B, N) with the prefix tokens.
        method: the method's name.
        layers: indices of the layers that were used; none for a control.
        heads: indices of the heads that were used; None for a method without heads.
        diagnostics: tensors (L, B, H) over the used layers. ``dead_heads`` bool, of all layers for
            a control. By some methods also ``min_absorption``, ``invalid_rows``, ``error_bound``
            (relative, of the scores; of a Perron vector, in 2-norm at unit length), ``residual``,
            ``converged``, ``unique``, ``resolved``, ``value``, ``second``. NaN (``dead_heads``:
            False) for heads that a layer lacks. By methods of the whole model, (B,).
        logits: (B, C), of the same pass.
        framing: where the model's input lies in an image; None if the model has no data
            configuration, or the images have another size than its preprocessing makes.
        gammas: every γ that the method used, a scalar or (H,), layer by layer.
    """

    maps: Tensor
    tokens: Tensor
    method: str
    layers: tuple[int, ...]
    heads: tuple[int, ...] | None
    diagnostics: dict[str, Tensor] = field(repr=False)
    logits: Tensor = field(repr=False)
    framing: Framing | None = field(default=None, repr=False)
    gammas: tuple[Tensor, ...] = field(default=(), repr=False)

    def overlay(
        self,
        image: AnyImage,
        index: int | None = None,
        *,
        region: Region | None = None,
        **display: Unpack[Display],
    ) -> NDArray[np.uint8]:
        """Draw a map over its image, in the region that the model saw.

        Args:
            image: the whole image, before it was resized and cropped, at any resolution, as for
                :func:`infsa_explain.overlay`.
            index: of the map in the batch; not needed for a batch of one.
            region: as for :func:`infsa_explain.overlay`. Only needed for images that were not
                prepared by :func:`infsa_explain.preprocess`, whose crop is known.
            **display: as for :func:`infsa_explain.overlay`.

        Returns:
            (H, W, 3) uint8 RGB, in the size of the image. What the model did not see is darkened.

        Raises:
            ValueError: for several maps without an ``index``, an index out of range, a map that is
                NaN, as when every head is dead, or as :func:`infsa_explain.overlay`.

        >>> import infsa_explain
        >>> model = infsa_explain.load("infvit_linear_digits")
        >>> photo = np.full((300, 400, 3), 128, dtype=np.uint8)
        >>> drawn = infsa_explain.explain(model, photo).overlay(photo)
        >>> drawn.shape, drawn[0, 0].tolist()  # the model saw the middle square
        ((300, 400, 3), [51, 51, 51])
        """
        from ..data.pixels import to_pixels
        from ..drawing.heatmap import overlay  # which imports matplotlib

        count = len(self.maps)
        if index is None and count > 1:
            raise ValueError(f"index must say which of the {count} maps is drawn, got None")
        chosen = 0 if index is None else index
        if not -count <= chosen < count:
            raise ValueError(f"index must be one of {count} maps, 0 to {count - 1}, got {index}")
        scores = self.maps[chosen]
        if scores.isnan().all():
            raise ValueError(f"map {chosen} of {self.method} is NaN: there is nothing to draw")
        pixels = to_pixels(image, display.pop("mean", None), display.pop("std", None))
        if region is None and self.framing is not None:
            region = self.framing.region(*pixels.shape[:2])
        return overlay(pixels, scores, region=region, **display)
