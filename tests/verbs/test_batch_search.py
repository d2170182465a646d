"""The search for the largest batch, with simulated memory, and how `--batch_size=auto` is resolved."""

from __future__ import annotations

import json
import sys
import tempfile
import types
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks.config import flag, run_flags
from benchmarks.config.config import Config
from benchmarks.errors import BenchError, OutOfMemoryError, UsageError
from benchmarks.machine import linux
from benchmarks.measure import run_log
from benchmarks.process import subprocesses
from benchmarks.sweep import grid, isolated_run
from benchmarks.sweep.grid import Cell
from benchmarks.tune import batch_size
from benchmarks.tune.batch_size import Probed, largest_that_fits
from results.record import Record, Status
from tests.support.commands import RunBench
from tests.support.records import fake_run

MEGABYTE = 2**20


class Memory:
    """Simulated memory: a batch fits if there is room for a fixed part and its images."""

    def __init__(self, room: int, *, fixed: int = 500, per_image: int = 10, tells: bool = True) -> None:
        self._room, self._fixed, self._per_image, self._tells = room, fixed, per_image, tells
        self.tried: list[int] = []

    def probe(self, images: int) -> Probed:
        self.tried.append(images)
        peak = self._fixed + self._per_image * images
        if peak > self._room:
            return Probed(False, reason="oom")
        return Probed(True, peak * MEGABYTE if self._tells else None)


@pytest.mark.parametrize("first", [1, 3, 32, 100])
@pytest.mark.parametrize("truth", [1, 2, 7, 8, 9, 17, 63, 64, 101, 1000, 4000])
def test_the_largest_is_found_from_any_first_batch(first: int, truth: int) -> None:
    memory = Memory(500 + 10 * truth)
    largest, limit = largest_that_fits(first, memory.probe)
    assert largest == (truth // 8 * 8 if truth >= 8 else truth)
    assert "do not fit: oom" in limit
    assert len(memory.tried) == len(set(memory.tried)) <= 22, "no batch is tried twice"


def test_doubling_then_halving_in_multiples_of_eight() -> None:
    memory = Memory(500 + 10 * 90)
    assert largest_that_fits(16, memory.probe)[0] == 88
    assert memory.tried == [16, 32, 64, 128, 96, 80, 88]


def test_doubling_ends() -> None:
    memory = Memory(10**9)
    assert largest_that_fits(100, memory.probe) == (4096, "More than 4096 images are not tried.")
    assert memory.tried[-1] == 4096
    assert largest_that_fits(5000, memory.probe)[0] == 5000, "a larger default of the model is tried"
    assert largest_that_fits(8, Memory(10**9).probe, headroom=0.1)[0] == 4096, "no batch failed"


@pytest.mark.parametrize("per_image", [1, 10, 100])
@pytest.mark.parametrize("fixed", [0, 500, 5000])
def test_no_trial_exceeds_the_memory_of_the_host(per_image: int, fixed: int) -> None:
    room = 10_000
    memory = Memory(10**9, fixed=fixed, per_image=per_image)
    largest, limit = largest_that_fits(32, memory.probe, room_bytes=room * MEGABYTE)
    assert max(fixed + per_image * images for images in memory.tried) <= room
    if "may not fit into 9.8 GiB of host memory" in limit:
        assert (fixed + per_image * largest) * (largest + 16) / largest > room, "nearly all of the room is used"
    else:
        assert largest == 4096


@pytest.mark.parametrize(("truth", "left"), [(1, 1), (2, 1), (5, 4), (8, 7), (16, 8), (96, 80), (1000, 896)])
def test_headroom_leaves_at_least_a_tenth_free(truth: int, left: int) -> None:
    largest, limit = largest_that_fits(truth, Memory(500 + 10 * truth).probe, headroom=0.1)
    assert largest == left
    assert (f"{truth} fit, and 10% is left free" in limit) == (truth > 1)


def test_without_measured_peaks_no_memory_is_predicted() -> None:
    memory = Memory(10**9, tells=False)
    assert largest_that_fits(8, memory.probe, room_bytes=1.0)[0] == 4096


class Trials:
    """Replaces the processes: batches of up to `most` images fit, larger ones end with the status `otherwise`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.otherwise = (Status.OUT_OF_MEMORY, "Out of memory")
        self.cells: list[Cell] = []
        self.directories: set[str] = set()
        self.now = 0.0
        self.seconds_left_out: list[float] = []

    def run(self, runner: isolated_run.CellRunner, cell: Cell) -> Record:
        self.cells.append(cell)
        self.directories.add(runner.output_dir)
        self.now += 1000.0
        images = cell.config.workload.batch_per_device
        if images > self.most:
            return fake_run(status=self.otherwise[0], reason=self.otherwise[1])
        made = fake_run()
        peak = (500 + images) * MEGABYTE
        return replace(made, measurement=replace(made.measurement, peak_host_memory_bytes=peak))


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trials:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(linux, "available_bytes", lambda: 2**40)
    made = Trials(100)
    monkeypatch.setattr(batch_size, "time", types.SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr(run_log, "leave_out", made.seconds_left_out.append)
    monkeypatch.setattr(isolated_run.CellRunner, "run_cell", lambda runner, cell, what: made.run(runner, cell))
    return made


AUTO = ("--batch_size=auto", "--device=cpu", "--model=trivial")


def _resolve(*arguments: str, gpus: int = 0) -> Config:
    return batch_size.resolve_batch_size(flag.parse([*AUTO, *arguments], run_flags.RUN_FLAGS).values, [], lambda: gpus)


def test_auto_becomes_a_plain_number_with_a_notice(trials: Trials) -> None:
    resolved = _resolve("--num_batches=7", "--optimizer=adam", "--precision=bf16", "--output_dir=kept")
    assert resolved.workload.batch_per_device == 96
    assert resolved.length.num_batches == 7, "the run itself has the requested length"
    assert resolved.notices[-1].startswith(
        "--batch_size=auto: 96 images per device. 104 do not fit: oom. Out of memory"
    )
    assert [cell.config.workload.batch_per_device for cell in trials.cells] == [32, 64, 128, 96, 112, 104]
    assert trials.directories == {"kept/batch_trials"}
    assert trials.seconds_left_out == [1000.0 * len(trials.cells)], "trials do not count as time of the run"
    for cell in trials.cells:
        assert {"--num_batches=2", "--optimizer=adam", "--precision=bf16"} <= set(cell.arguments)


def test_seconds_that_are_left_out_do_not_count_in_the_age_of_a_process() -> None:
    before = run_log.process_age_seconds()
    run_log.leave_out(1e6)
    try:
        assert before - 1e6 <= run_log.process_age_seconds() < before
    finally:
        run_log.leave_out(-1e6)
    assert run_log.process_age_seconds() >= before


def test_a_directory_that_cannot_be_written_is_refused_before_the_search(trials: Trials) -> None:
    with pytest.raises(UsageError):
        _resolve("--output_dir=/proc/nowhere")
    assert not trials.cells


@pytest.mark.parametrize("reason", ["InternalError: no algorithm worked", "Ended by signal 9 (Killed)."])
def test_a_crash_counts_as_too_large_if_a_smaller_batch_has_run(trials: Trials, reason: str) -> None:
    trials.otherwise = (Status.CRASH, reason)
    resolved = _resolve()
    assert resolved.workload.batch_per_device == 96
    assert f"104 do not fit: crash. {reason}" in resolved.notices[-1]


@pytest.mark.parametrize(
    ("words", "gpus", "images", "limit"),
    [
        ([], 0, 288, "may not fit into 0.8 GiB of host memory."),  # of (800 - 500)
        (["--device=gpu"], 1, 896, "1000 fit, and 10% is left free at least."),
    ],
    ids=["host", "GPU"],
)
def test_the_host_keeps_a_fifth_of_its_memory_and_a_gpu_a_tenth(
    trials: Trials, monkeypatch: pytest.MonkeyPatch, words: list[str], gpus: int, images: int, limit: str
) -> None:
    monkeypatch.setattr(linux, "available_bytes", lambda: 1000 * MEGABYTE)
    trials.most = 1000
    resolved = _resolve(*words, gpus=gpus)
    assert resolved.workload.batch_per_device == images and limit in resolved.notices[-1]


def test_a_batch_whose_losses_are_not_finite_fits() -> None:
    invalid = replace(fake_run(), status=Status.INVALID, reason="Losses are NaN.")
    assert batch_size._probed(invalid, 8, smallest_that_fits=float("inf")).fits


def test_a_killed_process_counts_as_too_large_even_before_any_batch_has_run(trials: Trials) -> None:
    trials.otherwise, trials.most = (Status.CRASH, "Ended by signal 9 (Killed)."), 10
    assert _resolve().workload.batch_per_device == 10 // 8 * 8


@pytest.mark.parametrize(
    ("otherwise", "most", "images"),
    [((Status.CRASH, "Ended by signal 11"), 10, 32), ((Status.INTERRUPTED, ""), 100, 128)],
)
def test_other_failures_end_the_search(trials: Trials, otherwise: tuple[Status, str], most: int, images: int) -> None:
    trials.otherwise, trials.most = otherwise, most
    with pytest.raises(BenchError, match=f"the trial with {images} images failed"):
        _resolve()


def test_if_no_batch_fits_the_search_fails(trials: Trials) -> None:
    trials.most = 0
    with pytest.raises(OutOfMemoryError, match="not even one image fits. 1 do not fit: oom"):
        _resolve()


def test_auto_is_an_impossible_cell_of_a_grid() -> None:
    auto, eight = grid.cells([{"batch_size": ["auto", "8"], "device": ["cpu"]}], lambda: 0)
    assert "found by trying" in auto.why_not and eight.config.workload.batch_per_device == 8


def test_files_that_the_kernel_holds_in_memory_are_available(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    for name, text in {"max": "100\n", "current": "60\n", "stat": "anon 50\ninactive_file 10\n"}.items():
        (group / f"memory.{name}").write_text(text)
    assert linux.available_bytes(tmp_path) == 50


@pytest.mark.process
@pytest.mark.parametrize("first", [True, False])
def test_a_process_may_be_the_first_to_be_killed(first: bool) -> None:
    program = "print(open('/proc/self/oom_score_adj').read().strip())"
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        words = [sys.executable, "-c", program]
        command = subprocesses.Command(words=words, stdout=out, stderr=err, first_to_be_killed=first)
        subprocesses.supervise(command, timeout_seconds=60)
        out.seek(0)
        own = Path("/proc/self/oom_score_adj").read_text().strip()
        assert out.read().decode().strip() == ("1000" if first else own)


@pytest.mark.seldom
def test_real_trials(run_bench: RunBench) -> None:
    words = ("--model=mlp", "--device=cpu", "--batch_size=auto", "--num_batches=3", "--output_format=json")
    done = run_bench(*words).succeeded()
    record = json.loads(done.stdout)
    assert record["config"]["batch_per_device"] == 4096
    assert "More than 4096 images are not tried" in done.stderr
    assert any("--batch_size=auto: 4096 images per device" in warning for warning in record["warnings"])
