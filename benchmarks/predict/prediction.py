"""The rate of a configuration on a described host, with an interval and what limits it. No TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from statistics import NormalDist

from benchmarks.predict.hosts import (
    BETWEEN_GPUS,
    COPIES,
    HOST_MEMORY,
    LOOPBACK,
    NCCL_1,
    NETWORK_IN,
    NETWORK_OUT,
    PCIE_DOWN,
    PCIE_UP,
    Hardware,
    LinkRate,
    Reached,
    link_rates,
    reached,
)
from benchmarks.predict.simulation import Timeline, simulate
from benchmarks.predict.step_graph import Exchange, LayerShare, Layout, tasks_of_step
from results.intervals import ASSUMED_SPREAD

COMPUTING, LATENCY = "computing", "latency"
_LIMITS = 0.02  # what would make a step less than so much shorter does not limit it
_CALIBRATIONS = 3
# What may be twice as good; of a link both directions.
_BETTER: Mapping[str, tuple[str, ...]] = {
    COMPUTING: (COMPUTING,),
    LATENCY: (LATENCY,),
    "PCIe": (PCIE_DOWN, PCIE_UP),
    "links between devices": (BETWEEN_GPUS, NCCL_1),
    "host memory": (HOST_MEMORY,),
    "processes of a host": (LOOPBACK,),
    "network": (NETWORK_IN, NETWORK_OUT),
    "copies by the cores": (COPIES,),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """What is predicted.

    Attributes:
        parts: of the model.
        hardware: of every host.
        batch_per_device: images.
        exchange: of all devices.
        step_seconds: of one device alone, with `exchange_of_one`.
        layout: devices and hosts.
        exchange_of_one: in the step that was measured on one device.
        measured: bytes/s of links that were measured, which replace those of the data sheets.
        uncertain: factor by which the rate of one device may be lower or higher.
    """

    parts: Sequence[LayerShare]
    hardware: Hardware
    batch_per_device: int
    exchange: Exchange
    step_seconds: float
    layout: Layout
    exchange_of_one: Exchange = Exchange()
    measured: Mapping[str, float] = dataclasses.field(default_factory=dict)
    uncertain: float = 1.0

    @property
    def images(self) -> int:
        """Returns those of a step of all devices."""
        return self.layout.total * self.batch_per_device


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Images/s of all devices, the ends of its 90 % interval, and the step that gives it.

    Attributes:
        efficiency: images/s per device over those of one device alone.
        timeline: of the step.
    """

    images_per_sec: float
    low: float
    high: float
    efficiency: float
    timeline: Timeline


def predict(subject: Subject, usual: Reached | None = None) -> Prediction:
    """Predicts a rate; its interval is from all links at the slow to all at the fast end, and of a device's error.

    On CPUs that read weights from parameter servers, gradients are sometimes sent as soon as they are ready, since
    TensorFlow's executor takes the operations that are ready in no fixed order. This is the fast end.

    `usual`: the shares of data sheets that are reached; None for those of the suite.
    """
    timeline = step(subject, usual)
    fastest = subject
    if subject.hardware.cpu and subject.exchange.reads and subject.exchange.when == "all at the end":
        fastest = dataclasses.replace(subject, exchange=dataclasses.replace(subject.exchange, when="as they come"))
    low = subject.images / step(subject, reached("low")).end_seconds
    high = subject.images / step(fastest, reached("high")).end_seconds
    rate = subject.images / timeline.end_seconds
    return Prediction(
        images_per_sec=rate,
        low=low * (1 - ASSUMED_SPREAD) / subject.uncertain,
        high=high * (1 + ASSUMED_SPREAD) * subject.uncertain,
        efficiency=subject.step_seconds / timeline.end_seconds,
        timeline=timeline,
    )


def step(subject: Subject, shares: Reached | None = None, *, better: Sequence[str] = ()) -> Timeline:
    """Returns the time line of a step.

    Args:
        subject: what is predicted.
        shares: of data sheets that are reached; None for those of the suite.
        better: what is twice as good: links, `COMPUTING` or `LATENCY`.
    """
    shares, factors = shares or reached(), dict.fromkeys(better, 2)
    rates = {
        link: LinkRate(factors.get(link, 1) * rate.bytes_per_sec, rate.latency_seconds / factors.get(LATENCY, 1))
        for link, rate in _rates(subject, shares, subject.layout.devices).items()
    }
    waits = subject.exchange.when != "without waiting"
    spread = shares.spread / subject.exchange.every**0.5  # of the time between two exchanges
    slowest = 1 + spread * expected_maximum(subject.layout.total) if waits else 1.0
    on_board = shares.board if min(subject.hardware.gpus_per_board, subject.layout.devices) > 1 else 1.0
    seconds = compute_seconds(subject, shares) / factors.get(COMPUTING, 1) * slowest / on_board
    return simulate(tasks_of_step(subject.parts, subject.exchange, rates, seconds))


def compute_seconds(subject: Subject, shares: Reached) -> float:
    """Returns how long one device computes in the step that was measured, without what it exchanges."""
    seconds, rates = subject.step_seconds, _rates(subject, shares, 1)
    if not (subject.exchange_of_one.reads or subject.exchange_of_one.gradients):
        return seconds
    for _ in range(_CALIBRATIONS):
        with_exchange = simulate(tasks_of_step(subject.parts, subject.exchange_of_one, rates, seconds)).end_seconds
        seconds = max(seconds + subject.step_seconds - with_exchange, subject.step_seconds / 10)
    return seconds


def _rates(subject: Subject, shares: Reached, devices: int) -> dict[str, LinkRate]:
    rates = link_rates(subject.hardware, shares, devices)
    return rates | {
        link: dataclasses.replace(rates[link], bytes_per_sec=measured) for link, measured in subject.measured.items()
    }


def gains(subject: Subject, base: Timeline) -> dict[str, float]:
    """Returns by which share the rate would rise if computing, latency or a link that is used were twice as good.

    `base`: the time line of a step of the subject.
    """
    links = (hop.link for stage in (*subject.exchange.reads, *subject.exchange.gradients) for hop in stage)
    used = {COMPUTING, LATENCY, *links}
    return {
        name: base.end_seconds / step(subject, better=better).end_seconds - 1
        for name, better in _BETTER.items()
        if used & {*better}
    }


def limit(found: Mapping[str, float]) -> str:
    """Returns what limits a step: what makes it shortest if it is twice as fast."""
    return max(found, key=lambda name: found[name])


def link_that_limits(found: Mapping[str, float]) -> str | None:
    """Returns the link that costs most, if any costs something."""
    links = {name: gain for name, gain in found.items() if name != COMPUTING and gain >= _LIMITS}
    return max(links, key=lambda name: links[name], default=None)


def expected_maximum(count: int) -> float:
    """Returns the mean of the largest of so many standard normal numbers (Blom 1958), with an error below 0.03."""
    return 0.0 if count < 2 else NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
