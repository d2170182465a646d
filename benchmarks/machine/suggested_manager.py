"""Which variable manager the connections between GPUs suggest, before anything is measured. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from benchmarks.machine.gpu_topology import GpuTopology

_GUIDE = "TensorFlow's performance guide, 2017"
NOT_MEASURED = "a rule of thumb, not measured"
ACROSS_HOSTS = (
    "Across hosts: --variable_update=collective_all_reduce for equal hosts and a fast network, or "
    "distributed_replicated with parameter servers (TensorFlow's benchmarks, 2017: EC2)."
)


@dataclasses.dataclass(frozen=True)
class Rule:
    """What to use on a topology.

    Attributes:
        holds: whether the topology is such.
        where: the topology in words.
        flags: of a run.
        because: why, as a clause.
        source: who recommended it, and for which GPUs.
    """

    holds: Callable[[GpuTopology], bool]
    where: str
    flags: tuple[str, ...]
    because: str
    source: str = ""

    def sentence(self, devices: int) -> str:
        """Returns the rule as a sentence for so many GPUs."""
        source = f" ({self.source})" if self.source else ""
        flags = (f"--num_gpus={devices}",) if devices else ()
        return f"{' '.join((*flags, *self.flags))}, since {self.where}: {self.because}{source}."


# The first one that holds.
RULES = (
    Rule(lambda found: not found.gpus, "this machine has no GPU", ("--device=cpu",), "one CPU device uses all cores"),
    Rule(
        lambda found: len(found.gpus) == 1,
        "there is one GPU",
        ("--variable_update=parameter_server",),
        "nothing is exchanged, so any manager will do",
    ),
    Rule(
        lambda found: found.has_nvlink,
        "NVLinks connect all GPUs",
        ("--variable_update=replicated", "--all_reduce_spec=nccl"),
        "gradients travel between GPUs past PCIe and the host",
        f"{_GUIDE}: P100, for models with many weights",
    ),
    Rule(
        lambda found: found.has_peer_access and found.is_one_root_complex,
        "all GPUs are below one PCIe root complex, with peer access and without NVLink",
        ("--variable_update=parameter_server", "--local_parameter_device=gpu"),
        "GPUs read variables of each other without the host",
        f"{_GUIDE}: K80",
    ),
    Rule(
        lambda found: found.has_peer_access,
        "GPUs have peer access, but are below several PCIe root complexes and without NVLink",
        ("--variable_update=parameter_server", "--local_parameter_device=cpu"),
        "what they exchange crosses the host anyway; for alexnet and vgg16 try --variable_update=replicated "
        "--all_reduce_spec=nccl",
        f"{_GUIDE}: Titan X, M40, P100",
    ),
    Rule(
        lambda found: True,
        "not all GPUs have access to each other's memory",
        ("--variable_update=parameter_server", "--local_parameter_device=cpu"),
        "what they exchange is copied through the host anyway",
        f"{_GUIDE}: K80",
    ),
)


def rule_for(topology: GpuTopology) -> Rule:
    """Returns the rule for these GPUs."""
    return next(rule for rule in RULES if rule.holds(topology))


def advice(topology: GpuTopology) -> str:
    """Returns what these GPUs suggest, as a line for people."""
    return f"By topology ({NOT_MEASURED}): {rule_for(topology).sentence(len(topology.gpus))}"
