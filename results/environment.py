"""The hardware and software of runs: in words, in what those of two runs differ, and a run's share of a GPU's peak.

The share of the peak is the model FLOP utilisation (MFU). One above 1 is none: the peak or the work is wrong.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import importlib.resources
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from results.record import Record, differing
from results.text import amount, first_few

HARDWARE = ("cpu_model", "cpu_cores_usable", "memory_gib", "gpus", "container_cores")
_NOT_RECORDED = "not recorded"
# Recorded environment variables that say which devices, which task, or how much is logged.
_HARMLESS = (
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "TF_CONFIG"),
    *("TF_CPP_MIN_LOG_LEVEL", "TORCH_CPP_LOG_LEVEL"),
)


def hardware_in_words(record: Record) -> str:
    """Returns the machine of a record: its title or its CPU, its memory and its GPUs."""
    facts = record.environment
    name = facts.get("machine") or facts.get("cpu_model")  # a published record does not name the CPU
    words = [str(name)] if name else []
    words += [f"{facts['cpu_cores_usable']} cores"] if facts.get("cpu_cores_usable") else []
    words += [f"of which {facts['container_cores']:g} at a time"] if facts.get("container_cores") else []
    words += [f"{facts['memory_gib']} GiB"] if facts.get("memory_gib") else []
    return ", ".join([*words, *_gpus(record)]) or f"hardware {record.identity.hardware_key}"


def _machine(record: Record) -> str:
    facts = record.environment
    return str(facts.get("machine") or ", ".join(_gpus(record)) or facts.get("cpu_model") or "")


def _gpus(record: Record) -> list[str]:
    return [f"{count} x {gpu}" for gpu, count in Counter(map(str, record.environment.get("gpus") or ())).items()]


def machine_names(records: Iterable[Record]) -> dict[str, str]:
    """Returns a short name of each machine, by its hardware key."""
    return _names(records, "hardware_key", _machine)


def software_names(records: Iterable[Record]) -> dict[str, str]:
    """Returns a short name of each set of software versions, by its software key."""
    return _names(records, "software_key", lambda record: str(record.environment.get("tensorflow_version") or ""))


def _names(records: Iterable[Record], key_name: str, name_of: Callable[[Record], str]) -> dict[str, str]:
    """Returns what to call each machine or software, by its key, whose first digits follow a name that several have."""
    names = {getattr(record.identity, key_name): name_of(record) for record in records}
    shared = Counter(names.values())
    return {key: name if shared[name] == 1 and name else f"{name} {key[:4]}".strip() for key, name in names.items()}


def hardware(record: Record) -> dict[str, Any]:
    """Returns the recorded fields of the machine that must be equal where rates are compared."""
    return {name: record.environment[name] for name in HARDWARE if name in record.environment}


def software_in_words(records: Iterable[Record]) -> str:
    """Returns the software of records as `versions_in_words` does; of a mixture, each once."""
    return "; ".join(dict.fromkeys(map(versions_in_words, records)))


def versions_in_words(record: Record) -> str:
    """Returns the versions that a reader needs to judge a rate; CUDA's and cuDNN's only if a GPU was used."""
    environment, identity = record.environment, record.identity
    versions = {name: environment.get(f"{name.lower()}_version") for name in ("TensorFlow", "CUDA", "cuDNN", "NCCL")}
    words = [f"{name} {version}" for name, version in versions.items() if version]
    driver = environment.get("gpu_driver_version")
    commit = f" (commit {identity.suite_commit})" if identity.suite_commit else ""
    return ", ".join([*words, *([f"driver {driver}"] if driver else []), f"suite {identity.suite_version}{commit}"])


def acting_variables(environment: Mapping[str, Any]) -> dict[str, str]:
    """Returns the environment variables of a record that may change a rate."""
    return {name: value for name, value in (environment.get("variables") or {}).items() if name not in _HARMLESS}


def unlike_variables(environments: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names of the variables that may change a rate and are not equal in all environments."""
    each = [acting_variables(environment) for environment in environments]
    names = sorted({name for own in each for name in own})
    return [name for name in names if len({own.get(name) for own in each}) > 1]


def software(record: Record) -> dict[str, Any]:
    """Returns recorded versions, with the kernel's, and environment variables that may change a rate."""
    environment = record.environment.items()
    versions = {name: value for name, value in environment if name.endswith(("_version", "operating_system"))}
    return versions | acting_variables(record.environment)


def differences(first: Mapping[str, Any], second: Mapping[str, Any], names: tuple[str, str]) -> list[str]:
    """Returns a phrase with both values for each field that differs."""
    return [
        f"{name} is {first.get(name, _NOT_RECORDED)} in {names[0]} and {second.get(name, _NOT_RECORDED)} in {names[1]}"
        for name in differing(first, second)
    ]


def listed(phrases: Sequence[str]) -> str:
    """Returns phrases of `differences` as part of a sentence; of many, the first few."""
    return first_few(phrases, most=len(HARDWARE)) or "all recorded fields are equal, but not the keys made from them"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Utilisation:
    """The work of a run beside the peak in its GPUs' data sheet.

    Attributes:
        tflops: the model's operations, in 1e12 per second.
        peak_tflops: of one GPU in the run's precision.
        gpus: physical ones, of all workers.
        source: of the peak, with the precision, such as `bf16, NVIDIA H100 data sheet`.
    """

    tflops: float
    peak_tflops: float
    gpus: int
    source: str

    @property
    def share(self) -> float | None:
        """Returns the model FLOP utilisation; None if it is above 1, see `text`."""
        return plausible(self.tflops / (self.gpus * self.peak_tflops))

    @property
    def text(self) -> str:
        """Returns it in words, with the peak and its source, or why it is unknown."""
        each = amount(1e12 * self.peak_tflops, "FLOP/s")
        peak = each if self.gpus == 1 else f"{self.gpus} x {each}"
        if self.share is not None:
            return f"{self.share:.0%} of {peak}, {self.source}".replace("%", " %", 1)
        return (
            f"unknown: {amount(1e12 * self.tflops, 'FLOP/s')} are more than the peak ({peak}, {self.source}): "
            "the run did fewer operations (Winograd convolutions), or these are other GPUs"
        )


def plausible(share: float | None) -> float | None:
    """Returns a share of a peak; None if it is above 1, as beside a peak that was measured too low."""
    return None if share is None or share > 1 else share


def used_gpus(record: Record) -> list[str]:
    """Returns the GPUs that a run used: by `--gpus` in its order, else the first; in a cluster all that may be used."""
    config, gpus = record.config, list(map(str, record.environment.get("gpus") or ()))
    chosen, devices, per_gpu = (config.get(name) for name in ("visible_gpus", "num_devices", "virtual_gpus"))
    if isinstance(chosen, list | tuple):
        gpus = [gpus[number] for number in chosen if isinstance(number, int) and 0 <= number < len(gpus)]
    if config.get("cluster") or not isinstance(devices, int):
        return gpus
    return gpus[: math.ceil(devices / (per_gpu if isinstance(per_gpu, int) and per_gpu > 0 else 1))]


def of_data_sheet(record: Record, *, tflops: float, devices: int, per_gpu: int) -> Utilisation | str:
    """Compares a run with the data sheet of its GPUs, or returns why that is not possible; empty on a CPU.

    Args:
        record: a run.
        tflops: the model's operations, in 1e12 per second.
        devices: of all workers.
        per_gpu: devices on one physical GPU.
    """
    environment, precision = record.environment, str(record.config.get("precision"))
    gpus = used_gpus(record)
    if record.config.get("device") != "gpu" or not gpus:
        return ""
    names = sorted(set(map(gpu_name, gpus)))
    peaks = {data_sheet_peak(gpu, precision) for gpu in gpus}
    # A mixture has no single peak, and an instance of a GPU that is divided by MIG less than the whole.
    if "MIG-" in str(environment.get("variables")):
        return "a MIG instance has no data sheet"
    peak = peaks.pop()
    if peak is None or peaks:
        return f"the suite has no data sheet with one peak in {precision} of {' and '.join(names)}"
    source = data_sheet(gpus[0]).get("source", "").partition(":")[0]
    physical = math.ceil(devices / per_gpu)
    return Utilisation(tflops=tflops, peak_tflops=peak, gpus=physical, source=f"{precision}, {source}")


@functools.cache
def published_table(name: str) -> list[dict[str, str]]:
    """Returns the lines of the table `results/data/NAME.csv`."""
    text = importlib.resources.files("results").joinpath("data", f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def data_sheet_peak(gpu: str, precision: str) -> float | None:
    """Returns the peak of a GPU in 1e12 operations per second, without sparsity; None if the table does not have it.

    The name must be the driver's, as a record has it. Parts of a name decide nothing: an RTX A1000 is no A100, and a
    GPU for laptops, a form factor or a MIG instance has another peak.

    Args:
        gpu: such as `NVIDIA H100 PCIe 80 GiB`; the last two words may be missing.
        precision: `fp32` is the rate of the CUDA cores, because a run in fp32 switches TF32 off. The peak of fp16 is
            that with sums in fp32, which TensorFlow uses.
    """
    peak = data_sheet(gpu).get(f"{precision}_tflops")
    return float(peak) if peak else None


def gpu_name(gpu: str) -> str:
    """Returns the driver's name of a GPU, from the text of a record, which ends with its memory."""
    return re.sub(r" \d+ GiB$", "", gpu)


def data_sheet(gpu: str) -> Mapping[str, str]:
    """Returns the line of a GPU in the table of peaks, by the driver's name; empty if it has none."""
    name = gpu_name(gpu).removeprefix("NVIDIA ").removeprefix("Tesla ")
    return next((row for row in published_table("peaks") if row["gpu"] == name), {})
