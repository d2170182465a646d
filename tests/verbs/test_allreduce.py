"""Reductions timed on their own."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import tensorflow as tf

from benchmarks.cluster import cluster_spec
from benchmarks.config import flag, run_flags
from benchmarks.devices import device_plan
from benchmarks.errors import BenchError, ExitStatus, OutOfMemoryError, OverdueError
from benchmarks.machine import hardware
from benchmarks.machine.provenance import of_this_run
from benchmarks.microbench import allreduce, allreduce_verb
from benchmarks.microbench.allreduce_report import Message, ReductionReport, Timing, of_size, winner
from benchmarks.process.deadlines import NO_DEADLINES
from benchmarks.process.tensorflow_setup import Devices
from models import specs
from results.store import Store, StoreError
from tests.support.commands import Records, RunBench
from variable_mgr.modifiers import Modifiers
from variable_mgr.place import Place, Turn
from variable_mgr.reductions import all_reduce_spec, wrappers
from variable_mgr.reductions.algorithm_catalog import ALGORITHMS, Algorithm
from variable_mgr.reductions.all_reduce import AllReduce, Reduction, TowerTensors


def _measure(message: Message, reductions: Sequence[str] | dict[str, Reduction], towers: int = 2) -> dict[str, Timing]:
    place, config = cluster_spec.place("cpu", towers), device_plan.session_config(Devices(num_devices=towers))
    if not isinstance(reductions, dict):
        numbered = enumerate(reductions)
        reductions = {spec: wrappers.reduction(place, Modifiers(), spec, first_number=100 * n) for n, spec in numbered}
    return allreduce.measure(message, reductions, place, config, warmup_rounds=1, rounds=3, enough_seconds=60.0)


@pytest.mark.parametrize("towers", [2, 3, 4])
def test_every_reduction_is_timed_and_right(towers: int) -> None:
    message = Message("odd", ((5, 7), (3,), (1,)))
    here = [name for name in ALGORITHMS if name != "nccl" and (name != "rechd" or towers != 3)]
    timings = _measure(message, [*here, "collective#2"], towers)
    for timing in timings.values():
        assert len(timing.seconds) == 3
        assert timing.error is not None and timing.error < 1e-6
        assert not timing.failure


def test_what_is_wrong_is_seen_and_what_fails_spoils_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_tower_only(values: Sequence[tf.Tensor], place: Place, turn: Turn) -> list[tf.Tensor]:
        return [values[0]] * len(values)

    def nowhere(values: Sequence[tf.Tensor], place: Place, turn: Turn) -> list[tf.Tensor]:
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_sum(values[0]) > math.inf, ["no such luck"])]):
            return [tf.add_n(values) / len(values)] * len(values)

    for name, compute in (("first_only", first_tower_only), ("nowhere", nowhere)):
        monkeypatch.setitem(ALGORITHMS, name, Algorithm(name, "is wrong", compute))
    timings = _measure(of_size(4096), ["first_only", "pscpu", "nowhere"])
    assert timings["first_only"].error > 0.1
    assert "no such luck" in str(timings["nowhere"].failure) and timings["nowhere"].error is None
    assert timings["pscpu"].error < 1e-6 and len(timings["pscpu"].seconds) == 3


def test_what_no_memory_holds_is_a_failure_of_each() -> None:
    class NeedsMuch(AllReduce):
        def mean(self, towers: TowerTensors) -> tuple[list[list[tf.Tensor]], list[tf.Operation]]:
            raise tf.errors.ResourceExhaustedError(None, None, "failed to allocate memory")

    ranges, place = all_reduce_spec.parse("pscpu"), Place(("/cpu:0", "/cpu:1"), "/cpu:0")
    for timing in _measure(
        of_size(4), {"first": AllReduce(ranges, place), "second": NeedsMuch(ranges, place)}
    ).values():
        assert isinstance(timing.failure, OutOfMemoryError) and timing.error is None
        assert str(timing.failure) == "Out of memory: failed to allocate memory."


@pytest.mark.parametrize(("enough_seconds", "rounds"), [(5.5, 6), (0.0, 3)])
def test_rounds_end_when_enough_was_measured_without_the_warm_up(
    monkeypatch: pytest.MonkeyPatch, enough_seconds: float, rounds: int
) -> None:
    """In the warm-up, NCCL's communicators may take seconds."""
    durations, clock = iter([100.0, *[1.0] * 50]), [0.0]

    def run() -> None:
        clock[0] += next(durations)

    monkeypatch.setattr(allreduce.time, "perf_counter", lambda: clock[0])
    timings = {"nccl": Timing()}
    allreduce._take_rounds("4", {"nccl": run}, timings, 1, 50, enough_seconds, NO_DEADLINES)
    assert timings["nccl"].seconds == [1.0] * rounds


def test_messages() -> None:
    assert [(m.name, m.size_bytes) for m in map(of_size, (4, 1024, 2**21, 2**30))] == [
        ("4", 4),
        ("1K", 1024),
        ("2M", 2**21),
        ("1G", 2**30),
    ]
    vgg = allreduce.of_model("vgg16")
    assert vgg.size_bytes == 4 * (specs.find_model("vgg16").parameters + 4097)  # with the background class
    assert len(vgg.shapes) == 32


def _resolve(*arguments: str) -> allreduce_verb.AllReducePlan:
    return allreduce_verb.allreduce_options(
        run_flags.unset(flag.parse(arguments, allreduce_verb.ALLREDUCE_FLAGS).values), lambda: 0
    )


def test_defaults_and_choices() -> None:
    plan = _resolve("--device=cpu", "--num_gpus=3")
    assert set(plan.specs) | set(plan.cannot[3]) == set(ALGORITHMS)
    assert {"nccl", "rechd"} == set(plan.cannot[3])
    assert plan.sizes_bytes == tuple(2**n for n in range(10, 27))
    assert plan.models == ("alexnet", "inception3", "resnet50", "vgg16")
    chosen = _resolve(
        "--device=cpu",
        "--num_gpus=2",
        "--all_reduce_spec=xring#2,pscpu",
        "--min_bytes=100",
        "--max_bytes=1k",
        "--model=vgg16",
    )
    assert (chosen.specs, chosen.sizes_bytes) == (("xring#2", "pscpu"), (128, 256, 512, 1024))
    assert chosen.models == ("vgg16",)
    assert _resolve("--device=cpu", "--num_gpus=2", "--model=none").models == ()


def test_a_reduction_that_some_numbers_of_devices_cannot_run_is_measured_on_the_others() -> None:
    plan = _resolve("--device=cpu", "--num_gpus=4,1,3,3", "--all_reduce_spec=pscpu,PSCPU,rechd")
    assert (list(plan.places), plan.chosen.devices.num_devices, plan.specs) == ([3, 4], 4, ("pscpu", "rechd"))
    assert {count: set(reasons) for count, reasons in plan.cannot.items()} == {3: {"rechd"}, 4: set()}


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"a": [1.0, 2.0, 4.0], "b": [1.5, 3.01, 6.0], "c": [2.0, 4.1, 8.0]}, ("a", "a by 50%")),
        ({"a": [1.0, 2.0, 4.0], "b": [1.5, 1.5, 4.0]}, (None, "no clear winner: a, b")),
        ({name: [1.0 + (name == "c")] * 3 for name in "bacde"}, (None, "no clear winner: b, a, d, and 1 more")),
        ({"a": [1.0, 1.0], "b": [2.0, 2.0]}, (None, "no clear winner: a, b")),
        ({"a": [1.0] * 99 + [50.0], "b": [1.4] * 100}, (None, "no clear winner: b, a")),
        ({"a": [1.0]}, ("a", "a (the only one)")),
        ({}, (None, "none is valid")),
    ],
    ids=lambda value: "",
)
def test_a_winner_leads_in_every_comparison_of_paired_rounds(
    seconds: dict[str, list[float]], expected: tuple[str | None, str]
) -> None:
    assert winner(seconds) == expected


@pytest.mark.row("G3.5")
def test_several_numbers_of_devices_share_a_table_of_winners(
    run_bench: RunBench, records: Records, tmp_path: Path
) -> None:
    few = ("--num_gpus=1,2,3", "--max_bytes=1K", "--model=none", "--all_reduce_spec=pscpu,rechd", "--num_batches=3")
    done = run_bench("allreduce", "--device=cpu", *few).succeeded()
    found = [(r["config"]["num_devices"], r["config"]["modifiers"]["all_reduce_spec"], r["status"]) for r in records()]
    assert sorted(found) == [(2, "pscpu", "ok"), (2, "rechd", "ok"), (3, "pscpu", "ok"), (3, "rechd", "skipped")]
    with (tmp_path / "out" / "results.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["status"] == "ok"]
    assert done.stdout.count(" ok") == len(rows) == 3
    assert all(row["message"] == "1K" and float(row["busbw_gb_per_sec"]) > 0 for row in rows)
    lines = done.stdout.splitlines()
    (header,) = (line for line in lines if line.startswith("message ") and "2 devices " in line)
    assert header.split("  ")[-1].strip() == "3 devices"
    (row,) = (line for line in lines if line.startswith("1K "))
    assert row.endswith("pscpu (the only one)") and "1 device has nothing to exchange" in done.stderr
    assert any(line.startswith("rechd cannot run on 3 devices: ") for line in lines)
    for record in records():
        number = record["config"]["num_devices"]
        assert record["placement"]["devices"].startswith(f"{number} logical CPU devices sharing ")


def test_when_time_is_over_no_message_is_begun(run_bench: RunBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "2")
    done = run_bench(*SMALL, "--budget_seconds=1e-9", "--all_reduce_spec=pscpu")
    assert done.status == ExitStatus.RUN_FAILED, "nothing was measured"
    assert "--budget_seconds=1e-09 is over: 3 of 3 are left out." in done.stderr
    assert " ok" not in done.stdout
    assert "TF_NUM_INTEROP_THREADS=2: it sets TensorFlow's threads" in done.stderr


SMALL = ("allreduce", "--device=cpu", "--num_gpus=2", "--max_bytes=2K", "--model=trivial", "--num_batches=5")


def test_json_is_records_alone(run_bench: RunBench, records: Records) -> None:
    done = run_bench(*SMALL, "--output_format=json", "--compact_gradient_transfer").succeeded()
    every = records()
    assert [json.loads(line) for line in done.stdout.splitlines()] == every
    (skipped,) = (record for record in every if record["status"] == "skipped")
    assert skipped["config"]["modifiers"]["all_reduce_spec"] == "nccl" and skipped["reason"]
    measured = [record for record in every if record["status"] == "ok"]
    assert len(measured) == 3 * 6  # 1K, 2K and a model; all but nccl
    for record in measured:
        measurement, derived = record["measurement"], record["derived"]
        assert record["kind"] == "allreduce" and derived["images_per_sec"] is None
        assert measurement["largest_error"] > 1e-6, "sent as float16"
        mean_seconds = sum(measurement["step_seconds"]) / len(measurement["step_seconds"])
        gb_per_sec = measurement["message_bytes"] / mean_seconds / 1e9
        assert derived["algorithm_bandwidth_gb_per_sec"] == pytest.approx(gb_per_sec)
        assert derived["bus_bandwidth_gb_per_sec"] == pytest.approx(gb_per_sec)  # of two devices, 2 (n-1)/n is 1
    assert len({record["identity"]["config_key"] for record in measured}) == len(measured)


def _report(directory: Path, *arguments: str) -> ReductionReport:
    chosen = _resolve("--device=cpu", "--num_gpus=2", f"--output_dir={directory}", *arguments).chosen
    return ReductionReport(
        Store(directory),
        of_this_run([], on_gpus=False),
        {2: "two devices"},
        devices=chosen.devices,
        precision=chosen.computing.precision,
        modifiers=chosen.variables.modifiers,
        as_text=True,
    )


@pytest.mark.parametrize("cores", [1, 2])
def test_devices_that_share_cores_are_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cores: int
) -> None:
    monkeypatch.setattr(hardware, "usable_cores", lambda: cores)
    _report(tmp_path).close()
    assert ("2 logical CPU devices share 1 core" in capsys.readouterr().err) == (cores == 1)


def test_what_fails_or_is_wrong_is_a_row_and_a_record_and_never_the_fastest(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = _report(tmp_path, "--all_reduce_spec=pscpu,psgpu,xring,hierarchical")
    timings = {
        "pscpu": Timing([0.3, 0.4, 0.5], 1e-7),
        "psgpu": Timing([0.1] * 3, 1e-3),
        "xring": Timing([], None, BenchError("no such luck")),
        "hierarchical": Timing([], None, OutOfMemoryError("failed to allocate")),
    }
    report.add(of_size(2**30), 2, timings)
    assert report.close() == ExitStatus.RUN_FAILED
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [record["status"] for record in records] == ["ok", "invalid", "crash", "oom"]
    assert [record["reason"] for record in records[1:]] == [
        "The means are wrong: error 0.001, at most 1e-06.",
        "no such luck",
        "failed to allocate",
    ]
    printed = capsys.readouterr()
    (row,) = (line for line in printed.out.splitlines() if "pscpu *" in line)
    assert row.split()[-5:] == ["400.000", "2.68", "2.68", "1e-07", "ok"], "of the mean time"
    assert (
        "INVALID: The means are wrong" in printed.out
        and "Failed or wrong on these devices: 3 reductions." in printed.err
    )


def test_a_message_that_was_begun_is_a_row_if_the_measurement_ends(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = _report(tmp_path)
    overdue = OverdueError("All-reduce of 8 by psgpu took longer than 600 s.")
    report.add(of_size(4), 2, {"psgpu": Timing([0.1] * 3, 1e-7)})
    report.give_up(of_size(8), 2, ["psgpu", "xring"], overdue)
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(record["status"], record["config"]["message"]) for record in records] == [
        ("ok", "4"),
        ("timeout", "8"),
        ("timeout", "8"),
    ], "of no other message"
    assert capsys.readouterr().out.count(f"TIMEOUT: {overdue}") == 2


def test_records_that_cannot_be_stored_are_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(self: Store, *records: object) -> list[str]:
        raise StoreError("The record could not be stored: No space left on device.")

    report = _report(tmp_path)
    monkeypatch.setattr(Store, "append", full)
    report.add(of_size(4), 2, {"pscpu": Timing([0.1], 0.0)})
    assert report.close() == ExitStatus.RUN_FAILED
    shown = capsys.readouterr()
    assert '"kind":"allreduce"' in shown.err and "Failed or wrong" not in shown.err and "records:" not in shown.out
