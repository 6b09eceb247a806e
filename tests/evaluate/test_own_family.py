"""A model family of one's own, in one file: through every method, measure, the page and the CLI."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from infsa_explain.data import PhotoDigits
from infsa_explain.evaluate import Alignment, Boxes, Focus, Morf, Sanity, measure
from infsa_explain.extensions import Layout, Reading, register_attention, register_family
from infsa_explain.methods import METHODS, applicable_methods, explain
from infsa_explain.report import Report
from infsa_explain.vits import registry


class Heads(nn.Module):
    """Softmax attention of two heads, without values of its own: what a stranger may write."""

    def __init__(self, width):
        super().__init__()
        self.qk, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k = self.qk(x).unflatten(-1, (2, 2, -1)).permute(2, 0, 3, 1, 4)
        v = x.unflatten(-1, (2, -1)).transpose(1, 2)
        return self.out((q @ k.mT).softmax(-1).matmul(v).transpose(1, 2).flatten(2))


class Stranger(nn.Module):
    """16×16 patches, a class token, two blocks."""

    def __init__(self, classes=10):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 16, 16)
        self.places = nn.Parameter(torch.randn(1, 50, 16) / 4)
        self.tokens = nn.Identity()  # all tokens with their positions pass here
        self.blocks = nn.ModuleList(Heads(16) for _ in range(2))
        self.head = nn.Linear(16, classes)

    def forward(self, images):
        x = nn.functional.pad(self.patches(images).flatten(2).mT, (0, 0, 1, 0))
        x = self.tokens(x + self.places)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x[:, 0])


def read(module, x):
    q, k = module.qk(x).unflatten(-1, (2, 2, -1)).permute(2, 0, 3, 1, 4)
    return Reading(
        q,
        k,
        scale=1.0,
        values=lambda: x.unflatten(-1, (2, -1)).transpose(1, 2),
        output=lambda heads: module.out(heads.transpose(1, 2).flatten(2)),
    )


@pytest.fixture
def stranger(monkeypatch):
    monkeypatch.setattr(registry, "_ATTENTION", [*registry._ATTENTION])
    monkeypatch.setattr(registry, "_MODELS", [*registry._MODELS])
    register_attention(Heads, "softmax")(read)
    register_family(
        "stranger",
        lambda model: isinstance(model, Stranger),
        lambda model: {"input_size": (3, 112, 112)},
        fresh=lambda model: Stranger(),
        drop=lambda model: model.tokens,
    )(lambda model, images: Layout((7, 7), 1, True))
    torch.manual_seed(0)
    return Stranger().eval()


def test_every_method_of_softmax_attention(stranger):
    images = torch.randn(2, 3, 112, 112, generator=torch.Generator().manual_seed(1))
    names = applicable_methods({"softmax"})
    assert len(names) > 20
    for name in names:
        maps = explain(stranger, images, name).maps
        assert maps.shape == (2, 7, 7), name
        if not METHODS[name].control:
            assert maps.isfinite().all(), name
            assert maps.flatten(1).std(1).gt(0).all(), name


def test_every_measure(stranger):
    methods = ("visits", "relevance", "centre", "random", "untrained-visits")
    measures = [
        *(Morf(methods, fill=fill, steps=6) for fill in ("mean", "black", "blur", "noise", "drop")),
        Boxes(methods),
        Alignment(),
        Focus(methods),
        Sanity(methods[:3], draws=1),
    ]
    for each in measures:
        rows = measure(stranger, PhotoDigits("val", 2), each)
        assert rows
        (name,) = json.loads(json.dumps(Report(rows).plain()))
        assert name == each.name


def test_without_fresh_or_drop_one_line_says_what_to_add(stranger):
    registry._MODELS[-1] = registry._MODELS[-1]._replace(fresh=None, drop=None)
    data = PhotoDigits("val", 1)
    fresh = r"Stranger has no init_weights\(\) .*; register the family 'stranger' with fresh=…"
    with pytest.raises(ValueError, match=fresh):
        measure(stranger, data, Alignment())
    drop = r"taken out of Stranger: the registration of its family, stranger, does not say where"
    with pytest.raises(ValueError, match=drop):
        measure(stranger, data, Morf(("degree",), fill="drop", steps=4))
