"""Which packages `make install` chooses, on machines of which only nvidia-smi exists."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import ROOT


@pytest.mark.process
@pytest.mark.parametrize(
    ("nvidia_smi", "variables", "installed"),
    [
        (None, [], "."),
        (None, ["EXTRA=cuda"], ".[cuda]"),
        ("echo 8.0; echo 9.0", [], ".[cuda]"),
        ("echo 7.5", [], ".[cuda]"),
        ("echo 8.0; echo 7.0", [], ".[cuda-volta]"),
        ("echo 12.0", [], ".[cuda]"),
        ("echo 12.0", ["EXTRA="], "."),
        ("echo 'Field \"compute_cap\" is not a valid field to query.'; exit 2", [], ".[cuda]"),
    ],
)
def test_libraries_are_those_of_the_gpus(
    tmp_path: Path, nvidia_smi: str | None, variables: list[str], installed: str
) -> None:
    make, awk = shutil.which("make"), shutil.which("awk")
    assert make and awk
    (tmp_path / "awk").symlink_to(awk)
    if nvidia_smi is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{nvidia_smi}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    words = (make, "--dry-run", "install", f"VENV={tmp_path}/venv", *variables)
    done = subprocess.run(words, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert f'-e "{installed}"' in done.stdout
