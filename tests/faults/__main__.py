"""Injects faults, one after the other, and prints a line on each: `python -m tests.faults [PATTERN ...]`."""

from __future__ import annotations

import argparse
import fnmatch
import signal
import sys
import time

from tests.faults import catalog
from tests.faults.catalog import Fault
from tests.faults.harness import Failed, Scratch, Skipped
from tests.faults.needs import missing
from tests.support.commands import heed_signals


def inject(fault: Fault, moments: int) -> None:
    """Injects a fault and checks what must hold after it, and after every fault.

    Raises:
        Failed: it does not hold.
        Skipped: the fault cannot be injected here.
    """
    if why := missing(fault.needs):
        raise Skipped(why)
    with Scratch(moments) as scratch:
        fault.inject(scratch)
        scratch.check()


def _outcome(fault: Fault, moments: int) -> str:
    try:
        inject(fault, moments)
        return "survived"
    except Failed as error:
        return f"FAILED: {error}"
    except Skipped as error:
        return f"skipped: {error}"
    except Exception as error:  # a mistake of a row must not hide the rows after it
        return f"FAILED: the row itself raised {type(error).__name__}: {error}"


def main(words: list[str]) -> int:
    """Injects what the command line names; returns 1 if a promise did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("patterns", nargs="*", default=["*"], help="names of faults, with * and ? (default: all)")
    parser.add_argument("--moments", type=int, default=40, help="moments of a run at which a signal comes (default 40)")
    parser.add_argument("--list", action="store_true", help="print the table and stop")
    chosen = parser.parse_args(words)
    table = [each for each in catalog.faults() if any(fnmatch.fnmatch(each.name, p) for p in chosen.patterns)]
    if not table:
        parser.error(f"no fault is called {' or '.join(chosen.patterns)}; --list prints all")
    if chosen.list:
        print("\n".join(f"{each.promise:4}{each.name}: {each.injects}" for each in table))
        return 0
    heed_signals()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that scratch directories and processes go
    width = max(len(each.name) for each in table)
    survived = injected = 0
    for each in table:
        print(f"{each.promise:4}{each.name:{width}} ", end="", flush=True)
        begin = time.monotonic()
        outcome = _outcome(each, chosen.moments)
        print(f"{outcome} ({time.monotonic() - begin:.0f} s)", flush=True)
        injected += not outcome.startswith("skipped")
        survived += outcome == "survived"
    print(f"injected {injected}, survived {survived}")
    return int(survived < injected)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
