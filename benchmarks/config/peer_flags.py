"""What becomes of each flag of tf_cnn_benchmarks, and of flags that scripts carry from its older versions.

Each is a flag of a run of the same name, or in one of three groups: `RENAMED`, `ACCEPTED` or `REPLACED`. These
are parsed wherever a run's flags are, and are not in the help. Imports without TensorFlow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from benchmarks.errors import UsageError
from benchmarks.option import Flag, Groups

# Flags of a run under another name.
RENAMED = (
    Flag("benchmark_test_id", str, "a name for the record", same_as="session_id", unset=""),
    Flag("checkpoint_directory", str, "", same_as="train_dir", unset=""),
    Flag("gpu_indices", str, "the order is that of the towers", same_as="gpus", unset=""),
    Flag("gpu_memory_frac_for_testing", float, "at most 1", same_as="gpu_memory_frac", unset=0.0),
    Flag("gpu_mem_fraction", float, "at most 1", same_as="gpu_memory_frac", unset=0.0),
    Flag("learning_rate", float, "", same_as="init_learning_rate"),
    Flag("mkl", str, "", ("on", "off"), ("on", "off"), same_as="onednn", unset="off"),
)

_THREADS = "oneDNN computes in TensorFlow's threads, not in OpenMP's: see --num_intra_threads"
_WHOLE_EVAL = "an evaluation takes every image of the validation set once"
_OF_KERNELS = "TensorFlow limits the kernels in flight by itself"
# Without effect, and why; the default, and no value, pass silently.
ACCEPTED = (
    Flag("allreduce_merge_scope", int, "gradients are not merged by name scopes: see --gradient_repacking", default=1),
    Flag("batch_group_size", int, "tf.data prepares the batches: see --datasets_prefetch_buffer_size", default=1),
    Flag("cache_data", bool, "synthetic images are made once, and --datasets_use_caching keeps records", default=False),
    Flag("collect_eval_results_async", bool, "training waits for the result of an evaluation", default=False),
    Flag("compute_lr_on_cpu", bool, "the learning rate is computed by the process that takes the steps", default=False),
    Flag("datasets_parallel_interleave_prefetch", int, "tf.data decides how much of each file is read ahead"),
    Flag("display_perf_ewma", float, "lines have the mean over all steps, and the record has the time of each"),
    Flag("enable_layout_optimizer", bool, "--data_format chooses the layout", default=False),
    Flag("eval_dir", str, "evaluations are in the record, in --output_dir", default="/tmp/tf_cnn_benchmarks/eval"),
    Flag("eval_interval_secs", int, "--eval evaluates the latest checkpoint once: start it again", default=0),
    Flag("flush_stdout", bool, "every line is written at once", default=False),
    Flag("gpu_kt_max_bytes", int, _OF_KERNELS, default=0),
    Flag("gpu_kt_max_interval", int, _OF_KERNELS, default=0),
    Flag("gpu_kt_max_pending", int, _OF_KERNELS, default=0),
    Flag("horovod_device", str, "Horovod is not used", unset=""),
    Flag("kmp_affinity", str, _THREADS, default="granularity=fine,verbose,compact,1,0"),
    Flag("kmp_blocktime", int, _THREADS, default=0),
    Flag("kmp_settings", int, _THREADS, default=1),
    Flag("multi_device_iterator_max_buffer_size", int, "see --datasets_prefetch_buffer_size", default=1),
    Flag("network_topology", str, "the hierarchical copy is the same on every topology", default="dgx1"),
    Flag("num_eval_batches", int, _WHOLE_EVAL),
    Flag("num_eval_epochs", float, _WHOLE_EVAL, default=1.0),
    Flag("single_l2_loss_op", bool, "a step does not compute the penalty, only its gradient", default=False),
    Flag("sparse_to_dense_grads", bool, "no model has sparse gradients", default=False),
    Flag("sync_on_finish", bool, "every step is awaited before its time is taken", default=False),
    Flag("timestamped_allocator", bool, "TensorFlow's allocator is used as it is", default=False),
    Flag("trt_max_workspace_size_bytes", int, "only TensorRT reads it, which is not used", default=4 << 30),
    Flag("use_chrome_trace_format", bool, "--trace_file is always in Chrome's format", default=True),
    Flag("use_multi_device_iterator", bool, "see --datasets_prefetch_buffer_size", default=False),
    Flag("use_python32_barrier", bool, "this suite's processes meet by messages", default=False),
    Flag("use_resource_vars", bool, "all variables are resource variables", default=False),
    Flag("use_tf_layers", bool, "models are Keras models", default=True),
)

_BY_STEPS = "checkpoints are saved by steps or seconds. Use --save_model_steps or --save_model_secs"
_BY_VARIABLE = "set the environment variable {}, which the record keeps"
_BACKBONE = "there is no SSD model to have a backbone. Omit it, and use --model=resnet50"
# Rejected, with what to use instead; the default, and other words for it, pass silently.
REPLACED = (
    Flag("autotune_threshold", int, _BY_VARIABLE.format("TF_AUTOTUNE_THRESHOLD"), unset=0),
    Flag("backbone_model_path", str, _BACKBONE, unset=""),
    Flag("benchmark_log_dir", str, "the record goes to --output_dir. Use that", unset=""),
    Flag("checkpoint_every_n_epochs", bool, _BY_STEPS, default=False),
    Flag("checkpoint_interval", float, _BY_STEPS, default=0.0),
    Flag("debugger", str, "there is no debugger. Use --log_device_placement to see where operations run", unset=""),
    Flag("enable_optimizations", bool, "graphs are always optimised, as in training. Omit it", default=True),
    Flag("fp16_vars", bool, "weights are kept in float32. Omit it; --use_fp16 computes in float16", default=False),
    Flag("freeze_when_forward_only", bool, "inference reads variables. Omit it, or use --xla=jit", default=False),
    Flag("input_preprocessor", str, "Use --image_crop, --resize_method and --distortions", default="default"),
    Flag("ml_perf", bool, "each channel gets the mean 0 and the deviation 1 in every run. Omit it", default=False),
    Flag("ml_perf_compliance_logging", bool, "no log of MLPerf is written. Omit it", default=False),
    Flag("result_storage", str, "the record goes to --output_dir. Use that", unset=""),
    Flag("rewriter_config", str, "graphs are optimised as TensorFlow does by default. Omit it", unset=""),
    Flag("save_summaries_secs", int, "summaries follow steps. Use --save_summaries_steps", default=0),
    Flag("tfprof_file", str, "profiles are those of TensorBoard. Use --profile_steps", unset=""),
    Flag("trt_mode", str, "TensorRT is not used. Omit it; --xla=jit compiles the model", unset=""),
    Flag("use_datasets", bool, "tf.data is the only input pipeline. Omit it", default=True),
    Flag("use_numa_affinity", bool, "start the process with `numactl --cpunodebind=N --membind=N`", default=False),
    Flag("use_unified_memory", bool, _BY_VARIABLE.format("TF_FORCE_UNIFIED_MEMORY"), default=False),
    Flag("winograd_nonfused", bool, _BY_VARIABLE.format("TF_ENABLE_WINOGRAD_NONFUSED"), default=True),
)
GONE = (*RENAMED, *ACCEPTED, *REPLACED)
# In a sweep, a value of these is one value, even with commas in it.
SINGLE = ("gpu_indices", *(flag.name for flag in (*ACCEPTED, *REPLACED)))

# Flags of torchvision, timm, Keras, Horovod and the examples of NVIDIA and TensorFlow, by what they are here.
_OF_OTHER_TOOLS = {
    "--model": "a arch network model_name",
    "--model: each has one size of images": (
        "img_size image_size input_size input_shape crop_size train_crop_size train_image_size eval_image_size"
    ),
    "--batch_size, which is per device": (
        "bs global_batch global_batch_size train_batch_size local_batch_size per_gpu_batch_size"
    ),
    "--init_learning_rate": "lr base_lr blr lr_init base_learning_rate",
    "--num_learning_rate_warmup_epochs": "warmup_epochs lr_warmup_epochs",
    "--cosine_decay_epochs, --piecewise_learning_rate_schedule or --num_epochs_per_decay": (
        "use_cosine lr_scheduler lr_sched sched lr_schedule lr_steps lr_decay_epochs decay_epochs"
    ),
    "--weight_decay": "wd",
    "--optimizer": "opt optim",
    "--label_smoothing": "smoothing",
    "--gradient_clip_norm": "clip_grad clip_grad_norm max_grad_norm",
    "--num_epochs": "epochs train_epochs max_epochs",
    "--num_batches, which counts steps": (
        "steps num_steps train_steps max_steps iters num_iters num_iter iterations num_iterations"
    ),
    "--num_warmup_batches for steps that are not measured, --num_learning_rate_warmup_epochs for the rate": (
        "warmup_steps num_warmup warmup_iters num_warm_iter"
    ),
    "--precision": "amp use_amp tf32 use_tf_amp dtype fp16 bf16 half mixed_precision auto_mixed_precision use_fp32",
    "--fp16_loss_scale": "loss_scale static_loss_scale",
    "--fp16_enable_auto_loss_scale": "dynamic_loss_scale use_dynamic_loss_scaling",
    "--data_format": "channels_last memory_format layout image_data_format",
    "--xla": "enable_xla use_xla jit_compile",
    "--variable_update": "distribution_strategy horovod use_horovod strategy",
    "--cluster, as in `mpirun -np N ... --cluster=mpi`: flags of mpirun stand before the program": "np x mca hostfile",
    "--cluster": (
        "world_size local_rank rank dist_url nnodes num_nodes node_rank nproc_per_node master_addr master_port"
    ),
    "--data_dir": "data_path data dataset_dir imagenet_dir",
    "--data_dir, which has both splits": "train_data_dir val_dir valid_dir validation_dir val_data_dir",
    "--data_name": "dataset dataset_name",
    "--data_dir for real images; synthetic is the default": "synthetic use_synthetic_data synthetic_data",
    "--data_split": "split dataset_split_name",
    "--resize_method": "interpolation train_interpolation",
    "--distortions": "color_jitter",
    "--datasets_use_caching": "training_dataset_cache",
    "--datasets_prefetch_buffer_size": "prefetch_factor",
    "--datasets_shuffle_records": "shuffle_buffer shuffle_buffer_size",
    "--datasets_parallel_calls": "j workers num_workers",
    "--train_dir": "model_dir checkpoint_dir ckpt_dir resume",
    "--output_dir": "results_dir",
    "--train_dir for summaries, --output_dir for results": "log_dir logdir",
    "--initial_weights": "pretrained weights pretrained_model_checkpoint_path init_checkpoint fine_tune finetune",
    "--initial_weights to begin with its weights, --train_dir to continue or evaluate it": "checkpoint_path ckpt",
    "--eval": "evaluate eval_only validate",
    "--eval_during_training_every_n_epochs": "epochs_between_evals eval_freq validation_freq",
    "--tf_random_seed": "seed random_seed",
    "--display_every": "print_freq log_interval log_steps",
    "--num_gpus": "ngpus devices n_gpu gpus_per_node",
    "--gpus": "gpu gpu_id",
    "--device": "no_cuda cuda cpu",
    "--num_intra_threads": "num_omp_threads num_threads threads",
}
_HERE = {name: here for here, names in _OF_OTHER_TOOLS.items() for name in names.split()}

_NO_CLASSIFIERS = ("ssd300", "deepspeech2", "ncf")
_INSTEAD = (
    "this suite has classifiers of images only, and none of TensorFlow's model garden: use one of "
    "`explain --list_models`, such as --model=resnet50_v1.5, whose strides are the garden's"
)


def groups_to_parse(groups: Groups) -> Groups:
    """Returns the flags of a verb, and those of this module if it takes the flags of a run."""
    names = {flag.name for group in groups.values() for flag in group}
    if "weight_decay" not in names:
        return groups
    return {**groups, "Of tf_cnn_benchmarks": [flag for flag in GONE if not flag.same_as or flag.same_as in names]}


def instead_of(name: str, known: Collection[str]) -> str:
    """Returns ' Use --...' for a flag of another tool, if one of the `known` flags means that; else nothing."""
    here = _HERE.get(name) or _HERE.get(f"no_{name.removeprefix('no')}", "")
    return f" Use {here}." if here and here.removeprefix("--").split()[0].rstrip(":,") in known else ""


def resolve_peer_flags(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns a sentence on each flag that has no effect any more.

    Raises:
        UsageError: there are flags, or a model, that this suite has replaced.
    """
    refused: dict[str, list[str]] = {}
    for flag in _acting(REPLACED, given):
        refused.setdefault(flag.help, []).append(f"--{flag.name}")
    model = (given["model"] or "").lower()
    if model in _NO_CLASSIFIERS or model.startswith("official_"):
        refused[_INSTEAD] = [f"--model={model}"]
    if refused:
        raise UsageError(" ".join(f"{', '.join(names)}: {instead}." for instead, names in refused.items()))
    return tuple(f"--{flag.name} has no effect: {flag.help}." for flag in _acting(ACCEPTED, given))


def _acting(flags: tuple[Flag, ...], given: Mapping[str, Any]) -> list[Flag]:
    return [flag for flag in flags if given.get(flag.name) not in (None, flag.default)]
