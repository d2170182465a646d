"""What models compute and exchange in a step, counted once and kept in the user's cache directory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.config import outside_models
from benchmarks.config.config import Config
from benchmarks.console import progress
from benchmarks.process.tensorflow_setup import Runtime
from benchmarks.system.cache import CacheFile
from benchmarks.topology.start import start
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
    found = [_held(_key(config, code)) for config in configs]
    missing = [index for index, held in enumerate(found) if held is None]
    if missing:
        start(Runtime())
        with progress.counted("counting operations", len(missing)):
            for index in missing:
                found[index] = facts, sent = _count(configs[index])
                entry = {"model": configs[index].workload.model, "facts": dataclasses.asdict(facts), "sent_bytes": sent}
                _FILE.keep(_key(configs[index], code), entry)
                progress.advance()
    return [counted for counted in found if counted]


def _key(config: Config, code: Mapping[str, Any]) -> str:
    names = ("model", "model_digest", "num_classes", "variable_update", "device", "num_devices", "shared_on")
    fields = config.to_dict()
    return key_of({**{name: fields[name] for name in (*names, "modifiers")}, "code": code})


class _Held(msgspec.Struct):
    """What the cache holds of a model and a manager."""

    facts: ModelFacts
    sent_bytes: int | float | None


def _held(key: str) -> tuple[ModelFacts, float | None] | None:
    held = _FILE.find(key, _Held)
    return (held.facts, held.sent_bytes) if held else None


def _count(config: Config) -> tuple[ModelFacts, float | None]:
    from benchmarks.training import model_facts
    from benchmarks.training.traffic import manager_on_real_devices, model_transfers
    from models import building
    from variable_mgr.traffic import total_bytes

    spec = specs.find(config.workload.model)
    model = building.build(spec, data_format="NHWC", num_classes=config.workload.num_classes, seed=0)
    manager = manager_on_real_devices(
        config.variables.variable_update,
        config.variables.modifiers,
        device=config.devices.device,
        towers=config.devices.num_devices,
        shared_on=config.variables.shared_on,
    )
    return model_facts.of(model, spec), total_bytes(model_transfers(manager, model, config.workload.batch_per_device))
