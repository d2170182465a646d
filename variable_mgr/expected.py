"""The expected result of training two scalars, computed by NumPy without any of the code under test.

loss = mean over the batch of x * a * b, with scalars a = 1, b = 2 and x = the 16 numbers -1..14 in order, two per tower
and step; learning rate 2^-5, weight decay 2^-4; float64.
"""

from __future__ import annotations

import dataclasses

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


def expected(
    towers: int, rule: Rule, *, exchanged: bool, mode: str = "plain", copies: int = 0, average_every: int = 0
) -> Trajectory:
    """Computes what must come out, one model per tower, in float64.

    Args:
        towers: how many.
        rule: updates the weights.
        exchanged: whether the gradients are averaged over the towers.
        mode: `plain`; `relaxed` applies the gradients of the step before, zeros first; `staged` computes with the
            weights of two updates ago and applies the gradients of the step before, the first of which are of batch 0,
            which filled the stages.
        copies: how many copies of the weights to report, repeating the towers' if there are more; 0: one per tower.
        average_every: steps after which the weights of all towers are set to their mean; 0: never.
    """
    weights = np.tile([[1.0], [2.0]], (1, towers))  # [a or b, tower]
    velocities: list[Values] = [{} for _ in range(towers)]
    history, earlier, trajectory = [weights, weights], np.zeros_like(weights), Trajectory()
    for step in range(-1 if mode == "staged" else 0, STEPS):
        batch = step + 1 if mode == "staged" else step
        used = history[-2] if mode == "staged" else weights
        numbers = np.take(X, np.arange(PER_TOWER * towers * batch, PER_TOWER * towers * (batch + 1)), mode="wrap")
        mean_x = numbers.reshape(towers, PER_TOWER).mean(axis=1)
        gradients = mean_x * used[::-1] + DECAY * used
        if exchanged:
            gradients = np.tile(gradients.mean(axis=1, keepdims=True), (1, towers))
        applied, earlier = (gradients if mode == "plain" else earlier), gradients
        if step < 0:
            continue
        weights = np.stack(
            [_updated(rule, *of_tower) for of_tower in zip(weights.T, applied.T, velocities, strict=True)], axis=1
        )
        if average_every and (step + 1) % average_every == 0:
            weights = np.tile(weights.mean(axis=1, keepdims=True), (1, towers))
        history.append(weights)
        trajectory.loss.append(float(np.mean(mean_x * used[0] * used[1])))
        trajectory.a.append([float(value) for value in np.resize(weights[0], copies or towers)])
        trajectory.b.append([float(value) for value in np.resize(weights[1], copies or towers)])
    return trajectory


def expected_in_turn(towers: int, rule: Rule, *, workers: int = 0) -> Trajectory:
    """Computes what must come out if a parameter server applies gradients one after the other.

    In one process each tower applies its own gradients; its step draws the numbers of all towers and uses its own part,
    see `benchmarks.verify.oracle`. Each of several workers (0: one process) applies the mean over its towers.
    """
    weights, trajectory = np.array([1.0, 2.0]), Trajectory()
    velocities: Values = {}
    parts, count = (workers, PER_TOWER * towers) if workers else (towers, PER_TOWER)
    for step in range(STEPS):
        losses = []
        for part in range(parts):
            drawn_before = step * parts if workers else parts * (step * parts + part)
            begin = count * (drawn_before + part)
            mean_x = np.take(X, np.arange(begin, begin + count), mode="wrap").mean()
            losses.append(mean_x * weights[0] * weights[1])
            weights = _updated(rule, weights, mean_x * weights[::-1] + DECAY * weights, velocities)
        trajectory.loss.append(float(np.mean(losses)))
        trajectory.a.append([float(weights[0])] * max(workers, 1))
        trajectory.b.append([float(weights[1])] * max(workers, 1))
    return trajectory


def _updated(rule: Rule, weights: np.ndarray, gradients: np.ndarray, velocities: Values) -> np.ndarray:
    after = rule.update(
        dict(zip("ab", weights, strict=True)), dict(zip("ab", gradients, strict=True)), velocities, RATE
    )
    return np.array(list(after.values()))


def of_manager(manager: str, modifiers: Modifiers, rule: Rule, towers: int, *, workers: int = 0) -> Trajectory:
    """Computes what must come out under a manager with modifiers, as all processes together see it.

    `towers` are those of each process; `workers` is 0 in one process.
    """
    if modifiers.asynchronous:
        return expected_in_turn(towers, rule, workers=workers)
    entry = MANAGERS[manager]
    has_masters = bool(workers) and WorksIn.SERVERS in entry.processes
    seen_by_each = 1 if entry.one_copy else towers + has_masters
    return expected(
        towers * max(workers, 1),
        rule,
        exchanged=entry.exchanges_gradients,
        mode="relaxed" if modifiers.relaxed_consistency else "staged" if modifiers.staged_vars else "plain",
        copies=seen_by_each * max(workers, 1),
        average_every=(modifiers.local_sgd_steps or 1) if "local_sgd_steps" in entry.modifiers else 0,
    )


def is_plain_sgd(modifiers: Modifiers) -> bool:
    """Returns whether these modifiers leave each step's gradient as it is, so that a step is one of the whole batch."""
    delayed = modifiers.asynchronous or modifiers.staged_vars or modifiers.relaxed_consistency
    return not delayed and modifiers.wire_dtype == "float32"


EXACT = 1e-6
NO_CHANGE = 0.0
AFTER_CONVOLUTIONS = 1e-5
# Sums are rounded several times (by 2^-11 and 2^-8), and the steps of a trajectory amplify that: 7e-3 and 4.5e-2 were
# seen with 2 to 8 towers. Without the exchange the error is 0.28 and more.
_ROUNDED = {"float32": EXACT, "float16": 1e-2, "bfloat16": 0.1}


def tolerance(modifiers: Modifiers) -> float:
    """Returns the largest error of gradients that travel as the modifiers say."""
    return _ROUNDED[modifiers.wire_dtype]
