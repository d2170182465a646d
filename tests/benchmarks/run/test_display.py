from __future__ import annotations

import json
import re

import pytest

from benchmarks.console import TerminalProgress
from benchmarks.measure.timing import Phase
from benchmarks.run.display import Display, TextDisplay, step_line, total_line
from tests.support.records import make_record


def test_lines_are_the_peers_to_the_byte() -> None:
    assert total_line(1234.5) == "total images/sec: 1234.50"
    assert step_line(10, [0.5, 0.25], 8, 6.98765) == "10\timages/sec: 21.3 +/- 5.7 (jitter = 11.9)\t6.988"


def test_text_shows_the_first_step_and_every_nth_of_the_measured_ones(capsys: pytest.CaptureFixture[str]) -> None:
    display = TextDisplay(display_every=3, images_per_step=8, terminal=False)
    display.start({"Model": "trivial"})
    for name, steps in (("warm-up", 4), ("measuring", 7)):
        display.phase(name, steps)
        phase = Phase()
        for _ in range(steps):
            phase.step_seconds.append(0.5)
            phase.losses.append(2.0)
            display.after_step(phase)
    display.finish(make_record())
    display.stored("somewhere")
    out = capsys.readouterr().out
    assert re.findall(r"^(\d+)\timages/sec: 16\.0 ", out, re.MULTILINE) == ["1", "3", "6"]
    assert "total images/sec: 160.00\n" in out
    assert "Model: trivial" in out


def test_a_run_without_a_number_prints_no_headline(capsys: pytest.CaptureFixture[str]) -> None:
    from results.record import Derived

    TextDisplay(display_every=1, images_per_step=8, terminal=False).finish(make_record(derived=Derived()))
    assert "total images/sec" not in capsys.readouterr().out


def test_json_prints_the_record_alone(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display()
    display.start({"Model": "trivial"})
    display.phase("measuring", 3)
    display.after_step(Phase([1.0], [1.0]))
    display.finish(make_record())
    display.stored("somewhere")
    assert json.loads(capsys.readouterr().out)["status"] == "ok"


def test_progress_draws_on_one_line_of_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    progress = TerminalProgress()
    progress.begin("warm-up", 4)
    progress.clear()
    progress.show(2, 15.0)
    progress.clear()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "warm-up: step 2 of 4, 15.0 images/sec" in captured.err
    assert "\n" not in captured.err
    assert captured.err.endswith("\r\x1b[2K")


def test_lines_do_not_run_into_the_progress(capfd: pytest.CaptureFixture[str]) -> None:
    """On a terminal stdout and stderr are one: before every line the progress must be gone."""
    display = TextDisplay(display_every=1, images_per_step=8, terminal=True)
    display.phase("warm-up", 1)
    display.after_step(Phase([1.0], [1.0]))
    before = capfd.readouterr().err
    display.phase("measuring", 1)
    assert not before.endswith("\x1b[2K")
    assert capfd.readouterr().err.startswith("\r\x1b[2K")
    display.stop()
    assert capfd.readouterr().err.endswith("\r\x1b[2K")
