"""Every notebook is committed with its pictures, runs top to bottom, and shows them again."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def pictures(notebook):
    """(cell index, length in base64) of every picture in the outputs."""
    return [
        (index, len(data))
        for index, cell in enumerate(notebook.cells)
        for output in cell.get("outputs", ())
        for kind, data in output.get("data", {}).items()
        if kind in ("image/png", "image/jpeg")
    ]


def test_there_are_five():
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_as_it_ran(path):
    assert path.stat().st_size < 1_000_000
    committed = nbformat.read(path, as_version=4)
    nbformat.validate(committed)
    code = [cell for cell in committed.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert min(size for _, size in pictures(committed)) > 10_000
    outputs = [output for cell in code for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {
        "display_data",
        "execute_result",
        "stream",
    }
    assert not [output for output in outputs if output.get("name") == "stderr"]
    said = json.dumps([{**output, "data": None} for output in outputs])
    said += "".join(output.get("data", {}).get("text/plain", "") for output in outputs)
    assert not [place for place in ("/home", "/root", "/tmp", "/work", "C:\\") if place in said]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_notebook_runs_and_shows_what_it_was_committed_with(path):
    fresh = nbformat.read(path, as_version=4)
    shown = [index for index, _ in pictures(fresh)]
    NotebookClient(fresh, timeout=600, kernel_name="python3").execute(cwd=str(path.parent))
    assert [index for index, _ in pictures(fresh)] == shown
    assert min(size for _, size in pictures(fresh)) > 10_000
