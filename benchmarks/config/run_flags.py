"""The flags of a run, spelled as in tf_cnn_benchmarks. The other modules of this folder turn them into decisions.

A flag that is not given is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.config import device_options
from benchmarks.config.flag import Flag, Groups
from benchmarks.config.precision_options import ONEDNN_MODES, PRECISIONS, XLA_MODES
from benchmarks.input.catalog import DATA_SETS, SYNTHETIC, SYNTHETIC_HOST
from benchmarks.input.options import RESIZE_METHODS, ROUND_ROBIN
from models import specs
from variable_mgr import catalog
from variable_mgr.reductions.algorithms import ALGORITHMS

CLUSTER_FLAGS: Groups = {
    "Several processes": (
        Flag("local_cluster", str, "start all tasks on this host, such as ps:1,worker:2 (or ps=1,worker=2)"),
        Flag("private_network", bool, "with --local_cluster: no other host can reach it (default, where permitted)"),
        Flag("hosts", str, "with --ssh: start a worker on each, and a parameter server if the manager needs them"),
        Flag("ssh", bool, "with --hosts: needs the same directory and Python there, and login without a password"),
        Flag("job_name", str, "the job of this process", ("ps", "worker", "controller")),
        Flag("task_index", int, "the index of this process in its job, from 0"),
        Flag("ps_hosts", str, "addresses of the parameter servers, such as host_0:50000,host_1:50000"),
        Flag("worker_hosts", str, "addresses of the workers, such as host_0:50001,host_1:50001"),
        Flag("controller_host", str, "distributed_all_reduce: address of the client if it is not a worker"),
        Flag("cluster_spec", str, "all addresses in one flag, such as 'ps|h0:50000,worker|h0:50001;h1:50001'"),
        Flag("cluster", str, "slurm: addresses and job come from srun (default: from TF_CONFIG, if set)", ("slurm",)),
        Flag("num_ps", int, "with --cluster=slurm: number of parameter servers among the tasks (default 0)"),
        Flag("server_port", int, "with --cluster=slurm or --hosts: port of each host's first task (default 50000)"),
        Flag("server_protocol", str, "between processes; TensorFlow has one left (default grpc)", ("grpc",)),
        Flag("start_timeout_seconds", float, "how long to wait for all processes to start (default 300)"),
        Flag("step_timeout_seconds", float, "how long a step may take (default 600)"),
    ),
}

IMAGE_FLAGS: Groups = {
    "Data": (
        Flag("data_dir", str, "directory of the images (default: they are synthetic)"),
        Flag(
            "data_name",
            str,
            "data set (default: the model's with --data_dir, else synthetic); synthetic: images made once on the "
            "devices; synthetic_host: made once on the host, so that the copy to the device is measured",
            (*DATA_SETS, SYNTHETIC, SYNTHETIC_HOST),
        ),
        Flag("data_split", str, "part of the data set (default train)", ("train", "validation")),
        Flag(
            "on_bad_record",
            str,
            "fail: end the run and report file, record and reason (default); skip: count it and go on",
            ("fail", "skip"),
        ),
        Flag("pipelined_input", bool, "copy the next step's images to the device during this step (default if read)"),
    ),
    "How images are prepared": (
        Flag(
            "image_crop",
            str,
            "distorted: a random part, flipped at random (default); central: the middle (default of --forward_only)",
            ("distorted", "central"),
        ),
        Flag("fuse_decode_and_crop", bool, "decode only the part that is kept (default)"),
        Flag("decode_scaling", bool, "decode at 1/2, 1/4 or 1/8 of the size where the part is that much too large"),
        Flag("resize_method", str, "default bilinear; round_robin alternates them", (*RESIZE_METHODS, ROUND_ROBIN)),
        Flag("distortions", bool, "random brightness, saturation, hue and contrast (default: none)"),
        Flag("distort_color_in_yiq", bool, "saturation and hue of --distortions in YIQ (default), else in HSV"),
    ),
    "How files are read": (
        Flag("datasets_parallel_interleave_cycle_length", int, "files read at a time (default 10)"),
        Flag("datasets_shuffle_records", int, "size of the shuffle buffer in records (default 256)"),
        Flag("datasets_parallel_calls", int, "images prepared at a time (default 0: cores + 1; -1: tf.data chooses)"),
        Flag("datasets_use_prefetch", bool, "prefetch batches (default)"),
        Flag("datasets_prefetch_buffer_size", int, "prefetched batches per device (default 2)"),
        Flag("datasets_num_private_threads", int, "threads of the pipeline alone (default 0: the session's)"),
        Flag("datasets_autotune_cpu_budget", int, "cores for --datasets_parallel_calls=-1 (default 0: all)"),
        Flag("datasets_sloppy_parallel_interleave", bool, "take what is ready first; runs then differ"),
        Flag("datasets_use_caching", bool, "keep all records in memory, as they are on disk"),
        Flag("datasets_repeat_cached_sample", bool, "use the first record again and again: no reading"),
    ),
}

_MANAGERS_IN_WORDS = "; ".join(
    f"{name} is {manager} with {flag}" for name, (manager, flag) in catalog.SHORTHANDS.items()
)
_LOOPS_IN_WORDS = "; ".join(f"{name} is {meaning}" for name, meaning in catalog.REFERENCE_LOOPS.items())
RUN_FLAGS: Groups = {
    "What is trained": (
        Flag("model", str, f"one of {', '.join(specs.names())} (default resnet50)"),
        Flag(
            "batch_size",
            int,
            "images per device and step (default: the model's, smaller on a CPU); auto: the largest that fits, found "
            "by trying in separate processes and remembered",
            ("auto",),
        ),
        Flag("num_classes", int, "of ImageNet: 1001 with its background class (default), or 1000"),
        Flag("data_format", str, "layout (default auto: NCHW on GPUs, NHWC on CPUs)", ("auto", "NHWC", "NCHW")),
        Flag(
            "precision",
            str,
            "of the arithmetic (default fp32); weights, batch-norm statistics and loss stay in float32; tf32 rounds "
            "factors of products on GPUs",
            PRECISIONS,
        ),
        Flag("use_fp16", bool, "the same as --precision=fp16"),
        Flag("fp16_loss_scale", float, "factor of the loss (default 128; a dynamic one starts at 32768)"),
        Flag("fp16_enable_auto_loss_scale", bool, "dynamic: halve it when a gradient overflows, and skip that update"),
        Flag("fp16_inc_loss_scale_every_n", int, "dynamic: double it after this many good steps (default 1000)"),
        Flag("check_precision", bool, "train again in fp32 after the run and compare the losses"),
        Flag("xla", str, "jit, or --xla: XLA compiles each tower as a whole (default off)", XLA_MODES, ("jit", "off")),
        Flag("xla_compile", bool, "tf_cnn_benchmarks' spelling of --xla=jit"),
        Flag("conv1x1_as_matmul", bool, "compute 1x1 convolutions as matrix products (NHWC; for CPUs)"),
        Flag(
            "filter_gradients_as_matmul",
            bool,
            "compute filter gradients of larger convolutions without strides as matrix products (NHWC; for CPUs)",
        ),
        Flag("forward_only", bool, "inference only: no gradients, no updates"),
        Flag("print_training_accuracy", bool, "print and record the top-1 and top-5 accuracy of each step"),
    ),
    "Devices": (
        Flag("device", str, "default: GPUs if there are any; auto: also with --num_gpus", ("auto", "cpu", "gpu")),
        Flag("num_gpus", int, "devices, one tower each; with --device=cpu, logical CPU devices (default 1)"),
        Flag("gpus", str, "which GPUs may be used, such as 0,2 (default: all that are visible)"),
        Flag("virtual_gpus", str, "split each GPU into this many (default 1; auto: as many as --num_gpus needs)"),
        Flag("gpu_memory_frac", float, "share of a GPU's memory that may be taken, 0 to 1"),
        Flag("allow_growth", bool, "take a GPU's memory as it is needed, not all at the start"),
        Flag(
            "gpu_thread_mode",
            str,
            "threads that launch GPU kernels: global, private to each GPU, or shared by all (default: TensorFlow's)",
            device_options.GPU_THREAD_MODES,
        ),
        Flag("per_gpu_thread_count", int, "such threads per GPU, unless they are global; 0: TensorFlow's default"),
        Flag("num_intra_threads", int, "threads within one operation; 0: TensorFlow's default"),
        Flag("num_inter_threads", int, "operations at a time; 0: TensorFlow's default"),
        Flag(
            "onednn",
            str,
            "use oneDNN's kernels on CPUs (default: TensorFlow's choice, on where the CPU has AVX512-VNNI or similar)",
            ONEDNN_MODES,
        ),
        Flag("log_device_placement", bool, "print where each operation runs"),
    ),
    **CLUSTER_FLAGS,
    "Variables and gradients": (
        Flag(
            "variable_update",
            str,
            f"variable manager (default {catalog.DEFAULT}); {_MANAGERS_IN_WORDS}; training loops of others, for "
            f"comparison: {_LOOPS_IN_WORDS}",
            (*catalog.MANAGERS, *catalog.SHORTHANDS, *catalog.REFERENCE_LOOPS),
        ),
        Flag("keras_application", bool, "keras_fit: train keras.applications.ResNet50, not this suite's resnet50"),
        Flag(
            "local_parameter_device",
            str,
            "where shared variables live and copied gradients are averaged: cpu: the host; gpu: spread over the "
            "devices that compute, GPUs or CPUs (default: gpu on GPUs, cpu on a CPU)",
            ("cpu", "gpu"),
        ),
        Flag(
            "cross_replica_sync",
            bool,
            "parameter_server: all towers step together (default); with --nocross_replica_sync each applies its own "
            "gradient without waiting",
        ),
        Flag("staged_vars", bool, "parameter_server: compute with weights fetched during the step before"),
        Flag("variable_consistency", str, "relaxed: apply the gradients of the step before", ("strong", "relaxed")),
        Flag(
            "all_reduce_spec",
            str,
            f"how replicated (distributed_all_reduce) reduces gradients: {', '.join(ALGORITHMS)}; ALG#K in K shards; "
            "ALG/ALG within a worker and across workers; ALG:SIZE:ALG by size in elements, such as pscpu:32K:xring#2 "
            "(default: pscpu or psgpu, by --local_parameter_device)",
        ),
        Flag("hierarchical_copy", bool, "the same as --all_reduce_spec=hierarchical"),
        Flag("gradient_repacking", int, "send gradients in this many chunks (default 0: one by one)"),
        Flag("agg_small_grads_max_bytes", int, "group gradients of at most this size (default 0: none)"),
        Flag("agg_small_grads_max_group", int, "most gradients in such a group (default 10)"),
        Flag("compact_gradient_transfer", bool, "send gradients in 16 bits"),
        Flag("compact_gradient_dtype", str, "their 16-bit type (default float16)", ("float16", "bfloat16")),
        Flag("local_sgd_steps", int, "local_sgd: average the weights every so many steps (default 4)"),
        Flag(
            "fc_model_parallel",
            bool,
            "divide the columns of the dense layers at the end of the model among the towers, and exchange activations "
            "instead of their gradients: for alexnet and vgg16",
        ),
        Flag("use_nccl", bool, "the 2017 guide's spelling: reduce gradients of `replicated` with NCCL"),
    ),
    **IMAGE_FLAGS,
    "Optimizer": (
        Flag("optimizer", str, "update rule (default sgd)", ("sgd", "momentum", "rmsprop", "adam")),
        Flag("init_learning_rate", float, "learning rate (default: the model's)"),
        Flag("momentum", float, "of the momentum optimizer (default 0.9)"),
        Flag("weight_decay", float, "L2 penalty on kernels (default 4e-05)"),
        Flag("tf_random_seed", int, "seed of initial values, data and dropout (default 1234)"),
    ),
    "How long": (
        Flag("num_batches", int, "measured steps (default 100)"),
        Flag("num_epochs", float, "instead of --num_batches: passes over the data set"),
        Flag("num_warmup_batches", int, "steps before measuring; the first never counts (default 10, on a CPU 3)"),
        Flag("time_limit_seconds", float, "stop measuring at this age of the process; the result is still valid"),
    ),
    "Output": (
        Flag("output_dir", str, "directory of results.jsonl and results.csv (default out)"),
        Flag("output_format", str, "what goes to stdout (default text)", ("text", "json")),
        Flag("display_every", int, "print a line every so many steps (default 10)"),
        Flag("session_id", str, "a name that records of several runs share; sweep gives its runs one"),
        Flag("print_config", bool, "print the resolved configuration as JSON and stop"),
    ),
}

# The devices of verbs that compare what several devices compute or exchange; threads and kernels are TensorFlow's.
_SEVERAL_DEVICES = Flag("num_gpus", int, "devices (default: all GPUs, or one split in two, or two logical CPU devices)")
SEVERAL_DEVICES = tuple(
    _SEVERAL_DEVICES if flag.name == "num_gpus" else flag
    for flag in RUN_FLAGS["Devices"]
    if flag.name in ("device", "num_gpus", "gpus", "virtual_gpus", "gpu_memory_frac", "allow_growth")
)


def words(values: Mapping[str, Any]) -> list[str]:
    """Returns flag values as words of a command line, without those that are None."""
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
    return [f"--{name}={given[name]}" for name, value in values.items() if value is not None]


def unset(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of all flags of `run`, None for those that are not among `values`."""
    every = {flag.name: None for group in RUN_FLAGS.values() for flag in group}
    return every | dict(values)
