"""Which devices compute, and how TensorFlow uses them. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from benchmarks.cluster.cluster_spec import Cluster
from benchmarks.errors import UsageError
from benchmarks.machine import gpu_support, gpu_topology, hardware, nvml
from benchmarks.machine.provenance import describe_software
from benchmarks.option import Flag, filled, flags_of
from benchmarks.outside_text import whole_number
from benchmarks.process.tensorflow_setup import SPLIT_FRACTION, Devices
from results.text import counted

_MOST_DEVICES = 1024
_AMD_GPU = Path("/dev/kfd")
# The driver itself holds a few hundred MiB of an idle GPU's memory, a desktop more.
_MOST_USED_WHEN_IDLE = 0.1


DEVICE_FLAGS = (
    Flag(
        "device",
        str,
        "device type to train on; auto: GPUs if there are any, else the CPU; gpu: fail without a GPU",
        ("auto", "cpu", "gpu"),
        default="auto; with --num_gpus or --gpus, gpu",
        other_words=(("cuda", "gpu"),),
    ),
    Flag(
        "num_gpus",
        int,
        "number of devices, one tower each; with --device=cpu, logical CPU devices",
        default=1,
        at_least=1,
    ),
    Flag("gpus", str, "indices of the GPUs to use, such as 0,2", default="all visible"),
    Flag(
        "virtual_gpus",
        int,
        "split each GPU into this many virtual GPUs; auto: as many as --num_gpus needs",
        ("auto",),
        default=1,
        at_least=1,
        at_most=64,
    ),
    *flags_of(Devices),
)


def choose(given: Mapping[str, Any], count_gpus: Callable[[], int], machine: str = "this machine") -> Devices:
    """Returns the kind and number of devices, and how GPUs are split; what else there is to decide has its default.

    `--num_gpus` without `--device` fails rather than fall back to a CPU.

    Args:
        given: flag values by name; None is not given.
        count_gpus: counts the GPUs of this machine; called only if that matters.
        machine: this machine, in a sentence.

    Raises:
        UsageError: there are too few GPUs.
    """
    wanted = 1 if given["num_gpus"] is None else given["num_gpus"]
    if wanted > _MOST_DEVICES:
        raise UsageError(f"--num_gpus={wanted}: one process drives at most {_MOST_DEVICES:,} devices.")
    on_cpu = Devices(device="cpu", num_devices=wanted)
    if given["device"] == "cpu":
        return on_cpu
    visible = _visible_gpus(given["gpus"])
    existing = count_gpus()
    demanded = given["num_gpus"] is not None and given["device"] != "auto" or visible or given["device"] == "gpu"
    if not existing and (problem := hardware.gpu_inventory().problem):
        raise UsageError(f"No GPU of {machine} can be used: {problem}. nvidia-smi says more; --device=cpu needs none.")
    if not existing and not demanded:
        return on_cpu
    there_are = f"{machine} has {counted(existing, 'NVIDIA GPU')} that this process may see"
    if visible and max(visible) >= existing:
        raise UsageError(f"--gpus={given['gpus']} names GPU {max(visible)}; {there_are}{_missing()}.")
    usable = len(visible) if visible else existing
    split = max(1, -(-wanted // max(1, usable))) if given["virtual_gpus"] == "auto" else int(given["virtual_gpus"] or 1)
    if wanted > usable * split:
        asked = f"--num_gpus={wanted}" if given["num_gpus"] else f"--device={given['device']}"
        limit = f"--gpus={given['gpus']} names {usable}." if visible else f"{there_are}{_missing()}."
        if any(gpu.is_divided for gpu in hardware.gpu_inventory().gpus):
            limit += " Of GPUs that are divided (MIG), CUDA shows a process one instance."
        raise UsageError(
            f"{asked} asks for {counted(wanted, 'GPU')}; {limit} Ask for fewer, split them with --virtual_gpus, or "
            f"use --device=cpu for {counted(wanted, 'logical CPU device')}."
        )
    if visible and any(gpu.is_divided for gpu in hardware.gpu_inventory().gpus):
        visible = None  # CUDA shows one instance by itself, and its position could be the number of another GPU
    return Devices(device="gpu", num_devices=wanted, virtual_gpus=split, visible_gpus=visible)


def _missing() -> str:
    """Returns why GPUs of this machine are missing, to go on with a sentence; nothing if none is known to be."""
    problem = hardware.gpu_inventory().problem
    return f" ({problem})" if problem else ""


def decide(
    chosen: Devices, given: Mapping[str, Any], cluster: Cluster | None, *, workers_per_gpu: int, from_host: bool
) -> tuple[Devices, tuple[str, ...]]:
    """Returns the devices of a run, and sentences on threads, and on workers that share GPUs and divide their memory.

    An input pipeline keeps TensorFlow's threads busy, so GPUs have their own to launch kernels, unless the user's
    variable decides; and it makes tensors in memory that is not pinned by itself.

    Args:
        chosen: as `choose` returns them.
        given: flag values by name; None is not given.
        cluster: this process and the others.
        workers_per_gpu: as the function of that name returns it.
        from_host: images come from the host.

    Raises:
        UsageError: workers would take more memory than there is.
    """
    own = {name: getattr(chosen, name) for name in ("device", "num_devices", "virtual_gpus", "visible_gpus")}
    devices = filled(Devices, given, **own)
    if not devices.on_gpu:
        computes = cluster is None or cluster.own.has_towers
        return devices, tuple(_unused_gpus()) if computes and given["device"] != "cpu" else ()
    devices, notices = _with_launch_threads(devices, reads=given["data_dir"] is not None)
    if given["num_gpus"] is None and len(devices.visible_gpus or ()) > devices.physical_gpus:
        notices += (f"--gpus={given['gpus']}: a process uses one GPU unless --num_gpus says how many.",)
    pinned = from_host if given["force_gpu_compatible"] is None else devices.force_gpu_compatible
    devices = dataclasses.replace(devices, force_gpu_compatible=pinned)
    if workers_per_gpu == 1 or devices.gpu_memory_limit_mib:
        return devices, notices
    each, fraction = round(SPLIT_FRACTION / workers_per_gpu, 3), devices.gpu_memory_fraction
    if fraction is None:
        notice = f"{workers_per_gpu} workers share GPUs, so each takes at most {each:g} of their memory: "
        return dataclasses.replace(devices, gpu_memory_fraction=each), (*notices, f"{notice}--gpu_memory_frac.")
    if workers_per_gpu * fraction > 1:
        raise UsageError(
            f"--gpu_memory_frac={fraction:g}: {workers_per_gpu} workers share GPUs, and would take more than their "
            f"memory. Use at most {each:g}, or leave it out."
        )
    return devices, notices


def _unused_gpus() -> Iterator[str]:
    """Yields a sentence on GPUs of this machine that a run on its CPU could have been meant for."""
    if nvml.hides_all(os.environ) and hardware.gpu_inventory().driver_version:
        hidden_by = os.environ["CUDA_VISIBLE_DEVICES"]
        yield f"CUDA_VISIBLE_DEVICES='{hidden_by}' hides all GPUs, so the CPU computes: unset it, or use --device=cpu."
    if _AMD_GPU.exists():
        yield f"The AMD GPU of this machine ({_AMD_GPU}) is not used, since this suite runs on NVIDIA's and on CPUs."


def _with_launch_threads(devices: Devices, *, reads: bool) -> tuple[Devices, tuple[str, ...]]:
    """Returns devices with the threads that launch kernels, and a sentence if their number alone is given.

    Most scripts for tf_cnn_benchmarks give it alone, since there each GPU has its own threads by default.
    """
    mode, count = devices.gpu_thread_mode, devices.per_gpu_thread_count
    if mode is None and (reads or count):
        mode = os.environ.get("TF_GPU_THREAD_MODE", "gpu_private").lower()  # type: ignore[assignment]
    notices: tuple[str, ...] = ()
    if count and mode == "global":
        notices = (f"--per_gpu_thread_count={count} has no effect: --gpu_thread_mode is global.",)
        count = 0
    elif count and devices.gpu_thread_mode is None and not reads:
        notices = (f"--per_gpu_thread_count={count}: with --gpu_thread_mode={mode}, as in tf_cnn_benchmarks.",)
    return dataclasses.replace(devices, gpu_thread_mode=mode, per_gpu_thread_count=count), notices


def judge(gpus: hardware.Inventory, *, precision: str, xla: str) -> tuple[str, ...]:
    """Returns sentences on what the chosen GPUs of this machine do badly; nothing where its driver shows none.

    Args:
        gpus: those that are used.
        precision: of the arithmetic.
        xla: whether XLA compiles, `jit` or `off`.

    Raises:
        UsageError: these GPUs, this driver or its libraries cannot do it.
    """
    order, override = (os.environ.get(name) for name in ("CUDA_DEVICE_ORDER", "NVIDIA_TF32_OVERRIDE"))
    if order not in (None, "PCI_BUS_ID"):
        raise UsageError(
            f"CUDA_DEVICE_ORDER={order}: the driver, which names and measures GPUs, counts them by PCI_BUS_ID: unset "
            "it, and choose GPUs with --gpus."
        )
    if (precision, override) == ("tf32", "0"):
        raise UsageError("--precision=tf32: NVIDIA_TF32_OVERRIDE=0 turns TF32 off: unset it, or use --precision=fp32.")
    limits = gpu_support.judge(gpus, describe_software(), ("precision", precision), ("xla", xla))
    if limits and limits[0].is_fatal:
        raise UsageError(limits[0].sentence)
    return tuple(limit.sentence for limit in limits)


def in_use(gpus: hardware.Inventory) -> Iterator[str]:
    """Yields a sentence on each of these GPUs that other processes use; this one has taken no memory yet."""
    for gpu in gpus.gpus:
        if gpu.used_bytes > _MOST_USED_WHEN_IDLE * gpu.memory_bytes:
            used, memory = (f"{size / 2**30:.1f}" for size in (gpu.used_bytes, gpu.memory_bytes))
            yield (
                f"GPU {gpu.index} is in use: {used} of {memory} GiB of its memory are taken. The run may be slower, or "
                "out of memory: end the other processes ('run_bench.py doctor --nobreakdown' lists them), or choose "
                "other GPUs with --gpus."
            )


def chosen_gpus(devices: Devices, assumed: hardware.Inventory | None = None) -> hardware.Inventory:
    """Returns the GPUs that are used, of this machine as far as its driver shows them, or of an assumed one."""
    return (assumed or hardware.gpu_inventory()).only(devices.gpu_numbers) if devices.on_gpu else hardware.Inventory()


def linked_gpus(devices: Devices, assumed: hardware.Inventory | None = None) -> hardware.Inventory:
    """Returns all GPUs that may be used, and what connects them, as far as the driver shows it or it is assumed."""
    found = assumed or gpu_topology.read_gpu_links()
    return found if devices.visible_gpus is None else found.only(devices.visible_gpus)


def _visible_gpus(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    numbers = [whole_number(word) for word in text.split(",")]
    given = tuple(number for number in numbers if number is not None)
    if len(set(given)) < len(numbers):
        raise UsageError(f"--gpus={text}: name different GPUs by their numbers, such as --gpus=0,2.")
    return given


def of_rank(
    given: Mapping[str, Any], cluster: Cluster | None, count_gpus: Callable[[], int], environ: Mapping[str, str]
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Returns flag values by which each worker of mpirun or Slurm on a host has GPUs of its own, and a notice.

    The user may do this with --gpus, and the launcher with CUDA_VISIBLE_DEVICES: it has not if this worker sees enough
    GPUs for all. Other launchers do this themselves.
    """
    launcher = given["cluster"]
    alone = cluster is None or not cluster.own.has_towers or cluster.workers_on_this_host == 1
    decided = given["gpus"] is not None or given["virtual_gpus"] is not None
    if cluster is None or alone or decided or launcher not in ("mpi", "slurm") or given["device"] == "cpu":
        return given, ()
    each, visible = given["num_gpus"] or 1, count_gpus()
    may_be_own = launcher == "slurm" or "CUDA_VISIBLE_DEVICES" in environ
    if not visible or may_be_own and visible < each * cluster.workers_on_this_host:
        return given, ()
    first = each * cluster.number_on_this_host
    own = ",".join(map(str, range(first, first + each)))
    notice = f"--cluster={launcher}: this worker has --gpus={own}, since others are on its host."
    return {**given, "gpus": own}, (notice,)


def bound_to_one_core(launcher: str | None, cluster: Cluster | None) -> tuple[str, ...]:
    """Returns a notice if the launcher leaves a worker one core of several, as Open MPI and srun do by themselves."""
    if launcher is None or cluster is None or not cluster.own.has_towers:
        return ()
    cores = os.cpu_count() or 1
    threads = max(1, cores // (psutil.cpu_count(logical=False) or cores))  # of a core, which are bound together
    advice = {"mpi": "--bind-to none to mpirun", "slurm": "--cpus-per-task to srun"}[launcher]
    have = cores // threads
    notice = f"--cluster={launcher}: this worker may use 1 of {have} cores, which may limit its rate: pass {advice}."
    is_bound = hardware.usable_cores() <= threads and have >= 2 * cluster.workers_on_this_host
    return (notice,) if is_bound else ()


def workers_per_gpu(
    devices: Devices, given: Mapping[str, Any], cluster: Cluster | None, environ: Mapping[str, str]
) -> int:
    """Returns how many workers of this host use the same GPUs.

    Each has its own if they are whole ones of `--local_cluster`, or those of --gpus or CUDA_VISIBLE_DEVICES.
    """
    if cluster is None or not devices.on_gpu or not cluster.own.has_towers:
        return 1
    if cluster.local:
        are_shared = devices.virtual_gpus > 1
    else:
        are_shared = given["gpus"] is None and "CUDA_VISIBLE_DEVICES" not in environ
    return cluster.workers_on_this_host if are_shared else 1


def default_to_all(values: Mapping[str, Any], gpus: int) -> dict[str, Any]:
    """Returns flag values in which the devices are decided: all GPUs, one split in two, or two logical CPU devices."""
    if values["num_gpus"] is not None:
        return dict(values)
    usable = len(values["gpus"].split(",")) if values["gpus"] else gpus
    if not usable and values["device"] != "cpu" and hardware.gpu_inventory().problem:
        return dict(values)  # `choose` refuses them
    if values["device"] == "cpu" or not (usable or values["device"] == "gpu"):
        return {**values, "device": "cpu", "num_gpus": 2}
    if usable == 1 and values["virtual_gpus"] is None:
        return {**values, "num_gpus": 2, "virtual_gpus": 2}
    split = 1 if values["virtual_gpus"] in (None, "auto") else int(values["virtual_gpus"])
    return {**values, "num_gpus": max(1, usable * split)}
