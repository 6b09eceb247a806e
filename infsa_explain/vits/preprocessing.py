"""From an image to the input of a model, by the model's ``pretrained_cfg``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from timm.data import create_transform, resolve_model_data_config
from timm.data.transforms import CenterCropOrPad, ResizeKeepRatio
from torch import Tensor, nn
from torchvision import transforms
from torchvision.transforms import v2
from torchvision.tv_tensors import BoundingBoxes

from ..data.pixels import (
    CHANNELS,
    AnyImage,
    Region,
    channels_last,
    holds_colours,
    is_array,
    separate,
    to_pixels,
)
from .passes import forward_pass, watching
from .registry import family_of
from .wrappers import first_argument, unwrapped, vit_of

__all__ = [
    "Framing",
    "data_config",
    "frame_boxes",
    "model_input",
    "preprocess",
    "visible_region",
]

#: Images with a larger aspect ratio are strips.
STRIP = 16
#: Half the width of the widest kernel that resizes images, plus a pixel for rounding.
KERNEL = 4
#: timm's steps that resize.
RESIZES = (transforms.Resize, ResizeKeepRatio)


def data_config(model: nn.Module) -> dict[str, Any]:
    """timm's data configuration of a model, with the ``input_size`` that the model was built for.

    It is the model's attribute ``pretrained_cfg``, a dict with ``mean``, ``std``, ``crop_pct``,
    ``crop_mode`` or ``interpolation``. Missing keys, and all keys of models by torchvision and
    Hugging Face, are those of the published weights of the model's family.

    For a model that holds a ViT and normalises the images itself, as the ViT's configuration
    says, the mean is 0 and the standard deviation 1, or 1/255 if it takes images from 0 to 255.

    Raises:
        ValueError: if the model has no ``pretrained_cfg`` and is of no known family, or if it
            changes the images in another way before its ViT.
    """
    outer, model = unwrapped(model), vit_of(model)
    recorded = getattr(outer, "pretrained_cfg", None)
    if outer is not model:
        inner = data_config(model)
        return inner | (_remaining_normalisation(outer, inner) if recorded is None else recorded)
    family = family_of(model)
    if family is None and recorded is None:
        raise ValueError(
            f"{type(model).__name__} does not say how its images are prepared; give it a "
            "pretrained_cfg, a dict with input_size (3, height, width), mean and std"
        )
    of_family = family.data(model) if family else {}
    config: dict[str, Any] = resolve_model_data_config(
        model, pretrained_cfg={**of_family, **(recorded or {})}
    )
    if "input_size" in of_family:
        config["input_size"] = (config["input_size"][0], *of_family["input_size"][1:])
    return config


def _remaining_normalisation(model: nn.Module, config: dict[str, Any]) -> dict[str, Any]:
    """``mean`` and ``std`` for a model around a ViT, given the ViT's configuration.

    The model runs on random pixels until its ViT is called, to see what it does before that.
    """
    vit = vit_of(model)
    like = next(model.parameters())
    pixels = torch.rand(1, *config["input_size"], generator=torch.Generator().manual_seed(0))
    inputs: list[Tensor] = []

    def enter(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        inputs.append(first_argument(module, args, kwargs))
        raise _Entered

    with (
        suppress(_Entered),
        watching({"vit": vit}, before=enter),
        forward_pass(model),
        torch.no_grad(),
    ):
        model(pixels.to(like))
    mean, std = (torch.tensor(config[key])[:, None, None] for key in ("mean", "std"))
    zero, one = (0.0,) * len(mean), (1.0,) * len(mean)
    possible: list[tuple[Tensor, dict[str, Any]]] = [
        (pixels, {}),
        ((pixels - mean) / std, {"mean": zero, "std": one}),
        ((pixels / 255 - mean) / std, {"mean": zero, "std": tuple(x / 255 for x in one)}),
    ]
    for expected, remaining in possible:
        if [x.shape for x in inputs] == [expected.shape] and torch.allclose(
            inputs[0].float().cpu(), expected, rtol=1e-2, atol=1e-2
        ):
            return remaining
    raise ValueError(
        f"what stands before the {type(vit).__name__} in {type(model).__name__} neither leaves "
        "images as they are nor normalises them as the ViT expects; give the model a "
        "pretrained_cfg, a dict with the mean and std that its images need"
    )


class _Entered(Exception):
    """The ViT inside a model was called."""


def preprocess(model: nn.Module, images: AnyImage | Iterable[AnyImage]) -> Tensor:
    """Resize, crop and normalise images as the model expects.

    Args:
        model: a model with a :func:`data_config`.
        images: one image or several, of any sizes: a path, a Pillow image, an array or a tensor
            as for :func:`infsa_explain.data.pixels.to_pixels`, or a sequence of these; or a batch,
            (B, H, W, C) or (B, C, H, W).

    Returns:
        (B, 3, h, w), normalised, with the device and dtype of the model.

    Raises:
        ValueError: for anything else, such as an image that is already normalised or a file that
            cannot be read.

    >>> import infsa_explain
    >>> model = infsa_explain.load("infvit_linear_digits")
    >>> grey, rgba = np.zeros((90, 120)), np.zeros((112, 112, 4), dtype=np.uint8)
    >>> preprocess(model, [grey, rgba]).shape
    torch.Size([2, 3, 112, 112])
    """
    transform = create_transform(**data_config(model), is_training=False)
    resize = transform.transforms[0]
    tensors = [
        transform(_middle_of_strip(Image.fromarray(_picture(image)), resize))
        for image in separate(images)
    ]
    return torch.stack(tensors).to(next(model.parameters()))


def model_input(model: nn.Module, images: AnyImage | Iterable[AnyImage]) -> Tensor:
    """A batch for a model, from pictures or from preprocessed images.

    Args:
        model: a model that :func:`data_config` knows.
        images: float tensors or arrays with the channels first, (B, C, H, W), (C, H, W) or a
            sequence of these, count as preprocessed and are not changed. There is a warning if
            their values are whole numbers from 0 to 255, unless the model expects those. Values in
            [0, 1] are accepted without a warning: a preprocessed image may have them too.
            Everything else is passed to :func:`preprocess`.

    Returns:
        (B, C, H, W). A tensor is on its own device, and of its own dtype unless that is float64;
        the rest is as the model.

    Raises:
        ValueError: as :func:`preprocess`, or for a sequence that mixes the two.
    """
    if _is_prepared(images):
        like = next(model.parameters(), torch.empty(()))
        batch: Tensor = images  # type: ignore[assignment]
        if isinstance(images, np.ndarray):
            batch = torch.from_numpy(np.array(images)).to(like)
        elif batch.dtype == torch.float64:  # what comes of NumPy's floats
            batch = batch.to(like.dtype)
        _warn_of_levels(model, batch)
        return batch if batch.ndim == 4 else batch[None]
    singles = separate(images)
    prepared = [_is_prepared(image) for image in singles]
    if not any(prepared):
        return preprocess(model, singles)
    if not all(prepared):
        raise ValueError(
            "images must be all pictures, or all preprocessed (float, channels first), got both"
        )
    return torch.cat([model_input(model, image) for image in singles])


def _warn_of_levels(model: nn.Module, batch: Tensor) -> None:
    """Warn if a batch that counts as preprocessed holds colour levels from 0 to 255."""
    if not batch.numel() or batch.min() < 0 or not 1 < batch.max() <= 255:
        return
    with suppress(ValueError):  # nothing is known of the model's preprocessing
        expects_levels = max(data_config(model)["std"]) < 0.02  # 1/255
        if not expects_levels and bool((batch == batch.round()).all()):
            warnings.warn(
                "images are float with whole numbers up to 255, and float images with the channels "
                "first count as preprocessed; pass them as uint8, or use preprocess(model, images)",
                stacklevel=4,
            )


def _is_prepared(images: Any) -> bool:
    """Whether this is a float tensor or array with the channels first."""
    if isinstance(images, Tensor):
        floating = images.is_floating_point()
    else:
        floating = isinstance(images, np.ndarray) and np.issubdtype(images.dtype, np.floating)
    if not floating or images.ndim not in (3, 4):
        return False
    if images.ndim == 4 and isinstance(images, Tensor):  # models may have any number of channels
        return images.shape[-1] not in CHANNELS or images.shape[1] in CHANNELS
    first, last = images.shape[-3] in CHANNELS, images.shape[-1] in CHANNELS
    return first and (isinstance(images, Tensor) or not last)


def _picture(image: AnyImage) -> NDArray[np.uint8]:
    """The pixels of an image; one that is normalised is refused."""
    if is_array(image):
        array = channels_last(image)
        if np.issubdtype(array.dtype, np.floating) and not holds_colours(array):
            raise ValueError(
                "a float image must lie in [0, 1], or hold whole numbers up to 255, got "
                f"[{array.min():.3g}, {array.max():.3g}]; one that is normalised already, with the "
                "channels first, goes to explain() as it is"
            )
    return to_pixels(image)


def _middle_of_strip(image: Image.Image, resize: Any) -> Image.Image:
    """The middle of a long strip, resized so that timm's steps only crop it; other images as is.

    timm resizes before it crops: a strip of 20,000x3 pixels would take 1 GB.
    """
    if max(image.size) <= STRIP * min(image.size) or not isinstance(resize, RESIZES):
        return image
    shape, spans, kept = _resized(resize, image.height, image.width), [], []
    targets = [resize.size] * 2 if isinstance(resize.size, int) else resize.size
    for length, side, target in zip((image.height, image.width), shape, targets, strict=True):
        # A multiple of 4 leaves the central crop in its place, however it rounds a half.
        cut = max(0, (side - target) // 4 * 4)
        scale = length / side
        kept.append(side - cut)
        spans.append((cut / 2 * scale, (side - cut / 2) * scale, KERNEL * max(1, scale)))
    (top, bottom, down), (left, right, across) = spans
    # Crop at whole pixels first: Pillow stores the box of ``resize`` as float32.
    x, y = max(0, math.floor(left - across)), max(0, math.floor(top - down))
    x_end, y_end = math.ceil(right + across), math.ceil(bottom + down)
    image = image.crop((x, y, min(image.width, x_end), min(image.height, y_end)))
    how = transforms.functional.pil_modes_mapping[resize.interpolation]
    return image.resize(kept[::-1], how, (left - x, top - y, right - x, bottom - y))


def _resized(step: transforms.Resize | ResizeKeepRatio, height: int, width: int) -> list[int]:
    """Height and width, at least 1, of an image after a step that resizes, without an image."""
    if isinstance(step, ResizeKeepRatio):
        blank = torch.empty(1, height, width, device="meta")
        return [max(1, side) for side in step.get_params(blank, step.size, step.longest)]
    none = BoundingBoxes(torch.zeros(0, 4), format="XYXY", canvas_size=(height, width))
    return list(v2.Resize(step.size)(none).canvas_size)


@dataclass(frozen=True)
class Framing:
    """Where the input of a model lies in an image, by the model's resizing and crop.

    Attributes:
        config: of :func:`data_config`.
    """

    config: dict[str, Any]

    def places(self, height: int, width: int) -> list[tuple[float, float]]:
        """(scale, shift) of the rows and of the columns of an image.

        An edge at x in the image lies at ``scale * x + shift`` in the model's input.

        Raises:
            ValueError: if the preprocessing has a step other than resizing and central crops.
        """
        size, places = [height, width], [(1.0, 0.0)] * 2
        for step in self._steps():
            if isinstance(step, RESIZES):
                target = _resized(step, *size)
                moves = [(new / old, 0) for new, old in zip(target, size, strict=True)]
            elif isinstance(step, (transforms.CenterCrop, CenterCropOrPad)):
                target = list(step.size)
                moves = [(1.0, _cut(old, new)) for new, old in zip(target, size, strict=True)]
            elif type(step).__name__ == "MaybePILToTensor":
                continue
            else:
                raise ValueError(f"places cannot follow {type(step).__name__} of the preprocessing")
            places = [
                (factor * scale, factor * shift + offset)
                for (factor, offset), (scale, shift) in zip(moves, places, strict=True)
            ]
            size = target
        return places

    def region(self, height: int, width: int) -> Region:
        """The rectangle that the model sees of an image of this size, (x0, y0, x1, y1).

        It extends beyond the image if the preprocessing pads.

        >>> import infsa_explain
        >>> config = data_config(infsa_explain.load("infvit_linear_digits"))
        >>> Framing(config).region(448, 672)  # the middle square
        (112.0, 0.0, 560.0, 448.0)
        """
        (y_scale, y_shift), (x_scale, x_shift) = self.places(height, width)
        rows, columns = self.config["input_size"][1:]
        left, top = (0.0 - x_shift) / x_scale, (0.0 - y_shift) / y_scale
        return left, top, left + columns / x_scale, top + rows / y_scale

    def border(self) -> tuple[int, ...]:
        """The RGB colour of the padding."""
        fills = [step.fill for step in self._steps() if isinstance(step, CenterCropOrPad)]
        fill = fills[0] if fills else 0
        return tuple(fill) if isinstance(fill, Sequence) else (fill,) * 3

    def _steps(self) -> list[Any]:
        steps: list[Any] = create_transform(
            **self.config, is_training=False, normalize=False
        ).transforms
        return steps


def _cut(side: int, target: int) -> int:
    """The shift of a central crop along one side; positive if the side is padded."""
    return (target - side) // 2 if target > side else -round((side - target) / 2)


def frame_boxes(model: nn.Module, boxes: NDArray[np.float32], height: int, width: int) -> Tensor:
    """Boxes of an image in the model's input, after resizing and crop.

    Args:
        model: a model with a :func:`data_config`.
        boxes: (K, 4), x0, y0, x1, y1 in pixel edges of the image, half-open.
        height, width: of the image.

    Returns:
        (K, 4) float64 on the CPU, in pixel edges of the model's input, clipped to it. A box that
        is cropped away has no area.

    Raises:
        ValueError: as :meth:`Framing.places`.
    """
    framing = Framing(data_config(model))
    (y_scale, y_shift), (x_scale, x_shift) = framing.places(height, width)
    rows, columns = framing.config["input_size"][1:]
    edges = torch.as_tensor(boxes, dtype=torch.float64).reshape(-1, 4).clone()
    edges[:, 0::2] = (x_scale * edges[:, 0::2] + x_shift).clamp(0, columns)
    edges[:, 1::2] = (y_scale * edges[:, 1::2] + y_shift).clamp(0, rows)
    edges[:, 2:] = edges[:, 2:].maximum(edges[:, :2])
    return edges


def visible_region(model: nn.Module, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The part of an image that a model sees, at the resolution of the image.

    Args:
        model: a model with a :func:`data_config`.
        image: (H, W, 3) uint8.

    Returns:
        (h, w, 3) uint8: :meth:`Framing.region` rounded to whole pixels. A view of the image if the
        region lies inside; else a copy with the padding.
    """
    height, width = image.shape[:2]
    framing = Framing(data_config(model))
    left, top, right, bottom = (
        math.floor(round(edge, 6) + 0.5) for edge in framing.region(height, width)
    )
    right, bottom = max(right, left + 1), max(bottom, top + 1)
    seen = image[max(top, 0) : bottom, max(left, 0) : right]
    if seen.shape[:2] == (bottom - top, right - left):
        return seen
    framed = np.empty((bottom - top, right - left, 3), np.uint8)
    framed[:] = framing.border()
    y, x = max(-top, 0), max(-left, 0)
    framed[y : y + seen.shape[0], x : x + seen.shape[1]] = seen
    return framed
