"""Every notebook runs top to bottom, and pictures come out."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def pictures(notebook):
    """(cell index, PNG length) of every picture in the outputs."""
    return [
        (index, len(output["data"]["image/png"]))
        for index, cell in enumerate(notebook.cells)
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_notebook_runs_and_shows_what_it_was_committed_with(path):
    committed = nbformat.read(path, as_version=4)
    shown = pictures(committed)
    assert shown, f"{path.name} is committed without its pictures"
    fresh = nbformat.read(path, as_version=4)
    NotebookClient(fresh, timeout=300, kernel_name="python3").execute(cwd=str(path.parent))
    assert [index for index, _ in pictures(fresh)] == [index for index, _ in shown]
    assert min(size for _, size in pictures(fresh)) > 10_000
