"""Signals that come while they are held back."""

from __future__ import annotations

import itertools
import resource
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.errors import Terminated, stopped
from benchmarks.process import signals
from benchmarks.process.signals import raise_terminated


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Puts back what was there before."""
    before = [(number, signal.getsignal(number)) for number in signals.SIGNALS]
    signal.signal(signal.SIGTERM, raise_terminated)
    yield
    for number, handler in before:
        signal.signal(number, handler)


def test_a_limit_of_cpu_time_is_named_instead_of_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert signals.signal_in_words(9, "; or memory") == "signal 9 (Killed); or memory"
    assert signals.signal_in_words(11, "; or memory") == "signal 11 (Segmentation fault)"
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (60, 90) if limit == resource.RLIMIT_CPU else (-1, -1))
    by_limit = "as the kernel sends after the {} s of CPU time that ulimit -t allows"
    assert signals.signal_in_words(9, "; or memory") == f"signal 9 (Killed), {by_limit.format(90)}; or memory"
    assert signals.signal_in_words(24).endswith(by_limit.format(60))
    assert signals.signal_in_words(11) == "signal 11 (Segmentation fault)"


def test_a_signal_is_raised_when_all_is_done() -> None:
    done = []
    with pytest.raises(Terminated), signals.signals_held_back():
        signal.raise_signal(signal.SIGTERM)
        done.append("the rest")
    assert done and signal.getsignal(signal.SIGTERM) is raise_terminated


def test_what_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with signals.signals_held_back():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_work_that_is_ended_by_a_signal_has_its_status(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    assert signals.until_stopped(lambda: signal.raise_signal(number)) == 128 + number
    assert signal.getsignal(number) is before


def test_nohup_is_respected() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals.raise_on_termination()
    with signals.raised_once():
        signal.raise_signal(signal.SIGHUP)


def test_only_the_first_signal_is_raised() -> None:
    with signals.raised_once():
        with pytest.raises(Terminated) as raised:
            signal.raise_signal(signal.SIGHUP)
        assert stopped(raised.value).exit_status == 129
        for number in signals.SIGNALS:
            signal.raise_signal(number)
    with pytest.raises(Terminated):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)], ids=["Ctrl-C", "SIGTERM"]
)
@pytest.mark.parametrize("before_call", [1, 2, 3, 4], ids=["first held", "second held", "first back", "second back"])
def test_it_comes_through_whenever_it_comes_and_so_does_the_next(
    monkeypatch: pytest.MonkeyPatch, before_call: int, number: signal.Signals, raised: type[BaseException]
) -> None:
    calls, set_handler = itertools.count(1), signal.signal

    def interrupted(*arguments: Any) -> Any:
        if next(calls) == before_call:
            signal.raise_signal(number)
        return set_handler(*arguments)

    with monkeypatch.context() as patched, pytest.raises(raised) as interruption:
        patched.setattr(signal, "signal", interrupted)
        with signals.signals_held_back():
            pass
    assert stopped(interruption.value).number == number
    for each, expected in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)):
        with pytest.raises(expected):
            signal.raise_signal(each)
