"""The configuration of a run: every decision, made once, from the flags. Imports without TensorFlow.

A part of it stands beside the code that it is for, with its flags and what decides on it. `Devices` alone stands with
the set-up of TensorFlow, and its flags in `devices.options`. `rule_table` has the rules that involve several flags.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import socket
from collections.abc import Callable, Collection, Mapping
from typing import Any

from benchmarks.callbacks import options as callback_options
from benchmarks.callbacks.options import Evaluation, Summaries
from benchmarks.checkpoints.options import Checkpoints
from benchmarks.cluster import cluster_spec, discovery, launch_plan
from benchmarks.cluster import options as process_options
from benchmarks.cluster.options import Processes
from benchmarks.config import flag, output, outside_models, peer_flags, rules, usual_batch, variable_update
from benchmarks.config.output import Output
from benchmarks.config.rule_table import RULES
from benchmarks.config.rules import FACTS, Known, Situation
from benchmarks.config.run_flags import DEFAULTS, RUN_FLAGS, words
from benchmarks.config.variable_update import Variables
from benchmarks.config.workload import Length, Workload, decide_length
from benchmarks.data import options as input_options
from benchmarks.data.options import Data
from benchmarks.data.sources.data_sets import SYNTHETIC
from benchmarks.devices import options
from benchmarks.errors import UsageError
from benchmarks.machine import hardware
from benchmarks.option import decided, filled
from benchmarks.process.tensorflow_setup import Devices, Runtime
from benchmarks.tracing import options as trace_options
from benchmarks.tracing.options import Traces
from benchmarks.training import computing
from benchmarks.training import options as training_options
from benchmarks.training.computing import Computing
from benchmarks.training.options import Training
from variable_mgr.modifiers import why_not
from variable_mgr.place import Place

# Where the number of GPUs of this machine does not matter.
ANY_NUMBER_OF_GPUS = 10**6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """One run, fully decided. A function takes the parts that it uses; nothing changes them.

    Attributes:
        reasons: why a field has its value where neither a flag nor a constant decides, by its name.
        notices: sentences for the user on how flags were understood.
        command: the words that it was made from, if by `from_flags`; a changed copy has none.
    """

    workload: Workload
    computing: Computing
    devices: Devices
    processes: Processes
    variables: Variables
    data: Data
    training: Training
    checkpoints: Checkpoints = decided(in_key=False)
    evaluation: Evaluation = decided(in_key=False)
    summaries: Summaries = decided(in_key=False)
    traces: Traces = decided(in_key=False)
    length: Length
    output: Output = decided(in_key=False)
    reasons: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    notices: tuple[str, ...] = ()
    command: tuple[str, ...] | None = dataclasses.field(init=False, default=None, repr=False, compare=False)

    @classmethod
    def from_flags(cls, **flags: Any) -> Config:
        """Returns what flags of `run` resolve to on this machine, to be passed to `benchmarks.run`.

        Args:
            flags: names and values as on the command line, such as `num_gpus=2`; None: not given.

        Raises:
            UsageError: a flag does not exist, a value is not possible here, or values contradict each other.
        """
        for name, value in flags.items():
            if isinstance(value, Collection) and not isinstance(value, str):
                raise UsageError(f"{name}={value!r}: give one value, as text if a flag takes a list.")
        given = flag.read_files(words(flags))
        values = flag.parse(given, peer_flags.groups_to_parse(RUN_FLAGS)).values
        if values["print_config"]:
            raise UsageError("print_config is of the command line alone: what it prints is config.to_dict().")
        config = resolve(values, hardware.count_gpus)
        object.__setattr__(config, "command", tuple(given))
        return config

    @functools.cached_property
    def runtime(self) -> Runtime:
        """What this process asks of TensorFlow. A task without towers has one CPU device."""
        cluster, devices = self.processes.cluster, self.devices
        if cluster and not cluster.own.has_towers:
            devices = dataclasses.replace(devices, device="cpu", num_devices=1)
        return Runtime(
            devices=devices,
            precision=self.computing.precision,
            fpmath="BF16" if (self.computing.precision, devices.device) == ("tf32", "cpu") else None,
            batchnorm_persistent=self.computing.batchnorm_persistent,
            deterministic=self.training.deterministic,
            peers=tuple(cluster.tasks.values()) if cluster else (),
        )

    @functools.cached_property
    def place(self) -> Place:
        """The towers that this process drives, and what is around them."""
        return self.place_of(self.devices.num_devices)

    def place_of(self, num_devices: int) -> Place:
        """Returns what `place` would be with another number of devices."""
        return cluster_spec.place(
            self.devices.device,
            num_devices,
            virtual=self.devices.virtual_gpus > 1,
            cluster=self.processes.cluster,
            manager=self.variables.variable_update,
        )

    @property
    def batch_global(self) -> int:
        """Images per step over all devices."""
        return self.workload.batch_per_device * self.towers_in_total

    @property
    def towers_in_total(self) -> int:
        """Devices that train together, over all workers."""
        return self.devices.num_devices * self.processes.num_workers

    @property
    def can_interleave(self) -> bool:
        """Whether a run does nothing between its steps, so that it can wait while another one runs.

        A GPU's memory belongs to one process; input pipelines, and asynchronous towers and workers, continue meanwhile.
        """
        is_alone = self.processes.cluster is None
        goes_on = self.data.input is not None or self.variables.modifiers.asynchronous
        return not self.devices.on_gpu and is_alone and not goes_on and self.length.time_limit_seconds is None

    @property
    def steps_per_round(self) -> int:
        """Steps in a round.

        With --local_sgd_steps=N, every Nth step also averages the weights, so a round has N steps.
        """
        return _steps_in_round(self.workload.forward_only, self.variables)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields of all parts by their names, which differ, as JSON can hold them."""
        parts = (dataclasses.asdict(getattr(self, name)) for name in _PARTS)
        fields = {name: value for part in parts for name, value in part.items()}
        return {**fields, "reasons": dict(self.reasons), "notices": self.notices}

    def key_fields(self) -> dict[str, Any]:
        """Returns the fields that can change the result."""
        not_in_key = self.fields_not_in_key()
        return {name: value for name, value in self.to_dict().items() if name not in not_in_key}

    def fields_not_in_key(self) -> list[str]:
        """Returns the names of the fields that cannot change the result."""
        return [
            *(
                field.name
                for name, part in _PARTS.items()
                for field in dataclasses.fields(getattr(self, name))
                if not (part.metadata.get("in_key", True) and field.metadata.get("in_key", True))
            ),
            *_ABOUT_FIELDS,
        ]


_ABOUT_FIELDS = ("reasons", "notices")
_PARTS = {field.name: field for field in dataclasses.fields(Config) if field.name not in (*_ABOUT_FIELDS, "command")}


def resolve(
    given: Mapping[str, Any],
    count_gpus: Callable[[], int],
    environ: Mapping[str, str] | None = None,
    assumed: hardware.Inventory | None = None,
) -> Config:
    """Turns flag values (None: not given) into a configuration.

    Args:
        given: by flag name, as `flag.parse` returns them, which checks the range of each.
        count_gpus: counts the GPUs of this machine; called only if that matters. A process that starts tasks on other
            hosts, whose devices may differ, leaves it to them to refuse what they do not have.
        environ: may name a cluster, too; None for the environment variables.
        assumed: equal GPUs for which defaults are decided, and what connects them, however many flags ask for; None:
            the GPUs of this machine.

    Raises:
        UsageError: a value is not possible here, or values contradict each other.
    """
    environ = os.environ if environ is None else environ
    try:
        return _resolve_here(given, count_gpus, environ, assumed)
    except UsageError:
        if not launch_plan.is_asked_for(given) or given["local_cluster"]:
            raise  # else all tasks start on other hosts, so the devices here do not matter
    return _resolve_here(given, lambda: ANY_NUMBER_OF_GPUS, environ, assumed)


def _resolve_here(
    given: Mapping[str, Any],
    count_gpus: Callable[[], int],
    environ: Mapping[str, str],
    assumed: hardware.Inventory | None,
) -> Config:
    gone = peer_flags.resolve_peer_flags(given)
    # What flags alone decide comes first: to find the model may execute code of the user's.
    of_flags = [rule for rule in RULES if not rule.asks_for_facts]
    given, idle = rules.apply(of_flags, Situation(given), DEFAULTS)
    given, known = _known(given, count_gpus, environ, assumed)
    if given["batch_size"] == "auto":
        raise UsageError(
            "--batch_size=auto: the batch size is found by trying, which only the commands `run` and `recommend` do. "
            "Give a number."
        )
    names = {"model": known.spec.name, "data_name": known.data_name}
    facts = {name: fact.text.format(**names) for name, fact in FACTS.items() if fact.holds(known)}
    usual = {
        "local_parameter_device": known.devices.device,
        "force_gpu_compatible": False,
        "batchnorm_persistent": True,
    }
    of_facts = [rule for rule in RULES if rule.asks_for_facts]
    given, without_effect = rules.apply(of_facts, Situation(given, facts), {**DEFAULTS, **usual})
    config = _decide({**given, "precision": known.precision}, known, environ, (*gone, *idle, *without_effect))
    if problem := why_not(config.variables.variable_update, config.variables.modifiers, config.place):
        raise UsageError(problem)
    return config


def _known(
    given: Mapping[str, Any],
    count_gpus: Callable[[], int],
    environ: Mapping[str, str],
    assumed: hardware.Inventory | None,
) -> tuple[Mapping[str, Any], Known]:
    """Returns the flag values of this process, and what rules may ask for."""
    spec = outside_models.find_any_model(given["model"] or DEFAULTS["model"], given["data_name"], given["num_classes"])
    given = {**given, "model": given["model"] and spec.name}
    cluster, of_cluster = discovery.resolve_cluster(given, environ)
    given, of_rank = options.of_rank(given, cluster, count_gpus, environ)
    demanded = given["num_gpus"] is not None or given["device"] == "gpu" or given["gpus"] is not None
    # Those of workers need not, nor those that are assumed.
    must_exist = assumed is None and (cluster is None or cluster.own.has_towers or not demanded)
    machine = f"the host {socket.gethostname()} ({cluster.own})" if cluster and not cluster.local else "this machine"
    devices = options.choose(given, count_gpus if must_exist else lambda: ANY_NUMBER_OF_GPUS, machine)
    gpus = options.chosen_gpus(devices, assumed)
    capabilities = [gpu.compute_capability for gpu in gpus.gpus] or [None] * devices.on_gpu
    precision, why = given["precision"], ""
    if precision is None:
        precision, why = computing.usual_precision(capabilities, environ)
    data_format = given["data_format"]
    if data_format in (None, "auto"):
        nchw = spec.nchw and not given["keras_application"]
        data_format = computing.layout(precision, nchw=nchw, capabilities=capabilities)
    data_name, of_data = input_options.data_name(given, spec)
    return given, Known(
        spec=spec,
        cluster=cluster,
        devices=devices,
        gpus=gpus,
        assumed=assumed,
        must_exist=must_exist,
        data_name=data_name,
        precision=precision,
        why_precision=why,
        data_format=data_format,
        shares_devices=variable_update.shares_devices(given, devices, in_cluster=cluster is not None),
        notices=(
            *of_cluster,
            *of_rank,
            *options.bound_to_one_core(given["cluster"], cluster),
            *of_data,
            *outside_models.notices(spec),
        ),
    )


def _decide(
    given: Mapping[str, Any], known: Known, environ: Mapping[str, str], without_effect: tuple[str, ...]
) -> Config:
    """Returns the configuration of flag values that go together."""
    spec, cluster = known.spec, known.cluster
    from_host = known.data_name != SYNTHETIC
    workers = options.workers_per_gpu(known.devices, given, cluster, environ)
    devices, of_devices = options.decide(known.devices, given, cluster, workers_per_gpu=workers, from_host=from_host)
    batch, why_batch = usual_batch.decide(given, spec, devices, known.gpus)
    whole = workers == 1 and _are_whole(devices, known.gpus)
    of_variables, why_reduction, on_variables = variable_update.decide(
        given, devices, in_cluster=cluster is not None, owns_gpus=whole, batch_per_device=batch, assumed=known.assumed
    )
    arithmetic, on_arithmetic = computing.decide(given, spec, on_gpu=devices.on_gpu, onednn=devices.onednn)
    if devices.on_gpu and known.must_exist:
        on_arithmetic += options.judge(known.gpus, precision=arithmetic.precision, xla=arithmetic.xla)
        on_arithmetic += tuple(options.in_use(known.gpus)) if workers == 1 else ()
    forward_only = bool(given["forward_only"] or given["eval"])
    workload = filled(
        Workload,
        given,
        model=spec.name,
        model_digest=spec.digest,
        batch_per_device=batch,
        num_classes=input_options.num_classes(given["num_classes"], spec, known.data_name),
        data_format=known.data_format,
        forward_only=forward_only,
        eval_only=bool(given["eval"]),
    )
    processes = process_options.decide(given, cluster)
    checkpoints = filled(Checkpoints, given)
    evaluation, summaries = callback_options.decide(given), filled(Summaries, given)
    rounds = _steps_in_round(forward_only, of_variables)
    how_long, why_length, on_length = decide_length(given, rounds, known.data_name, on_gpu=devices.on_gpu)
    reasons = {
        "num_devices": "neither --num_gpus nor --gpus" * (given["num_gpus"] is None and given["gpus"] is None),
        "precision": known.why_precision,
        "batch_per_device": why_batch,
        "all_reduce_spec": why_reduction,
        "num_batches": why_length,
    }
    written, on_output = output.decide(given, of_variables, cluster, num_devices=devices.num_devices)
    training = training_options.decide(given, spec, batch_global=batch * devices.num_devices * processes.num_workers)
    on_length += tuple(training_options.notices(training.schedule, how_long.num_epochs))
    notices = (*known.notices, *of_devices, *without_effect, *on_variables, *on_arithmetic, *on_output, *on_length)
    return Config(
        workload=workload,
        computing=arithmetic,
        devices=devices,
        processes=processes,
        variables=of_variables,
        data=input_options.decide(given, known.data_name, _pauses(checkpoints, evaluation, summaries)),
        training=training,
        checkpoints=checkpoints,
        evaluation=evaluation,
        summaries=summaries,
        traces=trace_options.decide(given),
        length=how_long,
        output=written,
        reasons={name: why for name, why in reasons.items() if why},
        notices=notices,
    )


def _are_whole(devices: Devices, gpus: hardware.Inventory) -> bool:
    """Returns whether every tower has a whole GPU, as NCCL needs it."""
    return devices.on_gpu and devices.virtual_gpus == 1 and not any(gpu.is_divided for gpu in gpus.gpus)


def _steps_in_round(forward_only: bool, variables: Variables) -> int:
    return 1 if forward_only else max(1, variables.modifiers.local_sgd_steps)


def _pauses(checkpoints: Checkpoints, evaluation: Evaluation, summaries: Summaries) -> dict[str, Any] | None:
    """Returns what interrupts training again and again, by the names of the fields; None: nothing does."""
    found = {name: value for name, value in vars(evaluation).items() if name.startswith(("eval_every", "eval_at"))}
    if checkpoints.train_dir:
        found |= {name: getattr(checkpoints, name) for name in ("save_model_steps", "save_model_secs")}
    if summaries.summary_verbosity:
        found["save_summaries_steps"] = summaries.save_summaries_steps
    return {name: value for name, value in found.items() if value} or None
