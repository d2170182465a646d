"""How weights are trained: the update rule, the learning rate, and what is random. Imports without TensorFlow."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from benchmarks.errors import UsageError
from benchmarks.option import Flag, filled, flags_of, option
from models.model_spec import ModelSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate as a function of the epochs, which are images trained by images of the data set.

    It is the initial rate if no kind of decay is chosen: pieces, exponential (in a staircase), or half a cosine.

    Attributes:
        boundaries: the epochs at which a piece ends.
        rates: of the pieces, one more than boundaries; the first is `initial`.
    """

    initial: float = option(
        "initial learning rate, after the warm-up", flag="init_learning_rate", default_text="the model's", above=0
    )
    warmup_epochs: float = option(
        "epochs of linear warm-up from 0",
        default=0.0,
        flag="num_learning_rate_warmup_epochs",
        at_least=0,
    )
    boundaries: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    epochs_per_decay: float = option(
        "epochs between two decays of the learning rate", default=0.0, flag="num_epochs_per_decay", at_least=0
    )
    decay_factor: float = option(
        "factor of each decay, with --num_epochs_per_decay", default=0.0, flag="learning_rate_decay_factor", at_least=0
    )
    cosine_epochs: float = option(
        "decay the learning rate along half a cosine, from the end of the warm-up until this epoch; 0: no",
        default=0.0,
        flag="cosine_decay_epochs",
        at_least=0,
    )
    minimum: float = option(
        "lower bound of the decayed learning rate", default=0.0, flag="minimum_learning_rate", at_least=0
    )

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """The part of a configuration on how weights are trained; averaged gradients include weight decay.

    The constants of RMSProp (Tieleman and Hinton 2012) and Adam (Kingma and Ba 2014) are as in tf_cnn_benchmarks.

    Attributes:
        learning_rate: at the beginning.
        schedule: of the learning rate; None: it is constant.
    """

    optimizer: Literal["sgd", "momentum", "nesterov", "rmsprop", "adam", "lars"] = option(
        "update rule of the weights", default="sgd"
    )
    learning_rate: float
    schedule: Schedule | None = None
    momentum: float = option("momentum of the optimizers momentum, nesterov and lars", default=0.9, at_least=0)
    rmsprop_decay: float = option("rmsprop: decay rate of the mean square", default=0.9, at_least=0, at_most=1)
    rmsprop_momentum: float = option("rmsprop: momentum", default=0.9, at_least=0)
    rmsprop_epsilon: float = option("rmsprop: epsilon, added to the mean square", default=1.0, above=0)
    adam_beta1: float = option("adam: decay rate of the first moment", default=0.9, at_least=0, at_most=1)
    adam_beta2: float = option("adam: decay rate of the second moment", default=0.999, at_least=0, at_most=1)
    adam_epsilon: float = option("adam: epsilon, added to the root of the second moment", default=1e-8, above=0)
    lars_trust_coefficient: float = option(
        "lars: trust coefficient c; the local learning rate is c * |w| / |g|",
        default=0.001,  # as in the paper's experiments
        above=0,
    )
    gradient_clip: float | None = option("clip each element of the averaged gradients to -V..V", default=None, above=0)
    gradient_clip_norm: float | None = option("clip the averaged gradients by their global norm", default=None, above=0)
    weight_decay: float = option("weight decay (L2 penalty)", default=4e-5, at_least=0)
    weight_decay_on: Literal["kernels", "kernels_and_biases", "all"] = option(
        "weights that --weight_decay acts on; all: also the scales and offsets of batch normalisation",
        default="kernels",
    )
    label_smoothing: float = option(
        "label smoothing factor; the reported loss includes it",
        default=0.0,
        at_least=0,
        at_most=1,
    )
    seed: int = option(
        "random seed of initial values, data and dropout",
        default=1234,
        flag="tf_random_seed",
        at_least=0,
        at_most=2**32 - 1,  # NumPy takes no larger one
    )
    deterministic: bool = option(
        "give bit-identical losses in equal runs on equal hardware; slower: images whose preparation is random or "
        "in Python are prepared one at a time, and the wait for input is not timed",
        default=False,
    )


SCHEDULE_FLAGS = (
    *flags_of(Schedule),
    Flag(
        "piecewise_learning_rate_schedule",
        str,
        "piecewise constant learning rate; LR0;E1;LR1;...: LR0 up to epoch E1, then LR1",
        unset="",
    ),
    Flag(
        "resnet_base_lr",
        float,
        "standard schedule of ResNets on ImageNet, with this base learning rate per 256 images of the global batch; "
        "after 5 epochs of warm-up, it is divided by 10 at epochs 30, 60, 80 and 90",
        unset=0,
        above=0,
    ),
)
# For other optimizers than plain SGD, the model's learning rate times this: momentum 0.9 adds up about ten steps.
_RATE_OF_OTHERS = 0.1
_LARS_RATE = 1.0  # of any model: it is relative to the size of the weights


def decide(given: Mapping[str, Any], spec: ModelSpec, *, batch_global: int) -> Training:
    """Returns how weights are trained.

    The model has the default learning rate; `batch_global` is in images per step.

    Raises:
        UsageError: a schedule cannot be that of a learning rate.
    """
    optimizer = given["optimizer"] or "sgd"
    scale = 1.0 if optimizer == "sgd" else _RATE_OF_OTHERS
    usual = _LARS_RATE if optimizer == "lars" else float(f"{spec.learning_rate * scale:.6g}")
    schedule = _schedule(given, usual, batch_global=batch_global)
    is_constant = schedule == Schedule(initial=schedule.initial)
    return filled(Training, given, learning_rate=schedule.initial, schedule=None if is_constant else schedule)


def notices(schedule: Schedule | None, num_epochs: float | None) -> Iterator[str]:
    """Yields a sentence if the learning rate stays near 0, or is 0 long before the end of so many epochs."""
    if schedule is None or num_epochs is None:
        return
    if schedule.warmup_epochs >= num_epochs:
        yield (
            f"The learning rate never reaches {schedule.initial:g}: its warm-up takes {schedule.warmup_epochs:g} "
            f"epochs, and --num_epochs={num_epochs:g} ends before."
        )
    elif 0 < schedule.cosine_epochs < num_epochs and not schedule.minimum:
        yield (
            f"The learning rate is 0 from epoch {schedule.cosine_epochs:g} to --num_epochs={num_epochs:g}, so nothing "
            "is learned there: raise --cosine_decay_epochs, or pass --minimum_learning_rate."
        )


def _schedule(given: Mapping[str, Any], usual: float, *, batch_global: int) -> Schedule:
    """Returns the schedule of the learning rate, which may be constant; `usual` is the rate if no flag sets it.

    Raises:
        UsageError: its numbers do not fit together.
    """
    if given["resnet_base_lr"]:  # Goyal et al. 2017, arXiv:1706.02677, with a fourth step as in tf_cnn_benchmarks
        initial, epochs = given["resnet_base_lr"] * batch_global / 256, (30.0, 60.0, 80.0, 90.0)
        rates = tuple(initial / 10**number for number in range(len(epochs) + 1))
        return Schedule(initial=initial, warmup_epochs=5.0, boundaries=epochs, rates=rates)
    pieces: dict[str, Any] = {"initial": given["init_learning_rate"] or usual}
    if given["piecewise_learning_rate_schedule"]:
        rates, boundaries = _pieces(given["piecewise_learning_rate_schedule"])
        pieces = {"initial": rates[0], "boundaries": boundaries, "rates": rates}
    schedule = filled(Schedule, given, **pieces)
    if schedule.minimum > schedule.initial:
        raise UsageError(
            f"--minimum_learning_rate={schedule.minimum:g} is above the learning rate, {schedule.initial:g}: lower it."
        )
    if 0 < schedule.cosine_epochs <= schedule.warmup_epochs:
        raise UsageError(
            f"--cosine_decay_epochs={schedule.cosine_epochs:g} must be above --num_learning_rate_warmup_epochs."
        )
    return schedule


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
            f"--piecewise_learning_rate_schedule={text}: write LR0;E1;LR1;..., rates with rising epochs between them, "
            "such as 0.1;30;0.01."
        )
    if not epochs:
        raise UsageError(
            f"--piecewise_learning_rate_schedule={text} is one rate. Write a schedule in quotes, as '0.1;30;0.01': a "
            "shell ends a command at ';', and loses the flags behind it. A constant rate is --init_learning_rate."
        )
    if not rates[0]:
        raise UsageError(f"--piecewise_learning_rate_schedule={text}: the first rate must be above 0.")
    return rates, epochs
