"""Where a record comes from: the command, the machine as it was before, and the software. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import environment, hardware
from results.record import Identity, identify


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Made before a run; asked after it, when TensorFlow's version is known."""

    command: Sequence[str]
    inventory: hardware.Inventory
    load_1min: float
    session_id: str = ""

    def identity(self, config: Mapping[str, Any]) -> Identity:
        """Gives a run its identity; `config` holds only what can move its number."""
        return identify(
            command=self.command,
            suite_commit=self._commit,
            config=config,
            hardware=self._hardware,
            software=self._software,
            session_id=self.session_id,
        )

    @property
    def environment(self) -> dict[str, Any]:
        """Returns what a reader should know of machine and software."""
        return {**self._hardware, **self._software, **self._surroundings, "load_1min_before": self.load_1min}

    # A process may write many records, and nothing of this changes between them.

    @functools.cached_property
    def _commit(self) -> str | None:
        return environment.suite_commit()

    @functools.cached_property
    def _hardware(self) -> dict[str, Any]:
        return hardware.describe_hardware(self.inventory)

    @functools.cached_property
    def _software(self) -> dict[str, Any]:
        return environment.describe_software()

    @functools.cached_property
    def _surroundings(self) -> dict[str, Any]:
        return environment.describe_surroundings(self.inventory)

    @property
    def load_per_core(self) -> float:
        """Returns the machine's load before the run, per core that may be used."""
        return self.load_1min / hardware.usable_cores()


def of_this_run(command: Sequence[str], *, on_gpus: bool, session_id: str = "") -> Provenance:
    """Looks at the machine before a run; at its GPUs only if the run is to use them."""
    inventory = hardware.gpu_inventory() if on_gpus else hardware.Inventory()
    return Provenance(command, inventory, os.getloadavg()[0], session_id)
