"""Builds that `ab` compares: a test decides how fast each is, whether it interleaves its steps, and what fails."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from benchmarks.errors import OverdueError
from benchmarks.measure import interleaved_steps
from results.record import Record, Status
from tests.support.fake_runs import Failure, FakeRun
from tests.support.records import fake_run

STEPS = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Build:
    """What a side's runs do.

    Attributes:
        name: in the list of what was started.
        rate: images per second.
        crashes: numbers of the runs that crash, from 1, warm-up runs not counted.
        refuses: models and managers.
        batch: images per device that it runs, whatever its flags say.
        digest: of the code of its model, if that is a user's.
        environment: what its records say beside the usual.
        interleaves: whether it knows how to interleave steps.
        breaks: whether a run fails, given its number, from 1, with warm-up runs, and whether it was to interleave.
        stuck: whether its runs take no time slice; they are killed when the other side gives up.
    """

    name: str = ""
    rate: float = 100.0
    crashes: Sequence[int] = ()
    refuses: Sequence[str] = ()
    batch: int = 32
    digest: str = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    interleaves: bool = True
    breaks: Callable[[int, bool], bool] = lambda number, interleaved: False
    stuck: Callable[[int], bool] = lambda number: False


class Builds:
    """Runs the builds that a test compares.

    Attributes:
        order: what was started.
        taken: each step: `b` is one of the base, `c` of the candidate.
    """

    def __init__(self) -> None:
        self.named: dict[str, Build] = {}
        self.order: list[str] = []
        self.taken = ""
        self._given_up = threading.Event()
        self._numbers: Counter[str] = Counter()

    def side(self, name: str, **does: Any) -> str:
        """Returns the flag of a side whose runs do this."""
        self.named[name] = Build(name=name, **does)
        return f"--{name}_command={sys.executable} {name}"

    @property
    def pairs(self) -> list[str]:
        """The steps of each pair of runs, in order."""
        return [self.taken[begin : begin + 2 * STEPS] for begin in range(0, len(self.taken), 2 * STEPS)]

    def __call__(self, run: FakeRun) -> Record | Failure:
        program, flags = run.words[1], run.flags
        build = self.named.get(program)
        if not build:  # a program of a revision holds what it does; this suite itself is a usual build
            text = Path(program).read_text()
            does = json.loads(text) if text.startswith("{") else {"name": Path(flags["output_dir"]).name}
            build = Build(**does)
        model, is_warmup = flags["model"], "warmup" in flags["output_dir"]
        what = f"{build.name} {model}"
        self.order.append(f"warmup {what}" if is_warmup else what)
        self._numbers[what] += not is_warmup
        self._numbers[build.name] += 1
        number, with_warmup = self._numbers[what], self._numbers[build.name]
        if number in build.crashes and not is_warmup:
            return Failure(returncode=-signal.SIGSEGV, stderr="it broke here")
        if {model, flags.get("variable_update")} & {*build.refuses}:
            return Failure(returncode=2, stderr="run_bench: There is no flag --new.")
        if build.breaks(with_warmup, run.slices is not None):
            return Failure(returncode=1, stderr="it broke here")
        slices = run.slices if build.interleaves else None
        if slices and build.stuck(with_warmup):
            self._given_up.wait(60.0)
            self._given_up.clear()
            return Failure(returncode=-signal.SIGKILL, timed_out=True)
        try:
            self._take_steps(build.name[0], slices)
        except OverdueError as error:
            self._given_up.set()
            return replace(fake_run(step_seconds=1.0), status=Status.TIMEOUT, reason=str(error))
        code = {"model_digest": build.digest} if build.digest else {}
        made = fake_run(model=model, batch_per_device=build.batch, rate=build.rate, **code)
        interleaving = interleaved_steps.environment(slices.steps_per_slice if slices else None)
        environment = {**made.environment, "cpu_model": "a CPU", **interleaving, **build.environment}
        return replace(made, environment=environment)

    def _take_steps(self, letter: str, slices: interleaved_steps.TimeSlices | None) -> None:
        if slices:
            slices.begin(STEPS, 0.1)
        for _ in range(STEPS):
            self.taken += letter
            if slices:
                slices.after_step()
        if slices:
            slices.finish()
