"""Successive halving on simulated machines: nothing is run, and the clock is made up."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from benchmarks.sweep.grid import Cell
from benchmarks.tune.halving import Candidate, Halving, Outcome, Row, interval_of, runs_needed

IMAGES = 32
START_SECONDS = 6.0
WARMUP_STEPS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing(Row):
    """The result of a candidate, with its number."""

    candidate: int


def _candidates(count: int) -> list[Candidate]:
    return [Candidate({"number": str(number)}, Cell((str(number),), None)) for number in range(count)]


def _number(candidate: Candidate) -> int:
    return int(candidate.choice["number"])


@dataclasses.dataclass
class Machine:
    """Runs candidates, numbered from 0, at their true rates, with noise of processes and of steps."""

    rates: list[float]
    noise: float = 0.03
    seed: int = 0
    failing: dict[int, str] = dataclasses.field(default_factory=dict)
    fails_from_run: int = 0
    budget_seconds: float = math.inf
    now: float = 0.0
    runs: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def run(self, chosen: Candidate, steps: int) -> Outcome | None:
        limit = self.budget_seconds - self.now
        if limit <= 0:
            return None
        candidate = _number(chosen)
        self.runs.append((candidate, steps))
        before = self.now
        if candidate in self.failing and [c for c, _ in self.runs].count(candidate) > self.fails_from_run:
            self.now += min(START_SECONDS, limit)
            return Outcome(reason=self.failing[candidate])
        slowness = math.exp(self._random.gauss(0, self.noise))
        usual = IMAGES / self.rates[candidate]
        self.now += START_SECONDS * math.exp(self._random.gauss(0, self.noise))
        self.now += WARMUP_STEPS * usual
        seconds: list[float] = []
        while len(seconds) < steps:
            step = usual * slowness * math.exp(self._random.gauss(0, self.noise))
            if self.now + step > before + limit:
                break
            self.now += step
            seconds.append(step)
        if not seconds:
            self.now = before + limit
            return Outcome(reason="not run to its end", cut_off=True)
        return Outcome(images_per_step=IMAGES, step_seconds=seconds, cut_off=len(seconds) < steps)

    def search(self, budget_seconds: float, first_steps: int = 8) -> list[Standing]:
        self.budget_seconds = budget_seconds
        search = Halving(_candidates(len(self.rates)), self.run, first_steps)
        search.search()
        return [Standing(candidate=_number(candidate), **vars(row)) for candidate, row in search.rows()]


def _machines(count: int, candidates: int, spread: float) -> list[Machine]:
    draw = random.Random(candidates)
    return [
        Machine([100 * math.exp(draw.gauss(0, spread)) for _ in range(candidates)], seed=seed) for seed in range(count)
    ]


@pytest.mark.parametrize(
    ("candidates", "spread", "budget_seconds"), [(4, 0.05, 300), (8, 0.1, 300), (8, 0.1, 900), (12, 0.05, 900)]
)
def test_the_best_is_found_on_noisy_machines(candidates: int, spread: float, budget_seconds: float) -> None:
    good, simulations = 0, 100
    for machine in _machines(simulations, candidates, spread):
        best = machine.search(budget_seconds)[0]
        good += machine.rates[best.candidate] >= 0.97 * max(machine.rates)
        assert machine.now <= budget_seconds
    assert good >= 0.95 * simulations


def test_the_true_best_is_rarely_called_slower() -> None:
    missed = 0
    for machine in _machines(100, 6, 0.03):
        truth = machine.rates.index(max(machine.rates))
        (found,) = (one for one in machine.search(600) if one.candidate == truth)
        missed += not found.is_taken and not found.is_close
    assert missed <= 5


@pytest.mark.parametrize("budget_seconds", [1, 5, 9, 20, 33, 60, 61, 97, 250])
@pytest.mark.parametrize("candidates", [1, 2, 3, 9])
def test_the_budget_is_kept(budget_seconds: float, candidates: int) -> None:
    for machine in _machines(5, candidates, 0.3):
        standings = machine.search(budget_seconds)
        assert machine.now <= budget_seconds
        assert len(standings) == candidates
        assert (standings[0].images_per_sec is not None) == (budget_seconds > 6), "one run fits, and has a result"


@pytest.mark.parametrize("candidates", [1, 2, 3, 9, 16])
def test_a_search_without_ties_ends_within_the_runs_that_it_needs(candidates: int) -> None:
    machine = Machine([100.0 * 0.8**n for n in range(candidates)], noise=0.001)
    best, *_ = machine.search(10_000)
    assert best.runs >= 3 and len(machine.runs) <= runs_needed(candidates)


def test_equal_candidates_are_close() -> None:
    machine = Machine([100.0] * 6)
    found = machine.search(3000)
    assert sum(one.is_close for one in found) >= 4
    (taken,) = (one for one in found if one.is_taken)
    assert taken.candidate == 0, "the default stays"
    assert taken.images_per_sec.low < 100 < taken.images_per_sec.high
    assert not taken.is_close, "the choice is not close to itself"
    assert len(machine.runs) < 60, "a tie ends"


def test_steps_double_and_the_slower_half_is_dropped() -> None:
    machine = Machine([100.0, 99.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0], noise=0.001)
    machine.search(2000, first_steps=5)
    rounds = {steps: [c for c, s in machine.runs if s == steps] for steps in (5, 10, 20)}
    assert rounds[5] == list(range(8))
    assert rounds[10] == [0, 1, 2, 3], "better first"
    assert rounds[20][:4] == [0, 1, 1, 0], "the repeats go forth and back"


def test_one_that_is_left_is_repeated_three_times() -> None:
    machine = Machine([100.0, 50.0], failing={1: "oom"})
    machine.search(1000)
    assert [candidate for candidate, _ in machine.runs] == [0, 1, 0, 0]
    two_of_seven = Machine([100.0, 90.0, *[80.0] * 5], failing=dict.fromkeys(range(2, 7), "oom"))
    two_of_seven.search(1000)
    assert max(candidate for candidate, _ in two_of_seven.runs[7:]) == 1, "what has failed is not tried again"
    alone = Machine([100.0])
    (only,) = alone.search(1000)
    assert len(alone.runs) == only.runs == 3 and only.images_per_sec.low < 100 < only.images_per_sec.high * 1.1


def test_a_candidate_that_fails_later_is_not_the_best() -> None:
    machine = Machine([100.0, 200.0, 50.0], failing={1: "crash"}, fails_from_run=1)
    best, *_, last = machine.search(300)
    assert best.candidate == 0
    assert (last.candidate, last.reason) == (1, "crash")
    assert last.images_per_sec.value == pytest.approx(200, rel=0.2), "its rate before the failure is reported"


def test_a_default_that_dropped_out_is_the_answer_if_all_others_fail_later() -> None:
    rivals = dict.fromkeys(range(1, 5), "crash")
    best, *others = Machine([85.0, 100.0, 110.0, 90.0, 60.0], failing=rivals, fails_from_run=1).search(1000)
    assert best.candidate == 0 and best.is_taken
    assert [one.reason for one in others].count("crash") == 3, "of those that came into the second round"


def test_if_all_fail_there_is_no_rate() -> None:
    machine = Machine([1.0, 2.0, 3.0], failing={0: "a", 1: "b", 2: "c"})
    assert [(one.images_per_sec, one.reason) for one in machine.search(300)] == [(None, "a"), (None, "b"), (None, "c")]
    assert len(machine.runs) == 3


def test_repeats_tell_whether_a_rate_is_better_than_its_selection() -> None:
    assert not Machine([99.0, 150.0]).search(25)[0].is_repeated
    assert Machine([99.0, 100.0]).search(300)[0].is_repeated
    assert all(one.is_default == (one.candidate == 0) for one in Machine([100.0, 99.0]).search(25))
    for repeats, counted in (((100, 100), [200, 100, 100]), ((100, 100, 100), [100, 100, 100])):
        (candidate,) = _candidates(1)
        candidate.runs, candidate.repeats = _runs(200), _runs(*repeats)
        assert [round(run.images_per_sec) for run in candidate.counted] == counted


def test_what_runs_of_the_rounds_differ_by_widens_the_interval_of_a_single_one() -> None:
    """97.5 % of a t distribution with 2 degrees of freedom are below 4.303."""
    candidates = _candidates(3)
    for candidate, rates in zip(candidates, ([100, 120], [100, 120], [100]), strict=True):
        candidate.runs = _runs(*rates)
    (row,) = (row for one, row in Halving(candidates, lambda *_: None, 8).rows() if one is candidates[2])
    lowest = 100 * math.exp(-4.303 * math.log(1.2) / math.sqrt(2))
    assert row.images_per_sec and row.images_per_sec.low == pytest.approx(lowest, rel=1e-3)


def test_a_run_that_the_time_cuts_short_does_not_count_beside_a_longer_one() -> None:
    """Its few steps have no interval, and would take that of the earlier run away."""
    lengths = iter([8, 8, 1])

    def run(candidate: Candidate, steps: int) -> Outcome:
        count = next(lengths)
        step_seconds = [0.1 + 0.01 * step for step in range(count)]
        return Outcome(images_per_step=1, step_seconds=step_seconds, cut_off=count < steps)

    search = Halving(_candidates(2), run, 8)
    search.search()
    assert next(lengths, None) is None, "all three were run"
    assert [(row.steps, row.runs, row.images_per_sec.is_known) for _, row in search.rows()] == [(8, 1, True)] * 2


def _runs(*rates: float) -> list[Outcome]:
    return [Outcome(images_per_step=10, step_seconds=[10 / one] * 8) for one in rates]


def test_one_run_is_not_surer_than_processes_are_alike() -> None:
    low, high = interval_of(_runs(100)).bounds
    assert low == pytest.approx(96, abs=0.5) and high == pytest.approx(104, abs=0.5)
    low, high = interval_of(_runs(100), between=0.2).bounds
    assert low == pytest.approx(67, abs=0.5) and high == pytest.approx(149, abs=0.5)
    short = Outcome(images_per_step=10, step_seconds=[0.1] * 4)
    assert interval_of([short]).bounds == (None, None)
    assert interval_of(_runs(100, 50)).value == pytest.approx(math.sqrt(100 * 50))
    noisy = Outcome(images_per_step=10, step_seconds=[0.09, 0.11] * 8)
    widths = [interval_of([noisy] * runs, between=0.1).log_half_width for runs in (1, 2)]
    assert widths[1] == pytest.approx(widths[0] / math.sqrt(2)), "two runs, each with the noise of processes and steps"


@pytest.mark.parametrize(("rate", "is_taken"), [(110.0, False), (200.0, True)])
def test_without_repeats_only_large_differences_count(rate: float, is_taken: bool) -> None:
    machine = Machine([100.0, rate])
    found = {one.candidate: one for one in machine.search(22)}
    assert found[0].runs == found[1].runs == 1
    assert (found[1].is_taken, found[1].is_close) == (is_taken, not is_taken)
    assert (found[0].is_taken, found[0].is_close) == (not is_taken, False)


@pytest.mark.parametrize(("noise", "spread"), [(0.02, 0.05), (0.1, 0.1), (0.3, 0.3)])
@pytest.mark.parametrize("budget_seconds", [70, 300])
def test_the_choice_its_ties_and_the_intervals_agree(noise: float, spread: float, budget_seconds: float) -> None:
    for machine in _machines(20, 6, spread):
        machine.noise = noise
        found = machine.search(budget_seconds)
        (taken,) = (one for one in found if one.is_taken)
        (default,) = (one for one in found if one.candidate == 0)
        for one in (one for one in found if one.images_per_sec and one.images_per_sec.is_known):
            rate, best = one.images_per_sec, taken.images_per_sec
            are_apart = rate.low > best.high or best.low > rate.high
            assert not (one.is_close and (one.is_taken or are_apart)), "what is close overlaps"
            assert one.is_close or one.is_taken or are_apart or one.runs >= 3, "or a paired test separated them"
        assert taken is default or not default.is_close, "what is within the noise of the default is not taken"


def test_a_default_is_rarely_replaced_by_an_equal_candidate() -> None:
    replaced = sum(
        not one.is_taken
        for seed in range(100)
        for one in Machine([100.0] * 6, noise=0.1, seed=seed).search(300)
        if one.candidate == 0
    )
    assert replaced <= 10


def test_what_is_clearly_slower_is_not_repeated_against_the_default() -> None:
    machine = Machine([100.0, 60.0, 50.0], noise=0.001)
    best, *others = machine.search(1000)
    assert best.candidate == 0 and best.is_taken and not any(one.is_close for one in others)
    assert [candidate for candidate, _ in machine.runs] == [0, 1, 2, 0, 0, 0]


def test_a_default_that_dropped_out_early_is_repeated_in_the_same_blocks() -> None:
    machine = Machine([100.0, 104.0, 103.0, 102.5, 102.0, 101.5, 101.0], noise=0.001)
    machine.search(2000)
    repeats = [candidate for candidate, steps in machine.runs if steps == 32]
    assert repeats[:9] == [1, 2, 0, 0, 2, 1, 1, 2, 0]
