"""Makes a variable manager by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from variable_mgr.manager import VariableManager
from variable_mgr.parameter_server import ParameterServer
from variable_mgr.reduction import CopyReduction, NoExchange
from variable_mgr.replicated import Replicated

# Each takes the towers' devices and the devices on which shared work is done.
_MANAGERS: dict[str, Callable[[Sequence[str], Sequence[str]], VariableManager]] = {
    "independent": lambda towers, shared: Replicated(towers, NoExchange()),
    "parameter_server": ParameterServer,
    "replicated": lambda towers, shared: Replicated(towers, CopyReduction(shared)),
}


def make(name: str, *, tower_devices: Sequence[str], shared_devices: Sequence[str]) -> VariableManager:
    """Makes the manager called `name`, a key of `variable_mgr.catalog.MANAGERS`.

    Args:
        name: which manager.
        tower_devices: one device per tower.
        shared_devices: where shared variables live and copied gradients are averaged: the host alone, or the towers'
            own devices, which then take turns.
    """
    return _MANAGERS[name](tower_devices, shared_devices)
