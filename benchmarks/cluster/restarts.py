"""What the tasks of a cluster that one command starts know of the attempts before. No TensorFlow."""

from __future__ import annotations

import dataclasses
import json
import os

import msgspec

from results.quality import restart_warning

_VARIABLE = "CNN_BENCH_FAILED_ATTEMPTS"


@dataclasses.dataclass(frozen=True)
class Attempts:
    """The failed attempts of a run.

    Attributes:
        run: names all attempts of one command; empty if the user has started this process.
        failures: of each attempt which tasks failed, how and when, in words.
    """

    run: str = ""
    failures: tuple[str, ...] = ()

    def handed_over(self) -> dict[str, str]:
        """Returns the environment variables by which tasks know of them."""
        return {_VARIABLE: json.dumps(dataclasses.asdict(self))}


def inherited() -> Attempts:
    """Returns the failed attempts before this process."""
    stated = os.environ.get(_VARIABLE)
    return Attempts() if stated is None else msgspec.json.decode(stated, type=Attempts)


def warnings() -> list[str]:
    """Returns the warning for the record."""
    failures = inherited().failures
    return [" ".join([restart_warning(len(failures)), *failures])] if failures else []
