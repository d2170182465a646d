"""Tasks on other hosts: what ssh gets and gives back. Here it runs its command on this host; a task is a script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.cluster import launch_plan, launcher
from benchmarks.cluster.cluster_spec import Cluster, Task
from benchmarks.errors import ExitStatus
from tests.processes.test_local_cluster import KEEP, STAY, Tasks, wait_until
from tests.support.commands import ROOT

SECONDS = 120.0
UNREACHED = "could not be reached, or the connection to it broke"
TWO_HOSTS = launch_plan.on_hosts("host_0,host_1", "collective_all_reduce", 50000)
# As OpenSSH's client: the last word is the command, the one before it the host.
RUNS_IT = '#!/bin/sh\nfor word; do host=$last; last=$word; done\n{before}exec sh -c "$last"\n'


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Tasks]:
    handler = signal.getsignal(signal.SIGTERM)
    yield Tasks(tmp_path)
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(autouse=True)
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program in place of ssh."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(RUNS_IT.format(before=""))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


def run(tasks: Tasks, scripts: dict[str, str]) -> launcher.Outcome:
    here = tasks.command(scripts)

    def command(task: Task, cluster: Cluster) -> Sequence[str]:
        return launch_plan.over_ssh(task, cluster, here(task, cluster))

    return launcher.launch(TWO_HOSTS, command, tasks.logs)


@pytest.mark.row("S2.3")
def test_tasks_that_end_well_are_a_success(tasks: Tasks, capfd: pytest.CaptureFixture[str]) -> None:
    speak = "print(os.getcwd(), flush=True)"
    assert run(tasks, {"worker 0": speak, "worker 1": speak}) == launcher.Outcome(ExitStatus.OK, True, [])
    assert capfd.readouterr().out == f"{Path.cwd()}\n"
    assert tasks.alive() == []


@pytest.mark.fault(
    "R16", "hosts and commands that are handed to ssh", survives="no word but the suite's own can be an option"
)
def test_no_word_for_ssh_is_an_option_but_ours() -> None:
    words = launch_plan.over_ssh(Task("worker", 1), TWO_HOSTS, ["true"])
    end = words.index("--")
    assert words[0] == "ssh" and words[end + 1] == "host_1" and len(words) == end + 3
    assert words[1:end:2] == ["-o"] * 4
    names = {word.partition("=")[0] for word in words[2:end:2]}
    assert names == {"BatchMode", "ConnectTimeout", "ServerAliveInterval", "ServerAliveCountMax"}


def test_an_ssh_that_ends_well_and_runs_nothing_is_a_failure(
    tasks: Tasks, ssh: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ssh.write_text("#!/bin/sh\nexit 0\n")
    outcome = run(tasks, {})
    assert (outcome.status, outcome.leader_reported) == (ExitStatus.CLUSTER, False)
    assert outcome.failures == [f"worker {n} was not run, though ssh ended with status 0" for n in (0, 1)]
    assert "run_bench: worker 0 was not run, though ssh ended with status 0\n" in capfd.readouterr().err


def test_a_host_that_cannot_be_reached_is_named(tasks: Tasks, ssh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_NOTICE_SECONDS", 0.5)
    ssh.write_text(RUNS_IT.format(before='[ "$host" = host_1 ] && exit 255\n'))
    outcome = run(tasks, {"worker 0": "time.sleep(60)"})
    assert (outcome.status, outcome.leader_reported) == (ExitStatus.CLUSTER, False)
    assert outcome.failures[0] == "worker 0 did not end, and was killed"
    assert outcome.failures[1] == f"worker 1 {UNREACHED} (ssh gave no reason)"


def test_the_last_words_of_each_ssh_are_quoted(tasks: Tasks, ssh: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ssh.write_text(RUNS_IT.format(before='printf "banner\\nssh: $host refused\\n\\n" >&2\nexit 255\n'))
    outcome = run(tasks, {})
    assert (outcome.status, outcome.leader_reported) == (ExitStatus.CLUSTER, False)
    assert outcome.failures == [f"worker {n} {UNREACHED} (ssh: host_{n} refused)" for n in (0, 1)]
    errors = capfd.readouterr().err
    assert "banner\n" in errors, "what the leader's ssh prints is shown as well"
    assert all(f"run_bench: {failure}\n" in errors for failure in outcome.failures), "no log has to be read"


@pytest.mark.parametrize(
    ("script", "status", "reported", "how"),
    [
        ("sys.exit(5)", ExitStatus.DATA, True, "ended with status 5"),
        ("sys.exit(1)", ExitStatus.CLUSTER, False, "ended with status 1"),
        ("os.kill(os.getpid(), signal.SIGKILL)", ExitStatus.CLUSTER, False, "was killed by SIGKILL"),
    ],
)
def test_the_leaders_end_comes_through(tasks: Tasks, script: str, status: ExitStatus, reported: bool, how: str) -> None:
    assert run(tasks, {"worker 0": script}) == launcher.Outcome(status, reported, [f"worker 0 {how}"])


LAUNCHER = """
import signal, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from benchmarks.cluster import launcher
from benchmarks.errors import Terminated
from benchmarks.cluster import launch_plan
signal.signal(signal.SIGINT, signal.default_int_handler)
scripts = {scripts!r}
def command(task, cluster):
    return launch_plan.over_ssh(task, cluster, [sys.executable, "-Sc", scripts[str(task)]])
try:
    launcher.launch(launch_plan.on_hosts("host_0,host_1", "collective_all_reduce", 50000), command, Path({logs!r}))
except Terminated:
    sys.exit(143)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(("how", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_the_launcher_waits_for_the_record_of_a_leader_elsewhere(tasks: Tasks, how: str, status: int) -> None:
    command = tasks.command(dict.fromkeys(["worker 0", "worker 1"], STAY))
    scripts = {str(task): command(task, TWO_HOSTS)[-1] for task in TWO_HOSTS.tasks}
    scripts["worker 0"] = KEEP.replace("print(", "import time; time.sleep(1); print(") + scripts["worker 0"]
    program = LAUNCHER.format(root=str(ROOT), scripts=scripts, logs=str(tasks.logs))
    launcher = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        tasks.have_begun(2)
        launcher.send_signal(getattr(signal, how))
        stdout, stderr = launcher.communicate(timeout=SECONDS)
    finally:
        launcher.kill()
        launcher.wait(SECONDS)
    assert (launcher.returncode, stdout, stderr) == (status, f"kept after {how}\n", "")
    assert tasks.alive() == []


def test_a_task_that_ignores_the_end_of_the_connection_is_killed(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_plan, "_WATCHED", launch_plan._WATCHED.replace("sleep 30", "sleep 0.2"))
    ignores = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); print('begun', flush=True); {STAY}"
    worker = Task("worker", 1)
    words = launch_plan.over_ssh(worker, TWO_HOSTS, tasks.command({"worker 1": ignores})(worker, TWO_HOSTS))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as connection:
        assert connection.stdin is not None and connection.stdout is not None
        assert connection.stdout.readline() == "begun\n"
        connection.stdin.close()
        assert connection.wait(SECONDS) == 128 + signal.SIGKILL
    wait_until(lambda: tasks.alive() == [])
