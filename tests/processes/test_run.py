"""`run` where the process itself is the subject: its environment, signals, pipes, and what TensorFlow writes."""

from __future__ import annotations

import csv
import importlib.metadata
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.clusters import measuring
from tests.support.commands import ROOT, RUN_BENCH, USER_ENVIRONMENT, Records, RunBench
from tests.support.rotation import rotating
from tests.support.scratch import ENDLESS

SHORT = ("--device=cpu", "--model=trivial", "--batch_size=2", "--num_batches=6")


@pytest.mark.row("S3.13")
@pytest.mark.fault("R10", "KERAS_BACKEND=jax", survives="the run is ok, under TensorFlow")
def test_tensorflow_is_quiet_and_used_whatever_the_backend_of_keras_is(run_process: RunBench) -> None:
    quiet = run_process(*SHORT, KERAS_BACKEND="jax").succeeded()
    chatter = [line for line in quiet.stderr.splitlines() if not line.startswith("run_bench: ")]
    if importlib.metadata.version("tensorflow").startswith("2.20."):  # writes two lines that no setting turns off
        chatter = [line for line in chatter if "MLIR V1 optimization pass" not in line and "absl::" not in line]
    assert chatter == []


@pytest.mark.slow
def test_tensorflow_says_more_on_request(run_process: RunBench) -> None:
    asked = run_process(*SHORT, TF_CPP_MIN_LOG_LEVEL="0")
    assert "oneDNN" in asked.stderr or "cpu_feature_guard" in asked.stderr


@pytest.mark.row("S3.13")
@pytest.mark.slow
def test_placement_is_logged_on_request(run_process: RunBench) -> None:
    done = run_process(*SHORT, "--log_device_placement", "--num_gpus=2")
    applied = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("ResourceApply")]
    assert any("/job:localhost/replica:0/task:0/device:CPU:0" in line for line in applied)
    assert len(applied) == len(set(applied)), "once, not on both streams"
    assert all(line.startswith("run_bench: ") for line in done.stderr.splitlines())


@pytest.fixture
def unusable(tmp_path: Path) -> dict[str, str]:
    """Variables with which an import of TensorFlow fails."""
    (tmp_path / "tensorflow.py").write_text("raise RuntimeError('TensorFlow was imported')")
    variables = {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", "import tensorflow"]
    done = subprocess.run(command, env={**USER_ENVIRONMENT, **variables}, capture_output=True, text=True)
    assert "TensorFlow was imported" in done.stderr
    return variables


def test_an_import_that_fails_shows_what_was_written(run_process: RunBench, unusable: dict[str, str]) -> None:
    path = Path(unusable["PYTHONPATH"]) / "tensorflow.py"
    path.write_text("import os; os.write(2, b'written by' + b' the library'); raise RuntimeError('no such kernel')")
    done = run_process(*SHORT, **unusable)
    assert done.status == 4
    assert "written by the library" in done.stderr and "RuntimeError: no such kernel" in done.stderr


@pytest.mark.fault(
    "R9", "a --data_dir that does not exist", survives="status 5 naming it, before TensorFlow is imported"
)
@pytest.mark.parametrize(("command", "is_empty"), [([], False), ([], True), (["input"], True)])
def test_a_missing_or_empty_data_directory_is_reported_before_tensorflow_is_imported(
    run_process: RunBench, unusable: dict[str, str], command: list[str], is_empty: bool, tmp_path: Path
) -> None:
    if is_empty:
        (tmp_path / "data").mkdir()
    done = run_process(*command, "--device=cpu", f"--data_dir={tmp_path / 'data'}", **unusable)
    assert done.status == 5 and f"/data {'is empty' if is_empty else 'does not exist'}: name the" in done.stderr


@pytest.mark.slow
def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path: Path, records: Records) -> None:
    command = f"{sys.executable} {ROOT / 'run_bench.py'} {' '.join(SHORT)} --num_batches=30 | head -2"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=USER_ENVIRONMENT, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    (record,) = records()
    assert record["status"] == "ok"
    assert len(record["measurement"]["step_seconds"]) == 30


@pytest.mark.fault(
    "R1", "stdout and stderr are /dev/full, one of them, or closed", survives="status 4 or 0, and one record"
)
@rotating(
    ("redirection", "status"),
    [(">/dev/full 2>/dev/full", 4), (">&- 2>&- <&-", 0), ("--num_batches=2 2>/dev/full", 0)],
    first=1,
    ids=["full", "closed", "stderr full"],
)
def test_a_run_without_output_leaves_a_record(tmp_path: Path, records: Records, redirection: str, status: int) -> None:
    command = f"exec {sys.executable} {ROOT / 'run_bench.py'} {' '.join(SHORT)} {redirection}"
    assert subprocess.run(["bash", "-c", command], cwd=tmp_path, env=USER_ENVIRONMENT).returncode == status
    (record,) = records()
    assert record["status"] == "ok"


@pytest.mark.fault(
    "R4",
    "the reader of stdout pauses for longer than a step may take",
    survives="status 0 when it reads on, and no step is lost",
)
@pytest.mark.seldom
def test_a_reader_that_pauses_is_no_hanging_step(tmp_path: Path, records: Records) -> None:
    flags = ("--num_batches=1000000", "--time_limit_seconds=45", "--display_every=1", "--step_timeout_seconds=12")
    with subprocess.Popen(
        [*RUN_BENCH, "--device=cpu", "--model=trivial", "--batch_size=1", *flags],
        cwd=tmp_path,
        env=USER_ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        time.sleep(60)  # the pipe is full long before the limit of a step is over
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    (record,) = records()
    shown = [line for line in out.splitlines() if "images/sec:" in line and "\t" in line]
    assert record["status"] == "ok" and len(shown) == len(record["measurement"]["step_seconds"])


@pytest.mark.fault(
    "R5",
    "SIGINT, SIGTERM or SIGHUP to a run that measures",
    survives="status 130, 143 or 129, one record interrupted, and its row",
)
@rotating(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], first=1)
def test_an_interrupted_run_leaves_valid_files(
    tmp_path: Path, records: Records, number: signal.Signals, status: int
) -> None:
    process = measuring(tmp_path, *ENDLESS)
    process.send_signal(number)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == status and "Traceback" not in text
    (record,) = records()
    assert record["status"] == "interrupted"
    assert len(record["measurement"]["step_seconds"]) >= 3 and record["derived"]["images_per_sec"] > 0
    with (tmp_path / "out" / "results.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["status"] == "interrupted"
    assert "status:         interrupted" in text


def test_a_reader_that_goes_away_is_no_crash(tmp_path: Path) -> None:
    command = f"{sys.executable} {ROOT / 'run_bench.py'} --help | head -1"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert "Traceback" not in done.stderr


@pytest.mark.fault(
    "R10", "another package called models comes first on the path", survives="a sentence, before it is used"
)
def test_somebody_elses_models_package_is_refused(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    shutil.copy(ROOT / "run_bench.py", checkout)
    for name in ("benchmarks", "models"):
        (checkout / name).mkdir()
    (checkout / "benchmarks" / "__init__.py").touch()
    stranger = tmp_path / "elsewhere" / "models"
    stranger.mkdir(parents=True)
    (stranger / "__init__.py").write_text("")
    done = subprocess.run(
        [sys.executable, str(checkout / "run_bench.py"), "--help"],
        env={**USER_ENVIRONMENT, "PYTHONPATH": str(stranger.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "instead of" in done.stderr and "PYTHONPATH" in done.stderr
