"""The verb `verify`: compares the arithmetic of every manager on these devices with references."""

from __future__ import annotations

import collections
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from benchmarks.config import config as config_rules
from benchmarks.config import device_options
from benchmarks.config.config import Config
from benchmarks.config.flag import Groups, Parsed
from benchmarks.config.run_flags import RUN_FLAGS, SEVERAL_DEVICES
from benchmarks.config.verb import Verb
from benchmarks.console import progress, say, warn
from benchmarks.errors import ExitStatus
from benchmarks.process.deadlines import Deadlines
from benchmarks.process.watchdog import Watchdog, watched
from benchmarks.run import cluster_launch
from benchmarks.system import hardware
from benchmarks.topology import discovery, launch_plan
from benchmarks.topology.cluster import Cluster
from benchmarks.topology.start import start

if TYPE_CHECKING:
    from benchmarks.verify.cases import CaseResult

_HEADING = f"{'':4}  {'error':>8}  {'may be':>8}  {'against':<11}  what"


def run(config: Config) -> ExitStatus:
    """Prints a row per comparison and a closing line.

    Raises:
        UsageError: the devices are not there.
        ClusterError: tasks are missing, or one has gone.
    """
    with watched() as watchdog:
        deadlines = Deadlines(watchdog, config.step_timeout_seconds)
        deadlines.importing()
        plan, _ = start(config.runtime)
        deadlines.none()
        if config.cluster:
            return _in_cluster(config, config.cluster, watchdog)
        return _in_one_process(config, plan.description, watchdog)


def _in_one_process(config: Config, devices: str, watchdog: Watchdog) -> ExitStatus:
    from benchmarks.topology.devices import session_config
    from benchmarks.verify import cases

    say(f"Every manager, reduction and modifier on {devices}, against NumPy (sgd, momentum) and against one")
    say("device with the whole batch. The error is the largest relative difference, absolute below 1.\n")
    with progress.counted("comparing", sum(1 for _ in cases.cases())):
        return _table(
            cases.results(
                config.device,
                config.num_devices,
                config.virtual_gpus,
                lambda count: session_config(config.device, count, **config.runtime.session_options()),
                watchdog,
                config.step_timeout_seconds,
            )
        )


def _in_cluster(config: Config, cluster: Cluster, watchdog: Watchdog) -> ExitStatus:
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

    cluster_run.take_part(config, cluster, watchdog, work if cluster.own.has_towers else None)
    return status


def _table(results: Iterable[CaseResult]) -> ExitStatus:
    """Prints a row per result as it arrives, and how many passed."""
    say(_HEADING)
    counts = {"ok": 0, "FAIL": 0, "-": 0}
    for result in results:
        progress.advance()
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


def _resolve_and_run(given: Parsed, command: Sequence[str]) -> ExitStatus:
    """Verifies on all devices if none are named; starts the cluster first if the flags say so."""
    values = dict(given.values)
    cluster, _ = discovery.resolve(values, os.environ)
    if cluster:
        values["variable_update"] = discovery.manager_for(cluster)
    else:
        values = device_options.default_to_all(values, hardware.count_gpus())
    resolved = config_rules.resolve(values, hardware.count_gpus)
    if launch_plan.is_asked_for(values):
        return cluster_launch.run(resolved, values, command, hardware.count_gpus, keeps_record=False)
    return run(resolved)


# Everything but the devices is fixed.
VERIFY_FLAGS: Groups = {"Devices": SEVERAL_DEVICES, "Several processes": RUN_FLAGS["Several processes"]}
VERB = Verb(
    "verify",
    "is the arithmetic of every variable manager right here?",
    VERIFY_FLAGS,
    _resolve_and_run,
    details="Compares each manager with a reference in NumPy on these devices.",
    examples=("verify", "verify --device=cpu --num_gpus=3", "verify --local_cluster=ps:2,worker:2"),
)
