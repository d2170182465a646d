"""Makes a variable manager by name."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Collection, Sequence

from variable_mgr.catalog import MANAGERS
from variable_mgr.manager import VariableManager
from variable_mgr.managers.column_sharded import ColumnSharded
from variable_mgr.modifiers import Modifiers, why_not
from variable_mgr.place import Place


def make(
    name: str, place: Place, *, shared_devices: Sequence[str], modifiers: Modifiers, divided: Collection[str] = ()
) -> VariableManager:
    """Makes the manager called `name`, a key of `variable_mgr.catalog.MANAGERS`.

    With `fc_model_parallel`, `divided` has the names of the weights of which each tower holds some columns.

    Raises:
        ValueError: the manager does not support the modifiers, or not in this place; see `modifiers.why_not`.
    """
    problem = why_not(name, modifiers, place)
    if problem:
        raise ValueError(problem)
    entry = MANAGERS[name]
    if modifiers.all_reduce_spec is None:
        on_host = tuple(shared_devices) == (place.host,)
        spec = entry.default_reduction(in_cluster=place.in_cluster, on_host=on_host)
        modifiers = dataclasses.replace(modifiers, all_reduce_spec=spec)
    module = importlib.import_module(f"variable_mgr.managers.{entry.module}")
    manager: VariableManager = getattr(module, entry.maker)(place, shared_devices, modifiers)
    return ColumnSharded(manager, place.towers, divided) if modifiers.fc_model_parallel else manager
