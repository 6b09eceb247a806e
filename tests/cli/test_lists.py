"""Options that list names."""

from __future__ import annotations

import json

import pytest


@pytest.mark.parametrize("command", ["morf", "boxes", "evaluate"])
def test_lists_add_up(cli, tmp_path, command):
    options = ("--methods", "visits", "--methods", "degree,random", "--methods", "visits")
    options += ("--limit", 1, "--out", tmp_path / "run")
    if command != "boxes":
        options += ("--steps", 2)
    if command == "evaluate":
        options += ("--metrics", "morf", "--metrics", "focus,accuracy")
    assert cli(command, *options)[0] == 0
    measures = json.loads((tmp_path / "run" / "config.json").read_text())["measures"]
    for name, measure in measures.items():
        if name != "accuracy":
            assert measure["methods"] == ["visits", "degree", "random"]
    if command == "evaluate":
        assert list(measures) == ["morf", "focus", "accuracy"]


def test_all_methods_of_pictures(cli, tmp_path):
    """Those that suit every model; beside a head those that have heads, and controls."""
    from infsa_explain.methods import METHODS

    options = ("--limit", 1, "--methods", "all", "--head", 0, "--out", tmp_path / "a.png")
    assert cli("gallery", "--model", "vit_softmax_digits", *options)[0] == 0
    photo = tmp_path / "a.png"
    assert cli("map", photo, "--method", "all", "--head", 0, "--out", tmp_path / "maps")[0] == 0
    names = {path.name.split(".")[2] for path in (tmp_path / "maps").iterdir()}
    suited = {name for name, m in METHODS.items() if m.kinds >= {"linear"}}
    expected = {name for name in suited if METHODS[name].heads or METHODS[name].control}
    assert names == expected | {"untrained-visits"}


def test_other_lists_add_up(cli, tmp_path):
    options = ("--limit", 1, "--layer", "last", "--steps", 2, "--steps", "3,2", "--json")
    code, stdout, _ = cli("align", *options)
    assert code == 0
    vectors = [row["vector"] for row in json.loads(stdout)["vectors"]]
    assert vectors[:3] == ["linear", "linear-k2", "linear-k3"]
    options = ("--method", "visits", "--methods", "random", "--out", tmp_path / "maps")
    assert cli("map", *options)[0] == 0
    assert len(list((tmp_path / "maps").iterdir())) == 16
    options = ("--sizes", 32, "--sizes", 64, "--mechanisms", "linear", "--mechanisms", "pure")
    options += ("--depth", 1, "--width", 32, "--heads", 2, "--repeats", 1, "--json")
    code, stdout, _ = cli("bench", *options)
    assert code == 0
    cells = {(row["size"], row["mechanism"]) for row in json.loads(stdout)}
    names = ("softmax-fused", "linear", "pure")
    assert cells == {(size, name) for size in (32, 64) for name in names}
