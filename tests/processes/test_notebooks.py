"""The notebooks of docs/ run from their first cell to their last, and show what they show in the docs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=100, resources={"metadata": {"path": sys.argv[2]}}).execute()
nbformat.write(notebook, sys.argv[3])
"""


def cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def kinds(cell: dict[str, Any]) -> list[str]:
    """Returns the types of a cell's outputs, without what a library prints on stderr."""
    return [kind for output in cell["outputs"] for kind in output.get("data", {output.get("name", ""): ""})]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_shows_in_the_docs(path: Path, tmp_path: Path) -> None:
    done = tmp_path / path.name
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", EXECUTE, str(path), str(path.parent), str(done)]
    subprocess.run(command, check=True, env=environment, timeout=110)
    for stored, made in zip(cells(path), cells(done), strict=True):
        assert not [output for output in made["outputs"] if output["output_type"] == "error"]
        assert set(kinds(made)) - {"stderr"} == set(kinds(stored)) - {"stderr"} != set()


def test_ten_lines_lead_from_records_to_a_plot() -> None:
    first = cells(ROOT / "docs" / "notebooks" / "results.ipynb")[0]
    assert "results.load(" in "".join(first["source"]) and len(first["source"]) <= 10
    assert "image/png" in kinds(first)
