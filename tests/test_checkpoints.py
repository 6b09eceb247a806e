"""Checkpoints are read as data: nothing in them runs, and what cannot be read is said."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from infsa_explain.checkpoints import read_checkpoint
from infsa_explain.models import load


class Harmful:
    """Its pickle makes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


class TestReadCheckpoint:
    def test_missing(self, tmp_path):
        with pytest.raises(ValueError, match=r"no checkpoint at .*none\.pt"):
            read_checkpoint(tmp_path / "none.pt")
        with pytest.raises(ValueError, match=r"no checkpoint at .*none\.safetensors"):
            load(tmp_path / "none.safetensors")

    @pytest.mark.parametrize("torch_format", [True, False])
    def test_a_pickle_runs_nothing(self, tmp_path, torch_format):
        state = {"head.weight": Harmful(tmp_path / "made")}
        if torch_format:
            torch.save(state, tmp_path / "a.pt")
        else:
            (tmp_path / "a.pt").write_bytes(pickle.dumps(state, protocol=2))
        with pytest.raises(ValueError, match="cannot read .* could run code"):
            read_checkpoint(tmp_path / "a.pt")
        with pytest.raises(ValueError, match="cannot read .* could run code"):
            load(nn.Linear(2, 2), checkpoint=tmp_path / "a.pt")
        assert [file.name for file in tmp_path.iterdir()] == ["a.pt"]

    @pytest.mark.parametrize("suffix", ["pt", "safetensors"])
    @pytest.mark.parametrize(
        "content",
        [b"", b"hello", b"<html>404</html>", b"\x80\x02}q\x00", b"PK\x03\x04" + bytes(99)],
        ids=["empty", "text", "page", "cut pickle", "cut archive"],
    )
    def test_damaged(self, tmp_path, suffix, content):
        path = tmp_path / f"a.{suffix}"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"^cannot read .*a\.{suffix} as a checkpoint") as e:
            read_checkpoint(path)
        assert "\n" not in str(e.value)

    def test_any_damage_to_a_real_file(self, tmp_path):
        path = tmp_path / "a.pt"
        torch.save({"a": torch.arange(8.0)}, path)
        content, rng = path.read_bytes(), np.random.default_rng(0)
        refused = 0
        for _ in range(100):
            damaged = bytearray(content[: int(rng.integers(1, len(content)))])
            damaged[int(rng.integers(len(damaged)))] ^= 0xFF
            path.write_bytes(damaged)
            with pytest.raises(ValueError, match="cannot read"):
                read_checkpoint(path)
            refused += 1
        assert refused == 100

    def test_no_state_dict(self, tmp_path):
        torch.save([torch.zeros(2)], tmp_path / "a.pt")
        with pytest.raises(ValueError, match=r"a\.pt holds no state dict"):
            read_checkpoint(tmp_path / "a.pt")
