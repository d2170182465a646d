"""The flags of a run, spelled as in tf_cnn_benchmarks, by the groups of `--help`: those of the parts of `Config`.

A flag that is not given is None.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from benchmarks.callbacks.options import EVALUATION_FLAGS, Summaries
from benchmarks.checkpoints.options import Checkpoints
from benchmarks.cluster.options import CLUSTER_FLAGS
from benchmarks.config.output import OUTPUT_FLAGS
from benchmarks.config.variable_update import VARIABLE_FLAGS
from benchmarks.config.workload import Length, Workload
from benchmarks.data.options import INPUT_FLAGS, Data
from benchmarks.devices.options import DEVICE_FLAGS
from benchmarks.option import Flag, Groups, flags_of, only
from benchmarks.tracing.options import Traces
from benchmarks.training.computing import COMPUTING_FLAGS
from benchmarks.training.options import SCHEDULE_FLAGS, Training

RUN_FLAGS: Groups = {
    "What is trained": (*flags_of(Workload), *COMPUTING_FLAGS),
    "Devices": DEVICE_FLAGS,
    "Several processes": CLUSTER_FLAGS,
    "Variables and gradients": VARIABLE_FLAGS,
    "Data": flags_of(Data),
    "How images are read and prepared": INPUT_FLAGS,
    "Learning rate": SCHEDULE_FLAGS,
    "Optimizer": flags_of(Training),
    "Checkpoints": flags_of(Checkpoints),
    "Evaluation": EVALUATION_FLAGS,
    "Summaries and profiles": (*flags_of(Summaries), *flags_of(Traces)),
    "How long": flags_of(Length),
    "Output": OUTPUT_FLAGS,
}

FLAGS: Mapping[str, Flag] = {flag.name: flag for group in RUN_FLAGS.values() for flag in group}
# The value of each flag that is not given; a phrase if it depends on something, None if there is none.
DEFAULTS: Mapping[str, Any] = {name: flag.default for name, flag in FLAGS.items()}

# The devices of verbs that compare what several devices compute or exchange; threads and kernels are TensorFlow's.
_DEVICES = ("device", "num_gpus", "gpus", "virtual_gpus", "gpu_memory_frac", "gpu_memory_limit_mb", "allow_growth")
_USUALLY = "all GPUs, or one split in two, or two logical CPU devices"
SEVERAL_DEVICES = tuple(
    dataclasses.replace(flag, help="number of devices", default=_USUALLY) if flag.name == "num_gpus" else flag
    for flag in only(RUN_FLAGS["Devices"], *_DEVICES)
)


def words(values: Mapping[str, Any]) -> list[str]:
    """Returns flag values as words of a command line, without those that are None."""
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
    return [f"--{name}={given[name]}" for name, value in values.items() if value is not None]


def unset(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of all flags of `run`, None for those that are not among `values`."""
    return dict.fromkeys(FLAGS) | dict(values)
