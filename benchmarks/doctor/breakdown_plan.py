"""What the ladder runs: from flags to the configuration of each rung. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.config import config, device_options, precision_options
from benchmarks.config import run_flags as flags
from benchmarks.config.config import Config
from benchmarks.doctor.advice import Setting
from benchmarks.doctor.breakdown import Part
from benchmarks.process import subprocesses
from models import specs

DEFAULT_TIME_LIMIT_SECONDS = 180.0
# What has the smallest step that is one: one image, and few weights. Those of `trivial` are 17 MB, whose update took
# 36 ms on two busy cores, where this took 0.6 ms.
_SMALLEST_STEP = {"model": "mlp", "batch_size": "1", "num_gpus": "1", "variable_update": "independent"}
_FIXED_STEPS = "1000"
# GPUs are chosen once, by what this process leaves visible to those that it starts.
_NOT_PASSED_ON = ("device", "num_gpus", "gpus", "log_device_placement")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What is climbed.

    Attributes:
        chosen: the model on all devices, with the manager, as the last rung has them.
        manager: as the user spells it.
        common: flags of every rung.
        at_once: devices that can really compute at the same time.
        time_limit_seconds: for all rungs together, as far as runs can be cut short.
        program: starts a run, given its flags.
    """

    chosen: Config
    manager: str
    common: Mapping[str, str]
    at_once: int
    time_limit_seconds: float = DEFAULT_TIME_LIMIT_SECONDS
    program: Sequence[str] = (sys.executable, str(subprocesses.RUN_BENCH))

    @property
    def setting(self) -> Setting:
        """Returns what advice depends on."""
        chosen, spec = self.chosen, specs.find(self.chosen.model)
        return Setting(
            model=chosen.model,
            device=chosen.device,
            num_devices=chosen.num_devices,
            at_once=self.at_once,
            batch_per_device=chosen.batch_per_device,
            precision=chosen.precision,
            manager=self.manager,
            photos=spec.data_name == "imagenet",
            virtual_gpus=chosen.virtual_gpus,
            has_bf16=chosen.device == "gpu" or precision_options.has_instructions("bf16"),
            as_matmul=precision_options.as_matmul_of(spec),
            other_onednn=None if chosen.onednn else precision_options.other_onednn_mode(os.environ),
            data_dir=chosen.data_dir,
        )


@dataclasses.dataclass(frozen=True)
class Step:
    """A rung before it is run: what it adds, in words what runs, its own flags, and why there is none of it."""

    part: Part
    what: str
    flags: Mapping[str, str]
    why_not: str = ""


def resolve(values: Mapping[str, Any], count_gpus: Callable[[], int]) -> Plan:
    """Turns flag values (None: not given) into a plan: two logical devices on a CPU, or all GPUs, if none are named.

    Raises:
        UsageError: values that make no sense or do not go together.
    """
    chosen = config.resolve(with_all_devices(values, count_gpus), count_gpus, environ={})
    names = [flag.name for flag in flags.RUN_FLAGS["Devices"] if flag.name not in _NOT_PASSED_ON]
    given = {name: str(values[name]).lower() for name in names if values[name] is not None}
    return Plan(
        chosen=chosen,
        manager=values["variable_update"] or chosen.variable_update,
        common={"device": chosen.device, **given},
        at_once=1 if chosen.device == "cpu" else -(-chosen.num_devices // chosen.virtual_gpus),
        time_limit_seconds=values["time_limit_seconds"] or DEFAULT_TIME_LIMIT_SECONDS,
    )


def with_all_devices(values: Mapping[str, Any], count_gpus: Callable[[], int]) -> dict[str, Any]:
    """Returns flag values in which the devices are decided; a lone GPU stays whole, since nobody trains on halves."""
    gpus = 0 if values["device"] == "cpu" else count_gpus()
    whole = {"virtual_gpus": "1"} if gpus and values["virtual_gpus"] is None else {}
    return device_options.default_to_all({**values, **whole}, gpus)


def steps(plan: Plan) -> list[Step]:
    """Returns what is run for all rungs but the last, which needs data."""
    chosen = plan.chosen
    count = chosen.num_devices
    model = {"model": chosen.model, "batch_size": str(chosen.batch_per_device), "precision": chosen.precision}
    alone = {**model, "num_gpus": "1", "variable_update": "independent" if count > 1 else plan.manager}
    apart = {**model, "num_gpus": str(count), "variable_update": "independent"}
    together = {**apart, "variable_update": plan.manager}
    one = "" if count > 1 else "there is one device"
    nothing = one or ("independent exchanges nothing" if plan.manager == "independent" else "")
    copied = {**together, "data_name": "synthetic_host"}
    images = f"{chosen.model}, {chosen.batch_per_device} images"
    return [
        Step(Part.FIXED, "mlp, 1 image on 1 device", {**_SMALLEST_STEP, "num_batches": _FIXED_STEPS}),
        Step(Part.COMPUTE, f"{images} on 1 device", alone),
        Step(Part.DEVICES, f"{images} on each of {count} devices", apart, one),
        Step(Part.EXCHANGE, f"gradients meet: {plan.manager}", together, nothing),
        Step(Part.HOST_COPY, "images come from the host", copied),
    ]


def step_with_data(plan: Plan, last: Step, directory: str) -> Step:
    """Returns what is run for the last rung: what the one before does, with images from a directory."""
    own = {name: value for name, value in last.flags.items() if name != "data_name"}
    whose = "yours" if plan.chosen.data_dir else "made-up ones"
    return Step(Part.INPUT, f"images are read: {whose}", {**own, "data_dir": directory})
