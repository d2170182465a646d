"""One copy of every variable, on the device of the pipeline stage that uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from variable_mgr import variables
from variable_mgr.manager import Explanation, Optimizer, TowerUpdate, UpdateOp, VariableManager, VariableSpec
from variable_mgr.transfers import Transfer

_DIAGRAM = """\
    images -> [stage 0: its weights] -> activations -> [stage 1: its weights] -> ... -> loss
              [    one update      ] <-  gradients  <- [    one update      ] <- ... <-"""


class Pipelined(VariableManager):
    """Keeps the variables of each stage on its device. The one tower spans all devices.

    The update's gradients and state must be on the devices of their variables.
    """

    def __init__(self, device_of: Mapping[str, str]) -> None:
        self._device_of = device_of
        self._variables: dict[str, tf.Variable] = {}
        self._reads: list[tf.Tensor] = []

    def create(self, specs: Sequence[VariableSpec]) -> None:
        """Creates and reads every variable once."""
        self._specs = list(specs)
        self._variables = {
            spec.name: variables.create(spec, device=self._device_of[spec.name], prefix="pipeline") for spec in specs
        }
        self._reads = variables.read_all(specs, self._variables)

    def tower_values(self, tower: int) -> list[tf.Tensor]:
        """Returns the value of every variable, each on its own device."""
        return self._reads

    def apply(self, updates: Sequence[TowerUpdate], optimizer: Optimizer) -> list[UpdateOp]:
        """Applies the gradients and stores the state of the only tower, where the variables are."""
        (update,) = updates
        with tf.control_dependencies([tf.group(*self._reads)]):
            operations = optimizer.apply(
                [self._variables[name] for name in update.gradients], list(update.gradients.values())
            )
        operations += variables.assign_all(self._variables, update.state)
        return [UpdateOp(tf.group(*operations))]

    def homes(self) -> list[Mapping[str, tf.Variable]]:
        """Returns the only copy of every variable."""
        return [self._variables]

    def explain(self, optimizer: str = "sgd") -> Explanation:
        """Returns how data flows."""
        return Explanation(
            "one copy, each variable on the device of its stage",
            "averaged over the micro-batches and applied on the device of the stage",
            _DIAGRAM,
            deviation="as one device that averages the gradients of the micro-batches: batch norm and dropout see one "
            "after the other, for all else it is the whole batch",
        )

    def transfers(self, variables: Sequence[VariableSpec], *, training: bool = True) -> list[Transfer]:
        """Returns none: weights and gradients stay on their devices, and only activations are sent."""
        return []
