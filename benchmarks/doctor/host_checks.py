"""Is this machine quiet enough to be measured on? Looks at it for a moment and says what it saw. Needs no TensorFlow.

An idle machine shows less than a loaded one: time that a hypervisor takes, slowing by heat, and CPU limits appear only
where somebody wants to compute.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from benchmarks.doctor import gpu_checks
from benchmarks.doctor.host_state import MachineState, Sources
from benchmarks.doctor.observation import UNSEEN, Observation, judged

# What others may use: less than half of the smallest drop that a comparison looks for, but no less than daemons need.
_OTHERS_SHARE = 0.02
_OTHERS_CORES = 0.1
_STOLEN_SHARE = 0.01
_CPU_WAITED_SHARE = 0.05
_MEMORY_WAITED_SHARE = 0.01
_MEMORY_AVAILABLE_SHARE = 0.10
_SWAPPED_BYTES_PER_SECOND = 1e6
_MOST_NAMED = 3
_WORTH_NAMING_CORES = 0.01


def look(*, seconds: float = 2.0, sources: Sources | None = None) -> list[Observation]:
    """Looks at the machine for so many seconds, in which this process should do nothing else.

    Args:
        seconds: how long, above 0; shorter looks miss what comes now and then.
        sources: where to look; None for this machine.
    """
    sources = sources or Sources()
    before = sources.read()
    sources.sleep(seconds)
    span = Span(before, sources.read(), len(sources.cpus))
    seen = [observation for observe in _OF_THE_HOST if (observation := observe(span))]
    return seen + [observation for gpu in sources.gpus() for observation in gpu_checks.observe(gpu)]


@dataclasses.dataclass(frozen=True)
class Span:
    """The machine at the beginning and at the end of a look, and how many of its cores this process may use."""

    before: MachineState
    after: MachineState
    cores: int

    @property
    def seconds(self) -> float:
        """How long the look took."""
        return self.after.clock_seconds - self.before.clock_seconds

    @property
    def own_cpu_seconds(self) -> float:
        """What this process used."""
        return self.after.own_cpu_seconds - self.before.own_cpu_seconds


def _others(span: Span) -> Observation:
    name, before, after = "CPU used by others", span.before.cores, span.after.cores
    if before is None or after is None:
        return Observation(name, UNSEEN)
    used = max(0.0, after.busy_seconds - before.busy_seconds - span.own_cpu_seconds) / span.seconds
    value = f"{used:.2f} of {_counted(span.cores, 'core')}"
    if used <= _bearable_cores(span.cores):
        return Observation(name, value)
    names = ", ".join(_busiest(span))
    if names:
        advice = "End it or wait for it, or keep it off these cores (taskset, cpusets)."
        return Observation(name, f"{value}: {names}", True, advice)
    advice = "It is the kernel, has ended already, or is outside this container: wait, or ask who shares the host."
    return Observation(name, value, True, advice)


def _bearable_cores(cores: float) -> float:
    return max(_OTHERS_CORES, _OTHERS_SHARE * cores)


def _busiest(span: Span) -> Iterator[str]:
    """Yields the processes that used most, in words."""
    used = []
    for key, process in span.after.processes.items():
        earlier = span.before.processes.get(key)
        spent = process.cpu_seconds - (earlier.cpu_seconds if earlier else 0.0)
        used.append((spent / span.seconds, process))
    for cores, process in sorted(used, key=lambda one: -one[0])[:_MOST_NAMED]:
        if cores >= _WORTH_NAMING_CORES:
            yield f"{cores:.2f} {process.name} (pid {process.pid})"


def _load(span: Span) -> Observation:
    load = span.before.load_1min
    return Observation("load", UNSEEN if load is None else f"{load:.2f} on average over the last minute")


def _limit(span: Span) -> Observation | None:
    """Says whether a container gets less CPU time than it has cores: its threads then run and stop by turns."""
    group = span.after.container
    if group is None:
        return None
    return judged(
        "CPU limit of the container",
        f"{group.limit_cores:g} cores' time on {_counted(span.cores, 'core')}",
        group.limit_cores < span.cores,
        "Threads on all cores use the limit up and are then stopped for a while: give the container cores of its own "
        "(docker --cpuset-cpus, Kubernetes' static CPU manager), not a share of time, or start it with taskset.",
    )


def _throttled(span: Span) -> Observation | None:
    before, after = span.before.container, span.after.container
    if before is None or after is None or before.throttled_seconds is None or after.throttled_seconds is None:
        return None
    share = (after.throttled_seconds - before.throttled_seconds) / span.seconds
    return judged(
        "stopped by the CPU limit",
        f"{share:.1%} of the time",
        share > 0,
        "Something in this container has used its CPU limit up: end it, or raise the limit.",
    )


def _others_in_container(span: Span) -> Observation | None:
    before, after = span.before.container, span.after.container
    if before is None or after is None or before.used_seconds is None or after.used_seconds is None:
        return None
    used = max(0.0, after.used_seconds - before.used_seconds - span.own_cpu_seconds) / span.seconds
    return judged(
        "CPU used by others in the container",
        f"{used:.2f} of {after.limit_cores:g} cores' time",
        used > _bearable_cores(after.limit_cores),
        "End what else runs in this container, or measure in one of its own.",
    )


def _stolen(span: Span) -> Observation:
    name, before, after = "CPU taken by the hypervisor", span.before.cores, span.after.cores
    if before is None or after is None:
        return Observation(name, UNSEEN)
    passed = max(after.total_seconds - before.total_seconds, 1e-9)
    share = max(0.0, after.stolen_seconds - before.stolen_seconds) / passed
    advice = "Other virtual machines use this host's cores: take a type of machine with dedicated ones."
    return judged(name, f"{share:.1%} of the time (steal)", share > _STOLEN_SHARE, advice)


def _cpu_pressure(span: Span) -> Observation:
    advice = "More wants to run than there are cores: end it, or wait for it."
    return _waiting(span, "CPU pressure", "cpu", _CPU_WAITED_SHARE, advice)


def _memory_pressure(span: Span) -> Observation:
    advice = "Memory is short: end what holds it, or take a machine with more."
    return _waiting(span, "memory pressure", "memory", _MEMORY_WAITED_SHARE, advice)


def _waiting(span: Span, name: str, resource: str, bearable_share: float, advice: str) -> Observation:
    before, after = (state.stalled_seconds.get(resource) for state in (span.before, span.after))
    if before is None or after is None:
        return Observation(name, UNSEEN)
    share = (after - before) / span.seconds
    return judged(name, f"{share:.1%} of the time something waited for it", share > bearable_share, advice)


def _memory(span: Span) -> Observation:
    total, available = (span.after.memory.get(name) for name in ("MemTotal", "MemAvailable"))
    if not total or available is None:
        return Observation("memory", UNSEEN)
    return judged(
        "memory",
        f"{available / 2**20:.1f} of {total / 2**20:.1f} GiB available",
        available / total < _MEMORY_AVAILABLE_SHARE,
        "End what holds it: files that are read would not stay in memory, and soon the machine swaps.",
    )


def _swapping(span: Span) -> Observation:
    before, after = span.before.swapped_bytes, span.after.swapped_bytes
    if before is None or after is None:
        return Observation("swapping", UNSEEN)
    rate = (after - before) / span.seconds
    advice = "Memory is short, and pages go to and from the disk: end what holds it."
    return judged("swapping", f"{rate / 1e6:.1f} MB/s", rate > _SWAPPED_BYTES_PER_SECOND, advice)


def _governor(span: Span) -> Observation:
    governors = span.after.governors
    return judged(
        "frequency governor",
        ", ".join(governors) or UNSEEN,
        any(governor != "performance" for governor in governors),
        "Cores are slow until they have been busy for a while: sudo cpupower frequency-set -g performance.",
    )


def _heat(span: Span) -> Observation:
    before, after = span.before.hot_events, span.after.hot_events
    if before is None or after is None:
        return Observation("slowdowns by heat", UNSEEN)
    value = f"{after - before} while looking, {after} since the start"
    return judged("slowdowns by heat", value, after > before, "Let the machine cool down, and look at its fans.")


def _turbo(span: Span) -> Observation:
    return Observation("turbo", _switch(span.after.turbo, "the clock depends on how many cores are busy"))


def _smt(span: Span) -> Observation:
    return Observation("SMT", _switch(span.after.has_smt, "two threads share a core"))


def _switch(is_on: bool | None, meaning: str) -> str:
    if is_on is None:
        return UNSEEN
    return f"on: {meaning}" if is_on else "off"


def _numa(span: Span) -> Observation:
    nodes = span.after.numa_nodes
    return Observation("NUMA", _counted(nodes, "node") if nodes else UNSEEN)


_OF_THE_HOST: tuple[Callable[[Span], Observation | None], ...] = (
    _others,
    _load,
    _limit,
    _others_in_container,
    _throttled,
    _stolen,
    _cpu_pressure,
    _memory_pressure,
    _memory,
    _swapping,
    _governor,
    _heat,
    _turbo,
    _smt,
    _numa,
)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
