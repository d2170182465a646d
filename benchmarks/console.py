"""What every verb prints: results on stdout; warnings and what takes long on stderr. No TensorFlow."""

from __future__ import annotations

import codecs
import collections
import contextlib
import functools
import json
import math
import os
import re
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import TextIO

from results.masking import without_passwords
from results.text import printable

_REDRAW_SECONDS = 0.1
# Without a terminal: how long nothing was printed before the first line of progress, and before each that follows.
_FIRST_LINE_SECONDS, _NEXT_LINE_SECONDS = 10.0, 30.0
# Lines that wait for a reader that has paused; older ones are dropped.
_MOST_WAITING_LINES = 100_000
_waiting: collections.deque[str] = collections.deque(maxlen=_MOST_WAITING_LINES)
# Whether stdout could not be written, though its reader has not gone.
output_is_lost = False
# Where stderr is, if its descriptor is another file for the moment.
_moved_stderr: TextIO | None = None


def _as_in_json(error: UnicodeError) -> tuple[str, int]:
    """Escapes what an encoding lacks, in a line that may be JSON."""
    assert isinstance(error, UnicodeEncodeError), "it is registered for encoding"
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error("json", _as_in_json)


@contextlib.contextmanager
def stderr_is(descriptor: int) -> Iterator[None]:
    """Prints to a copy of stderr while its own descriptor is another file, as during the import of TensorFlow."""
    global _moved_stderr
    if sys.stderr is None:
        yield
        return
    with open(os.dup(descriptor), "w", encoding=sys.stderr.encoding) as _moved_stderr:
        try:
            yield
        finally:
            _moved_stderr = None


def _stderr() -> TextIO | None:
    return _moved_stderr or sys.stderr


def warn(*sentences: str) -> None:
    """Prints sentences for the user on stderr. Never raises."""
    for sentence in sentences:
        log(f"run_bench: {_harmless(sentence)}")


@functools.cache
def warn_once(sentence: str) -> None:
    """Prints a sentence for the user on stderr, the first time in this process. Never raises."""
    warn(sentence)


def warn_of_exception() -> None:
    """Prints the traceback of the exception that is being handled on stderr. Never raises."""
    log(traceback.format_exc().rstrip("\n"))


def log(line: str) -> None:
    """Prints a line on stderr as it is. Never raises."""
    _print(line, _stderr())


def say(*lines: str, wait: bool = True) -> None:
    """Prints lines of the result on stdout. Never raises.

    Without `wait`, a line that the reader of stdout does not take at once, such as a pager, is printed before the next
    line that it takes.
    """
    _waiting.extend(map(_harmless, lines))
    while _waiting and (wait or _takes_a_line(sys.stdout)):
        _print(_waiting.popleft(), sys.stdout)


def _harmless(text: str) -> str:
    """Returns text that cannot control a terminal: it may quote a record, a file name or the output of a program.

    Passwords of addresses are masked, since output is kept in logs.
    """
    return re.sub(r"[^\n\t]+", lambda part: printable(part[0]), without_passwords(text))


def _print(line: str, stream: TextIO | None) -> None:
    """Prints a line. A stream that is closed, full or of another encoding must not end a measurement."""
    progress.clear()
    if stream is None:
        return
    try:
        encoding = stream.encoding or "utf-8"
        print(line.encode(encoding, "json").decode(encoding), file=stream, flush=True)
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError, ValueError):  # what is still buffered must go somewhere when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if stream is not _stderr() and not isinstance(error, BrokenPipeError):
            global output_is_lost
            output_is_lost = True
            warn(f"stdout cannot be written ({error}); the rest of the output is lost.")


def _takes_a_line(stream: TextIO | None) -> bool:
    try:
        return stream is None or bool(select.select([], [stream], [], 0)[1])
    except (OSError, ValueError):  # it is closed, or no file
        return True


def in_words(seconds: float) -> str:
    """Returns a duration in s, min or h."""
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class Progress:
    """What this process is doing, and how long that takes, on stderr. Never raises.

    On a terminal it is the last line, which leaves no trace. Elsewhere a line is printed if nothing else was for 10 s,
    and then every 30 s. The line is renewed by calls, and by the watchdog's thread, except while steps are measured:
    then only `advance` draws, and only on a terminal.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._what, self._note, self._drawn = "", "", ""
        self._total: int | None = None
        self._done = 0
        self._begun = self._advanced_at = self._drawn_at = self._silent_since = clock()
        self._is_measured = self._is_counted = self._has_printed = False

    def begin(self, what: str, total: int | None = None, *, measured: bool = False) -> None:
        """Begins with something, in so many parts; while `counted` is shown, only `measured` has an effect."""
        self._is_measured = measured
        if self._is_counted:
            return
        self._what, self._total, self._done, self._note = what, total, 0, ""
        self._begun, self._has_printed = self._clock(), False
        self._draw_or_print(at_once=True)

    def measure(self) -> None:
        """Is silent from here on, because steps are measured."""
        self._is_measured = True

    def advance(self, count: int = 1, note: str = "") -> None:
        """Notes that so many more parts are done; threads may call it."""
        with self._lock:
            self._done += count
        self._note, self._advanced_at = note, self._clock()
        self._draw_or_print()

    def look(self) -> None:
        """Renews the line, from a thread."""
        if not self._is_measured:
            self._draw_or_print()

    def end(self) -> None:
        """Shows nothing any more, except what is `counted`."""
        self._is_measured = False
        if not self._is_counted:
            self._what = ""
            self.clear()

    @contextlib.contextmanager
    def counted(self, what: str, total: int) -> Iterator[None]:
        """Shows how many parts of a whole are done until the block ends, and not what begins within it."""
        self.begin(what, total)
        self._is_counted = True
        try:
            yield
        finally:
            self._is_counted = False
            self.end()

    def clear(self) -> None:
        """Makes room for a line of text."""
        self._silent_since = self._clock()
        if self._drawn:
            self._drawn = ""
            _write("\r\x1b[2K")

    def _draw_or_print(self, *, at_once: bool = False) -> None:
        now = self._clock()
        if not self._what:
            return
        if on_terminal():
            if at_once or now - self._drawn_at >= _REDRAW_SECONDS:
                self._drawn_at = now
                self._draw(self._text(now))
        elif at_once is self._is_measured and _takes_a_line(_stderr()):
            limit = _NEXT_LINE_SECONDS if self._has_printed else _FIRST_LINE_SECONDS
            if now - (self._silent_since if at_once else max(self._silent_since, self._begun)) >= limit:
                self._has_printed = True
                warn(f"{self._text(now)}.")

    def _text(self, now: float) -> str:
        elapsed, what = now - self._begun, self._what[:1].upper() + self._what[1:]
        if self._total is None:
            so_far = f"{in_words(int(elapsed))} so far" if elapsed >= 1 else ""
            return f"{what}{': ' if so_far else ''}{so_far}"
        words = [f"{self._done:,} of {self._total:,}", self._note]
        if elapsed >= 1 and 0 < self._done < self._total:
            needed = (self._advanced_at - self._begun) / self._done * self._total
            # Parts may be unequal: once the estimate is over, the rest takes longer than it says.
            words.append(f"{in_words(needed - elapsed)} left" if needed > elapsed else f"{in_words(elapsed)} so far")
        return f"{what}: {', '.join(filter(None, words))}"

    def _draw(self, text: str) -> None:
        if text == self._drawn or not _takes_a_line(_stderr()):
            return
        self._drawn = text
        shown = _harmless(text)[: _columns() - 1]
        _write(f"\r\x1b[2K{shown}" if "NO_COLOR" in os.environ else f"\r\x1b[2K\x1b[2m{shown}\x1b[0m")


def on_terminal() -> bool:
    """Returns whether stderr is a terminal on which a line can be drawn again."""
    try:
        stream = _stderr()
        return stream is not None and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    except ValueError:  # it is closed
        return False


def _columns() -> int:
    try:
        stream = _stderr()
        return os.get_terminal_size(stream.fileno() if stream else 2).columns or 80
    except (OSError, ValueError):
        return 80


def _write(text: str) -> None:
    stream = _stderr()
    with contextlib.suppress(OSError, ValueError):
        if stream is not None:
            stream.write(text)
            stream.flush()


progress = Progress()
