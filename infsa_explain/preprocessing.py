"""From an RGB image to what a model expects, by the model's own ``pretrained_cfg``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
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

from .families import first_argument, model_of, unwrapped, vit_of
from .graphs import forward_pass
from .watching import watching

__all__ = ["data_config", "frame_boxes", "preprocess", "visible_region"]

#: How many times longer than wide an image is that is a strip.
STRIP = 16
#: Half the width of the widest kernel that images are resized with, and a pixel for rounding.
KERNEL = 4
#: Steps that resize.
RESIZES = (transforms.Resize, ResizeKeepRatio)


def data_config(model: nn.Module) -> dict[str, Any]:
    """timm's data configuration of a model, with ``input_size`` as the model was built.

    What a model's ``pretrained_cfg`` does not say, and those of torchvision and Hugging Face have
    none, is as its family's published weights expect: give the model that attribute, a dict with
    ``mean``, ``std``, ``crop_pct``, ``crop_mode`` or ``interpolation``, to say otherwise.

    A model that holds a ViT and normalises the images itself, as the ViT's configuration says, has
    a mean of 0 and a standard deviation of 1, or of 1/255 if it takes images from 0 to 255.

    Raises:
        ValueError: if a model has none and is of no family that is known, or it changes the images
            in another way before its ViT.
    """
    outer, model = unwrapped(model), vit_of(model)
    if outer is not model:
        inner = data_config(model)
        told = getattr(outer, "pretrained_cfg", None)
        return inner | (_normalisation_left_by(outer, inner) if told is None else told)
    family = model_of(model)
    told = getattr(model, "pretrained_cfg", None)
    if family is None and told is None:
        raise ValueError(
            f"{type(model).__name__} does not say how its images are prepared; give it a "
            "pretrained_cfg, a dict with input_size (3, height, width), mean and std"
        )
    own = family.data(model) if family else {}
    config: dict[str, Any] = resolve_model_data_config(
        model, pretrained_cfg={**own, **(told or {})}
    )
    if "input_size" in own:
        config["input_size"] = (config["input_size"][0], *own["input_size"][1:])
    return config


def _normalisation_left_by(model: nn.Module, config: dict[str, Any]) -> dict[str, Any]:
    """``mean`` and ``std`` for a model that holds a ViT, whose configuration this is.

    The model is shown random pixels, up to where its ViT begins.
    """
    vit = vit_of(model)
    like = next(model.parameters())
    pixels = torch.rand(1, *config["input_size"], generator=torch.Generator().manual_seed(0))
    seen: list[Tensor] = []

    def enter(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        seen.append(first_argument(module, args, kwargs))
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
    for expected, told in possible:
        if [x.shape for x in seen] == [expected.shape] and torch.allclose(
            seen[0].float().cpu(), expected, rtol=1e-2, atol=1e-2
        ):
            return told
    raise ValueError(
        f"what stands before the {type(vit).__name__} in {type(model).__name__} neither leaves "
        "images as they are nor normalises them as the ViT expects; give the model a "
        "pretrained_cfg, a dict with the mean and std that its images need"
    )


class _Entered(Exception):
    """The ViT inside a model was reached."""


def preprocess(model: nn.Module, images: Sequence[NDArray[np.uint8]] | NDArray[np.uint8]) -> Tensor:
    """Resize, crop and normalise as the model expects.

    Args:
        model: a model that :func:`data_config` knows; its device is where the result lies.
        images: one (H, W, 3) uint8 RGB image or a sequence of them, of any sizes.

    Returns:
        (B, 3, h, w) float32, normalised.
    """
    transform = create_transform(**data_config(model), is_training=False)
    batch = [images] if isinstance(images, np.ndarray) and images.ndim == 3 else list(images)
    resize = transform.transforms[0]
    tensors = [transform(_middle_of_strip(Image.fromarray(image), resize)) for image in batch]
    return torch.stack(tensors).to(next(model.parameters()).device)


def _middle_of_strip(image: Image.Image, resize: Any) -> Image.Image:
    """The middle of a long strip, resized so that timm's steps only cut it; others as they are.

    Resized whole before it is cut, a strip of 20,000x3 pixels would take 1 GB.
    """
    if max(image.size) <= STRIP * min(image.size) or not isinstance(resize, RESIZES):
        return image
    shape, places, kept = _resized(resize, image.height, image.width), [], []
    targets = [resize.size] * 2 if isinstance(resize.size, int) else resize.size
    for length, side, target in zip((image.height, image.width), shape, targets, strict=True):
        # Steps of 4 leave the crop where it would be, whichever way it rounds a half.
        cut = max(0, (side - target) // 4 * 4)
        scale = length / side
        kept.append(side - cut)
        places.append((cut / 2 * scale, (side - cut / 2) * scale, KERNEL * max(1, scale)))
    (top, bottom, down), (left, right, across) = places
    # Cut at whole pixels first: Pillow takes places as float32.
    x, y = max(0, math.floor(left - across)), max(0, math.floor(top - down))
    x_end, y_end = math.ceil(right + across), math.ceil(bottom + down)
    image = image.crop((x, y, min(image.width, x_end), min(image.height, y_end)))
    how = transforms.functional.pil_modes_mapping[resize.interpolation]
    return image.resize(kept[::-1], how, (left - x, top - y, right - x, bottom - y))


def _resized(step: transforms.Resize | ResizeKeepRatio, height: int, width: int) -> list[int]:
    """Height and width, at least 1, of an image after a step that resizes; none is resized."""
    if isinstance(step, ResizeKeepRatio):
        blank = torch.empty(1, height, width, device="meta")
        return [max(1, side) for side in step.get_params(blank, step.size, step.longest)]
    none = BoundingBoxes(torch.zeros(0, 4), format="XYXY", canvas_size=(height, width))
    return list(v2.Resize(step.size)(none).canvas_size)


def frame_boxes(model: nn.Module, boxes: NDArray[np.float32], height: int, width: int) -> Tensor:
    """Boxes of an image in the frame that the model sees, after its resizing and its crop.

    Args:
        model: a timm model.
        boxes: (K, 4), x0, y0, x1, y1 in pixel edges of the image, half-open.
        height, width: of the image.

    Returns:
        (K, 4) float64 on the CPU, in pixel edges of the model's input, cut at its border. A box
        that is cropped away, or was without area, has none there.

    Raises:
        ValueError: if the model's preprocessing has a step that boxes cannot follow.
    """
    framed = BoundingBoxes(  # float64, for integers would be cut
        torch.as_tensor(boxes, dtype=torch.float64), format="XYXY", canvas_size=(height, width)
    )
    for step in create_transform(
        **data_config(model), is_training=False, normalize=False
    ).transforms:
        if isinstance(step, RESIZES):
            framed = v2.functional.resize(framed, _resized(step, *framed.canvas_size))
        elif isinstance(step, (transforms.CenterCrop, CenterCropOrPad)):
            framed = v2.functional.center_crop(framed, list(step.size))
        elif type(step).__name__ != "MaybePILToTensor":
            raise ValueError(f"boxes cannot follow {type(step).__name__} of the preprocessing")
    edges: Tensor = v2.functional.clamp_bounding_boxes(framed).as_subclass(Tensor)
    edges[:, 2:] = edges[:, 2:].maximum(edges[:, :2])
    return edges


def visible_region(model: nn.Module, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The part of an image that the model sees after its crop, at the image's own resolution.

    Args:
        model: a timm model.
        image: (H, W, 3) uint8.

    Returns:
        (h, w, 3), a view: the centre crop that :func:`preprocess` resizes to the input size.
    """
    config = data_config(model)
    height, width = image.shape[:2]
    target = config["input_size"][1:]
    ratios = height / target[0], width / target[1]
    if config.get("crop_mode") != "squash":  # which gives each side its own
        ratios = min(ratios), min(ratios)
    # timm resizes so that input_size / crop_pct is covered, then cuts the centre.
    h, w = (
        max(1, min(side, round(pixels * ratio * config["crop_pct"])))
        for side, pixels, ratio in zip((height, width), target, ratios, strict=True)
    )
    top, left = (height - h) // 2, (width - w) // 2
    return image[top : top + h, left : left + w]
