"""Successive halving on simulated machines: nothing is run, and the clock is made up."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from benchmarks.sweep.grid import Cell
from benchmarks.tune.halving import Candidate, Durations, Halving, Outcome, Row, interval_of, runs_needed

IMAGES = 32
START_SECONDS = 6.0
WARMUP_STEPS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing(Row):
    candidate: int

    @property
    def rate(self) -> float | None:
        return self.images_per_sec


def standings(search: Halving) -> list[Standing]:
    """Returns the result of each candidate with its number, best first."""
    return [Standing(candidate=_number(candidate), **vars(row)) for candidate, row in search.rows()]


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
    starts: dict[int, float] = dataclasses.field(default_factory=dict)
    drift: float = 0.0
    now: float = 0.0
    runs: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    interleaves: bool = False
    pairs: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def clock(self) -> float:
        return self.now

    def run(self, chosen: Candidate, steps: int, left_seconds: float) -> Outcome:
        candidate = _number(chosen)
        self.runs.append((candidate, steps))
        before = self.now
        if candidate in self.failing and [c for c, _ in self.runs].count(candidate) > self.fails_from_run:
            self.now += START_SECONDS
            return Outcome(seconds=self.now - before, reason=self.failing[candidate])
        slowness = math.exp(self._random.gauss(0, self.noise) + self.drift * self.now)
        usual = IMAGES / self.rates[candidate]
        seconds = [usual * slowness * math.exp(self._random.gauss(0, self.noise)) for _ in range(steps)]
        start = self.starts.get(candidate, START_SECONDS) * math.exp(self._random.gauss(0, self.noise))
        self.now += start + WARMUP_STEPS * usual + math.fsum(seconds)
        if self.now - before > left_seconds:
            self.now = before + left_seconds
            return Outcome(seconds=left_seconds, reason="killed: time was up", cut_off=True)
        return Outcome(seconds=self.now - before, images_per_step=IMAGES, step_seconds=seconds)

    def run_pair(
        self, one: Candidate, other: Candidate, steps: int, left_seconds: float
    ) -> tuple[Outcome, Outcome] | None:
        """Runs both in the time of one after the other, under a load that both see."""
        if not self.interleaves:
            return None
        self.pairs.append((_number(one), _number(other)))
        common, noise, self.noise = math.exp(self._random.gauss(0, 3 * self.noise)), self.noise, self.noise / 10
        both = [self.run(candidate, steps, left_seconds) for candidate in (one, other)]
        self.noise = noise
        first, second = (
            dataclasses.replace(each, step_seconds=[seconds * common for seconds in each.step_seconds]) for each in both
        )
        return first, second

    def guess(self, candidate: Candidate, steps: int) -> float:
        """Is wrong by a factor, as guesses are, but not by another for every candidate."""
        return 3.0 + 0.5 * steps * IMAGES / self.rates[_number(candidate)]

    def search(self, budget_seconds: float, first_steps: int = 8, first_round_seconds: float = 0.0) -> list[Standing]:
        def seconds_left(is_first_run: bool) -> float:
            return (max(budget_seconds, first_round_seconds) if is_first_run else budget_seconds) - self.now

        candidates = _candidates(len(self.rates))
        search = Halving(candidates, self.run, Durations(self.guess), seconds_left, first_steps, self.run_pair)
        search.search()
        return standings(search)


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


def test_a_machine_that_slows_down_does_not_mislead() -> None:
    rates = [100.0, 93.0, 92.0, 91.0, 90.0, 80.0]
    for seed in range(20):
        machine = Machine(rates, noise=0.01, seed=seed, drift=0.0005)  # by a fifth over the search
        assert machine.search(400)[0].candidate == 0


@pytest.mark.parametrize("budget_seconds", [1, 5, 20, 33, 60, 61, 97, 250])
@pytest.mark.parametrize("candidates", [1, 2, 3, 9])
def test_the_budget_is_kept(budget_seconds: float, candidates: int) -> None:
    for machine in _machines(5, candidates, 0.3):
        standings = machine.search(budget_seconds)
        assert machine.now <= budget_seconds
        assert len(standings) == candidates
        assert (standings[0].rate is not None) == (budget_seconds > 6), "one run fits, and has a result"


@pytest.mark.parametrize("candidates", [1, 2, 3, 9, 16])
def test_a_search_with_enough_time_is_finished_within_the_runs_that_it_needs(candidates: int) -> None:
    def search(machine: Machine, budget_seconds: float) -> Halving:
        made = Halving(
            *(_candidates(candidates), machine.run, Durations(machine.guess)),
            lambda is_first_run: budget_seconds - machine.now,
            8,
        )
        made.search()
        return made

    for machine in _machines(10, candidates, 0.3):
        assert search(machine, 10_000).is_finished
        ties = len(machine.runs) - runs_needed(candidates)
        assert ties <= 7 * 3, "more are repeats of what cannot be told apart, until the time is up"
    for machine in _machines(10, candidates, 0.3):
        assert not search(machine, 8 * candidates).is_finished or len(machine.runs) >= 3 * candidates


def test_a_run_that_is_cut_off_because_the_time_is_up_leaves_the_search_unfinished() -> None:
    machine = Machine([100.0, 200.0], starts={0: 900.0})
    search = Halving(
        *(_candidates(2), machine.run, Durations(machine.guess)), lambda is_first_run: 300 - machine.now, 8
    )
    search.search()
    assert not search.is_finished


def test_a_budget_that_is_long_is_not_used_up_for_nothing() -> None:
    machine = Machine([100.0, 50.0, 25.0])
    best, second, third = machine.search(100_000)
    assert [best.candidate, second.candidate, third.candidate] == [0, 1, 2]
    assert not second.is_close and not third.is_close
    assert machine.now < 200


def test_equal_candidates_are_close() -> None:
    machine = Machine([100.0] * 6)
    found = machine.search(3000)
    assert sum(one.is_close for one in found) >= 4
    (taken,) = (one for one in found if one.is_taken)
    assert taken.candidate == 0, "the default stays"
    assert taken.low < 100 < taken.high
    assert not taken.is_close, "the choice is not close to itself"
    assert len(machine.runs) < 60, "a tie ends"


def test_steps_double_and_the_slower_half_is_dropped() -> None:
    machine = Machine([100.0, 90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0], noise=0.001)
    machine.search(2000, first_steps=5)
    rounds = {steps: [c for c, s in machine.runs if s == steps] for steps in (5, 10, 20)}
    assert rounds[5] == list(range(8))
    assert rounds[10] == [0, 1, 2, 3], "better first"
    assert rounds[20][:4] == [0, 1, 1, 0], "the repeats go forth and back"


def test_a_failed_candidate_has_a_row_with_the_reason() -> None:
    machine = Machine([100.0, 200.0, 50.0, 70.0], failing={1: "oom", 3: "crash"})
    standings = machine.search(300)
    assert [one.candidate for one in standings[:2]] == [0, 2]
    assert {one.candidate: (one.rate, one.reason) for one in standings[2:]} == {1: (None, "oom"), 3: (None, "crash")}
    assert [candidate for candidate, _ in machine.runs].count(1) == 1, "it is not tried again"


def test_a_winner_is_not_repeated_without_need() -> None:
    machine = Machine([100.0, 50.0], failing={1: "oom"})
    machine.search(1000)
    assert len(machine.runs) == 2
    alone = Machine([100.0])
    (only,) = alone.search(1000)
    assert len(alone.runs) == only.runs == 3 and only.low < 100 < only.high * 1.1


def test_a_candidate_that_fails_later_is_not_the_best() -> None:
    machine = Machine([100.0, 200.0, 50.0], failing={1: "crash"}, fails_from_run=1)
    best, *_, last = machine.search(300)
    assert best.candidate == 0
    assert (last.candidate, last.reason) == (1, "crash")
    assert last.rate == pytest.approx(200, rel=0.2), "its rate before the failure is reported"


def test_if_all_fail_there_is_no_rate() -> None:
    machine = Machine([1.0, 2.0, 3.0], failing={0: "a", 1: "b", 2: "c"})
    assert [(one.rate, one.reason) for one in machine.search(300)] == [(None, "a"), (None, "b"), (None, "c")]
    assert len(machine.runs) == 3


def test_what_would_take_too_long_is_not_begun_and_the_rest_is() -> None:
    machine = Machine([100.0, 1.0, 99.0], noise=0.001)
    standings = machine.search(60)
    assert {candidate for candidate, _ in machine.runs} == {0, 2}
    assert standings[-1].candidate == 1
    assert "not run: it takes about" in standings[-1].reason


def test_a_hanging_candidate_leaves_time_for_the_others() -> None:
    machine = Machine([100.0, 200.0, 90.0, 80.0], starts={1: 900.0})
    standings = machine.search(300)
    assert [one.candidate for one in standings[:2]] == [0, 2] and standings[0].runs >= 3
    assert (standings[-1].candidate, standings[-1].reason) == (1, "killed: time was up")
    assert machine.runs.count((1, 8)) == len([one for one, _ in machine.runs if one == 1]) == 1


def test_the_time_left_is_read_before_each_run() -> None:
    machine = Machine([100.0] * 6)

    def seconds_left(is_first_run: bool) -> float:
        return 100 - 10 * len(machine.runs) - machine.now

    search = Halving(_candidates(6), machine.run, Durations(machine.guess), seconds_left, 8)
    search.search()
    assert len(machine.runs) < 6 and machine.now <= 100 - 10 * (len(machine.runs) - 1)


def test_repeats_tell_whether_a_rate_is_better_than_its_selection() -> None:
    assert not Machine([99.0, 150.0]).search(25)[0].is_repeated
    assert Machine([99.0, 100.0]).search(300)[0].is_repeated
    assert all(one.is_repeated == (one.candidate == 0) for one in Machine([100.0, 99.0]).search(25)), "not selected"
    assert Machine([100.0]).search(10)[0].is_repeated, "there was nothing to select"


@pytest.mark.parametrize("candidates", [2, 6])
def test_each_candidate_may_be_tried_once_with_the_time_of_later_stages(candidates: int) -> None:
    machine = Machine([100.0 + n for n in range(candidates)])
    machine.search(5, first_round_seconds=1000)
    assert [candidate for candidate, _ in machine.runs] == list(range(candidates))
    machine = Machine([100.0] * 6)
    machine.search(5, first_round_seconds=30)
    assert machine.now <= 30 and 2 <= len(machine.runs) < 6


def _runs(*rates: float) -> list[Outcome]:
    return [Outcome(seconds=9, images_per_step=10, step_seconds=[10 / one] * 8) for one in rates]


def test_one_run_is_not_surer_than_processes_are_alike() -> None:
    low, high = interval_of(_runs(100)).bounds
    assert low == pytest.approx(96, abs=0.5) and high == pytest.approx(104, abs=0.5)
    low, high = interval_of(_runs(100), between=0.2).bounds
    assert low == pytest.approx(67, abs=0.5) and high == pytest.approx(149, abs=0.5)
    short = Outcome(seconds=9, images_per_step=10, step_seconds=[0.1] * 4)
    assert interval_of([short]).bounds == (None, None)
    assert interval_of(_runs(100, 50)).value == pytest.approx(math.sqrt(100 * 50))


@pytest.mark.parametrize(("rate", "is_taken"), [(110.0, False), (200.0, True)])
def test_without_repeats_only_large_differences_count(rate: float, is_taken: bool) -> None:
    machine = Machine([100.0, rate])
    found = {one.candidate: one for one in machine.search(25)}
    assert len(machine.runs) == 2
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
        for one in (one for one in found if one.low is not None):
            are_apart = one.low > taken.high or taken.low > one.high
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


def test_on_a_noisy_machine_intervals_are_wider() -> None:
    for seed in range(10):
        found = Machine([100.0] * 6, noise=0.3, seed=seed).search(200)
        assert sum(one.is_close for one in found) >= 4


def test_durations_learn_from_other_candidates_and_from_ones_own() -> None:
    durations = Durations(lambda candidate, steps: 2.0 + steps)
    a, b = _candidates(2)
    assert durations.expected(a, 100) == 0.0, "something must be run first"
    durations.observe(a, Outcome(seconds=24.0, images_per_step=1, step_seconds=[2.0] * 10))
    assert durations.expected(b, 18) == pytest.approx(1.1 * 40), "all takes twice as long as was guessed"
    assert durations.expected(a, 20) == pytest.approx(1.1 * (4 + 40))
    durations.observe(b, Outcome(seconds=7.0, reason="crash"))
    assert durations.expected(b, 18) == pytest.approx(1.1 * 40), "a failure teaches nothing"


def test_what_is_hopeless_is_not_repeated_against_the_default() -> None:
    machine = Machine([100.0, 60.0, 50.0], noise=0.001)
    best, *others = machine.search(1000)
    assert best.candidate == 0 and best.is_taken and not any(one.is_close for one in others)
    assert sorted(candidate for candidate, _ in machine.runs) == [0, 1, 2]


def test_interleaved_steps_tell_apart_what_whole_runs_do_not() -> None:
    taken = {True: 0, False: 0}
    for interleaves in taken:
        for seed in range(20):
            machine = Machine([100.0, 104.0, 80.0], noise=0.02, seed=seed, interleaves=interleaves)
            taken[interleaves] += next(one.candidate for one in machine.search(150) if one.is_taken) == 1
            assert machine.pairs == [] or set(machine.pairs) == {(0, 1), (1, 0)}, "each begins in turn"
    assert taken[True] >= 18 > taken[False] + 5


def test_a_pair_that_fails_is_run_one_by_one() -> None:
    machine = Machine([100.0, 104.0], failing={1: "oom"}, fails_from_run=1, interleaves=True)
    machine.search(300)
    assert len(machine.pairs) == 1 and [candidate for candidate, _ in machine.runs].count(0) > 2
