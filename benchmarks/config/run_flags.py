"""The command line: which flags there are. Nothing else knows a flag's name.

Flags are spelled as in tf_cnn_benchmarks. An unset flag is None; `benchmarks.config.config` turns what was given into
decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.config import device_options
from benchmarks.config.flag import Flag, Groups, Parsed, describe, parse, presets, read_files
from benchmarks.config.precision_options import ONEDNN_MODES, PRECISIONS, XLA_MODES
from benchmarks.input.catalog import DATA_SETS, SYNTHETIC, SYNTHETIC_HOST
from benchmarks.input.options import RESIZE_METHODS, ROUND_ROBIN
from models import specs
from variable_mgr import catalog
from variable_mgr.reductions.algorithms import ALGORITHMS

__all__ = ["Flag", "Groups", "Parsed", "describe", "parse", "presets", "read_files", "unset", "words"]

CLUSTER_FLAGS: Groups = {
    "Several processes": (
        Flag("local_cluster", str, "start them all on this host, such as ps:1,worker:2 (ps=1,worker=2 will do)"),
        Flag(
            "private_network",
            bool,
            "with --local_cluster: in a network that nothing else can reach (default, where the kernel permits it)",
        ),
        Flag("hosts", str, "with --ssh: start a worker on each, and where wanted a parameter server"),
        Flag("ssh", bool, "with --hosts: same directory and Python there as here, and no password asked for"),
        Flag("job_name", str, "what this process is", ("ps", "worker", "controller")),
        Flag("task_index", int, "which of its job's tasks this process is, from 0"),
        Flag("ps_hosts", str, "addresses of the parameter servers, such as host_0:50000,host_1:50000"),
        Flag("worker_hosts", str, "addresses of the workers, likewise"),
        Flag("controller_host", str, "distributed_all_reduce: the address of the client, if it is no worker"),
        Flag("cluster_spec", str, "all addresses in one, such as 'ps|h0:50000,worker|h0:50001;h1:50001'"),
        Flag("cluster", str, "slurm: addresses and role come from srun (default: from TF_CONFIG, if set)", ("slurm",)),
        Flag("num_ps", int, "with --cluster=slurm: how many of the tasks are parameter servers (default 0)"),
        Flag("server_port", int, "with --cluster=slurm or --hosts: of the first task of each (default 50000)"),
        Flag("server_protocol", str, "between processes; TensorFlow has one left (default grpc)", ("grpc",)),
        Flag("start_timeout_seconds", float, "wait so long for all processes to be there (default 300)"),
        Flag("step_timeout_seconds", float, "a step may take so long (default 600)"),
    ),
}


IMAGE_FLAGS: Groups = {
    "Data": (
        Flag("data_dir", str, "where images are read from (default: they are synthetic)"),
        Flag(
            "data_name",
            str,
            "which data set (default: the model's with --data_dir, else synthetic); synthetic images are made once on "
            "the devices, synthetic_host ones on the host, so that the way to the device is in the measurement",
            (*DATA_SETS, SYNTHETIC, SYNTHETIC_HOST),
        ),
        Flag("data_split", str, "which part of the data set (default train)", ("train", "validation")),
        Flag(
            "on_bad_record",
            str,
            "fail: the run ends and names file, record and reason (default); skip: it goes on and counts them",
            ("fail", "skip"),
        ),
        Flag(
            "pipelined_input",
            bool,
            "the next step's images are brought to the device while this one computes (default where any are read)",
        ),
    ),
    "How images are prepared": (
        Flag(
            "image_crop",
            str,
            "distorted: a random part, flipped at random (default); central: the middle (default of --forward_only)",
            ("distorted", "central"),
        ),
        Flag("fuse_decode_and_crop", bool, "decode only the part that is kept (default)"),
        Flag("decode_scaling", bool, "decode a part of twice the size or more at half the size, and so on"),
        Flag(
            "resize_method",
            str,
            "default bilinear; round_robin takes them in turn",
            (*RESIZE_METHODS, ROUND_ROBIN),
        ),
        Flag("distortions", bool, "random brightness, saturation, hue and contrast (default: none)"),
        Flag("distort_color_in_yiq", bool, "saturation and hue of --distortions in YIQ (default), else in HSV"),
    ),
    "How files are read": (
        Flag("datasets_parallel_interleave_cycle_length", int, "files read at a time (default 10)"),
        Flag("datasets_shuffle_records", int, "records that wait to be drawn from (default 256)"),
        Flag("datasets_parallel_calls", int, "images prepared at a time (default 0: cores + 1; -1: tf.data chooses)"),
        Flag("datasets_use_prefetch", bool, "batches are made before they are asked for (default)"),
        Flag("datasets_prefetch_buffer_size", int, "batches per device that wait to be fetched (default 2)"),
        Flag("datasets_num_private_threads", int, "threads of the pipeline alone (default 0: the session's)"),
        Flag(
            "datasets_autotune_cpu_budget",
            int,
            "with --datasets_parallel_calls=-1: cores that tf.data may plan with (default 0: all)",
        ),
        Flag("datasets_sloppy_parallel_interleave", bool, "take what is ready first; runs then differ"),
        Flag("datasets_use_caching", bool, "keep all records in memory, as they are on disk"),
        Flag("datasets_repeat_cached_sample", bool, "use the first record again and again: no reading"),
    ),
}

RUN_FLAGS: Groups = {
    "What is trained": (
        Flag("model", str, f"one of {', '.join(specs.names())} (default resnet50)"),
        Flag(
            "batch_size",
            int,
            "images per device and step (default: the model's, a small one on a CPU); auto: the most that fit, tried "
            "in processes of their own and remembered",
            ("auto",),
        ),
        Flag("num_classes", int, "of ImageNet: 1001 with its background class (default), or 1000"),
        Flag(
            "data_format", str, "layout of images (default auto: NCHW on GPUs, NHWC on CPUs)", ("auto", "NHWC", "NCHW")
        ),
        Flag(
            "precision",
            str,
            "of the arithmetic (default fp32); weights, batch-norm statistics and loss stay in float32; tf32 rounds "
            "factors of products on GPUs",
            PRECISIONS,
        ),
        Flag("use_fp16", bool, "the same as --precision=fp16"),
        Flag("fp16_loss_scale", float, "what the loss is multiplied by (default 128; a changing one starts at 32768)"),
        Flag("fp16_enable_auto_loss_scale", bool, "halve it whenever a gradient overflows, and leave out that update"),
        Flag("fp16_inc_loss_scale_every_n", int, "double a changing one after so many good steps (default 1000)"),
        Flag("check_precision", bool, "train again in fp32 after the run and say how far the losses are apart"),
        Flag(
            "xla",
            str,
            "jit, or --xla: XLA compiles each tower as a whole (default off)",
            XLA_MODES,
            boolean=("jit", "off"),
        ),
        Flag("xla_compile", bool, "tf_cnn_benchmarks' spelling of --xla=jit"),
        Flag("conv1x1_as_matmul", bool, "compute convolutions of one pixel as matrix products (NHWC; for CPUs)"),
        Flag(
            "filter_gradients_as_matmul",
            bool,
            "compute filter gradients of larger convolutions without strides as matrix products (NHWC; for CPUs)",
        ),
        Flag("forward_only", bool, "inference only: no gradients, no updates"),
        Flag("print_training_accuracy", bool, "show and record which share of a step's images is right (top 1, top 5)"),
    ),
    "Devices": (
        Flag(
            "device",
            str,
            "default: GPUs if there are any; auto: the same, also with --num_gpus",
            ("auto", "cpu", "gpu"),
        ),
        Flag("num_gpus", int, "devices, one tower each; with --device=cpu, logical CPU devices (default 1)"),
        Flag("gpus", str, "which GPUs may be used, such as 0,2 (default: all that are visible)"),
        Flag("virtual_gpus", str, "split each GPU into this many (default 1; auto: as many as --num_gpus needs)"),
        Flag("gpu_memory_frac", float, "share of a GPU's memory that may be taken, 0 to 1"),
        Flag("allow_growth", bool, "take a GPU's memory as it is needed, not all at the start"),
        Flag(
            "gpu_thread_mode",
            str,
            "whose threads hand work to GPUs: global ones, private to each GPU, or shared by all (default: "
            "TensorFlow's)",
            device_options.GPU_THREAD_MODES,
        ),
        Flag("per_gpu_thread_count", int, "such threads per GPU, unless they are global; 0: TensorFlow's default"),
        Flag("num_intra_threads", int, "threads within one operation; 0: TensorFlow's default"),
        Flag("num_inter_threads", int, "operations at a time; 0: TensorFlow's default"),
        Flag(
            "onednn",
            str,
            "use oneDNN's kernels on CPUs (default: TensorFlow's choice, on where the CPU has AVX512-VNNI or the like)",
            ONEDNN_MODES,
        ),
        Flag("log_device_placement", bool, "print where each operation runs"),
    ),
    **CLUSTER_FLAGS,
    "Variables and gradients": (
        Flag(
            "variable_update",
            str,
            f"variable manager (default {catalog.DEFAULT}); "
            + "; ".join(f"{name} is {manager} with {flag}" for name, (manager, flag) in catalog.SHORTHANDS.items())
            + "; reference training loops: "
            + "; ".join(f"{name} is {meaning}" for name, meaning in catalog.REFERENCE_LOOPS.items()),
            (*catalog.MANAGERS, *catalog.SHORTHANDS, *catalog.REFERENCE_LOOPS),
        ),
        Flag("keras_application", bool, "keras_fit: train keras.applications.ResNet50, not this suite's resnet50"),
        Flag(
            "local_parameter_device",
            str,
            "where shared variables live and copied gradients are averaged: cpu is the host, gpu is spread over the "
            "devices that compute, whichever kind they are (default: gpu on GPUs, cpu on a CPU)",
            ("cpu", "gpu"),
        ),
        Flag(
            "cross_replica_sync",
            bool,
            "parameter_server: all towers step together (default); with --nocross_replica_sync each applies its own "
            "gradient as soon as it is there",
        ),
        Flag("staged_vars", bool, "parameter_server: compute with weights fetched during the step before"),
        Flag("variable_consistency", str, "relaxed: apply the gradients of the step before", ("strong", "relaxed")),
        Flag(
            "all_reduce_spec",
            str,
            f"how replicated (distributed_all_reduce) reduces gradients: {', '.join(ALGORITHMS)}; ALG#K in K shards; "
            "ALG/ALG within a worker and across workers; ALG:SIZE:ALG by size in "
            "elements, such as pscpu:32K:xring#2 (default: pscpu or psgpu, by --local_parameter_device)",
        ),
        Flag("hierarchical_copy", bool, "the same as --all_reduce_spec=hierarchical"),
        Flag("gradient_repacking", int, "gradients travel in that many chunks (default 0: one by one)"),
        Flag("agg_small_grads_max_bytes", int, "gradients of at most so many bytes travel in groups (default 0: none)"),
        Flag("agg_small_grads_max_group", int, "gradients in such a group, at most (default 10)"),
        Flag("compact_gradient_transfer", bool, "gradients travel in 16 bits"),
        Flag("compact_gradient_dtype", str, "in which 16 bits they travel (default float16)", ("float16", "bfloat16")),
        Flag("local_sgd_steps", int, "local_sgd: average the weights every so many steps (default 4)"),
        Flag(
            "fc_model_parallel",
            bool,
            "each tower holds some columns of the dense layers that end the model, and activations travel instead of "
            "their gradients: for alexnet and vgg16",
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
        Flag(
            "num_warmup_batches",
            int,
            "steps before measuring; the first is never measured (default 10, on a CPU 3)",
        ),
        Flag(
            "time_limit_seconds",
            float,
            "stop measuring when the process is this old; the result is still valid",
        ),
    ),
    "Output": (
        Flag("output_dir", str, "results.jsonl and results.csv are kept there (default out)"),
        Flag("output_format", str, "what goes to stdout (default text)", ("text", "json")),
        Flag("display_every", int, "print every that many steps (default 10)"),
        Flag("session_id", str, "a name that the records of several runs have in common; sweep gives its runs one"),
        Flag("print_config", bool, "print the resolved configuration as JSON and stop"),
    ),
}

# Verifying fixes everything but the devices.
_NOT_FOR_VERIFY = (
    "gpu_thread_mode",
    "per_gpu_thread_count",
    "num_intra_threads",
    "num_inter_threads",
    "onednn",
    "log_device_placement",
)
_ALL_DEVICES = Flag("num_gpus", int, "devices (default: all GPUs, or one split in two, or two logical CPU devices)")
VERIFY_FLAGS: Groups = {
    "Devices": [
        _ALL_DEVICES if flag.name == "num_gpus" else flag
        for flag in RUN_FLAGS["Devices"]
        if flag.name not in _NOT_FOR_VERIFY
    ],
    "Several processes": RUN_FLAGS["Several processes"],
}
SERVER_FLAGS: Groups = {name: RUN_FLAGS[name] for name in ("Several processes", "Devices")}

_CHOSEN_FOR_ALL_REDUCE = ("gradient_repacking", "agg_small_grads_max_", "compact_gradient_")
ALLREDUCE_FLAGS: Groups = {
    "What is reduced, and how": (
        Flag("all_reduce_spec", str, "reductions to compare, such as pscpu,xring#2 (default: all that can run here)"),
        Flag("min_bytes", str, "smallest message, with K, M or G (default 1K)"),
        Flag("max_bytes", str, "largest message; the sizes between are powers of two (default 64M)"),
        Flag("model", str, "models whose gradients are reduced, such as resnet50,vgg16, or none (default: all)"),
        *(flag for flag in RUN_FLAGS["Variables and gradients"] if flag.name.startswith(_CHOSEN_FOR_ALL_REDUCE)),
    ),
    "Devices": VERIFY_FLAGS["Devices"],
    "How long": (
        Flag("num_batches", int, "measured rounds per message, in which each reduction has its turn (default 20)"),
        Flag("num_warmup_batches", int, "rounds before measuring (default 2)"),
    ),
    "Output": [flag for flag in RUN_FLAGS["Output"] if flag.name in ("output_dir", "output_format")],
}

INPUT_FLAGS: Groups = {
    "What is measured": (
        Flag("seconds", float, "per stage (default 5)"),
        *(flag for flag in RUN_FLAGS["What is trained"] if flag.name in ("model", "batch_size", "num_classes")),
        Flag("tf_random_seed", int, "seed of the order and the crops (default 1234)"),
    ),
    **IMAGE_FLAGS,
    "Devices": RUN_FLAGS["Devices"],
    "Output": [flag for flag in RUN_FLAGS["Output"] if flag.name in ("output_dir", "output_format", "session_id")],
}

SWEEP_FLAGS: Groups = {
    "The sweep": (
        Flag("repeats", int, "rounds, each run in a fresh process (default 1)"),
        Flag("suite", str, "a TOML file with a table [[grid]] per grid, which holds flags"),
        Flag("resume", bool, "run only what is missing in --output_dir"),
        Flag("dry_run", bool, "print the grid and stop"),
        Flag("round_timeout_seconds", float, "kill a run that takes longer (default 3600)"),
        Flag("stop_after_seconds", float, "begin no run after so long"),
        Flag("output_dir", str, "results.jsonl and results.csv are kept there (default out)"),
    )
}


def words(values: Mapping[str, Any]) -> list[str]:
    """Returns flag values as the words of a command line; None is left out."""
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
    return [f"--{name}={given[name]}" for name, value in values.items() if value is not None]


def unset(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of all flags of `run`, None for those that are not among `values`."""
    every = {flag.name: None for group in RUN_FLAGS.values() for flag in group}
    return every | dict(values)
