"""Training from timm's parts: seeded, resumable, and watchful of dying heads."""

from __future__ import annotations

import json
import math
import os
import random
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from infsa_metrics import bootstrap_mean
from timm.data import create_transform
from timm.data.mixup import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.models.vision_transformer import VisionTransformer
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..data import ImageData, PhotoDigits, open_data
from ..data.matching import labels_of, match_labels
from ..data.subsets import known_labels
from ..files import check_folder, make_folder, naming, read_json, replacing, write_text
from ..models.checkpoints import read_checkpoint, save
from ..models.conversion import convert
from ..models.loading import load
from ..vits import class_names
from ..vits.preprocessing import data_config
from ..vits.tokens import forward_patches
from .cards import model_card
from .curriculum import window, window_side
from .recipes import Recipe
from .scoring import Labelled, attention_classes, correct, dead_head_share, gamma_range

__all__ = ["Epoch", "train"]

#: A rise of the share of dead heads from one epoch to the next that is worth a warning.
DEAD_HEAD_JUMP = 0.2
#: Held-out images of ``photo-digits`` that every epoch is scored on, and the card of the result.
HELD_OUT, CARD_HELD_OUT = 500, 2000


@dataclass(frozen=True)
class Epoch:
    """Results of an epoch; one line of ``log.jsonl``.

    Attributes:
        epoch: number, from 0.
        loss: mean training loss.
        accuracy: of the averaged weights on the held-out images, 0 to 1.
        dead_heads: share of (layer, image, head) with zero output on held-out images, 0 to 1.
        gamma: smallest and largest γ, or None for a softmax model.
        seconds: duration.
    """

    epoch: int
    loss: float
    accuracy: float
    dead_heads: float
    gamma: tuple[float, float] | None
    seconds: float


def train(
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    device: str | torch.device = "cpu",
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
) -> Path:
    """Train a model and write its checkpoint and card into ``out``.

    Every epoch has its own random seed, and the state is saved after every epoch. A run that is
    killed and resumed therefore ends with the same weights as an undisturbed one.

    Args:
        recipe: model, data and hyperparameters.
        out: output folder. It gets ``recipe.json``, ``log.jsonl`` and ``last.pt`` during training,
            and at the end ``<model>.safetensors`` with its card ``<model>.md``. The name of a
            converted model ends with the kind of attention.
        resume: continue from ``last.pt``.
        device: where to train.
        on_epoch: called with every :class:`Epoch`.
        on_step: called with (steps done, total steps).

    Returns:
        The path of the safetensors file.

    Raises:
        ValueError: if ``out`` holds a run and ``resume`` is off, or a run of another recipe, an
            image has no label, or held-out images have a class that is not trained.
        FloatingPointError: if the loss is not finite.
    """
    check_folder(out)
    folder = Path(out)
    _require_free(folder, recipe, resume)
    data, held_out = _labelled(recipe)
    torch.manual_seed(recipe.seed)
    state = _State(recipe, _initial_model(recipe, data).to(torch.device(device)), len(data))
    # Nothing is written until the model is built.
    make_folder(folder)
    write_text(folder / "recipe.json", json.dumps(asdict(recipe), indent=2) + "\n")
    if resume and (folder / "last.pt").exists():
        state.load(folder / "last.pt")
    dead_before = _resume_log(folder / "log.jsonl", state.epoch)
    while state.epoch < recipe.epochs:
        epoch = state.run_epoch(data, held_out, on_step)
        _append(folder / "log.jsonl", epoch)
        state.save(folder / "last.pt")
        on_epoch(epoch)
        _warn_of_dying_heads(epoch, dead_before)
        dead_before = epoch.dead_heads
    return _write_result(recipe, folder, state.average, held_out, data.classes)


def _resume_log(path: Path, epochs: int) -> float:
    """Cut a log to its first ``epochs`` lines; returns the share of dead heads in the last one."""
    lines = path.read_text().splitlines(keepends=True)[:epochs] if path.exists() else []
    write_text(path, "".join(lines))
    return float(json.loads(lines[-1])["dead_heads"]) if lines else 0.0


def _append(path: Path, epoch: Epoch) -> None:
    with naming(path), path.open("a") as log:
        log.write(json.dumps(asdict(epoch)) + "\n")


def _warn_of_dying_heads(epoch: Epoch, dead_before: float) -> None:
    if epoch.epoch and epoch.dead_heads > dead_before + DEAD_HEAD_JUMP:
        warnings.warn(
            f"epoch {epoch.epoch + 1}: dead heads rose from {dead_before:.0%} to "
            f"{epoch.dead_heads:.0%}; a lower lr or clip_grad may keep them alive",
            stacklevel=3,
        )


class _State:
    """A training between two epochs: everything that a checkpoint stores.

    Attributes:
        epoch: number of finished epochs.
        model: the weights in training.
        average: their moving average, which is evaluated and kept.
    """

    def __init__(self, recipe: Recipe, model: VisionTransformer, images: int) -> None:
        self.recipe, self.model, self.epoch = recipe, model, 0
        self._ema = ModelEmaV3(model, decay=recipe.ema_decay, use_warmup=True)
        self._optimizer = create_optimizer_v2(
            model,
            opt="adamw",
            lr=recipe.lr,
            weight_decay=recipe.weight_decay,
            layer_decay=None if recipe.layer_decay == 1 else recipe.layer_decay,
        )
        steps = math.ceil(images / recipe.batch_size)
        self._schedule = CosineLRScheduler(
            self._optimizer,
            t_initial=recipe.epochs * steps,
            lr_min=recipe.lr / 100,
            warmup_t=recipe.warmup_epochs * steps,
            warmup_lr_init=recipe.lr / 100,
            t_in_epochs=False,
        )

    @property
    def average(self) -> nn.Module:
        return cast(nn.Module, self._ema.module)

    def save(self, path: Path) -> None:
        """Write a checkpoint."""
        state = {
            "epoch": self.epoch - 1,  # index of the last finished epoch
            "model": self.model.state_dict(),
            "ema": self.average.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        with replacing(path) as temporary:
            torch.save(state, temporary)

    def load(self, path: Path) -> None:
        """Read a checkpoint.

        Raises:
            ValueError: if the file is damaged, or is not such a checkpoint.
        """
        device = next(self.model.parameters()).device
        try:
            state: Any = torch.load(path, map_location=device, weights_only=True)
        except Exception as error:  # damaged files raise exceptions of many types
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise ValueError(f"{path} is damaged; remove it to start again ({reason})") from error
        parts = {"epoch", "model", "ema", "optimizer"}
        if not isinstance(state, dict) or not parts <= state.keys():
            raise ValueError(f"{path} is not a training checkpoint; remove it to start again")
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["ema"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.epoch = state["epoch"] + 1

    def run_epoch(
        self, data: ImageData, held_out: ImageData, on_step: Callable[[int, int], None]
    ) -> Epoch:
        """Train for one epoch, and evaluate the averaged weights on held-out images."""
        start = time.monotonic()
        _seed_epoch(self.recipe.seed, self.epoch)
        loss = self._train(_loader(self.recipe, self.epoch, self.model, data), on_step)
        self.epoch += 1
        return Epoch(
            self.epoch - 1,
            loss,
            float(correct(self.average, held_out).mean()),
            dead_head_share(self.average, held_out),
            gamma_range(self.average),
            round(time.monotonic() - start, 1),
        )

    def _train(
        self,
        loader: DataLoader[tuple[Tensor, int, Tensor]],
        on_step: Callable[[int, int], None],
    ) -> float:
        """Train on all images once; returns the mean loss."""
        self.model.train()
        device = next(self.model.parameters()).device
        loss_of = self._loss()
        total, seen = 0.0, 0
        for step, (images, labels, boxes) in enumerate(loader):
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.recipe.amp):
                loss, count = loss_of(images.to(device), labels.to(device), boxes)
            if not loss.isfinite():
                raise FloatingPointError(
                    f"the loss is {loss.item()} in epoch {self.epoch}, step {step}"
                )
            self._optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_grad)
            done = self.epoch * len(loader) + step + 1
            self._schedule.step_update(done)
            self._optimizer.step()
            self._ema.update(self.model, step=done)
            total += loss.item() * count
            seen += count
            on_step(done, self.recipe.epochs * len(loader))
        return total / seen

    def _loss(self) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, int]]:
        """A function of images, labels and boxes: the mean loss, and the number of images in it."""
        recipe, model = self.recipe, self.model
        hard = nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing)
        if recipe.data == PhotoDigits.name and self.epoch < recipe.window_epochs:
            side = window_side(recipe, self.epoch, model)

            def windowed(images: Tensor, labels: Tensor, boxes: Tensor) -> tuple[Tensor, int]:
                kept = window(boxes, model, side).to(images.device)
                return hard(forward_patches(model, images, kept), labels), len(images)

            return windowed
        if not (recipe.mixup or recipe.cutmix):
            return lambda images, labels, boxes: (hard(model(images), labels), len(images))
        soft = SoftTargetCrossEntropy()
        mix = Mixup(
            recipe.mixup,
            recipe.cutmix,
            label_smoothing=recipe.label_smoothing,
            num_classes=model.num_classes,
        )

        def mixed(images: Tensor, labels: Tensor, boxes: Tensor) -> tuple[Tensor, int]:
            if len(images) % 2:  # mixup pairs images, the first with the last
                images, labels = (torch.cat([t, t[:1]]) for t in (images, labels))
            images, labels = mix(images, labels)
            return soft(model(images), labels), len(images)

        return mixed


def _seed_epoch(seed: int, epoch: int) -> None:
    mixed = int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
    random.seed(mixed)
    np.random.seed(mixed)  # noqa: NPY002  (timm's mixup draws from it)
    torch.manual_seed(mixed)


def _data(recipe: Recipe, split: str) -> ImageData:
    if recipe.data == PhotoDigits.name:
        return (
            PhotoDigits("train", recipe.epoch_size)
            if split == "train"
            else PhotoDigits("val", HELD_OUT)
        )
    return open_data(recipe.data, split="train" if split == "train" else "val")


def _labelled(recipe: Recipe) -> tuple[ImageData, ImageData]:
    """Training images and held-out images, with the same labels for the same classes.

    Raises:
        ValueError: if an image has no label, or held-out images have a class that is not trained.
    """
    data, held_out = _data(recipe, "train"), _data(recipe, "val")
    for part in (data, held_out):
        unknown = (known_labels(part) or []).count(None)
        if unknown:
            raise ValueError(
                f"{unknown} of the {len(part)} images of {part.name!r} have no label; training "
                "needs one for every image"
            )
    if len(data) == len(held_out) and data.fingerprint() == held_out.fingerprint():
        warnings.warn(
            f"{data.name!r} has no splits, so the accuracy is measured on the training images; put "
            "the images into folders train and val",
            stacklevel=3,
        )
    if held_out.classes != data.classes:
        held_out = match_labels(held_out, data.classes).data
    return data, held_out


def _loader(
    recipe: Recipe, epoch: int, model: VisionTransformer, data: ImageData
) -> DataLoader[tuple[Tensor, int, Tensor]]:
    config = data_config(model)
    if isinstance(data, PhotoDigits):
        difficulty = epoch / recipe.window_epochs if epoch < recipe.window_epochs else 1.0
        data = PhotoDigits("train", len(data), recipe.seed * 10_000 + epoch, difficulty)
        transform = create_transform(**config, is_training=False)
    else:
        transform = create_transform(
            config["input_size"],
            is_training=True,
            scale=(recipe.crop_scale, 1.0),
            color_jitter=0.3,
            re_prob=recipe.erasing,
            interpolation=config["interpolation"],
            mean=config["mean"],
            std=config["std"],
        )
    return DataLoader(Labelled(data, transform), recipe.batch_size, shuffle=True)


def _initial_model(recipe: Recipe, data: ImageData) -> VisionTransformer:
    """The model at the start: new or from weights, converted if asked, with a classifier.

    The classifier of the weights is kept if its class names are those of the data; its outputs are
    then put in the data's order. It is also kept if it has no names but as many outputs as the data
    has classes. Otherwise a new one replaces it.
    """
    classes = data.classes
    has_weights = recipe.pretrained or recipe.init is not None
    arguments = {"drop_path_rate": recipe.drop_path} | recipe.model_args
    model = load(
        recipe.model,
        checkpoint=recipe.init,
        pretrained=recipe.pretrained,
        **arguments if has_weights else arguments | {"num_classes": len(classes)},
    )
    if not isinstance(model, VisionTransformer):
        raise ValueError(
            f"model must be a timm VisionTransformer, got {recipe.model}, which is not one"
        )
    if recipe.convert is not None:
        model = cast(VisionTransformer, convert(model, recipe.convert, recipe.convert_layers))
    names = class_names(model) if has_weights else None
    outputs = None if names is None else labels_of(data, names)
    if model.num_classes != len(classes):
        model.reset_classifier(len(classes))
    elif outputs is not None:
        if set(outputs) == set(range(len(classes))):
            _reorder(model, cast(list[int], outputs))
        else:
            model.reset_classifier(len(classes))
    cast(Any, model).class_names = None  # the checkpoint gets the names of the data's classes
    return model


def _reorder(model: VisionTransformer, outputs: list[int]) -> None:
    """Reorder the outputs of a classifier."""
    layers = model.get_classifier()
    for layer in layers if isinstance(layers, tuple) else (layers,):
        for parameter in layer.parameters():
            parameter.data = parameter.data[outputs]


def _require_free(folder: Path, recipe: Recipe, resume: bool) -> None:
    """Refuse a folder that holds a run, unless it has the same recipe and ``resume`` is on."""
    path = folder / "recipe.json"
    if not path.exists():
        return
    if not resume:
        raise ValueError(f"{folder} holds a run already; --resume it, or choose another --out")
    new, stored = json.loads(json.dumps(asdict(recipe))), read_json(path)
    if not isinstance(stored, dict):
        raise ValueError(f"{path} is not a recipe; choose another --out")
    if differing := [k for k in new.keys() | stored.keys() if new.get(k) != stored.get(k)]:
        raise ValueError(f"{folder} holds a run with another {', '.join(sorted(differing))}")


def _write_result(
    recipe: Recipe, folder: Path, model: nn.Module, data: ImageData, classes: list[str]
) -> Path:
    """Write the averaged weights in float16 and their card, with the accuracy of float16."""
    name = recipe.model if recipe.convert is None else f"{recipe.model}_{recipe.convert}"
    path = folder / f"{name}.safetensors"
    save(model, path, classes=classes, dtype=torch.float16)
    model.load_state_dict(read_checkpoint(path)[0])
    if recipe.data == PhotoDigits.name:
        data = PhotoDigits("val", max(len(data), CARD_HELD_OUT))
    clusters = [data[i].cluster for i in range(len(data))]
    accuracy = bootstrap_mean(correct(model, data), clusters=clusters, proportion=True)
    facts = {
        "model": name,
        "attention": attention_classes(model),
        "parameters": sum(p.numel() for p in model.parameters()),
        "data": data.name,
        "classes": classes,
        "accuracy": accuracy.mean,
        "accuracy_interval": [accuracy.low, accuracy.high],
        "images": accuracy.n,
        "dead_heads": dead_head_share(model, data),
        "gamma": gamma_range(model),
        "recipe": asdict(recipe)
        | {"data": data.name, "init": recipe.init and Path(recipe.init).name},
    }
    write_text(path.with_suffix(".json"), json.dumps(facts, indent=2) + "\n")
    write_text(path.with_suffix(".md"), model_card(facts))
    return path
