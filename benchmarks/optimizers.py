"""Update rules on TensorFlow's fused kernels, applied in place on the variable's own device.

Hyperparameters that have no flag are tf_cnn_benchmarks' defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

_RMSPROP_DECAY, _RMSPROP_MOMENTUM, _RMSPROP_EPSILON = 0.9, 0.9, 1.0
_ADAM_BETA1, _ADAM_BETA2, _ADAM_EPSILON = 0.9, 0.999, 1e-8

Variables = Sequence[tf.Variable]
Gradients = Sequence[tf.Tensor]
Updates = list[tf.Operation]


class GradientDescent:
    """variable -= learning_rate * gradient."""

    def __init__(self, learning_rate: float) -> None:
        self._learning_rate = learning_rate

    def apply(self, variables: Variables, gradients: Gradients) -> Updates:
        """Returns one update per variable."""

        def update(variable: tf.Variable, gradient: tf.Tensor) -> tf.Operation:
            return tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.handle, alpha=self._learning_rate, delta=gradient
            )

        return _on_each(variables, gradients, update)


class Momentum:
    """accumulator = momentum * accumulator + gradient; variable -= learning_rate * accumulator."""

    def __init__(self, learning_rate: float, momentum: float) -> None:
        self._learning_rate, self._momentum = learning_rate, momentum

    def apply(self, variables: Variables, gradients: Gradients) -> Updates:
        """Returns one update per variable."""

        def update(variable: tf.Variable, gradient: tf.Tensor) -> tf.Operation:
            return tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle,
                accum=_slot(variable, "momentum").handle,
                lr=self._learning_rate,
                grad=gradient,
                momentum=self._momentum,
            )

        return _on_each(variables, gradients, update)


class RmsProp:
    """Divides the gradient by a running root mean square (Tieleman and Hinton 2012), with momentum."""

    def __init__(self, learning_rate: float) -> None:
        self._learning_rate = learning_rate

    def apply(self, variables: Variables, gradients: Gradients) -> Updates:
        """Returns one update per variable."""

        def update(variable: tf.Variable, gradient: tf.Tensor) -> tf.Operation:
            return tf.raw_ops.ResourceApplyRMSProp(
                var=variable.handle,
                ms=_slot(variable, "mean_square", 1.0).handle,
                mom=_slot(variable, "momentum").handle,
                lr=self._learning_rate,
                rho=_RMSPROP_DECAY,
                momentum=_RMSPROP_MOMENTUM,
                epsilon=_RMSPROP_EPSILON,
                grad=gradient,
            )

        return _on_each(variables, gradients, update)


class Adam:
    """Kingma and Ba 2014, arXiv:1412.6980, in the form that ends section 2."""

    def __init__(self, learning_rate: float) -> None:
        self._learning_rate = learning_rate

    def apply(self, variables: Variables, gradients: Gradients) -> Updates:
        """Returns one update per variable, and those of the powers of beta, which belong to this call."""
        with tf.device(variables[0].device):
            betas = (_ADAM_BETA1, _ADAM_BETA2)
            with tf.control_dependencies(None):
                powers = [tf.Variable(beta, trainable=False, name="adam_beta_power") for beta in betas]
            now = [power.read_value() for power in powers]  # read once: all updates of a step see the same powers
            moved = [
                tf.raw_ops.AssignVariableOp(resource=power.handle, value=value * beta)
                for power, value, beta in zip(powers, now, betas, strict=True)
            ]

        def update(variable: tf.Variable, gradient: tf.Tensor) -> tf.Operation:
            return tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=_slot(variable, "m").handle,
                v=_slot(variable, "v").handle,
                beta1_power=now[0],
                beta2_power=now[1],
                lr=self._learning_rate,
                beta1=_ADAM_BETA1,
                beta2=_ADAM_BETA2,
                epsilon=_ADAM_EPSILON,
                grad=gradient,
            )

        updates = _on_each(variables, gradients, update)
        with tf.control_dependencies([updates[-1], *moved]):
            updates[-1] = tf.no_op()
        return updates


Optimizer = GradientDescent | Momentum | RmsProp | Adam


def make(name: str, *, learning_rate: float, momentum: float) -> Optimizer:
    """Makes the update rule called `name`: sgd, momentum, rmsprop or adam."""
    rules: dict[str, Callable[[], Optimizer]] = {
        "sgd": lambda: GradientDescent(learning_rate),
        "momentum": lambda: Momentum(learning_rate, momentum),
        "rmsprop": lambda: RmsProp(learning_rate),
        "adam": lambda: Adam(learning_rate),
    }
    return rules[name]()


def _on_each(
    variables: Variables, gradients: Gradients, update: Callable[[tf.Variable, tf.Tensor], tf.Operation]
) -> Updates:
    operations = []
    for variable, gradient in zip(variables, gradients, strict=True):
        with tf.device(variable.device):
            operations.append(update(variable, gradient))
    return operations


def _slot(variable: tf.Variable, name: str, value: float = 0.0) -> tf.Variable:
    """Creates, on the current device, what the rule remembers of one variable."""
    with tf.control_dependencies(None):  # a manager may order updates, but what initialises them comes before all
        initial = tf.fill(variable.shape, tf.constant(value, variable.dtype))
        return tf.Variable(initial, trainable=False, name=f"{variable.op.name}/{name}")
