"""Climbs the ladder: runs that do more and more, each a process of its own, in limited time. Imports no TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.config.config import Config
from benchmarks.console import say
from benchmarks.doctor import advice, breakdown
from benchmarks.doctor.breakdown import Ladder, Part, Rung, Span
from benchmarks.doctor.breakdown_plan import Plan, Step, step_with_data, steps
from benchmarks.errors import ExitStatus
from benchmarks.microbench import device_peak
from benchmarks.microbench.roofline import Roofline
from benchmarks.process import subprocesses
from benchmarks.process.signals import until_stopped
from benchmarks.record_files import open_store
from benchmarks.sweep import grid
from benchmarks.sweep.estimate import in_words
from benchmarks.sweep.isolated_run import CellRunner
from benchmarks.system.provenance import of_this_run
from models import specs
from results import repeats
from results.gate.rounds import rate, why_failed
from results.measurement import Measurement
from results.record import Record, Status
from results.repeats import Outcome
from results.statistics import MIN_STEPS_FOR_INTERVAL

# The least that a run gets, for its start; what runs before it needed for as many steps as an interval needs is more.
_LEAST_SECONDS = 10.0
_MARGIN = 1.5  # the next run may start later, and its steps do more
# A run ends itself when its share of the time is over; one that does not is stuck.
_STUCK_SECONDS = 300.0
_FAKE_PHOTOS = 256

# The roofline of a configuration's computing and a rate of one device, or why there is none.
MeasureRoofline = Callable[[Config, float], tuple[Roofline | None, str]]


def run(
    plan: Plan,
    command: Sequence[str],
    disturbing: Sequence[str] = (),
    clock: Callable[[], float] = time.monotonic,
    measure_roofline: MeasureRoofline = device_peak.measure_apart,
) -> tuple[dict[str, Any], ExitStatus]:
    """Climbs, and as text prints each rung as it comes, and what they say together.

    Args:
        plan: what to climb.
        command: the words of the command line, for records of runs that left none.
        disturbing: names of what disturbs measurements on this machine now.
        clock: seconds, monotonic.
        measure_roofline: what computing is set beside.

    Returns:
        All of it under `ladder` and `roofline`, as JSON can hold it; and RUN_FAILED if a rung failed, or how it was
        stopped.

    Raises:
        UsageError: results cannot be kept.
    """
    climb = _Climb(plan, command, clock, measure_roofline)
    show = say if plan.chosen.output_format == "text" else _say_nothing
    show(f"\n{_announced(plan)}\n\n{advice.heading()}")
    status = until_stopped(lambda: climb.all(show), "Stopped before the ladder's top: what is below is known.")
    found, roofline = Ladder(climb.rungs), climb.roofline
    setting = dataclasses.replace(plan.setting, attained=_attained(roofline), disturbing=disturbing)
    sentences = advice.sentences(found, setting)
    for section in (advice.shares(found, setting), climb.about_roofline, sentences, [f"records: {climb.path}"]):
        for line in ["", *section] if section else []:
            show(line)
    if status is ExitStatus.OK and any(rung.failed for rung in found.rungs):
        status = ExitStatus.RUN_FAILED
    return {
        "ladder": {**breakdown.to_dict(found), "setting": dataclasses.asdict(setting), "sentences": sentences},
        "roofline": device_peak.to_dict(roofline) if roofline else None,
    }, status


def _attained(roofline: Roofline | None) -> float | None:
    """Returns the share of the roofline that was reached; None where that is above it, and so no bound."""
    share = roofline.share_of_bound if roofline else None
    return share if share is not None and share <= 1 else None


def _say_nothing(line: str) -> None:
    pass


def _announced(plan: Plan) -> str:
    chosen, count = plan.chosen, plan.chosen.num_devices
    kind = {"cpu": "logical CPU device", "gpu": "GPU"}[chosen.device] + "s" * (count > 1)
    return (
        f"Where does the time go? {chosen.model}, {chosen.precision}, {plan.manager}, {count} {kind}, "
        f"{chosen.batch_per_device} images each; about {in_words(plan.time_limit_seconds)}."
    )


class _Climb:
    """Runs rung after rung; what came of them is in `rungs`, and stays there if it is interrupted."""

    def __init__(
        self, plan: Plan, command: Sequence[str], clock: Callable[[], float], measure_roofline: MeasureRoofline
    ) -> None:
        chosen = plan.chosen
        store = open_store(chosen.output_dir)
        provenance = of_this_run(command, on_gpus=chosen.device == "gpu", session_id=uuid.uuid4().hex[:12])
        self.rungs: list[Rung] = []
        self._ran: dict[Part, tuple[Step, Record]] = {}
        self.roofline: Roofline | None = None
        self.about_roofline: list[str] = []
        self._measure_roofline = measure_roofline
        self.path = store.jsonl_path
        self._plan, self._clock = plan, clock
        self._end = clock() + plan.time_limit_seconds
        self._begun, self._least_seconds = 0, _LEAST_SECONDS
        self._gpus = len(provenance.inventory.gpus)
        self._runner = CellRunner(
            program=plan.program,
            store=store,
            output_dir=chosen.output_dir,
            provenance=provenance,
            timeout_seconds=plan.time_limit_seconds + _STUCK_SECONDS,
        )

    def all(self, show: Callable[[str], None]) -> None:
        """Runs everything, and shows each row when it is known."""
        runs = steps(self._plan)
        for number, one in enumerate(runs):
            self._enter(one, self._result(one, left=len(runs) + 1 - number), show)
        with _data(self._plan) as (directory, problem):
            last = step_with_data(self._plan, runs[-1], directory)
            rung = Rung(part=last.part, failed=True, reason=problem) if problem else self._result(last, left=1)
            self._enter(last, rung, show)
            self._look_again(show)
        self._set_beside_roofline()

    def _set_beside_roofline(self) -> None:
        (compute,) = [rung.images_per_sec for rung in self.rungs if rung.part is Part.COMPUTE]
        if compute is None:
            return
        self.roofline, why_not = self._measure_roofline(self._plan.chosen, compute.value)
        words = self.roofline.sentences() if self.roofline else [f"No roofline: {why_not}"]
        self.about_roofline = ["Compute, on one device, beside its roofline:", *words]

    def _look_again(self, show: Callable[[str], None]) -> None:
        """Runs the rungs around the largest cost once more, where time is left; both runs count, and how they differ.

        Not for compute and the fixed cost: they are so much more than what is below them that chance matters little.
        """
        found = Ladder(self.rungs)
        worth = [cost for cost in found.known if found.share(cost) >= advice.WORTH_A_WORD]
        doubtful = [cost for cost in worth if cost.parts[0] not in (Part.FIXED, Part.COMPUTE)]
        if not doubtful or self._end - self._clock() < 2 * self._least_seconds:
            return
        above = next(number for number, rung in enumerate(self.rungs) if rung.part is doubtful[0].parts[-1])
        below = max(number for number in range(above) if self.rungs[number].images_per_sec)
        runs = {number: self._both(self.rungs[number].part, left) for left, number in ((2, below), (1, above))}
        between = max(repeats.LEAST_SPREAD, repeats.spread(runs.values()) or 0.0)
        for number, both in runs.items():
            span = Span(repeats.rate(both), *repeats.interval(both, between))
            self.rungs[number] = dataclasses.replace(self.rungs[number], images_per_sec=span)
        show(f"\nThe two rungs around {doubtful[0].name} have run once more; with both runs:")
        for cost in Ladder(self.rungs).costs:
            number = [rung.part for rung in self.rungs].index(cost.parts[-1])
            if number >= below:
                show(advice.row(self.rungs[number], self._ran[cost.parts[-1]][0].what, cost))

    def _both(self, part: Part, left: int) -> list[Outcome]:
        """Runs a rung again in its share of the time, of which so many runs are left; returns its runs that count."""
        one, first = self._ran[part]
        again = self._run(one, max(self._least_seconds, (self._end - self._clock()) / left))
        return [_outcome(record) for record in (first, again) if rate(record) is not None]

    def _enter(self, one: Step, rung: Rung, show: Callable[[str], None]) -> None:
        self.rungs.append(rung)
        costs = Ladder(self.rungs).costs
        known = costs[-1] if costs and costs[-1].parts[-1] is rung.part else None
        show(advice.row(rung, one.what, known))

    def _result(self, one: Step, left: int) -> Rung:
        """Runs a rung in its share of the time, of which so many rungs are left; again, if it measured too little."""
        if one.why_not:
            return Rung(part=one.part, reason=one.why_not)
        record = self._run(one, max(self._least_seconds, (self._end - self._clock()) / left))
        if record.status is Status.OK and len(record.measurement.step_seconds) < MIN_STEPS_FOR_INTERVAL:
            record = self._run(one, self._least_seconds)
        self._ran[one.part] = one, record
        return self._rung(one.part, record)

    def _run(self, one: Step, seconds: float) -> Record:
        words = {**self._plan.common, **one.flags, "time_limit_seconds": f"{seconds:.0f}"}
        (cell,) = grid.cells([{name: [value] for name, value in words.items()}], lambda: self._gpus)
        record = self._runner.run(cell, self._begun) if cell.runs else self._runner.refuse(cell)
        self._begun += 1
        self._least_seconds = max(self._least_seconds, _least_seconds(record.measurement))
        return record

    def _rung(self, part: Part, record: Record) -> Rung:
        found, derived, chosen = rate(record), record.derived, self._plan.chosen
        if found is None and record.status is Status.SKIPPED:
            return Rung(part=part, reason=record.reason)
        if found is None:
            return Rung(part=part, failed=True, reason=why_failed(record))
        images = breakdown.images_of(
            part,
            num_devices=chosen.num_devices,
            batch_per_device=chosen.batch_per_device,
            at_once=self._plan.at_once,
        )
        span = Span(found, derived.images_per_sec_low, derived.images_per_sec_high)
        return Rung(part=part, images_per_sec=span, images=images)


def _outcome(record: Record) -> Outcome:
    """Returns what a run that has a rate measured."""
    steps = record.measurement.step_seconds
    return Outcome(seconds=sum(steps), images_per_step=record.measurement.images_per_step or 0, step_seconds=steps)


def _least_seconds(measurement: Measurement) -> float:
    """Returns how long a run like this must take to measure as many steps as an interval needs."""
    seconds = measurement.step_seconds
    if not seconds:
        return 0.0
    before = (measurement.startup_seconds or 0.0) + (measurement.first_step_seconds or 0.0)
    before += sum(measurement.warmup_step_seconds)
    return _MARGIN * (before + MIN_STEPS_FOR_INTERVAL * sum(seconds) / len(seconds))


@contextlib.contextmanager
def _data(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yields the directory of the user's data, or of made-up ones, which are gone in the end; and what went wrong."""
    if plan.chosen.data_dir:
        yield plan.chosen.data_dir, ""
        return
    name = specs.find(plan.chosen.model).data_name
    with tempfile.TemporaryDirectory(prefix="run_bench_doctor_") as directory, tempfile.TemporaryFile() as output:
        number = (f"--train_images={_FAKE_PHOTOS}",) if name == "imagenet" else ()
        words = [*plan.program, "data", f"make-{name}", directory, *number]
        make = subprocesses.Command(words=words, stdout=output, stderr=output)
        (ended,) = subprocesses.run(make, timeout_seconds=_STUCK_SECONDS)
        output.seek(0)
        said = output.read().decode(errors="replace").strip().splitlines() or ["nothing was said"]
        yield directory, "" if ended.returncode == 0 else f"images could not be made: {said[-1]}"
