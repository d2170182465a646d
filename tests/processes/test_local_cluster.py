"""One command starts all tasks of a cluster, and leaves none. A task is a small script here."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from benchmarks.cluster import launch_plan
from benchmarks.cluster.cluster_spec import Cluster, Task
from benchmarks.errors import ClusterError, ExitStatus
from benchmarks.run import cluster_launch
from benchmarks.run.cluster_launch import Outcome
from tests.support.commands import ROOT, RUN_BENCH, USER_ENVIRONMENT, finished, wait_until

SECONDS = 120.0
TWO_WORKERS = launch_plan.on_this_host("ps:1,worker:2")
SUCCESS = Outcome(ExitStatus.OK, True, [], leader_succeeded=True)
TWO_HOSTS = launch_plan.on_hosts("host_0,host_1", "collective_all_reduce", 50000)

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

    def words(self, scripts: Mapping[str, str], cluster: Cluster, keep: str = "") -> dict[Task, list[str]]:
        """Returns the words of each task, those of ssh unless the cluster is local; the leader begins with `keep`."""
        mark, words = MARK.format(pids=self._pids), {}
        for task in cluster.tasks:
            begin = keep if task == cluster.leader else ""
            script = f"{begin}mark = {mark!r}\n{mark}\n{scripts.get(str(task), 'pass')}"
            here = [sys.executable, "-Sc", script]
            words[task] = here if cluster.local else launch_plan.over_ssh(task, cluster, here)
        return words

    def outcome(self, scripts: Mapping[str, str], cluster: Cluster = TWO_WORKERS) -> Outcome:
        return cluster_launch.launch(cluster, self.words(scripts, cluster), self.logs)

    def have_begun(self, count: int) -> None:
        """Waits for so many processes."""
        wait_until(lambda: len(list(self._pids.iterdir())) == count, SECONDS)

    def alive(self) -> list[int]:
        """Returns which of all that were started are alive, as soon as none is, or after 2 s."""
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self._living(), 2.0)
        return self._living()

    def _living(self) -> list[int]:
        living = []
        for path in self._pids.iterdir():
            with contextlib.suppress(psutil.NoSuchProcess):
                if psutil.Process(int(path.name)).status() != psutil.STATUS_ZOMBIE:
                    living.append(int(path.name))
        return living


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Tasks]:
    handler = signal.getsignal(signal.SIGTERM)
    yield Tasks(tmp_path)
    signal.signal(signal.SIGTERM, handler)


def test_all_that_end_well_are_a_success(tasks: Tasks, capfd: pytest.CaptureFixture[str]) -> None:
    speak = "print('out', flush=True); print('err', file=sys.stderr)"
    assert tasks.outcome(dict.fromkeys(map(str, TWO_WORKERS.tasks), speak)) == SUCCESS
    assert capfd.readouterr() == ("out\n", "err\n"), "the leader's output is ours"
    logs = {path.name.partition("-")[2]: path.read_text() for path in tasks.logs.iterdir()}
    assert logs == {"ps-0.log": "out\nerr\n", "worker-1.log": "out\nerr\n"}
    assert tasks.alive() == []
    assert tasks.outcome({}).status == ExitStatus.OK
    assert len(list(tasks.logs.iterdir())) == 4, "the logs of both runs are kept"


def test_another_that_fails_is_named_with_its_output(tasks: Tasks, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = tasks.outcome({"worker 0": "sys.exit(4)", "worker 1": "sys.exit(6)"})
    assert (outcome.status, outcome.leader_reported) == (ExitStatus.RUN_FAILED, True)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("run_bench: worker 1 ended with status 6; its output: ")
    assert Path(line.rpartition(": ")[2]).parent == tasks.logs
    assert tasks.alive() == []


@pytest.mark.parametrize("cluster", [TWO_WORKERS, TWO_HOSTS], ids=["here", "over ssh"])
@pytest.mark.parametrize(
    ("script", "status", "reported", "how"),
    [
        ("sys.exit(5)", ExitStatus.DATA, True, "ended with status 5"),
        ("sys.exit(1)", ExitStatus.CLUSTER, False, "ended with status 1"),  # of Python, and of a regression
        ("sys.exit(77)", ExitStatus.CLUSTER, False, "ended with status 77"),
        ("os.kill(os.getpid(), signal.SIGKILL)", ExitStatus.CLUSTER, False, "ended by signal 9 (Killed)"),
    ],
)
def test_the_leaders_end_comes_through(
    tasks: Tasks,
    ssh: Path,
    capfd: pytest.CaptureFixture[str],
    script: str,
    status: ExitStatus,
    reported: bool,
    how: str,
    cluster: Cluster,
) -> None:
    outcome = tasks.outcome({"worker 0": script}, cluster)
    assert outcome == Outcome(status, reported, [f"worker 0 {how}"])
    assert (f"run_bench: worker 0 {how}\n" in capfd.readouterr().err) is not reported, "it has said so itself"


@pytest.mark.parametrize(("stays", "fails"), [("worker 1", "worker 0"), ("ps 0", "worker 1")])
def test_who_does_not_notice_that_another_has_failed_is_killed(
    tasks: Tasks, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stays: str, fails: str
) -> None:
    monkeypatch.setattr(cluster_launch, "_NOTICE_SECONDS", 0.5)
    status = tasks.outcome({stays: WITH_CHILD, fails: "sys.exit(4)"}).status
    assert status == (ExitStatus.RUN_FAILED if fails == "worker 0" else ExitStatus.CLUSTER)
    said = capfd.readouterr().err.splitlines()
    assert any(line.startswith(f"run_bench: {stays} did not end, and was killed; its output: ") for line in said)
    # The leader has said itself what it had to say.
    assert any(line.startswith(f"run_bench: {fails} ended with status 4") for line in said) == (fails == "worker 1")
    assert tasks.alive() == []


def test_who_notices_in_time_is_not_killed(tasks: Tasks) -> None:
    notices = "time.sleep(0.3); sys.exit(6)"
    outcome = tasks.outcome({"ps 0": notices, "worker 0": notices, "worker 1": "sys.exit(4)"})
    assert outcome.status == ExitStatus.CLUSTER and not any("did not end" in failure for failure in outcome.failures)


def test_who_stays_after_others_have_reported_a_loss_is_killed_sooner(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster_launch._VERDICT_SECONDS < 60 - 18 - 15, "the others need 18 s to notice, and 15 s to end"
    monkeypatch.setattr(cluster_launch, "_NOTICE_SECONDS", 1e9)
    monkeypatch.setattr(cluster_launch, "_VERDICT_SECONDS", 0.5)
    outcome = tasks.outcome({"ps 0": "sys.exit(6)", "worker 0": "sys.exit(6)", "worker 1": STAY})
    assert outcome.status == ExitStatus.CLUSTER and "worker 1 did not end, and was killed" in outcome.failures


@pytest.mark.fault(
    "R7",
    "SIGSTOP of a task of a local cluster",
    survives="status 6 within 60 s; the output names it, and no task is left",
)
@pytest.mark.parametrize("stopped", ["ps 0", "worker 0", "worker 1"])
def test_a_stopped_task_is_named_and_killed_though_no_other_ends(
    tasks: Tasks, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stopped: str
) -> None:
    assert cluster_launch._STOPPED_SECONDS < 60 - 15, "it is killed, and the others end, within 60 s"
    monkeypatch.setattr(cluster_launch, "_STOPPED_SECONDS", 0.5)
    monkeypatch.setattr(cluster_launch, "_NOTICE_SECONDS", 0.5)
    scripts = {**dict.fromkeys(map(str, TWO_WORKERS.tasks), STAY), stopped: "os.kill(os.getpid(), signal.SIGSTOP)"}
    outcome = tasks.outcome(scripts)
    assert (outcome.status, outcome.leader_reported) == (ExitStatus.CLUSTER, False)
    assert f"{stopped} was stopped, as by SIGSTOP, and then killed" in outcome.failures
    assert f"run_bench: {stopped} was stopped, as by SIGSTOP, and then killed" in capfd.readouterr().err
    assert tasks.alive() == []


def test_a_program_that_cannot_be_started_is_named(tasks: Tasks) -> None:
    with pytest.raises(ClusterError, match=r"cannot be started: .*/no/such/program"):
        cluster_launch.launch(TWO_WORKERS, dict.fromkeys(TWO_WORKERS.tasks, ["/no/such/program"]), tasks.logs)


LAUNCHER = """
import json, pathlib, signal, sys
from benchmarks.cluster import launch_plan
from benchmarks.process.signals import until_stopped
from benchmarks.run import cluster_launch
signal.signal(signal.SIGINT, signal.default_int_handler)
is_local, words, logs = json.loads(sys.argv[1])
cluster = launch_plan.on_hosts("host_0,host_1", "collective_all_reduce", 50000)
if is_local:
    cluster = launch_plan.on_this_host("ps:1,worker:2")
words = dict(zip(cluster.tasks, words, strict=True))
sys.exit(until_stopped(lambda: cluster_launch.launch(cluster, words, pathlib.Path(logs)) and None))
"""
KEEP = """
import signal, sys
def keep(number, frame):
    print("kept after", signal.Signals(number).name, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, keep)
signal.signal(signal.SIGINT, keep)
"""


def signalled_launcher(
    tasks: Tasks, scripts: Mapping[str, str], cluster: Cluster, begun: int, how: str, keep: str = KEEP
) -> tuple[int, str, str]:
    """Returns status, stdout and stderr of a process that starts a cluster, and gets a signal once all have begun."""
    words = list(tasks.words(scripts, cluster, keep).values())
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, json.dumps([cluster.local, words, str(tasks.logs)])],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        tasks.have_begun(begun)
        process.send_signal(getattr(signal, how))
        stdout, stderr = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        process.wait(SECONDS)
    return process.returncode, stdout, stderr


@pytest.mark.fault(
    "R5", "SIGTERM, SIGINT or kill -9 of the process that started a local cluster", survives="no task is left"
)
@pytest.mark.parametrize(("how", "status"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGKILL", -9)])
def test_all_tasks_end_with_the_launcher(tasks: Tasks, how: str, status: int) -> None:
    scripts = {"ps 0": WITH_CHILD, "worker 0": STAY, "worker 1": STAY}
    kept = "" if how == "SIGKILL" else f"kept after {how}\n"
    ended = signalled_launcher(tasks, scripts, TWO_WORKERS, 4, how)
    assert ended == (status, kept, ""), "the leader may have something to keep"
    assert tasks.alive() == []


# Over ssh, which runs its command on this host here.

UNREACHED = "could not be reached, or the connection to it broke"
# As OpenSSH's client: the last word is the command, the one before it the host.
RUNS_IT = '#!/bin/sh\nfor word; do host=$last; last=$word; done\n{before}exec sh -c "$last"\n'


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program in place of ssh."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(RUNS_IT.format(before=""))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


@pytest.mark.row("S2.3")
def test_tasks_that_end_well_are_a_success(tasks: Tasks, ssh: Path, capfd: pytest.CaptureFixture[str]) -> None:
    speak = "print(os.getcwd(), flush=True)"
    assert tasks.outcome({"worker 0": speak, "worker 1": speak}, TWO_HOSTS) == SUCCESS
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


@pytest.mark.parametrize(
    ("program", "directory", "reasons"),
    [
        ("#!/bin/sh\nexit 0\n", None, ["was not run, though ssh ended with status 0"] * 2),
        (
            RUNS_IT.format(before=""),
            "/nowhere",
            [f"has no /nowhere or no {sys.executable}, which every host needs"] * 2,
        ),
        (
            RUNS_IT.format(before='printf "banner\\nssh: $host refused\\n\\n" >&2\nexit 255\n'),
            None,
            [f"{UNREACHED} (ssh printed why)", f"{UNREACHED} (ssh: host_1 refused)"],
        ),
    ],
    ids=["ssh does nothing", "no suite", "refused"],
)
def test_a_host_where_nothing_was_run_is_named_with_the_reason(
    tasks: Tasks,
    ssh: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    program: str,
    directory: str | None,
    reasons: list[str],
) -> None:
    ssh.write_text(program)
    if directory:
        monkeypatch.setattr(launch_plan.Path, "cwd", lambda: Path(directory))
    failures = [f"worker {number} {reason}" for number, reason in enumerate(reasons)]
    assert tasks.outcome({}, TWO_HOSTS) == Outcome(ExitStatus.CLUSTER, False, failures)
    errors = capfd.readouterr().err
    assert all(f"run_bench: {failure}" in errors for failure in failures), "no log has to be read"


def test_a_host_that_cannot_be_reached_is_named(tasks: Tasks, ssh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_launch, "_NOTICE_SECONDS", 0.5)
    ssh.write_text(RUNS_IT.format(before='[ "$host" = host_1 ] && exit 255\n'))
    outcome = tasks.outcome({"worker 0": "time.sleep(60)"}, TWO_HOSTS)
    assert (outcome.status, outcome.leader_reported) == (ExitStatus.CLUSTER, False)
    assert outcome.failures[0] == "worker 0 did not end, and was killed"
    assert outcome.failures[1] == f"worker 1 {UNREACHED} (ssh gave no reason)"


def test_each_host_answers_for_its_own_gpus(ssh: Path, tmp_path: Path) -> None:
    words = ["--hosts=host_0,host_1", "--ssh", "--num_gpus=8", "--variable_update=collective_all_reduce"]
    done = finished([*RUN_BENCH, *words], tmp_path, {**USER_ENVIRONMENT, "PATH": os.environ["PATH"]})
    assert done.status == ExitStatus.USAGE
    lacks = "--num_gpus=8 asks for 8 GPUs; the host {host} (worker {number}) has 0 NVIDIA GPUs"
    host = socket.gethostname()
    assert f"run_bench: {lacks.format(host=host, number=0)}" in done.stderr
    assert f"run_bench: worker 1 ended with status 2: {lacks.format(host=host, number=1)}" in done.stderr


@pytest.mark.parametrize(("how", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_the_launcher_waits_for_the_record_of_a_leader_elsewhere(
    tasks: Tasks, ssh: Path, how: str, status: int
) -> None:
    keeps = KEEP.replace("print(", "import time; time.sleep(1); print(")
    ended = signalled_launcher(tasks, {"worker 0": STAY, "worker 1": STAY}, TWO_HOSTS, 2, how, keeps)
    assert ended == (status, f"kept after {how}\n", "")
    assert tasks.alive() == []


def test_a_task_that_ignores_the_end_of_the_connection_is_killed(
    tasks: Tasks, ssh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_plan, "_WATCHED", launch_plan._WATCHED.replace("sleep 30", "sleep 0.2"))
    ignores = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); print('begun', flush=True); {STAY}"
    words = tasks.words({"worker 1": ignores}, TWO_HOSTS)[Task("worker", 1)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as connection:
        assert connection.stdin is not None and connection.stdout is not None
        assert connection.stdout.readline() == "begun\n"
        connection.stdin.close()
        assert connection.wait(SECONDS) == 128 + signal.SIGKILL
    wait_until(lambda: not tasks.alive(), SECONDS)
