"""How rows scale: curves of rows that differ only in the number of devices or workers, as tables and as sentences."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from results import intervals
from results.intervals import Interval
from results.report import scaling_law
from results.report.anomalies import differences
from results.report.scaling_law import FARTHEST, Fit, Point
from results.summary import SCALED, Row, Siblings, between_runs, manager_of, processes_of
from results.text import Table, counted

# What varies along a curve, and the fields in which its rows may differ.
_VARYING: Mapping[str, tuple[str, ...]] = {
    "device": ("num_devices", "visible_gpus", "virtual_gpus"),
    "worker": ("num_workers", "num_hosts", "num_ps"),
}
NOUNS = tuple(_VARYING)
_FEWEST_FOR_REPORT, _MOST_CURVES = 3, 50
_NORMAL_95 = 1.96
# An efficiency that is known to less than this share says little.
_WIDE = 0.3
_MISFIT = 2.0
# A larger share is as good as any.
_MUCH = 10.0


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
        degrees: of freedom of the spreads; None if nothing was repeated and they are assumed.
        fit: None with fewer than two numbers to fit.
    """

    panel: str
    label: str
    noun: str
    rows: Mapping[int, Row]
    shared: frozenset[int]
    spreads: Mapping[int, float]
    degrees: int | None
    fit: Fit | None

    @property
    def fitted(self) -> list[int]:
        """Returns the numbers that are fitted."""
        return [number for number in self.rows if number not in self.shared]

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
        return scaling_law.ratio(self.rows[number].rate, self.spreads[number], self.degrees)

    def speed_up(self, number: int) -> Interval | None:
        """Returns a measured speed-up over one device or worker; None if that was not measured."""
        if 1 not in self.rows:
            return None
        spread = math.hypot(self.spreads[number], self.spreads[1]) if number > 1 else 0.0
        return scaling_law.ratio(self.rows[number].rate / self.rows[1].rate, spread, self.degrees)


def curves(rows: Sequence[Row], nouns: Sequence[str] = NOUNS, least: int = _FEWEST_FOR_REPORT) -> list[Curve]:
    """Returns the curves of rows with a rate that have at least `least` numbers; in order of appearance."""
    return list(_curves(rows, nouns, least))


def _curves(rows: Sequence[Row], nouns: Sequence[str], least: int) -> Iterator[Curve]:
    siblings = Siblings(rows)
    for noun in nouns:
        for alike in siblings.groups(_VARYING[noun]):
            # On several hosts each has a parameter server; on one, their number is a setting.
            on_one_host = noun == "worker" and all(row.count("num_hosts") == 1 for row in alike)
            lines: dict[str, dict[int, Row]] = {}
            for row in alike:
                number = row.count("num_devices" if noun == "device" else "num_workers")
                lines.setdefault(str(row.config.get("num_ps")) if on_one_host else "", {})[number] = row
            yield from (_curve(noun, dict(sorted(line.items()))) for line in lines.values() if len(line) >= least)


def to_report(rows: Sequence[Row]) -> list[Curve]:
    """Returns the first curves of at least three numbers that could be fitted; each takes some milliseconds."""
    every = (curve for curve in _curves(rows, NOUNS, _FEWEST_FOR_REPORT) if curve.fit is not None)
    return list(itertools.islice((curve for curve in every if len(curve.fitted) >= _FEWEST_FOR_REPORT), _MOST_CURVES))


def _curve(noun: str, rows: Mapping[int, Row]) -> Curve:
    first = next(iter(rows.values()))
    # Repeats of all numbers together show how much equal processes differ.
    degrees = sum(len(row.valid) - 1 for row in rows.values()) or None
    between = between_runs(rows.values())
    spreads = {number: _spread(row, between) for number, row in rows.items()}
    shared = frozenset(number for number, row in rows.items() if shares(row, noun))
    points = [Point(number, row.rate, spreads[number]) for number, row in rows.items() if number not in shared]
    also = [word for text in differences(first) for word in text.split(", ") if word.split()[0] not in SCALED]
    inference = " inference" if first.config.get("forward_only") else ""
    batch = first.config.get("batch_per_device")
    servers = counted(first.config.get("num_ps") or 0, "parameter server")
    others = processes_of(first.config) if noun == "device" else servers if first.config.get("num_ps") else ""
    return Curve(
        panel=", ".join([f"{first.config.get('model')}{inference}", f"batch {batch} per device", *also]),
        label=", ".join(filter(None, (manager_of(first.config), others))),
        noun=noun,
        rows=rows,
        shared=shared,
        spreads=spreads,
        degrees=degrees,
        fit=_fit(points, degrees),
    )


def _fit(points: Sequence[Point], degrees: int | None) -> Fit | None:
    with contextlib.suppress(scaling_law.NoLawError):
        return scaling_law.fit(points, degrees) if len(points) > 1 else None
    return None


def _spread(row: Row, between: float) -> float:
    """Returns the standard deviation of a rate's logarithm: of processes, and of the steps of a single one."""
    steps = row.measured.bounded.log_half_width / _NORMAL_95 if len(row.valid) == 1 else 0.0
    return math.hypot(between / math.sqrt(len(row.valid)), steps)


def shares(row: Row, noun: str) -> bool:
    """Returns whether its devices or workers share hardware that fewer of them would have for themselves.

    These are logical CPU devices of one process, virtual GPUs, and processes of a host with more threads than cores.
    """
    if row.config.get("device") != "cpu":
        return row.count("virtual_gpus") > 1
    if noun == "device":
        return row.count("num_devices") > 1
    processes = (row.count("num_workers") + row.count("num_ps", 0)) / row.count("num_hosts")
    threads = [row.count(name, 0) for name in ("num_intra_threads", "num_inter_threads")]
    cores = row.records[0].environment.get("cpu_cores_usable")
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
        gained, rate = curve.speed_up(number), curve.rate(number)
        mark = " (shared)" if number in curve.shared else ""
        rows.append(line(number, mark, rate, gained))
        before = number, rate.value
    if curve.fit is None:
        return Table(columns, rows, numbers)
    before = curve.fit.most, curve.fit.rate(curve.fit.most).value
    for number in curve.predicted:
        rate, share = curve.fit.rate(number), curve.fit.efficiency(number)
        rows.append(line(number, " (predicted)", rate, share.scaled(number)))
        before = number, rate.value
    return Table(columns, rows, numbers)


def summary(curve: Curve) -> list[str]:
    """Returns a curve in one line: what was measured, the fitted law, and what it predicts for twice as many."""
    fit = curve.fit
    if fit is None:
        raise ValueError(f"{curve.title} has too few points.")
    number = curve.predicted[0]
    measured = f"{', '.join(map(str, curve.fitted))} {curve.noun}s"
    shares = [percent(share) for share in (fit.sigma, fit.kappa)]
    predicted = [f"{number} {curve.noun}s", percent(fit.efficiency(number))]
    return [curve.title, measured, *shares, *predicted, how_many(fit.half_efficient, fit), how_many(fit.fastest, fit)]


def percent(share: Interval) -> str:
    """Returns a share in percent, with its interval."""
    return f"{_percent(share.value)} % ({share.range(_percent)} %)"


def _percent(share: float) -> str:
    if share > _MUCH:
        return f"over {100 * _MUCH:.0f}"
    return f"{100 * share:.0f}" if share >= 0.1 else f"{round(100 * share, 3):.2g}"


def how_many(number: Interval, fit: Fit) -> str:
    """Returns a number of devices with its interval, as far as the points can tell."""
    farthest, low = FARTHEST * fit.most, max(1, math.floor(min(number.low, FARTHEST * fit.most)))
    if number.value > farthest:
        return f"beyond {farthest}" + (f" (at least {low})" if low < farthest else "")
    high = f"beyond {farthest}" if number.high > farthest else f"{math.ceil(number.high)}"
    return f"{number.value:.0f} ({low} to {high})"


def verdict(curve: Curve) -> list[str]:
    """Returns what a curve shows, in sentences: how far it goes, what limits it, and how sure that is."""
    sentences = [_shared(curve)] if curve.shared else []
    if curve.fit is None:
        why = "" if curve.shared else f" Only {counted(len(curve.rows), 'number')} of {curve.noun}s has a valid rate."
        if len(curve.fitted) > 1:
            why = (
                f" The rate falls faster from one number of {curve.noun}s to the next than contention and coherence "
                f"explain. Look for a slow {curve.noun} or link: `doctor` with the largest number shows it."
            )
        return [*sentences, f"Nothing is fitted and nothing is predicted.{why}"]
    parts = (_expected(curve, curve.fit), _limit(curve, curve.fit), _doubts(curve))
    return [*sentences, *map(" ".join, parts)]


def _shared(curve: Curve) -> str:
    config = curve.rows[max(curve.shared)].config
    if config.get("device") != "cpu":
        what = "Virtual GPUs share one GPU, so more of them are not more hardware"
        instead = "measure on a machine with several GPUs, or several hosts with --hosts"
    elif curve.noun == "device":
        what = "Logical CPU devices of one process share its cores, so more of them are not more hardware"
        instead = "measure workers of one thread each: --device=cpu --local_cluster=worker:N with N up to the cores"
    else:
        what = "These processes have more threads than the host has cores, so more workers are not more hardware"
        instead = "start fewer workers, or give each fewer threads with --num_intra_threads and --num_inter_threads"
    numbers = ", ".join(map(str, sorted(curve.shared)))
    return f"{what}: {numbers} {curve.noun}s show what the software costs, not how it scales. Instead, {instead}."


def _expected(curve: Curve, fit: Fit) -> Iterator[str]:
    number = curve.predicted[0]
    rate, gain = fit.rate(number), fit.rate(number).value / fit.rate(fit.most).value - 1
    shares = [f"sigma = {percent(fit.sigma)}", *([f"kappa = {percent(fit.kappa)}"] if fit.has_kappa else [])]
    yield (
        f"{' and '.join(shares)}: with {number} {curve.noun}s, {rate.rounded()} images/s "
        f"({rate.range()}) and an efficiency of {percent(fit.efficiency(number))} are expected, {gain:+.0%} "
        f"over {fit.most}."
    )
    yield f"The efficiency falls below 50 % {_where(fit.half_efficient, curve, fit)}."
    if fit.has_kappa:
        yield f"The rate is highest {_where(fit.fastest, curve, fit)}."


def _where(number: Interval, curve: Curve, fit: Fit) -> str:
    limit, _, interval = how_many(number, fit).partition(" (")
    words = limit.split()
    noun = f"{curve.noun}{'s' * (limit != '1')}"
    at = f"{'at ' if len(words) == 1 else ''}{limit} {noun}{f' ({interval}' if interval else ''}"
    return at if len(words) == 1 else f"{at}, farther than these points can tell"


def _limit(curve: Curve, fit: Fit) -> Iterator[str]:
    """Yields which term of the law costs most at the largest predicted number, and what to run next."""
    number, sigma, kappa = curve.predicted[-1], fit.sigma, fit.kappa
    if fit.misfit > _MISFIT and fit.efficiency(number).high >= 1:
        yield f"The points do not follow the law, so it shows no limit; `doctor` may find a slow {curve.noun}."
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
    ask = "Next, `doctor` shows which part of a step grows"
    alone = curve.noun == "device" and manager != "independent"
    yield ask + (f", and --variable_update={manager},independent what remains without exchange." if alone else ".")


def _doubts(curve: Curve) -> Iterator[str]:
    """Yields what the numbers assume."""
    fit = curve.fit
    assert fit is not None, "there is something to doubt"
    yield "The intervals are those of the law: where costs follow another one, predictions may lie outside."
    if not fit.has_kappa:
        yield (
            "Two points determine only sigma, so kappa is taken as 0: more devices may be slower than predicted where "
            "coherence costs, and faster where costs level off, as those of a ring do."
        )
    if curve.degrees is None:
        yield f"Nothing was repeated, so equal runs are assumed to differ by {intervals.ASSUMED_SPREAD:.0%}."
    if 1 not in curve.rows:
        yield f"One {curve.noun} was not measured: efficiencies are over the rate that the curve has there."
    if next(iter(curve.rows.values())).config.get("variable_update") == "independent":
        yield f"Independent {curve.noun}s exchange nothing and train a model each: this is an upper bound."
    if any(record.warnings for row in curve.rows.values() for record in row.valid):
        yield "Some runs have warnings: what slows a busy machine looks like contention."
    expected = fit.efficiency(curve.predicted[0])
    if fit.misfit > _MISFIT:
        rates = [curve.rows[number].rate / number for number in curve.fitted]
        yield (
            f"The rate per {curve.noun} rises with their number, which the law does not have."
            if rates[-1] > rates[0]
            else f"The points lie {fit.misfit:.1f} times as far from the curve as repeats do from each other."
        )
    if expected.high - expected.low > _WIDE:
        yield "This is too uncertain to decide on: measure more numbers, or raise --repeats or --num_batches."
    yield (
        "The batch per device is constant (weak scaling), and a prediction assumes that further "
        f"{curve.noun}s are connected as these are."
    )
