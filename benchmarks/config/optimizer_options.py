"""From flags to the update rule, and to the loss that lines report. Imports without TensorFlow."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from benchmarks.config.flag import Flag, Groups
from benchmarks.errors import UsageError
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clipping:
    """Limits of averaged gradients, weight decay included: of each element, then of the norm of all; None: no limit."""

    value: float | None = None
    norm: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate as a function of the epochs, which are images trained by images of the data set.

    It is the initial rate if no kind of decay is chosen: pieces, exponential (in a staircase), or half a cosine.

    Attributes:
        initial: the rate after the warm-up.
        warmup_epochs: during these the rate rises linearly from 0 to `initial`.
        boundaries: the epochs at which a piece ends.
        rates: of the pieces, one more than boundaries; the first is `initial`.
        epochs_per_decay: after every so many epochs the rate is multiplied by `decay_factor`; 0: never.
        decay_factor: see there.
        cosine_epochs: the epoch at which the cosine, which starts when the warm-up ends, is at `minimum`; 0: none.
        minimum: the rate does not decay below this.
    """

    initial: float
    warmup_epochs: float = 0.0
    boundaries: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    epochs_per_decay: float = 0.0
    decay_factor: float = 0.0
    cosine_epochs: float = 0.0
    minimum: float = 0.0

    def rate(self, epochs: float) -> float:
        """Returns the learning rate of a step that begins after that many epochs."""
        if epochs < self.warmup_epochs:
            return self.initial * epochs / self.warmup_epochs
        reached = epochs + 1e-9  # a quotient of images may be rounded below the boundary that it stands for
        if self.rates:
            return self.rates[bisect.bisect_right(self.boundaries, reached)]
        if self.epochs_per_decay:
            return max(self.minimum, self.initial * self.decay_factor ** (reached // self.epochs_per_decay))
        if self.cosine_epochs:
            share = min(1.0, (epochs - self.warmup_epochs) / (self.cosine_epochs - self.warmup_epochs))
            return self.minimum + (self.initial - self.minimum) * (1 + math.cos(math.pi * share)) / 2
        return self.initial

    def __str__(self) -> str:
        """Returns the course of the rate in words."""
        words = [f"learning rate {self.initial:g}"]
        if self.warmup_epochs:
            words.append(f"from 0 in {self.warmup_epochs:g} epochs")
        words += [f"{rate:g} from epoch {epoch:g}" for epoch, rate in zip(self.boundaries, self.rates[1:], strict=True)]
        if self.epochs_per_decay:
            words.append(f"times {self.decay_factor:g} every {self.epochs_per_decay:g} epochs")
        if self.cosine_epochs:
            words.append(f"along a cosine until epoch {self.cosine_epochs:g}")
        return ", ".join([*words, *([f"at least {self.minimum:g}"] if self.minimum else [])])


_OPTIMIZER, _MOMENTUM, _WEIGHT_DECAY = "sgd", 0.9, 4e-5  # by default
LARS_TRUST_COEFFICIENT = 0.001  # by default, as in the paper's experiments
DECAYED = ("kernels", "kernels_and_biases", "all")
OPTIMIZER_FLAGS: Groups = {
    "Learning rate": (
        Flag("init_learning_rate", float, "learning rate after the warm-up", default="the model's", above=0),
        Flag(
            "num_learning_rate_warmup_epochs",
            float,
            "raise the rate linearly from 0 during these epochs",
            default=0.0,
            at_least=0,
        ),
        Flag(
            "piecewise_learning_rate_schedule",
            str,
            "LR0;E1;LR1;...: the rate is LR0 up to epoch E1, then LR1",
            unset="",
        ),
        Flag("num_epochs_per_decay", float, "multiply the rate after every so many epochs", default=0.0, at_least=0),
        Flag("learning_rate_decay_factor", float, "by this", default=0.0, at_least=0),
        Flag("cosine_decay_epochs", float, "lower the rate along half a cosine until this epoch", above=0),
        Flag("minimum_learning_rate", float, "the rate does not decay below this", default=0.0, at_least=0),
        Flag(
            "resnet_base_lr",
            float,
            "the usual schedule of ResNets on ImageNet: this per 256 images of a global batch after 5 epochs of "
            "warm-up; a tenth of that from epoch 30, 60, 80 and 90 on",
            unset=0,
            above=0,
        ),
    ),
    "Optimizer": (
        Flag(
            "optimizer",
            str,
            "update rule",
            ("sgd", "momentum", "nesterov", "rmsprop", "adam", "lars"),
            default=_OPTIMIZER,
        ),
        Flag("momentum", float, "factor of momentum, nesterov and lars", default=_MOMENTUM, at_least=0),
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
        Flag(
            "lars_trust_coefficient",
            float,
            "lars: a weight's own rate is this times its norm by that of its gradient",
            default=LARS_TRUST_COEFFICIENT,
            above=0,
        ),
        Flag("weight_decay", float, "L2 penalty", default=_WEIGHT_DECAY, at_least=0),
        Flag(
            "weight_decay_on",
            str,
            "the weights that it acts on; all has the scales and offsets of batch normalisation, too",
            DECAYED,
            default=DECAYED[0],
        ),
        Flag("gradient_clip", float, "limit each element of the averaged gradients to -V..V", above=0),
        Flag(
            "gradient_clip_norm",
            float,
            "scale the averaged gradients down if the norm of all together is larger",
            above=0,
        ),
        Flag(
            "label_smoothing",
            float,
            "share of a label that all classes get in equal parts; the reported loss has it, too",
            default=0.0,
            at_least=0,
            at_most=1,
        ),
        Flag(
            "tf_random_seed",
            int,
            "seed of initial values, data and dropout",
            default=1234,
            at_least=0,
            at_most=2**32 - 1,  # NumPy takes no larger one
        ),
        Flag(
            "deterministic",
            bool,
            "equal runs on equal hardware give losses of equal bits; slower: images whose preparation is random or in "
            "Python are prepared one at a time, and waiting for input is not timed",
        ),
    ),
}
# For other optimizers than plain SGD, the model's learning rate times this: momentum 0.9 adds up about ten steps.
_LEARNING_RATE_SCALE = {"sgd": 1.0, "momentum": 0.1, "nesterov": 0.1, "rmsprop": 0.1, "adam": 0.1}
_LARS_RATE = 1.0  # of any model: it is relative to the size of the weights


def resolve(
    given: Mapping[str, Any],
    spec: ModelSpec,
    variables: Mapping[str, Any],
    devices: Mapping[str, Any],
    cluster: Cluster | None,
    *,
    batch_per_device: int,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Decides on the update rule and on the loss of printed lines.

    Args:
        given: flag values by name; None is not given.
        spec: the model, which has the default learning rate.
        variables: the decisions on variables: `variable_update`, `modifiers`.
        devices: the decisions on devices: `num_devices`.
        cluster: the tasks; None for a single process.
        batch_per_device: images per device and step.

    Returns:
        The fields of the configuration that are about the optimizer, and sentences on how flags were understood.

    Raises:
        UsageError: flags contradict each other, or need another one.
    """
    optimizer = given["optimizer"] or _OPTIMIZER
    constants = (field.name for field in dataclasses.fields(Hyperparameters))
    loss_type, notices = _loss_type(
        given, variables["variable_update"], variables["modifiers"], cluster, num_devices=devices["num_devices"]
    )
    if variables["modifiers"].fc_model_parallel and (optimizer == "lars" or given["gradient_clip_norm"]):
        flag = "optimizer=lars" if optimizer == "lars" else "gradient_clip_norm"
        raise UsageError(
            f"--{flag} needs the norm of whole gradients, and --fc_model_parallel divides some: omit one of them."
        )
    towers = devices["num_devices"] * (cluster.num_workers if cluster else 1)
    usual = _LARS_RATE if optimizer == "lars" else spec.learning_rate * _LEARNING_RATE_SCALE[optimizer]
    schedule = _schedule(given, spec, variables["modifiers"], usual, batch_global=batch_per_device * towers)
    return {
        "optimizer": optimizer,
        "learning_rate": schedule.initial,
        "schedule": None if schedule == Schedule(initial=schedule.initial) else schedule,
        "momentum": _MOMENTUM if given["momentum"] is None else given["momentum"],
        "hyperparameters": Hyperparameters(**{name: given[name] for name in constants if given[name] is not None}),
        "lars_trust_coefficient": given["lars_trust_coefficient"] or LARS_TRUST_COEFFICIENT,
        "clipping": Clipping(value=given["gradient_clip"], norm=given["gradient_clip_norm"]),
        "weight_decay": _WEIGHT_DECAY if given["weight_decay"] is None else given["weight_decay"],
        "weight_decay_on": given["weight_decay_on"] or DECAYED[0],
        "label_smoothing": given["label_smoothing"] or 0.0,
        "loss_type_to_report": loss_type,
    }, notices


_PIECES, _EACH, _FACTOR = "piecewise_learning_rate_schedule", "num_epochs_per_decay", "learning_rate_decay_factor"
_DECAYS = ("resnet_base_lr", _PIECES, _EACH, "cosine_decay_epochs")


def _schedule(
    given: Mapping[str, Any], spec: ModelSpec, modifiers: Modifiers, usual: float, *, batch_global: int
) -> Schedule:
    """Returns the schedule of the learning rate, which may be constant; `usual` is the rate if no flag sets it.

    Raises:
        UsageError: flags contradict each other, or need another one.
    """
    chosen = [name for name in _DECAYS if given[name]]
    if len(chosen) > 1:
        raise UsageError(f"--{chosen[0]} and --{chosen[1]} both lower the learning rate: omit one of them.")
    if bool(given[_EACH]) != bool(given[_FACTOR]):
        raise UsageError(f"--{_EACH} and --{_FACTOR} act together only: pass both, or neither.")
    if given["minimum_learning_rate"] and not (given[_EACH] or given["cosine_decay_epochs"]):
        raise UsageError(f"--minimum_learning_rate needs --{_EACH} or --cosine_decay_epochs: add one, or omit it.")
    warmup_epochs = given["num_learning_rate_warmup_epochs"] or 0.0
    sets_rate = _PIECES if given[_PIECES] else "resnet_base_lr" if given["resnet_base_lr"] else None
    if sets_rate and given["init_learning_rate"]:
        raise UsageError(f"--{sets_rate} and --init_learning_rate both set the learning rate: omit one of them.")
    if given["resnet_base_lr"]:
        return _of_resnets(given, spec, modifiers, batch_global)
    if given[_PIECES]:
        rates, boundaries = _pieces(given[_PIECES])
        pieces: dict[str, Any] = (
            {"boundaries": boundaries, "rates": rates} if boundaries else {}
        )  # one rate is constant
        return Schedule(initial=rates[0], warmup_epochs=warmup_epochs, **pieces)
    initial, minimum = given["init_learning_rate"] or usual, given["minimum_learning_rate"] or 0.0
    cosine_epochs = given["cosine_decay_epochs"] or 0.0
    if minimum > initial:
        raise UsageError(f"--minimum_learning_rate={minimum:g} is above the learning rate, {initial:g}: lower it.")
    if cosine_epochs and cosine_epochs <= warmup_epochs:
        raise UsageError(f"--cosine_decay_epochs={cosine_epochs:g} must be above --num_learning_rate_warmup_epochs.")
    return Schedule(
        initial=initial,
        warmup_epochs=warmup_epochs,
        epochs_per_decay=given[_EACH] or 0.0,
        decay_factor=given[_FACTOR] or 0.0,
        cosine_epochs=cosine_epochs,
        minimum=minimum,
    )


def _of_resnets(given: Mapping[str, Any], spec: ModelSpec, modifiers: Modifiers, batch_global: int) -> Schedule:
    """Returns the schedule of Goyal et al. 2017, arXiv:1706.02677, with a fourth step as in tf_cnn_benchmarks."""
    problem = None
    if not spec.name.startswith("resnet") or spec.data_name != "imagenet":
        problem = f"is for ResNets on ImageNet, and the model is {spec.name}"
    elif modifiers.asynchronous:
        problem = "follows the images of a step, and asynchronous towers step one by one"
    elif given["num_learning_rate_warmup_epochs"]:
        problem = "has a warm-up of its own, other than --num_learning_rate_warmup_epochs"
    if problem:
        raise UsageError(f"--resnet_base_lr {problem}: omit it, or use --{_PIECES} instead.")
    initial, boundaries = given["resnet_base_lr"] * batch_global / 256, (30.0, 60.0, 80.0, 90.0)
    rates = tuple(initial / 10**number for number in range(len(boundaries) + 1))
    return Schedule(initial=initial, warmup_epochs=5.0, boundaries=boundaries, rates=rates)


def _pieces(text: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the rates and the epochs of `LR0;E1;LR1;...`.

    Raises:
        UsageError: the text is something else.
    """
    try:
        numbers = [float(word) for word in text.split(";")]
    except ValueError:
        numbers = []
    rates, epochs = tuple(numbers[::2]), tuple(numbers[1::2])
    rises = all(earlier < later for earlier, later in zip((0.0, *epochs), epochs, strict=False))
    if len(rates) != len(epochs) + 1 or not rises or not all(0 <= number < math.inf for number in numbers):
        raise UsageError(
            f"--{_PIECES}={text}: write LR0;E1;LR1;..., rates with rising epochs between them, such as 0.1;30;0.01."
        )
    if not rates[0]:
        raise UsageError(f"--{_PIECES}={text}: the first rate must be above 0.")
    return rates, epochs


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
