"""The configuration of a run: every decision, made once, from the flags. Imports without TensorFlow.

All rules that involve more than one flag are here and in the `*_options` beside it: code below relies on them.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

from benchmarks.config import (
    between_options,
    device_options,
    flag,
    input_options,
    length_options,
    manager_options,
    optimizer_options,
    outside_models,
    peer_flags,
    precision_options,
    without_effect,
)
from benchmarks.config.between_options import BetweenSteps
from benchmarks.config.manager_options import Pipelining
from benchmarks.config.optimizer_options import LARS_TRUST_COEFFICIENT, Clipping, Hyperparameters, LossType, Schedule
from benchmarks.config.precision_options import Computing, LossScaling
from benchmarks.config.run_flags import DEFAULTS, RUN_FLAGS, words
from benchmarks.errors import UsageError
from benchmarks.input.options import InputOptions
from benchmarks.process.tensorflow_setup import Runtime
from benchmarks.system import hardware
from benchmarks.topology import discovery, placement
from benchmarks.topology.cluster import Cluster
from benchmarks.trackers.catalog import Targets, targets_of
from models.model_spec import ModelSpec
from variable_mgr.modifiers import Modifiers, why_not
from variable_mgr.place import Place


def _aside(**kwargs: Any) -> Any:
    """Declares a field that cannot change the result: paths, what is printed, how long is measured."""
    return dataclasses.field(metadata={"aside": True}, **kwargs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """One run, fully decided. Units are in the names; a batch is of images.

    Attributes that need more than their name (for others see `Runtime` and `Computing`):
        num_devices: towers, one per device; in a pipeline, stages.
        model_digest: of the code outside this suite that builds the model; None: no such code.
        shared_on: `cpu`: shared variables and copied gradients are on the host; `gpu`: spread over the devices that
            compute, GPUs or CPUs.
        num_workers, num_ps, num_hosts: of the cluster; 1, 0 and 1 for a single process.
        eval_only: only the weights of a checkpoint are evaluated; then there is inference only, too.
        cluster: its tasks and their addresses; None for a single process.
        input: how images are read; None where they are made on the devices.
        pauses: what interrupts a run that reads images: meanwhile its input works on, so its steps wait less.
        schedule: of the learning rate; None: it is constant.
        notices: sentences for the user on how flags were understood.
        command: the words that it was made from, if by `from_flags`; a changed copy has none.
    """

    model: str
    num_classes: int
    print_training_accuracy: bool
    batch_per_device: int
    data_format: Literal["NHWC", "NCHW"]
    precision: str
    loss_scaling: LossScaling | None = None
    xla: Literal["off", "jit"] = "off"
    conv1x1_as_matmul: bool = False
    filter_gradients_as_matmul: bool = False
    fused_bn: bool = True
    batchnorm_persistent: bool | None = None
    onednn: Literal["on", "off"] | None = None
    model_digest: str | None = None
    check_precision: bool = _aside(default=False)
    forward_only: bool
    eval_only: bool = False

    device: Literal["cpu", "gpu"]
    num_devices: int
    virtual_gpus: int
    visible_gpus: tuple[int, ...] | None
    gpu_memory_fraction: float | None
    gpu_allow_growth: bool
    gpu_memory_limit_mib: int | None = None
    gpu_thread_mode: str | None = None
    per_gpu_thread_count: int = 0
    force_gpu_compatible: bool = False
    num_intra_threads: int
    num_inter_threads: int
    log_device_placement: bool = _aside()

    num_workers: int = 1
    num_ps: int = 0
    num_hosts: int = 1
    cluster: Cluster | None = _aside(default=None)
    start_timeout_seconds: float = _aside(default=DEFAULTS["start_timeout_seconds"])
    step_timeout_seconds: float = _aside(default=DEFAULTS["step_timeout_seconds"])

    variable_update: str
    shared_on: Literal["cpu", "gpu"]
    modifiers: Modifiers
    keras_application: bool = False
    pipeline: Pipelining | None = None

    data_name: input_options.DataName
    data_dir: str | None = _aside()
    pipelined_input: bool
    input: InputOptions | None
    pauses: Mapping[str, Any] | None = None

    optimizer: str
    learning_rate: float
    schedule: Schedule | None = None
    momentum: float
    hyperparameters: Hyperparameters = Hyperparameters()
    lars_trust_coefficient: float = LARS_TRUST_COEFFICIENT
    clipping: Clipping = Clipping()
    weight_decay: float
    weight_decay_on: str = "kernels"
    label_smoothing: float = 0.0
    seed: int
    deterministic: bool = False

    between: BetweenSteps = _aside(default=BetweenSteps())
    num_batches: int | None = _aside()
    num_epochs: float | None = _aside()
    num_warmup_batches: int
    time_limit_seconds: float | None = _aside()

    output_dir: str = _aside()
    output_format: Literal["text", "json"] = _aside()
    display_every: int = _aside()
    loss_type_to_report: LossType = _aside(default="total_loss")
    session_id: str = _aside()
    trackers: Targets = _aside(default=Targets())
    notices: tuple[str, ...] = _aside()
    command: tuple[str, ...] | None = dataclasses.field(init=False, default=None, repr=False, compare=False)

    @classmethod
    def from_flags(cls, **flags: Any) -> Config:
        """Returns what flags of `run` resolve to on this machine, to be passed to `benchmarks.run`.

        Args:
            flags: names and values as on the command line, such as `num_gpus=2`; None: not given.

        Raises:
            UsageError: a flag does not exist, a value is not possible here, or values contradict each other.
        """
        given = flag.read_files(words(flags))
        values = flag.parse(given, RUN_FLAGS).values
        if values["print_config"]:
            raise UsageError("print_config is of the command line alone: what it prints is config.to_dict().")
        config = resolve(values, hardware.count_gpus)
        object.__setattr__(config, "command", tuple(given))
        return config

    @property
    def computing(self) -> Computing:
        """How each tower computes."""
        return Computing(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Computing)})

    @property
    def own_device(self) -> str:
        """The kind of device that this process computes on: a CPU if its task has no towers."""
        return self.device if self.cluster is None or self.cluster.own.has_towers else "cpu"

    @functools.cached_property
    def runtime(self) -> Runtime:
        """What this process asks of TensorFlow. A task without towers has one CPU device."""
        same = {name: getattr(self, name) for name in _RUNTIME_FIELDS}
        computes = self.cluster is None or self.cluster.own.has_towers
        peers = tuple(self.cluster.tasks.values()) if self.cluster else ()
        own = {"device": self.own_device, "num_devices": self.num_devices if computes else 1, "peers": peers}
        own["fpmath"] = "BF16" if (self.precision, self.own_device) == ("tf32", "cpu") else None
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

    @property
    def advised_options(self) -> dict[str, Any]:
        """The options that advice on the input may name; empty if no images are read."""
        return {**vars(self.input), "pipelined_input": self.pipelined_input} if self.input else {}

    def to_dict(self) -> dict[str, Any]:
        """Returns all decisions, as JSON can hold them."""
        fields = dataclasses.asdict(self)
        del fields["command"]  # a record has the command of its own process
        return fields

    @property
    def steps_per_round(self) -> int:
        """Returns after how many steps training repeats what it does: more than 1 where some do more than others."""
        return 1 if self.forward_only else max(1, self.modifiers.local_sgd_steps)

    def key_fields(self) -> dict[str, Any]:
        """Returns the fields that can change the result."""
        aside = self.aside_fields()
        return {name: value for name, value in self.to_dict().items() if name not in aside}

    def aside_fields(self) -> list[str]:
        """Returns the names of the fields that cannot change the result."""
        return [f.name for f in dataclasses.fields(self) if f.metadata.get("aside")]


_Values = Mapping[str, Any]
_OTHERWISE_DEFAULT = "start_timeout_seconds step_timeout_seconds output_dir output_format display_every".split()
# Where the number of GPUs of this machine does not matter.
ANY_NUMBER_OF_GPUS = 10**6
_RUNTIME_FIELDS = {field.name for field in dataclasses.fields(Runtime)} & {f.name for f in dataclasses.fields(Config)}


def resolve(
    given: Mapping[str, Any], count_gpus: Callable[[], int], environ: Mapping[str, str] | None = None
) -> Config:
    """Turns flag values (None: not given) into a configuration.

    Args:
        given: by flag name, as `flag.parse` returns them, which checks the range of each.
        count_gpus: counts the GPUs of this machine; called only if that matters.
        environ: may name a cluster, too; None for the environment variables.

    Raises:
        UsageError: a value is not possible here, or values contradict each other.
    """
    _refuse(given)
    gone_notices = peer_flags.resolve(given)
    spec = _find_model(given)
    given = {**given, "model": given["model"] and spec.name}
    environ = os.environ if environ is None else environ
    given, cluster, devices, place_notices = _surroundings(given, count_gpus, environ)
    on_gpu = devices["device"] == "gpu"
    data, data_notices = input_options.resolve(given, spec)
    owns_gpus = device_options.owns_gpus(devices, given, cluster, environ)
    variables, variable_notices = manager_options.resolve(given, devices, cluster, owns_gpus=owns_gpus)
    eval_batch = given["eval_batch_size"] if given["eval"] else None
    batch_per_device = eval_batch or given["batch_size"] or (spec.batch_on_gpu if on_gpu else spec.batch_on_cpu)
    data_format, computing, notices = _arithmetic(given, spec, devices, variables, cluster)
    between = between_options.resolve(given, variables, cluster)
    length, length_notices = length_options.resolve(given, variables["modifiers"], on_gpu=on_gpu)
    optimizer, optimizer_notices = optimizer_options.resolve(
        given, spec, variables, devices, cluster, batch_per_device=batch_per_device
    )
    notices = (
        gone_notices + place_notices + data_notices + variable_notices + notices + optimizer_notices + length_notices
    )
    config = Config(
        model=spec.name,
        model_digest=spec.digest,
        print_training_accuracy=bool(given["print_training_accuracy"]),
        batch_per_device=batch_per_device,
        data_format=data_format,
        **vars(computing),
        forward_only=bool(given["forward_only"] or given["eval"]),
        eval_only=bool(given["eval"]),
        **devices,
        gpu_allow_growth=bool(given["allow_growth"]),
        num_intra_threads=given["num_intra_threads"] or 0,
        num_inter_threads=given["num_inter_threads"] or 0,
        log_device_placement=bool(given["log_device_placement"]),
        **_tasks(cluster),
        **variables,
        pipeline=manager_options.pipelining(
            given, variables, cluster, num_devices=devices["num_devices"], batch_per_device=batch_per_device
        ),
        **data,
        **optimizer,
        between=between,
        pauses=between.pauses if data["input"] else None,
        seed=DEFAULTS["tf_random_seed"] if given["tf_random_seed"] is None else given["tf_random_seed"],
        deterministic=bool(given["deterministic"]),
        **length,
        **{name: given[name] or DEFAULTS[name] for name in _OTHERWISE_DEFAULT},
        session_id=given["session_id"] or "",
        trackers=targets_of(given),
        notices=notices,
    )
    problem = why_not(config.variable_update, config.modifiers, config.place)
    if problem:
        raise UsageError(problem)
    return config


def _tasks(cluster: Cluster | None) -> dict[str, Any]:
    """Returns the tasks of the run, and how many there are of each kind."""
    if cluster is None:
        return {}
    sizes = {name: getattr(cluster, name) for name in ("num_workers", "num_ps", "num_hosts")}
    return {"cluster": cluster, **sizes}


def _surroundings(
    given: Mapping[str, Any], count_gpus: Callable[[], int], environ: Mapping[str, str]
) -> tuple[Mapping[str, Any], Cluster | None, dict[str, Any], tuple[str, ...]]:
    """Returns the flag values that have an effect here, the cluster, decisions on devices, and sentences on these."""
    cluster, cluster_notices = discovery.resolve(given, environ)
    given, rank_notices = device_options.of_rank(given, cluster, count_gpus, environ)
    devices = device_options.resolve(given, count_gpus if _needs_gpus(cluster, given) else lambda: ANY_NUMBER_OF_GPUS)
    devices, sharing_notices = device_options.share_of_worker(devices, given, cluster, environ)
    usual = {**DEFAULTS, "local_parameter_device": devices["device"]}
    usual |= {"allow_growth": False, "force_gpu_compatible": False}
    given, idle_notices = without_effect.drop(
        given, usual, on_gpu=devices["device"] == "gpu", in_cluster=cluster is not None
    )
    return given, cluster, devices, cluster_notices + rank_notices + sharing_notices + idle_notices


def _find_model(given: Mapping[str, Any]) -> ModelSpec:
    spec = outside_models.find(given["model"] or DEFAULTS["model"], given["data_name"], given["num_classes"])
    precision_options.refuse_without_layers(given, spec)
    return spec


def _arithmetic(
    given: _Values, spec: ModelSpec, devices: _Values, variables: _Values, cluster: Cluster | None
) -> tuple[Literal["NHWC", "NCHW"], Computing, tuple[str, ...]]:
    """Returns the layout of images, how towers compute, and sentences on what to expect of it."""
    on_gpu = devices["device"] == "gpu"
    data_format = precision_options.layout(given, spec, devices, keras_application=variables["keras_application"])
    computing, notices = precision_options.resolve(
        given,
        on_gpu=on_gpu,
        manager=variables["variable_update"],
        modifiers=variables["modifiers"],
        data_format=data_format,
    )
    if computing.check_precision and cluster:
        raise UsageError("--check_precision trains a second time in this process: leave out the cluster, or the check.")
    if on_gpu and _needs_gpus(cluster, given):
        notices += device_options.judge(devices, computing)
    return data_format, computing, notices


def _needs_gpus(cluster: Cluster | None, given: Mapping[str, Any]) -> bool:
    """Returns whether the GPUs that the flags name must be on this machine; those of workers need not be."""
    demanded = given["num_gpus"] is not None or given["device"] == "gpu" or given["gpus"] is not None
    return cluster is None or cluster.own.has_towers or not demanded


def _refuse(given: Mapping[str, Any]) -> None:
    """Refuses what is impossible whatever the machine is."""
    if given["batch_size"] == "auto":
        raise UsageError(
            "--batch_size=auto is found by trying, which only the commands `run` and `recommend` do: give a number."
        )
    if given["num_batches"] is not None and given["num_epochs"] is not None:
        raise UsageError("--num_batches and --num_epochs both set the length of the measurement: give one of them.")
    if given["deterministic"] and given["cross_replica_sync"] is False:
        raise UsageError("--deterministic: asynchronous towers update in any order: drop --nocross_replica_sync.")
    if given["deterministic"] and given["datasets_sloppy_parallel_interleave"]:
        raise UsageError(
            "--deterministic: images must not come in any order: drop --datasets_sloppy_parallel_interleave."
        )
    without_effect.refuse_without_cluster(given)
