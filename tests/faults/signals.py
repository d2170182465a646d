"""Signals at many moments of a run's life, from its first instruction to after its last."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.faults.catalog import fault
from tests.faults.harness import ENDLESS, MEASURES, TINY, Failed, Scratch, want
from tests.support.commands import RUN_BENCH

_STATUSES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}
_SHORT = (*TINY, "--num_batches=40")
_COMMANDS = {
    "run": ("run", *_SHORT),
    "sweep": ("sweep", "--device=cpu", "--model=trivial", "--batch_size=2,3", "--num_batches=20"),
    "ab": (
        "ab",
        f"--base_command={shlex.join(RUN_BENCH)}",
        *_SHORT,
        "--nowarmup_round",
        "--nointerleave_steps",
        "--max_rounds=6",
        "--output_dir=out",
    ),
    "cluster": ("run", *_SHORT, "--local_cluster=worker:2", "--variable_update=collective_all_reduce"),
}
# How many runs at a time: with more, a run takes longer than it does alone.
_AT_ONCE = max(2, (os.cpu_count() or 1) // 2)
_END_SECONDS = 60.0
# Ctrl-C before that meets Python while it starts itself, which prints a traceback and ends with status 1.
_PYTHON_STARTS_SECONDS = 0.2


@fault("sighup", "R5", injects="SIGHUP, as a closed terminal sends it, to a run that measures", must="129, one record")
def _sighup(scratch: Scratch) -> None:
    run = scratch.start("run", *ENDLESS)
    run.wait_for(MEASURES)
    run.send(signal.SIGHUP, group=True)
    scratch.expect(run.end(_END_SECONDS), 129, records=["interrupted"])


@fault(
    "second-ctrl-c",
    "R5",
    injects="Ctrl-C five times within half a second",
    must="status 130, one record, no traceback",
)
def _impatient(scratch: Scratch) -> None:
    run = scratch.start("run", *ENDLESS)
    run.wait_for(MEASURES)
    for _ in range(5):
        run.send(signal.SIGINT, group=True)
        time.sleep(0.1)
    scratch.expect(run.end(_END_SECONDS), 130, records=["interrupted"])


def _at(words: Sequence[str], number: signal.Signals, moment: float) -> str:
    """Starts a command, sends a signal after some seconds, and returns what is wrong, or nothing.

    A terminal sends Ctrl-C and SIGHUP to the whole group, `kill` SIGTERM to one process.
    """
    with Scratch() as scratch:
        try:
            started = scratch.start(*words)
            over = started.ended_within(moment)
            started.send(number, group=number is not signal.SIGTERM)
            ended = started.end(_END_SECONDS)
            # A signal that comes when all is done changes nothing.
            done = ended.status == 0 and (over or len(scratch.records()) == (2 if words[0] == "sweep" else 1))
            want(ended.status == _STATUSES[number] or done, f"status {ended.status}: {ended.tail}")
            scratch.check()
            return ""
        except Failed as error:
            return f"at {moment:.2f} s: {error}"


def _life_seconds(words: Sequence[str]) -> float:
    """Returns how long a command lives if nothing disturbs it, under the load of the others; of `ab`, one round."""

    def take(_: int) -> float:
        with Scratch() as scratch:
            return scratch.bench(*words, seconds=300).seconds

    if words[0] == "ab":
        return 2 * _life_seconds(_COMMANDS["run"])
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return max(threads.map(take, range(_AT_ONCE)))


for _verb, _words in _COMMANDS.items():
    for _number in _STATUSES:

        @fault(
            f"moments-{_verb}-{_number.name.lower()}",
            "R5",
            injects=f"{_number.name} at many moments of {'a local cluster' if _verb == 'cluster' else _verb}",
            must=f"status {_STATUSES[_number]} within {_END_SECONDS:g} s, or all was done; whole results, nothing left",
        )
        def _moments(scratch: Scratch, words: Sequence[str] = _words, number: signal.Signals = _number) -> None:
            life = _life_seconds(words)
            begin = _PYTHON_STARTS_SECONDS if number is signal.SIGINT else 0.0
            moments = [begin + life * index / scratch.moments for index in range(scratch.moments)]
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                wrong = [found for found in threads.map(lambda m: _at(words, number, m), moments) if found]
            want(not wrong, f"{len(wrong)} of {len(moments)} moments, the first {wrong[0] if wrong else ''}")
