"""One command starts all tasks of a cluster, and leaves none. A task is a small script here."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from benchmarks.cluster import launch_plan, launcher
from benchmarks.cluster.cluster_spec import Cluster, Task
from benchmarks.errors import ClusterError, ExitStatus
from tests.support.commands import ROOT, USER_ENVIRONMENT

SECONDS = 120.0

TWO_WORKERS = launch_plan.on_this_host("ps:1,worker:2")


# A task first leaves the number of its process.
STAY = "time.sleep(60)"
CHILD = "subprocess.Popen([sys.executable, '-Sc', mark + 'time.sleep(60)'])"
WITH_CHILD = f"{CHILD}; {STAY}"
MARK = "import os, pathlib, signal, subprocess, sys, time; pathlib.Path(f'{pids}/{{os.getpid()}}').touch();"


class Tasks:
    """Starts a script for each task, by its name; one that is not named ends well at once."""

    def __init__(self, directory: Path) -> None:
        self.logs = directory / "logs"
        self._pids = directory / "pids"
        self._pids.mkdir()

    def command(self, scripts: Mapping[str, str]) -> launcher.Command:
        mark = MARK.format(pids=self._pids)

        def command(task: Task, cluster: Cluster) -> Sequence[str]:
            return [sys.executable, "-Sc", f"mark = {mark!r}\n{mark}\n{scripts.get(str(task), 'pass')}"]

        return command

    def run(self, scripts: Mapping[str, str], text: str = "ps:1,worker:2") -> ExitStatus:
        return launcher.launch(launch_plan.on_this_host(text), self.command(scripts), self.logs).status

    def have_begun(self, count: int) -> None:
        """Waits for so many processes."""
        wait_until(lambda: len(list(self._pids.iterdir())) == count)

    def alive(self, expected: int = 0) -> list[int]:
        """Returns which of all that were started are alive, as soon as no more are than expected, or after 2 s."""
        with contextlib.suppress(AssertionError):
            wait_until(lambda: len(self._living()) <= expected, 2.0)
        return self._living()

    def _living(self) -> list[int]:
        return [pid for pid in (int(path.name) for path in self._pids.iterdir()) if lives(pid)]


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Tasks]:
    handler = signal.getsignal(signal.SIGTERM)
    yield Tasks(tmp_path)
    signal.signal(signal.SIGTERM, handler)


def test_all_that_end_well_are_a_success(tasks: Tasks, capfd: pytest.CaptureFixture[str]) -> None:
    speak = "print('out', flush=True); print('err', file=sys.stderr)"
    assert tasks.run({"ps 0": speak, "worker 0": speak, "worker 1": speak}) == ExitStatus.OK
    assert capfd.readouterr() == ("out\n", "err\n"), "the leader's output is ours"
    logs = {path.name.partition("-")[2]: path.read_text() for path in tasks.logs.iterdir()}
    assert logs == {"ps-0.log": "out\nerr\n", "worker-1.log": "out\nerr\n"}
    assert tasks.alive() == []


def test_the_logs_of_two_runs_are_kept(tasks: Tasks) -> None:
    for _ in range(2):
        assert tasks.run({}, "worker:2") == ExitStatus.OK
    assert len(list(tasks.logs.iterdir())) == 2


def test_a_leader_that_fails_gives_its_status(tasks: Tasks, capfd: pytest.CaptureFixture[str]) -> None:
    assert tasks.run({"worker 0": "sys.exit(4)", "worker 1": "sys.exit(6)"}) == ExitStatus.RUN_FAILED
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("run_bench: worker 1 ended with status 6; its output: ")
    assert Path(line.rpartition(": ")[2]).parent == tasks.logs
    assert tasks.alive() == []


def test_another_that_is_killed_is_a_failure_of_the_cluster(tasks: Tasks, capfd: pytest.CaptureFixture[str]) -> None:
    assert tasks.run({"worker 1": "os.kill(os.getpid(), signal.SIGKILL)"}) == ExitStatus.CLUSTER
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("run_bench: worker 1 was killed by SIGKILL; its output: ")


def test_a_leader_that_is_killed_is_one_as_well(tasks: Tasks, capfd: pytest.CaptureFixture[str]) -> None:
    assert tasks.run({"worker 0": "os.kill(os.getpid(), signal.SIGKILL)"}) == ExitStatus.CLUSTER
    assert capfd.readouterr().err == "run_bench: worker 0 was killed by SIGKILL\n"


def test_a_signal_without_a_name_is_reported_by_number(tasks: Tasks, capfd: pytest.CaptureFixture[str]) -> None:
    assert tasks.run({"worker 1": "os.kill(os.getpid(), signal.SIGRTMIN + 1)"}) == ExitStatus.CLUSTER
    assert f"worker 1 was killed by signal {signal.SIGRTMIN + 1}; its output: " in capfd.readouterr().err


@pytest.mark.parametrize(
    ("stays", "fails"),
    [
        ("worker 1", "worker 0"),
        ("ps 0", "worker 1"),
    ],
)
def test_who_does_not_notice_that_another_has_failed_is_killed(
    tasks: Tasks, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stays: str, fails: str
) -> None:
    monkeypatch.setattr(launcher, "_NOTICE_SECONDS", 0.5)
    status = tasks.run({stays: WITH_CHILD, fails: "sys.exit(4)"})
    assert status == (ExitStatus.RUN_FAILED if fails == "worker 0" else ExitStatus.CLUSTER)
    said = capfd.readouterr().err.splitlines()
    assert any(line.startswith(f"run_bench: {stays} did not end, and was killed; its output: ") for line in said)
    # The leader has said itself what it had to say.
    assert any(line.startswith(f"run_bench: {fails} ended with status 4") for line in said) == (fails == "worker 1")
    assert tasks.alive() == []


def test_who_notices_in_time_is_not_killed(tasks: Tasks, capfd: pytest.CaptureFixture[str]) -> None:
    notices = "time.sleep(0.3); sys.exit(6)"
    assert tasks.run({"ps 0": notices, "worker 0": notices, "worker 1": "sys.exit(4)"}) == ExitStatus.CLUSTER
    assert "did not end" not in capfd.readouterr().err


def test_a_leader_with_the_status_of_another_verb_has_not_reported(tasks: Tasks) -> None:
    """1 is Python's own status of an exception, as well as that of a regression."""
    for status in (1, 3, 77):
        outcome = launcher.launch(TWO_WORKERS, tasks.command({"worker 0": f"sys.exit({status})"}), tasks.logs)
        assert (outcome.status, outcome.leader_reported) == (ExitStatus.CLUSTER, False)
        assert outcome.failures == [f"worker 0 ended with status {status}"]


def test_who_stays_after_others_have_reported_a_loss_is_killed_sooner(
    tasks: Tasks, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_NOTICE_SECONDS", 1e9)
    monkeypatch.setattr(launcher, "_VERDICT_SECONDS", 0.5)
    assert tasks.run({"ps 0": "sys.exit(6)", "worker 0": "sys.exit(6)", "worker 1": STAY}) == ExitStatus.CLUSTER
    assert "worker 1 did not end, and was killed" in capfd.readouterr().err
    assert launcher._VERDICT_SECONDS < 60 - 18 - 15, "the others need 18 s to notice, and 15 s to end"


@pytest.mark.parametrize("stopped", ["ps 0", "worker 0", "worker 1"])
def test_a_stopped_task_is_named_and_killed_though_no_other_ends(
    tasks: Tasks, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stopped: str
) -> None:
    monkeypatch.setattr(launcher, "_STOPPED_SECONDS", 0.5)
    scripts = {**dict.fromkeys(map(str, TWO_WORKERS.tasks), STAY), stopped: "os.kill(os.getpid(), signal.SIGSTOP)"}
    outcome = launcher.launch(TWO_WORKERS, tasks.command(scripts), tasks.logs)
    assert (outcome.status, outcome.leader_reported) == (ExitStatus.CLUSTER, False)
    assert f"{stopped} was stopped, and then killed" in outcome.failures
    assert f"run_bench: {stopped} was stopped, and then killed" in capfd.readouterr().err
    assert tasks.alive() == []


def test_a_task_that_goes_on_is_not_stopped() -> None:
    process = subprocess.Popen([sys.executable, "-Sc", "import time; time.sleep(60)"])
    task = launcher.Started(Task("worker", 1), process, None, over_ssh=False)
    try:
        for number, stopped in [(signal.SIGCONT, False), (signal.SIGSTOP, True), (signal.SIGCONT, False)]:
            process.send_signal(number)
            wait_until(lambda stopped=stopped: task.is_stopped() == stopped)
            assert task.is_stopped() == stopped, "asking does not change the answer"
    finally:
        process.kill()
    process.wait(SECONDS)
    assert not task.is_stopped()


def test_what_a_task_has_left_behind_is_killed(tasks: Tasks) -> None:
    begun = f"\nwhile len(os.listdir({str(tasks._pids)!r})) < 3: time.sleep(0.01)"
    assert tasks.run({"worker 1": CHILD + begun}, "worker:2") == ExitStatus.OK
    assert tasks.alive() == []


def test_a_program_that_cannot_be_started_leaves_nobody(tasks: Tasks) -> None:
    stay = tasks.command({"ps 0": STAY, "worker 0": STAY})

    def command(task: Task, cluster: Cluster) -> Sequence[str]:
        if task == Task("worker", 1):
            tasks.have_begun(2)
            return ["/no/such/program"]
        return stay(task, cluster)

    with pytest.raises(ClusterError, match=r"cannot be started: .*/no/such/program"):
        launcher.launch(launch_plan.on_this_host("ps:1,worker:2"), command, tasks.logs)
    assert tasks.alive() == []


LAUNCHER = """
import pathlib, signal, sys
sys.path.insert(0, {root!r})
from benchmarks.cluster import launch_plan, launcher
from benchmarks.errors import Terminated
signal.signal(signal.SIGINT, signal.default_int_handler)
scripts = {scripts!r}
def command(task, cluster):
    return [sys.executable, "-Sc", scripts[str(task)]]
try:
    launcher.launch(launch_plan.on_this_host("ps:1,worker:2"), command, pathlib.Path({logs!r}))
except Terminated:
    sys.exit(143)
except KeyboardInterrupt:
    sys.exit(130)
"""
KEEP = """
import signal, sys
def keep(number, frame):
    print("kept after", signal.Signals(number).name, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, keep)
signal.signal(signal.SIGINT, keep)
"""


@pytest.mark.fault(
    "R5", "SIGTERM, SIGINT or kill -9 of the process that started a local cluster", survives="no task is left"
)
@pytest.mark.parametrize(("how", "status"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGKILL", -9)])
def test_all_tasks_end_with_the_launcher(tasks: Tasks, how: str, status: int) -> None:
    command = tasks.command({"ps 0": WITH_CHILD, "worker 0": STAY, "worker 1": STAY})
    started = {str(task): command(task, TWO_WORKERS)[-1] for task in TWO_WORKERS.tasks}
    started["worker 0"] = KEEP + started["worker 0"]
    program = LAUNCHER.format(root=str(ROOT), scripts=started, logs=str(tasks.logs))
    launcher = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        tasks.have_begun(4)
        launcher.send_signal(getattr(signal, how))
        stdout, stderr = launcher.communicate(timeout=SECONDS)
    finally:
        launcher.kill()
        launcher.wait(SECONDS)
    assert (launcher.returncode, stderr) == (status, "")
    assert stdout == ("" if how == "SIGKILL" else f"kept after {how}\n"), "the leader may have something to keep"
    # A kill gives no time to end what a task has started itself.
    expected = 1 if how == "SIGKILL" else 0
    left = tasks.alive(expected)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert len(left) <= expected


INTERRUPT_FORK = """
import os, signal, time
count = 0
def interrupt():
    global count
    count += 1
    while count == {count} > len(os.listdir({pids!r})):
        time.sleep(0.01)
    if count == {count}:
        os.kill(os.getpid(), signal.{how})
os.register_at_fork(after_in_parent=interrupt)
"""


@pytest.mark.parametrize(("how", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
@pytest.mark.parametrize("count", [1, 3])
def test_a_signal_that_comes_while_a_task_is_forked_is_not_lost(
    tasks: Tasks, how: str, status: int, count: int
) -> None:
    """The first one is the parameter server, the second the leader, which is told if it is there."""
    command = tasks.command(dict.fromkeys(["ps 0", "worker 0", "worker 1"], STAY))
    started = {str(task): command(task, TWO_WORKERS)[-1] for task in TWO_WORKERS.tasks}
    started["worker 0"] = KEEP + started["worker 0"]
    hook = INTERRUPT_FORK.format(count=count, how=how, pids=str(tasks._pids))
    program = LAUNCHER.format(root=str(ROOT), scripts=started, logs=str(tasks.logs))
    command_line = [sys.executable, "-c", hook + program]
    done = subprocess.run(command_line, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (status, "") and tasks.alive() == []
    assert done.stdout == (f"kept after {how}\n" if count == 3 else "")


TERMINATED = """
import sys
sys.path.insert(0, {root!r})
from benchmarks.cluster import launcher
from benchmarks.errors import Terminated
def run(*arguments):
    raise Terminated
launcher.run = run
import run_bench
sys.exit(run_bench.main())
"""


def test_a_launcher_that_is_terminated_says_so_by_its_status(tmp_path: Path) -> None:
    flags = ["--local_cluster=worker:2", "--variable_update=collective_all_reduce", "--device=cpu", "--num_gpus=1"]
    done = subprocess.run(
        [sys.executable, "-c", TERMINATED.format(root=str(ROOT)), *flags, "--noprivate_network"],
        cwd=tmp_path,
        env=USER_ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == ExitStatus.TERMINATED
