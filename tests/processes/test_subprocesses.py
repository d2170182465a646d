"""Child processes are supervised until they have ended, whatever happens to them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import psutil
import pytest

from benchmarks.errors import Terminated, stopped
from benchmarks.process import out_of_memory, subprocesses
from benchmarks.process.signals import raise_terminated
from benchmarks.process.subprocesses import Command
from tests.support.commands import wait_until


@pytest.fixture
def log(tmp_path: Path) -> Iterator[IO[bytes]]:
    with (tmp_path / "log").open("w+b") as file:
        yield file


def python(code: str, log: IO[bytes], *handed_over: socket.socket, **variables: str) -> Command:
    words = [sys.executable, "-c", code]
    return Command(words=words, stdout=log, stderr=log, variables=variables, hands_over=handed_over)


def said(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode()


def wait_until_gone(pid: int) -> None:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        wait_until(lambda: "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])


LimitReached = Callable[[Callable[[], bool]], None]


@pytest.fixture
def limit_reached_when(monkeypatch: pytest.MonkeyPatch) -> LimitReached:
    """Advances the clock of the deadline by an hour as soon as a condition holds, so that no test waits for it."""

    def use(condition: Callable[[], bool]) -> None:
        late = threading.Event()

        def monotonic() -> float:
            if condition():
                late.set()
            return time.monotonic() + 3600.0 * late.is_set()

        monkeypatch.setattr(subprocesses, "time", SimpleNamespace(monotonic=monotonic))

    return use


def test_stacks_are_written_before_a_run_is_killed(
    log: IO[bytes], monkeypatch: pytest.MonkeyPatch, limit_reached_when: LimitReached
) -> None:
    """An out-of-memory kill of another process at the same time does not count as its own."""
    counts = iter(range(999))
    monkeypatch.setattr(out_of_memory, "count_kills", lambda: next(counts))
    monkeypatch.setattr(out_of_memory, "limit_bytes", lambda: 1)
    code = "import faulthandler, signal, time; faulthandler.register(signal.SIGUSR1); print('ready', flush=True)"
    limit_reached_when(lambda: "ready" in Path(log.name).read_text())
    (ended,) = subprocesses.supervise(python(f"{code}; time.sleep(60)", log), timeout_seconds=600.0)
    assert (ended.returncode, ended.timed_out, ended.out_of_memory) == (-signal.SIGKILL, True, False)
    assert "most recent call first" in said(log)


def test_a_process_that_a_child_leaves_running_is_killed(log: IO[bytes]) -> None:
    code = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)']).pid)"
    (ended,) = subprocesses.supervise(python(code, log), timeout_seconds=60.0)
    assert ended.returncode == 0
    wait_until_gone(int(said(log)))


def test_several_run_at_once_and_only_the_late_one_is_killed(log: IO[bytes], limit_reached_when: LimitReached) -> None:
    def quick_has_gone() -> bool:
        text = Path(log.name).read_text()
        return text.endswith("\n") and not psutil.pid_exists(int(text))

    limit_reached_when(quick_has_gone)
    quick, slow = subprocesses.supervise(
        python("import os; print(os.getpid(), flush=True); raise SystemExit(3)", log),
        python("import time; time.sleep(60)", log),
        timeout_seconds=600.0,
    )
    assert (quick.returncode, quick.timed_out) == (3, False)
    assert (slow.returncode, slow.timed_out) == (-signal.SIGUSR1, True)


def test_each_process_has_its_own_variables_and_its_end_of_a_socket(log: IO[bytes]) -> None:
    first, second = socket.socketpair()
    talk = "import os, socket; end = socket.socket(fileno=int(os.environ['END'])); "
    ended = subprocesses.supervise(
        python(f"{talk} end.send(b'hello'); end.close()", log, first, END=str(first.fileno())),
        python(f"{talk} print(end.recv(9), end.recv(9))", log, second, END=str(second.fileno())),
        timeout_seconds=60.0,
    )
    assert [each.returncode for each in ended] == [0, 0]
    assert said(log) == "b'hello' b''\n", "no other process has the first end, so the second one is closed with it"
    assert "END" not in os.environ and first.fileno() == second.fileno() == -1


@pytest.mark.fault("R2", "a process prints for ever", survives="it is killed before its output fills a disk")
def test_endless_output_ends_the_process_that_writes_it(log: IO[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocesses, "MOST_OUTPUT_BYTES", 2**20)
    quiet, endless, kept = "import time; time.sleep(1)", "while True: print('y' * 1000)", Path(log.name)
    with kept.with_name("other").open("w+b") as other:
        ended = subprocesses.supervise(python(quiet, other), python(endless, log), timeout_seconds=60.0)
    assert [each.wrote_too_much for each in ended] == [False, True]
    assert [each.returncode for each in ended] == [0, -signal.SIGKILL]
    assert not any(each.timed_out or each.out_of_memory for each in ended) and kept.stat().st_size > 2**20


def test_an_out_of_memory_kill_after_the_end_of_a_process_is_not_its_own(
    log: IO[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    later = tmp_path / "later"
    monkeypatch.setattr(out_of_memory, "count_kills", lambda: int(later.exists()))
    monkeypatch.setattr(out_of_memory, "limit_bytes", lambda: 1)
    killed = Command(words=["sh", "-c", "kill -9 $$"], stdout=log, stderr=log)
    goes_on = Command(words=["sh", "-c", f"sleep 1; touch {later}; exit 137"], stdout=log, stderr=log)
    ended = subprocesses.supervise(killed, goes_on, timeout_seconds=60.0)
    assert later.exists() and [each.out_of_memory for each in ended] == [False, True]


def test_memory_of_a_process_that_a_wrapper_started_counts(log: IO[bytes]) -> None:
    held = "x = b'x' * 2**27; print('ready', flush=True); import time; time.sleep(60)"
    words = ["sh", "-c", f'{sys.executable} -c "{held}"; true']
    with subprocess.Popen(words, stdout=log, start_new_session=True) as process:
        wait_until(lambda: said(log) != "")
        assert 2**27 < out_of_memory.Looks(process.pid).held_bytes < 2**28
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.fault(
    "R5", "kill -9 or SIGTERM of a process that has started another through a shell", survives="no process is left"
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_processes_that_a_wrapper_started_die_with_this_process(log: IO[bytes], tmp_path: Path, number: int) -> None:
    """If this process is killed, the kernel ends only the wrapper, its direct child."""
    wrapped = f"echo $$ > {tmp_path}/wrapper; sh -c 'echo $$ > {tmp_path}/named; exec sleep 600'; true"
    code = (
        "import sys; from benchmarks.process import subprocesses\n"
        "out = open('/dev/null', 'wb')\n"
        "command = subprocesses.Command(words=['sh', '-c', sys.argv[1]], stdout=out, stderr=out)\n"
        "subprocesses.supervise(command, timeout_seconds=600.0)"
    )
    started = subprocess.Popen([sys.executable, "-c", code, wrapped], stdout=log, stderr=log)
    wait_until(lambda: (tmp_path / "named").exists() and (tmp_path / "named").read_text() and _guards_of(started.pid))
    started.send_signal(number)
    started.wait(60)
    for name in ("wrapper", "named"):
        wait_until_gone(int((tmp_path / name).read_text()))


def _guards_of(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children() if "read _" in " ".join(child.cmdline())]


def test_the_on_exit_script_does_not_run_while_this_process_lives(tmp_path: Path) -> None:
    for fails in (False, True):
        with contextlib.suppress(RuntimeError), subprocesses.if_killed('touch "$1"', str(tmp_path / "ran")):
            if fails:
                raise RuntimeError
    assert not (tmp_path / "ran").exists()


def test_if_a_process_cannot_be_started_the_others_are_ended(log: IO[bytes], tmp_path: Path) -> None:
    nowhere = Command(words=[str(tmp_path / "nowhere")], stdout=log, stderr=log)
    with pytest.raises(FileNotFoundError):
        subprocesses.supervise(python("import time; time.sleep(60)", log), nowhere, timeout_seconds=60.0)
    assert not [child for child in psutil.Process().children() if "time.sleep(60)" in child.cmdline()]


def test_children_of_a_dead_process_delay_nothing(log: IO[bytes]) -> None:
    first, second = socket.socketpair()
    listens = "import os, socket; print(socket.socket(fileno=int(os.environ['END'])).recv(9))"
    leaves = (
        "import os, subprocess, sys; end = int(os.environ['END'])\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], pass_fds=[end])"
    )
    ended = subprocesses.supervise(
        python(listens, log, first, END=str(first.fileno())),
        python(leaves, log, second, END=str(second.fileno())),
        timeout_seconds=30.0,
    )
    assert [each.returncode for each in ended] == [0, 0]


@contextlib.contextmanager
def signals_once_there_are(lines: int, log: IO[bytes], *numbers: int) -> Iterator[None]:
    """Sends this process signals once the log has so many lines."""
    before = signal.signal(signal.SIGTERM, raise_terminated)

    def send() -> None:
        with contextlib.suppress(AssertionError):
            wait_until(lambda: Path(log.name).read_text().count("\n") >= lines)
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(0.5)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)], ids=["Ctrl-C", "SIGTERM"]
)
def test_a_signal_is_handed_to_those_that_end_in_order(
    log: IO[bytes], number: signal.Signals, raised: type[BaseException]
) -> None:
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        "try: print('ready', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt: time.sleep(0.3); print('in order', flush=True)"
    )
    killed = dataclasses.replace(python(code, log), ends_in_order=False)
    with signals_once_there_are(3, log, number), pytest.raises(raised) as interruption:
        subprocesses.supervise(python(code, log), python(code, log), killed, timeout_seconds=60.0)
    assert stopped(interruption.value).number == number and said(log).count("in order") == 2


def test_after_a_second_signal_no_process_remains(log: IO[bytes]) -> None:
    code = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)']).pid, flush=True); time.sleep(99)"
    )
    with signals_once_there_are(1, log, signal.SIGTERM, signal.SIGTERM), pytest.raises(Terminated):
        subprocesses.supervise(python(code, log), timeout_seconds=120.0)
    wait_until_gone(int(said(log)))


@pytest.mark.parametrize(("parent", "returncode"), [("os.getppid()", 0), ("os.getppid() + 1", -signal.SIGKILL)])
def test_a_process_whose_parent_died_during_its_start_dies_too(log: IO[bytes], parent: str, returncode: int) -> None:
    code = f"import os; from benchmarks.process import subprocesses; subprocesses._die_with_parent({parent})"
    (ended,) = subprocesses.supervise(python(code, log), timeout_seconds=60.0)
    assert ended.returncode == returncode


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_while_a_process_is_forked_is_not_lost(log: IO[bytes], number: signal.Signals) -> None:
    """Exceptions of a handler within a hook of `os.fork` are ignored, and a fork may take long enough for a signal."""
    code = (
        "import os, sys; from benchmarks.process import subprocesses; from benchmarks.process import signals\n"
        "os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), NUMBER))\n"
        "out = open(os.devnull, 'wb'); words = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        "command = subprocesses.Command(words=words, stdout=out, stderr=out)\n"
        "sys.exit(signals.until_stopped(lambda: subprocesses.supervise(command, timeout_seconds=20.0) and None))"
    )
    child = python(code.replace("NUMBER", str(int(number))), log)
    (ended,) = subprocesses.supervise(child, timeout_seconds=60.0)
    assert (ended.returncode, said(log)) == (128 + number, "")


def test_a_process_that_continues_is_not_stopped(log: IO[bytes]) -> None:
    with subprocess.Popen([sys.executable, "-Sc", "import time; time.sleep(60)"]) as process:
        child = subprocesses._Child(python("", log), process)
        for number, stopped in [(signal.SIGCONT, False), (signal.SIGSTOP, True), (signal.SIGCONT, False)]:
            process.send_signal(number)
            wait_until(lambda stopped=stopped: child.is_stopped() == stopped)
            assert child.is_stopped() == stopped, "asking twice gives the same answer"
        process.kill()
    assert not child.is_stopped()


def test_those_beside_a_stopped_process_get_no_time_again_once_it_is_killed() -> None:
    stopped = Command(
        words=["sh", "-c", "kill -s STOP $$"],
        stdout=None,
        stderr=None,
        stopped_seconds=5.0,
        patience=lambda status: 5.0,
    )
    beside = Command(words=["sleep", "60"], stdout=None, stderr=None)
    first, second = subprocesses.supervise(stopped, beside, timeout_seconds=60.0)
    assert first.was_stopped and second.timed_out and second.seconds < 10.0
