"""Predicts clusters of this machine, then measures them: `python -m tools.judge_clusters FOLDER`, as root, on Linux.

Every host of a cluster is a network namespace and one core, or the same share of one if there are more hosts than
cores, with one worker, and for some also a parameter server. Their links send as much as `--gbit_per_second` says, by a
token bucket of the kernel (`tc tbf`). Three figures are measured for the predictions: the rate of one worker while each
host has one, what a link really sends, and from such hosts with a parameter server beside the worker how fast they
copy. No figure of several hosts is used. All predictions are printed before the first of these is measured. The status
is 4 if one is wrong by more than 15 %.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.errors import BenchError, ExitStatus, UsageError
from benchmarks.process.signals import raise_on_termination
from benchmarks.process.subprocesses import RUN_BENCH, Command, supervise
from results.store import Store
from results.text import Table

_WANTED = 0.15
_SUBNET, _PORT = "10.201.0", 51000
_CORES = os.cpu_count() or 1
_GROUPS = Path("/sys/fs/cgroup/cpu")  # of version 1: where shares of a core are set
_PERIOD_MICROSECONDS = 10_000
_MOST_SECONDS = 900  # of one cluster
_ONE_THREAD = ("--device=cpu", "--num_gpus=1", "--num_intra_threads=1", "--num_inter_threads=1")
_HEADER = ("model", "variable manager", "workers", "ps", "predicted", "90 % interval", "measured", "error %")
# What a link sends: the seconds that 64 MB take from one socket to another.
_RECEIVE = """
import socket, time
server = socket.create_server(("", {port})); link, _ = server.accept(); link.recv(1); begin = time.perf_counter()
left = {size} - 1
while left: left -= len(link.recv(2**20))
print(time.perf_counter() - begin)
"""
_SEND = """
import socket, time
for _ in range(50):
    try: link = socket.create_connection(("{address}", {port})); break
    except OSError: time.sleep(0.1)
link.sendall(bytes({size}))
"""


class ClusterFailedError(BenchError):
    """A task of a measured cluster failed."""


Enter = Sequence[str]  # the words that start a command on a host


@dataclasses.dataclass(frozen=True)
class Case:
    """A cluster of one worker per host, some of which also run a parameter server."""

    model: str
    batch: int
    manager: str
    workers: int
    ps: int

    @property
    def flags(self) -> tuple[str, ...]:
        """Returns those of a run and of a prediction."""
        return (f"--model={self.model}", f"--batch_size={self.batch}", f"--variable_update={self.manager}")


def cases(workers: int) -> list[Case]:
    """Returns what is predicted of so many hosts; with less of a core, a worker has fewer images."""
    share = min(1.0, _CORES / workers)
    models = [(name, round(share * batch)) for name, batch in (("resnet50", 8), ("alexnet", 32))]
    by_servers = [
        Case(model, batch, manager, workers, ps)
        for model, batch in models
        for manager in ("distributed_replicated", "parameter_server")
        for ps in (1, 2)
    ]
    return [*by_servers, *(Case(model, batch, "collective_all_reduce", workers, 0) for model, batch in models)]


@contextmanager
def hosts(count: int, gbit_per_second: float) -> Iterator[list[Enter]]:
    """Makes network namespaces that reach each other through a bridge, and yields the words that enter each of them."""

    def run(command: str) -> None:
        try:
            subprocess.run(shlex.split(command), check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            why = str(getattr(error, "stderr", "") or error).strip()
            raise UsageError(
                f"{command}: {why}. Be root, install iproute2, and remove what an ended call left."
            ) from error

    limit = f"root tbf rate {gbit_per_second}gbit burst 256kb latency 100ms"
    with ExitStack() as made:
        run("ip link add cnnbench type bridge")
        made.callback(run, "ip link del cnnbench")
        run("ip link set cnnbench up")
        entering: list[Enter] = []
        for host in range(count):
            name = f"cnnbench{host}"
            run(f"ip netns add {name}")
            made.callback(run, f"ip netns del {name}")
            run(f"ip link add {name} type veth peer name eth0 netns {name}")
            made.callback(run, f"ip link del {name}")  # else it is there for a while after its namespace
            run(f"ip link set {name} up master cnnbench")
            run(f"ip -n {name} addr add {_address(host)}/24 dev eth0")
            for device in ("lo", "eth0"):
                run(f"ip -n {name} link set {device} up")
            run(f"tc qdisc add dev {name} {limit}")  # what the host receives
            run(f"tc -n {name} qdisc add dev eth0 {limit}")  # what it sends
            limited = _limited(made, name, min(1.0, _CORES / count))
            entering.append([*limited, *f"ip netns exec {name} taskset -c {host % _CORES}".split()])
        yield entering


def _limited(made: ExitStack, name: str, share: float) -> Enter:
    """Makes a group of processes that get so much of a core, and returns the words that start one in it."""
    if share == 1:
        return []
    group = _GROUPS / name
    group.mkdir()
    made.callback(group.rmdir)
    (group / "cpu.cfs_period_us").write_text(str(_PERIOD_MICROSECONDS))
    (group / "cpu.cfs_quota_us").write_text(str(round(share * _PERIOD_MICROSECONDS)))
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]


def _address(host: int) -> str:
    return f"{_SUBNET}.{host + 1}"


def link_gbytes_per_second(enter: Sequence[Enter], size: int = 64_000_000) -> float:
    """Measures what one connection sends from the second host to the first, in 1e9 bytes/s."""
    receive, send = _RECEIVE.format(port=_PORT, size=size), _SEND.format(address=_address(0), port=_PORT, size=size)
    receiver = subprocess.Popen([*enter[0], sys.executable, "-c", receive], stdout=subprocess.PIPE)
    subprocess.run([*enter[1], sys.executable, "-c", send], check=True)
    seconds, _ = receiver.communicate(timeout=60)
    return size / float(seconds) / 1e9


def measured(enter: Sequence[Enter], case: Case, folder: Path, steps: int, at: Sequence[int] = (0,)) -> float:
    """Runs a cluster, or several at once, and returns the mean of their images/s.

    Args:
        enter: of each host.
        case: what is run. Without parameter servers, one worker is a run by itself.
        folder: for records and output.
        steps: that are measured.
        at: the first host of each cluster.

    Raises:
        ClusterFailedError: a task failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / "output.txt"
    with output.open("wb") as file:
        commands = [
            Command(words=words, stdout=file, stderr=file)
            for first in at
            for words in _tasks(enter, case, folder, steps, first)
        ]
        ended = supervise(*commands, timeout_seconds=_MOST_SECONDS)
    if failed := [one.in_words() for one in ended if one.returncode]:
        raise ClusterFailedError(f"{case}: a task {failed[0]}, see {output}.")
    rates = [record.derived.images_per_sec for record in Store(folder).load().records[-len(at) :]]
    return statistics.fmean(rate for rate in rates if rate is not None)


def _tasks(enter: Sequence[Enter], case: Case, folder: Path, steps: int, first: int) -> Iterator[list[str]]:
    """Yields the words that start each task of a cluster whose hosts are `first` and those after it."""
    ps = [f"{_address(first + host)}:{_PORT}" for host in range(case.ps)]
    workers = [f"{_address(first + host)}:{_PORT + 1}" for host in range(case.workers)]
    cluster = (f"--worker_hosts={','.join(workers)}", *([f"--ps_hosts={','.join(ps)}"] if ps else []))
    tasks = [("ps", host) for host in range(case.ps)] + [("worker", host) for host in range(case.workers)]
    for job, host in tasks:
        words = [*enter[first + host], sys.executable, str(RUN_BENCH), *_ONE_THREAD, *case.flags]
        words += [f"--num_batches={steps}", "--num_warmup_batches=2", f"--output_dir={folder}"]
        yield words + ([*cluster, f"--job_name={job}", f"--task_index={host}"] if len(tasks) > 1 else [])


def predicted(case: Case, hardware: Path, network: float, records: Path) -> tuple[float, float, float]:
    """Returns images/s and the ends of the interval."""
    words = [sys.executable, str(RUN_BENCH), "predict", *case.flags, f"--hardware={hardware}", "--output_format=json"]
    words += [f"--hosts={case.workers}", f"--network_gbytes_per_second={network}", f"--results={records}"]
    words += [f"--num_ps={case.ps}"] if case.ps else []
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    (point,) = json.loads(done.stdout)["points"]
    rate, low, high = (point[f"images_per_sec{end}"] for end in ("", "_low", "_high"))
    return rate, low, high


def describe(path: Path, copies: float) -> Path:
    """Writes the description of a host that copies so many 1e9 bytes/s."""
    path.write_text(
        f'title = "a part of this machine"\n[cpu]\ncopies_gbytes_per_second = {copies}\nsource = "measured"\n'
        '[memory]\ngbytes_per_second = 10\nsource = "unused: the core adds"\n'
        '[network]\ngbytes_per_second = 1\nlatency_microseconds = 100\nsource = "measured; latency: assumed"\n',
        encoding="utf-8",
    )
    return path


def calibrate(model: str, batch: int, enter: Sequence[Enter], folder: Path, network: float) -> Path:
    """Measures workers by themselves, then each with a parameter server beside it, and describes such a host.

    All hosts do so at once, since cores slow each other: they may be threads of one core, and share memory.
    """
    everywhere = range(len(enter))
    measured(enter, Case(model, batch, "parameter_server", 1, 0), folder / "one", 10, everywhere)
    case = Case(model, batch, "distributed_replicated", 1, 1)
    rate = measured(enter, case, folder / "calibration", 10, everywhere)
    records = folder / "one" / "results.jsonl"

    def seconds(copies: float) -> float:
        return batch / predicted(case, describe(folder / f"{model}.toml", copies), network, records)[0]

    # A step with only copies beside computing takes a + b / copies.
    slow, fast = seconds(1.0), seconds(1e6)
    copies = (slow - fast) / max(batch / rate - fast, slow / 1e3)
    of_host = describe(folder / f"{model}.toml", copies)
    print(f"{model}: {rate:.4g} images/s with a parameter server beside it, so a host copies {copies:.2g} GB/s.")
    return of_host


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4], choices=range(2, 17), metavar="N")
    parser.add_argument("--gbit_per_second", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    raise_on_termination()  # so that the namespaces are removed
    try:
        return _judge(given.workers, given.gbit_per_second, given.repeats, given.folder)
    except BenchError as error:
        print(error, file=sys.stderr)
        return error.exit_status


def _judge(numbers: Sequence[int], gbit_per_second: float, repeats: int, folder: Path) -> ExitStatus:
    predictions: dict[Case, tuple[float, float, float]] = {}
    for workers in numbers:
        with hosts(workers, gbit_per_second) as enter:
            predictions |= predict_all(cases(workers), enter, folder / f"{workers}")
    rows, errors, inside = [], [], 0
    for number, (case, (rate, low, high)) in enumerate(predictions.items()):
        with hosts(case.workers, gbit_per_second) as enter:
            rates = [measured(enter, case, folder / f"{case.workers}/{number}", steps=8) for _ in range(repeats)]
        print(f"measured: {case}: {', '.join(f'{rate:.4g}' for rate in rates)} images/s", flush=True)
        found = statistics.median(rates)
        errors.append(rate / found - 1)
        inside += low <= found <= high
        cells = (case.model, case.manager, case.workers, case.ps, f"{rate:.4g}", f"{low:.4g} to {high:.4g}")
        rows.append([*map(str, cells), f"{found:.4g}", f"{100 * errors[-1]:+.0f}"])
    print("\n".join(Table(_HEADER, rows, _HEADER[2:]).text()))
    close = sum(abs(error) <= _WANTED for error in errors)
    print(f"{close} of {len(rows)} within {100 * _WANTED:.0f} %, {inside} in their 90 % intervals.")
    return ExitStatus.OK if close == len(rows) else ExitStatus.RUN_FAILED


def predict_all(chosen: Sequence[Case], enter: Sequence[Enter], folder: Path) -> dict[Case, tuple[float, float, float]]:
    """Calibrates hosts, and returns images/s of clusters of them with the ends of the intervals."""
    network = link_gbytes_per_second(enter)
    print(f"{len(enter)} hosts on {_CORES} cores. A link sends {network:.4g} GB/s.")
    batches = {case.model: case.batch for case in chosen}
    described = {model: calibrate(model, batch, enter, folder, network) for model, batch in batches.items()}
    alone = Store(folder / "one").load().records
    print(f"{alone[0].environment['cpu_model']}")
    predictions = {}
    for case in chosen:
        rate, low, high = predictions[case] = predicted(case, described[case.model], network, folder / "one")
        print(f"predicted: {case}: {rate:.4g} images/s ({low:.4g} to {high:.4g})", flush=True)
    return predictions


if __name__ == "__main__":
    sys.exit(main())
