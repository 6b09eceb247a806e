"""Tables on terminals and in pipes."""

from __future__ import annotations

import os
import sys

import pytest

from infsa_explain.cli.output import print_table

HEADINGS = ("model", "method", "AOC ↑ [95%]", "over random [95%]", "n")
ROWS = [("a", "visits", "48.0 [-34.7, 89.5]", "+29.6 [+4.4, +42.9]", "3")]


@pytest.fixture
def terminal(monkeypatch):
    """Make stdout a terminal of some width, without colours."""

    def make(width):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((width, 24)))

    return make


def printed(capsys):
    return [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]


WIDE = [
    "deletion of everything that there is in many images",
    " model   method   AOC ↑ [95%]          over random [95%]     n",
    " ─────────────────────────────────────────────────────────────",
    " a       visits   48.0 [-34.7, 89.5]   +29.6 [+4.4, +42.9]   3",
]


def test_a_pipe_gets_the_whole_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    print_table(WIDE[0], HEADINGS, ROWS)
    assert printed(capsys) == [line.rstrip() for line in WIDE]


def test_a_terminal_that_is_wide_enough(capsys, terminal):
    terminal(63)
    print_table(WIDE[0], HEADINGS, ROWS)
    assert printed(capsys) == WIDE


def test_a_narrow_terminal_gets_blocks_of_columns_with_the_names_of_the_rows(capsys, terminal):
    terminal(45)
    print_table("deletion", HEADINGS, ROWS)
    assert printed(capsys) == [
        "deletion",
        " model   method   AOC ↑ [95%]",
        " ───────────────────────────────────",
        " a       visits   48.0 [-34.7, 89.5]",
        " model   method   over random [95%]     n",
        " ────────────────────────────────────────",
        " a       visits   +29.6 [+4.4, +42.9]   3",
    ]


def test_a_column_wider_than_the_terminal_is_folded(capsys, terminal):
    terminal(24)
    print_table("methods", ("name", "what it is"), [("visits", "Expected visits of a walk")])
    lines = printed(capsys)
    assert max(map(len, lines)) <= 24
    assert "".join(lines[3:]).split() == ["visits", "Expected", "visits", "of", "a", "walk"]


def test_the_title_of_a_narrow_table_is_one_line(capsys):
    print_table("agreement of maps, ρ, infvit_linear_digits", ("", "a"), [("a", "1")])
    assert printed(capsys)[0] == "agreement of maps, ρ, infvit_linear_digits"
