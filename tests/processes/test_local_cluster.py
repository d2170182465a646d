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
from tests.support.commands import ROOT, RUN_BENCH, USER_ENVIRONMENT, finished, wait_until

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

    def words(self, scripts: Mapping[str, str], cluster: Cluster) -> dict[Task, list[str]]:
        mark = MARK.format(pids=self._pids)
        return {
            task: [sys.executable, "-Sc", f"mark = {mark!r}\n{mark}\n{scripts.get(str(task), 'pass')}"]
            for task in cluster.tasks
        }

    def outcome(self, scripts: Mapping[str, str], text: str = "ps:1,worker:2") -> cluster_launch.Outcome:
        cluster = launch_plan.on_this_host(text)
        return cluster_launch.launch(cluster, self.words(scripts, cluster), self.logs)

    def run(self, scripts: Mapping[str, str], text: str = "ps:1,worker:2") -> ExitStatus:
        return self.outcome(scripts, text).status

    def have_begun(self, count: int) -> None:
        """Waits for so many processes."""
        wait_until(lambda: len(list(self._pids.iterdir())) == count, SECONDS)

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
    assert tasks.run({}, "worker:2") == ExitStatus.OK
    assert len(list(tasks.logs.iterdir())) == 3, "the logs of both runs are kept"


def test_a_leader_that_fails_gives_its_status(tasks: Tasks, capfd: pytest.CaptureFixture[str]) -> None:
    assert tasks.run({"worker 0": "sys.exit(4)", "worker 1": "sys.exit(6)"}) == ExitStatus.RUN_FAILED
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("run_bench: worker 1 ended with status 6; its output: ")
    assert Path(line.rpartition(": ")[2]).parent == tasks.logs
    assert tasks.alive() == []


@pytest.mark.parametrize(("victim", "where"), [("worker 1", "; its output: "), ("worker 0", "\n")])
def test_one_that_is_killed_is_a_failure_of_the_cluster(
    tasks: Tasks, capfd: pytest.CaptureFixture[str], victim: str, where: str
) -> None:
    assert tasks.run({victim: "os.kill(os.getpid(), signal.SIGKILL)"}) == ExitStatus.CLUSTER
    assert capfd.readouterr().err.startswith(f"run_bench: {victim} ended by signal 9 (Killed){where}")


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
    monkeypatch.setattr(cluster_launch, "_NOTICE_SECONDS", 0.5)
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
        outcome = tasks.outcome({"worker 0": f"sys.exit({status})"})
        assert (outcome.status, outcome.leader_reported) == (ExitStatus.CLUSTER, False)
        assert outcome.failures == [f"worker 0 ended with status {status}"]


def test_who_stays_after_others_have_reported_a_loss_is_killed_sooner(
    tasks: Tasks, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_launch, "_NOTICE_SECONDS", 1e9)
    monkeypatch.setattr(cluster_launch, "_VERDICT_SECONDS", 0.5)
    assert tasks.run({"ps 0": "sys.exit(6)", "worker 0": "sys.exit(6)", "worker 1": STAY}) == ExitStatus.CLUSTER
    assert "worker 1 did not end, and was killed" in capfd.readouterr().err
    assert cluster_launch._VERDICT_SECONDS < 60 - 18 - 15, "the others need 18 s to notice, and 15 s to end"


@pytest.mark.parametrize("stopped", ["ps 0", "worker 0", "worker 1"])
def test_a_stopped_task_is_named_and_killed_though_no_other_ends(
    tasks: Tasks, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stopped: str
) -> None:
    monkeypatch.setattr(cluster_launch, "_STOPPED_SECONDS", 0.5)
    monkeypatch.setattr(cluster_launch, "_NOTICE_SECONDS", 0.5)
    scripts = {**dict.fromkeys(map(str, TWO_WORKERS.tasks), STAY), stopped: "os.kill(os.getpid(), signal.SIGSTOP)"}
    outcome = tasks.outcome(scripts)
    assert (outcome.status, outcome.leader_reported) == (ExitStatus.CLUSTER, False)
    assert f"{stopped} was stopped, and then killed" in outcome.failures
    assert f"run_bench: {stopped} was stopped, and then killed" in capfd.readouterr().err
    assert tasks.alive() == []


def test_a_program_that_cannot_be_started_is_named(tasks: Tasks) -> None:
    with pytest.raises(ClusterError, match=r"cannot be started: .*/no/such/program"):
        cluster_launch.launch(TWO_WORKERS, dict.fromkeys(TWO_WORKERS.tasks, ["/no/such/program"]), tasks.logs)


LAUNCHER = """
import json, pathlib, signal, sys
from benchmarks.cluster import launch_plan
from benchmarks.errors import Terminated
from benchmarks.run import cluster_launch
signal.signal(signal.SIGINT, signal.default_int_handler)
over_ssh, words, logs = sys.argv[1:]
cluster = launch_plan.on_this_host("ps:1,worker:2")
if over_ssh:
    cluster = launch_plan.on_hosts("host_0,host_1", "collective_all_reduce", 50000)
words = dict(zip(cluster.tasks, json.loads(words), strict=True))
if over_ssh:
    words = {task: launch_plan.over_ssh(task, cluster, its_words) for task, its_words in words.items()}
try:
    cluster_launch.launch(cluster, words, pathlib.Path(logs))
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


def signalled_launcher(
    tasks: Tasks, scripts: Mapping[str, str], cluster: Cluster, begun: int, how: str, keep: str = KEEP
) -> tuple[int, str, str]:
    """Returns status, stdout and stderr of a process that starts a cluster, and gets a signal once all have begun."""
    words_of_task = tasks.words(scripts, cluster)
    words_of_task[cluster.leader][-1] = keep + words_of_task[cluster.leader][-1]
    words = json.dumps(list(words_of_task.values()))
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, "" if cluster.local else "over ssh", words, str(tasks.logs)],
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


TERMINATED = """
import sys
sys.path.insert(0, {root!r})
from benchmarks.errors import Terminated
from benchmarks.run import cluster_launch
def run(*arguments):
    raise Terminated
cluster_launch.launch = run
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


# Over ssh, which runs its command on this host here.

UNREACHED = "could not be reached, or the connection to it broke"
TWO_HOSTS = launch_plan.on_hosts("host_0,host_1", "collective_all_reduce", 50000)
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


def over_ssh(tasks: Tasks, scripts: dict[str, str]) -> cluster_launch.Outcome:
    words = tasks.words(scripts, TWO_HOSTS).items()
    over = {task: launch_plan.over_ssh(task, TWO_HOSTS, its_words) for task, its_words in words}
    return cluster_launch.launch(TWO_HOSTS, over, tasks.logs)


@pytest.mark.row("S2.3")
def test_tasks_that_end_well_are_a_success(tasks: Tasks, ssh: Path, capfd: pytest.CaptureFixture[str]) -> None:
    speak = "print(os.getcwd(), flush=True)"
    assert over_ssh(tasks, {"worker 0": speak, "worker 1": speak}) == cluster_launch.Outcome(ExitStatus.OK, True, [])
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
    outcome = over_ssh(tasks, {})
    assert (outcome.status, outcome.leader_reported) == (ExitStatus.CLUSTER, False)
    assert outcome.failures == [f"worker {n} was not run, though ssh ended with status 0" for n in (0, 1)]
    assert "run_bench: worker 0 was not run, though ssh ended with status 0\n" in capfd.readouterr().err


def test_a_host_without_the_suite_says_what_it_needs(
    tasks: Tasks, ssh: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch_plan.Path, "cwd", lambda: Path("/nowhere"))
    outcome = over_ssh(tasks, {})
    needs = f"has no /nowhere or no {sys.executable}, which every host needs"
    assert outcome.failures == [f"worker {n} {needs}" for n in (0, 1)] and outcome.status == ExitStatus.CLUSTER
    assert f"run_bench: worker 0 {needs}\n" in capfd.readouterr().err


def test_a_host_that_cannot_be_reached_is_named(tasks: Tasks, ssh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_launch, "_NOTICE_SECONDS", 0.5)
    ssh.write_text(RUNS_IT.format(before='[ "$host" = host_1 ] && exit 255\n'))
    outcome = over_ssh(tasks, {"worker 0": "time.sleep(60)"})
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


def test_the_last_words_of_each_ssh_are_quoted(tasks: Tasks, ssh: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ssh.write_text(RUNS_IT.format(before='printf "banner\\nssh: $host refused\\n\\n" >&2\nexit 255\n'))
    outcome = over_ssh(tasks, {})
    assert (outcome.status, outcome.leader_reported) == (ExitStatus.CLUSTER, False)
    reasons = ("ssh printed why", "ssh: host_1 refused")
    assert outcome.failures == [f"worker {n} {UNREACHED} ({reason})" for n, reason in enumerate(reasons)]
    errors = capfd.readouterr().err
    assert "banner\nssh: host_0 refused\n" in errors, "what the leader's ssh prints is shown as it is"
    assert all(f"run_bench: {failure}\n" in errors for failure in outcome.failures), "no log has to be read"


@pytest.mark.parametrize(
    ("script", "status", "reported", "how"),
    [
        ("sys.exit(5)", ExitStatus.DATA, True, "ended with status 5"),
        ("sys.exit(1)", ExitStatus.CLUSTER, False, "ended with status 1"),
        ("os.kill(os.getpid(), signal.SIGKILL)", ExitStatus.CLUSTER, False, "ended by signal 9 (Killed)"),
    ],
)
def test_the_leaders_end_comes_through(
    tasks: Tasks, ssh: Path, script: str, status: ExitStatus, reported: bool, how: str
) -> None:
    assert over_ssh(tasks, {"worker 0": script}) == cluster_launch.Outcome(status, reported, [f"worker 0 {how}"])


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
    worker = Task("worker", 1)
    words = launch_plan.over_ssh(worker, TWO_HOSTS, tasks.words({"worker 1": ignores}, TWO_HOSTS)[worker])
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as connection:
        assert connection.stdin is not None and connection.stdout is not None
        assert connection.stdout.readline() == "begun\n"
        connection.stdin.close()
        assert connection.wait(SECONDS) == 128 + signal.SIGKILL
    wait_until(lambda: tasks.alive() == [], SECONDS)
