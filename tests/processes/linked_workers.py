"""A program that prints what `doctor` measures between two workers, as JSON, under a clock that counts bytes.

The workers are two processes on this host. Each reaches the other through a proxy, which counts what the other sends.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import types
from typing import Any
from unittest import mock

from benchmarks.process import tensorflow_setup
from tests.support.clusters import free_addresses

# Bytes per made-up second from worker 0, and from worker 1. With these, a large tensor need be sent twice only.
RATES = (20e6, 10e6)
# Each of them carries a tensor of 16 MiB: worker 0's once, worker 1's twice.
CARRIED_BYTES = 2**24
CARRIED_TIMES = (1, 2)
ROUND_TRIPS = 5


class Proxy:
    """Stands before an address, and counts the bytes that its owner sends."""

    def __init__(self, behind: str) -> None:
        host, port = behind.split(":")
        self.sent_bytes = 0
        self._behind = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            front, _ = self._listener.accept()
            try:
                back = socket.create_connection(self._behind)
            except OSError:  # its owner has not started yet
                front.close()
                continue
            for source, to, counted in ((front, back, False), (back, front, True)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._forward, args=(source, to, counted), daemon=True).start()

    def _forward(self, source: socket.socket, to: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(2**18):
                self.sent_bytes += len(data) if counted else 0
                to.sendall(data)
        except OSError:
            pass
        to.close()


def start_server(addresses: list[str], index: int) -> Any:
    """Imports TensorFlow, and starts the server of a worker."""
    tensorflow_setup.prepare(tensorflow_setup.Runtime(peers=addresses))
    tensorflow_setup.import_tensorflow()
    import tensorflow as tf

    return tf.distribute.Server({"worker": addresses}, job_name="worker", task_index=index)


def lead() -> None:
    """Is worker 0: starts worker 1, measures, and prints what was found."""
    own = free_addresses(2)
    proxies = [Proxy(address) for address in own]
    second_addresses = [proxies[0].address, own[1]]
    command = [sys.executable, "-m", "tests.processes.linked_workers", *second_addresses]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as second_worker:
        try:
            server = start_server([own[0], proxies[1].address], 0)
            print(json.dumps({"link": _measure(server, proxies), **_carry(server, proxies)}))
        finally:
            second_worker.kill()


def _measure(server: Any, proxies: list[Proxy]) -> list[float]:
    from benchmarks.cluster import network
    from benchmarks.cluster.cluster_spec import Task

    def clock() -> float:
        return sum(proxy.sent_bytes / rate for proxy, rate in zip(proxies, RATES, strict=True))

    first, second = Task("worker", 0), Task("worker", 1)
    with mock.patch.object(network, "time", types.SimpleNamespace(perf_counter=clock)):
        link = network.measure(server.target, first, first, second)
    return [link.round_trip_seconds, link.there_bytes_per_second, link.back_bytes_per_second]


def _carry(server: Any, proxies: list[Proxy]) -> dict[str, Any]:
    import tensorflow as tf

    from benchmarks.cluster import network
    from benchmarks.cluster.cluster_spec import Task

    first, second = Task("worker", 0), Task("worker", 1)
    with tf.Graph().as_default():
        steps, initializers = [], []
        for source, to, times in zip((first, second), (second, first), CARRIED_TIMES, strict=True):
            with tf.device(source.device + "/cpu:0"):
                variable = tf.Variable(tf.fill([CARRIED_BYTES // 4], 3.0), name=f"of_{source.index}")
            initializers.append(variable.initializer)
            steps += [network.carry(variable, to)] * times
        hops = network.chain(first, second, ROUND_TRIPS)
        config = network.session_config({first, second})
        with tf.compat.v1.Session(server.target, config=config) as session:
            session.run(initializers)
            before = [proxy.sent_bytes for proxy in proxies]
            for step in steps:
                session.run(step)
            sent_bytes = [proxy.sent_bytes - sent for proxy, sent in zip(proxies, before, strict=True)]
            metadata = tf.compat.v1.RunMetadata()
            options = tf.compat.v1.RunOptions(output_partition_graphs=True)
            additions = session.run(hops, options=options, run_metadata=metadata)
    received = sum(node.op == "_Recv" for graph in metadata.partition_graphs for node in graph.node)
    return {"sent_bytes": sent_bytes, "additions": float(additions), "received": received}


if __name__ == "__main__":
    if sys.argv[1:]:
        serving = start_server(sys.argv[1:], 1)
        sys.stdin.read()  # ends with worker 0
    else:
        lead()
