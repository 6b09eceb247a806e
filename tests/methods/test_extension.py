"""A map method of your own, in one place: ``explain``, lists, measures and the CLI find it."""

from __future__ import annotations

import pytest
import torch
from supported_models import script

from infsa_explain import METHODS, explain, load
from infsa_explain.cli import command_line
from infsa_explain.data import PhotoDigits
from infsa_explain.evaluate import Morf, measure
from infsa_explain.extensions import register_method
from infsa_explain.methods import applicable_methods


@pytest.fixture(autouse=True)
def loudness(monkeypatch):
    monkeypatch.setitem(METHODS, "loudness", None)  # removed again after the test

    @register_method("loudness", kinds=("linear", "pure"))
    def loudness(layer, request, graphs):
        """Squared length of a token's key."""
        return layer.operator.k.square().sum(-1)

    return loudness


def test_explain_and_lists():
    model, image = load("infvit_linear_digits"), PhotoDigits("val")[0].image
    result = explain(model, image, "loudness", head=3)
    assert result.heads == (3,)
    assert float(result.maps.sum()) == pytest.approx(1, abs=1e-6)
    with pytest.raises(ValueError, match="loudness is not for softmax attention"):
        explain(load("vit_softmax_digits"), image, "loudness")
    assert "loudness" in applicable_methods({"linear"})
    assert "loudness" not in applicable_methods({"softmax"})
    fresh = explain(model, image, "untrained-loudness").maps
    assert not torch.equal(fresh, explain(model, image, "loudness").maps)
    with pytest.raises(ValueError, match="unknown method 'loudnes'; did you mean loudness"):
        explain(model, image, "loudnes")


def test_measures_command_line_and_docs(capsys):
    rows = measure(load("infvit_linear_digits"), PhotoDigits("val", 1), Morf(steps=4))
    assert "loudness" in {row["method"] for row in rows}
    command_line()(["methods"], standalone_mode=False)
    assert "Squared length of a token's key" in capsys.readouterr().out
    row = "| `loudness` | Squared length of a token's key | InfSA |"
    assert row in script("methods_table").table()
