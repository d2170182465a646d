"""Compares managers on a model that the user names with the gradients of its towers, computed one tower at a time."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from benchmarks.cluster.member import Alone
from benchmarks.config.config import Config
from benchmarks.config.variable_update import Variables
from benchmarks.data.pipeline.tower_input import InputSpec
from benchmarks.devices import device_plan as device_planning
from benchmarks.errors import headline
from benchmarks.process.watchdog import Watchdog
from benchmarks.verify import model_oracle
from benchmarks.verify.cases import TOWERS, Case, CaseResult, maker, rule_of, titled, under, why_not_under
from models import building, specs
from variable_mgr.catalog import MANAGERS
from variable_mgr.modifiers import Modifiers, why_not

_LOCAL_STEPS = 2  # so that the weights of towers differ after some steps


def cases(model: str, setting: Variables | None = None) -> list[Case]:
    """Returns the comparisons of a model: under one manager with its modifiers, or under all managers."""
    if setting:
        settings = [(setting.variable_update, setting.modifiers, str(setting.shared_on))]
    else:
        local = Modifiers(local_sgd_steps=_LOCAL_STEPS)
        settings = [
            (name, local if "local_sgd_steps" in entry.modifiers else Modifiers(), "cpu")
            for name, entry in MANAGERS.items()
        ]
    return [
        Case(manager, modifiers, shared_on, TOWERS, f"{model} under {titled(manager, modifiers)}")
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
    model, training = specs.find_model(config.workload.model), config.training
    options, rate = device_planning.session_config(config.devices), training.learning_rate
    of_model: dict[str, Any] = {
        "data_format": config.workload.data_format,
        "num_classes": config.workload.num_classes,
        "seed": training.seed,
    }
    build = functools.partial(building.build, model, **of_model)
    images = InputSpec(
        batch_per_device=model_oracle.IMAGES_PER_TOWER,
        image_size=model.image_size,
        channels=model.channels,
        **of_model,
    )
    limited: dict[str, Any] = {
        "team": Alone(watchdog),
        "step_timeout_seconds": config.processes.step_timeout_seconds,
    }
    first = config.place.towers[0]
    with model_oracle.LoneTower(build, images, first, options, **limited) as tower:
        for case in under(rule_of(training), chosen):
            devices = device_planning.plan(config.devices, shared_on=case.shared_on)
            reason = why_not(case.manager, case.modifiers, devices.place) or why_not_under(case)
            if reason:
                yield CaseResult(case, None, reason)
                continue
            wanted = functools.partial(
                model_oracle.Steps,
                case.manager,
                case.modifiers,
                tower.compute,
                learning_rate=rate,
                rule=case.rule,
            )
            make = maker(case.manager, devices, case.modifiers)
            try:
                found = model_oracle.deviation(
                    make, wanted, build, images, devices, rate, options, rule=case.rule, **limited
                )
                result = CaseResult(case, found.error)
                yield result if result.passed else CaseResult(case, found.error, f"differs most in {found.where}")
            except tf.errors.OpError as failure:
                yield CaseResult(case, float("inf"), headline(failure))
