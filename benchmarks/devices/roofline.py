"""The upper bound of a step's speed, from its arithmetic, its memory traffic and measured peaks. No TensorFlow.

A step takes at least the time of its arithmetic at the peak, and of its bytes at the memory's bandwidth. Source:
Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for multicore architectures", CACM
52(4), 2009.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import msgspec

from benchmarks.cluster.cluster_spec import Cluster
from benchmarks.process.tensorflow_setup import Devices
from results.text import amount, rounded


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peak:
    """The measured peaks: operations of a large matrix product, 2 per multiply-add; bytes moved by a large sum."""

    flops_per_sec: Annotated[float, msgspec.Meta(gt=0)]
    bytes_per_sec: Annotated[float, msgspec.Meta(gt=0)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roofline:
    """A step compared with the peak of all its devices together.

    Operations count 2 per multiply-add; bytes are those that a step moves at least, if no tensor stays in a cache.
    """

    flops_per_image: float
    bytes_per_image: float
    peak: Peak
    images_per_sec: float

    @property
    def flops_per_byte(self) -> float:
        """Returns the arithmetic intensity."""
        return self.flops_per_image / self.bytes_per_image

    @property
    def limit(self) -> Literal["arithmetic", "memory"]:
        """Returns what takes longer."""
        needed = self.peak.flops_per_sec / self.peak.bytes_per_sec
        return "arithmetic" if self.flops_per_byte >= needed else "memory"

    @property
    def most_images_per_sec(self) -> float:
        """Returns the bound of the roofline."""
        return min(self.peak.flops_per_sec / self.flops_per_image, self.peak.bytes_per_sec / self.bytes_per_image)

    @property
    def mfu(self) -> float:
        """Returns the model FLOP utilisation: the step's operations per second over the peak."""
        return self.images_per_sec * self.flops_per_image / self.peak.flops_per_sec

    @property
    def share_of_bound(self) -> float:
        """Returns the measured rate over the bound; above 1 if tensors stay in caches between operations."""
        return self.images_per_sec / self.most_images_per_sec

    def sentences(self) -> list[str]:
        """Returns the work of a step, the bound, and the measured rate, in words."""
        rates = f"{amount(self.peak.flops_per_sec, 'FLOP/s')} and {amount(self.peak.bytes_per_sec, 'B/s')}"
        reached = f"It reached {rounded(self.images_per_sec)} images/s: {self.share_of_bound:.0%} of that."
        if self.limit == "memory":
            reached += f" The model FLOP utilisation (MFU) is {self.mfu:.0%}."
        found = [
            f"A step does {amount(self.flops_per_image, 'FLOP')} per image and moves at least "
            f"{amount(self.bytes_per_image, 'B')}, unless tensors stay in caches: "
            f"{self.flops_per_byte:.0f} operations per byte.",
            f"At {rates} that allows at most {rounded(self.most_images_per_sec)} images/s: {self.limit} is the limit.",
            reached,
        ]
        if self.share_of_bound > 1:
            found.append(
                "Above 100% is possible: tensors stayed in caches between operations, so the memory did not limit."
                if self.limit == "memory"
                else "Above 100%, either the peak was measured while the machine was busy or slower ('run_bench.py "
                "doctor' measures it again, best on a quiet machine), or the convolutions needed fewer multiplications "
                "than are counted (Winograd)."
            )
        return found


def devices_with_a_peak(devices: Devices, cluster: Cluster | None = None) -> int:
    """Returns how many times the measured peak a run could use, given the devices of each worker.

    That is the number of physical GPUs, or of hosts with workers, whose CPU devices share a peak.
    """
    workers, hosts = (cluster.num_workers, cluster.num_worker_hosts) if cluster else (1, 1)
    return workers * devices.physical_gpus if devices.on_gpu else hosts
