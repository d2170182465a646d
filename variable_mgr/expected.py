"""The expected result of training under a manager, computed by NumPy without any of the code under test.

`Steps` combines what single towers compute. `of_manager` trains two scalars so: loss = mean over the batch of
x * a * b, with scalars a = 1, b = 2 and x = the 16 numbers -1..14 in order, two per tower and step; learning rate 2^-5,
weight decay 2^-4; float64.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from variable_mgr.catalog import MANAGERS, WorksIn
from variable_mgr.modifiers import Modifiers

STEPS = 5
RATE, DECAY = 2.0**-5, 2.0**-4
MOMENTUM = 0.9
Values = dict[str, np.ndarray]
X = np.arange(-1.0, 15.0)
PER_TOWER = 2


@dataclasses.dataclass(frozen=True)
class Rule:
    """An update rule in NumPy: clipping of averaged gradients, then `sgd`, `momentum`, `nesterov` or `lars`."""

    optimizer: str
    clip_value: float | None = None
    clip_norm: float | None = None
    trust_coefficient: float = 0.1  # larger than usual, so that an error is seen within few steps

    def update(self, weights: Values, gradients: Values, velocities: Values, rate: float) -> Values:
        """Returns one copy of the weights after a step, and changes its velocities; all by name."""
        if self.clip_value is not None:
            gradients = {name: np.clip(g, -self.clip_value, self.clip_value) for name, g in gradients.items()}
        if self.clip_norm is not None:
            norm = np.sqrt(sum(np.sum(np.square(gradient)) for gradient in gradients.values()))
            gradients = {name: g * min(1.0, self.clip_norm / max(norm, 1e-30)) for name, g in gradients.items()}
        after, momentum = {}, 0.0 if self.optimizer == "sgd" else MOMENTUM
        for name, gradient in gradients.items():
            if self.optimizer == "lars":
                gradient = gradient * self._ratio(weights[name], gradient)
            velocity = velocities[name] = momentum * velocities.get(name, 0.0) + gradient
            step = gradient + momentum * velocity if self.optimizer == "nesterov" else velocity
            after[name] = weights[name] - rate * step
        return after

    def _ratio(self, weight: np.ndarray, gradient: np.ndarray) -> float:
        norms = float(np.linalg.norm(weight)), float(np.linalg.norm(gradient))
        return self.trust_coefficient * norms[0] / norms[1] if np.ndim(weight) > 1 and min(norms) > 0 else 1.0


SGD, WITH_MOMENTUM = Rule("sgd"), Rule("momentum")


@dataclasses.dataclass
class Trajectory:
    """The scalars a and b of every copy, and the mean loss, after each step.

    `others` is the largest change of a variable that is not trained, at any time: there is none.
    """

    a: list[list[float]] = dataclasses.field(default_factory=list)
    b: list[list[float]] = dataclasses.field(default_factory=list)
    loss: list[float] = dataclasses.field(default_factory=list)
    others: float = 0.0

    def error(self, other: Trajectory) -> float:
        """Returns the largest relative difference, absolute below 1; infinite if steps or copies are missing."""
        pairs = ((self.a, other.a), (self.b, other.b), (self.loss, other.loss), (self.others, other.others))
        return max(relative_error(np.asarray(mine), np.asarray(theirs)) for mine, theirs in pairs)


def relative_error(values: np.ndarray, reference: np.ndarray) -> float:
    """Returns the largest relative difference, absolute below 1; infinite for other shapes or what is not finite."""
    if values.shape != reference.shape or not np.isfinite(values).all():
        return float("inf")
    return float(np.max(np.abs(values - reference) / np.maximum(1.0, np.abs(reference))))


class Computed(NamedTuple):
    """What one tower computes in a step: its mean loss, gradients and new state by variable name."""

    loss: float
    gradients: Values
    state: Values


# From the values of all variables by name, and the batch of a tower.
Compute = Callable[[Values, Any], Computed]


class Steps:
    """The steps of a manager with modifiers, from what single towers compute.

    Args:
        manager: its name.
        modifiers: of the manager.
        rule: updates the weights.
        learning_rate: of the rule.
        kinds: of the variables, by name.
        compute: what one tower computes.
    """

    def __init__(
        self,
        manager: str,
        modifiers: Modifiers,
        rule: Rule,
        learning_rate: float,
        kinds: Mapping[str, str],
        compute: Compute,
    ) -> None:
        self._entry, self._modifiers, self._rule = MANAGERS[manager], modifiers, rule
        self._learning_rate, self._kinds, self._compute = learning_rate, kinds, compute
        averages = "local_sgd_steps" in self._entry.modifiers
        self._average_every = (modifiers.local_sgd_steps or 1) if averages else 0
        self._taken = 0
        self._velocities: defaultdict[int, Values] = defaultdict(dict)  # by tower
        self._before: Sequence[Values] = ()  # what towers read in the last step
        self._earlier: list[Values] = []  # the gradients of the last step

    def fill(self, now: Sequence[Values], batches: Sequence[Any]) -> None:
        """Computes the gradients that staging computes before the first step."""
        self._earlier = self._exchanged(self._computed(now, now, batches))

    def step(self, now: Sequence[Values], batches: Sequence[Any]) -> tuple[float, list[Values]]:
        """Returns the mean loss of a step, and the values of all variables after it, of each tower.

        Args:
            now: what each tower reads, by name, before the step.
            batches: one for each tower.
        """
        self._taken += 1
        if self._modifiers.asynchronous:
            return self._in_turn(now, batches)
        used = self._before if self._modifiers.staged_vars and self._before else now
        self._before = now
        computed = self._computed(now, used, batches)
        applied = gradients = self._exchanged(computed)
        if self._modifiers.staged_vars or self._modifiers.relaxed_consistency:
            zeros = [{name: np.zeros_like(value) for name, value in each.items()} for each in gradients]
            applied, self._earlier = self._earlier or zeros, gradients
        updated = [self._updated(tower, now[tower], of_tower) for tower, of_tower in enumerate(applied)]
        if self._average_every and self._taken % self._average_every == 0:
            updated = [_mean(updated)] * len(updated)
        states = [self._state(each.state, computed[0].state) for each in computed]
        after = [{**own, **of_tower, **state} for own, of_tower, state in zip(now, updated, states, strict=True)]
        return float(np.mean([each.loss for each in computed])), after

    def _in_turn(self, now: Sequence[Values], batches: Sequence[Any]) -> tuple[float, list[Values]]:
        """Every tower updates the one copy before the next reads it; see `step`."""
        losses, shared, own = [], dict(now[0]), []
        for tower, (values, batch) in enumerate(zip(now, batches, strict=True)):
            states = {name: values[name] for name, kind in self._kinds.items() if kind == "tower_state"}
            computed = self._compute({**shared, **states}, batch)
            losses.append(computed.loss)
            own.append({name: computed.state[name] for name in states})
            shared |= self._updated(0, shared, computed.gradients)
            if tower == 0:
                shared |= {name: value for name, value in computed.state.items() if name not in states}
        return float(np.mean(losses)), [{**shared, **states} for states in own]

    def _computed(self, now: Sequence[Values], used: Sequence[Values], batches: Sequence[Any]) -> list[Computed]:
        """Returns what each tower computes with the weights of `used`, and everything else as it is now."""
        weights = [name for name, kind in self._kinds.items() if kind == "weight"]
        return [
            self._compute({**own, **{name: values[name] for name in weights}}, batch)
            for own, values, batch in zip(now, used, batches, strict=True)
        ]

    def _exchanged(self, computed: Sequence[Computed]) -> list[Values]:
        gradients = [each.gradients for each in computed]
        return [_mean(gradients)] * len(gradients) if self._entry.exchanges_gradients else gradients

    def _updated(self, tower: int, values: Values, gradients: Values) -> Values:
        return self._rule.update(values, gradients, self._velocities[tower], self._learning_rate)

    def _state(self, own: Values, first: Values) -> Values:
        """Returns a tower's new state; of one copy, the moving averages are those of the first tower."""
        one_copy = self._entry.one_copy
        return {name: first[name] if one_copy and self._kinds[name] == "statistic" else own[name] for name in own}


def _mean(every: Sequence[Values]) -> Values:
    return {name: np.mean([values[name] for values in every], axis=0) for name in every[0]}


def of_manager(manager: str, modifiers: Modifiers, rule: Rule, towers: int, *, workers: int = 0) -> Trajectory:
    """Computes what must come out under a manager with modifiers, as all processes together see it, in float64.

    `towers` are those of each process; `workers` is 0 in one process. Asynchronous towers of one process take their
    steps one after the other; a tower's step draws the numbers of all towers and uses its own part, see
    `benchmarks.verify.oracle`. Each of several asynchronous workers applies the mean over its towers.
    """
    entry, processes, in_turn = MANAGERS[manager], max(workers, 1), modifiers.asynchronous
    has_masters = bool(workers) and WorksIn.SERVERS in entry.processes
    copies = processes * (1 if entry.one_copy else towers + has_masters)
    parts, count = (workers, PER_TOWER * towers) if in_turn and workers else (towers * processes, PER_TOWER)

    def batches(step: int) -> list[np.ndarray]:
        drawn_before = [step * parts + part if in_turn and not workers else step for part in range(parts)]
        begins = [count * (drawn * parts + part) for part, drawn in enumerate(drawn_before)]
        return [np.take(X, np.arange(begin, begin + count), mode="wrap") for begin in begins]

    now: list[Values] = [{"a": np.array(1.0), "b": np.array(2.0)}] * parts
    steps = Steps(manager, modifiers, rule, RATE, {"a": "weight", "b": "weight"}, _of_scalars)
    if modifiers.staged_vars:
        steps.fill(now, batches(0))
    trajectory = Trajectory()
    for step in range(STEPS):
        loss, now = steps.step(now, batches(step + modifiers.staged_vars))
        trajectory.loss.append(loss)
        trajectory.a.append(np.resize([float(values["a"]) for values in now], copies).tolist())
        trajectory.b.append(np.resize([float(values["b"]) for values in now], copies).tolist())
    return trajectory


def _of_scalars(values: Values, numbers: np.ndarray) -> Computed:
    a, b, x = values["a"], values["b"], numbers.mean()
    return Computed(float(x * a * b), {"a": x * b + DECAY * a, "b": x * a + DECAY * b}, {})


EXACT = 1e-6
AFTER_CONVOLUTIONS = 1e-5
# Sums are rounded several times (by 2^-11 and 2^-8), and the steps of a trajectory amplify that: 7e-3 and 4.5e-2 were
# seen with 2 to 8 towers. Without the exchange the error is 0.28 and more.
_ROUNDED = {"float32": EXACT, "float16": 1e-2, "bfloat16": 0.1}


def tolerance(modifiers: Modifiers) -> float:
    """Returns the largest error of gradients that travel as the modifiers say."""
    return _ROUNDED[modifiers.wire_dtype]
