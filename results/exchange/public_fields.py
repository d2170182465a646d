"""Which fields of a record may be published, and in which form: what is not listed here is left out.

Numbers of a listed field are published. Text is published only if each of its words is one of the suite's own, such as
the name of a model or the value of a flag, or has the form of its field, such as a version.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Allowed = Callable[[str], str | None]

# The dotted names of fields whose values are numbers, or words of the suite.
_CONFIG = """
    model num_classes print_training_accuracy batch_per_device data_format precision xla conv1x1_as_matmul
    loss_scaling.initial loss_scaling.increase_every filter_gradients_as_matmul fused_bn onednn model_digest
    batchnorm_persistent force_gpu_compatible
    check_precision forward_only eval_only device num_devices virtual_gpus visible_gpus gpu_memory_fraction
    gpu_allow_growth gpu_memory_limit_mib gpu_thread_mode per_gpu_thread_count num_intra_threads num_inter_threads
    log_device_placement num_workers num_ps num_hosts cluster start_timeout_seconds step_timeout_seconds variable_update
    shared_on modifiers.asynchronous modifiers.staged_vars modifiers.relaxed_consistency modifiers.all_reduce_spec
    modifiers.gradient_repacking modifiers.agg_small_grads_max_bytes modifiers.agg_small_grads_max_group
    modifiers.compact_gradient_transfer modifiers.compact_gradient_dtype modifiers.local_sgd_steps
    modifiers.fc_model_parallel keras_application pipeline.stages
    pipeline.micro_batches data_name data_set pipelined_input input.split input.crop input.fuse_decode_and_crop
    input.decode_scaling input.resize_method input.distortions input.distort_color_in_yiq input.cycle_length
    input.shuffle_records input.parallel_calls input.prefetch_batches input.private_threads input.autotune_cpu_budget
    input.sloppy input.cache input.on_bad_record pauses.eval_every_steps pauses.eval_every_epochs pauses.eval_at_steps
    pauses.eval_at_epochs pauses.save_model_steps pauses.save_model_secs pauses.save_summaries_steps
    optimizer learning_rate schedule.initial schedule.warmup_epochs
    schedule.boundaries schedule.rates schedule.epochs_per_decay schedule.decay_factor schedule.cosine_epochs
    schedule.minimum momentum hyperparameters.rmsprop_decay hyperparameters.rmsprop_momentum
    hyperparameters.rmsprop_epsilon hyperparameters.adam_beta1 hyperparameters.adam_beta2 hyperparameters.adam_epsilon
    lars_trust_coefficient clipping.value clipping.norm weight_decay weight_decay_on label_smoothing seed deterministic
    num_batches num_epochs num_warmup_batches time_limit_seconds display_every loss_type_to_report
"""
_ENVIRONMENT = (
    "cpu_cores_usable memory_gib load_1min_before steps_per_turn slowed_down_by tensorflow_build.is_cuda_build"
)
_MODEL = "image_size parameters gflop_per_image"
_PLACEMENT = """
    sent_per_step.read_bytes sent_per_step.gradient_bytes sent_per_step.weight_bytes sent_per_step.activation_bytes
    sent_per_step.busiest_ps_bytes sent_per_step.total_bytes flops_per_image bytes_per_image variables weights
"""
_VERSIONS = """
    python_version tensorflow_version keras_version numpy_version cuda_version cudnn_version nccl_version
    tensorflow_git_version gpu_driver_version tensorflow_build.cuda_version tensorflow_build.cudnn_version
"""
# Of the recorded variables, those whose values are numbers and switches. Others name hosts, networks, files or devices.
_VARIABLES = """
    TF_ENABLE_ONEDNN_OPTS TF_DISABLE_MKL TF_ENABLE_MKL_NATIVE_FORMAT TF_SET_ONEDNN_FPMATH_MODE
    TF_NUM_INTEROP_THREADS TF_NUM_INTRAOP_THREADS TF_DETERMINISTIC_OPS KERAS_BACKEND TF_CPP_MIN_LOG_LEVEL
    TF_GPU_ALLOCATOR TF_GPU_THREAD_MODE TF_GPU_THREAD_COUNT TF_FORCE_GPU_ALLOW_GROWTH TF_CUDNN_DETERMINISTIC
    TF_CUDNN_USE_AUTOTUNE TF_CUDNN_USE_FRONTEND TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT
    TF_ENABLE_WINOGRAD_NONFUSED NVIDIA_TF32_OVERRIDE CUDA_VISIBLE_DEVICES
    CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_DEVICE_MAX_CONNECTIONS CUDA_MODULE_LOADING NCCL_ALGO NCCL_PROTO
    NCCL_BUFFSIZE NCCL_NTHREADS NCCL_P2P_DISABLE NCCL_SHM_DISABLE NCCL_IB_DISABLE NCCL_NVLS_ENABLE OMP_NUM_THREADS
    OMP_DYNAMIC OMP_PROC_BIND KMP_BLOCKTIME OPENBLAS_NUM_THREADS MKL_NUM_THREADS ONEDNN_MAX_CPU_ISA
    ONEDNN_DEFAULT_FPMATH_MODE MALLOC_ARENA_MAX MALLOC_MMAP_MAX_ MALLOC_TRIM_THRESHOLD_ MALLOC_TOP_PAD_
    TF_SYNC_ON_FINISH
"""
PLAIN = frozenset(
    f"{part}.{name}"
    for part, names in (
        ("config", _CONFIG),
        ("environment", _ENVIRONMENT),
        ("model", _MODEL),
        ("placement", _PLACEMENT),
    )
    for name in names.split()
) | {f"environment.variables.{name}" for name in _VARIABLES.split()}

# Words of records besides the names of flags' values.
WORDS = frozenset(
    """
    own model keras tensorflow PCI_BUS_ID FASTEST_FIRST LAZY EAGER cuda_malloc_async GPU CPU only package BF16 F32 ANY
    STRICT Ring Tree CollnetDirect CollnetChain NVLS LL LL128 Simple AVX2 AVX512_CORE AVX512_CORE_BF16
    AVX512_CORE_AMX close spread master records one_record none fail skip TRUE FALSE
    """.split()
)
# The keys that mappings in a measurement may have.
KEYS = frozenset(
    """
    Python TensorFlow cluster graph variables read parse decode augment batch copy capacity at_start at_end least
    fill_seconds share_half_full step epochs images top_1_accuracy top_5_accuracy loss seconds window_seconds samples
    sampling_cpu_share cpu_cores_used cpu_cores_used_by_others resident_bytes min mean max cpu_package_joules gpus index
    uuid clock_mhz temperature_celsius busy_share power_watts clock_mhz_by_half slowed_shares peak_memory_bytes
    energy_joules energy_of mean_watts
    """.split()
) | {"power limit", "heat (hardware)", "heat (driver)", "power brake", "hardware slowdown", "bare decode"}

# What a warning is published as, by words that only it has. A published warning says nothing of the machine's names.
WARNINGS = {
    "on purpose": "Steps were delayed on purpose: this does not measure this build.",
    "Other processes used": "Other processes used cores during the measurement.",
    "was busy before the run": "The machine was busy before the run.",
    "logical CPU devices share": "More logical CPU devices share the cores than there are cores.",
    "too few for an interval": "Only a few steps were measured, too few for an interval.",
    "The steps are unsteady": "The steps are unsteady.",
    "The second half of the steps": "The second half of the steps took another time than the first.",
    "was throttled by": "A GPU was throttled by something else than its power limit.",
    "The clock of": "The clock of a GPU fell during the measurement.",
    "x as long as the others": "A tower or worker takes x as long as the others.",
    "measured steps updated nothing": "Some measured steps updated nothing: gradients overflowed in float16.",
    "bad records were skipped": "Some bad records were skipped.",
    "The loss rose from": "The loss rose from its first value: the model does not learn.",
    "was started again": "The cluster was started again after a task had died.",
}
OTHER_WARNING = "A warning was left out."

_VERSION = re.compile(
    r"v?\d+(\.\d+){0,2}([.-]?(rc|dev|post|a|b)\d++)*+(-\d+-g[0-9a-f]{7,40})?(\+(nv|cu|cpu|rocm)[\d.]{0,8})?", re.ASCII
)
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?[kKmMgG]?", re.ASCII)
_HEX = re.compile(r"[0-9a-f]{8,64}")
_SYSTEM = re.compile(
    r"(Linux-\d++(?:\.\d++)*+)[^ /]{0,80}?-(x86_64|aarch64|ppc64le)[^ /]{0,80}?(-with-glibc\d+\.\d+)", re.ASCII
)
_KERAS = re.compile(r"keras:[A-Z]\w{0,40}", re.ASCII)
# A word of the name of a CPU or GPU: a maker, a series, or a model number, which has digits and few small letters.
_HARDWARE_WORDS = frozenset(
    """
    intel amd nvidia arm ampere apple ibm qualcomm google amazon aws r tm xeon epyc ryzen core threadripper opteron atom
    pentium celeron platinum gold silver bronze max ultra pro processor cpu gpu common kvm qemu virtual version model
    name cascadelake skylake icelake haswell broadwell sapphirerapids genoa milan rome turin graviton neoverse cortex
    altra axion grace hopper cobalt power tesla geforce quadro rtx gtx titan ti super laptop mobile generation ada
    blackwell superchip pcie pci sxm sxm2 sxm3 sxm4 sxm5 nvl mig hbm2 hbm3 hbm2e hbm3e oam dgx hgx instinct radeon mi
    ghz mhz gib gb mib mb w with graphics x86_64 aarch64 eight quad six dual duo cores v gen genuine ai hx me server
    workstation edition q xp sff grid jetson agx xavier orin thor nano nx nvgpu power8 power9 power10 cooperlake
    denverton nehalem westmere sandybridge ivybridge ibrs ibpb tsx no
    """.split()
)
_MODEL_NUMBER = re.compile(
    r"[A-Z]{0,3}\d{1,5}[A-Z]{0,3}\d{0,2}|[ivx]\d{1,2}|[VNXEAML]\d?|\d+(\.\d+)?(ghz|gb|gib|g|c|k)?|\d{1,2}th"
    r"|\d+g\.\d+gb"  # a part of a GPU
)


def is_plain(text: str, words: frozenset[str]) -> bool:
    """Returns whether all of a text's words are in `words`, or are numbers."""
    if text in words:
        return True
    found = [word for word in re.split(r"[\s,;:#=/()]+", text) if word]
    has_path = text.startswith(("/", "~", ".")) or "//" in text
    return not has_path and all(word in words or _NUMBER.fullmatch(word) for word in found)


def is_hardware(text: str) -> bool:
    """Returns whether a text is the name of a CPU or GPU, and nothing else."""
    words = [word for word in re.split(r"[\s,()@/®™+-]+", text) if word]
    known = [word.lower() in _HARDWARE_WORDS for word in words]
    model_numbers = (_MODEL_NUMBER.fullmatch(word) or _MODEL_NUMBER.fullmatch(word.lower()) for word in words)
    return any(known) and all(k or number for k, number in zip(known, model_numbers, strict=True))


def version(text: str) -> str | None:
    """Returns a version, or None if the text is not only one."""
    return text if _VERSION.fullmatch(text) else None


def cudnn_version(text: str) -> str | None:
    """Returns a version of cuDNN, which has a fourth number; its first is 6 to 9, as of no private address."""
    return text if re.fullmatch(r"[6-9](\.\d{1,3}){0,3}", text, re.ASCII) else None


def operating_system(text: str) -> str | None:
    """Returns kernel, processor and C library, without what a builder of the kernel may have named."""
    found = _SYSTEM.fullmatch(text)
    return "".join((found[1], "-", found[2], found[3])) if found else None


def digest(text: str) -> str | None:
    """Returns a hexadecimal digest, or None if the text is not one."""
    return text if _HEX.fullmatch(text) else None


def is_keras_model(text: str) -> bool:
    """Returns whether a text has the form of a model of `keras.applications`."""
    return _KERAS.fullmatch(text) is not None


def warning(text: str) -> str:
    """Returns what a warning is published as."""
    return next((public for words, public in WARNINGS.items() if words in text), OTHER_WARNING)


FORMS: dict[str, Allowed] = {
    **{f"environment.{name}": version for name in _VERSIONS.split()},
    "environment.cudnn_version": cudnn_version,
    "environment.tensorflow_build.cudnn_version": cudnn_version,
    "environment.cpu_model": lambda text: text if is_hardware(text) else None,
    "environment.gpus": lambda text: text if is_hardware(text) else None,
    "environment.operating_system": operating_system,
    "config.model_digest": digest,
}
