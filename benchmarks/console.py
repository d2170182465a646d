"""What every verb writes on a terminal: warnings on stderr, results on stdout, a progress line. No TensorFlow."""

from __future__ import annotations

import contextlib
import os
import sys
import time

_REDRAW_SECONDS = 0.1


def warn(sentence: str) -> None:
    """Prints a sentence for the user on stderr."""
    print(f"run_bench: {sentence}", file=sys.stderr, flush=True)


def say(line: str) -> None:
    """Prints a line of the result on stdout. A reader that has gone away must not end a measurement."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class TerminalProgress:
    """One line on a terminal's stderr that shows the phase, the step and the rate, and leaves no trace."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)  # respects NO_COLOR
        self._name, self._total = "", None  # type: tuple[str, int | None]
        self._drawn_at = 0.0

    def begin(self, name: str, total: int | None) -> None:
        """Starts a phase."""
        self._name, self._total, self._drawn_at = name, total, 0.0
        self._draw(f"{name} ...")

    def show(self, steps: int, images_per_sec: float) -> None:
        """Redraws the line, unless that was just done."""
        if time.monotonic() - self._drawn_at < _REDRAW_SECONDS:
            return
        of = f" of {self._total}" if self._total else ""
        self._draw(f"{self._name}: step {steps}{of}, {images_per_sec:.1f} images/sec")

    def clear(self) -> None:
        """Makes room for a line of text."""
        self._console.file.write("\r\x1b[2K")
        self._console.file.flush()
        self._drawn_at = 0.0

    def _draw(self, text: str) -> None:
        self._drawn_at = time.monotonic()
        with contextlib.suppress(OSError):
            self._console.file.write("\r\x1b[2K")
            self._console.print(text, end="", style="dim", highlight=False, overflow="crop", no_wrap=True)
