"""Scripts of ``experiments/`` as modules: the tests try the models of ``support_table.py``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def script(name):
    """A script of ``experiments/`` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "experiments" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def support_table():
    """The script that builds a small model of every family."""
    return script("support_table")
