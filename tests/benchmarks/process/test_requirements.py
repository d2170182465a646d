"""What happens where Python is too old or packages are missing: one sentence with what to run."""

from __future__ import annotations

import ast
import configparser
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import run_bench as program
from benchmarks.cli import main
from benchmarks.process.requirements import PACKAGES, missing
from tests.support.commands import ROOT, RUN_BENCH, USER_ENVIRONMENT


def test_all_requirements_are_known() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    required = settings["options"]["install_requires"].split()
    assert sorted(PACKAGES.values()) == sorted(re.split("[<>=]", line)[0] for line in required)


@pytest.mark.process
@pytest.mark.parametrize("arguments", [["--help"], ["--model=vgg16"]])
def test_a_python_without_the_packages_gets_one_sentence(arguments: list[str], tmp_path: Path) -> None:
    without_packages = [sys.executable, "-S", *RUN_BENCH[1:], *arguments]
    environment = {name: value for name, value in USER_ENVIRONMENT.items() if name != "PYTHONPATH"}
    done = subprocess.run(without_packages, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "The package 'psutil' is missing" in done.stderr
    assert "`make install`" in done.stderr and "source .venv/bin/activate" in done.stderr


@pytest.mark.process
def test_a_package_that_cannot_be_imported_is_no_regression(tmp_path: Path) -> None:
    (tmp_path / "msgspec.py").write_text("raise ImportError('GLIBC_9.99 not found')")
    environment = {**USER_ENVIRONMENT, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([*RUN_BENCH, "--help"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(
        "cannot be imported (GLIBC_9.99 not found). Install it again, as with `make install`.\n"
    )


@pytest.mark.process
def test_a_process_that_fails_is_seen_where_a_parent_has_ignored_the_ends_of_its_children() -> None:
    script = "import run_bench, subprocess; run_bench.command_line(); print(subprocess.run(['false']).returncode)"
    ignored = f"import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); {script}"
    environment = {**USER_ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", ignored], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_a_python_that_is_too_old_gets_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_interrupt = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    status = program.main()
    monkeypatch.undo()
    assert status == 2 and signal.getsignal(signal.SIGINT) is on_interrupt
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "Python 3.11 or newer is needed" in error and "is 3.9." in error


def test_a_copy_of_the_program_alone_names_what_it_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(program, "HOME", tmp_path)
    assert program.shadowed_package().startswith(f"{tmp_path / 'benchmarks'} is missing: ")


def test_an_old_python_can_read_the_program() -> None:
    source = (ROOT / "run_bench.py").read_text()
    ast.parse(source, feature_version=(3, 6))
    assert "from __future__" not in source, "Python 3.6 has no annotations there"


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("tensorflow", ["--device=cpu", "--model=trivial"]),
        ("keras", ["verify", "--device=cpu"]),
        ("jinja2", ["report", str(ROOT / "tests/results/golden/records.jsonl"), "--output=report"]),
    ],
)
@pytest.mark.process
def test_a_package_that_is_missing_later_is_named(tmp_path: Path, module: str, arguments: list[str]) -> None:
    program = "from benchmarks.cli.main import main; sys.exit(main(sys.argv[1:]))"
    script = f"import sys; sys.modules[{module!r}] = None; {program}"
    started = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(started, cwd=tmp_path, env=USER_ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"The package '{PACKAGES[module]}' is missing in {sys.executable}. Run `make install`" in done.stderr
    assert not [*tmp_path.iterdir()], "nothing was run"


@pytest.mark.parametrize("name", ["benchmarks.nothing", "tensorflow.nothing", "nothing", None])
def test_a_mistake_of_the_suite_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str | None
) -> None:
    error = ModuleNotFoundError("No module", name=name)
    assert missing(error) is None

    def fails(arguments: object) -> None:
        raise error

    monkeypatch.setattr(main, "dispatch", fails)
    assert main.main([]) == 4
    assert "Traceback" in capfd.readouterr().err
