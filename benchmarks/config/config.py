"""The configuration of a run: every decision, made once, from what the command line gave.

All rules that involve more than one flag are here, so that nothing below needs to doubt what it is handed.
Imports without TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

from benchmarks.config import device_options, input_options, manager_options, precision_options, ranges
from benchmarks.config.precision_options import Computing, LossScaling
from benchmarks.errors import UsageError
from benchmarks.input.options import InputOptions
from benchmarks.process.tensorflow_setup import Runtime
from benchmarks.topology import discovery, placement
from benchmarks.topology.cluster import Cluster
from models import specs
from variable_mgr.modifiers import Modifiers, why_not
from variable_mgr.reductions.algorithms import Place


def _aside(**kwargs: Any) -> Any:
    """A field that cannot move the number: paths, what is printed, how long is measured."""
    return dataclasses.field(metadata={"aside": True}, **kwargs)


def _later(default: Any) -> Any:
    """A field that came later: with its default it is left out of the key, so that earlier records keep theirs."""
    return dataclasses.field(metadata={"later": True}, default=default)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """One run, fully decided. Units are in the names; a batch is of images.

    Attributes that are not plain from their name:
        num_devices: towers; one per device.
        virtual_gpus: logical GPUs that each physical one is split into; 1 leaves it whole.
        visible_gpus: indices of the GPUs that may be used; None leaves all.
        shared_on: `cpu`: shared variables and copied gradients are on the host; `gpu`: spread over the devices that
            compute, of whichever kind.
        num_workers, num_ps, num_hosts: of the cluster; 1, 0 and 1 for a single process.
        cluster: its tasks and their addresses; None for a single process.
        input: how images are read; None where they are made on the devices.
        notices: sentences for the user on how something was understood.
    """

    model: str
    num_classes: int
    print_training_accuracy: bool
    batch_per_device: int
    data_format: Literal["NHWC", "NCHW"]
    precision: str
    loss_scaling: LossScaling | None = _later(None)
    xla: Literal["off", "jit"] = _later("off")
    conv1x1_as_matmul: bool = _later(False)
    filter_gradients_as_matmul: bool = _later(False)
    onednn: Literal["on", "off"] | None = _later(None)
    check_precision: bool = _aside(default=False)
    forward_only: bool

    device: Literal["cpu", "gpu"]
    num_devices: int
    virtual_gpus: int
    visible_gpus: tuple[int, ...] | None
    gpu_memory_fraction: float | None
    gpu_allow_growth: bool
    gpu_thread_mode: str | None = _later(None)
    per_gpu_thread_count: int = _later(0)
    num_intra_threads: int
    num_inter_threads: int
    log_device_placement: bool = _aside()

    num_workers: int = 1
    num_ps: int = 0
    num_hosts: int = 1
    cluster: Cluster | None = _aside(default=None)
    start_timeout_seconds: float = _aside(default=300.0)
    step_timeout_seconds: float = _aside(default=600.0)

    variable_update: str
    shared_on: Literal["cpu", "gpu"]
    modifiers: Modifiers
    keras_application: bool = _later(False)

    data_name: input_options.DataName
    data_dir: str | None = _aside()
    pipelined_input: bool
    input: InputOptions | None

    optimizer: str
    learning_rate: float
    momentum: float
    weight_decay: float
    seed: int

    num_batches: int | None = _aside()
    num_epochs: float | None = _aside()
    num_warmup_batches: int
    time_limit_seconds: float | None = _aside()

    output_dir: str = _aside()
    output_format: Literal["text", "json"] = _aside()
    display_every: int = _aside()
    session_id: str = _aside()
    notices: tuple[str, ...] = _aside()

    @property
    def computing(self) -> Computing:
        """How each tower computes."""
        return Computing(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Computing)})

    @property
    def own_device(self) -> str:
        """The kind of device that this process computes on: a CPU, if the towers are other processes'."""
        return self.device if self.cluster is None or self.cluster.own.has_towers else "cpu"

    @functools.cached_property
    def runtime(self) -> Runtime:
        """What this process asks of TensorFlow. A task without towers has one CPU device."""
        same = {name: getattr(self, name) for name in _RUNTIME_FIELDS}
        computes = self.cluster is None or self.cluster.own.has_towers
        peers = tuple(self.cluster.tasks.values()) if self.cluster else ()
        own = {"device": self.own_device, "num_devices": self.num_devices if computes else 1, "peers": peers}
        return Runtime(**{**same, **own})

    @functools.cached_property
    def place(self) -> Place:
        """The towers that this process drives, and what is around them."""
        return placement.place(
            self.device,
            self.num_devices,
            virtual=self.virtual_gpus > 1,
            cluster=self.cluster,
            manager=self.variable_update,
        )

    @property
    def batch_global(self) -> int:
        """Images per step over all devices."""
        return self.batch_per_device * self.towers_in_total

    @property
    def towers_in_total(self) -> int:
        """Devices that train together, over all workers."""
        return self.num_devices * self.num_workers

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields, as JSON can hold them."""
        return dataclasses.asdict(self)

    def key_fields(self) -> dict[str, Any]:
        """Returns the fields that can move the number."""
        aside = self.aside_fields()
        # What a single process runs keeps the key it has always had; so do gradients that travel as they always could.
        if self.cluster is None:
            aside += ["num_workers", "num_ps", "num_hosts"]
        aside += [
            f.name for f in dataclasses.fields(self) if f.metadata.get("later") and getattr(self, f.name) == f.default
        ]
        fields = {name: value for name, value in self.to_dict().items() if name not in aside}
        if self.modifiers.wire_dtype != "bfloat16":
            del fields["modifiers"]["compact_gradient_dtype"]
        return fields

    def aside_fields(self) -> list[str]:
        """Returns the names of the fields that cannot move the number."""
        return [f.name for f in dataclasses.fields(self) if f.metadata.get("aside")]


DEFAULT_NUM_BATCHES = 100
_RUNTIME_FIELDS = {field.name for field in dataclasses.fields(Runtime)} & {f.name for f in dataclasses.fields(Config)}
# Where the number of GPUs here does not matter.
ANY_NUMBER_OF_GPUS = 10**6
# For other optimizers than plain SGD, the model's learning rate times this: momentum 0.9 adds up about ten steps.
_LEARNING_RATE_SCALE = {"sgd": 1.0, "momentum": 0.1, "rmsprop": 0.1, "adam": 0.1}


def resolve(
    given: Mapping[str, Any], count_gpus: Callable[[], int], environ: Mapping[str, str] | None = None
) -> Config:
    """Turns flag values (None: not given) into a configuration.

    Args:
        given: by flag name, as `flags.parse` returns them.
        count_gpus: asks how many GPUs there are; called only if that matters.
        environ: where a cluster may be named, too; None for the environment variables.

    Raises:
        UsageError: a value out of range, or values that do not go together.
    """
    _check(given)
    try:
        spec = specs.find(given["model"] or "resnet50")
    except specs.UnknownModelError as error:
        raise UsageError(str(error)) from error
    precision_options.refuse_without_convolutions(given, spec)
    cluster, cluster_notices = discovery.resolve(given, os.environ if environ is None else environ)
    devices = device_options.resolve(given, count_gpus if _has_towers(cluster, given) else lambda: ANY_NUMBER_OF_GPUS)
    on_gpu = devices["device"] == "gpu"
    data, data_notices = input_options.resolve(given, spec)
    variables, variable_notices = manager_options.resolve(given, devices, cluster)
    arithmetic, notices = _arithmetic(given, on_gpu, variables, cluster)
    config = Config(
        model=spec.name,
        print_training_accuracy=bool(given["print_training_accuracy"]),
        batch_per_device=_either(given["batch_size"], spec.batch_on_gpu if on_gpu else spec.batch_on_cpu),
        forward_only=bool(given["forward_only"]),
        **arithmetic,
        **devices,
        gpu_memory_fraction=given["gpu_memory_frac"],
        gpu_allow_growth=bool(given["allow_growth"]),
        num_intra_threads=_either(given["num_intra_threads"], 0),
        num_inter_threads=_either(given["num_inter_threads"], 0),
        log_device_placement=bool(given["log_device_placement"]),
        **_of_cluster(cluster, given),
        **variables,
        **data,
        **_optimizer(given, spec),
        seed=_either(given["tf_random_seed"], 1234),
        **_length(given, on_gpu),
        output_dir=given["output_dir"] or "out",
        output_format=given["output_format"] or "text",
        display_every=_either(given["display_every"], 10),
        session_id=given["session_id"] or "",
        notices=data_notices + cluster_notices + variable_notices + notices,
    )
    problem = why_not(config.variable_update, config.modifiers, config.place)
    if problem:
        raise UsageError(problem)
    return config


def _arithmetic(
    given: Mapping[str, Any], on_gpu: bool, variables: Mapping[str, Any], cluster: Cluster | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    # Keras' own model comes in Keras' own layout.
    data_format = _resolve_data_format(given["data_format"], on_gpu and not variables["keras_application"])
    computing, notices = precision_options.resolve(
        given,
        on_gpu=on_gpu,
        manager=variables["variable_update"],
        modifiers=variables["modifiers"],
        data_format=data_format,
    )
    if computing.check_precision and cluster:
        raise UsageError("--check_precision trains a second time in this process: leave out the cluster, or the check.")
    fields = {field.name: getattr(computing, field.name) for field in dataclasses.fields(computing)}
    return {"data_format": data_format, **fields}, notices


def _optimizer(given: Mapping[str, Any], spec: specs.ModelSpec) -> dict[str, Any]:
    name = given["optimizer"] or "sgd"
    return {
        "optimizer": name,
        "learning_rate": _either(given["init_learning_rate"], spec.learning_rate * _LEARNING_RATE_SCALE[name]),
        "momentum": _either(given["momentum"], 0.9),
        "weight_decay": _either(given["weight_decay"], 4e-5),
    }


def _length(given: Mapping[str, Any], on_gpu: bool) -> dict[str, Any]:
    return {
        "num_batches": _either(given["num_batches"], None if given["num_epochs"] else DEFAULT_NUM_BATCHES),
        "num_epochs": given["num_epochs"],
        "num_warmup_batches": _either(given["num_warmup_batches"], 10 if on_gpu else 3),
        "time_limit_seconds": given["time_limit_seconds"],
    }


def _has_towers(cluster: Cluster | None, given: Mapping[str, Any]) -> bool:
    """Returns whether the GPUs that are asked for must be here, and not with the workers."""
    demanded = given["num_gpus"] is not None or given["device"] == "gpu" or given["gpus"] is not None
    return cluster is None or cluster.own.has_towers or not demanded


def _of_cluster(cluster: Cluster | None, given: Mapping[str, Any]) -> dict[str, Any]:
    patience = {name: given[name] for name in ("start_timeout_seconds", "step_timeout_seconds") if given[name]}
    if cluster is None:
        return patience
    sizes = {"num_workers": cluster.num_workers, "num_ps": cluster.num_ps, "num_hosts": cluster.num_hosts}
    return {**patience, **sizes, "cluster": cluster}


def _either(value: Any, default: Any) -> Any:
    return default if value is None else value


def _check(given: Mapping[str, Any]) -> None:
    """Refuses numbers that are out of their range, and flags that contradict each other."""
    ranges.check(given)
    if given["batch_size"] == "auto":
        raise UsageError("--batch_size=auto is found by trying, which only `run` and `recommend` do: give a number.")
    if given["num_batches"] is not None and given["num_epochs"] is not None:
        raise UsageError("--num_batches and --num_epochs both say how long to measure: give one of them.")


def _resolve_data_format(wanted: Literal["auto", "NHWC", "NCHW"] | None, on_gpu: bool) -> Literal["NHWC", "NCHW"]:
    if wanted is None or wanted == "auto":
        return "NCHW" if on_gpu else "NHWC"
    return wanted
