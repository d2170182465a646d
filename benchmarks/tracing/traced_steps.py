"""Traces a few steps after the measured ones: memory of GPUs, transfers between devices, times of towers."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from statistics import fmean

import tensorflow as tf

from benchmarks.cluster.member import Team
from benchmarks.console import warn
from benchmarks.errors import headline
from benchmarks.graph import stepper
from benchmarks.graph.run_session import RunSession
from benchmarks.measure.run_log import RunLog
from benchmarks.tracing import chrome_trace, graph_files, step_trace
from benchmarks.tracing.options import Traces
from benchmarks.tracing.step_events import events
from benchmarks.training.training_step import Loop
from results import placement_tables
from variable_mgr.place import Place
from variable_mgr.transfers import TO_DEVICE, TO_HOST

# Enough to tell a slow tower from noise. They are spread over this share of the measured time, within these limits, so
# that a disturbance of some 100 ms does not last for all of them.
MOST_STEPS, _SHARE = 20, 0.2
LEAST_SECONDS, _MOST_SECONDS = 2.0, 10.0


def trace(run: RunSession) -> None:
    """Takes traced steps if there are GPUs, several towers or processes, and adds what they show to the log.

    Never in a run whose steps are interleaved with another's. The first step shows the memory of GPUs and the
    transfers. If this process has several towers that step together, more follow for the times of these, with untraced
    steps between them; all workers take equally many. If a process cannot trace, the run remains valid.

    Raises:
        BenchError: another task is lost, so no step can be taken.
    """
    config, log, team, loops = run.config, run.log, run.team, run.built.step.loops
    place, on_gpus = config.place, config.devices.on_gpu
    several = place.towers_in_total > 1 or config.processes.cluster is not None
    written = config.traces.trace_file or config.traces.partitioned_graph_file_prefix
    fully = bool(several or written or log.traced_always)
    if not (fully or on_gpus) or log.steps_per_slice is not None:
        return
    every: list[tf.compat.v1.RunMetadata] = []
    begin = time.perf_counter()
    with _excused(team):
        every = [traced_step(run, loop, with_graphs=fully, with_kernels=fully) for loop in loops]
    seconds = time.perf_counter() - begin
    if config.computing.xla == "off":  # what XLA allocates while it computes is in no trace
        used = [size for size in map(step_trace.peak_gpu_memory_bytes, every) if size is not None]
        log.observe(peak_gpu_memory_bytes=max(used, default=None))
    _write(every, config.traces, log, team)
    if every and (several or log.traced_always):
        by_formula = (log.placement.get("sent_per_step") or {}).get("by_kind") or {}
        transfers = _transfers(every, place, by_formula, on_gpus=on_gpus)
        log.placement = {**log.placement, "measured_per_step": transfers}
    lacking = fully and any(map(step_trace.lacks_kernels, every))
    if lacking:
        warn(step_trace.NO_KERNELS)
    towers = len(place.towers)
    if len(loops) > 1 or towers < 2 or "pipeline" in log.placement:
        return
    budget = max(LEAST_SECONDS, min(_MOST_SECONDS, _SHARE * sum(log.measured.step_seconds)))
    can_trace = every and not lacking
    count, between = _agreed_steps(budget if can_trace else 0.0, seconds, log.measured.step_seconds, team)
    taken = []
    with _excused(team):
        for _ in range(count):
            team.deadlines.preparation("The steps between traced steps")
            for _ in range(between):
                run.session.run(stepper.fetches(loops[0]), options=run.options)
            taken.append(step_trace.tower_seconds(traced_step(run, loops[0]), towers))
    known = [seconds for seconds in taken if seconds is not None]
    if known and len(known) == count:
        log.observe(tower_compute_seconds=[[round(s, 6) for s in tower] for tower in zip(*known, strict=True)])
    elif taken:
        warn("The trace of a step lacks the operations of a tower, so towers' times are unknown.")


def traced_step(
    run: RunSession, loop: Loop, *, with_graphs: bool = False, with_kernels: bool = True
) -> tf.compat.v1.RunMetadata:
    """Takes a step with the fetches of a measured one, so that its graph is not optimised again."""
    options = stepper.traced(run.options, with_graphs=with_graphs, with_kernels=with_kernels)
    metadata = tf.compat.v1.RunMetadata()
    run.team.deadlines.preparation("A traced step")
    run.session.run(stepper.fetches(loop), options=options, run_metadata=metadata)
    run.team.deadlines.none()
    return metadata


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


def _write(every: Sequence[tf.compat.v1.RunMetadata], wanted: Traces, log: RunLog, team: Team) -> None:
    """Writes the trace of a step, and each device's graph. Asynchronous towers took theirs one after the other."""
    if wanted.trace_file:
        rows = [dataclasses.astuple(event) for metadata in every for event in events(metadata)]
        rows_of = chrome_trace.gather(rows, team)
        if team.is_leader and any(rows_of.values()):
            with log.writing("The trace", wanted.trace_file):
                chrome_trace.write(Path(wanted.trace_file), chrome_trace.trace(rows_of))
    if (prefix := wanted.partitioned_graph_file_prefix) and team.is_leader:
        graphs = (one for metadata in every for one in metadata.partition_graphs)
        with log.writing("The graph of each device", prefix):
            graph_files.write_partitions(graphs, Path(prefix))


def _transfers(
    every: Sequence[tf.compat.v1.RunMetadata], place: Place, by_formula: Collection[str], *, on_gpus: bool
) -> dict[str, object]:
    """Returns the transfers of one step of each loop, for the record; `by_formula` are the kinds that are expected."""
    # Logical CPU devices: the first one is the host's, and a tower's. It counts as what the manager uses it for.
    cpu_is_host = on_gpus or not by_formula or bool({TO_DEVICE, TO_HOST} & {*by_formula})
    found = [
        step_trace.crossings(
            metadata, cpu_is_host=cpu_is_host, towers_in_total=place.towers_in_total, workers=place.workers
        )
        for metadata in every
    ]
    total: dict[str, object] = placement_tables.added([dataclasses.asdict(one) for one in found])
    return total
