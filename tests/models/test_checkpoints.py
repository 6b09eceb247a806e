"""Checkpoints: read as data, so that nothing in them runs; and written so that load rebuilds."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import timm
import torch
from timm.models import VisionTransformer
from torch import nn

from infsa_explain.models.checkpoints import read_checkpoint, save
from infsa_explain.models.conversion import convert
from infsa_explain.models.loading import load
from infsa_explain.vits.preprocessing import data_config

NAME = "vit_tiny_patch16_224"
TINY = {"depth": 3, "embed_dim": 24, "num_heads": 2, "patch_size": 8, "img_size": 32}


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


def tiny(**arguments):
    torch.manual_seed(0)
    return timm.create_model(NAME, **TINY | {"num_classes": 5} | arguments).eval()


def attention(model):
    return [type(block.attn).__name__ for block in model.blocks]


def images(*size):
    return torch.randn(2, 3, *(size or (32, 32)), generator=torch.Generator().manual_seed(1))


def same(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


class TestSave:
    @pytest.mark.parametrize("layers", [None, [0, -1], "blocks.1.*"])
    @pytest.mark.parametrize("kind", ["linear", "pure", "softmax"])
    @pytest.mark.parametrize(
        "arguments",
        [
            {},
            {"reg_tokens": 2, "init_values": 0.1, "qk_norm": True},
            {"img_size": (16, 40), "class_token": False, "global_pool": "avg"},
            {"dynamic_img_size": True, "num_classes": 0},
        ],
        ids=str,
    )
    @torch.no_grad()
    def test_a_converted_model_comes_back_bit_for_bit(self, tmp_path, arguments, kind, layers):
        model = convert(tiny(**arguments), kind, layers)
        save(model, tmp_path / "a.safetensors")
        loaded = load(tmp_path / "a.safetensors")
        assert attention(loaded) == attention(model)
        assert same(loaded, model)
        x = images(*model.patch_embed.img_size)
        assert torch.equal(loaded(x), model(x))

    @torch.no_grad()
    def test_several_kinds_and_gammas(self, tmp_path):
        model = convert(convert(tiny(), "linear", layers=0), "pure", layers=2)
        nn.init.constant_(model.blocks[0].attn.gamma_logit, -1.5)
        save(model, tmp_path / "a.safetensors")
        loaded = load(tmp_path / "a.safetensors")
        assert attention(loaded) == ["LinearInfSA", "Attention", "PureInfSA"]
        assert same(loaded, model)
        again = convert(loaded, "softmax")
        save(again, tmp_path / "b.safetensors")
        assert torch.equal(load(tmp_path / "b.safetensors")(images()), tiny()(images()))

    @torch.no_grad()
    def test_an_infvit_of_another_kind_than_its_name(self, tmp_path):
        model = convert(load("infvit_linear_photos"), "softmax")
        save(model, tmp_path / "a.safetensors")
        loaded = load(tmp_path / "a.safetensors")
        assert attention(loaded) == ["Attention"] * 4
        assert loaded.class_names == model.class_names
        assert torch.equal(loaded(images(64, 64)), model(images(64, 64)))

    def test_preparation_of_images_and_classes(self, tmp_path):
        """Of the weights' own, not of the name's default."""
        own = {"mean": (0.1, 0.2, 0.3), "crop_pct": 0.7, "interpolation": "bilinear"}
        model = tiny(pretrained_cfg_overlay=own)
        save(model, tmp_path / "a.safetensors", classes=list("abcde"))
        loaded = load(tmp_path / "a.safetensors")
        assert data_config(loaded) == data_config(model)
        assert data_config(loaded)["mean"] == own["mean"]
        assert loaded.class_names == list("abcde")

    def test_dtype(self, tmp_path):
        model = tiny()
        save(model, tmp_path / "a.safetensors", dtype=torch.float16)
        weights, _ = read_checkpoint(tmp_path / "a.safetensors")
        for key, value in model.state_dict().items():
            assert torch.equal(weights[key], value.half())

    def test_what_load_would_not_give_back(self, tmp_path):
        path = tmp_path / "a.safetensors"
        with pytest.raises(ValueError, match=r"not built by timm\.create_model"):
            save(VisionTransformer(**TINY), path)
        with pytest.raises(ValueError, match="these arguments has 12 attention layers, not 3"):
            save(tiny(), path, arguments={})
        model = tiny()
        model.head = nn.Sequential(model.head, nn.Identity())
        with pytest.raises(ValueError, match=r"is another model; missing: head\.bias, head\.wei"):
            save(model, path)
        with pytest.raises(ValueError, match="must be plain data, got .*norm_layer"):
            save(tiny(norm_layer=nn.LayerNorm), path)
        assert list(tmp_path.iterdir()) == []

    def test_a_model_of_a_class_with_its_name_and_arguments(self, tmp_path):
        model = VisionTransformer(**TINY, num_classes=5)
        save(
            model,
            tmp_path / "a.safetensors",
            architecture=NAME,
            arguments=TINY | {"num_classes": 5},
        )
        assert same(load(tmp_path / "a.safetensors"), model)


class TestLoadAtAnotherSize:
    @pytest.fixture
    def path(self, tmp_path):
        save(convert(tiny(), "linear", [-1]), tmp_path / "a.safetensors", classes=list("abcde"))
        return tmp_path / "a.safetensors"

    @pytest.mark.parametrize("name", [None, NAME, f"{NAME}.augreg_in21k_ft_in1k"])
    def test_positions_are_resampled_and_the_classifier_is_new(self, path, name):
        """As timm's own set_input_size and reset_classifier do it."""
        loaded = load(name or path, checkpoint=name and path, img_size=(48, 16), num_classes=3)
        expected = convert(tiny(), "linear", [-1])
        expected.set_input_size((48, 16))
        assert attention(loaded) == attention(expected)
        assert torch.equal(loaded.pos_embed, expected.pos_embed)
        assert loaded.head.weight.shape == (3, 24)
        assert loaded.class_names is None
        assert loaded(images(48, 16)).shape == (2, 3)
        save(loaded, path)
        assert same(load(path), loaded)

    def test_plain_weights(self, tmp_path):
        """As timm's own loading of a file resamples them; a classifier is kept if none is asked."""
        torch.save(tiny().state_dict(), tmp_path / "a.pth")
        arguments = TINY | {"img_size": (24, 56)}
        overlay = {"file": str(tmp_path / "a.pth"), "num_classes": 5}
        expected = timm.create_model(
            NAME, pretrained=True, pretrained_cfg_overlay=overlay, num_classes=5, **arguments
        )
        loaded = load(NAME, checkpoint=tmp_path / "a.pth", **arguments)
        assert same(loaded, expected)
        other = load(NAME, checkpoint=tmp_path / "a.pth", num_classes=3, **arguments)
        assert other.head.weight.shape == (3, 24)
        assert torch.equal(other.pos_embed, expected.pos_embed)

    def test_plain_positions_of_no_square(self, tmp_path):
        """Two by five patches could be five by two."""
        torch.save(tiny(img_size=(16, 40)).state_dict(), tmp_path / "a.pth")
        with pytest.raises(ValueError, match=r"pos_embed is \(1, 11, 24\), expected \(1, 17, 24\)"):
            load(NAME, checkpoint=tmp_path / "a.pth", **TINY)
