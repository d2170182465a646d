"""Compares managers on a model that the user names with the gradients of its towers, computed one tower at a time."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from benchmarks.cluster.member import Alone
from benchmarks.config.config import Config
from benchmarks.errors import headline
from benchmarks.input.tower_input import InputSpec
from benchmarks.process.watchdog import Watchdog
from benchmarks.topology import devices as device_planning
from benchmarks.verify import model_oracle
from benchmarks.verify.cases import TOWERS, Case, CaseResult, maker, rule_of, titled, under, why_not_under
from models import building, specs
from variable_mgr.catalog import MANAGERS
from variable_mgr.modifiers import Modifiers, why_not

_LOCAL_STEPS = 2  # so that the weights of towers differ after some steps


def cases(config: Config, *, one_setting: bool = False) -> list[Case]:
    """Returns the comparisons of the configured model: under its manager with its modifiers, or under all managers."""
    settings = [(config.variables.variable_update, config.variables.modifiers, config.variables.shared_on)]
    if not one_setting:
        of_manager = {
            name: Modifiers(local_sgd_steps=_LOCAL_STEPS if "local_sgd_steps" in entry.modifiers else 0)
            for name, entry in MANAGERS.items()
        }
        settings = [(name, modifiers, "cpu") for name, modifiers in of_manager.items()]
    return [
        Case(manager, modifiers, shared_on, TOWERS, f"{config.workload.model} under {titled(manager, modifiers)}")
        for manager, modifiers, shared_on in settings
    ]


def results(config: Config, chosen: Sequence[Case], watchdog: Watchdog | None = None) -> Iterator[CaseResult]:
    """Runs comparisons of the configured model on the configured devices and yields their results.

    Args:
        config: decides on the model, the devices, and how long a step may take.
        chosen: as `cases` returns them.
        watchdog: ends the process if a step takes longer; None: no limit.
    """
    tf.config.experimental.enable_tensor_float_32_execution(False)  # as in a run: fp32 means fp32
    model, count, team = specs.find(config.workload.model), config.devices.num_devices, Alone(watchdog)
    options = device_planning.session_config(config.devices.device, count, **config.runtime.session_options())
    build = functools.partial(
        building.build,
        model,
        data_format=config.workload.data_format,
        num_classes=config.workload.num_classes,
        seed=config.training.seed,
    )
    images = InputSpec(
        batch_per_device=model_oracle.IMAGES_PER_TOWER,
        image_size=model.image_size,
        channels=model.channels,
        data_format=config.workload.data_format,
        num_classes=config.workload.num_classes,
        seed=config.training.seed,
    )
    limited: dict[str, Any] = {"team": team, "step_timeout_seconds": config.processes.step_timeout_seconds}
    first = config.place.towers[0]
    with model_oracle.LoneTower(build, images, first, options, **limited) as tower:
        for case in under(rule_of(config), chosen):
            devices = device_planning.plan(
                config.devices.device, count, virtual_gpus=config.devices.virtual_gpus, shared_on=case.shared_on
            )
            reason = why_not(case.manager, case.modifiers, devices.place) or why_not_under(case)
            if reason:
                yield CaseResult(case, None, reason)
                continue
            wanted = functools.partial(
                model_oracle.Steps,
                case.manager,
                case.modifiers,
                tower.compute,
                learning_rate=config.training.learning_rate,
                rule=case.rule,
            )
            make = maker(case.manager, devices, case.modifiers)
            try:
                found = model_oracle.deviation(
                    make,
                    wanted,
                    build,
                    images,
                    devices,
                    config.training.learning_rate,
                    options,
                    rule=case.rule,
                    **limited,
                )
                result = CaseResult(case, found.error)
                yield result if result.passed else CaseResult(case, found.error, f"differs most in {found.where}")
            except tf.errors.OpError as failure:
                yield CaseResult(case, float("inf"), headline(failure))
