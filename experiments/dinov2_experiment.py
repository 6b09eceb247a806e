"""DINOv2 with its attention swapped and fine-tuned: softmax, pure and linear, whole or in part.

    python experiments/dinov2_experiment.py --weights FILE --data FOLDER --out FOLDER

FILE holds timm's ``vit_small_patch14_dinov2``; FOLDER holds images by class, or is in
Tiny-ImageNet's layout. Every variant gets the same photographs in the same order, the same steps,
and the same classifier to start from, a linear probe of the original. Each ends as a file in --out
that ``load`` and ``--model`` take. What came of it is in ``dinov2.md`` beside this file.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from timm.data import create_transform
from torch import Tensor, nn

from infsa_explain import convert, load
from infsa_explain.data import ImageData, open_data
from infsa_explain.models.checkpoints import save
from infsa_explain.vits.preprocessing import data_config

MODEL, SIZE, LAST_FOUR = "vit_small_patch14_dinov2", 112, 8
#: Kind of attention, and the first block that is converted and trained.
VARIANTS = {
    "softmax_last4": ("softmax", LAST_FOUR),
    "linear_last4": ("linear", LAST_FOUR),
    "pure_last4": ("pure", LAST_FOUR),
    "linear": ("linear", 0),
    "pure": ("pure", 0),
    "softmax": ("softmax", 0),
}
EPOCHS, BATCH, LR, WEIGHT_DECAY, LABEL_SMOOTHING, CLIP_GRAD = 4, 64, 5e-5, 0.05, 0.1, 1.0
PROBE_C = 0.01

#: Images (b, 3, h, w), or the tokens (b, N, D) that a block makes of them, by their indices (b,);
#: some of them mirrored, as the second argument (b,) says.
Batch = Callable[[Tensor, Tensor], Tensor]


def bfloat16() -> torch.autocast:
    """Autocast, which halves the time of a step on a CPU with AVX512-BF16."""
    return torch.autocast("cpu", torch.bfloat16)


def photographs(model: nn.Module, data: ImageData) -> tuple[Batch, Tensor]:
    """Images as the model takes them, held in memory as bytes, and labels (n,)."""
    config = data_config(model)
    transform = create_transform(**config, is_training=False, normalize=False)
    samples = [data[i] for i in range(len(data))]
    pixels = torch.stack([transform(Image.fromarray(sample.image)) for sample in samples])
    mean, std = (torch.tensor(config[key]).view(3, 1, 1) for key in ("mean", "std"))

    def batch(index: Tensor, mirrored: Tensor) -> Tensor:
        images = (pixels[index].float() / 255 - mean) / std
        images[mirrored] = images[mirrored].flip(-1)
        return images

    return batch, torch.tensor([sample.label for sample in samples])


def entering(model: Any, images: Tensor, first: int) -> Tensor:
    """Tokens that enter block ``first``."""
    x: Tensor = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images))))
    for block in model.blocks[:first]:
        x = block(x)
    return x


def leaving(model: Any, x: Tensor, first: int, pre_logits: bool = False) -> Tensor:
    """Logits, or what the classifier reads, from the tokens that enter block ``first``."""
    for block in model.blocks[first:]:
        x = block(x)
    out: Tensor = model.forward_head(model.norm(x), pre_logits=pre_logits)
    return out


def embedded(model: nn.Module, images: Batch, index: Tensor, mirrored: Tensor) -> Tensor:
    """Tokens that enter the first block, computed whenever they are asked for."""
    return entering(model, images(index, mirrored), 0)


@torch.no_grad()
def cached(model: nn.Module, images: Batch, count: int, first: int) -> Batch:
    """Tokens that enter block ``first``, computed once for each image and its mirror image."""
    with bfloat16():
        tokens = [
            entering(model, images(index, torch.full_like(index, mirrored).bool()), first).half()
            for mirrored in (0, 1)
            for index in torch.arange(count).split(BATCH)
        ]
    both = torch.cat(tokens).unflatten(0, (2, count))
    return lambda index, mirrored: both[mirrored.long(), index].float()


@torch.no_grad()
def probe(model: Any, tokens: Batch, labels: Tensor, first: int) -> None:
    """Make the classifier a logistic regression on what it reads."""
    features = []
    for index in torch.arange(len(labels)).split(BATCH):
        with bfloat16():
            read = leaving(model, tokens(index, index < 0), first, pre_logits=True)
        features.append(read.float())
    fitted = LogisticRegression(C=PROBE_C, max_iter=2000).fit(torch.cat(features), labels)
    model.head.weight.copy_(torch.as_tensor(fitted.coef_))
    model.head.bias.copy_(torch.as_tensor(fitted.intercept_))


def fine_tune(model: Any, tokens: Batch, labels: Tensor, first: int) -> None:
    """Train all blocks from ``first`` on, norm and classifier; the embedding too, if that is 0.

    AdamW with a tenth of the steps to warm up, then cosine decay to 1%; images are mirrored at
    random, and nothing else is done to them.
    """
    model.requires_grad_(first == 0)
    for part in (model.blocks[first:], model.norm, model.head):
        part.requires_grad_(True)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed = [parameter for parameter in trained if parameter.ndim > 1]
    others = [parameter for parameter in trained if parameter.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, weight_decay=WEIGHT_DECAY)
    steps = EPOCHS * math.ceil(len(labels) / BATCH)
    warm = steps // 10

    def rate(step: int) -> float:
        cosine = 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))
        return (step + 1) / warm if step < warm else 0.01 + 0.99 * cosine

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    criterion = nn.CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING)
    model.train()
    for epoch in range(EPOCHS):
        draw, began, total = torch.Generator().manual_seed(epoch), time.monotonic(), 0.0
        for index in torch.randperm(len(labels), generator=draw).split(BATCH):
            mirrored = torch.rand(len(index), generator=draw) < 0.5
            with bfloat16():
                logits = leaving(model, tokens(index, mirrored), first)
            loss = criterion(logits.float(), labels[index])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(trained, CLIP_GRAD)
            optimizer.step()
            schedule.step()
            total += loss.item() * len(index)
        seconds = time.monotonic() - began
        print(f"  epoch {epoch + 1}: loss {total / len(labels):.3f}, {seconds:.0f} s", flush=True)


def main() -> None:
    """Train every variant that is not yet in --out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--weights", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True, type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    data = open_data(options.data, split="train")
    original: Any = load(
        MODEL, checkpoint=options.weights, img_size=SIZE, num_classes=len(data.classes)
    )
    images, labels = photographs(original, data)
    last_four = cached(original, images, len(labels), LAST_FOUR)
    probe(original, last_four, labels, LAST_FOUR)
    save(original, options.out / "probe.safetensors", classes=data.classes)
    for name, (kind, first) in VARIANTS.items():
        path = options.out / f"{name}.safetensors"
        if path.exists():
            continue
        print(name, flush=True)
        model: Any = convert(original, kind, layers=range(first, len(original.blocks)))
        tokens = last_four if first else partial(embedded, model, images)
        fine_tune(model, tokens, labels, first)
        save(model, path, classes=data.classes)


if __name__ == "__main__":
    main()
