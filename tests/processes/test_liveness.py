"""What a probe hears from a real process that answers, is busy, stopped or gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.cluster.liveness import Answer, GrpcProbe, Sign

REFUSED, BUSY, ALIVE = Answer(Sign.REFUSED), Answer(Sign.BUSY), Answer(Sign.ALIVE, b"one")
# No test waits so long, unless it fails.
SECONDS = 60.0

# What the probe asks for, answered with fixed bytes; for "busy", after longer than anybody waits.
STANDIN = """
import sys, time
from concurrent import futures
import grpc
def answer(request, context):
    time.sleep(60 if sys.argv[1] == "busy" else 0)
    return sys.argv[1].encode()
method = {} if sys.argv[1] == "foreign" else {"GetStatus": grpc.unary_unary_rpc_method_handler(answer)}
server = grpc.server(futures.ThreadPoolExecutor(1))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tensorflow.WorkerService", method),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
server.wait_for_termination(120)
"""
Start = Callable[..., tuple["subprocess.Popen[str]", str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the stand-in as a process of its own, of a kind; returns it, and the address that it listens at."""
    started: list[subprocess.Popen[str]] = []

    def run(kind: str) -> tuple[subprocess.Popen[str], str]:
        with (tmp_path / f"stderr_{len(started)}").open("w") as stderr:
            command = [sys.executable, "-c", STANDIN, kind]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        started.append(process)
        assert process.stdout is not None
        too_late = threading.Timer(60, process.kill)
        too_late.start()
        line = process.stdout.readline()
        too_late.cancel()
        return process, f"127.0.0.1:{int(line)}"

    yield run
    for process in started:
        process.kill()
        process.wait(SECONDS)
        assert process.stdout is not None
        process.stdout.close()


def stop(process: subprocess.Popen[str]) -> None:
    """Returns when all its threads have stopped: until then it may still answer."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def test_a_real_process_is_alive_then_stopped_then_gone(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    process, address = start("one")
    probe = GrpcProbe()
    assert probe(address, SECONDS) == ALIVE
    stop(process)
    assert probe(address, 0.5).sign is Sign.SILENT
    process.send_signal(signal.SIGCONT)
    assert probe(address, SECONDS) == ALIVE
    process.kill()
    process.wait(SECONDS)
    probe(address, SECONDS)  # may still fail for the connection that broke
    assert probe(address, SECONDS) == REFUSED
    assert GrpcProbe()(address, SECONDS) == REFUSED
    assert capfd.readouterr().err == ""


def test_a_busy_process_is_not_a_stopped_one(start: Start) -> None:
    process, address = start("busy")
    probe = GrpcProbe()
    assert probe(address, 6.0) == BUSY
    stop(process)
    assert probe(address, 0.5).sign is Sign.SILENT


def test_another_kind_of_server_is_no_task(start: Start) -> None:
    _, address = start("foreign")
    answer = GrpcProbe()(address, SECONDS)
    assert (answer.sign, answer.reason) == (Sign.SILENT, "what listens there is no server of TensorFlow")


def test_an_address_that_cannot_be_resolved_is_the_reason() -> None:
    answer = GrpcProbe()("no host:1", SECONDS)
    assert answer.sign is Sign.SILENT and "resolving no host:1" in answer.reason
