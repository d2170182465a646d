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
TENSORFLOW = """
import os, signal, socket, sys
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
import tensorflow as tf
server = tf.distribute.Server({"worker": [f"127.0.0.1:{port}"]}, job_name="worker", task_index=0)
print(port, flush=True)
signal.alarm(120)
signal.pause()
"""
Start = Callable[..., tuple["subprocess.Popen[str]", str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a script as a process of its own; returns it, and the address that it listens at."""
    started: list[subprocess.Popen[str]] = []

    def run(script: str, *arguments: str) -> tuple[subprocess.Popen[str], str]:
        with (tmp_path / f"stderr_{len(started)}").open("w") as stderr:
            command = [sys.executable, "-c", script, *arguments]
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
    process, address = start(STANDIN, "one")
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
    process, address = start(STANDIN, "busy")
    probe = GrpcProbe()
    assert probe(address, 2.0) == BUSY
    stop(process)
    assert probe(address, 0.5).sign is Sign.SILENT


def test_another_kind_of_server_is_no_task(start: Start) -> None:
    _, address = start(STANDIN, "foreign")
    answer = GrpcProbe()(address, SECONDS)
    assert (answer.sign, answer.reason) == (Sign.SILENT, "what listens there is no server of TensorFlow")


def test_an_address_that_cannot_be_resolved_is_the_reason() -> None:
    answer = GrpcProbe()("no host:1", SECONDS)
    assert answer.sign is Sign.SILENT and "resolving no host:1" in answer.reason


@pytest.mark.rotates
def test_a_server_of_tensorflow_answers_the_same_until_it_is_restarted(start: Start) -> None:
    process, address = start(TENSORFLOW)
    _, other_address = start(TENSORFLOW)
    probe = GrpcProbe()
    answer = probe(address, SECONDS)
    assert answer.sign is Sign.ALIVE
    assert b"/job:worker/replica:0/task:0" in answer.reply
    assert probe(address, SECONDS) == answer
    assert probe(other_address, SECONDS).reply not in (b"", answer.reply)
    stop(process)
    assert probe(address, 1.0).sign is Sign.SILENT
