"""The names of the variable managers, for the command line. Imports without TensorFlow.

A new manager is one file, one line here, and one line in `variable_mgr.factory`.
"""

from __future__ import annotations

MANAGERS = {
    "collective_all_reduce": "as replicated, with TensorFlow's own collectives",
    "distributed_all_reduce": "as replicated, over the towers of all workers, which one client drives",
    "distributed_replicated": "one full copy per tower, and a master copy on parameter servers, in a cluster",
    "independent": "one full copy per tower, gradients not exchanged: the upper bound of scaling",
    "local_sgd": "one full copy per tower, which trains alone; every few steps the weights are averaged",
    "parameter_server": "one shared copy, read by every tower, updated once per step",
    "replicated": "one full copy per tower, every tower applies the same mean gradient",
}

# Shorthands of the command line: a manager, and the modifier that comes with it.
SHORTHANDS = {
    "nccl": "replicated with --all_reduce_spec=nccl",
    "staged": "parameter_server with --staged_vars",
}

# Training loops that users know, as a reference; not managers. They train the same model on the same images.
REFERENCE_LOOPS = {
    "keras_fit": "Keras' own fit, on several devices under MirroredStrategy",
    "mirrored_strategy": "tf.distribute.MirroredStrategy with a tf.function as its step",
}

# Managers that are nothing without other processes, and the smallest cluster in which they can be shown.
NEED_A_CLUSTER = {"distributed_all_reduce": "worker:2", "distributed_replicated": "ps:1,worker:2"}
IN_ONE_PROCESS = tuple(name for name in MANAGERS if name not in NEED_A_CLUSTER)
