"""The command line: which flags there are. Nothing else knows a flag's name.

Flags are spelled as in tf_cnn_benchmarks. An unset flag is None; `benchmarks.config` turns what was given into
decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import cluster_flags, data_flags, device_options
from benchmarks.flag_parsing import Flag, Groups, Parsed, describe, parse, presets, read_files
from benchmarks.precision_options import ONEDNN_MODES, PRECISIONS, XLA_MODES
from models import specs
from variable_mgr import catalog
from variable_mgr.algorithms import ALGORITHMS

__all__ = ["Flag", "Groups", "Parsed", "describe", "parse", "presets", "read_files", "unset", "words"]

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
    **cluster_flags.CLUSTER_FLAGS,
    "Variables and gradients": (
        Flag(
            "variable_update",
            str,
            "variable manager (default parameter_server); "
            + "; ".join(f"{name} is {meaning}" for name, meaning in catalog.SHORTHANDS.items())
            + "; training loops of others, to compare with: "
            + "; ".join(f"{name} is {meaning}" for name, meaning in catalog.BASELINES.items()),
            (*catalog.MANAGERS, *catalog.SHORTHANDS, *catalog.BASELINES),
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
    **data_flags.IMAGE_FLAGS,
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
    **data_flags.IMAGE_FLAGS,
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
