from __future__ import annotations

import time

import psutil
import pytest

from benchmarks.machine import linux
from benchmarks.measure.run_log import RunLog, largest_resident_bytes, process_age_seconds
from benchmarks.measure.timing import Phase


@pytest.mark.parametrize(
    ("error", "advised"), [(OSError(28, "No space left on device"), "Free space there"), (KeyError("x"), "report this")]
)
def test_a_fault_of_the_program_is_no_lack_of_space(
    error: Exception, advised: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = RunLog(images_per_step=1, towers=1)
    with log.writing("The trace", "trace.json"):
        raise error
    assert advised in str(log.unsaved["The trace"])
    assert ("Traceback" in capsys.readouterr().err) == (advised == "report this")


def test_a_lack_of_memory_ends_the_run() -> None:
    log = RunLog(images_per_step=1, towers=1)
    with pytest.raises(MemoryError), log.writing("The last checkpoint", "ck"):
        raise MemoryError
    assert not log.unsaved


def test_the_first_step_and_the_warm_up_are_kept_apart_from_what_is_measured() -> None:
    log = RunLog(
        images_per_step=64,
        towers=2,
        first=Phase([9.0], [4.0]),
        warmup=Phase([3.0, 2.0], [3.0, 2.5]),
        measured=Phase([0.5, 0.25], [2.0, 1.0], ended_at=[100.75, 101.0]),
        opened_at=100.0,
    )
    log.observe(peak_host_memory_bytes=7)
    own = log.own()
    assert (own.first_step_seconds, own.warmup_step_seconds, own.step_seconds) == (9.0, [3.0, 2.0], [0.5, 0.25])
    assert (own.warmup_losses, own.losses, own.images_per_step) == ([4.0, 3.0, 2.5], [2.0, 1.0], 64)
    assert own.peak_host_memory_bytes == 7, "of the steps, not of what follows them"
    assert log.report().ends == [0.75, 1.0], "from when all were ready"


def test_memory_is_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux, "table", lambda path: {"VmHWM": 3, "VmRSS": 2})
    assert largest_resident_bytes() == 3 * 1024


def test_the_age_of_a_process_is_counted_from_its_start() -> None:
    known = time.time() - psutil.Process().create_time()  # off by up to a second
    assert process_age_seconds() == pytest.approx(known, abs=3.0)
