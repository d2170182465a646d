"""Update rules on TensorFlow's fused kernels, applied in place on the variable's own device.

The kernels hold the lock of a resource variable whatever `use_locking` is, so asynchronous towers cannot tear or lose
an update. A rule's state of a variable (its slots) exists once, however often the rule is applied to it.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from benchmarks.training.options import Training
from variable_mgr.reductions.kernels import on_each

Variables = Sequence[tf.Variable]
Gradients = Sequence[tf.Tensor]
Updates = list[tf.Operation]


class Optimizer(abc.ABC):
    """An update rule with the constants of a training.

    The learning rate is a number, or a scalar that changes from step to step. If the norm of gradients is limited,
    `apply` must get all at once.
    """

    def __init__(self, training: Training, learning_rate: float | tf.Tensor) -> None:
        self._training, self._learning_rate = training, learning_rate
        self._slots: dict[tuple[object, str], tf.Variable] = {}
        self._numbers: dict[tuple[float, str, tf.DType], tf.Tensor] = {}

    def apply(self, variables: Variables, gradients: Gradients) -> Updates:
        """Returns one update per variable."""
        devices = (variable.device for variable in variables)
        return on_each(devices, self._update, variables, clipped(gradients, variables, self._training))

    def slots_of(self, variable: tf.Variable) -> dict[str, tf.Variable]:
        """Returns what the rule keeps for one variable, by the name of the slot; empty before `apply`."""
        return {name: slot for (owner, name), slot in self._slots.items() if owner == variable.ref()}

    def shared_state(self) -> dict[str, list[tf.Variable]]:
        """Returns what the rule keeps besides, by name: every copy, all of which must hold the same value."""
        return {}

    @abc.abstractmethod
    def _update(self, variable: tf.Variable, gradient: tf.Tensor) -> tf.Operation:
        """Returns the update of one variable."""

    def _slot(self, variable: tf.Variable, name: str, value: float = 0.0) -> tf.Tensor:
        """Returns the handle of a slot, whose elements start at `value`, on its variable's device."""
        key = (variable.ref(), name)
        if key not in self._slots:
            # A manager may order updates or make them conditional; what initialises a slot precedes all that.
            with tf.init_scope(), tf.device(variable.device):
                initial = tf.fill(variable.shape, tf.constant(value, variable.dtype))
                self._slots[key] = tf.Variable(initial, trainable=False, name=f"{variable.op.name}/{name}")
        return self._slots[key].handle

    def _on_device(self, number: float | tf.Tensor, variable: tf.Variable) -> tf.Tensor:
        """Returns a number as one constant for all variables of a device: a graph of 8 ResNet-50 has 1,300 updates."""
        if not isinstance(number, int | float):
            return number
        key = (number, variable.device, variable.dtype)
        if key not in self._numbers:
            with tf.init_scope(), tf.device(variable.device):
                self._numbers[key] = tf.constant(number, variable.dtype)
        return self._numbers[key]


class GradientDescent(Optimizer):
    """variable -= learning_rate * gradient."""

    def _update(self, variable: tf.Variable, gradient: tf.Tensor) -> tf.Operation:
        rate = self._on_device(self._learning_rate, variable)
        return tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)


class Momentum(Optimizer):
    """accumulator = momentum * accumulator + gradient; variable -= learning_rate * accumulator.

    With Nesterov's momentum, variable -= learning_rate * (gradient + momentum * accumulator). Source: Sutskever et al.
    2013, "On the importance of initialization and momentum in deep learning", section 3.
    """

    def _update(self, variable: tf.Variable, gradient: tf.Tensor) -> tf.Operation:
        return tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=self._slot(variable, "momentum"),
            lr=self._on_device(self._learning_rate, variable),
            grad=gradient,
            momentum=self._on_device(self._training.momentum, variable),
            use_nesterov=self._training.optimizer == "nesterov",
        )


class Lars(Optimizer):
    """Momentum in which each weight has a rate of its own, relative to its norm (You et al. 2017, arXiv:1708.03888).

    accumulator = momentum * accumulator + learning_rate * ratio * gradient; variable -= accumulator. The ratio is
    trust_coefficient * norm(variable) / norm(gradient), where the gradient has weight decay in it: the paper adds the
    norms of both. It is 1 for scalars, for variables of one axis (biases, batch normalisation), and if a norm is 0.
    """

    def _update(self, variable: tf.Variable, gradient: tf.Tensor) -> tf.Operation:
        step = self._learning_rate * gradient
        if variable.shape.rank > 1:
            norms = tf.norm(variable.read_value()), tf.norm(gradient)
            ratio = self._training.lars_trust_coefficient * norms[0] / norms[1]
            step *= tf.where(tf.minimum(*norms) > 0.0, ratio, 1.0)
        return tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=self._slot(variable, "momentum"),
            lr=1.0,
            grad=step,
            momentum=self._training.momentum,
        )


class RmsProp(Optimizer):
    """Divides the gradient by a running root mean square (Tieleman and Hinton 2012), with momentum."""

    def _update(self, variable: tf.Variable, gradient: tf.Tensor) -> tf.Operation:
        return tf.raw_ops.ResourceApplyRMSProp(
            var=variable.handle,
            ms=self._slot(variable, "mean_square", 1.0),
            mom=self._slot(variable, "momentum"),
            lr=self._learning_rate,
            rho=self._training.rmsprop_decay,
            momentum=self._training.rmsprop_momentum,
            epsilon=self._training.rmsprop_epsilon,
            grad=gradient,
        )


class Adam(Optimizer):
    """Kingma and Ba 2014, arXiv:1412.6980, in the form that ends section 2."""

    def __init__(self, *rule: Any) -> None:
        super().__init__(*rule)
        self._steps: dict[object, tf.Variable] = {}
        self._beta_powers: list[tf.Tensor] = []

    def apply(self, variables: Variables, gradients: Gradients) -> Updates:
        """Returns one update per variable; the last also counts the step, for the bias correction."""
        if not variables:
            return []
        key = variables[0].ref()  # identifies this copy of the variables
        if key not in self._steps:
            with tf.init_scope(), tf.device(variables[0].device):
                self._steps[key] = tf.Variable(0.0, trainable=False, name="adam_steps")
        steps = self._steps[key]
        with tf.device(steps.device):
            step = steps.read_value() + 1.0  # read once: all updates of a step see the same
            betas = self._training.adam_beta1, self._training.adam_beta2
            self._beta_powers = [tf.pow(beta, step) for beta in betas]
        updates = super().apply(variables, gradients)
        with tf.device(steps.device), tf.control_dependencies([*self._beta_powers, updates[-1]]):
            updates[-1] = steps.assign_add(1.0, read_value=False)
        return updates

    def shared_state(self) -> dict[str, list[tf.Variable]]:
        """Returns the number of steps that were taken, once for each copy of the variables."""
        return {"adam_steps": list(self._steps.values())}

    def _update(self, variable: tf.Variable, gradient: tf.Tensor) -> tf.Operation:
        beta1_power, beta2_power = self._beta_powers
        return tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._slot(variable, "m"),
            v=self._slot(variable, "v"),
            beta1_power=beta1_power,
            beta2_power=beta2_power,
            lr=self._learning_rate,
            beta1=self._training.adam_beta1,
            beta2=self._training.adam_beta2,
            epsilon=self._training.adam_epsilon,
            grad=gradient,
        )


def clipped(gradients: Gradients, variables: Variables, limits: Training) -> list[tf.Tensor]:
    """Returns the gradients within limits, each on its variable's device."""
    limited, devices = list(gradients), [variable.device for variable in variables]
    largest, norm = limits.gradient_clip, limits.gradient_clip_norm
    if largest is not None:
        limited = on_each(devices, lambda gradient: tf.clip_by_value(gradient, -largest, largest), limited)
    if norm is None or not limited:
        return limited
    squares = on_each(devices, lambda gradient: 2.0 * tf.nn.l2_loss(gradient), limited)
    with tf.device(devices[0]):
        factor = norm / tf.maximum(tf.sqrt(tf.add_n(squares)), norm)
    return on_each(devices, lambda gradient: gradient * factor, limited)


def make(training: Training, learning_rate: float | tf.Tensor) -> Optimizer:
    """Makes the update rule of a training."""
    return _RULES[training.optimizer](training, learning_rate)


_RULES: dict[str, type[Optimizer]] = {
    "sgd": GradientDescent,
    "momentum": Momentum,
    "nesterov": Momentum,
    "rmsprop": RmsProp,
    "adam": Adam,
    "lars": Lars,
}
