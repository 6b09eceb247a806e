"""Training from timm's parts: seeded, resumable, and watchful of dying heads."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from timm.data import create_transform
from timm.data.mixup import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from . import models  # noqa: F401  (registers the names with timm)
from .attention import LinearInfSA, PureInfSA
from .data.digits import PhotoDigits
from .data.samples import ImageData
from .graphs import capture, dead_heads
from .tokens import forward_patches

__all__ = ["Recipe", "train"]

#: A rise of the share of dead heads from one epoch to the next that is worth a warning.
DEAD_HEAD_JUMP = 0.1


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
        amp: bfloat16 autocast.
        model_args: further arguments of the model.
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
    amp: bool = False
    seed: int = 0
    model_args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Epoch:
    """What is known at the end of an epoch; one line of ``log.jsonl``."""

    epoch: int
    loss: float
    accuracy: float
    dead_heads: float
    gamma: tuple[float, float] | None
    seconds: float


class _Transformed(Dataset[tuple[Tensor, int, Tensor]]):
    """Samples as (normalised image, label, box), for a loader."""

    def __init__(self, data: ImageData, transform: Callable[[Any], Tensor]) -> None:
        self.data, self.transform = data, transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> tuple[Tensor, int, Tensor]:
        from PIL import Image

        sample = self.data[i]
        if sample.label is None:
            raise ValueError(f"{sample.image_id} has no label; training needs one for each image")
        box = torch.from_numpy(sample.boxes[0]) if len(sample.boxes) else torch.zeros(4)
        return self.transform(Image.fromarray(sample.image)), sample.label, box


def train(
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    init: str | None = None,
    device: str | torch.device = "cpu",
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
) -> Path:
    """Train a model and write its checkpoint and card into ``out``.

    Every epoch seeds its own random numbers, and its state is on disk before the next begins:
    a run that is killed and resumed ends with the weights of an undisturbed one.

    Args:
        recipe: what to train, on what, how.
        out: a folder; gets ``recipe.json``, ``log.jsonl``, ``last.pt`` while training, and
            ``<model>.safetensors`` with its card ``<model>.md`` at the end.
        resume: go on from ``last.pt``.
        init: a checkpoint to start from.
        device: where to train.
        on_epoch: called with every :class:`Epoch`.
        on_step: called with (steps done, steps in all).

    Returns:
        The path of the safetensors file.

    Raises:
        ValueError: if ``out`` holds a run and ``resume`` is off, or holds another recipe's run.
        FloatingPointError: if the loss is no longer finite.
    """
    folder = Path(out)
    _claim(folder, recipe, resume)
    device = torch.device(device)
    torch.manual_seed(recipe.seed)
    data, held_out = _data(recipe, "train"), _data(recipe, "val")
    model = _model(recipe, len(held_out.classes), init).to(device)
    ema = ModelEmaV3(model, decay=recipe.ema_decay, use_warmup=True)
    optimizer = create_optimizer_v2(
        model, opt="adamw", lr=recipe.lr, weight_decay=recipe.weight_decay
    )
    steps = math.ceil(len(data) / recipe.batch_size)
    schedule = CosineLRScheduler(
        optimizer,
        t_initial=recipe.epochs * steps,
        lr_min=recipe.lr / 100,
        warmup_t=recipe.warmup_epochs * steps,
        warmup_lr_init=recipe.lr / 100,
        t_in_epochs=False,
    )
    first = 0
    last = folder / "last.pt"
    if resume and last.exists():
        state = torch.load(last, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        ema.module.load_state_dict(state["ema"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
        ema.update_step = state["ema_step"] if hasattr(ema, "update_step") else 0

    previous_dead = 0.0
    for epoch in range(first, recipe.epochs):
        began = time.monotonic()
        _seed_epoch(recipe.seed, epoch)
        loss = _train_epoch(recipe, epoch, model, ema, optimizer, schedule, device, on_step)
        correct = evaluate_accuracy(ema.module, held_out, device)
        dead, gamma = head_health(ema.module, held_out, device)
        result = Epoch(
            epoch, loss, float(correct.mean()), dead, gamma, round(time.monotonic() - began, 1)
        )
        _save_atomically(
            last,
            {
                "epoch": epoch,
                "model": model.state_dict(),
                "ema": ema.module.state_dict(),
                "ema_step": (epoch + 1) * steps,
                "optimizer": optimizer.state_dict(),
            },
        )
        with (folder / "log.jsonl").open("a") as log:
            log.write(json.dumps(asdict(result)) + "\n")
        on_epoch(result)
        if dead > previous_dead + DEAD_HEAD_JUMP:
            import warnings

            warnings.warn(
                f"epoch {epoch}: the share of dead heads rose from {previous_dead:.0%} to "
                f"{dead:.0%}; a lower lr or clip_grad may keep them alive",
                stacklevel=2,
            )
        previous_dead = dead
    return folder


def _train_epoch(
    recipe: Recipe,
    epoch: int,
    model: nn.Module,
    ema: ModelEmaV3,
    optimizer: torch.optim.Optimizer,
    schedule: CosineLRScheduler,
    device: torch.device,
    on_step: Callable[[int, int], None],
) -> float:
    model.train()
    windowed = epoch < recipe.window_epochs
    loader = _loader(recipe, epoch, model)
    mix = Mixup(
        mixup_alpha=recipe.mixup,
        cutmix_alpha=recipe.cutmix,
        label_smoothing=recipe.label_smoothing,
        num_classes=model.num_classes,
    ) if (recipe.mixup or recipe.cutmix) and not windowed else None
    soft, hard = SoftTargetCrossEntropy(), nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing)
    total = 0.0
    for step, (images, labels, boxes) in enumerate(loader):
        if mix is not None and len(images) % 2:  # mixing pairs the first image with the last
            images, labels, boxes = images[:-1], labels[:-1], boxes[:-1]
        images, labels = images.to(device), labels.to(device)
        if mix is not None:
            images, labels = mix(images, labels)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=recipe.amp):
            if windowed:
                side = window_side(recipe, epoch, model)
                logits = forward_patches(model, images, window(boxes, model, side).to(device))
            else:
                logits = model(images)
            loss = (soft if mix is not None else hard)(logits, labels)
        if not loss.isfinite():
            raise FloatingPointError(f"the loss is {loss.item()} in epoch {epoch}, step {step}")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_grad)
        done = epoch * len(loader) + step + 1
        schedule.step_update(done)
        optimizer.step()
        ema.update(model, step=done)
        total += loss.item() * len(images)
        on_step(done, recipe.epochs * len(loader))
    return total / len(loader.dataset)


def window_side(recipe: Recipe, epoch: int, model: nn.Module) -> int:
    """Side of the window in patches: from 5, slowly at first, to the whole grid."""
    return 5 + int((min(model.patch_embed.grid_size) - 5) * (epoch / recipe.window_epochs) ** 2)


def window(boxes: Tensor, model: nn.Module, side: int) -> Tensor:
    """Raster indices of ``side``×``side`` patches at random about each box: (B, side²)."""
    gh, gw = model.patch_embed.grid_size
    ph, pw = model.patch_embed.patch_size
    x0, y0 = boxes[:, 0] // pw, boxes[:, 1] // ph
    x1, y1 = boxes[:, 2].sub(1) // pw, boxes[:, 3].sub(1) // ph
    left = _between((x1 - side + 1).clamp_min(0), x0.clamp_max(gw - side))
    top = _between((y1 - side + 1).clamp_min(0), y0.clamp_max(gh - side))
    offset = torch.arange(side)
    rows = top[:, None, None] + offset[:, None]
    return (rows * gw + left[:, None, None] + offset).flatten(1)


def _between(low: Tensor, high: Tensor) -> Tensor:
    """A random integer in [low, high] for each pair."""
    return (low + torch.rand(len(low)) * (high - low + 1)).floor().minimum(high).long()


def _seed_epoch(seed: int, epoch: int) -> None:
    import random

    mixed = int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
    random.seed(mixed)
    np.random.seed(mixed)
    torch.manual_seed(mixed)


def _data(recipe: Recipe, split: str) -> ImageData:
    if recipe.data == PhotoDigits.name:
        return PhotoDigits(split, recipe.epoch_size if split == "train" else 500)
    from .data import open_data

    return open_data(recipe.data, split=split)


def _loader(recipe: Recipe, epoch: int, model: nn.Module) -> DataLoader:
    config = model.pretrained_cfg
    size = model.patch_embed.img_size
    common = {"mean": config["mean"], "std": config["std"], "interpolation": "bilinear"}
    data = _data(recipe, "train")
    if isinstance(data, PhotoDigits):
        difficulty = min(1.0, 1.5 * epoch / recipe.window_epochs) if recipe.window_epochs else 1.0
        data = PhotoDigits("train", len(data), seed=recipe.seed * 10_000 + epoch, difficulty=difficulty)
        transform = create_transform((3, *size), crop_pct=1.0, **common)
    else:
        transform = create_transform(
            (3, *size),
            is_training=True,
            scale=(recipe.crop_scale, 1.0),
            color_jitter=0.3,
            re_prob=recipe.erasing,
            **common,
        )
    return DataLoader(_Transformed(data, transform), recipe.batch_size, shuffle=True)


def evaluate_accuracy(model: nn.Module, data: ImageData, device: torch.device) -> Tensor:
    """Whether each image is classified right: (n,) bool."""
    model.eval()
    config = model.pretrained_cfg
    transform = create_transform(
        (3, *model.patch_embed.img_size), crop_pct=1.0, mean=config["mean"], std=config["std"]
    )
    correct = []
    with torch.no_grad():
        for images, labels, _ in DataLoader(_Transformed(data, transform), 64):
            correct.append(model(images.to(device)).argmax(-1).cpu() == labels)
    return torch.cat(correct).float()


def head_health(model, data, device, n=32):
    model.eval()
    config = model.pretrained_cfg
    transform = create_transform(
        (3, *model.patch_embed.img_size), crop_pct=1.0, mean=config["mean"], std=config["std"]
    )
    td = _Transformed(data, transform)
    images = torch.stack([td[i][0] for i in range(n)]).to(device)
    dead = dead_heads(capture(model, images)).float().mean().item()
    gammas = [m.gamma.detach() for m in model.modules() if isinstance(m, (PureInfSA, LinearInfSA))]
    if not gammas:
        return dead, None
    g = torch.cat(gammas)
    return dead, (g.min().item(), g.max().item())


def _model(recipe: Recipe, num_classes: int, init: str | None) -> nn.Module:
    return timm.create_model(
        recipe.model, num_classes=num_classes, drop_path_rate=recipe.drop_path, **recipe.model_args
    )


def _claim(folder: Path, recipe: Recipe, resume: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.json").write_text(json.dumps(asdict(recipe)))


def _save_atomically(path: Path, state: dict[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.replace(path)
