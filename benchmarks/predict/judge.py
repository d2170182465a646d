"""Judges predictions of published rates of several devices and hosts from those of one. Imports TensorFlow late."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from benchmarks.config.variable_update import Variables
from benchmarks.explain.known_gpus import PublishedRate, published_rates
from benchmarks.predict.hosts import Hardware, host_of, reached, shipped
from benchmarks.predict.prediction import Prediction, Subject, predict
from benchmarks.predict.step_graph import Exchange, Layout
from results.exchange.public_table import Figure
from results.report.published import PUBLISHED_NAMES
from results.text import Table
from variable_mgr.modifiers import Modifiers

# Notes of the guide: of 8 hosts, so many also ran a parameter server; elsewhere all did. By model and batch per device.
_SERVERS = {
    ("Inception v3", 64): 6,
    ("Inception v3", 32): 6,
    ("ResNet-50", 32): 4,
    ("ResNet-152", 32): 4,
}
_GPUS_OF_A_HOST, _MOST_HOSTS = 8, 8
_BATCH = 256  # where none is stated: the usual one of the same source
_MODERN_CHIPS = ("GA100", "GH100")
_NCCL: tuple[str, Literal["cpu", "gpu"], str] = ("replicated", "gpu", "nccl")
# What the tables call a manager: our name, where it keeps variables, the reduction. Empty: not stated, taken as NCCL.
_MANAGERS: Mapping[str, tuple[str, Literal["cpu", "gpu"], str | None]] = {
    "parameter_server cpu": ("parameter_server", "cpu", None),
    "parameter_server gpu": ("parameter_server", "gpu", None),
    "replicated": ("replicated", "gpu", "psgpu"),
    "replicated nccl": _NCCL,
    "distributed_replicated": ("distributed_replicated", "cpu", None),
    "": _NCCL,
}
_CLOSE = 0.2
_MUCH = 1.05  # managers whose rates differ by less are not ranked
MISSES = "Missed by more than 10 %, or outside the interval"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judged:
    """A published rate of several devices and its predictions.

    Attributes:
        testbed: of the guide, the name of its host; else empty.
        linear: images/s of as many devices without any loss.
        left_out: the prediction with shares that were fitted without this testbed; that of `prediction` elsewhere.
    """

    rate: PublishedRate
    testbed: str
    linear: float
    prediction: Prediction
    left_out: Prediction

    @property
    def is_within(self) -> bool:
        """Returns whether the published rate is in the interval that was made without its testbed."""
        return self.left_out.low <= self.rate.figure.images_per_sec <= self.left_out.high


def error(images_per_sec: float, row: Judged) -> float:
    """Returns by how much a rate is above the published one, over the published one."""
    return images_per_sec / row.rate.figure.images_per_sec - 1


def judged_rates() -> Iterator[tuple[PublishedRate, PublishedRate, str, Hardware]]:
    """Yields each rate to predict, the one of one device, the testbed of the guide or none, and the host."""
    alone = {_setting(rate): rate for rate in published_rates() if rate.figure.devices == 1}
    beds = {hardware.testbed: (name, hardware) for name, hardware in shipped().items() if hardware.testbed}
    for rate in published_rates():
        one = alone.get(_setting(rate))
        if one is None or one is rate:
            continue
        bed = next((found for words, found in beds.items() if words in rate.figure.machine), None)
        if bed:
            yield rate, one, *bed
        elif rate.gpu.chip in _MODERN_CHIPS:
            yield rate, one, "", host_of(rate.gpu)


def _setting(rate: PublishedRate) -> Figure:
    """Returns the figure without its devices and its rate."""
    return dataclasses.replace(rate.figure, devices=0, images_per_sec=0.0)


def subjects() -> Iterator[tuple[PublishedRate, str, Subject]]:
    """Yields each rate to predict, the testbed, and what is predicted. Imports TensorFlow."""
    from benchmarks.predict.exchange import exchange_of, model_parts

    ours: dict[str, str] = {}
    for name, published in PUBLISHED_NAMES.items():
        ours.setdefault(published, name)
    built = functools.cache(lambda name: model_parts(ours[name], num_classes=None))

    @functools.cache
    def exchange(manager: str, model: str, layout: Layout, nccl_1: bool) -> Exchange:
        name, shared_on, spec = _MANAGERS[manager]
        modifiers = Modifiers(all_reduce_spec=spec)
        variables = Variables(variable_update=name, shared_on=shared_on, modifiers=modifiers)
        return exchange_of(variables, layout, built(model).variables, nccl_1=nccl_1)

    for rate, one, testbed, hardware in judged_rates():
        figure, batch = rate.figure, rate.figure.batch_per_device or _BATCH
        hosts = max(1, figure.devices // _GPUS_OF_A_HOST)
        servers = _SERVERS.get((figure.model, batch), hosts) if hosts == _MOST_HOSTS else hosts
        layout = Layout(figure.devices // hosts, hosts, servers)
        yield (
            rate,
            testbed,
            Subject(
                parts=built(figure.model).parts,
                hardware=hardware,
                batch_per_device=batch,
                exchange=exchange(figure.variable_update, figure.model, layout, bool(testbed)),
                exchange_of_one=exchange(figure.variable_update, figure.model, Layout(1, 1, 1), bool(testbed)),
                step_seconds=batch / one.figure.images_per_sec,
                layout=layout,
            ),
        )


def judge() -> list[Judged]:
    """Predicts all rates."""
    rows = []
    for rate, testbed, subject in subjects():
        prediction = predict(subject)
        without = predict(subject, reached(f"without_{testbed}")) if testbed else prediction
        linear = rate.figure.devices * subject.batch_per_device / subject.step_seconds
        rows.append(Judged(rate=rate, testbed=testbed, linear=linear, prediction=prediction, left_out=without))
    return rows


@dataclasses.dataclass(frozen=True)
class Target:
    """A number that predictions should reach: the name, the number, and whether it is reached."""

    name: str
    wanted: str
    reached: str
    is_met: bool


def targets(rows: Sequence[Judged]) -> list[Target]:
    """Returns the targets, of predictions by shares that were fitted without the testbed."""
    found = []
    groups = {
        "guide, testbed left out": [row for row in rows if row.testbed],
        "8 x A100 and H100 from one": [row for row in rows if not row.testbed],
    }
    for title, group in groups.items():
        errors = _errors(group, _left_out)
        close, median = sum(size <= _CLOSE for size in errors) / len(errors), statistics.median(errors)
        found += [
            Target(f"{title}: median absolute error", "at most 10 %", f"{100 * median:.1f} %", median <= 0.1),
            Target(f"{title}: within 20 %", "at least 90 %", f"{100 * close:.1f} %", close >= 0.9),
        ]
        right, pairs = order_of_managers(group)
        if pairs:
            met = right >= 0.9 * pairs
            found.append(Target(f"{title}: order of managers", "at least 9 of 10", f"{right} of {pairs}", met))
    inside = sum(row.is_within for row in rows) / len(rows)
    found.append(Target("all: in the 90 % interval", "at least 90 %", f"{100 * inside:.1f} %", inside >= 0.9))
    return found


def _left_out(row: Judged) -> float:
    return row.left_out.images_per_sec


def _errors(rows: Sequence[Judged], of: Callable[[Judged], float]) -> list[float]:
    return [abs(error(of(row), row)) for row in rows]


def order_of_managers(rows: Sequence[Judged]) -> tuple[int, int]:
    """Returns how many pairs of managers are predicted in the order that was measured, and how many there are.

    A pair has the same GPU, model, batch, data and number of devices, other managers, and rates that differ by 5 %.
    """
    right = pairs = 0
    for number, one in enumerate(rows):
        for other in rows[:number]:
            fields = ("gpu", "model", "batch_per_device", "data", "devices")
            alike = all(getattr(one.rate.figure, field) == getattr(other.rate.figure, field) for field in fields)
            if not alike or one.rate.figure.variable_update == other.rate.figure.variable_update:
                continue
            measured = one.rate.figure.images_per_sec / other.rate.figure.images_per_sec
            if max(measured, 1 / measured) > _MUCH:
                pairs += 1
                right += (_left_out(one) > _left_out(other)) == (measured > 1)
    return right, pairs


def tables(rows: Sequence[Judged]) -> dict[str, Table]:
    """Returns by title the errors of each machine, the rates that are missed, and the targets."""
    return {
        "Errors by machine, in %": _summary_table(rows),
        MISSES: _misses_table(rows),
        "Targets": _targets_table(targets(rows)),
    }


def _summary_table(rows: Sequence[Judged]) -> Table:
    """Returns the errors of each machine, of predictions with its testbed left out, and of no loss at all."""
    groups: dict[str, list[Judged]] = {}
    for row in rows:
        groups.setdefault(row.rate.figure.machine, []).append(row)
    groups["all"] = list(rows)
    cells = []
    for name, group in groups.items():
        numbers = [name, str(len(group))]
        for errors in (_errors(group, _left_out), _errors(group, lambda row: row.linear)):
            close = sum(size <= _CLOSE for size in errors) / len(errors)
            numbers += [f"{100 * statistics.median(errors):.1f}", f"{100 * close:.0f}"]
        cells.append([*numbers, f"{100 * sum(row.is_within for row in group) / len(group):.0f}"])
    header = ["machine", "rates", "median %", "within 20", "no loss: median %", "no loss: within 20", "in interval %"]
    return Table(header, cells, header[1:])


def _misses_table(rows: Sequence[Judged]) -> Table:
    """Returns the rates that are predicted wrong by more than 10 %, or lie outside their interval, the worst first."""
    worst = sorted(rows, key=lambda row: -abs(error(row.prediction.images_per_sec, row)))
    cells = [
        [
            row.rate.figure.machine,
            row.rate.figure.model,
            str(row.rate.figure.devices),
            str(row.rate.figure.batch_per_device or ""),
            row.rate.figure.variable_update,
            row.rate.figure.precision,
            row.rate.figure.data,
            f"{row.rate.figure.images_per_sec:,.0f}",
            f"{row.prediction.images_per_sec:,.0f}",
            f"{row.left_out.low:,.0f} to {row.left_out.high:,.0f}",
            f"{100 * error(row.prediction.images_per_sec, row):+.0f}",
            f"{100 * error(row.left_out.images_per_sec, row):+.0f}",
        ]
        for row in worst
        if not row.is_within or abs(error(row.prediction.images_per_sec, row)) > 0.1
    ]
    header = ["machine", "model", "devices", "batch", "manager", "precision", "data", "images/s", "predicted"]
    header += ["90 % interval", "error %", "left out, error %"]
    return Table(header, cells, ["devices", "batch", *header[7:]])


def _targets_table(found: Sequence[Target]) -> Table:
    """Returns the targets and whether they are met."""
    cells = [[one.name, one.wanted, one.reached, "met" if one.is_met else "MISSED"] for one in found]
    return Table(["target", "wanted", "reached", ""], cells, ["reached"])
