"""A run's share of the peak of its devices (MFU). A share above 1 is none: the peak or the work is wrong."""

from __future__ import annotations

import csv
import dataclasses
import functools
import importlib.resources
import math
import re
from collections.abc import Mapping

from results.record import Record
from results.text import amount


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
