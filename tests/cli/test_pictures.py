"""Commands that draw, and the one that trains what they draw of."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image


def test_map_writes_an_overlay_and_the_raw_map(cli, tmp_path):
    photo = tmp_path / "a photo, wide.png"
    pixels = np.random.default_rng(0).integers(0, 256, (90, 140, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(photo)
    out = tmp_path / "maps"
    code, stdout, _ = cli("map", photo, "--method", "visits,linear", "--layer", 0, "--out", out)
    assert code == 0
    stem = "a_photo_wide.png"
    names = [f"{stem}.{m}.layer-0.{e}" for m in ("visits", "linear") for e in ("npy", "png")]
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    assert len(stdout.split("\n")) == 4 + 1
    raw = np.load(out / f"{stem}.visits.layer-0.npy")
    assert raw.shape == (14, 14)
    assert raw.sum() == pytest.approx(1, abs=1e-5)
    with Image.open(out / f"{stem}.visits.layer-0.png") as picture:
        assert picture.size[0] > 600


def test_train_writes_a_model_that_map_takes(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "infsa_explain.training.recipes.RECIPES", {"photo-digits": {"epochs": 1, "epoch_size": 32}}
    )
    monkeypatch.setattr("infsa_explain.training.loop.HELD_OUT", 16)
    out = tmp_path / "run"
    train = ("train", "--epochs", 1, "--batch-size", 16, "--out", out)
    code, stdout, _ = cli(*train)
    assert code == 0
    assert "epoch 1/1: loss" in stdout
    checkpoint = out / "infvit_linear_digits.safetensors"
    assert cli("map", "--model", checkpoint, "--out", tmp_path / "maps")[0] == 0
    assert len(list((tmp_path / "maps").iterdir())) == 8
    code, _, stderr = cli(*train)
    assert code == 2
    assert "--resume" in stderr
