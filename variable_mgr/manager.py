"""The interface of variable managers, and the values that pass through it."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import tensorflow as tf

from variable_mgr.transfers import UNKNOWN, Transfer


class VariableSpec(Protocol):
    """Describes one variable to be created."""

    @property
    def name(self) -> str:
        """The canonical name: equal for every manager, and the name in a checkpoint."""

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
    """An update rule. Its slots are on the device of their variable, once per variable."""

    def apply(self, variables: Sequence[tf.Variable], gradients: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """Returns one operation per variable that updates it in place by its gradient."""

    def slots_of(self, variable: tf.Variable) -> dict[str, tf.Variable]:
        """Returns the rule's state of a variable by name; nothing before the rule is applied to it."""

    def shared_state(self) -> dict[str, list[tf.Variable]]:
        """Returns the rule's other state by name: every copy, all of which have the same value."""


@dataclasses.dataclass(frozen=True)
class TowerUpdate:
    """What one tower computed in a step, by variable name.

    Attributes:
        gradients: of weights.
        state: new values of all other variables.
        decay: the factor of weight decay that the manager still has to add; empty unless `adds_decay`.
    """

    gradients: Mapping[str, tf.Tensor]
    state: Mapping[str, tf.Tensor]
    decay: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Applied:
    """The end of a step: of all towers together, or of one asynchronous tower.

    Attributes:
        operation: combines and applies gradients, and stores state.
        staleness: of an asynchronous tower, how many updates by others were completed between its reading of the
            weights and the end of its own update, an int64 scalar; None if the number is always zero.
    """

    operation: tf.Operation
    staleness: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Preparation:
    """Runs once after variables have their initial values; `computes` if towers compute in it, as in a step."""

    operation: tf.Operation
    computes: bool = False


@dataclasses.dataclass(frozen=True)
class Held:
    """What one step leaves for the next outside of variables, in a staging area.

    Attributes:
        value: to fetch between steps; it stays where it is.
        put: the tensor to feed with it while `resumptions` run.
    """

    value: tf.Tensor | tf.Variable
    put: tf.Tensor


@dataclasses.dataclass(frozen=True)
class Placed:
    """One created variable: its canonical name, kind, device and size."""

    name: str
    kind: str
    device: str
    size_bytes: int


OWN_STEP = "computed in step t itself"
STEP_BEFORE = "computed in step t-1 (zeros in the first step)"
EARLIER_WEIGHTS = "not plain SGD: the gradient is of earlier weights, see above"


@dataclasses.dataclass(frozen=True)
class Explanation:
    """How data flows under a manager, in phrases for a person.

    Attributes:
        weights: where they live.
        gradients: how they come together; to follow the word 'gradients'.
        diagram: the flow as characters.
        applied: which gradient is applied at step t; to follow the word 'gradient'.
        deviation: how the arithmetic differs from one device with the whole batch; empty if it does not.
    """

    weights: str
    gradients: str
    diagram: str
    applied: str = OWN_STEP
    deviation: str = ""


class VariableManager(abc.ABC):
    """Decides where variables live, what a tower reads, and how gradients come together.

    Use: `create` once, `read` once per tower, `apply` once with the updates of all towers. After the graph's
    initialisers have run, `preparations` run once, then the steps. `explain` and `transfers` work before `create`, too.

    Attributes:
        adds_decay: whether `apply` adds weight decay, once where a weight lives, so that no tower has to.
        copies_differ: whether copies of a weight may differ between steps, so that each must be saved.
    """

    adds_decay = False
    copies_differ = False

    @abc.abstractmethod
    def create(self, specs: Sequence[VariableSpec]) -> None:
        """Creates all variables in the default graph."""

    @abc.abstractmethod
    def read(self, tower: int) -> list[tf.Tensor]:
        """Returns what tower `tower` computes with: one tensor per spec, in the order given to `create`."""

    @abc.abstractmethod
    def apply(self, updates: Sequence[TowerUpdate], optimizer: Optimizer) -> list[Applied]:
        """Returns the ends of a step: one if all towers step together, else one per tower.

        Args:
            updates: one per tower, in tower order; each gradient is of the tower's own mean loss.
            optimizer: the update rule.
        """

    def preparations(self) -> list[Preparation]:
        """Returns what runs once, in this order, after all variables have their initial values."""
        return []

    def held(self) -> dict[str, Held]:
        """Returns what steps leave for the next outside of variables, by a name that is unique in the graph."""
        return {}

    def resumptions(self) -> list[Preparation]:
        """Returns what runs instead of `preparations` if what is `held` is fed."""
        return self.preparations()

    @abc.abstractmethod
    def copies(self) -> dict[str, list[Sequence[tf.Variable]]]:
        """Returns every copy of each variable by canonical name, the authoritative one first.

        Each copy is one variable, or one per tower that make up the whole when they are joined along the last axis.
        Of a tower's own state there is one per tower.
        """

    def checkpoint_variables(self) -> dict[str, Sequence[tf.Variable]]:
        """Returns the authoritative copy of every weight and statistic by canonical name, as `copies` has it."""
        states = {entry.name for entry in self.placed() if entry.kind == "tower_state"}
        return {name: copies[0] for name, copies in self.copies().items() if name not in states}

    @abc.abstractmethod
    def placed(self) -> list[Placed]:
        """Returns every created variable, copies included."""

    def replica_drift(self) -> tf.Tensor | None:
        """Returns the largest absolute difference between copies that must be equal; None if there are none."""
        return None

    @abc.abstractmethod
    def explain(self, optimizer: str = "sgd") -> Explanation:
        """Returns how data flows; under some managers only plain SGD is exact, so the optimizer matters."""

    def describe(self) -> str:
        """Returns in words where variables live and how gradients come together."""
        facts = self.explain()
        return f"{facts.weights}; gradients {facts.gradients}"

    def transfers(self, variables: Sequence[VariableSpec], *, training: bool = True) -> list[Transfer]:
        """Returns what a step sends: in a cluster between processes, else between devices; unknown unless overridden.

        No tower's device may be the host.

        Args:
            variables: of the model, without those that are divided over towers.
            training: whether gradients are computed; a forward pass only fetches.
        """
        return [UNKNOWN]
