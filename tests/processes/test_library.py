"""The suite as a library, as scripts and notebooks use it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from results.loading import load
from results.record import Status
from tests.support.commands import ROOT, USER_ENVIRONMENT, Finished, finished

PAGE = ROOT / "docs" / "howto" / "use-as-a-library.md"
ENVIRONMENT = {**USER_ENVIRONMENT, "PYTHONPATH": str(ROOT)}

LONG_RUN = """
from benchmarks import Config, train

try:
    train(Config.from_flags(model="mlp", device="cpu", num_batches=10**7, train_dir="trained", save_model_steps=100))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.fixture
def python(tmp_path: Path) -> Callable[[str], Finished]:
    """Runs a script in an empty directory outside the repository."""
    return lambda script: finished([sys.executable, "-c", script], tmp_path, ENVIRONMENT)


@pytest.mark.row("U1.4")
@pytest.mark.slow
def test_the_cells_of_the_page_run_in_order(python: Callable[[str], Finished], tmp_path: Path) -> None:
    cells = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    ends = "import sys; assert not {'tensorflow', 'keras'} & set(sys.modules), 'the notebook stays without TensorFlow'"
    done = python("\n# %%\n".join([*cells, ends])).succeeded()
    rate, refused, *rows = done.stdout.splitlines()
    rows, frames = rows[:2], rows[2:]
    assert re.fullmatch(r"[1-9]\d* images/s, median step [\d.]+ ms", rate)
    assert refused.startswith("There is no model 'vgg61'. Did you mean 'vgg16'?")
    assert [re.fullmatch(r"(\w+) +[1-9]\d* images/s", row)[1] for row in rows] == ["independent", "parameter_server"]
    fastest = [line.split() for line in frames if line.startswith(("independent ", "parameter_server "))]
    assert [name for name, _ in fastest] == ["independent", "parameter_server"]
    assert [round(float(rate)) for _, rate in fastest] == [int(row.split()[1]) for row in rows]
    records = [record for name in ("out", "out/managers") for record in load(tmp_path / name / "results.jsonl").records]
    assert [(record.config["variable_update"], record.status) for record in records] == [
        ("replicated", Status.OK),
        ("independent", Status.OK),
        ("parameter_server", Status.OK),
    ]


@pytest.mark.slow
def test_ctrl_c_stops_the_run_and_keeps_its_record(tmp_path: Path) -> None:
    script = subprocess.Popen(
        [sys.executable, "-c", LONG_RUN], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, start_new_session=True
    )
    while not list(tmp_path.glob("trained/*.index")):  # it computes
        assert script.poll() is None
        time.sleep(0.1)
    children = psutil.Process(script.pid).children(recursive=True)
    os.kill(script.pid, signal.SIGINT)
    printed, _ = script.communicate(timeout=60)
    assert (script.returncode, printed) == (0, b"interrupted\n")
    assert children and psutil.wait_procs(children, timeout=10)[1] == []
    (record,) = load(tmp_path / "out" / "results.jsonl").records
    assert record.status is Status.INTERRUPTED
