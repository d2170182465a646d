"""Compares every manager, reduction and modifier that can run on these devices with the references."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.errors import headline
from benchmarks.topology import devices as device_planning
from benchmarks.verify import oracle
from variable_mgr import expected, factory
from variable_mgr.catalog import MANAGERS
from variable_mgr.modifiers import Modifiers, why_not
from variable_mgr.reductions.algorithms import ALGORITHMS

# What may be put around a reduction, by the name that the table shows.
TRANSFERS: dict[str, dict[str, Any]] = {
    "": {},
    "relaxed": {"relaxed_consistency": True},
    "repacked": {"gradient_repacking": 2},
    "small aggregated": {"agg_small_grads_max_bytes": 1024},
    "compact": {"compact_gradient_transfer": True},
    "compact bfloat16": {"compact_gradient_transfer": True, "compact_gradient_dtype": "bfloat16"},
    "relaxed repacked compact": {
        "relaxed_consistency": True,
        "gradient_repacking": 1,
        "compact_gradient_transfer": True,
    },
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One comparison: a manager with modifiers against a reference."""

    manager: str
    modifiers: Modifiers
    shared_on: str
    reference: str
    title: str

    @property
    def tolerance(self) -> float:
        """Returns how large the error may be."""
        return expected.AFTER_CONVOLUTIONS if self.reference == "whole batch" else expected.of(self.modifiers)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What came of a case: the error, or the sentence why it cannot run here."""

    case: Case
    error: float | None
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Returns whether the error is within the tolerance; a case that cannot run here has not failed."""
        return self.error is None or self.error <= self.case.tolerance


def cases() -> Iterator[Case]:
    """Yields everything that there is to compare; to be registered is to be in it."""
    for optimizer in ("sgd", "momentum"):
        yield from _managers_against_numpy(optimizer)
    yield from _reductions_against_numpy()
    yield from _against_the_whole_batch()


def _managers_against_numpy(optimizer: str) -> Iterator[Case]:
    for manager in MANAGERS:
        for shared_on in ("cpu", "gpu") if manager == "parameter_server" else ("cpu",):
            where = f" variables on {shared_on}" if manager == "parameter_server" else ""
            yield Case(manager, Modifiers(), shared_on, optimizer, f"{manager}{where}")
    for shared_on in ("cpu", "gpu"):
        title = f"parameter_server variables on {shared_on} staged"
        yield Case("parameter_server", Modifiers(staged_vars=True), shared_on, optimizer, title)
    title = "parameter_server asynchronous, towers in turn"
    yield Case("parameter_server", Modifiers(asynchronous=True), "cpu", optimizer, title)
    for steps in (2, 3):
        yield Case("local_sgd", Modifiers(local_sgd_steps=steps), "gpu", optimizer, f"local_sgd every {steps} steps")


def _reductions_against_numpy() -> Iterator[Case]:
    for transfer, fields in TRANSFERS.items():
        modifiers = Modifiers(**fields)  # type: ignore[arg-type]
        yield Case("collective_all_reduce", modifiers, "cpu", "sgd", f"collective_all_reduce {transfer}".strip())
        for algorithm in ALGORITHMS:
            chosen = dataclasses.replace(modifiers, all_reduce_spec=algorithm)
            yield Case("replicated", chosen, "cpu", "sgd", f"replicated {algorithm} {transfer}".strip())


def _against_the_whole_batch() -> Iterator[Case]:
    # Shards and sizes matter only for tensors that are not scalars.
    for spec in [*ALGORITHMS, "xring#2", "psgpu#3", "pscpu:16:xring"]:
        yield Case("replicated", Modifiers(all_reduce_spec=spec), "cpu", "whole batch", f"replicated {spec}")
    for manager in ("collective_all_reduce", "parameter_server"):
        yield Case(manager, Modifiers(), "gpu", "whole batch", manager)
    for manager in ("collective_all_reduce", "parameter_server", "replicated"):
        title = f"{manager} with dense layers divided over towers"
        yield Case(manager, Modifiers(fc_model_parallel=True), "gpu", "whole batch", title)


def verdicts(
    kind: str, towers: int, virtual_gpus: int, config: Callable[[int], tf.compat.v1.ConfigProto]
) -> Iterator[Verdict]:
    """Runs all cases on `towers` devices of a kind and yields what came of each.

    Args:
        kind: `cpu` or `gpu`.
        towers: number of devices.
        virtual_gpus: logical GPUs per physical GPU.
        config: makes the session's configuration for a number of devices.
    """
    tf.config.experimental.enable_tensor_float_32_execution(False)  # as in a run: fp32 means fp32

    def plan(count: int, shared_on: str) -> device_planning.Devices:
        return device_planning.plan(kind, count, virtual_gpus=virtual_gpus, shared_on=shared_on)

    @functools.cache  # trained when the first case needs it, and not again for the others
    def weights_of_one_device() -> dict[str, np.ndarray]:
        alone = plan(1, "cpu")
        return oracle.convolutional_weights(maker("replicated", alone, Modifiers()), alone, towers, config(1))

    for case in cases():
        devices = plan(towers, case.shared_on)
        reason = why_not(case.manager, case.modifiers, devices.place)
        if towers == 1 and case.manager not in ("independent", "parameter_server"):
            reason = "there is nothing to exchange with one tower; say --num_gpus=2 (on one GPU with --virtual_gpus=2)."
        if reason:
            yield Verdict(case, None, reason)
            continue
        try:
            if case.reference == "whole batch":
                make = maker(case.manager, devices, case.modifiers)
                divided = case.modifiers.fc_model_parallel
                weights = oracle.convolutional_weights(make, devices, towers, config(towers), divided=divided)
                error = largest_difference(weights, weights_of_one_device())
            else:
                error = _scalar_error(case, devices, config(towers))
            yield Verdict(case, error)
        except tf.errors.OpError as failure:
            yield Verdict(case, float("inf"), headline(failure))


def maker(manager: str, devices: device_planning.Devices, modifiers: Modifiers) -> oracle.MakeManager:
    """Returns what makes a manager on these devices."""
    return functools.partial(factory.make, manager, devices.place, shared_devices=devices.shared, modifiers=modifiers)


def _scalar_error(case: Case, devices: device_planning.Devices, config: tf.compat.v1.ConfigProto) -> float:
    make = maker(case.manager, devices, case.modifiers)
    wanted = wanted_of(case.manager, case.modifiers, len(devices.towers), case.reference)
    return oracle.trained(make, devices, case.reference, config).error(wanted)


def wanted_of(manager: str, modifiers: Modifiers, towers: int, optimizer: str) -> expected.Trajectory:
    """Returns what the scalars must become under a manager with modifiers."""
    if modifiers.asynchronous:
        return expected.expected_in_turn(towers, optimizer)
    mode = "relaxed" if modifiers.relaxed_consistency else "staged" if modifiers.staged_vars else "plain"
    return expected.expected(
        towers,
        optimizer,
        exchanged=manager not in ("independent", "local_sgd"),
        mode=mode,
        copies=1 if manager == "parameter_server" else towers,
        average_every=(modifiers.local_sgd_steps or 1) if manager == "local_sgd" else 0,
    )


def largest_difference(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    """Returns the largest relative difference of weights by name, absolute below 1."""
    if got.keys() != wanted.keys():
        return float("inf")
    return max(expected.relative_error(got[name], wanted[name]) for name in wanted)
