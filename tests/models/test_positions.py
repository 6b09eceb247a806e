"""Position embeddings of another grid: resampled where the grid is known, doubted where it is not.

Positions here are waves over their grid, so that neighbours are alike as in trained models.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings

import pytest
import timm
import torch
from timm.layers import resample_abs_pos_embed

from infsa_explain.catalogue import BUNDLED, weights_file
from infsa_explain.models.checkpoints import read_checkpoint, save
from infsa_explain.models.loading import load
from infsa_explain.models.positions import at_grid, recorded_size, size_of

NAME = "vit_tiny_patch16_224"
TINY = {"depth": 1, "embed_dim": 24, "num_heads": 2, "patch_size": 8, "num_classes": 5}
PREFIXES = [{}, {"no_embed_class": True}, {"reg_tokens": 3}]


def vit(gh, gw, **arguments):
    torch.manual_seed(0)
    model = timm.create_model(NAME, img_size=(8 * gh, 8 * gw), **TINY | arguments)
    y, x = torch.meshgrid(torch.arange(gh).float(), torch.arange(gw).float(), indexing="ij")
    waves = [
        wave(axis * length)
        for axis in (y, x)
        for length in (0.15, 0.3, 0.5, 0.7, 0.9, 1.1)
        for wave in (torch.sin, torch.cos)
    ]
    with torch.no_grad():
        prefix = model.pos_embed.shape[1] - gh * gw
        model.pos_embed[0, prefix:] = torch.stack(waves, -1).reshape(gh * gw, 24)
    return model


def resampled(model, grid):
    """Its positions on another grid."""
    prefix = 0 if model.no_embed_class else model.num_prefix_tokens
    old = list(model.patch_embed.grid_size)
    return resample_abs_pos_embed(model.pos_embed.detach(), list(grid), old, prefix)


def plain(model, path, **arguments):
    content = {"model": model.state_dict(), "args": argparse.Namespace(**arguments)}
    torch.save(content, path)


class TestAsManyPatches:
    """7×28, 14×14 and 28×7 are all 196."""

    @pytest.mark.parametrize(
        "arguments", [{}, {"no_embed_class": True}, {"reg_tokens": 3}], ids=str
    )
    @pytest.mark.parametrize(
        ("theirs", "own"), [((7, 28), (14, 14)), ((14, 14), (7, 28)), ((28, 7), (14, 14))]
    )
    def test_a_file_that_does_not_say(self, tmp_path, theirs, own, arguments):
        """Its positions stay, for they may be right, and look wrong."""
        model = vit(*theirs, **arguments)
        torch.save(model.state_dict(), tmp_path / "a.pt")
        (gh, gw), (h, w) = theirs, own
        message = (
            rf"a\.pt: the position embedding is taken to be of {h}×{w} patches, but looks like one "
            rf"of {gh}×{gw}; if it is, build the model with the img_size"
        )
        with pytest.warns(UserWarning, match=message):
            loaded = load(vit(*own, **arguments), checkpoint=tmp_path / "a.pt")
        assert torch.equal(loaded.pos_embed, model.pos_embed)

    @pytest.mark.parametrize("grid", [(14, 14), (7, 28), (28, 7), (49, 4), (196, 1), (1, 196)])
    def test_the_same_grid(self, tmp_path, grid):
        """Warnings are errors here."""
        model = vit(*grid)
        torch.save(model.state_dict(), tmp_path / "a.pt")
        loaded = load(vit(*grid), checkpoint=tmp_path / "a.pt")
        assert torch.equal(loaded.pos_embed, model.pos_embed)

    @pytest.mark.parametrize("kind", ["untrained", "zero", "constant", "nan"])
    def test_positions_that_say_nothing(self, tmp_path, kind):
        model = timm.create_model(NAME, img_size=(56, 224), **TINY)
        fill = {"zero": 0.0, "constant": 1.5, "nan": math.nan}
        if kind in fill:
            torch.nn.init.constant_(model.pos_embed, fill[kind])
        torch.save(model.state_dict(), tmp_path / "a.pt")
        loaded = load(vit(14, 14), checkpoint=tmp_path / "a.pt")
        torch.testing.assert_close(
            loaded.pos_embed, model.pos_embed, rtol=0, atol=0, equal_nan=True
        )

    @pytest.mark.parametrize(
        ("theirs", "own"), [((7, 28), (14, 14)), ((14, 14), (7, 28)), ((7, 28), (28, 7))]
    )
    @pytest.mark.parametrize("record", ["saved", "img_size", "input_size", "image_size"])
    def test_a_file_that_says(self, tmp_path, theirs, own, record):
        """It is resampled as set_input_size resamples it, and said."""
        model, size = vit(*theirs), [8 * side for side in theirs]
        path = tmp_path / "a.safetensors" if record == "saved" else tmp_path / "a.pt"
        if record == "saved":
            save(model, path)
        else:
            plain(model, path, **{record: [3, *size] if record == "input_size" else size})
        message = rf"was learned on {theirs[0]}×{theirs[1]} patches, and is resampled to {own[0]}×"
        with pytest.warns(UserWarning, match=message):
            loaded = load(vit(*own), checkpoint=path)
        assert torch.equal(loaded.pos_embed, resampled(model, own))
        expected = vit(*theirs)
        expected.set_input_size([8 * side for side in own])
        assert torch.equal(loaded.pos_embed, expected.pos_embed)

    def test_a_file_that_says_the_same(self, tmp_path):
        model = vit(7, 28)
        for arguments in ({"img_size": (56, 224)}, {"img_size": None, "input_size": None}):
            plain(model, tmp_path / "a.pt", **arguments)
            loaded = load(vit(7, 28), checkpoint=tmp_path / "a.pt")
            assert torch.equal(loaded.pos_embed, model.pos_embed)

    @pytest.mark.parametrize("name", BUNDLED)
    def test_trained_positions(self, name):
        """They are told from those of 7×28 and 28×7 that they are resampled to."""
        model = load(name)
        weights, grid = dict(model.state_dict()), tuple(model.patch_embed.grid_size)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(at_grid(model, weights, "x", None)["pos_embed"], model.pos_embed)
        other = grid[0] // 2, grid[1] * 2
        weights["pos_embed"] = resampled(model, other)
        with pytest.warns(UserWarning, match=rf"to be of {grid[0]}×{grid[1]} .* looks like one of"):
            at_grid(model, weights, "x", None)


class TestOtherNumbers:
    @pytest.mark.parametrize(
        "arguments", [{}, {"no_embed_class": True}, {"reg_tokens": 3}], ids=str
    )
    @pytest.mark.parametrize("own", [(8, 8), (3, 5), (4, 9)])
    def test_a_square_that_is_not_recorded(self, tmp_path, own, arguments):
        model = vit(7, 7, **arguments)
        torch.save(model.state_dict(), tmp_path / "a.pt")
        loaded = load(vit(*own, **arguments), checkpoint=tmp_path / "a.pt")
        assert torch.equal(loaded.pos_embed, resampled(model, own))

    def test_what_is_taken_for_a_square(self, tmp_path):
        torch.save(vit(4, 9).state_dict(), tmp_path / "a.pt")
        with pytest.warns(UserWarning, match="to be of 6×6 patches, but looks like one of 4×9"):
            load(vit(8, 8), checkpoint=tmp_path / "a.pt")

    @pytest.mark.parametrize("theirs", [(4, 9), (2, 5), (6, 6)])
    def test_a_grid_that_is_recorded(self, tmp_path, theirs):
        model = vit(*theirs)
        plain(model, tmp_path / "a.pt", img_size=[8 * side for side in theirs])
        loaded = load(vit(8, 8), checkpoint=tmp_path / "a.pt")
        assert torch.equal(loaded.pos_embed, resampled(model, (8, 8)))

    def test_a_record_that_is_of_something_else(self, tmp_path):
        model = vit(6, 6)
        plain(model, tmp_path / "a.pt", img_size=224)
        loaded = load(vit(8, 8), checkpoint=tmp_path / "a.pt")
        assert torch.equal(loaded.pos_embed, resampled(model, (8, 8)))

    @pytest.mark.parametrize(
        ("theirs", "own", "numbers"),
        [
            ({"no_embed_class": True}, {}, (196, 1)),
            ({}, {"no_embed_class": True}, (197, 0)),
            ({"reg_tokens": 4}, {}, (201, 1)),
            ({}, {"reg_tokens": 4}, (197, 5)),
        ],
    )
    def test_other_prefix_tokens_are_refused(self, tmp_path, theirs, own, numbers):
        torch.save(vit(14, 14, **theirs).state_dict(), tmp_path / "a.pt")
        message = (
            f"pos_embed has {numbers[0]} positions, where the model has 14×14 for patches and "
            f"{numbers[1]} for prefix tokens; build the model with the img_size"
        )
        with pytest.raises(ValueError, match=message):
            load(vit(14, 14, **own), checkpoint=tmp_path / "a.pt")

    def test_eva(self, tmp_path):
        """Another class of timm's, with the same position embedding."""
        name, arguments = "eva02_tiny_patch14_224", {"depth": 1, "embed_dim": 24, "num_heads": 2}
        model = timm.create_model(name, img_size=112, **arguments)
        torch.save(model.state_dict(), tmp_path / "a.pt")
        loaded = load(name, checkpoint=tmp_path / "a.pt", img_size=56, **arguments)
        assert torch.equal(loaded.pos_embed, resampled(model, (4, 4)))


class TestRecords:
    @pytest.mark.parametrize(
        ("value", "size"),
        [
            (224, (224, 224)),
            ([96, 128], (96, 128)),
            ((3, 96, 128), (96, 128)),
            (None, None),
            (True, None),
            (0, None),
            ("224", None),
            ([1, 2, 3, 4], None),
            ([224.0, 224.0], None),
        ],
    )
    def test_sizes(self, value, size):
        assert size_of(value) == size

    @pytest.mark.parametrize(
        ("metadata", "size"),
        [
            ({}, None),
            ({"architecture": NAME}, (224, 224)),
            ({"architecture": NAME, "arguments": '{"img_size": [56, 224]}'}, (56, 224)),
            ({"architecture": "no_such_model"}, None),
            ({"architecture": NAME, "arguments": "no JSON"}, None),
            ({"architecture": NAME, "arguments": "[]"}, (224, 224)),
            ({"img_size": "224"}, (224, 224)),
            ({"img_size": "big"}, None),
        ],
    )
    def test_metadata(self, metadata, size):
        """Also of a stranger."""
        assert recorded_size(metadata) == size

    def test_a_bundled_checkpoint(self):
        metadata = read_checkpoint(weights_file("infvit_linear_photos"))[1]
        assert recorded_size(metadata) == (64, 64)
        assert json.loads(metadata["classes"])
