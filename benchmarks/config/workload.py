"""What is trained: the model, its images per step, and how many steps. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from benchmarks.callbacks.options import WHEN_TO_EVALUATE
from benchmarks.data.sources.data_sets import DATA_SETS
from benchmarks.option import decided, filled, option
from models import specs

USUAL_STEPS = 100
# The clocks of a GPU settle within seconds.
SETTLING_SECONDS = 20.0
# So many steps of less than 10 ms take less time; a record has several numbers of each step.
MOST_STEPS = 20_000
# With any of these the time of a step does not decide how many are measured: the result of a training, and the bits of
# its losses, depend on their number.
_FIX_THE_LENGTH = ("num_batches", "num_epochs", "train_dir", *WHEN_TO_EVALUATE, "eval", "deterministic")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """The part of a configuration on what is computed; a batch is of images.

    Attributes:
        model_digest: of the code outside this suite that builds the model; None: no such code.
        eval_only: only the weights of a checkpoint are evaluated; then there is inference only, too.
    """

    model: str = option(
        "what is trained: a name of `explain --list_models`, keras:NAME, or path/to/file.py:function; a function, also "
        "package.module:function, returns a Keras model",
        default="resnet50",
        known=tuple(specs.names()),
    )
    model_digest: str | None = None
    batch_per_device: int = option(
        "images per device and step; auto: the largest that fits, found by trying",
        flag="batch_size",
        choices=("auto",),
        default_text="by model and GPU",
        at_least=1,
        unset=0,
    )
    num_classes: int = option(
        "number of classes; 1001 is ImageNet with a background class",
        default_text="the model's",
        at_least=2,
    )
    data_format: Literal["NHWC", "NCHW"] = option(
        "memory layout of images and convolutions; auto: NHWC on CPUs and for 16 bits on tensor cores, else NCHW",
        choices=("auto", "NHWC", "NCHW"),
        other_words=(("channels_last", "NHWC"), ("channels_first", "NCHW")),
        default_text="auto",
    )
    forward_only: bool = option("inference only, without gradients and updates", default=False)
    eval_only: bool = False
    print_training_accuracy: bool = option("print and record the top-1 and top-5 accuracy of each step", default=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Length:
    """The part of a configuration on how long a run takes; None: not by that.

    Attributes:
        at_least_seconds: more than `num_batches` steps are measured if these take less time, up to `MOST_STEPS`.
    """

    num_batches: int | None = option(
        "measured steps",
        default=USUAL_STEPS,
        default_text=f"{USUAL_STEPS}; GPUs: {SETTLING_SECONDS:g} s, but {USUAL_STEPS} to {MOST_STEPS:,} steps",
        in_key=False,
        at_least=1,
        unset=0,
    )
    at_least_seconds: float | None = decided(default=None, in_key=False)
    num_epochs: float | None = option(
        "instead of --num_batches: passes over the data set", default=None, in_key=False, above=0, unset=0
    )
    num_warmup_batches: int = option(
        "warm-up steps, which are not measured; the first step is never measured",
        default_text="10; on a CPU 3, unless images are read",
        at_least=0,
    )
    time_limit_seconds: float | None = option(
        "stop measuring when the process is this old; the result is valid", default=None, in_key=False, above=0
    )


def decide_length(
    given: Mapping[str, Any], steps_per_round: int, data_name: str, *, on_gpu: bool
) -> tuple[Length, str, tuple[str, ...]]:
    """Returns how long a run takes, why that many steps are measured, and sentences on it.

    The reason is empty unless the time of a step decides on their number.

    Args:
        given: flag values by name; None: not given.
        steps_per_round: after so many steps training repeats what it does. Of rounds of several steps, the first one is
            warm-up, since it sets up what is done once a round, and whole ones are measured, since their steps differ.
        data_name: the data set, if there is one: the warm-up uses up what was ready after the first step.
        on_gpu: whether GPUs compute.
    """
    asked = filled(Length, given, num_warmup_batches=0)
    by_time = on_gpu and not any(given[name] for name in _FIX_THE_LENGTH)
    warmup = given["num_warmup_batches"]
    if warmup is None:
        warmup = 10 if on_gpu or data_name in DATA_SETS else 3
    batches = None if given["num_epochs"] else asked.num_batches
    whole = {
        "num_batches": batches and -(-batches // steps_per_round) * steps_per_round,
        "num_warmup_batches": max(warmup, steps_per_round) if steps_per_round > 1 else warmup,
    }
    most = -(-MOST_STEPS // steps_per_round) * steps_per_round
    why = (
        f"{SETTLING_SECONDS:g} s, but {whole['num_batches']} to {most:,} steps, so that a GPU's clocks settle; "
        "--num_batches fixes it"
    )
    notices = tuple(
        f"--{name}={given[name]} becomes {steps}: whole rounds of {steps_per_round} steps (--local_sgd_steps) are "
        "measured, after the first averaging."
        for name, steps in whole.items()
        if given[name] is not None and given[name] != steps
    )
    at_least = SETTLING_SECONDS if by_time else None
    return dataclasses.replace(asked, **whole, at_least_seconds=at_least), why * by_time, notices
