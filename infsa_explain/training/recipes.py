"""Training recipes: everything that decides what a training run computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ..data.digits import PhotoDigits
from ..models.checkpoints import read_checkpoint
from ..ranges import MANY, Range, count

__all__ = ["RECIPES", "Recipe", "has_bfloat16", "recipe_for"]

#: What the numbers of a recipe may be.
RANGES = {
    "epochs": count(),
    "batch_size": count(),
    "epoch_size": count(most=1000 * MANY),
    "window_epochs": count(0),
    "warmup_epochs": count(0),
    "seed": count(0, 2**48),  # photo-digits has ten thousand seeds for each
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
    """Everything that decides what a training run computes.

    Attributes:
        model: a name in timm's registry.
        data: ``"photo-digits"`` or a folder of images by class.
        epochs: passes over the training images.
        epoch_size: images an epoch of ``photo-digits``, which never repeats one.
        window_epochs: on ``photo-digits``, epochs in which the model sees only a square window of
            patches about the digit, which grows to the whole image while the ground fades in from
            black.
        lr: peak learning rate, after ``warmup_epochs`` and before cosine decay to 1%.
        clip_grad: largest norm of the gradient. Linear InfSA can collapse without it.
        ema_decay: of the averaged weights, which are what is evaluated and kept.
        crop_scale: smallest area of a random crop, of the image's; folders only.
        erasing: probability of random erasing; folders only.
        layer_decay: factor of the learning rate from each layer to the one before it; 1 is none.
        amp: bfloat16 autocast.
        model_args: further arguments of the model, such as ``img_size``.
        pretrained: whether to start from the weights that the name has.
        init: a checkpoint to start from instead.
        convert: the kind of attention to convert to before training, see
            :func:`infsa_explain.convert`; None for none.
        convert_layers: which layers; None for all.

    Raises:
        ValueError: for a number that is out of range.
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
    """Whether a device has arithmetic in bfloat16.

    CPUs without it emulate it: a training step by the recipes above took ten times as long as in
    float32 on one with no more than AVX2.
    """
    kind = torch.device(device).type
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return kind != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def recipe_for(
    model: str | None, data: str, *, device: str | torch.device | None = None, **overrides: Any
) -> Recipe:
    """The recipe that a data set is trained with here, with what the caller wants otherwise.

    What starts from weights, by ``pretrained`` or ``init``, has the recipe ``"fine-tune"``.

    Args:
        model: a name in timm's registry; None for that of the checkpoint ``init``.
        data: ``"photo-digits"`` or a folder.
        device: where it is to be trained. On one that only emulates bfloat16 the recipe is without
            ``amp``, if the caller does not ask for it.
        **overrides: fields of :class:`Recipe`; None leaves the recipe's own.

    Raises:
        ValueError: if there is neither a model nor a checkpoint that names one, both
            ``pretrained`` and ``init``, more ``warmup_epochs`` than ``epochs``, or a number that is
            out of range.

    >>> recipe_for("infvit_linear_digits", "photo-digits", epochs=3).epochs
    3
    >>> recipe_for("vit_small_patch14_dinov2", "photos", pretrained=True, convert="linear").lr
    5e-05
    """
    chosen = {key: value for key, value in overrides.items() if value is not None}
    init, pretrained = chosen.get("init"), chosen.get("pretrained", False)
    if init and pretrained:
        raise ValueError("pretrained and init are two starts; give one")
    if model is None:
        model = read_checkpoint(init)[1].get("architecture") if init else None
        if model is None:
            raise ValueError(f"model must be named, for {init or 'the recipe'} does not name one")
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
    # A run shorter than the curriculum has none, and a short run warms up for all of it at most.
    if epochs <= base.get("window_epochs", 0):
        base = base | {"window_epochs": 0}
    base = base | {"warmup_epochs": min(base.get("warmup_epochs", Recipe.warmup_epochs), epochs)}
    return Recipe(model, data, **{**base, **chosen})
