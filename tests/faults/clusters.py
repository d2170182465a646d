"""Faults of clusters: tasks that die, stop or are slow, addresses that cannot be used."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults.catalog import fault
from tests.faults.harness import ENDLESS, MEASURES, TINY, Ended, Scratch, Skipped, Started, want
from tests.support.clusters import free_addresses

_RING = "--variable_update=collective_all_reduce"
_LIMIT_SECONDS = 60.0


def _lose(scratch: Scratch, task: str, number: signal.Signals) -> None:
    """Sends a signal to a task of a local cluster that measures, and checks how all others end."""
    cluster = ("--local_cluster=ps:1,worker:2", "--variable_update=parameter_server")
    launcher = scratch.start("run", *ENDLESS, *cluster)
    launcher.wait_for(MEASURES)
    job, index = task.split()
    tasks = scratch.processes(f"--job_name={job} ", f"--task_index={index} ")
    want(len(tasks) == 1, f"{len(tasks)} processes are {task}: {[' '.join(p.cmdline()) for p in scratch.processes()]}")
    tasks[0].send_signal(number)
    try:
        ended = launcher.end(_LIMIT_SECONDS)
    finally:
        scratch.kill()
    scratch.expect(ended, 6, says=[task])
    reasons = [record["reason"] for record in scratch.records()]
    want(len(reasons) == 1 and task in reasons[0], f"{task} is not named in the records' reasons: {reasons}")


for _task in ("ps 0", "worker 1", "worker 0"):
    for _signal, _what in ((signal.SIGKILL, "kill -9"), (signal.SIGSTOP, "SIGSTOP")):

        @fault(
            f"{_task.replace(' ', '-')}-{'killed' if _signal is signal.SIGKILL else 'stopped'}",
            "R7",
            injects=f"{_what} of {_task} of a local cluster that measures",
            must=f"status 6 within {_LIMIT_SECONDS:g} s; the output and one record name {_task}",
        )
        def _lost(scratch: Scratch, task: str = _task, number: signal.Signals = _signal) -> None:
            _lose(scratch, task, number)


@fault(
    "leader-killed-beside-a-neighbour",
    "R7",
    injects="another run stores its record in the same directory, then kill -9 of worker 0 of a local cluster",
    must="status 6; a record of the cluster names worker 0, beside the neighbour's",
)
def _neighbour(scratch: Scratch) -> None:
    launcher = scratch.start("run", *ENDLESS, "--local_cluster=worker:2", _RING)
    launcher.wait_for(MEASURES)
    scratch.expect(scratch.bench("run", *TINY, "--num_batches=5"), 0, records=["ok"])
    (leader,) = scratch.processes("--job_name=worker ", "--task_index=0 ")
    leader.kill()
    scratch.expect(launcher.end(_LIMIT_SECONDS), 6, says=["worker 0"])
    reasons = [record["reason"] for record in scratch.records() if record["status"] != "ok"]
    want(len(reasons) == 1 and "worker 0" in reasons[0], f"reasons of the other records: {reasons}")


@fault(
    "launcher-killed",
    "R5",
    injects="kill -9 of the process that started a local cluster",
    must="no task is left after 15 s",
)
def _launcher(scratch: Scratch) -> None:
    launcher = scratch.start("run", *ENDLESS, "--local_cluster=worker:2", _RING)
    launcher.wait_for(MEASURES)
    launcher.send(signal.SIGKILL)
    scratch.may_leave_temporary_files()
    scratch.expect(launcher.end(), 137)


def _two_workers(scratch: Scratch, addresses: Sequence[str], *flags: str) -> list[Started]:
    hosts = (f"--worker_hosts={','.join(addresses)}", "--job_name=worker")
    return [scratch.start("run", *flags, *hosts, f"--task_index={index}") for index in range(2)]


@fault(
    "worker-that-is-slow",
    "R8",
    injects="worker 1 of two is stopped for 0.2 s of every 0.25 s",
    must="the record names worker 1, with a straggler ratio above 1.5",
)
def _slow(scratch: Scratch) -> None:
    workers = _two_workers(
        scratch, free_addresses(2), *TINY, "--batch_size=64", "--num_batches=60", "--display_every=1", _RING
    )
    workers[0].wait_for(MEASURES)
    while not workers[0].ended_within(0.05):  # less than the watch over the tasks would notice
        workers[1].send(signal.SIGSTOP)
        time.sleep(0.2)
        workers[1].send(signal.SIGCONT)
    ended = [worker.end() for worker in workers]
    want([each.status for each in ended] == [0, 0], f"{[each.status for each in ended]}: {ended[0].tail}")
    derived = scratch.records()[0]["derived"]
    found = derived.get("slowest_worker"), derived.get("straggler_ratio")
    want(found[0] == 1 and found[1] > 1.5, f"slowest_worker, straggler_ratio: {found}")


@fault(
    "port-taken", "R12", injects="another process listens at the task's port", must="status 6 within 60 s, naming it"
)
def _taken(scratch: Scratch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = _parameter_server(scratch, taken.getsockname()[1])
    scratch.expect(ended, 6)


def _parameter_server(scratch: Scratch, port: int, path: Path | None = None) -> Ended:
    other = free_addresses(1)[0]
    hosts = (f"--ps_hosts=127.0.0.1:{port}", f"--worker_hosts={other}", "--job_name=ps", "--task_index=0")
    variables = {"PYTHONPATH": str(path), "TAKEN_PORT": str(port)} if path else {}
    ended = scratch.bench("run", *TINY, *hosts, "--start_timeout_seconds=30", seconds=90, variables=variables)
    want(str(port) in ended.text, f"status {ended.status}, the port is not named: {ended.tail}")
    return ended


# Takes the port at the moment at which a trial socket frees it: the other process of a race.
_RACE = """
import os, socket
_close, _taken = socket.socket.close, []
def close(self):
    try:
        freed = self.getsockname()[1] == int(os.environ["TAKEN_PORT"])
    except (OSError, IndexError, TypeError):
        freed = False
    _close(self)
    if freed and not _taken:
        _taken.append(None)
        _taken.append(socket.create_server(("", int(os.environ["TAKEN_PORT"]))))
socket.socket.close = close
"""


@fault(
    "port-taken-in-a-race",
    "R12",
    injects="the port is taken after it was found free and before the server binds it",
    must="status 6 with the same sentence as for a taken port",
)
def _race(scratch: Scratch) -> None:
    modules = scratch.directory / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(_RACE)
    (address,) = free_addresses(1)
    scratch.expect(_parameter_server(scratch, int(address.split(":")[1]), modules), 6)


@fault(
    "addresses-of-ipv6",
    "R12",
    injects="two workers at addresses of IPv6",
    must="they train, or both end with status 2 and a sentence",
)
def _ipv6(scratch: Scratch) -> None:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(socket.AF_INET6)) for _ in range(2)]
        try:
            for each in sockets:
                each.bind(("::1", 0))
        except OSError as error:
            raise Skipped(f"this machine has no IPv6: {error}") from None
        addresses = [f"[::1]:{each.getsockname()[1]}" for each in sockets]
    workers = _two_workers(scratch, addresses, *TINY, "--num_batches=5", _RING, "--start_timeout_seconds=30")
    ended = [worker.end() for worker in workers]
    statuses = [each.status for each in ended]
    want(statuses in ([0, 0], [2, 2]), f"{statuses}: {ended[0].tail}")
    scratch.expect(ended[0], *statuses, records=["ok"] if statuses == [0, 0] else [])


@fault(
    "task-that-never-starts",
    "R7",
    injects="worker 1 is never started, --start_timeout_seconds=15",
    must="worker 0 ends with status 6 within 60 s and names worker 1",
)
def _absent(scratch: Scratch) -> None:
    hosts = f"--worker_hosts={','.join(free_addresses(2))}"
    words = (*TINY, "--num_batches=5", _RING, hosts, "--job_name=worker", "--task_index=0")
    ended = scratch.bench("run", *words, "--start_timeout_seconds=15", seconds=_LIMIT_SECONDS)
    scratch.expect(ended, 6, says=["worker 1"])


@fault(
    "corrupt-record-of-worker-1",
    "R9",
    injects="a record that is no JPEG, in the part of the data that one of two workers reads",
    must="status 5, and a record that names file and record",
)
def _corrupt(scratch: Scratch) -> None:
    data = scratch.directory / "data"
    scratch.expect(scratch.bench("data", "make-imagenet", data, "--train_images=400", "--images_per_shard=100"), 0)
    from tests.support import damage  # it imports TensorFlow

    damage.corrupt_middle(data, "not_jpeg")
    words = ("--device=cpu", "--model=trivial", "--batch_size=4", "--num_batches=5000", "--step_timeout_seconds=10")
    ended = scratch.bench("run", *words, "--local_cluster=worker:2", _RING, f"--data_dir={data}")
    reasons = [record["reason"] for record in scratch.records()]
    want(ended.status == 5, f"status {ended.status}, {reasons}: {ended.tail}")
    want(any("train-0" in reason and "record" in reason for reason in reasons), f"no file or record in: {reasons}")
