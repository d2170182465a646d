from __future__ import annotations

import pytest

from benchmarks.measure.run_log import RunLog


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
