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
    """What is known at the end of an epoch; one line of ``log.jsonl``.

    Attributes:
        epoch: from 0.
        loss: mean training loss.
        accuracy: of the averaged weights on the held-out images, 0 to 1.
        dead_heads: share of (layer, image, head) that pass nothing on, on held-out images.
        gamma: smallest and largest γ, or None for a softmax model.
        seconds: that the epoch took.
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

    Every epoch seeds its own random numbers, and its state is on disk before the next begins:
    a run that is killed and resumed ends with the weights of an undisturbed one.

    Args:
        recipe: what to train, on what, how.
        out: a folder; gets ``recipe.json``, ``log.jsonl`` and ``last.pt`` while training, and
            ``<model>.safetensors`` with its card ``<model>.md`` at the end; the kind that a model
            was converted to is in the name.
        resume: go on from ``last.pt``.
        device: where to train.
        on_epoch: called with every :class:`Epoch`.
        on_step: called with (steps done, steps in all).

    Returns:
        The path of the safetensors file.

    Raises:
        ValueError: if ``out`` holds a run and ``resume`` is off, or holds another recipe's run,
            or an image has no label, or held-out images are of a class that none is trained on.
        FloatingPointError: if the loss is no longer finite.
    """
    check_folder(out)
    folder = Path(out)
    _must_be_free(folder, recipe, resume)
    data, held_out = _labelled(recipe)
    torch.manual_seed(recipe.seed)
    state = _State(recipe, _start(recipe, data).to(torch.device(device)), len(data))
    _claim(folder, recipe)  # not before the model is there: what fails until then leaves nothing
    last = folder / "last.pt"
    if resume and last.exists():
        state.load(last)
    dead_before = _resume_log(folder / "log.jsonl", state.epoch)
    while state.epoch < recipe.epochs:
        began = time.monotonic()
        _seed_epoch(recipe.seed, state.epoch)
        loss = state.train_epoch(_loader(recipe, state.epoch, state.model, data), on_step)
        result = Epoch(
            state.epoch,
            loss,
            float(correct(state.average, held_out).mean()),
            dead_head_share(state.average, held_out),
            gamma_range(state.average),
            round(time.monotonic() - began, 1),
        )
        with naming(folder / "log.jsonl"), (folder / "log.jsonl").open("a") as log:
            log.write(json.dumps(asdict(result)) + "\n")
        state.epoch += 1
        state.save(last)
        on_epoch(result)
        if state.epoch > 1 and result.dead_heads > dead_before + DEAD_HEAD_JUMP:
            warnings.warn(
                f"epoch {state.epoch}: dead heads rose from {dead_before:.0%} to "
                f"{result.dead_heads:.0%}; a lower lr or clip_grad may keep them alive",
                stacklevel=2,
            )
        dead_before = result.dead_heads
    return _finish(recipe, folder, state.average, held_out, data.classes)


class _State:
    """A training between two epochs: what a checkpoint keeps of it, and how an epoch changes it.

    Attributes:
        epoch: the number of epochs that are done.
        model: the weights that are trained.
        average: their moving average, which is scored and kept.
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
        """Write the state after an epoch."""
        state = {
            "epoch": self.epoch - 1,  # the last that is done
            "model": self.model.state_dict(),
            "ema": self.average.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        with replacing(path) as temporary:
            torch.save(state, temporary)

    def load(self, path: Path) -> None:
        """Take over the state that was saved last.

        Raises:
            ValueError: if the file is damaged, or holds something else.
        """
        device = next(self.model.parameters()).device
        try:
            state: Any = torch.load(path, map_location=device, weights_only=True)
        except Exception as error:  # damaged bytes fail in every way there is
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise ValueError(f"{path} is damaged; remove it to begin anew ({reason})") from error
        parts = {"epoch", "model", "ema", "optimizer"}
        if not isinstance(state, dict) or not parts <= state.keys():
            raise ValueError(f"{path} holds no state of a training; remove it to begin anew")
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["ema"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.epoch = state["epoch"] + 1

    def train_epoch(
        self,
        loader: DataLoader[tuple[Tensor, int, Tensor]],
        on_step: Callable[[int, int], None],
    ) -> float:
        """One pass over the images; returns the mean loss."""
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
        """The loss of this epoch's batches, and the number of images that it is a mean over."""
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
            if len(images) % 2:  # mixing pairs images, the first with the last
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
    """Images to train on and held-out images, whose labels are those of the same classes.

    Raises:
        ValueError: an image has no label, or a class of held-out images is not trained.
    """
    data, held_out = _data(recipe, "train"), _data(recipe, "val")
    for part in (data, held_out):
        unknown = (known_labels(part) or []).count(None)
        if unknown:
            raise ValueError(
                f"{unknown} of the {len(part)} images of {part.name!r} have no label; training "
                "needs one for each image"
            )
    if len(data) == len(held_out) and data.fingerprint() == held_out.fingerprint():
        warnings.warn(
            f"{data.name!r} has no splits, so that the accuracy is that on the images trained on; "
            "lay them out in the folders train and val",
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


def _start(recipe: Recipe, data: ImageData) -> VisionTransformer:
    """The model as its training begins: new, or from weights, converted, and with a classifier.

    A classifier of weights is kept if it is for these classes by their names, its outputs in the
    order of the data's classes, or if it is for as many that have no names.
    """
    classes = data.classes
    known = recipe.pretrained or recipe.init is not None
    arguments = {"drop_path_rate": recipe.drop_path} | recipe.model_args
    model = load(
        recipe.model,
        checkpoint=recipe.init,
        pretrained=recipe.pretrained,
        **arguments if known else arguments | {"num_classes": len(classes)},
    )
    if not isinstance(model, VisionTransformer):
        raise ValueError(
            f"{recipe.model} is no timm VisionTransformer; only those are trained here"
        )
    if recipe.convert is not None:
        model = cast(VisionTransformer, convert(model, recipe.convert, recipe.convert_layers))
    names = class_names(model) if known else None
    outputs = None if names is None else labels_of(data, names)
    if model.num_classes != len(classes):
        model.reset_classifier(len(classes))
    elif outputs is not None:
        if set(outputs) == set(range(len(classes))):
            _reorder(model, cast(list[int], outputs))
        else:
            model.reset_classifier(len(classes))
    cast(Any, model).class_names = None  # of the weights; the checkpoint gets those of the data
    return model


def _reorder(model: VisionTransformer, outputs: list[int]) -> None:
    """Bring the outputs of a classifier into another order."""
    layers = model.get_classifier()
    for layer in layers if isinstance(layers, tuple) else (layers,):
        for parameter in layer.parameters():
            parameter.data = parameter.data[outputs]


def _must_be_free(folder: Path, recipe: Recipe, resume: bool) -> None:
    """Refuse a folder that holds another run, or this one where it is not to be resumed."""
    path = folder / "recipe.json"
    if not path.exists():
        return
    if not resume:
        raise ValueError(f"{folder} holds a run already; --resume it, or choose another --out")
    asked, stored = json.loads(json.dumps(asdict(recipe))), read_json(path)
    if not isinstance(stored, dict):
        raise ValueError(f"{path} holds no recipe; choose another --out")
    differ = [k for k in asked.keys() | stored.keys() if asked.get(k) != stored.get(k)]
    if differ:
        raise ValueError(f"{folder} holds a run with another {', '.join(sorted(differ))}")


def _claim(folder: Path, recipe: Recipe) -> None:
    """Make the folder this recipe's."""
    make_folder(folder)
    write_text(folder / "recipe.json", json.dumps(asdict(recipe), indent=2) + "\n")


def _resume_log(path: Path, epochs: int) -> float:
    """Keep the log of the epochs that are done; returns the last one's share of dead heads."""
    lines = path.read_text().splitlines(keepends=True)[:epochs] if path.exists() else []
    write_text(path, "".join(lines))
    return float(json.loads(lines[-1])["dead_heads"]) if lines else 0.0


def _finish(
    recipe: Recipe, folder: Path, model: nn.Module, data: ImageData, classes: list[str]
) -> Path:
    """Write the averaged weights in float16 and their card; the card's accuracy is the file's."""
    name = recipe.model if recipe.convert is None else f"{recipe.model}_{recipe.convert}"
    path = folder / f"{name}.safetensors"
    save(model, path, classes=classes, dtype=torch.float16)
    model.load_state_dict(read_checkpoint(path)[0])
    if recipe.data == PhotoDigits.name:
        data = PhotoDigits("val", max(len(data), CARD_HELD_OUT))
    accuracy = bootstrap_mean(correct(model, data))
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
