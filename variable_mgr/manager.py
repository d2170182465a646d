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
class UpdateOp:
    """Ends a step: of all towers together, or of one asynchronous tower.

    Attributes:
        operation: combines and applies gradients, and stores state.
        staleness: of an asynchronous tower, how many updates by others were completed between its reading of the
            weights and the end of its own update, an int64 scalar; None if the number is always zero.
    """

    operation: tf.Operation
    staleness: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class InitOp:
    """Runs once after variables have their initial values; `computes` if towers compute in it, as in a step."""

    operation: tf.Operation
    computes: bool = False


@dataclasses.dataclass(frozen=True)
class StagedValue:
    """What one step leaves for the next outside of variables, in a staging area.

    Attributes:
        value: to fetch between steps; it stays where it is.
        put: the tensor to feed with it while `resume_ops` run.
    """

    value: tf.Tensor | tf.Variable
    put: tf.Tensor


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
    """Decides where variables live, what a tower computes with, and how gradients come together.

    Use: `create` once, `tower_values` once per tower, `apply` once with the updates of all towers. After the graph's
    initialisers have run, `init_ops` run once, then the steps. `explain` and `transfers` work before `create`, too.

    Attributes:
        adds_decay: whether `apply` adds weight decay, once where a weight lives, so that no tower has to.
        copies_differ: whether copies of a weight may differ between steps, so that each must be saved.
    """

    adds_decay = False
    copies_differ = False
    _specs: Sequence[VariableSpec] = ()

    @abc.abstractmethod
    def create(self, specs: Sequence[VariableSpec]) -> None:
        """Creates all variables in the default graph."""

    @abc.abstractmethod
    def tower_values(self, tower: int) -> list[tf.Tensor]:
        """Returns what tower `tower` computes with: one tensor per spec, in the order given to `create`."""

    @abc.abstractmethod
    def apply(self, updates: Sequence[TowerUpdate], optimizer: Optimizer) -> list[UpdateOp]:
        """Returns the ends of a step: one if all towers step together, else one per tower.

        There is one update per tower, in tower order; each gradient is of the tower's own mean loss.
        """

    def init_ops(self) -> list[InitOp]:
        """Returns what runs once, in this order, after all variables have their initial values."""
        return []

    def staged_values(self) -> dict[str, StagedValue]:
        """Returns what steps leave for the next outside of variables, by a name that is unique in the graph."""
        return {}

    def resume_ops(self) -> list[InitOp]:
        """Returns what runs instead of `init_ops` if the `staged_values` are fed."""
        return self.init_ops()

    @abc.abstractmethod
    def homes(self) -> list[Mapping[str, tf.Variable]]:
        """Returns the created variables by name: of each home one copy, or part, of some; authoritative ones first."""

    def copies(self) -> dict[str, list[Sequence[tf.Variable]]]:
        """Returns every copy of each variable by canonical name, the authoritative one first.

        Each copy is one variable, or one per tower that make up the whole when they are joined along the last axis.
        Of a tower's own state there is one per tower.
        """
        homes = self.homes()
        return {spec.name: [[home[spec.name]] for home in homes if spec.name in home] for spec in self._specs}

    def checkpoint_variables(self) -> dict[str, Sequence[tf.Variable]]:
        """Returns the authoritative copy of every weight and statistic by canonical name, as `copies` has it."""
        states = {spec.name for spec in self._specs if spec.kind == "tower_state"}
        return {name: copies[0] for name, copies in self.copies().items() if name not in states}

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

        The figures are those of towers on devices other than the host. Variables that are divided over towers are left
        out. A forward pass, without `training`, only fetches.
        """
        return [UNKNOWN]


class WrappingManager(VariableManager):
    """Abstract. Leaves to another manager all that its subclass does not change."""

    def __init__(self, inner: VariableManager, tower_devices: Sequence[str]) -> None:
        self._inner = inner
        self._devices = list(tower_devices)

    def create(self, specs: Sequence[VariableSpec]) -> None:
        """Creates the inner manager's variables."""
        self._specs = list(specs)
        self._inner.create(specs)

    def init_ops(self) -> list[InitOp]:
        """Returns the inner manager's."""
        return self._inner.init_ops()

    def homes(self) -> list[Mapping[str, tf.Variable]]:
        """Returns the inner manager's."""
        return self._inner.homes()

    def replica_drift(self) -> tf.Tensor | None:
        """Returns the inner manager's."""
        return self._inner.replica_drift()

    def transfers(self, variables: Sequence[VariableSpec], *, training: bool = True) -> list[Transfer]:
        """Returns the inner manager's; `variables` are those that it holds."""
        return self._inner.transfers(variables, training=training)
