"""How many steps the loop of a run measures, with made-up steps."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
import types
from typing import Any

import pytest

from benchmarks.callbacks.callback import Callbacks
from benchmarks.cluster.member import Alone
from benchmarks.errors import InvalidRunError
from benchmarks.graph.epochs import Plan
from benchmarks.graph.stepper import Stepper
from benchmarks.measure.display import Display
from benchmarks.measure.run_log import RunLog
from benchmarks.measure.timing import Taken
from benchmarks.run import loop, train
from tests.support.settings import resolve


class Others(Alone):
    """A team of two, the other of which sends one message: how many steps it wants to measure, or what it reads."""

    def __init__(self, message: Any) -> None:
        super().__init__()
        self.message = message

    def meet(self, what: str, message: Any = None, *, patient: bool = False) -> dict[str, Any]:
        return {"worker 0": message, "worker 1": self.message}


@pytest.mark.parametrize(
    ("words", "at_least_seconds", "step_seconds", "steps"),
    [
        ("", None, 0.1, 5),
        ("", 20.0, 0.1, 200),
        ("", 20.0, 0.3, 67),
        ("", 20.0, 30.0, 5),  # as many as are planned
        ("", 20.0, 0.0004, 20_000),  # not 50,000
        ("--local_sgd_steps=3 --variable_update=local_sgd", 20.0, 0.0004, 20_001),  # whole rounds
        ("--local_sgd_steps=4 --variable_update=local_sgd", 20.0, 0.3, 68),  # whole rounds
        ("--time_limit_seconds=0.001", 20.0, 0.1, 1),
        ("--time_limit_seconds=0.001 --local_sgd_steps=3 --variable_update=local_sgd", 20.0, 0.1, 3),
    ],
)
def test_steps_are_fixed_after_the_warm_up_by_its_median(
    words: str,
    at_least_seconds: float | None,
    step_seconds: float,
    steps: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log, display = _measure(words, at_least_seconds, step_seconds)
    assert len(log.measured.step_seconds) == steps
    assert len(log.first.step_seconds) == 1 and len(log.warmup.step_seconds) == (1 if "limit" in words else 4)
    assert log.numbers.peak_host_memory_bytes, "of the steps, not of what follows them"
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith("Measuring ") for line in lines].count(True) == (at_least_seconds is not None)
    if at_least_seconds is not None and "limit" not in words:
        assert lines[0] == f"Measuring {steps} steps: the reason."


@pytest.mark.parametrize(
    ("words", "steps"),
    [("--variable_update=collective_all_reduce", 150), ("--variable_update=local_sgd --local_sgd_steps=4", 148)],
)
def test_workers_measure_as_many_steps_as_the_fewest_of_them(
    words: str, steps: int, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = "--local_cluster=worker:2 --job_name=worker --task_index=0 --worker_hosts=a:1,b:1"
    forgotten: list[int] = []
    log, _ = _measure(f"{cluster} {words}", 20.0, 0.1, Others(150), forgotten)
    assert len(log.measured.step_seconds) == steps
    assert capsys.readouterr().out.startswith(f"Measuring {steps} steps: ")
    assert forgotten == [0], "what towers took while this worker waited for the others"


def test_pauses_are_left_out_of_the_times_that_workers_compare() -> None:
    begin = time.perf_counter()
    log, _ = _measure("", None, 0.1, paused_seconds=1000.0)
    assert log.measured.ended_at == pytest.approx([-1000.0] * 5, abs=1.0)
    assert log.opened_at == pytest.approx(begin - 1000.0, abs=100.0)


def test_one_worker_measures_the_input_while_the_others_wait() -> None:
    log = RunLog(images_per_step=2, towers=1)
    log.measured.add(Taken(1.0, 0.5, observed={"input_wait_seconds": 0.9}))
    for is_leader in (False, True):
        team = types.SimpleNamespace(is_leader=is_leader)
        built = types.SimpleNamespace(input=types.SimpleNamespace(source=object()))
        run: Any = types.SimpleNamespace(built=built, config=None, log=log, team=team)
        with contextlib.nullcontext() if not is_leader else pytest.raises(AttributeError, match="display"):
            train._measure_input(run)


@pytest.mark.parametrize(
    ("found", "skipped", "reason"),
    [
        ([True], [0.0, 1.0], ""),
        ([True, 0.0], [0.0, 0.0], ""),
        ([False, 0.0], [0.0, 0.0], "After the run some weights are not finite"),
        ([True, 0.25], [0.0, 0.0], "the copies of the variables differ by up to 0.25"),
        ([True, 0.0], [1.0, 1.0], "No measured step updated anything"),
        ([True, 0.0], [], "The workers took too few steps"),
    ],
)
def test_what_makes_a_run_invalid(found: list[float], skipped: list[float], reason: str) -> None:
    log = RunLog(images_per_step=2, towers=1)
    for number in skipped:
        log.measured.add(Taken(1.0, 0.5, observed={"skipped_updates": number}))
    step, inputs = types.SimpleNamespace(pass_times=None), types.SimpleNamespace(skipping=None)
    built = types.SimpleNamespace(finite=lambda: "finite", drift=lambda: found[1:] or None, step=step, input=inputs)
    session = types.SimpleNamespace(run=lambda fetched, options: found[: len(fetched)])
    run: Any = types.SimpleNamespace(built=built, log=log, session=session, options=None)
    train._check_variables(run)
    log.reports = [log.report()]
    with pytest.raises(InvalidRunError, match=reason) if reason else contextlib.nullcontext():
        train._require_valid(log)


@pytest.mark.parametrize(("theirs", "warned"), [("4 files", False), ("3 files", True)])
def test_workers_with_different_data_are_named(theirs: str, warned: bool) -> None:
    session: Any = None
    step = types.SimpleNamespace(initialize=lambda *_, shared_is_there, **__: shared_is_there())
    built: Any = types.SimpleNamespace(step=step, input=types.SimpleNamespace(initializers=()))
    restored: Any = types.SimpleNamespace(values={}, resumes=False)
    chosen: Any = types.SimpleNamespace(processes=types.SimpleNamespace(preparation_seconds=60.0))
    log = RunLog(images_per_step=2, towers=1, data_set="4 files", doubts=["first"])
    train._initialize(session, session, built, restored, chosen, Others(theirs), log)
    sentence = "The workers' data differ in names, sizes or form (worker 0: 4 files; worker 1: 3 files)"
    assert [doubt.startswith(sentence) for doubt in log.doubts] == ([False, True] if warned else [False])


def _measure(
    words: str,
    at_least_seconds: float | None,
    step_seconds: float,
    team: Alone | None = None,
    forgotten: list[int] | None = None,
    paused_seconds: float = 0.0,
) -> tuple[RunLog, Display]:
    """Measures made-up steps; `forgotten` gets the number of measured ones whenever others are discarded."""
    chosen = resolve("--device=cpu", "--num_gpus=2", *words.split())
    length = dataclasses.replace(chosen.length, at_least_seconds=at_least_seconds)
    chosen = dataclasses.replace(chosen, length=length, reasons={"num_batches": "the reason"})
    # The first step, and one of the warm-up, take longer.
    seconds = itertools.chain([100 * step_seconds, 50 * step_seconds], itertools.repeat(step_seconds))
    log, display = RunLog(images_per_step=2, towers=2), Display(2, display_every=1000)
    stepper = Stepper(
        lambda: Taken(next(seconds), 1.0),
        forget=lambda: forgotten.append(len(log.measured.step_seconds)) if forgotten is not None else None,
    )
    callbacks = Callbacks(team or Alone())
    callbacks.paused_seconds = paused_seconds
    loop.measure(chosen, Plan(5, 5), stepper, log, display, team or Alone(), callbacks)
    return log, display
