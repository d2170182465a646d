"""The verb `devices`: processors, GPUs and what connects them, the software that uses them, and a cluster's tasks."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.cluster import discovery
from benchmarks.cluster.cluster_spec import task_table, tasks_of
from benchmarks.cluster.discovery import Found
from benchmarks.config.run_flags import CLUSTER_FLAGS, RUN_FLAGS
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.machine import gpu_support, gpu_topology, hardware
from benchmarks.machine.gpu_topology import ACROSS_HOSTS, NOT_MEASURED, PATHS, advice, suggestion_for
from benchmarks.machine.hardware import Inventory
from benchmarks.machine.provenance import describe_software
from benchmarks.option import Flag, only
from benchmarks.process import tensorflow_setup
from benchmarks.process.tensorflow_setup import Devices, Runtime
from benchmarks.training.computing import onednn_mode
from results.text import Table, counted, fact_lines

_GIB = 2**30
_MAY_BE_ASKED = (("xla", "jit"), ("precision", "tf32"), ("precision", "bf16"))


def run_devices(values: Mapping[str, Any]) -> ExitStatus:
    """Prints the inventory, and the tasks that flags or the environment name; starts none.

    Raises:
        UsageError: flags name an impossible cluster; without them, an environment that names one is a warning.
        BenchError: NVIDIA's driver hangs.
    """
    try:
        tasks = discovery.find_cluster(values, os.environ)
    except UsageError as error:
        if any(values[flag.name] is not None for flag in CLUSTER_FLAGS):
            raise
        tasks = None
        warn(f"No tasks of a cluster are shown. {error}")
    if tasks:
        warn(*tasks.notices)
    topology, host, software = gpu_topology.read_gpu_links(), hardware.describe_host(), describe_software()
    build = _tensorflow_build(topology) if values["tensorflow"] is not False and software["tensorflow_version"] else {}
    if values["output_format"] == "json":
        found = as_json(topology, host, software, build)
        say(json.dumps({**found, "cluster": tasks and _tasks_as_json(tasks)}))
    else:
        say("\n".join([*lines(topology, host, software, build), *(["", *_task_lines(tasks)] if tasks else [])]))
    return ExitStatus.OK


def _tasks_as_json(found: Found) -> dict[str, Any]:
    rows = [
        {"job": task.job, "index": task.index, "address": address, "device": task.device}
        for task, address in tasks_of(found.hosts).items()
    ]
    own = found.own and {"job": found.own.job, "index": found.own.index}
    return {"hosts": found.hosts, "tasks": rows, "own": own, "notices": found.notices}


def _task_lines(found: Found) -> list[str]:
    """Returns the specification, and the tasks as a table."""
    spec = ",".join(f"{job}|{';'.join(addresses)}" for job, addresses in found.hosts.items())
    return [f"--cluster_spec='{spec}'", *task_table(tasks_of(found.hosts), found.own)]


def _tensorflow_build(topology: Inventory) -> dict[str, Any]:
    """Returns how TensorFlow was built, and what it finds here."""
    tensorflow_setup.prepare(Runtime(devices=Devices(device="gpu" if topology.gpus else "cpu")))
    tensorflow_setup.import_tensorflow()
    import tensorflow as tf

    info = tf.sysconfig.get_build_info()
    return {
        **{name: info.get(name) for name in ("is_cuda_build", "cuda_version", "cudnn_version")},
        "git_version": tf.version.GIT_VERSION,
        "gpus_found": len(tf.config.list_physical_devices("GPU")),
        "onednn": onednn_mode(os.environ),
    }


def as_json(
    topology: Inventory, host: Mapping[str, Any], software: Mapping[str, Any], build: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the inventory as a JSON object. What is unknown is null; sizes are in bytes."""
    suggested = suggestion_for(topology)
    return {
        "host": dict(host),
        "gpus": [dataclasses.asdict(gpu) for gpu in topology.gpus],
        "connections": [
            {"between": list(pair), **dataclasses.asdict(connection)}
            for pair, connection in topology.connections.items()
        ],
        "driver_version": topology.driver_version,
        "driver_cuda_version": topology.cuda_version,
        "driver_problem": topology.problem or None,
        "limits": [dataclasses.asdict(limit) for limit in gpu_support.judge(topology, software, *_MAY_BE_ASKED)],
        "software": {**software, "operating_system": platform.platform()},
        "tensorflow_build": dict(build),
        "suggestion": {
            "flags": list(suggested.flags),
            "where": suggested.where,
            "source": suggested.source,
            "is": NOT_MEASURED,
        },
    }


def lines(
    topology: Inventory, host: Mapping[str, Any], software: Mapping[str, Any], build: Mapping[str, Any]
) -> list[str]:
    """Returns the inventory as text."""
    described = {
        "CPU": host["cpu_model"],
        "cores": _cores(host),
        "instructions": "unknown" if host["extensions"] is None else ", ".join(host["extensions"]) or "no vectors",
        "memory": _memory(host),
        "NVIDIA driver": _driver(topology),
        "libraries": _libraries(software),
        "TensorFlow": _tensorflow(topology, software, build),
        "Python": f"{software['python_version']}, {platform.platform()}",
    }
    measure = f" --num_gpus={len(topology.gpus)}" if topology.gpus else " --device=cpu"
    return [
        *fact_lines(described),
        *(["", *_gpu_table(topology)] if topology.gpus else []),
        *(["", *_matrix(topology)] if topology.connections else []),
        "",
        *(limit.sentence for limit in gpu_support.judge(topology, software, *_MAY_BE_ASKED)),
        advice(topology),
        f"Measure it: run_bench.py recommend --model=resnet50{measure}",
        ACROSS_HOSTS,
    ]


def _cores(host: Mapping[str, Any]) -> str:
    named = (("cores", "core"), ("sockets", "socket"), ("numa_nodes", "NUMA node"))
    parts = ", ".join(counted(host[name], word) for name, word in named if host[name])
    limit = host["container_cores"]
    return (
        f"{host['threads_usable']} of {counted(host['threads'], 'thread')} usable"
        + (f" ({parts})" if parts else "")
        + (f"; the container has the time of {limit:g}" if limit is not None else "")
    )


def _memory(host: Mapping[str, Any]) -> str:
    limit = host["container_memory_bytes"]
    return f"{host['memory_bytes'] / _GIB:.1f} GiB" + (f"; the container has {limit / _GIB:.1f} GiB" if limit else "")


def _driver(topology: Inventory) -> str:
    if topology.driver_version is None:
        return topology.problem or "no NVIDIA driver"
    newest = f", CUDA up to {topology.cuda_version}" if topology.cuda_version else ""
    hidden = "" if topology.gpus else "no GPU that this process may see (CUDA_VISIBLE_DEVICES)"
    return "; ".join(filter(None, [topology.driver_version + newest, topology.problem or hidden]))


def _libraries(software: Mapping[str, Any]) -> str:
    named = {"CUDA": "cuda_version", "cuDNN": "cudnn_version", "NCCL": "nccl_version"}
    versions = [f"{name} {software[field]}" for name, field in named.items() if software[field]]
    return ", ".join(versions) or f"no Python packages of {', '.join(named)}"


def _tensorflow(topology: Inventory, software: Mapping[str, Any], build: Mapping[str, Any]) -> str:
    version = software["tensorflow_version"]
    if not build:
        return version or "not installed"
    cuda = "without CUDA"
    if build["is_cuda_build"]:
        cuda = f"with CUDA {build['cuda_version'] or '?'} and cuDNN {build['cudnn_version'] or '?'}"
    finds = f", finds {build['gpus_found']} of {counted(len(topology.gpus), 'GPU')}" if topology.gpus else ""
    return f"{version}, built {cuda}{finds}; oneDNN {build['onednn'] or 'as it chooses'}"


def _gpu_table(topology: Inventory) -> Iterator[str]:
    def shown(value: Any) -> str:
        return "?" if value is None else {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)

    columns = ("GPU", "name", "memory", "UUID", "compute", "PCIe", "ECC", "MIG", "NUMA")
    rows = [
        (
            str(gpu.index),
            gpu.name,
            f"{gpu.memory_bytes / _GIB:.1f} GiB",
            (gpu.uuid or "?")[:12],
            shown(gpu.compute_capability),
            f"{shown(gpu.pcie_generation)} x{shown(gpu.pcie_width)}",
            shown(gpu.has_ecc),
            shown(gpu.is_divided),
            shown(gpu.numa_node),
        )
        for gpu in topology.gpus
    ]
    yield from Table(columns, rows).text(rule=False)


def _matrix(topology: Inventory) -> Iterator[str]:
    names = [f"GPU{gpu.index}" for gpu in topology.gpus]
    rows = [[name, *cells] for name, cells in zip(names, topology.matrix(), strict=True)]
    yield from Table(["", *names], rows).text(rule=False)
    cells = {cell for row in topology.matrix() for cell in row}
    meanings = {name: meaning for name, meaning in PATHS.values() if name in cells}
    if any(cell.startswith("NV") for cell in cells):
        meanings = {"NVn": "n NVLinks", **meanings}
    for name, meaning in meanings.items():
        yield f"{name}: {meaning}"
    if any(link.has_peer_access is False for link in topology.connections.values()):  # None is unknown
        yield "Some GPUs have no access to each other's memory."


VERB = Verb(
    "devices",
    {
        "The inventory": (
            Flag(
                "tensorflow",
                bool,
                "import TensorFlow to report its build and the GPUs that it finds; --notensorflow is faster",
                default=True,
            ),
            *only(RUN_FLAGS["Output"], "output_format"),
        ),
        "Several processes": CLUSTER_FLAGS,
        "Variables and gradients": only(RUN_FLAGS["Variables and gradients"], "variable_update"),
    },
    lambda given, command: run_devices(given.values),
    details="It also names the variable manager that the connections between GPUs suggest. If flags or TF_CONFIG name "
    "a cluster (with --cluster=slurm or mpi: the environment of Slurm or mpirun), its tasks follow; a star marks the "
    "one that this process would be. No task is started.",
    examples=(
        "devices",
        "devices --output_format=json",
        "devices --notensorflow --cluster_spec='ps|h0:50000,worker|h0:50001;h1:50001'",
    ),
)
