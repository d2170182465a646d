from __future__ import annotations

import json
import re
import sys

import pytest

from benchmarks import console
from benchmarks.measure.timing import Phase
from benchmarks.run.display import FIRST_STEP, Display, TextDisplay, step_line, total_line
from tests.support.records import make_record


def test_lines_are_the_peers_to_the_byte() -> None:
    assert total_line(1234.5) == "total images/sec: 1234.50"
    assert step_line(10, [0.5, 0.25], 8, 6.98765) == "10\timages/sec: 21.3 +/- 5.7 (jitter = 11.9)\t6.988"


def test_text_shows_the_first_step_and_every_nth_of_the_measured_ones(capsys: pytest.CaptureFixture[str]) -> None:
    display = TextDisplay(display_every=3, images_per_step=8)
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

    TextDisplay(display_every=1, images_per_step=8).finish(make_record(derived=Derived()))
    assert "total images/sec" not in capsys.readouterr().out


def test_json_prints_the_record_alone(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display()
    display.start({"Model": "trivial"})
    display.phase("measuring", 3)
    display.after_step(Phase([1.0], [1.0]))
    display.finish(make_record())
    display.stored("somewhere")
    assert json.loads(capsys.readouterr().out)["status"] == "ok"


def test_steps_are_counted_on_a_terminal_between_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    display = TextDisplay(display_every=1, images_per_step=8)
    display.phase("warm-up", 4)
    display.after_step(Phase([0.5], [1.0]))
    console.progress.look()
    display.stop()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Warm-up: 0 of 4" in captured.err and captured.err.endswith("\r\x1b[2K")


@pytest.mark.parametrize("display", [Display(8), TextDisplay(display_every=1, images_per_step=8)])
def test_measured_steps_are_silent_for_the_thread_and_the_first_is_not(
    display: Display, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_FIRST_LINE_SECONDS", 0.0)
    for name, steps, is_silent in (
        ("building the graph", None, False),
        (FIRST_STEP, 1, False),
        ("warm-up", 4, True),
        ("measuring", 4, True),
        ("measuring the input's stages", None, False),
    ):
        display.phase(name, steps)
        capsys.readouterr()
        console.progress.look()
        assert (capsys.readouterr().err == "") == is_silent, name
    display.stop()
