"""How rows scale: curves of rows that differ only in the number of devices or workers, as tables and as sentences."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from results.intervals import Interval
from results.report import scaling_law
from results.report.anomalies import note_on_repeats
from results.report.scaling_law import FARTHEST, Fit, Point
from results.summary import SCALED, Row, Siblings, between_runs, count, manager_of, processes_of
from results.text import Table, counted, rounded

# What varies along a curve, and the fields in which its rows may differ.
_VARYING: Mapping[str, tuple[str, ...]] = {
    "device": ("num_devices", "visible_gpus", "virtual_gpus"),
    "worker": ("num_workers", "num_hosts", "num_ps"),
}
_FEWEST_FOR_REPORT, _MOST_CURVES = 3, 50
_NORMAL_95 = 1.96
# An efficiency that is known to less than this share says little.
_WIDE = 0.3
_MISFIT = 2.0
# A rise of the rate per device that no noise explains, in standard deviations; and one that is too much in any case.
_CLEAR, _MUCH_RISE = 3.0, 0.1
# A larger percentage is as good as any.
_MUCH = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """Rows that differ only in the number of devices or workers.

    Attributes:
        panel: the model, the batch, and what else the rows have in common.
        label: the variable manager and its processes.
        noun: what is counted: `device` (of each worker) or `worker`.
        rows: by that number, in ascending order; all have a rate.
        shared: the numbers whose devices share hardware, which are not fitted.
        spreads: of each number, the standard deviation of the rate's logarithm.
        degrees: of freedom of the spreads; 0 if nothing was repeated and they are assumed.
    """

    panel: str
    label: str
    noun: str
    rows: Mapping[int, Row]
    shared: frozenset[int]
    spreads: Mapping[int, float]
    degrees: int

    @property
    def fitted(self) -> list[int]:
        """Returns the numbers that are fitted."""
        return [number for number in self.rows if number not in self.shared]

    @property
    def points(self) -> list[Point]:
        """Returns what is fitted."""
        return [Point(number, self.rows[number].rate, self.spreads[number]) for number in self.fitted]

    @functools.cached_property
    def fit(self) -> Fit | None:
        """The law; None with fewer than two numbers to fit, or if they do not fit it."""
        if len(self.fitted) < 2 or any(itertools.starmap(_rises, itertools.combinations(self.points, 2))):
            return None
        return scaling_law.fit(self.points, self.degrees or None)

    @property
    def title(self) -> str:
        """Returns what the curve is of."""
        return f"{self.panel}, {self.label}"

    @property
    def predicted(self) -> list[int]:
        """Returns the next doublings of the largest number."""
        return [] if self.fit is None else [factor * self.fit.most for factor in (2, FARTHEST)]

    def rate(self, number: int) -> Interval:
        """Returns a measured rate."""
        return Interval(self.rows[number].rate).bounded.widened(self.spreads[number], self.degrees)

    def speed_up(self, number: int) -> Interval | None:
        """Returns a measured speed-up over one device or worker; None if that was not measured."""
        if 1 not in self.rows:
            return None
        spread = math.hypot(self.spreads[number], self.spreads[1]) if number > 1 else 0.0
        return Interval(self.rows[number].rate / self.rows[1].rate).bounded.widened(spread, self.degrees)


def curves(rows: Sequence[Row], nouns: Iterable[str] = _VARYING, least: int = _FEWEST_FOR_REPORT) -> Iterator[Curve]:
    """Yields the curves of rows with a rate that have at least `least` numbers; in order of appearance."""
    siblings = Siblings(rows)
    for noun in nouns:
        for alike in siblings.groups(_VARYING[noun]):
            # On several hosts each has a parameter server; on one, their number is a setting.
            on_one_host = noun == "worker" and all(row.count("num_hosts") == 1 for row in alike)
            lines: dict[str, dict[int, Row]] = {}
            for row in alike:
                number = row.count(f"num_{noun}s")
                line = lines.setdefault(str(row.config.get("num_ps")) if on_one_host else "", {})
                line[number] = max(line.get(number, row), row, key=_standing)
            yield from (_curve(noun, dict(sorted(line.items()))) for line in lines.values() if len(line) >= least)


def _standing(row: Row) -> tuple[bool, float]:
    """Returns what orders rows of one number: those on devices that share no GPU, and then the fastest."""
    return row.count("virtual_gpus") <= 1, row.rate


def to_report(rows: Sequence[Row]) -> list[Curve]:
    """Returns the first curves of at least three numbers that could be fitted; each takes some milliseconds."""
    fitted = (curve for curve in curves(rows) if curve.fit and len(curve.fitted) >= _FEWEST_FOR_REPORT)
    return list(itertools.islice(fitted, _MOST_CURVES))


def _curve(noun: str, rows: Mapping[int, Row]) -> Curve:
    first = next(iter(rows.values()))
    # Repeats of all numbers together show how much equal processes differ.
    between, degrees = between_runs(rows.values())
    spreads = {number: _spread(row, between) for number, row in rows.items()}
    cores = {number: row.records[0].environment.get("cpu_cores_usable") for number, row in rows.items()}
    shared = frozenset(number for number, row in rows.items() if shares(row.config, noun, cores[number]))
    servers = counted(first.config.get("num_ps") or 0, "parameter server")
    others = processes_of(first.config) if noun == "device" else servers if first.config.get("num_ps") else ""
    return Curve(
        panel=first.setting(SCALED),
        label=", ".join(filter(None, (manager_of(first.config), others))),
        noun=noun,
        rows=rows,
        shared=shared,
        spreads=spreads,
        degrees=degrees,
    )


def _rises(few: Point, many: Point) -> bool:
    """Returns whether the rate per device is clearly higher with many, which by the law cannot be."""
    gain = math.log(many.rate / many.number) - math.log(few.rate / few.number)
    return gain > min(_MUCH_RISE, _CLEAR * math.hypot(few.spread, many.spread))


def _spread(row: Row, between: float) -> float:
    """Returns the standard deviation of a rate's logarithm: of processes, and of the steps of a single one."""
    steps = row.measured.bounded.log_half_width / _NORMAL_95 if len(row.valid) == 1 else 0.0
    return math.hypot(between / math.sqrt(len(row.valid)), steps)


def shares(config: Mapping[str, Any], noun: str, cores: float | None) -> bool:
    """Returns whether the devices or workers of a run share hardware that fewer of them would have for themselves.

    These are logical CPU devices of one process, virtual GPUs, and processes of a host with more threads than `cores`.
    """
    if config.get("device") != "cpu":
        return count(config, "virtual_gpus") > 1
    if noun == "device":
        return count(config, "num_devices") > 1
    processes = (count(config, "num_workers") + count(config, "num_ps", 0)) / count(config, "num_hosts")
    threads = [count(config, name, 0) for name in ("num_intra_threads", "num_inter_threads")]
    return processes > 1 and (0 in threads or cores is not None and processes * max(threads) > cores)


def table(curve: Curve) -> Table:
    """Returns the measured and the predicted rows of a curve."""
    numbers = ("images/s", "95 % interval", f"per {curve.noun}", "speed-up", "efficiency %", "each more adds")
    columns = (f"{curve.noun}s", *numbers[:-1], "95 % interval", numbers[-1])
    rows: list[list[str]] = []
    before: tuple[int, float] | None = None

    def line(number: int, mark: str, rate: Interval, speed_up: Interval | None) -> list[str]:
        efficiency = speed_up and speed_up.scaled(1 / number)
        added = "" if before is None else rate.rounded((rate.value - before[1]) / (number - before[0]))
        return [
            f"{number}{mark}",
            rate.rounded(),
            rate.range(),
            rate.scaled(1 / number).rounded(),
            "" if speed_up is None else speed_up.rounded(),
            "" if efficiency is None else efficiency.scaled(100).rounded(),
            "" if efficiency is None or number == 1 else efficiency.scaled(100).range(),
            added,
        ]

    for number in curve.rows:
        rate, mark = curve.rate(number), " (shared)" if number in curve.shared else ""
        rows.append(line(number, mark, rate, curve.speed_up(number)))
        before = number, rate.value
    if curve.fit:
        before = curve.fit.most, curve.fit.rate(curve.fit.most).value
        for number in curve.predicted:
            rate = curve.fit.rate(number)
            rows.append(line(number, " (predicted)", rate, curve.fit.efficiency(number).scaled(number)))
            before = number, rate.value
    return Table(columns, rows, numbers)


def summary(curve: Curve, fit: Fit) -> list[str]:
    """Returns a curve in one line: what was measured, the fitted law, and what it predicts for twice as many."""
    measured, number = ", ".join(map(str, curve.fitted)), curve.predicted[0]
    shares = [percent(share) for share in (fit.sigma, fit.kappa)]
    predicted = [f"{number} {curve.noun}s", percent(fit.efficiency(number))]
    limits = [how_many(limit, fit) for limit in (fit.half_efficient, fit.fastest)]
    return [curve.title, f"{measured} {curve.noun}s", *shares, *predicted, *limits]


def percent(share: Interval) -> str:
    """Returns a share in percent, with its interval."""
    shown = share.scaled(100)

    def in_words(number: float) -> str:
        return f"over {_MUCH}" if number > _MUCH else shown.rounded(round(number, 3))

    return f"{in_words(shown.value)} % ({shown.range(in_words)} %)"


def how_many(number: Interval, fit: Fit) -> str:
    """Returns a number of devices with its interval, as far as the points can tell."""
    farthest, low = FARTHEST * fit.most, max(1, math.floor(min(number.low, FARTHEST * fit.most)))
    if number.value > farthest:
        return f"more than {farthest}" + (f" (at least {low})" if low < farthest else "")
    high = f"more than {farthest}" if number.high > farthest else f"{math.ceil(number.high)}"
    return f"{number.value:.0f} ({low} to {high})"


def verdict(curve: Curve) -> list[str]:
    """Returns what a curve shows, in lines: what was measured, the law, what more bring, and what that assumes.

    Without a law there are two: what was measured, and why nothing is predicted.
    """
    if curve.fit is None:
        return [_measured(curve), f"Nothing is predicted. {_why_not_fitted(curve)}"]
    parts = (_law(curve, curve.fit), _expected(curve, curve.fit), _assumed(curve, curve.fit))
    return [_measured(curve), *map(" ".join, parts)]


def _measured(curve: Curve) -> str:
    numbers, most = ", ".join(map(str, curve.rows)), max(curve.rows)
    gained = curve.speed_up(most) if most > 1 else None
    fast = f"{most} are {gained.text()} times as fast as 1" if gained else f"{rounded(curve.rows[most].rate)} images/s"
    return f"Measured: {numbers} {curve.noun}{'s' * (numbers != '1')}; {fast}."


def _why_not_fitted(curve: Curve) -> str:
    if curve.shared:
        what, instead = sharing(curve.rows[max(curve.shared)].config, curve.noun)
        numbers = ", ".join(map(str, sorted(curve.shared)))
        return f"{what}: {numbers} show what the software costs, not how it scales. Instead, {instead}."
    if len(curve.fitted) < 2:
        return f"Only {counted(len(curve.rows), 'number')} of {curve.noun}s has a valid rate."
    return (
        f"The points do not fit the law: the rate per {curve.noun} rises, or falls faster than contention and "
        "coherence explain. Something slowed some runs, or more have more memory or cache each: measure again on an "
        f"idle machine, with more --repeats. `doctor` with the largest number shows a slow {curve.noun} or link."
    )


def sharing(config: Mapping[str, Any], noun: str) -> tuple[str, str]:
    """Returns why devices or workers that share hardware show no scaling, and what to measure instead."""
    if config.get("device") != "cpu":
        return (
            "Virtual GPUs share one GPU, so more of them are not more hardware",
            "measure on a machine with several GPUs, or several hosts with --hosts",
        )
    if noun == "device":
        return (
            "Logical CPU devices of one process share its cores, so more of them are not more hardware",
            "measure workers of one thread each: --device=cpu --local_cluster=worker:2 "
            "--variable_update=collective_all_reduce",
        )
    return (
        "These processes have more threads than the host has cores, so more workers are not more hardware",
        "start fewer workers, or give each fewer threads with --num_intra_threads and --num_inter_threads",
    )


def _expected(curve: Curve, fit: Fit) -> Iterator[str]:
    number = curve.predicted[0]
    rate, gain = fit.rate(number), fit.rate(number).value / fit.rate(fit.most).value - 1
    yield (
        f"Predicted: with {number} {curve.noun}s, {rate.rounded()} images/s ({rate.range()}) and an "
        f"efficiency of {percent(fit.efficiency(number))}, {gain:+.0%} over {fit.most}."
    )
    yield f"The efficiency is 50 % with {how_many(fit.half_efficient, fit)} {curve.noun}s."
    if fit.has_kappa:
        yield f"The rate is highest with {how_many(fit.fastest, fit)} {curve.noun}s."


def _law(curve: Curve, fit: Fit) -> Iterator[str]:
    """Yields the law, and which term of it costs most at the largest predicted number."""
    number, sigma, kappa = curve.predicted[-1], fit.sigma, fit.kappa
    shares = [f"sigma = {percent(sigma)}", *([f"kappa = {percent(kappa)}"] if fit.has_kappa else [])]
    yield f"Law: {' and '.join(shares)}."
    if fit.misfit > _MISFIT and fit.efficiency(number).high >= 1:
        yield f"The points do not follow it, so it shows no limit; `doctor` may find a slow {curve.noun}."
        return
    if fit.efficiency(number).high >= 1:
        cost = 1 - fit.efficiency(number).low
        yield f"No limit can be told from noise: with {number} {curve.noun}s it costs at most {cost:.0%}."
        return
    if not sigma.low and not kappa.low:
        yield "There is a limit, but these points do not show whether it is contention or coherence."
    elif not fit.has_kappa or sigma.value >= kappa.value * number:
        yield "The first limit is contention: what all wait for, such as a link, the host or a parameter server."
    else:
        yield f"The first limit is coherence: what each {curve.noun} exchanges with every other."
    manager = str(next(iter(curve.rows.values())).config.get("variable_update"))
    alone = curve.noun == "device" and manager != "independent"
    ask = "`doctor` shows which part of a step grows"
    yield ask + (f", --variable_update={manager},independent what remains without exchange." if alone else ".")


def _assumed(curve: Curve, fit: Fit) -> Iterator[str]:
    yield (
        f"Assumed: the batch per device stays (weak scaling), further {curve.noun}s are connected as these are, and "
        "their costs follow the law."
    )
    if not fit.has_kappa:
        yield "Two numbers show only sigma: measure a third."
    if once := note_on_repeats([*curve.rows.values()]):
        yield once
    if 1 not in curve.rows:
        yield f"One {curve.noun} was not measured: efficiencies are over its rate by the law."
    if next(iter(curve.rows.values())).config.get("variable_update") == "independent":
        yield f"Independent {curve.noun}s exchange nothing: this is an upper bound."
    if any(record.warnings for row in curve.rows.values() for record in row.valid):
        yield "Some runs have warnings: what slows a busy machine looks like contention."
    if fit.misfit > _MISFIT:
        yield f"The points lie {fit.misfit:.1f} times as far from the curve as repeats do from each other."
    expected = fit.efficiency(curve.predicted[0])
    if expected.high - expected.low > _WIDE:
        yield "Too uncertain to decide on: measure more numbers, or raise --repeats or --num_batches."
