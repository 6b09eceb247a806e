"""``experiments/support_table.py``, whose models the tests try too."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def support_table():
    """The script as a module."""
    script = ROOT / "experiments" / "support_table.py"
    spec = importlib.util.spec_from_file_location("support_table", script)
    module = importlib.util.module_from_spec(spec)
    sys.modules["support_table"] = module
    spec.loader.exec_module(module)
    return module
