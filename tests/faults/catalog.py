"""The promises, and the table of the faults that test them."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.faults.harness import Scratch

_TITLES = {
    "R1": "finished runs survive",
    "R2": "sweeps go on",
    "R3": "out of memory is recorded",
    "R4": "nothing hangs",
    "R5": "signals leave valid files",
    "R6": "resume runs what is missing",
    "R7": "lost tasks are named",
    "R8": "slow workers are named",
    "R9": "corrupt records are located",
    "R10": "wrong numbers never look right",
    "R11": "full disks are reported",
    "R12": "unusable ports are named",
    "R13": "concurrent writers lose nothing",
    "R14": "existing files stay",
    "R15": "secrets stay inside",
    "R16": "nobody gets in",
    "R17": "foreign files are only data",
}
PROMISES = {
    "R1": "A finished run survives kill -9 and outputs that cannot be written: its record is one line, appended and "
    "fsynced before anything is printed; files that are rewritten are renamed into place.",
    "R2": "A sweep goes on after a run that raises, exits, crashes, runs out of memory, hangs or prints garbage: each "
    "run is a process of its own.",
    "R3": "Out of memory is a row, with the request and the device.",
    "R4": "Nothing hangs: start-up, a step and a run have deadlines; when one passes, all threads' stacks are printed, "
    "and who waited for whom.",
    "R5": "Ctrl-C, SIGTERM and SIGHUP leave valid files and no processes.",
    "R6": "`--resume` runs only what is missing.",
    "R7": "If a parameter server, a worker or the chief dies or stops, all others end within 60 s and name it.",
    "R8": "A slow worker is named, with its straggler ratio.",
    "R9": "A corrupt record is reported with file, record, offset and reason, and nothing else is lost.",
    "R10": "Wrong numbers never look right: NaN, drifted replicas, a missing device, a run that did not take place, "
    "other software.",
    "R11": "A full or read-only disk is reported at the start; if it fills later, the record is printed.",
    "R12": "A port or address that cannot be used is named, with what to do.",
    "R13": "Several processes that write the same results leave all of them intact.",
    "R14": "What exists stays: outputs follow links, keep devices and modes, and remove no results.",
    "R15": "Nothing gets out: secrets appear in no record, report or terminal.",
    "R16": "Nobody gets in: no flag or address becomes an option of another program, no server is open to the network "
    "without consent.",
    "R17": "A file from elsewhere is only data: what is odd is skipped with a reason, and nothing in it is executed, "
    "or interpreted by a terminal, a spreadsheet or a browser.",
}
# Modules of this package in the order of their faults.
AREAS = (
    "outputs",
    "disk",
    "memory",
    "deadlines",
    "clusters",
    "security",
    "data",
    "training",
    "software",
    "signals",
)


@dataclasses.dataclass(frozen=True)
class Fault:
    """One row of the table.

    Attributes:
        promise: key of `PROMISES`.
        injects: what is done to the suite, in words.
        must: what must hold afterwards, in words.
        needs: what the machine must have, keys of `needs.NEEDS`.
        inject: injects it and checks; raises `harness.Failed` or `harness.Skipped`.
    """

    name: str
    promise: str
    injects: str
    must: str
    needs: Sequence[str]
    inject: Callable[[Scratch], None]


_faults: list[Fault] = []


def fault(
    name: str, promise: str, *, injects: str, must: str, needs: Sequence[str] = ()
) -> Callable[[Callable[[Scratch], None]], Callable[[Scratch], None]]:
    """Adds a function to the table."""

    def add(inject: Callable[[Scratch], None]) -> Callable[[Scratch], None]:
        _faults.append(Fault(name, promise, injects, must, needs, inject))
        return inject

    return add


def faults() -> list[Fault]:
    """Returns the whole table."""
    for area in AREAS:
        importlib.import_module(f"tests.faults.{area}")
    return _faults


def tables() -> str:
    """Returns the table of each promise, for docs/reference/reliability.md."""
    parts = []
    for promise, sentence in PROMISES.items():
        rows = [f"| {each.name} | {each.injects} | {each.must} |" for each in faults() if each.promise == promise]
        parts.append(
            f"## {promise}: {_TITLES[promise]}\n\n{sentence}\n\n| fault | injected | must hold |\n|---|---|---|\n"
        )
        parts.append("".join(row.replace("\n", " ") + "\n" for row in rows) + "\n")
    return "".join(parts)
