"""What a variable manager is: the interface, and the values that pass through it."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import tensorflow as tf


class VariableSpec(Protocol):
    """What a manager must know of one variable in order to create it."""

    @property
    def name(self) -> str:
        """Canonical name: equal for every manager, and the name in a checkpoint."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Static shape."""

    @property
    def dtype(self) -> str:
        """Name of the type."""

    @property
    def kind(self) -> str:
        """`weight` (trained), `statistic` (moves with the batches), `tower_state` (never shared)."""

    def initial_value(self) -> tf.Tensor:
        """Makes the initial value in the default graph, on the current device."""


class Optimizer(Protocol):
    """An update rule. It keeps what it must remember of a variable on that variable's own device, once per variable."""

    def apply(self, variables: Sequence[tf.Variable], gradients: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """Returns one operation per variable that updates it in place by its gradient."""


@dataclasses.dataclass(frozen=True)
class TowerUpdate:
    """What one tower computed in a step, by variable name.

    Attributes:
        gradients: of weights.
        state: new values of all other variables.
        decay: which part of a weight's value its gradient still lacks; empty but for managers that add it themselves.
    """

    gradients: Mapping[str, tf.Tensor]
    state: Mapping[str, tf.Tensor]
    decay: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Applied:
    """What ends a step: of all towers together, or of one where each goes its own way.

    Attributes:
        operation: combines and applies gradients, and stores state.
        staleness: of a tower that goes its own way, how many updates by others were completed between its reading of
            the weights and the end of its own update, an int64 scalar; None where that does not depend on chance.
    """

    operation: tf.Operation
    staleness: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Preparation:
    """What runs once after variables have their initial values; `computes` if towers compute in it, as in a step."""

    operation: tf.Operation
    computes: bool = False


@dataclasses.dataclass(frozen=True)
class Placed:
    """One created variable: its canonical name, its kind, where it lives and how large it is."""

    name: str
    kind: str
    device: str
    size_bytes: int


class VariableManager(abc.ABC):
    """Decides where variables live, what a tower reads, and how gradients come together.

    Use: `create` once, `read` once per tower, `apply` once with the updates of all towers. After the graph's
    initialisers have run, `preparations` run once, then the steps.
    """

    @property
    def adds_decay(self) -> bool:
        """Returns whether `apply` adds weight decay, once where a weight lives, so that no tower passes over it."""
        return False

    @abc.abstractmethod
    def create(self, specs: Sequence[VariableSpec]) -> None:
        """Creates all variables in the default graph."""

    @abc.abstractmethod
    def read(self, tower: int) -> list[tf.Tensor]:
        """Returns what tower `tower` computes with: one tensor per spec, in the order given to `create`."""

    @abc.abstractmethod
    def apply(self, updates: Sequence[TowerUpdate], optimizer: Optimizer) -> list[Applied]:
        """Returns what ends a step: one entry if all towers step together, else one per tower.

        Args:
            updates: one per tower, in tower order; each gradient is of the tower's own mean loss.
            optimizer: the update rule.
        """

    @abc.abstractmethod
    def preparations(self) -> list[Preparation]:
        """Returns what runs once, in this order, after all variables have their initial values."""

    @abc.abstractmethod
    def checkpoint_variables(self) -> Mapping[str, Sequence[tf.Variable]]:
        """Returns the authoritative copy of every weight and statistic by canonical name.

        Each is one variable, or one per tower that make up the whole when they are joined along the last axis.
        """

    @abc.abstractmethod
    def placed(self) -> list[Placed]:
        """Returns every created variable, copies included."""

    @abc.abstractmethod
    def replica_drift(self) -> tf.Tensor | None:
        """Returns the largest absolute difference between copies that must be equal; None where there are none."""

    @abc.abstractmethod
    def describe(self) -> str:
        """Returns in words where variables live and how gradients come together, for a person to read."""
