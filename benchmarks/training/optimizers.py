"""Update rules on TensorFlow's fused kernels, applied in place on the variable's own device.

The kernels hold the lock of a resource variable whatever `use_locking` is, so asynchronous towers cannot tear or lose
an update. A rule's state of a variable (its slots) exists once, however often the rule is applied to it.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

import tensorflow as tf

from benchmarks.config.optimizer_options import Hyperparameters

_USUAL = Hyperparameters()
Variables = Sequence[tf.Variable]
Gradients = Sequence[tf.Tensor]
Updates = list[tf.Operation]


class Optimizer(abc.ABC):
    """An update rule with a learning rate; `Momentum` alone uses `momentum`, and `constants` name their rule."""

    def __init__(self, learning_rate: float, momentum: float, constants: Hyperparameters = _USUAL) -> None:
        self._learning_rate, self._momentum, self._constants = learning_rate, momentum, constants
        self._slots: dict[tuple[object, str], tf.Variable] = {}

    def apply(self, variables: Variables, gradients: Gradients) -> Updates:
        """Returns one update per variable."""
        operations = []
        for variable, gradient in zip(variables, gradients, strict=True):
            with tf.device(variable.device):
                operations.append(self._update(variable, gradient))
        return operations

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


class GradientDescent(Optimizer):
    """variable -= learning_rate * gradient."""

    def _update(self, variable: tf.Variable, gradient: tf.Tensor) -> tf.Operation:
        return tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=self._learning_rate, delta=gradient)


class Momentum(Optimizer):
    """accumulator = momentum * accumulator + gradient; variable -= learning_rate * accumulator."""

    def _update(self, variable: tf.Variable, gradient: tf.Tensor) -> tf.Operation:
        return tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=self._slot(variable, "momentum"),
            lr=self._learning_rate,
            grad=gradient,
            momentum=self._momentum,
        )


class RmsProp(Optimizer):
    """Divides the gradient by a running root mean square (Tieleman and Hinton 2012), with momentum."""

    def _update(self, variable: tf.Variable, gradient: tf.Tensor) -> tf.Operation:
        return tf.raw_ops.ResourceApplyRMSProp(
            var=variable.handle,
            ms=self._slot(variable, "mean_square", 1.0),
            mom=self._slot(variable, "momentum"),
            lr=self._learning_rate,
            rho=self._constants.rmsprop_decay,
            momentum=self._constants.rmsprop_momentum,
            epsilon=self._constants.rmsprop_epsilon,
            grad=gradient,
        )


class Adam(Optimizer):
    """Kingma and Ba 2014, arXiv:1412.6980, in the form that ends section 2."""

    def __init__(self, learning_rate: float, momentum: float, constants: Hyperparameters = _USUAL) -> None:
        super().__init__(learning_rate, momentum, constants)
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
            betas = self._constants.adam_beta1, self._constants.adam_beta2
            self._beta_powers = [tf.pow(beta, step) for beta in betas]
        updates = super().apply(variables, gradients)
        with tf.device(steps.device), tf.control_dependencies([*self._beta_powers, updates[-1]]):
            updates[-1] = steps.assign_add(1.0, read_value=False)
        return updates

    def _update(self, variable: tf.Variable, gradient: tf.Tensor) -> tf.Operation:
        beta1_power, beta2_power = self._beta_powers
        return tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._slot(variable, "m"),
            v=self._slot(variable, "v"),
            beta1_power=beta1_power,
            beta2_power=beta2_power,
            lr=self._learning_rate,
            beta1=self._constants.adam_beta1,
            beta2=self._constants.adam_beta2,
            epsilon=self._constants.adam_epsilon,
            grad=gradient,
        )


def make(name: str, *, learning_rate: float, momentum: float, constants: Hyperparameters = _USUAL) -> Optimizer:
    """Makes the update rule called `name`: sgd, momentum, rmsprop or adam."""
    rules: dict[str, Callable[[float, float, Hyperparameters], Optimizer]]
    rules = {"sgd": GradientDescent, "momentum": Momentum, "rmsprop": RmsProp, "adam": Adam}
    return rules[name](learning_rate, momentum, constants)
