"""Fixtures and rules for all tests. TensorFlow is imported once, quietly, and only by tests that need it."""

from __future__ import annotations

import contextlib
import importlib.abc
import itertools
import json
import os
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.cluster import ranks  # noqa: E402 - after the path to it
from benchmarks.process import tensorflow_setup  # noqa: E402

# Tests that are themselves a job of a launcher are no ranks of it. Before the next imports, which copy the environment.
_of_ranks = {*ranks.OF_COPIES, *itertools.chain(*ranks.variables(os.environ))}
for _name in {"TF_CONFIG", "SLURM_PROCID", "TORCHELASTIC_RUN_ID", *_of_ranks}:
    os.environ.pop(_name, None)
from tests.support import limits, rotation  # noqa: E402
from tests.support.budget import IdleStopwatch  # noqa: E402
from tests.support.commands import RUN_BENCH, USER_ENVIRONMENT, Finished, Records, RunBench, finished  # noqa: E402

if TYPE_CHECKING:
    from benchmarks.measure.run_log import RunLog
    from results.record import Record

# How long an example takes is not asserted, because other processes may use the same cores.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
# Processes that are started from here heed signals, even if a shell or nohup made this one ignore them.
for _number in (signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-tensorflow", action="store_true", help="skip every test that would import TensorFlow in this process"
    )
    parser.addoption(
        "--share",
        type=int,
        choices=range(rotation.SHARES),
        help="the share of rotating tests that are slow and not seldom (default: by the commit)",
    )


class _SkipTensorFlow(importlib.abc.MetaPathFinder):
    """Turns an import of TensorFlow or Keras into a skipped test or, while tests are collected, a skipped module."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name in ("tensorflow", "keras"):
            pytest.skip("needs TensorFlow", allow_module_level=True)


def pytest_configure(config: pytest.Config) -> None:
    """Prepares for TensorFlow, which uses no GPU here, before it is imported.

    The process that only starts pytest-xdist's workers does not: they would take its environment for the user's.
    """
    if not config.getoption("numprocesses", default=None):
        # oneDNN is on by default only on some CPUs; without it there is no NCHW.
        tensorflow_setup.prepare(tensorflow_setup.Runtime(devices=tensorflow_setup.Devices(onednn="on")))
    if config.getoption("--no-tensorflow"):
        sys.meta_path.insert(0, _SkipTensorFlow())
    if config.getoption("--share") is None:  # pytest-xdist hands it to its workers
        config.option.share, config.stash[_COMMIT] = rotation.of_commit()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Forgets a module that was skipped while it was imported, so that others do not import a half of it."""
    report = yield
    if report.skipped and isinstance(collector, pytest.Module):
        sys.modules.pop(".".join(collector.path.relative_to(ROOT).with_suffix("").parts), None)
    return report


_COMMIT = pytest.StashKey[str]()


def pytest_report_header(config: pytest.Config) -> str:
    """Says which tests of those that rotate are run."""
    share, commit = config.getoption("--share"), config.stash.get(_COMMIT, "--share")
    return f"rotating tests: share {share} of 0 to {rotation.SHARES - 1} (of {commit}); make test-seldom runs all"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what starts processes, and what rotates as slow or seldom.

    Tests that start processes run one after the other, on one worker, since several need all cores.
    """
    for item in items:
        room = item.path.relative_to(ROOT / "tests").parts[0] if item.path.is_relative_to(ROOT / "tests") else ""
        if room in ("processes", "faults"):
            item.add_marker("process")
        if room == "faults":
            item.add_marker("seldom")
        if item.get_closest_marker("process") and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group("processes"))
        if rotates := item.get_closest_marker("rotates"):
            share = rotates.kwargs.get("share", rotation.of_test(item.nodeid))
            item.add_marker("slow" if share == item.config.getoption("--share") else "seldom")
        if item.get_closest_marker("slow") or item.get_closest_marker("seldom"):
            item.add_marker(pytest.mark.timeout(900))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fails a default test that is long, in CI, unless `LONG_TESTS` gives a reason."""
    # What the test would take alone: other processes, and other guests of the host, may have used the cores.
    watch = IdleStopwatch()
    yield
    seconds = watch.seconds()
    is_default = not any(item.get_closest_marker(name) for name in ("slow", "seldom", "gpu"))
    listed = re.split(r"[\[@]", item.nodeid)[0] in limits.LONG_TESTS  # without parameters and pytest-xdist's group
    if "CI" in os.environ and is_default and seconds > limits.MOST_SECONDS and not listed:
        pytest.fail(
            f"It took {seconds:.1f} s; a default test may take {limits.MOST_SECONDS:g} s. Make it shorter, mark it "
            "slow, or add it to LONG_TESTS in tests/support/limits.py with the reason.",
            pytrace=False,
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Notes the tier of a test; fails a skipped test, in CI, whose reason is not in `ALLOWED_SKIPS`."""
    report = yield
    report.tier = next((tier for tier in ("seldom", "slow") if item.get_closest_marker(tier)), "default")
    if report.skipped and "CI" in os.environ and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(re.search(allowed, reason) for allowed in limits.ALLOWED_SKIPS):
            report.outcome = "failed"
            report.longrepr = f"{reason}: CI may not skip a test for this. Allowed: {', '.join(limits.ALLOWED_SKIPS)}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints what the tests of each tier have taken, by the clock of pytest-xdist's workers."""
    seconds: Counter[str] = Counter()
    for report in itertools.chain(*terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[getattr(report, "tier", "of a worker that died")] += report.duration
    workers = len(config.getoption("tx", default=None) or ["this process"])
    minutes = ", ".join(f"{tier} {taken / 60 / workers:.1f}" for tier, taken in sorted(seconds.items()))
    if minutes:
        terminalreporter.write_line(f"Minutes of tests, on {workers} workers: {minutes}")


@pytest.fixture(scope="session", autouse=True)
def cache_directory() -> Iterator[None]:
    """Keeps what is measured once per machine, such as its matrix-product peak, out of the user's cache."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", directory)
        patch.setitem(USER_ENVIRONMENT, "XDG_CACHE_HOME", directory)
        yield


@pytest.fixture
def run_process(tmp_path: Path) -> RunBench:
    """Runs run_bench.py as a user would, as a process of its own, in an empty directory.

    Keyword arguments are environment variables. Use it where the process is the subject, and `run_bench` elsewhere.
    """

    def run(*arguments: str, **variables: str) -> Finished:
        return finished([*RUN_BENCH, *arguments], tmp_path, {**USER_ENVIRONMENT, **variables})

    return run


@pytest.fixture
def run_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> RunBench:
    """Runs a command line in this process, in an empty directory: TensorFlow need not be imported again.

    Keyword arguments are environment variables. Signals and stdout's file descriptor behave as in a process, but
    TensorFlow was imported before, so what is set for its import (GPUs, oneDNN, log level) needs `run_process`.
    """
    from benchmarks.cli import main

    def prepare(runtime: tensorflow_setup.Runtime) -> None:
        asked = runtime.devices
        needs = (asked.device, asked.onednn, asked.gpu_thread_mode)
        assert needs == ("cpu", None, None), "this needs run_process: TensorFlow is imported"

    def execv(*_: object) -> None:
        raise AssertionError("this needs run_process: the command replaces its process")

    def run(*arguments: str, **variables: str) -> Finished:
        capfd.readouterr()
        with monkeypatch.context() as patch, _signal_handlers_restored():
            patch.chdir(tmp_path)
            patch.delenv("GITHUB_STEP_SUMMARY", raising=False)
            for name, value in variables.items():
                patch.setenv(name, value)
            patch.setattr(tensorflow_setup, "prepare", prepare)
            patch.setattr(os, "execv", execv)
            if "tensorflow" in sys.modules:  # two seconds of every run with several towers
                patch.setattr("benchmarks.tracing.traced_steps.LEAST_SECONDS", 0.5)
            status = main.main(list(arguments))
        return Finished(int(status), *capfd.readouterr())

    return run


@contextlib.contextmanager
def _signal_handlers_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.fixture
def facts_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finds the facts of a user's model in this process, and keeps none: no other one has to import TensorFlow."""
    from benchmarks.config import outside_models
    from benchmarks.explain import probed_model

    monkeypatch.setattr(outside_models, "_facts", probed_model.find_facts)


@pytest.fixture
def train_here() -> Callable[..., RunLog]:
    """Takes the steps of a run, given its flags, and returns what they measured: no record, no output."""
    from benchmarks.cluster.member import Alone
    from benchmarks.measure.display import Display
    from benchmarks.measure.run_log import RunLog
    from benchmarks.run.train import run_loop
    from tests.support.settings import resolve

    def train(*words: str) -> RunLog:
        chosen = resolve(*words)
        log = RunLog(images_per_step=chosen.batch_global, towers=chosen.devices.num_devices)
        run_loop(chosen, log, Display(), Alone())
        return log

    return train


@pytest.fixture
def records(tmp_path: Path) -> Records:
    """Reads the records that `run_bench` or `run_process` has left in its default output directory."""
    return lambda: [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]


@pytest.fixture
def keep(tmp_path: Path) -> Callable[..., Path]:
    """Writes records to a file of this name as a run would have left them."""

    def write(name: str, records: Iterable[Record]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(record.to_json() + "\n" for record in records))
        return path

    return write


@pytest.fixture(scope="session")
def fake_imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fake ImageNet of 40 images in 4 shards. Tests must not change it."""
    from benchmarks.data.writing import fake_imagenet, photo_records

    directory = tmp_path_factory.mktemp("imagenet")
    fake_imagenet.write(directory, photo_records.split("train", 40, 10), seed=3)
    return directory
