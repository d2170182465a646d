"""The wheel: it holds all that the packages need, and what it installs runs outside the checkout."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import run_bench
from results.version import SUITE_VERSION
from tests.support.commands import ROOT, USER_ENVIRONMENT, Finished, finished

RunInstalled = Callable[..., Finished]
# What a build reads, besides the packages.
SOURCES = ("run_bench.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
# What runs leave in a checkout: caches, and baselines that are kept beside the package of results.
LEFT_BY_RUNS = ("__pycache__", "baselines", ".*")

MODEL_WITH_A_THREAD = """
import threading, time
import keras

def net():
    threading.Thread(target=time.sleep, args=(1000,)).start()
    images = keras.Input((8, 8, 3))
    return keras.Model(images, keras.layers.Dense(10)(keras.layers.Flatten()(images)))
"""


def _pip(*arguments: str | Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the wheel is built from, without what an earlier build may have left."""
    directory = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copy(ROOT / name, directory)
    for name in run_bench.PACKAGES:
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns(*LEFT_BY_RUNS))
    return directory


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without network by the setuptools of this environment."""
    directory = tmp_path_factory.mktemp("wheel")
    _pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", directory, source)
    (built,) = directory.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `run-bench` in an environment that holds the wheel, and sees what this one has installed."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, with_pip=False)
    _pip("--python", directory / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return directory / "bin" / "run-bench"


@pytest.fixture
def run_installed(installed: Path, tmp_path: Path) -> RunInstalled:
    """Runs the installed command in an empty directory. Keyword arguments are environment variables."""

    def run(*arguments: str, **variables: str) -> Finished:
        environment = {name: value for name, value in USER_ENVIRONMENT.items() if name != "PYTHONPATH"}
        return finished([installed, *arguments], tmp_path, {**environment, **variables})

    return run


def test_the_wheel_holds_every_file_of_the_packages(source: Path, wheel: Path) -> None:
    expected = {
        file.relative_to(source).as_posix()
        for name in run_bench.PACKAGES
        for file in (source / name).rglob("*")
        if file.is_file()
    }
    assert {Path(name).suffix for name in expected} >= {".py", ".flags", ".csv", ".html"}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {*expected, "run_bench.py"}


def test_an_image_gets_what_the_wheel_is_built_from() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    let_in = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert "*" in lines and let_in == {*SOURCES, *run_bench.PACKAGES, "constraints.txt"}


def test_the_installed_command_prints_its_version_without_tensorflow(run_installed: RunInstalled) -> None:
    done = run_installed("--version", PYTHONPROFILEIMPORTTIME="1")
    assert done.status == 0 and done.stdout.startswith(f"cnn-train-bench {SUITE_VERSION} (TensorFlow ")
    assert "benchmarks.cli.main" in done.stderr and not re.search(r"\btensorflow$", done.stderr, re.MULTILINE)


@pytest.mark.slow
def test_the_installed_command_trains_and_reports(run_installed: RunInstalled, tmp_path: Path) -> None:
    run_installed("sweep", "--device=cpu", "--model=trivial", "--batch_size=2", "--num_batches=12").succeeded()
    (line,) = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    assert json.loads(line)["status"] == "ok"
    run_installed("report", "out", "--output=report", "--against=guide2017").succeeded()
    assert "trivial" in (tmp_path / "report" / "report.html").read_text()


@pytest.mark.slow
def test_what_a_model_leaves_running_does_not_hold_the_installed_command(
    run_installed: RunInstalled, tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(MODEL_WITH_A_THREAD)
    run_installed("--device=cpu", "--model=net.py:net", "--batch_size=2", "--num_batches=2").succeeded()
