"""From flags to the update rule, and to the loss that lines report. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from benchmarks.config.flag import Flag, Groups
from benchmarks.topology.cluster import Cluster
from models.model_spec import ModelSpec
from variable_mgr.catalog import IN_GRAPH, MANAGERS
from variable_mgr.modifiers import Modifiers

LossType = Literal["base_loss", "total_loss"]
LOSS_TYPES = ("base_loss", "total_loss")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """The constants of RMSProp (Tieleman and Hinton 2012) and Adam (Kingma and Ba 2014), as in tf_cnn_benchmarks."""

    rmsprop_decay: float = 0.9
    rmsprop_momentum: float = 0.9
    rmsprop_epsilon: float = 1.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8


_OPTIMIZER, _MOMENTUM, _WEIGHT_DECAY = "sgd", 0.9, 4e-5  # by default
OPTIMIZER_FLAGS: Groups = {
    "Optimizer": (
        Flag("optimizer", str, "update rule", ("sgd", "momentum", "rmsprop", "adam"), default=_OPTIMIZER),
        Flag("init_learning_rate", float, "learning rate", default="the model's", above=0),
        Flag("momentum", float, "factor of the momentum optimizer", default=_MOMENTUM, at_least=0),
        Flag(
            "rmsprop_decay",
            float,
            "rmsprop: decay of the mean square",
            default=Hyperparameters.rmsprop_decay,
            at_least=0,
            at_most=1,
        ),
        Flag("rmsprop_momentum", float, "rmsprop: momentum", default=Hyperparameters.rmsprop_momentum, at_least=0),
        Flag(
            "rmsprop_epsilon",
            float,
            "rmsprop: added to the mean square",
            default=Hyperparameters.rmsprop_epsilon,
            above=0,
        ),
        Flag("adam_beta1", float, "adam: decay of the mean", default=Hyperparameters.adam_beta1, at_least=0, at_most=1),
        Flag(
            "adam_beta2",
            float,
            "adam: decay of the mean square",
            default=Hyperparameters.adam_beta2,
            at_least=0,
            at_most=1,
        ),
        Flag(
            "adam_epsilon",
            float,
            "adam: added to the root of the mean square",
            default=Hyperparameters.adam_epsilon,
            above=0,
        ),
        Flag("weight_decay", float, "L2 penalty on kernels", default=_WEIGHT_DECAY, at_least=0),
        Flag(
            "tf_random_seed",
            int,
            "seed of initial values, data and dropout",
            default=1234,
            at_least=0,
            at_most=2**32 - 1,  # NumPy takes no larger one
        ),
    ),
}
# For other optimizers than plain SGD, the model's learning rate times this: momentum 0.9 adds up about ten steps.
_LEARNING_RATE_SCALE = {"sgd": 1.0, "momentum": 0.1, "rmsprop": 0.1, "adam": 0.1}


def resolve(
    given: Mapping[str, Any],
    spec: ModelSpec,
    variables: Mapping[str, Any],
    devices: Mapping[str, Any],
    cluster: Cluster | None,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Decides on the update rule and on the loss of printed lines.

    Args:
        given: flag values by name; None is not given.
        spec: the model, which has the default learning rate.
        variables: the decisions on variables: `variable_update`, `modifiers`.
        devices: the decisions on devices: `num_devices`.
        cluster: the tasks; None for a single process.

    Returns:
        The fields of the configuration that are about the optimizer, and sentences on how flags were understood.
    """
    optimizer = given["optimizer"] or _OPTIMIZER
    constants = (field.name for field in dataclasses.fields(Hyperparameters))
    loss_type, notices = _loss_type(
        given, variables["variable_update"], variables["modifiers"], cluster, num_devices=devices["num_devices"]
    )
    return {
        "optimizer": optimizer,
        "learning_rate": given["init_learning_rate"] or spec.learning_rate * _LEARNING_RATE_SCALE[optimizer],
        "momentum": _MOMENTUM if given["momentum"] is None else given["momentum"],
        "hyperparameters": Hyperparameters(**{name: given[name] for name in constants if given[name] is not None}),
        "weight_decay": _WEIGHT_DECAY if given["weight_decay"] is None else given["weight_decay"],
        "loss_type_to_report": loss_type,
    }, notices


def _loss_type(
    given: Mapping[str, Any], manager: str, modifiers: Modifiers, cluster: Cluster | None, *, num_devices: int
) -> tuple[LossType, tuple[str, ...]]:
    """Returns which loss the printed lines have, and a sentence if that is not what a flag requests.

    The penalty of the total loss is computed between steps, by the process that takes them. It is left out where a
    worker would wait for another one's penalty within a step, or where there is not one set of weights to penalise.
    """
    asked = given["loss_type_to_report"]
    problem = None
    if given["forward_only"]:
        problem = "--forward_only minimises nothing"
    elif manager not in MANAGERS:
        problem = "a reference loop reports its own loss"
    elif modifiers.asynchronous:
        problem = "asynchronous towers never pause"
    elif cluster and cluster.num_workers > 1 and manager not in IN_GRAPH:
        problem = "workers would wait for each other's penalty"
    elif num_devices > 1 and not MANAGERS[manager].exchanges_gradients:
        problem = f"under {manager} every tower has weights of its own"
    if problem and asked == "total_loss":
        return "base_loss", (f"--loss_type_to_report=total_loss: {problem}, so lines have base_loss.",)
    return "base_loss" if problem or asked == "base_loss" else "total_loss", ()
