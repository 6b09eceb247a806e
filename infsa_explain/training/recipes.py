"""Training recipes: all settings that determine the result of a training run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ..data.digits import PhotoDigits
from ..models.checkpoints import read_checkpoint
from ..ranges import MANY, Range, count

__all__ = ["RECIPES", "Recipe", "has_bfloat16", "recipe_for"]

#: Valid ranges of the numbers in a recipe.
RANGES = {
    "epochs": count(),
    "batch_size": count(),
    "epoch_size": count(most=1000 * MANY),
    "window_epochs": count(0),
    "warmup_epochs": count(0),
    "seed": count(0, 2**48),  # photo-digits uses ten thousand seeds for each
    "lr": Range(0, 10),
    "weight_decay": Range(0, 100),
    "clip_grad": Range(0, float("inf"), open_low=True),
    "layer_decay": Range(0, 1, open_low=True),
    "label_smoothing": Range(0, 1, open_high=True),
    "mixup": Range(0, 100),
    "cutmix": Range(0, 100),
    "drop_path": Range(0, 1, open_high=True),
    "crop_scale": Range(0, 1, open_low=True),
    "erasing": Range(0, 1),
    "ema_decay": Range(0, 1, open_high=True),
}


@dataclass(frozen=True)
class Recipe:
    """All settings that determine the result of a training run.

    Attributes:
        model: a name in timm's registry.
        data: ``"photo-digits"`` or a folder of images by class.
        epochs: passes over the training images.
        batch_size: images per step.
        epoch_size: images per epoch of ``photo-digits``, which never repeats an image.
        window_epochs: on ``photo-digits``, number of epochs in which the model sees only a square
            window of patches around the digit. The window grows to the whole image, and the
            background fades in from black.
        lr: peak learning rate, after ``warmup_epochs`` and before cosine decay to 1%.
        weight_decay: of AdamW.
        warmup_epochs: epochs of linear warm-up.
        clip_grad: maximum norm of the gradient. Linear InfSA can collapse without clipping.
        label_smoothing: of the cross-entropy loss.
        mixup, cutmix: alpha of timm's mixup and cutmix; 0 turns them off.
        drop_path: rate of stochastic depth.
        crop_scale: minimum area of a random crop, as a share of the image; folders only.
        erasing: probability of random erasing; folders only.
        ema_decay: decay of the averaged weights, which are evaluated and kept.
        layer_decay: factor between the learning rates of a layer and the one before it; 1 turns it
            off.
        amp: use bfloat16 autocast.
        seed: of the initial weights and of every epoch.
        model_args: further arguments of the model, such as ``img_size``.
        pretrained: start from the pretrained weights of the name.
        init: a checkpoint to start from instead.
        convert: kind of attention to convert the model to before training, see
            :func:`infsa_explain.convert`; None for no conversion.
        convert_layers: layers to convert; all if None.

    Raises:
        ValueError: if a number is out of range.
    """

    model: str
    data: str = "photo-digits"
    epochs: int = 40
    batch_size: int = 64
    epoch_size: int = 6400
    window_epochs: int = 0
    lr: float = 1e-3
    weight_decay: float = 0.05
    warmup_epochs: int = 2
    clip_grad: float = 1.0
    label_smoothing: float = 0.1
    mixup: float = 0.0
    cutmix: float = 0.0
    drop_path: float = 0.0
    crop_scale: float = 0.5
    erasing: float = 0.0
    ema_decay: float = 0.998
    layer_decay: float = 1.0
    amp: bool = False
    seed: int = 0
    model_args: dict[str, Any] = field(default_factory=dict)
    pretrained: bool = False
    init: str | None = None
    convert: str | None = None
    convert_layers: list[int] | str | None = None

    def __post_init__(self) -> None:
        for name, allowed in RANGES.items():
            allowed.require(name, getattr(self, name))


RECIPES: dict[str, dict[str, Any]] = {
    "photo-digits": {
        "epochs": 36,
        "window_epochs": 28,
        "batch_size": 32,
        "lr": 1.5e-3,
        "amp": True,
    },
    "folder": {
        "epochs": 60,
        "lr": 2e-3,
        "warmup_epochs": 3,
        "mixup": 0.2,
        "cutmix": 0.5,
        "erasing": 0.1,
        "drop_path": 0.05,
        "amp": True,
    },
    "fine-tune": {
        "epochs": 5,
        "batch_size": 64,
        "lr": 5e-5,
        "warmup_epochs": 1,
        "amp": True,
    },
}


def has_bfloat16(device: str | torch.device) -> bool:
    """Whether a device computes in bfloat16 natively.

    Other CPUs emulate it: on a CPU with AVX2 a training step took ten times as long as in float32.
    """
    kind = torch.device(device).type
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return kind != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def recipe_for(
    model: str | None, data: str, *, device: str | torch.device | None = None, **overrides: Any
) -> Recipe:
    """The default recipe for a data set, with changes.

    A model that starts from weights (``pretrained`` or ``init``) uses the recipe ``"fine-tune"``.

    Args:
        model: a name in timm's registry; None for the model of the checkpoint ``init``.
        data: ``"photo-digits"`` or a folder.
        device: where to train. If the device only emulates bfloat16, ``amp`` is off by default.
        **overrides: fields of :class:`Recipe`; None keeps the default.

    Returns:
        The recipe.

    Raises:
        ValueError: if no model is named, ``pretrained`` and ``init`` are both given,
            ``warmup_epochs`` exceeds ``epochs``, or a number is out of range.

    >>> recipe_for("infvit_linear_digits", "photo-digits", epochs=3).epochs
    3
    >>> recipe_for("vit_small_patch14_dinov2", "photos", pretrained=True, convert="linear").lr
    5e-05
    """
    chosen = {key: value for key, value in overrides.items() if value is not None}
    init, pretrained = chosen.get("init"), chosen.get("pretrained", False)
    if init and pretrained:
        raise ValueError("pretrained and init both give initial weights; leave one out")
    if model is None:
        model = read_checkpoint(init)[1].get("architecture") if init else None
        if model is None:
            raise ValueError(f"model must be named: {init or 'the recipe'} does not name one")
    base = RECIPES["photo-digits" if data == PhotoDigits.name else "folder"]
    if init or pretrained:
        base = RECIPES["fine-tune"]
    if device is not None and not has_bfloat16(device):
        base = base | {"amp": False}
    epochs = chosen.get("epochs", base["epochs"])
    RANGES["epochs"].require("epochs", epochs)
    if chosen.get("warmup_epochs", 0) > epochs:
        raise ValueError(
            f"warmup_epochs must be at most epochs ({epochs}), got {chosen['warmup_epochs']}"
        )
    # A run shorter than the curriculum has no curriculum, and a warm-up of at most its own length.
    if epochs <= base.get("window_epochs", 0):
        base = base | {"window_epochs": 0}
    base = base | {"warmup_epochs": min(base.get("warmup_epochs", Recipe.warmup_epochs), epochs)}
    return Recipe(model, data, **{**base, **chosen})
