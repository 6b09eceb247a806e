"""The house: rooms import only rooms below them, and no modules import one another in a circle."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import infsa_metrics
import pytest

import infsa_explain

PACKAGE = Path(infsa_explain.__file__).parent
#: From the ground up. A module may import what stands before its own room, and its own room.
ROOMS = (
    "__init__",  # the version, and lazy names
    "files",
    "interrupting",
    "memory",
    "ranges",
    "catalogue",
    "attention",
    "data",
    "drawing",
    "graph",
    "vits",
    "models",
    "methods",
    "viewing",
    "evaluate",
    "extensions",
    "report",
    "training",
    "bench",
    "cli",
    "__main__",
)


def name_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def imported(name: str, *, lazy: bool) -> set[str]:
    """Modules of the package that a module imports, in functions too if ``lazy``."""
    file = MODULES[name]
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree) if lazy else at_import(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        base = node.module or ""
        if node.level:
            package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
            base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [base])])
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            found.add(inner if inner in MODULES else base)
    return found & MODULES.keys()


def at_import(tree: ast.AST) -> list[ast.AST]:
    """Nodes that run when a module is imported: none in functions or under TYPE_CHECKING."""
    nodes: list[ast.AST] = []
    for node in ast.iter_child_nodes(tree):
        checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if not checking and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes += [node, *at_import(node)]
    return nodes


def room(name: str) -> str:
    return name.split(".")[1] if "." in name else "__init__"


def test_every_room_is_listed():
    assert {room(name) for name in MODULES} == set(ROOMS)


@pytest.mark.parametrize("name", sorted(set(MODULES) - {"infsa_explain"}))
def test_imports_point_down(name):
    floor = ROOMS.index(room(name))
    above = {other for other in imported(name, lazy=True) if ROOMS.index(room(other)) > floor}
    assert not above


def test_no_circles():
    """Packages stand for their ``__init__``, which modules of the room need not go through."""
    graph = {name: imported(name, lazy=True) for name in MODULES if name != "infsa_explain"}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError, with the circle
    assert set(graph) <= set(order)


def test_metrics_know_nothing_of_the_toolkit():
    for file in Path(infsa_metrics.__file__).parent.rglob("*.py"):
        assert "infsa_explain" not in file.read_text(encoding="utf-8"), file
