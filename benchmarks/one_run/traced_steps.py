"""Traces a few steps after the measured ones: memory of GPUs, transfers between devices, times of towers."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import tensorflow as tf

from benchmarks.between_steps import chrome_trace, files
from benchmarks.between_steps.options import Summaries
from benchmarks.cluster.member import Team
from benchmarks.config.config import Config
from benchmarks.console import warn
from benchmarks.errors import headline
from benchmarks.measure.run_log import RunLog
from benchmarks.one_run import steps
from benchmarks.process.deadlines import PREPARATION_FACTOR
from benchmarks.training import step_trace
from benchmarks.training.step_events import events
from benchmarks.training.training_step import Loop
from results import placement
from variable_mgr.catalog import IN_GRAPH
from variable_mgr.traffic import TO_DEVICE, TO_HOST

# Enough to tell a slow tower from noise. They are spread over this share of the measured time, within these limits, so
# that a disturbance of some 100 ms does not last for all of them.
MOST_STEPS, _SHARE = 20, 0.2
LEAST_SECONDS, _MOST_SECONDS = 2.0, 10.0


def trace(
    session: tf.compat.v1.Session,
    loops: Sequence[Loop],
    options: tf.compat.v1.RunOptions,
    config: Config,
    log: RunLog,
    team: Team,
) -> None:
    """Takes traced steps if there are GPUs, several towers or processes, and adds what they show to the log.

    Never in a run whose steps are interleaved with another's. The first step shows the memory of GPUs and the
    transfers. If this process has several towers that step together, more follow for the times of these, with untraced
    steps between them; all workers take equally many. If a process cannot trace, the run remains valid.

    Raises:
        BenchError: another task is lost, so no step can be taken.
    """
    several = config.towers_in_total > 1 or config.processes.cluster is not None
    written = config.summaries.trace_file or config.summaries.partitioned_graph_file_prefix
    fully = bool(several or written or log.traced_always)
    if not (fully or config.devices.device == "gpu") or log.steps_per_slice is not None:
        return
    towers = config.towers_in_total if config.variables.variable_update in IN_GRAPH else config.devices.num_devices
    every: list[tf.compat.v1.RunMetadata] = []
    begin = time.perf_counter()
    with _excused(team):
        every = [
            _metadata(session, loop, options, config, team, with_graphs=fully, with_kernels=fully) for loop in loops
        ]
    seconds = time.perf_counter() - begin
    used = [size for size in map(step_trace.peak_gpu_memory_bytes, every) if size is not None]
    log.observe(peak_gpu_memory_bytes=max(used, default=None))
    _write(every, config.summaries, team)
    if every and (several or log.traced_always):
        log.placement = {**log.placement, "measured_per_step": _transfers(every, config, log)}
    lacking = fully and any(map(step_trace.lacks_kernels, every))
    if lacking:
        warn(step_trace.NO_KERNELS)
    if len(loops) > 1 or towers < 2 or config.variables.pipeline:
        return
    budget = max(LEAST_SECONDS, min(_MOST_SECONDS, _SHARE * sum(log.measured.step_seconds)))
    can_trace = every and not lacking
    count, between = _agreed_steps(budget if can_trace else 0.0, seconds, log.measured.step_seconds, team)
    taken = []
    with _excused(team):
        for _ in range(count):
            team.expect("The steps between traced steps", PREPARATION_FACTOR * config.processes.step_timeout_seconds)
            for _ in range(between):
                session.run(steps.fetches(loops[0]), options=options)
            taken.append(step_trace.tower_seconds(_metadata(session, loops[0], options, config, team), towers))
    known = [seconds for seconds in taken if seconds is not None]
    if known and len(known) == count:
        log.observe(tower_compute_seconds=[[round(s, 6) for s in tower] for tower in zip(*known, strict=True)])
    elif taken:
        warn("The trace of a step lacks the operations of a tower, so towers' times are unknown.")


@contextlib.contextmanager
def _excused(team: Team) -> Iterator[None]:
    """Turns an error of TensorFlow while a step is traced into a warning, unless another task has brought it about."""
    try:
        yield
    except tf.errors.OpError as error:
        if cause := team.explain(error):
            raise cause from error
        warn(f"A step could not be traced, so what traces show is not in the record: {headline(error)}")


def _agreed_steps(budget: float, traced: float, measured: Sequence[float], team: Team) -> tuple[int, int]:
    """Returns how many steps all workers trace in `budget` seconds, and how many untraced steps precede each of them.

    Args:
        budget: of all these steps together.
        traced: seconds of a traced step.
        measured: seconds of the measured steps.
        team: whose workers agree.
    """
    count = min(MOST_STEPS, int(budget / traced))
    between = int((budget / count - traced) / fmean(measured)) if count else 0
    everyone = team.meet("traced a step", [count, between], patient=True).values()
    return min(count for count, _ in everyone), min(between for _, between in everyone)


def _metadata(
    session: tf.compat.v1.Session,
    loop: Loop,
    options: tf.compat.v1.RunOptions,
    config: Config,
    team: Team,
    *,
    with_graphs: bool = False,
    with_kernels: bool = True,
) -> tf.compat.v1.RunMetadata:
    """Takes a step with the fetches of a measured one, so that its graph is not optimised again."""
    traced = steps.traced(options, with_graphs=with_graphs, with_kernels=with_kernels)
    metadata = tf.compat.v1.RunMetadata()
    team.expect("A traced step", PREPARATION_FACTOR * config.processes.step_timeout_seconds)
    session.run(steps.fetches(loop), options=traced, run_metadata=metadata)
    team.expect_nothing()
    return metadata


def _write(every: Sequence[tf.compat.v1.RunMetadata], wanted: Summaries, team: Team) -> None:
    """Writes the trace of a step, and each device's graph. Asynchronous towers took theirs one after the other."""
    if wanted.trace_file:
        rows = [dataclasses.astuple(event) for metadata in every for event in events(metadata)]
        rows_of = chrome_trace.gather(rows, team)
        if team.is_leader and any(rows_of.values()):
            chrome_trace.write(Path(wanted.trace_file), chrome_trace.trace(rows_of))
    if wanted.partitioned_graph_file_prefix and team.is_leader:
        graphs = (one for metadata in every for one in metadata.partition_graphs)
        files.write_partitions(graphs, Path(wanted.partitioned_graph_file_prefix))


def _transfers(every: Sequence[tf.compat.v1.RunMetadata], config: Config, log: RunLog) -> dict[str, object]:
    """Returns the transfers of one step of each loop, for the record."""
    by_formula = (log.placement.get("sent_per_step") or {}).get("by_kind") or {}
    # Logical CPU devices: the first one is the host's, and a tower's. It counts as what the manager uses it for.
    cpu_is_host = config.devices.device != "cpu" or not by_formula or bool({TO_DEVICE, TO_HOST} & by_formula.keys())
    in_graph = config.variables.variable_update in IN_GRAPH
    found = [
        step_trace.crossings(
            metadata,
            cpu_is_host=cpu_is_host,
            towers_in_total=config.towers_in_total,
            workers=1 if in_graph else config.processes.num_workers,
        )
        for metadata in every
    ]
    total: dict[str, object] = placement.added([dataclasses.asdict(one) for one in found])
    return total
