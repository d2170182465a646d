"""The flags of a run, spelled as in tf_cnn_benchmarks. The other modules of this folder turn them into decisions.

A flag that is not given is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.config import device_options, manager_options
from benchmarks.config.between_options import BETWEEN_FLAGS
from benchmarks.config.flag import Flag, Groups
from benchmarks.config.input_options import IMAGE_FLAGS
from benchmarks.config.optimizer_options import LOSS_TYPES, OPTIMIZER_FLAGS
from benchmarks.config.precision_options import COMPUTING_FLAGS, ONEDNN_MODES
from benchmarks.topology.addresses import LAST_PORT
from benchmarks.topology.cluster import JOBS
from benchmarks.topology.discovery import DEFAULT_SERVER_PORT
from benchmarks.trackers.catalog import KINDS
from models import specs
from variable_mgr import catalog
from variable_mgr.modifiers import Modifiers
from variable_mgr.reductions.algorithms import ALGORITHMS

CLUSTER_FLAGS: Groups = {
    "Several processes": (
        Flag("local_cluster", str, "start all tasks on this host, such as ps:1,worker:2; also ps=1,worker=2"),
        Flag(
            "private_network", bool, "with --local_cluster: no other host can reach it, or the run fails", default=True
        ),
        Flag(
            "hosts",
            str,
            "with --ssh: start a worker on each, and a parameter server if the manager needs them; with --cluster=mpi: "
            "those of the ranks, in their order",
        ),
        Flag("ssh", bool, "with --hosts: needs the same directory and Python there, and login without a password"),
        Flag("job_name", str, "the job of this process; of a server, any job of --cluster_spec", known=JOBS),
        Flag("task_index", int, "the index of this process in its job", at_least=0),
        Flag("task_id", int, "the same as --task_index", same_as="task_index"),
        Flag("ps_hosts", str, "addresses of the parameter servers, such as host_0:50000,host_1:50000"),
        Flag("worker_hosts", str, "addresses of the workers, such as host_0:50001,host_1:50001"),
        Flag("controller_host", str, "if one client drives all towers: its address if it is not a worker"),
        Flag("cluster_spec", str, "all addresses in one flag, such as 'ps|h0:50000,worker|h0:50001;h1:50001'"),
        Flag(
            "cluster",
            str,
            "what started the tasks; slurm: addresses and job come from srun; mpi: the rank comes from mpirun, the "
            "addresses from --hosts or --worker_hosts unless all ranks are on one host",
            ("slurm", "mpi"),
            default="those of TF_CONFIG, if set",
        ),
        Flag("num_ps", int, "with --cluster: number of parameter servers among the tasks", default=0, at_least=0),
        Flag(
            "server_port",
            int,
            "with --cluster or --hosts: port of each host's first task",
            default=DEFAULT_SERVER_PORT,
            at_least=1,
            at_most=LAST_PORT,
        ),
        Flag("server_protocol", str, "between processes; TensorFlow has one left", ("grpc",), default="grpc"),
        Flag("start_timeout_seconds", float, "how long to wait for all processes to start", default=300.0, above=0),
        Flag("step_timeout_seconds", float, "how long a step may take", default=600.0, above=0),
    )
}

_MANAGERS_IN_WORDS = "; ".join(
    f"{name} is {manager} with {flag}" for name, (manager, flag) in catalog.SHORTHANDS.items()
)
_LOOPS_IN_WORDS = "; ".join(f"{name} is {meaning}" for name, meaning in catalog.REFERENCE_LOOPS.items())
_NO_HOROVOD = (
    "Horovod is not used: use --variable_update=collective_all_reduce, which also averages gradients over all workers. "
    "Start it with `mpirun -np N ... --cluster=mpi` or `srun ... --cluster=slurm`; for several GPUs of one host, a "
    "single process with --num_gpus is enough."
)
RUN_FLAGS: Groups = {
    "What is trained": (
        Flag(
            "model",
            str,
            "what is trained: a name that `models` lists, keras:NAME, or path/to/file.py:function; keras:NAME is of "
            "keras.applications, a function (also package.module:function) returns a Keras model",
            default="resnet50",
            known=tuple(specs.names()),
        ),
        Flag(
            "batch_size",
            int,
            "images per device and step; auto: the largest that fits, found by trying and remembered",
            ("auto",),
            default="the model's, smaller on a CPU",
            at_least=1,
            unset=0,
        ),
        Flag(
            "num_classes",
            int,
            "classes that the model tells apart; 1001 are ImageNet's and a background class",
            default="the model's",
            at_least=2,
        ),
        Flag(
            "data_format",
            str,
            "layout of images and convolutions; auto: NHWC on CPUs, and with 16 bits on tensor cores; else NCHW",
            ("auto", "NHWC", "NCHW"),
            default="auto",
        ),
        *COMPUTING_FLAGS,
        Flag("forward_only", bool, "inference only: no gradients, no updates"),
        Flag("print_training_accuracy", bool, "print and record the top-1 and top-5 accuracy of each step"),
    ),
    "Devices": (
        Flag(
            "device",
            str,
            "what computes; auto: GPUs if there are any, else the CPU; gpu fails without a GPU",
            ("auto", "cpu", "gpu"),
            default="auto; with --num_gpus or --gpus, gpu",
        ),
        Flag("num_gpus", int, "devices, one tower each; with --device=cpu, logical CPU devices", default=1, at_least=1),
        Flag("gpus", str, "which GPUs may be used, such as 0,2", default="all that are visible"),
        Flag(
            "virtual_gpus",
            int,
            "split each GPU into this many; auto: as many as --num_gpus needs",
            ("auto",),
            default=1,
            at_least=1,
            at_most=64,
        ),
        Flag("gpu_memory_frac", float, "share of a GPU's memory that may be taken", above=0, at_most=1),
        Flag(
            "gpu_memory_limit_mb",
            int,
            "MiB of each GPU's memory that may be taken, instead of --gpu_memory_frac; of split GPUs, by all parts "
            "together",
            at_least=1,
        ),
        Flag("allow_growth", bool, "take a GPU's memory as it is needed, not all at the start"),
        Flag(
            "gpu_thread_mode",
            str,
            "threads that launch GPU kernels: global, private to each GPU, or shared by all",
            device_options.GPU_THREAD_MODES,
            default="gpu_private with --data_dir, else TensorFlow's",
        ),
        Flag(
            "per_gpu_thread_count",
            int,
            "such threads per GPU, unless they are global; 0: TensorFlow's default",
            default=0,
            at_least=0,
        ),
        Flag(
            "force_gpu_compatible",
            bool,
            "pin all host memory of tensors, so that GPUs copy it directly",
            default="true if images come from the host",
        ),
        Flag("num_intra_threads", int, "threads within one operation; 0: TensorFlow's default", default=0, at_least=0),
        Flag("num_inter_threads", int, "operations at a time; 0: TensorFlow's default", default=0, at_least=0),
        Flag(
            "onednn",
            str,
            "use oneDNN's kernels on CPUs",
            ONEDNN_MODES,
            default="TensorFlow's choice: on where the CPU has AVX512-VNNI or similar",
        ),
        Flag("log_device_placement", bool, "print where each operation runs"),
    ),
    **CLUSTER_FLAGS,
    "Variables and gradients": (
        Flag(
            "variable_update",
            str,
            "variable manager: how variables are placed, read and updated; "
            f"{_MANAGERS_IN_WORDS}; training loops of others, for comparison: {_LOOPS_IN_WORDS}",
            (*catalog.MANAGERS, *catalog.SHORTHANDS, *catalog.REFERENCE_LOOPS),
            default=catalog.DEFAULT,
            gone=(("horovod", _NO_HOROVOD),),
        ),
        Flag("keras_application", bool, "keras_fit: train keras.applications.ResNet50, not this suite's resnet50"),
        Flag(
            "local_parameter_device",
            str,
            "where shared variables live and copied gradients are averaged: cpu: the host; gpu: spread over the "
            "devices that compute, GPUs or CPUs",
            ("cpu", "gpu"),
            default="gpu on GPUs, cpu on a CPU",
        ),
        Flag(
            "cross_replica_sync",
            bool,
            "parameter_server: all towers step together; with --nocross_replica_sync each applies its own gradient "
            "without waiting",
            default=True,
        ),
        Flag("sync", bool, "the same as --cross_replica_sync", default=True, same_as="cross_replica_sync"),
        Flag("async", bool, "the same as --nocross_replica_sync", same_as="nocross_replica_sync"),
        Flag("staged_vars", bool, "parameter_server: compute with weights fetched during the step before"),
        Flag(
            "variable_consistency",
            str,
            "relaxed: apply the gradients of the step before",
            ("strong", "relaxed"),
            default="strong",
        ),
        Flag(
            "all_reduce_spec",
            str,
            "how replicated (distributed_all_reduce) reduces gradients; also ALG#K: in K shards; ALG/ALG: within a "
            "worker and across workers; ALG:SIZE:ALG: by size in elements, such as pscpu:32K:xring#2; "
            "collective_all_reduce and local_sgd: collective or nccl",
            default="pscpu or psgpu, by --local_parameter_device; of collectives nccl on GPUs, else collective",
            known=tuple(ALGORITHMS),
        ),
        Flag("hierarchical_copy", bool, "the same as --all_reduce_spec=hierarchical"),
        Flag(
            "gradient_repacking",
            int,
            "send gradients in this many chunks; 0: one by one",
            default=Modifiers.gradient_repacking,
            at_least=0,
        ),
        Flag(
            "agg_small_grads_max_bytes",
            int,
            "group gradients of at most this size; 0: none",
            default=f"0; {manager_options.NCCL_GROUPED_BYTES} if nccl reduces all gradients and they are not repacked",
            at_least=0,
        ),
        Flag(
            "agg_small_grads_max_group",
            int,
            "most gradients in such a group",
            default=Modifiers.agg_small_grads_max_group,
            at_least=1,
        ),
        Flag("compact_gradient_transfer", bool, "send gradients in 16 bits"),
        Flag(
            "compact_gradient_dtype",
            str,
            "their 16-bit type",
            ("float16", "bfloat16"),
            default=Modifiers.compact_gradient_dtype,
        ),
        Flag(
            "local_sgd_steps",
            int,
            "local_sgd: average the weights every so many steps",
            default=manager_options.LOCAL_SGD_STEPS,
            at_least=1,
        ),
        Flag(
            "fc_model_parallel",
            bool,
            "divide the columns of the dense layers at the end of the model among the towers, and exchange activations "
            "instead of their gradients: for alexnet and vgg16",
        ),
        Flag(
            "pipeline_stages",
            int,
            "cut the model into this many stages, one per device, and send each step's images through them in parts",
            at_least=1,
        ),
        Flag(
            "micro_batches",
            int,
            "of a pipeline: equal parts into which a step divides its images, batch_size times devices",
            default="4, 2 or 1 per stage: the most that divide batch_size",
            at_least=1,
        ),
        Flag("use_nccl", bool, "the 2017 guide's spelling: reduce gradients of `replicated` with NCCL"),
    ),
    **IMAGE_FLAGS,
    **OPTIMIZER_FLAGS,
    **BETWEEN_FLAGS,
    "How long": (
        Flag("num_batches", int, "measured steps", default=100, at_least=1),
        Flag("num_epochs", float, "instead of --num_batches: passes over the data set", above=0),
        Flag(
            "num_warmup_batches",
            int,
            "steps before measuring; the first never counts",
            default="10, or 3 on a CPU",
            at_least=0,
        ),
        Flag("time_limit_seconds", float, "stop measuring at this age of the process; the result is valid", above=0),
    ),
    "Output": (
        Flag("output_dir", str, "directory of results.jsonl and results.csv", default="out", path="directory"),
        Flag("output_format", str, "what goes to stdout", ("text", "json"), default="text"),
        Flag("display_every", int, "print a line every so many steps", default=10, at_least=1),
        Flag(
            "loss_type_to_report",
            str,
            "loss in the printed lines; total_loss includes weight decay; the record has the base loss",
            LOSS_TYPES,
            default="total_loss, where one process takes all steps together and all copies of the weights are equal",
        ),
        Flag("session_id", str, "a name that records of several runs share; sweep gives its runs one"),
        *(Flag(kind.flag, str, kind.help, path=kind.path) for kind in KINDS),
        Flag("print_config", bool, "print the resolved configuration as JSON and stop"),
    ),
}

# The value of each flag that is not given; a phrase if it depends on something, None if there is none.
DEFAULTS: Mapping[str, Any] = {flag.name: flag.default for group in RUN_FLAGS.values() for flag in group}

# The devices of verbs that compare what several devices compute or exchange; threads and kernels are TensorFlow's.
_SEVERAL_DEVICES = Flag(
    "num_gpus", int, "devices", default="all GPUs, or one split in two, or two logical CPU devices", at_least=1
)
SEVERAL_DEVICES = tuple(
    _SEVERAL_DEVICES if flag.name == "num_gpus" else flag
    for flag in RUN_FLAGS["Devices"]
    if flag.name
    in ("device", "num_gpus", "gpus", "virtual_gpus", "gpu_memory_frac", "gpu_memory_limit_mb", "allow_growth")
)


def words(values: Mapping[str, Any]) -> list[str]:
    """Returns flag values as words of a command line, without those that are None."""
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
    return [f"--{name}={given[name]}" for name, value in values.items() if value is not None]


def unset(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of all flags of `run`, None for those that are not among `values`."""
    every = {flag.name: None for group in RUN_FLAGS.values() for flag in group}
    return every | dict(values)
