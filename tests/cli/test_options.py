"""The table of options: every row has a help text, fits its commands, and fits their measures."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Literal, get_args, get_type_hints

import pytest
import typer

from infsa_explain.catalogue import MEASURES
from infsa_explain.cli import OTHERS, command_line
from infsa_explain.cli.measuring import COMMANDS, SAVING, SHARED, SOURCE, options_of_measure
from infsa_explain.cli.options import DEFAULTS, OPTIONS, options_of
from infsa_explain.data.matching import Labels
from infsa_explain.data.trees import Split
from infsa_explain.evaluate import measure_class
from infsa_explain.evaluate.deletion import Morf
from infsa_explain.vits.kinds import KINDS

PARAMETERS = {name: [*inspect.signature(f).parameters] for name, f in OTHERS.items()}
USED = {name: row.options for name, row in COMMANDS.items()} | PARAMETERS
#: What a measure takes in Python alone.
PYTHON_ONLY = {"align": {"tol"}}


@pytest.mark.parametrize("key", OPTIONS)
def test_every_row_has_a_help_text_and_is_used(key):
    assert OPTIONS[key].help[0] != " " and OPTIONS[key].help.endswith((".", "--out."))
    command, _, name = key.rpartition(".")
    users = [c for c, names in USED.items() if name in names and f"{c}.{name}" not in OPTIONS]
    assert command in USED and name in USED[command] if command else users


def test_defaults_are_of_options():
    assert all(name in USED[command] for command, name in (key.split(".") for key in DEFAULTS))


@pytest.mark.parametrize("name", USED)
def test_commands_have_their_rows_in_order(name):
    parameters = typer.main.get_command(command_line()).commands[name].params
    assert [p.name for p in parameters if p.name != "help"] == list(USED[name])
    for parameter in parameters:
        if parameter.name != "help":
            row = options_of(name, [parameter.name])[parameter.name]
            assert parameter.help == row.help.format(names=", ".join(MEASURES))
            assert row.argument == (parameter.param_type_name == "argument")


@pytest.mark.parametrize("name", OTHERS)
def test_types_of_the_table_are_those_of_the_functions(name):
    hints = get_type_hints(OTHERS[name])
    rows = options_of(name, PARAMETERS[name])
    parsed = {"sizes": list[int], "mechanisms": list[str]}
    parsed |= {"convert_layers": list[int] | str | None}
    for parameter, row in rows.items():
        assert hints[parameter] == parsed.get(parameter, row.type), parameter


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "evaluate"])
def test_options_of_a_measure_are_those_of_its_dataclass(name):
    measure = measure_class(name)
    known = {field.name for field in fields(measure)}
    common = {*SOURCE, *SAVING, "device", "size", "images_a_pass"}
    assert set(COMMANDS[name].options) - common | PYTHON_ONLY.get(name, set()) | {"seed"} == (
        known | {"seed"}
    )


def test_measures_say_which_of_them_are_commands():
    assert {name for name in MEASURES if measure_class(name).command} == set(COMMANDS) - {
        "evaluate"
    }


def test_evaluate_has_what_measures_share():
    own = set(COMMANDS["evaluate"].options) - {*SOURCE, *SAVING, "metrics", "device"}
    assert own == set(SHARED)
    steps = options_of("evaluate", ["steps"])["steps"]
    assert options_of_measure(measure_class("morf"))["steps"] == steps
    assert options_of_measure(measure_class("align"))["steps"] != steps


def test_choices_are_those_of_the_functions():
    types = get_type_hints(Morf)
    assert set(get_args(OPTIONS["output"].type)) == {*get_args(types["output"])} - {"embedding"}
    assert OPTIONS["boxes"].type == get_type_hints(measure_class("boxes"))["boxes"]
    assert OPTIONS["side"].type == get_type_hints(measure_class("align"))["side"]
    assert OPTIONS["split"].type == Split
    assert OPTIONS["labels"].type == Labels
    assert get_args(OPTIONS["convert"].type)[0] == Literal[*KINDS]
