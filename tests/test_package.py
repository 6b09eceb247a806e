"""The package's front door."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import infsa_explain


def test_public_names_are_no_modules_after_every_module_is_imported():
    for module in pkgutil.walk_packages(infsa_explain.__path__, "infsa_explain."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    wrong = [
        name
        for name in infsa_explain.__all__
        if isinstance(getattr(infsa_explain, name), ModuleType)
    ]
    assert wrong == []
    assert set(infsa_explain.__all__) <= set(dir(infsa_explain))


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="No infsa_explain attribute nothing"):
        _ = infsa_explain.nothing


def test_import_is_light():
    script = "import sys, infsa_explain; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False False"
