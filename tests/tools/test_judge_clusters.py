"""Clusters of network namespaces are predicted before they are measured, and nothing of them is left."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.errors import ExitStatus
from tools import judge_clusters
from tools.judge_clusters import Case


def test_a_worker_with_less_of_a_core_has_fewer_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_clusters, "_CORES", 2)
    batches = {number: {case.model: case.batch for case in judge_clusters.cases(number)} for number in (2, 4)}
    assert batches == {2: {"resnet50": 8, "alexnet": 32}, 4: {"resnet50": 4, "alexnet": 16}}


def test_without_the_rights_it_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["judge_clusters", str(tmp_path)])
    assert judge_clusters.main() == ExitStatus.USAGE


@pytest.mark.slow
def test_clusters_with_less_than_a_core_per_host_are_predicted_then_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if os.geteuid() != 0 or not shutil.which("tc"):
        pytest.skip("making network namespaces needs root and the program tc")
    monkeypatch.setattr(judge_clusters, "_CORES", 1)
    monkeypatch.setattr(judge_clusters, "cases", lambda hosts: [Case("mlp", 100, "distributed_replicated", hosts, 1)])
    arguments = ["judge_clusters", str(tmp_path), "--workers", "2", "--repeats", "1"]
    monkeypatch.setattr("sys.argv", arguments)
    assert judge_clusters.main() in (ExitStatus.OK, ExitStatus.RUN_FAILED)  # whatever the error is
    said = capfd.readouterr().out
    assert 0 < said.index("predicted: ") < said.index("measured: ")
    (row,) = (line.split() for line in said.splitlines() if line.startswith("mlp  "))
    assert row[:4] == ["mlp", "distributed_replicated", "2", "1"] and float(row[-2]) > 0
    assert "cnnbench" not in subprocess.run(["ip", "netns"], check=True, capture_output=True, text=True).stdout
    assert not (judge_clusters._GROUPS / "cnnbench0").exists()
