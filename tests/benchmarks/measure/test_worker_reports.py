from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.measure.run_log import RunLog
from benchmarks.measure.worker_reports import WorkerReport, together
from results.measurement import STEP_NUMBERS, Measurement, derive

IMAGES = 4


def report(
    *ends: float, losses: list[float | None] | None = None, staleness: list[int] | None = None, **fields: Any
) -> WorkerReport:
    """A worker whose steps ended so; each took the time since the one before, the first since 0."""
    seconds = [end - begin for begin, end in itertools.pairwise([0.0, *ends])]
    alone = fields.pop("asynchronous", False)
    return WorkerReport(
        measurement=Measurement(
            step_seconds=fields.pop("step_seconds", seconds),
            losses=[1.0] * len(ends) if losses is None else losses,
            **{"images_per_step": IMAGES, **fields},
        ),
        ends=list(ends),
        asynchronous=alone,
        staleness=staleness or [],
        compute_seconds=[0.5 * s for s in seconds],
        placement={},
    )


def asynchronous(*ends: float, staleness: list[int] | None = None, **fields: Any) -> WorkerReport:
    """A worker that goes its own way."""
    return report(*ends, asynchronous=True, staleness=[0] * len(ends) if staleness is None else staleness, **fields)


# Workers that step together.


def test_a_global_step_ends_with_the_last_worker() -> None:
    both = together([report(1.0, 2.0, 3.5), report(1.25, 1.75, 4.0)])
    assert both.step_seconds == [1.25, 0.75, 2.0]
    assert sum(both.step_seconds) == 4.0, "the window from all being ready to the last end"
    assert both.worker_step_seconds == [[1.0, 1.0, 1.5], [1.25, 0.5, 2.25]]
    assert both.worker_compute_seconds == [[0.5, 0.5, 0.75], [0.625, 0.25, 1.125]]
    assert (both.tower_step_seconds, both.staleness_counts) == ([], [])


def test_images_are_of_all_workers() -> None:
    both = together([report(1.0, 2.0), report(2.0, 4.0, images_per_step=8)])
    assert both.images_per_step == 12
    assert derive(both, 2).images_per_sec == pytest.approx(2 * 12 / 4.0)


def test_losses_are_means_where_all_are_known() -> None:
    first = report(1.0, 2.0, 3.0, losses=[1.0, None, 5.0], warmup_losses=[8.0, None])
    second = report(1.0, 2.0, 3.0, losses=[2.0, 4.0, 7.0], warmup_losses=[4.0, 3.0])
    both = together([first, second])
    assert both.losses == [1.5, None, 6.0]
    assert both.warmup_losses == [6.0, None]


def test_a_step_counts_only_if_every_worker_took_part() -> None:
    both = together([report(1.0, 2.0, 3.0), report(1.0, 2.5), report(0.5, 2.0, 2.5, 3.0)])
    assert both.step_seconds == [1.0, 1.5]
    assert len(both.losses) == 2
    assert [len(seconds) for seconds in both.worker_step_seconds] == [3, 2, 4]
    assert together([report(1.0), report()]).step_seconds == []


def test_the_slowest_to_start_and_the_largest_are_what_counts() -> None:
    one = report(
        1.0, startup_seconds=3.0, first_step_seconds=2.0, peak_host_memory_bytes=10, skipped_records=1,
        startup_phases_seconds={"Python": 3.0}, telemetry=[{"gpus": []}],
        peak_gpu_memory_bytes=4, input_wait_seconds=[0.25], top_1_accuracies=[0.5], top_5_accuracies=[1.0],
    )  # fmt: skip
    other = report(
        1.0, startup_seconds=5.0, first_step_seconds=1.0, peak_host_memory_bytes=30, skipped_records=2,
        startup_phases_seconds={"Python": 5.0}, telemetry=[{"failure": "gone"}],
        replica_drift=0.0, input_wait_seconds=[0.75], top_1_accuracies=[0.25], top_5_accuracies=[0.5],
    )  # fmt: skip
    both = together([one, other])
    assert (both.startup_seconds, both.first_step_seconds, both.peak_host_memory_bytes) == (5.0, 2.0, 30)
    assert both.startup_phases_seconds == {"Python": 5.0}, "of the latest"
    assert both.telemetry == [{"gpus": []}, {"failure": "gone"}], "of each"
    assert (both.skipped_records, both.replica_drift, both.peak_gpu_memory_bytes) == (3, 0.0, 4)
    assert (both.input_wait_seconds, both.top_1_accuracies, both.top_5_accuracies) == ([0.75], [0.375], [0.75])
    unknown = together([report(1.0), report(1.0)])
    assert (unknown.startup_seconds, unknown.skipped_records, unknown.replica_drift) == (None, None, None)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_number_of_a_step_reaches_the_measurement(asynchronous: bool) -> None:
    logs = [RunLog(images_per_step=1, towers=1, asynchronous=asynchronous) for _ in range(2)]
    for worker, log in enumerate(logs, start=1):
        log.measured.step_seconds, log.measured.ended_at = [1.0], [1.0]
        log.measured.observed = {name: [float(worker)] for name in STEP_NUMBERS}
    combined = {"mean": [1.5], "max": [1.5 if asynchronous else 2.0], "first": [1.0], "each": [[1.0], [2.0]]}
    both = together([log.report() for log in logs])
    for name, rule in STEP_NUMBERS.items():
        assert getattr(both, name) == combined[rule], name
        assert getattr(logs[1].own(), name) == ([] if rule == "each" else [2.0])


# Workers that go their own way.


def test_as_many_completions_as_workers_are_a_global_step() -> None:
    fast = asynchronous(1.0, 2.0, 3.0, 4.0, losses=[1.0, 2.0, 3.0, 4.0], staleness=[0, 1, 1, 1])
    slow = asynchronous(2.5, 5.0, losses=[10.0, 20.0], staleness=[3, 4])
    both = together([fast, slow])
    # The window closes at 4.0: 1.0 and 2.0 are a global step, then 2.5 and 3.0; 4.0 is alone and does not count.
    assert both.step_seconds == pytest.approx([2 / 1.4] * 2), "1.4 worker steps in a second"
    assert both.losses == [1.5, 6.5]
    assert both.images_per_step == 2 * IMAGES
    assert both.tower_step_seconds == [[1.0, 1.0, 1.0], [2.5]]
    assert both.staleness_counts == [1, 2, 0, 1]
    assert both.worker_step_seconds == [[1.0] * 4, [2.5, 2.5]]


def test_workers_that_only_infer_wait_for_no_other_and_have_no_staleness() -> None:
    both = together([report(1.0, 2.0, asynchronous=True), report(0.5, 1.0, 1.5, 2.0, asynchronous=True)])
    assert both.step_seconds == pytest.approx([2 / 3] * 3)
    assert both.tower_step_seconds == [[1.0, 1.0], [0.5] * 4]
    assert both.staleness_counts == []


@pytest.mark.parametrize("seconds", [(1.0, 2.0), (1.0, 1.0, 2.0), (1.0, 1.3, 1.7, 3.1), (1.0, 40.0)])
def test_the_rate_of_steady_workers_is_the_sum_of_their_own(seconds: Sequence[float]) -> None:
    both = together([asynchronous(*(own * number for number in range(1, 11))) for own in seconds])
    assert derive(both, 2).images_per_sec == pytest.approx(sum(IMAGES / own for own in seconds))


def test_a_window_without_a_global_step_has_no_rate() -> None:
    for reports in (
        [asynchronous(), asynchronous()],
        [asynchronous(-1.0), asynchronous(1.0)],
        [asynchronous(1.0), asynchronous(9.0)],
    ):
        both = together(reports)
        assert (both.step_seconds, both.losses, both.staleness_counts) == ([], [], [])
        assert both.tower_step_seconds == [[], []]
        assert derive(both, 2).images_per_sec is None


def test_an_unknown_loss_makes_its_global_step_unknown() -> None:
    both = together([asynchronous(1.0, 3.0, losses=[None, 1.0]), asynchronous(2.0, 3.0, losses=[1.0, 2.0])])
    assert both.losses == [None, 1.5]


own_ends = st.lists(st.integers(1, 64), min_size=1, max_size=30)


@given(st.lists(st.tuples(st.integers(-200, 100), own_ends), min_size=2, max_size=5))
@example([(3, [1]), (1, [1, 1, 1]), (3, [1])])
def test_nothing_is_counted_that_was_not_completed_in_the_window(workers: list[tuple[int, list[int]]]) -> None:
    # Sixteenths of a second: all sums are exact.
    ends = [[(begin + sum(steps[: n + 1])) / 16 for n in range(len(steps))] for begin, steps in workers]
    reports = [
        asynchronous(*of_one, staleness=list(range(len(of_one))), step_seconds=[s / 16 for s in steps])
        for of_one, (_, steps) in zip(ends, workers, strict=True)
    ]
    all_together = together(reports)
    closed = min(of_one[-1] for of_one in ends)
    inside = sorted(end for of_one in ends for end in of_one if 0 < end <= closed)
    steps = len(all_together.step_seconds)
    counted = [len(seconds) for seconds in all_together.tower_step_seconds]
    assert steps == len(inside) // len(workers)
    assert sum(counted) == sum(all_together.staleness_counts) == steps * len(workers)
    assert sum(counted) * IMAGES == steps * all_together.images_per_step
    last = inside[steps * len(workers) - 1] if steps else 0.0
    assert sum(all_together.step_seconds) <= last + 1e-9, "what is in progress then has been counted before"
    # A worker that begins later is taken to be in its first step from the start.
    of_workers = [[0.0, *(end for end in of_one if end > 0)] for of_one in ends]
    longest = max((end - begin for of_one in of_workers for begin, end in itertools.pairwise(of_one)), default=0.0)
    assert sum(all_together.step_seconds) >= last - longest - 1e-9
    assert all(seconds >= 0 for seconds in all_together.step_seconds)
    for of_one, number, (_, own_steps) in zip(ends, counted, workers, strict=True):
        before = sum(end <= 0 for end in of_one)
        worker = [s / 16 for s in own_steps[before : before + number]]
        assert worker in all_together.tower_step_seconds


def test_waits_for_images_are_of_the_steps_that_count() -> None:
    fast = asynchronous(*(1.0 * n for n in range(1, 11)), input_wait_seconds=[0.0] * 10)
    slow = asynchronous(*(5.0 * n for n in range(1, 11)), input_wait_seconds=[4.0] * 10)
    both = together([fast, slow])
    assert len(both.input_wait_seconds) == len(both.step_seconds)
    # Ten steps of 1 s without a wait, and two of 5 s that wait 4 s.
    assert derive(both, 2).input_wait_share == pytest.approx(8 / 20)


# Over the wire.


def test_a_report_survives_the_wire() -> None:
    full = report(
        1.0, 2.0, losses=[1.0, None], staleness=[0, 2], input_stages={"read": 10.0}, top_1_accuracies=[0.5, 0.5],
        tower_step_seconds=[[1.0], [1.0]], staleness_counts=[1, 0, 1], warmup_losses=[None], replica_drift=0.0,
    )  # fmt: skip
    full = dataclasses.replace(full, placement={"devices": "1 CPU", "bytes": {"cpu:0": 12}})
    for sent in (full, report(1.0), report(), asynchronous()):
        assert WorkerReport.from_message(json.loads(json.dumps(sent.to_message()))) == sent


# Who is slowest.


@pytest.mark.row("S3.2")
@pytest.mark.fault(
    "R8", "one of several workers takes longer for its steps", survives="the record names it, with its straggler ratio"
)
@pytest.mark.parametrize("of_their_own", [False, True])
def test_the_slowest_worker_is_named_with_how_much_it_is_slower(of_their_own: bool) -> None:
    seconds = [[1.0] * 8, [2.0] * 8]
    observed = {"tower_step_seconds": seconds} if of_their_own else {"worker_compute_seconds": seconds}
    measured = Measurement(images_per_step=1, step_seconds=[9.0], worker_step_seconds=[[9.0], [9.0]], **observed)
    derived = derive(measured, 2)
    assert (derived.slowest_worker, derived.straggler_ratio) == (1, 2.0)


def test_the_towers_of_all_workers_are_numbered_in_order() -> None:
    towers = [[[1.0] * 9, [1.0] * 9], [[1.0] * 9, [3.0] * 9]]
    both = together([report(1.0, tower_compute_seconds=own) for own in towers])
    assert both.tower_compute_seconds == [*towers[0], *towers[1]]
    assert derive(both, 4).slowest_tower == 3
