"""Update rules on TensorFlow's fused kernels, applied in place on the variable's own device.

The kernels hold the lock of a resource variable whatever `use_locking` says, so towers that go their own way cannot
tear or lose an update. What a rule remembers of a variable (its slots) exists once per variable, however often the rule
is applied to it. Hyperparameters that have no flag are tf_cnn_benchmarks' defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

_RMSPROP_DECAY, _RMSPROP_MOMENTUM, _RMSPROP_EPSILON = 0.9, 0.9, 1.0
_ADAM_BETA1, _ADAM_BETA2, _ADAM_EPSILON = 0.9, 0.999, 1e-8

Variables = Sequence[tf.Variable]
Gradients = Sequence[tf.Tensor]
Updates = list[tf.Operation]


class _Slots:
    """What a rule remembers of variables, each on its variable's device."""

    def __init__(self) -> None:
        self._slots: dict[tuple[object, str], tf.Variable] = {}

    def of(self, variable: tf.Variable, name: str, value: float = 0.0) -> tf.Variable:
        """Returns the slot of that name, which starts at `value` everywhere."""
        key = (variable.ref(), name)
        if key not in self._slots:
            # A manager may order updates or make them depend on a condition; what initialises a slot precedes all that.
            with tf.init_scope(), tf.device(variable.device):
                initial = tf.fill(variable.shape, tf.constant(value, variable.dtype))
                self._slots[key] = tf.Variable(initial, trainable=False, name=f"{variable.op.name}/{name}")
        return self._slots[key]


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
        self._slots = _Slots()

    def apply(self, variables: Variables, gradients: Gradients) -> Updates:
        """Returns one update per variable."""

        def update(variable: tf.Variable, gradient: tf.Tensor) -> tf.Operation:
            return tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle,
                accum=self._slots.of(variable, "momentum").handle,
                lr=self._learning_rate,
                grad=gradient,
                momentum=self._momentum,
            )

        return _on_each(variables, gradients, update)


class RmsProp:
    """Divides the gradient by a running root mean square (Tieleman and Hinton 2012), with momentum."""

    def __init__(self, learning_rate: float) -> None:
        self._learning_rate = learning_rate
        self._slots = _Slots()

    def apply(self, variables: Variables, gradients: Gradients) -> Updates:
        """Returns one update per variable."""

        def update(variable: tf.Variable, gradient: tf.Tensor) -> tf.Operation:
            return tf.raw_ops.ResourceApplyRMSProp(
                var=variable.handle,
                ms=self._slots.of(variable, "mean_square", 1.0).handle,
                mom=self._slots.of(variable, "momentum").handle,
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
        self._slots = _Slots()
        self._steps: dict[object, tf.Variable] = {}

    def apply(self, variables: Variables, gradients: Gradients) -> Updates:
        """Returns one update per variable; the last also counts the step, for the bias correction."""
        if not variables:
            return []
        steps = self._steps_of(variables[0])
        with tf.device(steps.device):
            step = steps.read_value() + 1.0  # read once: all updates of a step see the same
            powers = [tf.pow(beta, step) for beta in (_ADAM_BETA1, _ADAM_BETA2)]

        def update(variable: tf.Variable, gradient: tf.Tensor) -> tf.Operation:
            return tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=self._slots.of(variable, "m").handle,
                v=self._slots.of(variable, "v").handle,
                beta1_power=powers[0],
                beta2_power=powers[1],
                lr=self._learning_rate,
                beta1=_ADAM_BETA1,
                beta2=_ADAM_BETA2,
                epsilon=_ADAM_EPSILON,
                grad=gradient,
            )

        updates = _on_each(variables, gradients, update)
        with tf.device(steps.device), tf.control_dependencies([*powers, updates[-1]]):
            updates[-1] = steps.assign_add(1.0, read_value=False)
        return updates

    def _steps_of(self, first: tf.Variable) -> tf.Variable:
        """Returns the count of steps of the variables that begin with `first`."""
        key = first.ref()
        if key not in self._steps:
            with tf.init_scope(), tf.device(first.device):
                self._steps[key] = tf.Variable(0.0, trainable=False, name="adam_steps")
        return self._steps[key]


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
