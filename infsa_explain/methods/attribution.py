"""Map methods as Captum's attributions, for its metrics, its NoiseTunnel and its visualisers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from captum.attr import Attribution
from captum.log import log_usage
from infsa_metrics import class_logits, output_tensor
from torch import Tensor, nn
from torch.nn.functional import interpolate

from ..vits import model_output
from . import Explanation, explain, get_method

__all__ = ["MethodAttribution", "captum_attribution"]

#: Images (B, 3, H, W), or a tuple of that one tensor, which some of Captum's functions pass.
Inputs = TypeVar("Inputs", Tensor, tuple[Tensor])


def captum_attribution(
    model: nn.Module,
    method: str = "visits",
    *,
    layer: int | str = -1,
    head: int | None = None,
    gamma: float | None = None,
    seeds: Sequence[int | str] | None = None,
) -> MethodAttribution:
    """Make a map method an attribution of pixels, a ``captum.attr.Attribution``.

    Args:
        model: a supported ViT, in any mode; it is left as found.
        method: a name in ``METHODS``.
        layer, head, gamma: as in :func:`infsa_explain.explain`.
        seeds: B identities of the images, for methods that draw; their places in the batch if
            None. Where Captum shows every image several times in a row, as its metrics do, all
            copies keep their image's identity, so that they differ in nothing but what is shown.

    Returns:
        :class:`MethodAttribution`.

    Raises:
        ValueError: for an unknown method, or a layer or a head that the method does not have. What
            else is wrong shows in ``attribute``.

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
        forward_func: images (B, 3, H, W) → logits of classes (B, K), whatever form the model's
            outputs have.
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
    def attribute(
        self, inputs: Inputs, target: int | str | Sequence[int] | Tensor | None = None
    ) -> Inputs:
        """The method's maps, drawn out to the images' pixels and shared out among the channels.

        Args:
            inputs: (B, 3, H, W), as :func:`infsa_explain.explain` takes them.
            target: the class to explain, by number or name, one for all or one each; the predicted
                one if None.

        Returns:
            (B, 3, H, W) float32, alike in every channel: their sum is the map, raw, enlarged
            bilinearly between patch centres (``align_corners=False``), as overlays draw it. NaN
            where there is no map. A tuple of it where ``inputs`` is a tuple.

        Raises:
            ValueError: as :func:`infsa_explain.explain`.
        """
        if isinstance(inputs, tuple):
            (images,) = inputs
            return (self.attribute(images, target),)
        if (
            not (target is None or isinstance(target, str))
            and (single := torch.as_tensor(target)).numel() == 1
        ):
            target = single.reshape(())  # one class in a list or tensor is Captum's "for all"
        seeds = self._seeds
        if seeds is not None:
            seeds = [seed for seed in seeds for _ in range(len(inputs) // len(seeds))]
        maps = self._maps_of(inputs, target=target, seeds=seeds).maps
        channels, *size = inputs.shape[1:]
        pixels = interpolate(maps[:, None], size, mode="bilinear", align_corners=False)
        return (pixels / channels).repeat(1, channels, 1, 1)
