"""Output that cannot be written, or that is not read, does not end a run."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pty
import sys
from collections.abc import Iterator
from typing import TextIO

import pytest

from benchmarks import console
from benchmarks.console import Progress, in_words


@contextlib.contextmanager
def piped_stdout(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="utf-8") as stdout, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        yield reader
    os.close(reader)


def test_a_paused_reader_delays_nothing_and_gets_every_line_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{number} {'x' * 1000}" for number in range(200)]  # a pipe takes 64 KiB
    with piped_stdout(monkeypatch) as reader:
        for line in lines:
            console.say(line, wait=False)
        assert console._waiting
        read = b""
        while read.count(b"\n") < len(lines):
            read += os.read(reader, 65536)
            console.say("", wait=False)
    assert [line for line in read.decode().split("\n") if line] == lines
    console._waiting.clear()


def test_a_line_of_the_result_waits_for_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    console._waiting.append("before")
    with piped_stdout(monkeypatch) as reader:
        console.say("result")
        assert os.read(reader, 100) == b"before\nresult\n"
    assert not console._waiting


def test_a_full_disk_is_reported_once_and_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        console.say("one")
        console.say("two")
    assert capsys.readouterr().err.count("run_bench: stdout cannot be written") == 1


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_closed_reader_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, name, stream)
        for _ in range(2):
            console.say("a line")
            console.warn("a sentence")


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_a_closed_stream_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, shown: Progress, stream: TextIO | None
) -> None:
    if stream is not None:
        stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    console.say("a line")
    console.warn("a sentence")
    with shown.counted("long work", 2):
        clock.now += 100
        shown.look()
        shown.advance()


def test_characters_that_the_encoding_lacks_are_escaped_as_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    console.say('"2 × \udcff 😀"')
    assert written.getvalue() == b'"2 \\u00d7 \\udcff \\ud83d\\ude00"\n'


# Progress.


class Clock:
    """Seconds that pass only when a test advances them."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A terminal of 80 columns; once it is closed, nothing can be written."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.is_closed:
            raise OSError(errno.EIO, "Input/output error")
        return super().write(text)

    def shown(self) -> str:
        line = self.getvalue().rpartition("\r\x1b[2K")[2]
        return line.replace("\x1b[2m", "").replace("\x1b[0m", "")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal()
    monkeypatch.setattr(console, "_stderr", lambda: made)  # pytest replaces sys.stderr between setup and call
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return made


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shown(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Progress:
    made = Progress(clock)
    monkeypatch.setattr(console, "progress", made)
    return made


def test_a_terminal_shows_the_current_work_and_its_duration(terminal: Terminal, clock: Clock, shown: Progress) -> None:
    shown.begin("building the graph")
    assert terminal.shown() == "Building the graph"
    clock.now += 12.3
    shown.look()
    assert terminal.shown() == "Building the graph: 12 s so far"
    shown.end()
    assert terminal.shown() == "" and "\n" not in terminal.getvalue()
    written = terminal.getvalue()
    clock.now += 100
    shown.look()
    assert terminal.getvalue() == written, "no work is in progress"


def test_the_time_left_follows_from_the_finished_parts(terminal: Terminal, clock: Clock, shown: Progress) -> None:
    with shown.counted("converting", 40_000):
        assert terminal.shown() == "Converting: 0 of 40,000"
        clock.now += 100
        shown.advance(10_000, "a note")
        assert terminal.shown() == "Converting: 10,000 of 40,000, a note, 5 min left"
        shown.begin("a part of it")
        clock.now += 60
        shown.look()
        assert terminal.shown() == "Converting: 10,000 of 40,000, a note, 4 min left", "it counts down between parts"
        clock.now += 300
        shown.look()
        late = "Converting: 10,000 of 40,000, a note, 8 min so far"
        assert terminal.shown() == late, "the last parts take longer than the first"
        shown.end()
        clock.now += 140
        shown.advance(30_000)
        assert terminal.shown() == "Converting: 40,000 of 40,000"
    assert terminal.shown() == ""


def test_while_steps_are_measured_only_the_caller_draws(terminal: Terminal, clock: Clock, shown: Progress) -> None:
    shown.begin("measuring", 100, measured=True)
    written = terminal.getvalue()
    clock.now += 50
    shown.look()
    assert terminal.getvalue() == written
    shown.advance(note="3.0 images/sec")
    assert terminal.shown() == "Measuring: 1 of 100, 3.0 images/sec, 83 min left"
    shown.begin("checking")
    shown.measure()
    clock.now += 50
    shown.look()
    assert terminal.shown() == "Checking"


def test_a_terminal_is_drawn_at_most_ten_times_a_second(terminal: Terminal, clock: Clock, shown: Progress) -> None:
    shown.begin("measuring", 1000, measured=True)
    before = terminal.getvalue().count("\r")
    for _ in range(1000):
        clock.now += 0.001
        shown.advance()
    assert terminal.getvalue().count("\r") - before <= 10


def test_text_never_shares_a_line_with_the_progress(
    terminal: Terminal, shown: Progress, capsys: pytest.CaptureFixture[str]
) -> None:
    for write in (console.say, console.warn, console.log):
        shown.begin("long work")
        written = len(terminal.getvalue())
        write("a line")
        assert terminal.getvalue()[written:].startswith("\r\x1b[2K"), write
    assert capsys.readouterr().out == "a line\n"


def test_a_long_line_is_cut_and_cannot_control_the_terminal(terminal: Terminal, shown: Progress) -> None:
    shown.begin("reading \x1b[31m" + "x" * 200)
    assert len(terminal.shown()) == 79 and "\x1b" not in terminal.shown()


def test_no_color_is_respected(terminal: Terminal, shown: Progress, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown.begin("long work")
    assert terminal.getvalue() == "\r\x1b[2KLong work"


@pytest.mark.parametrize("term", ["dumb", None])
def test_without_a_terminal_only_long_work_prints_a_line(
    clock: Clock,
    shown: Progress,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    term: str | None,
) -> None:
    """Either TERM states that the terminal cannot be drawn on, or, without TERM, stderr is a file."""
    if term:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setenv("TERM", term)
    printed = []
    shown.begin("importing")
    for second in range(1, 81):
        clock.now += 1
        shown.look()
        if err := capsys.readouterr().err:
            printed.append((second, err))
    assert printed == [(at, f"run_bench: Importing: {at} s so far.\n") for at in (10, 40, 70)]


def test_without_a_terminal_other_lines_delay_the_line_of_progress(
    clock: Clock, shown: Progress, capsys: pytest.CaptureFixture[str]
) -> None:
    with shown.counted("comparing", 10):
        for _ in range(5):
            clock.now += 9
            shown.advance()
            console.say("a result")
        assert capsys.readouterr().err == ""
        clock.now += 10
        shown.advance()
    assert capsys.readouterr().err == "run_bench: Comparing: 6 of 10, 37 s left.\n"


def test_without_a_terminal_nothing_is_printed_while_steps_are_measured(
    clock: Clock, shown: Progress, capsys: pytest.CaptureFixture[str]
) -> None:
    shown.begin("measuring", 100, measured=True)
    for _ in range(100):
        clock.now += 60
        shown.advance()
        shown.look()
    assert capsys.readouterr() == ("", "")
    shown.begin("the next round", measured=True)
    assert capsys.readouterr().err == "run_bench: The next round.\n", "before its first step"


@pytest.mark.fault("R2", "the terminal of a sweep is closed during its first run", survives="the sweep goes on")
def test_a_closed_terminal_does_not_end_the_run(terminal: Terminal, clock: Clock, shown: Progress) -> None:
    with shown.counted("long work", 2):
        terminal.is_closed = True
        clock.now += 100
        shown.look()
        shown.advance()


def test_a_stopped_terminal_delays_nothing(clock: Clock, shown: Progress, monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal is not read: when its buffer is full, nothing more is drawn."""
    controller, end = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(end, "w") as stderr, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        for number in range(2000):
            clock.now += 1
            shown.begin(f"{number} {'x' * 70}")
    os.close(controller)


def test_stderr_is_found_while_its_descriptor_is_another_file(
    clock: Clock, shown: Progress, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The import of TensorFlow redirects descriptor 2: long work is still reported."""
    real = os.dup(2)
    with open(os.devnull, "w") as hidden, open(2, "w", closefd=False) as stderr, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        os.dup2(hidden.fileno(), 2)
        try:
            with console.stderr_is(real):
                shown.begin("importing")
                clock.now += 10
                shown.look()
            console.warn("hidden")
        finally:
            os.dup2(real, 2)
            os.close(real)
    console.warn("after")
    assert capfd.readouterr().err == "run_bench: Importing: 10 s so far.\nrun_bench: after\n"


def test_durations_in_words() -> None:
    assert (in_words(5.2), in_words(600), in_words(6000)) == ("6 s", "10 min", "1 h 40 min")
