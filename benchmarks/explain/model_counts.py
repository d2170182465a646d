"""What models compute and exchange in a step, counted once and kept in the user's cache directory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.config import outside_models
from benchmarks.config.config import Config
from benchmarks.config.variable_update import Variables
from benchmarks.config.workload import Workload
from benchmarks.console import progress
from benchmarks.devices.start_tensorflow import start
from benchmarks.machine.cache import CacheFile
from benchmarks.process.tensorflow_setup import Devices, Runtime
from benchmarks.training.model_facts import ModelFacts
from models import specs
from results.record import key_of

_FILE = CacheFile("model_counts.json", "counts of models")


def of(configs: Sequence[Config]) -> list[tuple[ModelFacts, float | None]]:
    """Returns for each configuration the facts of its model and the bytes that its manager sends in a step, if known.

    TensorFlow is imported only if something must be counted.

    Raises:
        UsageError: operations of a model cannot be counted.
    """
    code = outside_models.code()
    parts = [(config.workload, config.devices, config.variables) for config in configs]
    keys = [_key(*each, code) for each in parts]
    found = [_held(key) for key in keys]
    missing = [index for index, held in enumerate(found) if held is None]
    if missing:
        start(Runtime())
        with progress.counted("counting operations", len(missing)):
            for index in missing:
                found[index] = facts, sent = _count(*parts[index])
                entry = {"model": configs[index].workload.model, "facts": dataclasses.asdict(facts), "sent_bytes": sent}
                _FILE.put(keys[index], entry)
                progress.advance()
    return [counted for counted in found if counted]


def _key(workload: Workload, devices: Devices, variables: Variables, code: Mapping[str, Any]) -> str:
    return key_of(
        {
            **{name: getattr(workload, name) for name in ("model", "model_digest", "num_classes")},
            **{name: getattr(devices, name) for name in ("device", "num_devices")},
            **{name: getattr(variables, name) for name in ("variable_update", "shared_on")},
            "modifiers": dataclasses.asdict(variables.modifiers),
            "code": code,
        }
    )


class _Held(msgspec.Struct):
    """What the cache holds of a model and a manager."""

    facts: ModelFacts
    sent_bytes: int | float | None


def _held(key: str) -> tuple[ModelFacts, float | None] | None:
    held = _FILE.saved(key, _Held)
    return (held.facts, held.sent_bytes) if held else None


def _count(workload: Workload, devices: Devices, variables: Variables) -> tuple[ModelFacts, float | None]:
    from benchmarks.graph.sent_bytes import sent_in_one_process
    from benchmarks.training import model_facts
    from models import building
    from variable_mgr.transfers import total_bytes

    spec = specs.find_model(workload.model)
    model = building.build(spec, data_format="NHWC", num_classes=workload.num_classes, seed=0)
    sent = sent_in_one_process(devices, variables, model, workload.batch_per_device)
    return model_facts.of(model, spec), total_bytes(sent)
