"""The variable managers: what each is called and what it can do. Imports without TensorFlow.

A new manager is one file in `variable_mgr/managers` and one entry in `MANAGERS`. The command line, the rules about
modifiers and clusters, `explain`, `verify` and the tests follow from the entry and from the manager's own methods.
"""

from __future__ import annotations

import dataclasses
import enum


class WorksIn(enum.Flag):
    """In which processes a manager works."""

    ONE = enum.auto()  # a single process
    PEERS = enum.auto()  # several workers without parameter servers, each its own client
    SERVERS = enum.auto()  # several workers with parameter servers
    ONE_CLIENT = enum.auto()  # several workers whose towers one client drives; with SERVERS, these hold the variables


@dataclasses.dataclass(frozen=True)
class Entry:
    """What is known of a manager before TensorFlow is imported.

    Attributes:
        module: in `variable_mgr.managers`.
        maker: a class or function of the module, called as `maker(place, shared_devices, modifiers)`,
            with the `default_reduction` if the modifiers name none.
        meaning: what it does, for a person.
        processes: where it works.
        modifiers: the fields of `variable_mgr.modifiers.Modifiers` that it supports.
        exchanges_gradients: every step applies the mean of the gradients of all towers.
        one_copy: all towers read one copy of the weights; otherwise each has its own.
        reductions: the only ones that `all_reduce_spec` may name; empty: all.
    """

    module: str
    maker: str
    meaning: str
    processes: WorksIn = WorksIn.ONE
    modifiers: tuple[str, ...] = ()
    exchanges_gradients: bool = True
    one_copy: bool = False
    reductions: tuple[str, ...] = ()

    @property
    def smallest_cluster(self) -> str | None:
        """Returns the smallest cluster it works in, as of `--local_cluster`; None if it works in one process."""
        if WorksIn.ONE in self.processes:
            return None
        return "ps:1,worker:2" if WorksIn.SERVERS in self.processes else "worker:2"

    def copies_by_default(self, *, in_cluster: bool) -> bool:
        """Returns whether gradients or weights are averaged by copies, unless `all_reduce_spec` is set."""
        collects = self.reductions and (in_cluster or self.exchanges_gradients)
        return "all_reduce_spec" in self.modifiers and not collects

    def default_reduction(self, *, in_cluster: bool, on_host: bool) -> str | None:
        """Returns the reduction without `all_reduce_spec`; None if that cannot be set.

        Args:
            in_cluster: there are several processes.
            on_host: shared variables are on the host, where copies are then averaged, too.
        """
        if "all_reduce_spec" not in self.modifiers:
            return None
        if self.copies_by_default(in_cluster=in_cluster):
            return "pscpu" if on_host else "psgpu"
        return "collective"


_COMPACT = "compact_gradient_transfer"
_COLLECTIVES = ("collective", "nccl")
_AROUND_A_REDUCTION = ("relaxed_consistency", "gradient_repacking", "agg_small_grads_max_bytes", _COMPACT)

MANAGERS = {
    "collective_all_reduce": Entry(
        "replicated",
        "all_reducing",
        "as replicated, with TensorFlow's own collectives",
        WorksIn.ONE | WorksIn.PEERS,
        (*_AROUND_A_REDUCTION, "all_reduce_spec", "fc_model_parallel"),
        reductions=_COLLECTIVES,
    ),
    "distributed_all_reduce": Entry(
        "replicated",
        "all_reducing",
        "as replicated, over the towers of all workers, which one client drives",
        WorksIn.ONE_CLIENT,
        (*_AROUND_A_REDUCTION, "all_reduce_spec"),
    ),
    "distributed_replicated": Entry(
        "distributed_replicated",
        "DistributedReplicated",
        "one full copy per tower, and a master copy on parameter servers, in a cluster",
        WorksIn.SERVERS,
        (_COMPACT,),
    ),
    "in_graph_parameter_server": Entry(
        "parameter_server",
        "parameter_server",
        "as parameter_server in a cluster, but one client drives the towers of all workers",
        WorksIn.ONE_CLIENT | WorksIn.SERVERS,
        ("asynchronous", "staged_vars", _COMPACT),
        one_copy=True,
    ),
    "independent": Entry(
        "replicated",
        "independent",
        "one full copy per tower, gradients not exchanged: the upper bound of scaling",
        exchanges_gradients=False,
    ),
    "local_sgd": Entry(
        "local_sgd",
        "local_sgd",
        "one full copy per tower, which trains alone; every few steps the weights are averaged",
        WorksIn.ONE | WorksIn.PEERS,
        ("local_sgd_steps", "all_reduce_spec"),
        exchanges_gradients=False,
        reductions=_COLLECTIVES,
    ),
    "parameter_server": Entry(
        "parameter_server",
        "parameter_server",
        "one shared copy, read by every tower, updated once per step",
        WorksIn.ONE | WorksIn.SERVERS,
        ("asynchronous", "staged_vars", "fc_model_parallel", _COMPACT),
        one_copy=True,
    ),
    "replicated": Entry(
        "replicated",
        "all_reducing",
        "one full copy per tower, every tower applies the same mean gradient",
        WorksIn.ONE,
        (*_AROUND_A_REDUCTION, "all_reduce_spec", "fc_model_parallel"),
    ),
}
DEFAULT = "parameter_server"
IN_ONE_PROCESS = tuple(name for name, entry in MANAGERS.items() if WorksIn.ONE in entry.processes)
IN_GRAPH = tuple(name for name, entry in MANAGERS.items() if WorksIn.ONE_CLIENT in entry.processes)

# Shorthands of the command line: the manager, and the flag that comes with it.
SHORTHANDS = {"nccl": ("replicated", "--all_reduce_spec=nccl"), "staged": ("parameter_server", "--staged_vars")}

# Training loops that users know, as a reference; not managers. They train the same model on the same images.
REFERENCE_LOOPS = {
    "keras_fit": "Keras' own fit, on several devices under MirroredStrategy",
    "mirrored_strategy": "tf.distribute.MirroredStrategy with a tf.function as its step",
    "pytorch": "the same model as a PyTorch module, on one device",
    "pytorch_ddp": "the same in several processes under DistributedDataParallel",
}
# Those that need PyTorch, which the extra `torch` installs.
PYTORCH_LOOPS = ("pytorch", "pytorch_ddp")


def named(name: str | None) -> str:
    """Returns the manager that `--variable_update` means: shorthands resolved, None is the default."""
    return SHORTHANDS[name][0] if name in SHORTHANDS else name or DEFAULT


def uses_servers(name: str | None) -> bool:
    """Returns whether the manager that `--variable_update` means works with parameter servers."""
    manager = named(name)
    return manager in MANAGERS and WorksIn.SERVERS in MANAGERS[manager].processes
