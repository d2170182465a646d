"""All rules on flags of a run that involve more than one flag. Their kinds and terms are explained in `rules`."""

from __future__ import annotations

from benchmarks.callbacks.options import WHEN_TO_EVALUATE, Summaries
from benchmarks.config.rules import Excludes, Needs, NoEffect, Rule
from benchmarks.data.options import INPUT_FLAGS
from benchmarks.option import flags_of
from benchmarks.tracing.options import Traces
from benchmarks.training.options import SCHEDULE_FLAGS, Training
from variable_mgr.catalog import IN_GRAPH, MANAGERS, PYTORCH_LOOPS, REFERENCE_LOOPS

_LOOPS = f"variable_update={'|'.join(REFERENCE_LOOPS)}"
_DDP = "pytorch_ddp"
_IN_PYTORCH = f"variable_update={'|'.join(PYTORCH_LOOPS)}"
_IN_KERAS = f"variable_update={'|'.join(name for name in REFERENCE_LOOPS if name not in PYTORCH_LOOPS)}"
_NO_LOOP = "Leave it out, or use --variable_update=replicated."
_OWN_CLIENTS = f"variable_update!={'|'.join(IN_GRAPH)}"
_UNLIKE_UPDATES = "variable_update=" + "|".join(
    name for name, entry in MANAGERS.items() if not entry.exchanges_gradients
)
_DECAYS = ("resnet_base_lr", "piecewise_learning_rate_schedule", "num_epochs_per_decay", "cosine_decay_epochs")
_UPDATES = " ".join(
    flag.name for flag in (*SCHEDULE_FLAGS, *flags_of(Training)) if flag.name not in ("tf_random_seed", "deterministic")
)
# What reference loops read of it; of what is added to the others, they know nothing.
_IN_LOOPS = "optimizer momentum weight_decay weight_decay_on init_learning_rate"
_NOT_IN_LOOPS = [f"~{name}" for name in _UPDATES.split() if name not in _IN_LOOPS.split()]
_SCALING = "fp16_loss_scale fp16_enable_auto_loss_scale fp16_inc_loss_scale_every_n"
_CHECKPOINTS = "train_dir initial_weights save_model_steps save_model_secs"
_EVALUATIONS = " ".join(WHEN_TO_EVALUATE)
_SUMMARIES = " ".join(flag.name for flag in (*flags_of(Summaries), *flags_of(Traces)))
_ABOUT_TOWERS = (
    "nocross_replica_sync variable_consistency=relaxed staged_vars all_reduce_spec gradient_repacking "
    "agg_small_grads_max_bytes compact_gradient_transfer local_sgd_steps fc_model_parallel"
)
_ASYNCHRONOUS = "nocross_replica_sync"
_INPUT = " ".join(f"~{flag.name}" for flag in INPUT_FLAGS).replace("~image_crop", "image_crop=central")
# These also act on batches that are made on the host, not read.
_HOST_BATCHES = ("~datasets_prefetch_buffer_size", "~datasets_use_prefetch", "~datasets_num_private_threads")

_WITHOUT_EFFECT: tuple[Rule, ...] = (
    NoEffect(
        "allow_growth batchnorm_persistent force_gpu_compatible gpu_thread_mode per_gpu_thread_count",
        "@cpu",
        "it is about GPUs, and this run uses none",
    ),
    NoEffect(
        "local_parameter_device",
        "@no_shared_devices",
        "no variables are shared within a process, and no gradients are averaged by copies",
    ),
    NoEffect(_UPDATES, "forward_only", "--forward_only updates nothing"),
    NoEffect(
        "num_batches num_epochs num_warmup_batches print_training_accuracy save_model_steps save_model_secs "
        f"max_ckpts_to_keep stop_at_top_1_accuracy distortions distort_color_in_yiq {_EVALUATIONS} {_SCALING} "
        f"{_UPDATES}",
        "eval",
        "--eval trains nothing, and takes every image of the validation set once",
    ),
    NoEffect("max_ckpts_to_keep", "!train_dir", "only checkpoints in --train_dir are counted"),
    NoEffect(
        "summary_verbosity save_summaries_steps",
        "!train_dir !summary_verbosity !save_summaries_steps",
        "summaries take --train_dir, --summary_verbosity and --save_summaries_steps",
    ),
    NoEffect("momentum", "optimizer!=momentum|nesterov|lars", "only --optimizer=momentum, nesterov and lars read it"),
    NoEffect("lars_trust_coefficient", "optimizer!=lars", "only --optimizer=lars reads it"),
    NoEffect("weight_decay_on", "weight_decay=0", "--weight_decay=0 acts on nothing"),
    NoEffect(
        "rmsprop_decay rmsprop_momentum rmsprop_epsilon", "optimizer!=rmsprop", "only --optimizer=rmsprop reads it"
    ),
    NoEffect("adam_beta1 adam_beta2 adam_epsilon", "optimizer!=adam", "only --optimizer=adam reads it"),
)

_OF_DEVICES: tuple[Rule, ...] = (
    Excludes(
        "~gpus ~gpu_memory_frac ~gpu_memory_limit_mb virtual_gpus!=1|auto",
        "@cpu",
        "it is about GPUs",
        instead="Leave it out: --device=cpu is given, or this machine shows no NVIDIA GPU.",
    ),
    Excludes("onednn", "@gpu", "it chooses kernels of CPUs"),
    Excludes("gpu_memory_limit_mb", "gpu_memory_frac", "both limit a GPU's memory"),
    Needs("server_port", "hosts cluster", "elsewhere every address has its port"),
    Needs("ssh", "hosts", "these are the hosts to start workers on"),
    Needs("max_restarts", "local_cluster hosts", "it is about tasks that this command starts"),
    Needs("noprivate_network", "local_cluster", "only its tasks have such a network"),
    Excludes(
        "@controller",
        _OWN_CLIENTS,
        "there every worker is its own client",
        instead="Use --variable_update=distributed_all_reduce, or in_graph_parameter_server with parameter servers.",
    ),
)

_OF_ARITHMETIC: tuple[Rule, ...] = (
    Excludes("conv1x1_as_matmul", "@no_conv1x1", "there is nothing to compute as matrix products"),
    Excludes("filter_gradients_as_matmul", "@no_larger_convolutions forward_only", "there are no such gradients"),
    Excludes("nofused_bn", "@no_batch_norm", "there is nothing to fuse"),
    Excludes(
        "fused_bn",
        "xla=jit",
        "TensorFlow then merges it with the ReLU behind it as on CPUs, and XLA computes wrong gradients for GPUs",
        when="@gpu !forward_only !eval",
    ),
    Excludes("conv1x1_as_matmul filter_gradients_as_matmul", "@nchw", "it needs channels last (--data_format=NHWC)"),
    Excludes("data_format=NCHW", "@nhwc_only", "channels are its last dimension"),
    Excludes("fc_model_parallel", "precision=bf16|fp16", "layers that it divides compute in fp32"),
    Excludes("xla=jit", "fc_model_parallel", "XLA compiles each tower alone, and the other connects them"),
    Excludes("precision=tf32", "xla=jit", "on CPUs it is a mode of oneDNN, which XLA does not use", when="@cpu"),
    Excludes(
        "compact_gradient_transfer",
        "precision=fp16",
        "it sends gradients unscaled, and in float16 small ones vanish",
        when="compact_gradient_dtype=float16",
        instead="Use --compact_gradient_dtype=bfloat16, or, under NCCL, which has none, leave it out.",
    ),
    Excludes(
        _SCALING,
        "precision!=fp16 forward_only",
        "only gradients in float16 are scaled",
        instead="Use --precision=fp16 and train, or leave it out.",
    ),
    Needs("fp16_inc_loss_scale_every_n", "fp16_enable_auto_loss_scale", "only a dynamic scale is increased"),
    Excludes(
        "fp16_enable_auto_loss_scale",
        f"{_UNLIKE_UPDATES} {_ASYNCHRONOUS} staged_vars variable_update=staged variable_consistency=relaxed",
        "when a gradient overflows, all towers must skip the same update, and before the next step",
        instead="Give a fixed --fp16_loss_scale, or leave out the other.",
    ),
    Excludes(
        "check_precision",
        "@fp32",
        "it compares another precision, or XLA, with fp32 without XLA",
        when="xla!=jit",
        instead="Use --precision=bf16, fp16 or tf32, or --xla.",
    ),
    Excludes(
        "check_precision",
        f"forward_only {_ASYNCHRONOUS} @cluster datasets_sloppy_parallel_interleave",
        "it trains twice in this process, on the same images, and compares the losses of all towers together",
    ),
    Excludes(_CHECKPOINTS, "check_precision", "the check trains again from the start"),
)

_OF_VARIABLES: tuple[Rule, ...] = (
    Needs("compact_gradient_dtype", "compact_gradient_transfer", "it is the type in which gradients are sent"),
    Excludes("nostaged_vars", "variable_update=staged", "staged is parameter_server with it"),
    Excludes(
        f"{_ABOUT_TOWERS} variable_update=staged", "forward_only", "no gradients are computed, and nothing is updated"
    ),
    Needs("micro_batches", "pipeline_stages", "it divides the images of a pipeline"),
    Excludes("pipeline_stages", "@cluster", "a pipeline works in one process only"),
    Excludes(
        "pipeline_stages",
        "variable_update!=parameter_server",
        "a pipeline has one copy of each variable, on the device of its stage, as under parameter_server",
    ),
    Excludes(
        f"{_ABOUT_TOWERS} local_parameter_device",
        "pipeline_stages",
        "it is about several towers, and a pipeline is one over all devices",
    ),
    Excludes("xla=jit forward_only", "pipeline_stages", "a pipeline only trains, and XLA does not compile its stages"),
    Excludes("deterministic", _ASYNCHRONOUS, "asynchronous towers update in any order"),
    Excludes("deterministic", "datasets_sloppy_parallel_interleave", "images must not come in any order"),
)

_NOT_UNDER_LOOPS = {
    "optimizer!=sgd|momentum": "it updates by sgd or momentum",
    "data_dir data_name=synthetic_host forward_only print_training_accuracy": (
        "it trains on synthetic images that are on the devices, and reports the loss only"
    ),
    "local_parameter_device log_device_placement use_nccl": (
        "it decides by itself where variables, operations and gradients are, and how they are reduced"
    ),
    f"{_CHECKPOINTS} {_EVALUATIONS} {_SUMMARIES} eval": "it is measured as it is, with nothing between its steps",
}
_NOT_IN_KERAS = {
    "weight_decay_on!=kernels": "it decays kernels",
    "nofused_bn": "it has Keras' batch normalisation",
    " ".join(_NOT_IN_LOOPS): "it trains at a constant rate, on plain labels, without limits of gradients",
    "precision=fp16 xla=jit check_precision conv1x1_as_matmul filter_gradients_as_matmul": (
        "it trains once, with Keras' convolutions, without XLA and without scaling the loss"
    ),
}
_NOT_IN_PYTORCH = {
    " ".join(term for term in _NOT_IN_LOOPS if term != "~label_smoothing"): (
        "it trains at a constant rate, without limits of gradients"
    ),
    "nofused_bn xla=jit check_precision conv1x1_as_matmul filter_gradients_as_matmul deterministic": (
        "it trains once, with the kernels that PyTorch chooses"
    ),
}
_OF_REFERENCE_LOOPS: tuple[Rule, ...] = (
    Excludes(
        "keras_application",
        "variable_update!=keras_fit @not_resnet50",
        "it trains Keras' own ResNet-50 with Keras' fit",
        instead="Use --variable_update=keras_fit --model=resnet50, or leave it out.",
    ),
    Excludes(
        "@cluster",
        _LOOPS.removesuffix(f"|{_DDP}"),
        "it works in one process only",
        instead=f"Leave out the cluster, or use --variable_update=collective_all_reduce or {_DDP}.",
    ),
    Excludes(
        f"variable_update={_DDP}",
        "@alone @servers",
        "its processes exchange gradients, each as a worker",
        instead="Use --local_cluster=worker:2 or workers on several hosts; --variable_update=pytorch for one process.",
    ),
    Excludes(
        "torch_compile",
        _IN_PYTORCH.replace("=", "!=", 1),
        "it compiles a model in PyTorch",
        instead="Use --variable_update=pytorch, or --xla=jit for the other loops.",
    ),
    *(
        Excludes(flags, loops, because, instead=_NO_LOOP)
        for loops, table in ((_LOOPS, _NOT_UNDER_LOOPS), (_IN_KERAS, _NOT_IN_KERAS), (_IN_PYTORCH, _NOT_IN_PYTORCH))
        for flags, because in table.items()
    ),
    Excludes(
        "@several_devices",
        _IN_PYTORCH,
        "it trains on one device",
        instead=f"Use --num_gpus=1, and {_DDP} with a worker for each device.",
    ),
    Excludes(
        "precision=tf32", _IN_PYTORCH, "on CPUs it is a mode of oneDNN in TensorFlow", when="@cpu", instead=_NO_LOOP
    ),
    Excludes(
        "allow_growth gpu_memory_frac gpu_memory_limit_mb gpu_thread_mode per_gpu_thread_count nobatchnorm_persistent "
        "virtual_gpus!=1|auto",
        _IN_PYTORCH,
        "it is about TensorFlow on GPUs",
        when="@gpu",
        instead=_NO_LOOP,
    ),
    Excludes("onednn", _IN_PYTORCH, "it is about TensorFlow's kernels", instead=_NO_LOOP),
    Excludes(
        "force_gpu_compatible", _LOOPS, "it decides by itself which memory is pinned", when="@gpu", instead=_NO_LOOP
    ),
)

_BETWEEN_STEPS: tuple[Rule, ...] = (
    Needs("max_restarts save_model_steps save_model_secs", "train_dir", "checkpoints are saved there"),
    Excludes(
        f"save_model_steps save_model_secs {_EVALUATIONS} summary_verbosity",
        "forward_only",
        "nothing is trained that could be saved, evaluated or summarised",
    ),
    Excludes(
        f"save_model_steps save_model_secs {_EVALUATIONS} summary_verbosity profile_steps",
        _ASYNCHRONOUS,
        "asynchronous towers never pause",
        instead="Leave it out: --train_dir saves a checkpoint at the end, for --eval, and --trace_file traces a step.",
    ),
    Excludes(
        "save_model_secs",
        _OWN_CLIENTS,
        "the workers save at a common step",
        when="@workers",
        instead="Use --save_model_steps.",
    ),
    Needs("eval", "train_dir", "it evaluates a checkpoint of the directory of a training"),
    Needs(f"{_EVALUATIONS} eval", "data_dir", "synthetic images have no validation set"),
    Excludes("eval", "forward_only", "it only evaluates a checkpoint"),
    Excludes(
        "eval",
        "@cluster",
        "an evaluation takes one process, which can have several devices",
        instead="Leave out the cluster: its checkpoints are like those of one process.",
    ),
    Excludes("eval", "pipeline_stages fc_model_parallel", "each device gets the whole model"),
    Needs("stop_at_top_1_accuracy", _EVALUATIONS, "it is about the result of an evaluation"),
    Needs("eval_batch_size", f"{_EVALUATIONS} eval", "it is about an evaluation"),
    Excludes(
        "summary_verbosity=2|3",
        "save_summaries_steps=1",
        "steps with histograms of gradients are not measured, and those would be all",
        instead="Pass --save_summaries_steps=2 or more, or --summary_verbosity=1.",
    ),
)

_OF_IMAGES: tuple[Rule, ...] = (
    Excludes(
        "pipelined_input",
        "@synthetic",
        "it copies images to the devices, where these already are",
        instead="Give --data_dir, or leave it out.",
    ),
    Excludes(_INPUT, "@synthetic", "it is about images that are read", instead="Give --data_dir, or leave it out."),
    Excludes(
        " ".join(flag for flag in _INPUT.split() if flag not in _HOST_BATCHES),
        "@synthetic_host",
        "it is about images that are read",
        instead="Leave it out, or give --data_dir and no --data_name.",
    ),
    Excludes(
        "~fuse_decode_and_crop ~decode_scaling ~resize_method ~distortions ~distort_color_in_yiq "
        "~datasets_parallel_interleave_cycle_length ~datasets_shuffle_records ~datasets_sloppy_parallel_interleave "
        "~datasets_use_caching ~on_bad_record",
        "@small_images",
        "it is about photos",
    ),
    Excludes("image_crop=central", "@mnist", "digits are not cropped"),
    Excludes(
        "datasets_use_caching", "datasets_repeat_cached_sample", "one keeps all records and the other a single one"
    ),
    Excludes("datasets_prefetch_buffer_size", "nodatasets_use_prefetch", "nothing is prefetched"),
    Needs("nodistort_color_in_yiq", "distortions", "it is how colours are distorted"),
    Excludes("distortions", "image_crop=central", "distortions are for training"),
    Excludes(
        "distortions",
        "forward_only",
        "distortions are for training",
        when="image_crop!=distorted",
        instead="Give --image_crop=distorted as well, or leave it out.",
    ),
    Excludes("decode_scaling", "nofuse_decode_and_crop", "only the part that is kept is scaled"),
    Needs("datasets_autotune_cpu_budget", "datasets_parallel_calls=-1", "it limits what tf.data chooses"),
    Excludes(
        "on_bad_record=skip",
        "datasets_sloppy_parallel_interleave datasets_use_caching datasets_repeat_cached_sample",
        "records are counted as they are read, once each and in a fixed order",
    ),
)

_OF_THE_RATE: tuple[Rule, ...] = (
    *(
        Excludes(decay, " ".join(_DECAYS[number + 1 :]), "both lower the learning rate")
        for number, decay in enumerate(_DECAYS[:-1])
    ),
    Needs("num_epochs_per_decay", "learning_rate_decay_factor", "it multiplies the rate"),
    Needs("learning_rate_decay_factor", "num_epochs_per_decay", "it says when the rate changes"),
    Needs(
        "minimum_learning_rate", "num_epochs_per_decay cosine_decay_epochs", "it limits how far these lower the rate"
    ),
    Excludes("init_learning_rate", "piecewise_learning_rate_schedule resnet_base_lr", "both set the learning rate"),
    Excludes(
        "resnet_base_lr",
        f"@no_resnet {_ASYNCHRONOUS} num_learning_rate_warmup_epochs",
        "it is the schedule of ResNets on ImageNet by images of a whole step, with its own warm-up",
    ),
    Excludes(
        "optimizer=lars gradient_clip_norm",
        "fc_model_parallel",
        "it needs the norm of whole gradients, and the other divides some",
    ),
)

RULES: tuple[Rule, ...] = (
    *_WITHOUT_EFFECT,
    Excludes("num_batches", "num_epochs", "both set the length of the measurement"),
    *_OF_DEVICES,
    *_OF_REFERENCE_LOOPS,
    *_OF_VARIABLES,
    *_OF_ARITHMETIC,
    *_OF_IMAGES,
    *_OF_THE_RATE,
    *_BETWEEN_STEPS,
)
