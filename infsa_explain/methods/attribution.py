"""Map methods as Captum's attributions, for its metrics, its NoiseTunnel and its visualisers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
from captum.attr import Attribution
from captum.log import log_usage
from infsa_metrics import class_logits, output_tensor
from torch import Tensor, nn
from torch.nn.functional import interpolate

from ..vits import model_output
from .explaining import explain
from .explanation import Explanation
from .registry import LayerChoice, get_method
from .targets import Target

__all__ = ["MethodAttribution", "captum_attribution"]

#: Images (B, 3, H, W), or a tuple of that one tensor, which some of Captum's functions pass.
Inputs = TypeVar("Inputs", Tensor, tuple[Tensor])


def captum_attribution(
    model: nn.Module,
    method: str = "visits",
    *,
    layer: LayerChoice = -1,
    head: int | None = None,
    gamma: float | None = None,
    seeds: Sequence[int | str] | None = None,
) -> MethodAttribution:
    """A map method as an attribution of pixels, a ``captum.attr.Attribution``.

    Args:
        model: a supported ViT, in any mode. It is unchanged afterwards.
        method: a name in ``METHODS``.
        layer, head, gamma: as for :func:`infsa_explain.explain`.
        seeds: B identities of the images, for methods that draw random numbers; their indices in
            the batch if None. Captum's metrics pass several perturbed copies of each image in a
            row. All copies get the identity of their image, so that only the perturbation differs.

    Returns:
        :class:`MethodAttribution`.

    Raises:
        ValueError: for what is no model, an unknown method, or a layer or head that the method does
            not have. Other errors are raised by ``attribute``.

    >>> import torch
    >>> from timm.models import VisionTransformer
    >>> vit = VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=3, num_heads=2)
    >>> attributions = captum_attribution(vit.eval(), "visits").attribute(torch.ones(1, 3, 32, 32))
    >>> attributions.shape
    torch.Size([1, 3, 32, 32])
    """
    get_method(method).check(layer, head)
    maps_of = partial(explain, model, method=method, layer=layer, head=head, gamma=gamma)
    return MethodAttribution(model, maps_of, seeds)


class MethodAttribution(Attribution):  # type: ignore[misc]  # Captum has no types
    """A map method as an attribution of pixels; made by :func:`captum_attribution`.

    Attributes:
        forward_func: images (B, 3, H, W) → logits of classes (B, K), for every form of output.
    """

    def __init__(
        self,
        model: nn.Module,
        maps_of: Callable[..., Explanation],
        seeds: Sequence[int | str] | None,
    ) -> None:
        output = model_output(model)
        super().__init__(lambda images: class_logits(output_tensor(model(images)), output))
        self._maps_of, self._seeds = maps_of, seeds

    @log_usage()  # type: ignore[untyped-decorator]  # NoiseTunnel looks for what it wraps
    def attribute(self, inputs: Inputs, target: Target = None) -> Inputs:
        """The method's maps, resized to the images' pixels and divided among the channels.

        Args:
            inputs: (B, 3, H, W), preprocessed as for :func:`infsa_explain.explain`.
            target: the class to explain, by number or name, one for all images or one per image;
                the predicted class if None.

        Returns:
            (B, 3, H, W) float32, equal in all channels. Their sum is the raw map, resized
            bilinearly between patch centres (``align_corners=False``), as overlays draw it. NaN
            if an image has no map. A tuple of one tensor if ``inputs`` is a tuple.

        Raises:
            ValueError: as :func:`infsa_explain.explain`.
        """
        if isinstance(inputs, tuple):
            (images,) = inputs
            return (self.attribute(images, target),)
        if isinstance(target, Sequence | Tensor | np.ndarray) and np.shape(target) == (1,):
            target = target[0]  # in Captum, a list or tensor of one class is for all images
        seeds = self._seeds
        if seeds is not None:
            seeds = [seed for seed in seeds for _ in range(len(inputs) // len(seeds))]
        maps = self._maps_of(inputs, target=target, seeds=seeds).maps
        channels, *size = inputs.shape[1:]
        pixels = interpolate(maps[:, None], size, mode="bilinear", align_corners=False)
        return (pixels / channels).repeat(1, channels, 1, 1)
