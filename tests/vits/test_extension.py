"""A model family of your own, in one place: methods, measures, the report and the CLI find it."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from timm.models import _registry as timm_registry
from torch import nn

from infsa_explain import capture, explain
from infsa_explain.cli import command_line
from infsa_explain.data import PhotoDigits
from infsa_explain.evaluate import Alignment, Boxes, Focus, Morf, Sanity, measure
from infsa_explain.extensions import (
    Family,
    Layout,
    Reading,
    register_attention,
    register_family,
)
from infsa_explain.methods import METHODS, applicable_methods
from infsa_explain.models.untraining import cascade, untrained
from infsa_explain.report import Report
from infsa_explain.vits import registry
from infsa_explain.vits.blocks import blocks_of
from infsa_explain.vits.tokens import forward_patches

# ---------------------------------------------------------------- the model, and its family


class Heads(nn.Module):
    """Softmax attention with two heads, whose values are the tokens."""

    def __init__(self):
        super().__init__()
        self.qk, self.out = nn.Linear(16, 32), nn.Linear(16, 16)

    def parts(self, x):
        q, k = self.qk(x).unflatten(-1, (2, 2, -1)).permute(2, 0, 3, 1, 4)
        return q, k, x.unflatten(-1, (2, -1)).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.parts(x)
        return self.out((q @ k.mT).softmax(-1).matmul(v).transpose(1, 2).flatten(2))


class Stranger(nn.Module):
    """16×16 patches, a class token, and two blocks that are not in a list."""

    def __init__(self):
        super().__init__()
        self.patches, self.tokens = nn.Conv2d(3, 16, 16, 16), nn.Identity()
        self.places = nn.Parameter(torch.randn(1, 50, 16) / 4)
        self.first, self.second, self.head = Heads(), Heads(), nn.Linear(16, 10)

    def forward(self, images):
        x = nn.functional.pad(self.patches(images).flatten(2).mT, (0, 0, 1, 0))
        x = self.tokens(x + self.places)
        x = x + self.first(x)
        return self.head((x + self.second(x))[:, 0])


def read(module, x):
    q, k, v = module.parts(x)
    output = lambda heads: module.out(heads.transpose(1, 2).flatten(2))  # noqa: E731
    return Reading(q, k, scale=1.0, values=lambda: v, output=output)


class StrangerFamily(Family):
    name = "stranger"

    def matches(self, model):
        return isinstance(model, Stranger)

    def layout(self, model, images):
        return Layout((7, 7), num_prefix_tokens=1, reads_class_token=True)

    def data(self, model):
        return {"input_size": (3, 112, 112)}

    def fresh(self, model):
        return Stranger()

    def drop(self, model):
        return model.tokens

    def blocks(self, model):
        return ["first", "second"]


# ---------------------------------------------------------------- everything finds it


@pytest.fixture
def stranger(monkeypatch):
    monkeypatch.setattr(registry, "ATTENTION", [*registry.ATTENTION])
    monkeypatch.setattr(registry, "FAMILIES", [*registry.FAMILIES])
    register_attention(Heads, "softmax")(read)
    register_family(StrangerFamily)
    torch.manual_seed(0)
    return Stranger().eval()


@pytest.fixture
def images():
    return torch.randn(2, 3, 112, 112, generator=torch.Generator().manual_seed(1))


def test_capture(stranger, images):
    graphs = capture(stranger, images)
    assert graphs.grid == (7, 7) and graphs.kinds == ("softmax", "softmax")
    tokens = stranger.tokens(
        nn.functional.pad(stranger.patches(images).flatten(2).mT, (0, 0, 1, 0)) + stranger.places
    )
    q, k, _ = stranger.first.parts(tokens)
    expected = (q @ k.mT).softmax(-1)
    torch.testing.assert_close(graphs.operators[0].dense(), expected, rtol=0, atol=1e-6)


def test_every_method_of_softmax_attention(stranger, images):
    names = applicable_methods({"softmax"})
    assert len(names) == len(METHODS) - len({"doob", "katz"})
    for name in names:
        maps = explain(stranger, images, name).maps
        assert maps.shape == (2, 7, 7), name
        if not METHODS[name].control:
            assert maps.isfinite().all(), name
            assert maps.flatten(1).std(1).gt(0).all(), name


@torch.no_grad()
def test_fresh_weights_and_the_cascade(stranger, images):
    torch.manual_seed(5)
    expected = Stranger()
    assert all(
        torch.equal(value, expected.state_dict()[key])
        for key, value in untrained(stranger, 5).state_dict().items()
    )
    fresh = {
        stage: {
            name.partition(".")[0]
            for name, value in partial.named_parameters()
            if not torch.equal(value, stranger.get_parameter(name))
        }
        for stage, partial in cascade(stranger, 5)
    }
    assert fresh == {
        "head": {"head"},
        "second": {"head", "second"},
        "first": {"head", "second", "first"},
        "embeddings": {"head", "second", "first", "patches", "places"},
    }


def test_blocks_of_a_model_around_it(stranger, images):
    wrapped = nn.Sequential(stranger, nn.Linear(10, 3)).eval()
    assert list(blocks_of(wrapped)) == ["0.first", "0.second"]
    assert [stage for stage, _ in cascade(wrapped)] == ["head", "0.second", "0.first", "embeddings"]
    assert explain(wrapped, images, "relevance").maps.isfinite().all()


METHOD_NAMES = ("visits", "relevance", "centre", "random", "untrained-visits")


@pytest.mark.parametrize(
    "experiment",
    [
        *(Morf(METHOD_NAMES, fill=f, steps=6) for f in ("mean", "black", "blur", "noise", "drop")),
        Boxes(METHOD_NAMES),
        Alignment(),
        Focus(METHOD_NAMES),
        Sanity(METHOD_NAMES[:3], draws=1),
    ],
    ids=lambda experiment: f"{experiment.name} {getattr(experiment, 'fill', '')}",
)
def test_every_measure(stranger, experiment):
    rows = measure(stranger, PhotoDigits("val", 2), experiment)
    assert rows
    (name,) = json.loads(json.dumps(Report(rows).plain()))
    assert name == experiment.name


@torch.no_grad()
def test_tokens_are_dropped_where_the_family_says(stranger, images):
    tokens = nn.functional.pad(stranger.patches(images).flatten(2).mT, (0, 0, 1, 0))
    x = (tokens + stranger.places)[:, [0, 1, 49]]  # the class token, the first and last patch
    x = x + stranger.first(x)
    expected = stranger.head((x + stranger.second(x))[:, 0])
    kept = forward_patches(stranger, images, torch.tensor([[0, 48]] * 2))
    torch.testing.assert_close(kept, expected, rtol=0, atol=1e-6)


METRICS = "morf,boxes,align,focus,sanity,sensitivity,accuracy"


def test_command_line_and_page(stranger, monkeypatch, tmp_path, capsys):
    """By a name in timm's registry, as a package of its own would register it."""
    build = lambda pretrained=False, **kwargs: copy.deepcopy(stranger)  # noqa: E731
    monkeypatch.setitem(timm_registry._model_entrypoints, "stranger", build)
    run = str(tmp_path / "run")
    options = ["--metrics", METRICS, "--fill", "drop", "--steps", "few", "--limit", "2"]
    options += ["--methods", "visits,random,centre", "--model", "stranger", "--out", run]
    command_line()(["evaluate", *options], standalone_mode=False)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert set(METRICS.split(",")) <= summary.keys()
    command_line()(["report", run], standalone_mode=False)
    assert "stranger" in (tmp_path / "run" / "report.html").read_text()
    capsys.readouterr()


# ---------------------------------------------------------------- what a family does not say


class Bare(Family):
    name = "bare"
    matches, layout = StrangerFamily.matches, StrangerFamily.layout
    data = StrangerFamily.data


def test_one_line_says_what_to_add(stranger):
    register_family(Bare)  # the last registered is used
    data = PhotoDigits("val", 1)
    fresh = r"Stranger cannot be built with .*; give its family 'bare' a method fresh\(model\)$"
    for experiment in (Alignment(), Morf(("untrained-visits",), steps=4)):
        with pytest.raises(ValueError, match=fresh):
            measure(stranger, data, experiment)
    with pytest.raises(
        ValueError, match=r"Stranger: its family 'bare' does not .* \(method drop\)"
    ):
        measure(stranger, data, Morf(("degree",), fill="drop", steps=4))
    blocks = r"Stranger must be .* named by its family 'bare' \(method blocks\); .* first, second$"
    with pytest.raises(ValueError, match=blocks):
        next(cascade(stranger))
    with pytest.raises(ValueError, match=blocks):
        measure(stranger, data, Focus(("visits",)))


def test_a_family_needs_a_name(monkeypatch):
    monkeypatch.setattr(registry, "FAMILIES", [])
    with pytest.raises(ValueError, match="name must be a class attribute of Nameless, got none"):

        @register_family
        class Nameless(Family):
            pass

    assert registry.FAMILIES == []
