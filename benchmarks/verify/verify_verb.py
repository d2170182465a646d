"""The verb `verify`: compares the arithmetic of every manager on these devices with references."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import TYPE_CHECKING

from benchmarks.config.config import Config
from benchmarks.console import say, warn
from benchmarks.errors import ExitStatus
from benchmarks.process import tensorflow_setup
from benchmarks.process.watchdog import Guard
from benchmarks.topology.cluster import Cluster

if TYPE_CHECKING:
    from benchmarks.verify.cases import CaseResult

_HEADING = f"{'':4}  {'error':>8}  {'may be':>8}  {'against':<11}  what"


def run(config: Config) -> ExitStatus:
    """Prints a row per comparison and a closing line.

    Raises:
        UsageError: the devices are not there.
        ClusterError: tasks are missing, or one has gone.
    """
    tensorflow_setup.prepare(
        device=config.own_device,
        visible_gpus=config.visible_gpus,
        peers=list(config.cluster.tasks.values()) if config.cluster else (),
    )
    tensorflow_setup.import_tensorflow()
    from benchmarks.topology import devices
    from benchmarks.verify import cases

    if config.cluster:
        return _in_cluster(config, config.cluster)
    if config.device == "gpu":
        devices.require_gpus(config.num_devices, virtual_gpus=config.virtual_gpus)
    plan = devices.plan(config.device, config.num_devices, virtual_gpus=config.virtual_gpus, shared_on="cpu")
    say(f"Every manager, reduction and modifier on {plan.description}, against NumPy (sgd, momentum) and against one")
    say("device with the whole batch. The error is the largest relative difference, absolute below 1.\n")
    return _table(
        cases.results(
            config.device,
            config.num_devices,
            config.virtual_gpus,
            lambda count: devices.session_config(config.device, count, **config.session_options()),
        )
    )


def _in_cluster(config: Config, cluster: Cluster) -> ExitStatus:
    """Does this task's part; the leader prints the table."""
    from benchmarks.cluster.member import ClusterTeam
    from benchmarks.run import cluster_run
    from benchmarks.verify import cluster_cases

    status = ExitStatus.OK

    def work(team: ClusterTeam) -> None:
        nonlocal status
        results = cluster_cases.results(config, cluster, team)
        if team.is_leader:
            say("\nEvery manager that works across processes, against NumPy (sgd, momentum) and against one device")
            say("with the whole batch. The error is the largest relative difference, absolute below 1.\n")
            status = _table(results)
        else:
            collections.deque(results, maxlen=0)

    guard = Guard(lambda error: warn(str(error)))
    guard.start()
    cluster_run.take_part(config, cluster, guard, work if cluster.own.has_towers else None)
    guard.stop()
    return status


def _table(results: Iterable[CaseResult]) -> ExitStatus:
    """Prints a row per result as it arrives, and how many passed."""
    say(_HEADING)
    counts = {"ok": 0, "FAIL": 0, "-": 0}
    for result in results:
        word = "-" if result.error is None else "ok" if result.passed else "FAIL"
        counts[word] += 1
        error = "" if result.error is None else f"{result.error:.1e}"
        line = f"{word:4}  {error:>8}  {result.case.tolerance:>8.0e}  {result.case.reference:<11}  {result.case.title}"
        say(f"{line}: {result.reason}" if result.reason else line)
    say(f"\n{counts['ok']} ok, {counts['FAIL']} failed, {counts['-']} cannot run here.")
    if counts["FAIL"]:
        warn("The arithmetic of the failed rows is wrong on these devices: do not trust their speed either.")
        return ExitStatus.RUN_FAILED
    return ExitStatus.OK
