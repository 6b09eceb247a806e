"""The DINOv2 experiment: blocks in two parts are the model, and load takes what it writes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from infsa_explain.models.loading import load

SCRIPT = Path(__file__).resolve().parents[1] / "experiments" / "dinov2_experiment.py"
NAME = "vit_tiny_patch16_224"
TINY = {"depth": 3, "embed_dim": 24, "num_heads": 2, "patch_size": 8, "img_size": 32}


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("dinov2_experiment", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def vit():
    torch.manual_seed(0)
    return timm.create_model(NAME, **TINY, num_classes=2).eval()


@pytest.mark.parametrize("first", [0, 2])
@torch.no_grad()
def test_blocks_in_two_parts_are_the_model(script, vit, first):
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    tokens = script.entering(vit, images, first)
    assert torch.equal(script.leaving(vit, tokens, first), vit(images))


@torch.no_grad()
def test_cached_tokens_are_those_of_the_image_or_its_mirror_image(script, vit):
    images = torch.randn(70, 3, 32, 32, generator=torch.Generator().manual_seed(1))

    def batch(index, mirrored):
        return torch.where(mirrored.view(-1, 1, 1, 1), images[index].flip(-1), images[index])

    index, mirrored = torch.tensor([69, 3, 3]), torch.tensor([True, False, True])
    found = script.cached(vit, batch, 70, 2)(index, mirrored)
    expected = script.entering(vit, batch(index, mirrored), 2)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)  # bfloat16
    assert (found[1] - found[2]).abs().max() > 0.1


def test_every_variant_is_trained_where_it_is_converted(script, vit, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for i in range(6):
        folder = tmp_path / "data" / "train" / ("dark", "light")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image = rng.integers(0, 100, (32, 32, 3), dtype=np.uint8) + np.uint8(150 * (i % 2))
        Image.fromarray(image).save(folder / f"{i}.png")
    monkeypatch.setattr(script, "load", lambda *args, **kwargs: vit)
    for name, value in {"EPOCHS": 5, "BATCH": 2, "LAST_FOUR": 2}.items():
        monkeypatch.setattr(script, name, value)
    variants = {"linear_last": ("linear", 2), "pure": ("pure", 0), "softmax": ("softmax", 0)}
    monkeypatch.setattr(script, "VARIANTS", variants)
    arguments = ["--weights", "none", "--data", tmp_path / "data", "--out", tmp_path / "out"]
    monkeypatch.setattr("sys.argv", ["script", *map(str, arguments)])
    script.main()
    start = load(tmp_path / "out" / "probe.safetensors")
    assert start.class_names == ["dark", "light"]
    for name, (kind, first) in variants.items():
        model = load(tmp_path / "out" / f"{name}.safetensors")
        own = {"linear": "LinearInfSA", "pure": "PureInfSA", "softmax": "Attention"}[kind]
        kinds = [type(block.attn).__name__ for block in model.blocks]
        assert kinds == ["Attention"] * first + [own] * (3 - first)
        end = model.state_dict()
        moved = {key for key, value in start.state_dict().items() if not value.equal(end[key])}
        assert moved >= {"blocks.2.attn.qkv.weight", "norm.weight", "head.weight"}
        early = {"cls_token", "pos_embed", "patch_embed.proj.weight", "blocks.1.mlp.fc1.weight"}
        assert moved & early == (set() if first else early)
