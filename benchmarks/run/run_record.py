"""The record of a run: of one that has ended, of one that was killed, of one that did not happen. No TensorFlow."""

from __future__ import annotations

import resource
import signal

from msgspec.structs import replace

from benchmarks import console
from benchmarks.cluster import restarts
from benchmarks.config.config import Config
from benchmarks.console import warn
from benchmarks.devices.roofline import devices_with_a_peak
from benchmarks.errors import BenchError
from benchmarks.machine.provenance import Provenance
from benchmarks.measure import injected_delay, interleaved_steps
from benchmarks.measure.run_log import RunLog
from benchmarks.microbench import device_peak
from benchmarks.process.sentinel import Death
from benchmarks.process.signals import signal_in_words
from benchmarks.record_files import open_store, save
from models import specs
from results.environment import used_gpus
from results.measurement import Derived, Measurement, derive
from results.quality import quality_warnings
from results.record import Kind, Record, Status
from results.text import counted
from variable_mgr.catalog import IN_GRAPH

# What to do about a process that a signal has ended: SIGILL on any machine, the others where it used GPUs. An
# "Unexpected Event status" in TensorFlow's event manager is SIGABRT.
_ADVICE_BY_SIGNAL: dict[int | None, str] = {
    signal.SIGILL: " TensorFlow was built for instructions that this CPU lacks, or a virtual machine hides (that of "
    "PyPI needs AVX): show the machine the host's CPU, or build TensorFlow from source.",
    signal.SIGABRT: " TensorFlow ends its process so when a GPU fails: see its last lines, and Xid in dmesg.",
    signal.SIGBUS: " NCCL ends it so where a container has too little shared memory: start it with --ipc=host or "
    "--shm-size=1g.",
}


def empty_log(config: Config) -> RunLog:
    """Returns the log of a run that has not begun."""
    towers, workload = len(config.place.towers), config.workload
    is_asynchronous = config.variables.modifiers.asynchronous or workload.forward_only
    return RunLog(
        images_per_step=workload.batch_per_device * towers,
        towers=towers,
        asynchronous=config.place.workers > 1 and is_asynchronous,
    )


def record_of(config: Config, provenance: Provenance, log: RunLog, error: BenchError | None) -> Record:
    """Returns the record of a run that has ended, failed or been stopped, as far as the log of it goes."""
    devices, processes, variables = config.devices, config.processes, config.variables
    measurement, derived = log.measurement(), Derived()
    status = Status.OK if error is None else error.record_status
    has_rate = status in (Status.OK, Status.INTERRUPTED)
    # An interrupted worker knows only its own part, which has no rate of all.
    drives_all = processes.cluster is None or variables.variable_update in IN_GRAPH
    if has_rate and (drives_all or len(log.reports) == processes.num_workers):
        # XLA and torch.compile compile within the first step, unless staging has computed before.
        compiled = config.computing.xla == "jit" and not variables.modifiers.staged_vars or variables.torch_compile
        on_cpu = not devices.on_gpu
        derived = derive(measurement, config.towers_in_total, compiled=compiled, towers_share_cores=on_cpu)
    base = base_record(config, provenance, status, str(error or ""), data_set=log.data_set)
    derived, doubts = device_peak.beside_peak(
        derived,
        log.placement.get("flops_per_image"),
        {**base.environment, "gpus": used_gpus(base)},
        device=devices.device,
        precision=config.computing.precision,
        count=devices_with_a_peak(devices, processes.cluster),
    )
    return replace(
        base,
        environment={
            **provenance.environment,
            **injected_delay.environment(),
            **interleaved_steps.environment(log.steps_per_slice),
        },
        placement=log.placement_of_all(),
        measurement=measurement,
        derived=derived,
        warnings=[
            *config.notices,
            *injected_delay.warnings(),
            *restarts.warnings(),
            *log.doubts,
            *quality_warnings(measurement, derived, config.to_dict(), provenance.environment),
            *doubts,
        ],
    )


def save_of_killed(config: Config, provenance: Provenance, death: Death) -> None:
    """Saves, in another process, the record of a run that was killed and cannot do it itself."""
    held, limit = (f"{size / 2**30:.1f} GiB" for size in (death.held_bytes, death.limit_bytes))
    addresses = resource.getrlimit(resource.RLIMIT_AS)[0]
    status = Status.OUT_OF_MEMORY
    if death.out_of_memory:
        why = f"The kernel killed the run because memory ran out; it held {held}, and {limit} is the limit"
        reason = out_of_memory(why, config)
    elif death.signal in (signal.SIGABRT, signal.SIGSEGV) and addresses != resource.RLIM_INFINITY:
        why = f"TensorFlow ended the run ({signal.strsignal(death.signal)}), as it does where ulimit -v allows no more"
        reason = out_of_memory(f"{why} memory; the limit is {addresses / 2**30:.1f} GiB", config)
    else:
        by = signal_in_words(death.signal) if death.signal else "a signal or its own failure"
        status = Status.CRASH
        reason = f"The run was ended by {by} before it could save its record; it held {held} of memory."
        if death.signal == signal.SIGILL or config.devices.on_gpu:
            reason += _ADVICE_BY_SIGNAL.get(death.signal, "")
    record = base_record(config, provenance, status, reason)
    try:
        save(open_store(config.output.output_dir), record)
    except Exception as error:
        warn(f"{error} The record of the run follows.")
        console.log(record.cleaned().to_json())
    warn(reason)  # last, since a reader of stderr may have paused


def base_record(
    config: Config,
    provenance: Provenance,
    status: Status,
    reason: str,
    *,
    data_set: str | None = None,
    kind: Kind = Kind.RUN,
) -> Record:
    """Returns the record of a run without what it measured, such as of one whose process was killed."""
    read = {"data_set": data_set} if data_set else {}
    of_kind = {} if kind is Kind.RUN else {"kind": kind}
    return Record(
        kind=kind,
        identity=provenance.identity({**config.key_fields(), **read, **of_kind}),
        config={**config.to_dict(), **read},
        config_not_in_key=config.fields_not_in_key(),
        environment=provenance.environment,
        model=specs.find_model(config.workload.model).facts(config.workload.num_classes),
        placement={},
        measurement=Measurement(images_per_step=config.batch_global),
        derived=Derived(),
        status=status,
        reason=reason,
        warnings=list(config.notices),
    )


def out_of_memory(what: str, config: Config) -> str:
    """Returns the reason of a run that memory did not suffice for: what happened, what was requested, what to do."""
    workload, devices = config.workload, config.devices
    images = counted(workload.batch_per_device, "image")
    on = counted(devices.num_devices, f"{devices.device.upper()} device")
    return f"{what}: {workload.model} with {images} per device on {on}. {smaller_batch(config)}"


def smaller_batch(config: Config) -> str:
    """Returns which batch to try where memory did not suffice."""
    half = config.workload.batch_per_device // 2
    if not half:
        return "A batch cannot be smaller: use a smaller --model, or a device with more memory."
    auto = "" if config.processes.cluster else ", or --batch_size=auto, which finds the largest that fits"
    return f"Try half the batch, --batch_size={half}{auto}."
