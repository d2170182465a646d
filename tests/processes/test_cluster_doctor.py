"""`doctor`: what it says of a cluster of real processes, and whether its numbers are what they claim to be."""

from __future__ import annotations

import itertools
import json
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import doctor_report
from benchmarks.doctor_report import Link
from tests.support.clusters import StartCluster
from tests.support.commands import ROOT, USER_ENVIRONMENT, Finished

RunBench = Callable[..., Finished]
CPU = ("--device=cpu", "--num_gpus=1")
SECONDS = 300.0
PROLOGUE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from benchmarks import process_environment
addresses, index = sys.argv[2].split(","), int(sys.argv[3])
process_environment.prepare(device="cpu", visible_gpus=None, peers=addresses)
process_environment.import_tensorflow()
import tensorflow as tf
server = tf.distribute.Server({"worker": addresses}, job_name="worker", task_index=index)
"""
SERVE = PROLOGUE + "sys.stdin.read()"
CLIENT = (
    PROLOGUE
    + """
from benchmarks import cluster_doctor
from benchmarks.cluster import Task
first, second = Task("worker", 0), Task("worker", 1)
"""
)
MEASURE = (
    CLIENT
    + """
links = [cluster_doctor.measure(server.target, first, first, second) for _ in range(3)]
found = [(link.round_trip_seconds, link.there_bytes_per_second, link.back_bytes_per_second) for link in links]
print(json.dumps(found))
"""
)
# What crosses when worker 0's tensor is carried to worker 1 once, then worker 1's to worker 0 twice.
CARRY = (
    CLIENT
    + """
with tf.Graph().as_default():
    steps, initializers = [], []
    for source, to, times in ((first, second, 1), (second, first, 2)):
        with tf.device(source.device + "/cpu:0"):
            variable = tf.Variable(tf.fill([2**22], 3.0), name=f"of_{source.index}")
        initializers.append(variable.initializer)
        steps += [cluster_doctor.carry(variable, to)] * times
    hops = cluster_doctor.chain(first, second, 5)
    config = cluster_doctor.session_config({first, second})
    with tf.compat.v1.Session(server.target, config=config) as session:
        session.run(initializers)
        for step in steps:
            session.run(step)
        metadata = tf.compat.v1.RunMetadata()
        options = tf.compat.v1.RunOptions(output_partition_graphs=True)
        last = session.run(hops, options=options, run_metadata=metadata)
received = sum(node.op == "_Recv" for graph in metadata.partition_graphs for node in graph.node)
print(json.dumps([float(last), received]))
"""
)


class Proxy:
    """Stands before a port, delays what passes, and counts the bytes that the port's owner sends."""

    def __init__(self, delay_seconds: float) -> None:
        self._delay_seconds = delay_seconds
        self.sent_bytes = 0
        self.behind = _free_port()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Takes no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                front, _ = self._listener.accept()
            except OSError:
                return
            try:
                back = socket.create_connection(("127.0.0.1", self.behind))
            except OSError:  # its owner is not there yet
                front.close()
                continue
            for source, to, counted in ((front, back, False), (back, front, True)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                waiting: queue.Queue[tuple[float, bytes]] = queue.Queue()
                threading.Thread(target=self._receive, args=(source, waiting, counted), daemon=True).start()
                threading.Thread(target=self._send, args=(to, waiting), daemon=True).start()

    def _receive(self, source: socket.socket, waiting: queue.Queue[tuple[float, bytes]], counted: bool) -> None:
        data = b"nothing yet"
        while data:
            try:
                data = source.recv(2**18)
            except OSError:
                data = b""
            self.sent_bytes += len(data) if counted else 0
            waiting.put((time.monotonic() + self._delay_seconds, data))

    def _send(self, to: socket.socket, waiting: queue.Queue[tuple[float, bytes]]) -> None:
        with to:
            while True:
                due, data = waiting.get()
                time.sleep(max(0.0, due - time.monotonic()))
                try:
                    to.sendall(data)
                except OSError:
                    return
                if not data:
                    return


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


def _through_proxies(client: str, delay_seconds: float = 0.0) -> tuple[Any, list[int]]:
    """Runs two workers that reach each other through proxies; returns what worker 0 printed, and what each one sent."""
    proxies = [Proxy(delay_seconds), Proxy(delay_seconds)]
    commands = []
    for index, script in enumerate((client, SERVE)):
        ports = [proxy.behind if n == index else proxy.port for n, proxy in enumerate(proxies)]
        addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
        commands.append([sys.executable, "-c", script, str(ROOT), addresses, str(index)])
    server = subprocess.Popen(commands[1], stdin=subprocess.PIPE, env=USER_ENVIRONMENT)
    try:
        done = subprocess.run(
            commands[0], env=USER_ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    finally:
        server.kill()
        server.communicate(timeout=SECONDS)
        for proxy in proxies:
            proxy.close()
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout), [proxy.sent_bytes for proxy in proxies]


def test_every_pair_of_a_local_cluster_is_measured(run_process: RunBench) -> None:
    done = run_process("doctor", "--local_cluster=ps:1,worker:2", *CPU, "--output_format=json")
    assert done.status == 0, done.stderr
    found = json.loads(done.stdout)
    tasks = ["ps 0", "worker 0", "worker 1"]
    assert [task["task"] for task in found["tasks"]] == tasks
    assert len({task["pid"] for task in found["tasks"]}) == 3
    assert {task["host"] for task in found["tasks"]} == {socket.gethostname()}
    assert all(task["tensorflow"].startswith("2.") and task["devices"] for task in found["tasks"])
    assert [(link["first"], link["second"]) for link in found["links"]] == list(itertools.combinations(tasks, 2))
    for link in found["links"]:
        assert 0 < link["round_trip_seconds"] < 0.05
        assert min(link["there_bytes_per_second"], link["back_bytes_per_second"]) > 0.05e9
        assert max(link["there_bytes_per_second"], link["back_bytes_per_second"]) < 100e9
    slowest = min(min(link["there_bytes_per_second"], link["back_bytes_per_second"]) for link in found["links"])
    assert found["slowest"]["bytes_per_second"] == slowest
    assert found["slowest"]["gradient_seconds"] == pytest.approx(4 * 25_557_032 / slowest)


@pytest.mark.slow
def test_tasks_that_are_started_by_hand(start_cluster: StartCluster) -> None:
    tasks = start_cluster("doctor", *CPU)
    assert set(tasks.statuses(SECONDS).values()) == {0}
    lines = tasks.text("worker 0").splitlines()
    for task, address in tasks.addresses.items():
        assert any(line.startswith(f"{task} ") and address in line for line in lines)
        assert str(tasks.processes[task].pid) in tasks.text("ps 0"), "every task shows who is there"
    assert sum(line.startswith(("ps 0      worker", "worker 0  worker 1")) for line in lines) == 3
    assert "gradients of ResNet-50" in lines[-1]
    assert "worker 0 measures" in tasks.text("worker 1") and "GB/s" not in tasks.text("worker 1")


@pytest.mark.slow
def test_a_task_that_is_missing_is_named(start_cluster: StartCluster) -> None:
    tasks = start_cluster("doctor", *CPU, "--start_timeout_seconds=8", order=("worker 0", "ps 0"))
    assert set(tasks.statuses(SECONDS).values()) == {6}
    assert f"worker 1 ({tasks.addresses['worker 1']})" in tasks.text("worker 0")


def test_the_whole_tensor_crosses_in_the_named_direction_and_every_hop_is_taken() -> None:
    (last, received), sent_bytes = _through_proxies(CARRY)
    for times, sent in zip((1, 2), sent_bytes, strict=True):
        assert 0 <= sent - times * 2**24 < 2**20
    assert last == 10.0, "five round trips"
    assert received >= 10


def test_a_round_trip_is_twice_the_delay() -> None:
    links, _ = _through_proxies(MEASURE, delay_seconds=0.02)
    round_trips, there, back = zip(*links, strict=True)
    assert 0.04 <= max(round_trips) and min(round_trips) < 0.055, "a busy machine may spoil one"
    assert min(max(there), max(back)) > 0.01e9


class _Clock:
    """Made-up time: calls take what they are said to take."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, 0

    def __call__(self) -> float:
        return self.now

    def takes(self, *seconds: float) -> Callable[[], None]:
        each = itertools.chain(seconds, itertools.repeat(seconds[-1]))

        def run() -> None:
            self.now += next(each)
            self.calls += 1

        return run


def test_what_a_step_costs_besides_is_in_no_number() -> None:
    from benchmarks import cluster_doctor

    clock, besides = _Clock(), 0.003
    few, many = clock.takes(0.2, besides + 0.001), clock.takes(0.2, besides + 0.021)
    assert cluster_doctor.round_trip(few, many, clock) == pytest.approx(0.001)
    small, large = clock.takes(0.2, besides + 2**20 / 1e9), clock.takes(0.2, besides + 2**24 / 1e9)
    assert cluster_doctor.bandwidth(small, large, clock) == pytest.approx(1e9)


def test_a_slow_link_is_not_measured_for_long() -> None:
    from benchmarks import cluster_doctor

    clock = _Clock()
    large = clock.takes(160.0)
    assert cluster_doctor.bandwidth(clock.takes(10.0), large, clock) == pytest.approx(2**20 / 10)
    assert clock.calls == 1
    assert cluster_doctor.typical_seconds(clock.takes(0.3, 0.3, 0.2, 0.1), clock) == pytest.approx(0.2)
    assert clock.calls == 5
    assert cluster_doctor.typical_seconds(clock.takes(0.9, 0.8), clock) == pytest.approx(0.8)
    assert clock.calls == 7


def test_a_first_call_that_is_held_up_does_not_count() -> None:
    from benchmarks import cluster_doctor

    clock = _Clock()
    assert cluster_doctor.typical_seconds(clock.takes(0.9, 0.01, 0.02, 0.02), clock) == pytest.approx(0.02)


def test_noise_yields_numbers_all_the_same() -> None:
    from benchmarks import cluster_doctor

    clock = _Clock()
    assert cluster_doctor.round_trip(clock.takes(0.004), clock.takes(0.002), clock) == pytest.approx(0.002 / 21)
    assert cluster_doctor.bandwidth(clock.takes(0.02), clock.takes(0.016), clock) == pytest.approx(2**24 / 0.016)


HOSTS = {"ps 0": "h0", "worker 0": "h1", "worker 1": "h2"}


def test_links_that_stand_out_are_named() -> None:
    links = [
        Link("ps 0", "worker 0", 0.4e-3, 1.2e9, 1.1e9),
        Link("ps 0", "worker 1", 3.1e-3, 1.3e9, 0.3e9),
        Link("worker 0", "worker 1", 0.4e-3, 1.2e9, 1.2e9),
    ]
    look = "look at the network between h{} and h{} (which interfaces, their speed), and at what else runs there."
    assert doctor_report.doubts(links, HOSTS) == [
        "worker 1 -> ps 0 carries 0.3 GB/s, others 1.2: " + look.format(2, 0),
        "A round trip ps 0 -> worker 1 -> ps 0 takes 3.1 ms, others 0.4: " + look.format(0, 2),
    ]
    slowest = doctor_report.bottleneck(links)
    assert slowest is not None
    assert slowest.sentence() == (
        "One step's gradients of ResNet-50 v1 (102 MB) take at least 0.341 s over the slowest link, worker 1 -> ps 0 "
        "with 0.3 GB/s."
    )


def test_what_slow_links_have_in_common_is_named() -> None:
    tasks = [f"worker {index}" for index in range(4)]
    host_of = {task: f"h{index}" for index, task in enumerate(tasks)}
    links = [Link(a, b, 1e-3, 0.2e9 if a == "worker 0" else 1e9, 1e9) for a, b in itertools.combinations(tasks, 2)]
    *each, common = doctor_report.doubts(links, host_of)
    assert [sentence.split(" carries")[0] for sentence in each] == [f"worker 0 -> {task}" for task in tasks[1:]]
    assert common == "All of them have worker 0 in common (h0): look there first."


def test_links_within_a_host_are_not_compared_with_those_between_hosts() -> None:
    host_of = {"ps 0": "h0", "worker 0": "h0", "worker 1": "h1"}
    links = [
        Link("ps 0", "worker 0", 0.1e-3, 5e9, 5e9),
        Link("ps 0", "worker 1", 1e-3, 1e9, 1e9),
        Link("worker 0", "worker 1", 1e-3, 1e9, 1e9),
    ]
    assert doctor_report.doubts(links, host_of) == []
    assert (
        "look at what else runs on h0." in doctor_report.doubts([Link("ps 0", "worker 0", 1e-3, 1e9, 9e9)], host_of)[0]
    )


def test_a_lone_task_has_no_links() -> None:
    assert doctor_report.bottleneck([]) is None
    assert doctor_report.doubts([], {}) == []
    assert doctor_report.to_dict([], [])["slowest"] is None
