"""What GPUs would compute of the suite's graphs. No GPU is needed: see `tests.benchmarks.run.gpu_graphs`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from tests.benchmarks.run import gpu_graphs, gpu_worker
from tests.support.models import representatives
from tests.support.rotation import rotating
from variable_mgr.catalog import IN_ONE_PROCESS
from variable_mgr.reductions.algorithm_catalog import ALGORITHMS

pytestmark = pytest.mark.xdist_group("gpu_graphs")

_HOSTS = ("--worker_hosts=h0:1,h1:1", "--job_name=worker", "--task_index=0")
_SERVERS = ("--ps_hosts=h0:2,h1:2",)


def _assert_runs_on_gpus(*words: str) -> None:
    made = gpu_graphs.build("--batch_size=128", *words).graph
    assert gpu_graphs.without_kernel(made) == set()
    assert gpu_graphs.large_on_hosts(made) == set()


def test_what_has_no_kernel_or_is_on_the_host_is_found() -> None:
    with tf.Graph().as_default() as made, tf.device("/gpu:0"):
        tf.timestamp()
        tf.reduce_sum(tf.compat.v1.placeholder(tf.int32, (1024,), name="numbers"))
    assert gpu_graphs.without_kernel(made) == {"Timestamp[]"}
    assert gpu_graphs.large_on_hosts(made) == {"Sum[int32]: 4096 bytes of numbers:0"}


def _cells() -> Iterator[Any]:
    """Yields a model of each kind at each precision, the smallest models first."""
    smallest_first = [spec.name for spec in sorted(representatives(), key=lambda spec: spec.gflop_per_image)]
    for name, precision in itertools.product((*smallest_first, "nasnet_cifar10"), ("fp32", "bf16", "fp16")):
        yield pytest.param(name, precision, marks=pytest.mark.seldom if name == "nasnet_cifar10" else ())


@rotating(("model", "precision"), _cells(), first=6)
def test_every_operation_of_a_model_has_a_kernel_for_gpus(model: str, precision: str) -> None:
    _assert_runs_on_gpus(f"--model={model}", f"--precision={precision}", "--variable_update=replicated")


@rotating(
    "words",
    [
        ["--print_training_accuracy", "--label_smoothing=0.1"],
        ["--data_name=synthetic_host", "--data_format=NHWC", "--variable_update=replicated"],
        *([f"--variable_update={manager}"] for manager in IN_ONE_PROCESS),
        *(["--variable_update=replicated", "--num_gpus=4", f"--all_reduce_spec={spec}"] for spec in ALGORITHMS),
        ["--variable_update=replicated", "--variable_consistency=relaxed", "--gradient_repacking=4"],
        ["--variable_update=replicated", "--compact_gradient_transfer", "--compact_gradient_dtype=bfloat16"],
        ["--variable_update=parameter_server", "--staged_vars"],
        ["--variable_update=parameter_server", "--nocross_replica_sync", "--local_parameter_device=cpu"],
        ["--variable_update=local_sgd", "--local_parameter_device=cpu"],
        ["--precision=fp16", "--fp16_enable_auto_loss_scale", "--gradient_clip=1", "--gradient_clip_norm=1"],
        ["--forward_only", "--print_training_accuracy", "--data_name=synthetic_host", "--nopipelined_input"],
        ["--nofused_bn", "--deterministic"],
        *([f"--optimizer={rule}"] for rule in ("momentum", "nesterov", "rmsprop", "adam", "lars")),
        ["--variable_update=collective_all_reduce", *_HOSTS],
        ["--variable_update=local_sgd", *_HOSTS],
        ["--variable_update=distributed_all_reduce", "--all_reduce_spec=nccl/xring", *_HOSTS],
        ["--variable_update=parameter_server", *_HOSTS, *_SERVERS],
        ["--variable_update=distributed_replicated", *_HOSTS, *_SERVERS],
        ["--variable_update=in_graph_parameter_server", *_HOSTS, *_SERVERS],
    ],
    first=2,
    ids=" ".join,
)
def test_every_operation_of_a_mode_has_a_kernel_for_gpus(words: list[str]) -> None:
    _assert_runs_on_gpus("--model=resnet20", "--num_gpus=2", *words)


@rotating(
    ("model", "precision", "layout"),
    [
        ("resnet20", "fp16", "NCHW"),
        ("resnet20", "fp32", "NHWC"),
        ("mobilenet", "fp32", "NCHW"),
        ("mobilenet", "fp16", "NCHW"),
        ("resnet50", "bf16", "NHWC"),
        ("resnet50", "fp16", "NCHW"),
        ("efficientnetv2_s", "fp16", "NCHW"),
        ("densenet40_k12", "bf16", "NCHW"),
        ("inception3", "fp32", "NHWC"),
        ("convnext_tiny", "fp32", "NHWC"),
        pytest.param("nasnet_cifar10", "fp32", "NCHW", marks=pytest.mark.seldom),
        ("keras:Xception", "fp16", "NCHW"),
    ],
    first=2,
)
def test_convolutions_run_in_the_layout_of_the_record(model: str, precision: str, layout: str) -> None:
    built = gpu_graphs.build(
        f"--model={model}", f"--precision={precision}", f"--data_format={layout}", "--batch_size=8"
    )
    optimised = gpu_graphs.optimised(built)
    assert set(gpu_graphs.layouts(optimised)) == {built.config.workload.data_format} == {layout}
    assert gpu_graphs.transposes(optimised) == 0


@pytest.mark.slow
def test_no_activation_is_copied_to_the_host_where_memory_is_short() -> None:
    built = gpu_graphs.build("--model=resnet50", "--batch_size=256", "--precision=fp32")
    operations = {node.op for node in gpu_graphs.optimised(built, memory_gib=8).node}
    assert "Conv2D" in operations and not any(name.startswith("_CopyFrom") for name in operations)


def test_nothing_that_xla_compiles_for_gpus_is_merged_for_onednn() -> None:
    """Gradients of `_FusedBatchNormEx` are wrong on GPUs. Only where TensorFlow uses oneDNN would it be merged."""
    optimised = gpu_graphs.optimised(gpu_graphs.build("--model=resnet20", "--xla", "--batch_size=8"))
    compiled = [node.op for function in optimised.library.function for node in function.node_def]
    assert compiled.count("Relu") > 10 and not [name for name in compiled if name.startswith(("_Fused", "_Mkl"))]


@pytest.fixture(scope="module")
def worker() -> Iterator[gpu_worker.GpuWorker]:
    with gpu_worker.started() as made:
        yield made


# Of ResNet-20 on 4 GPUs: 59 weights or gradients travel to one GPU and back; so does the condition of local_sgd.
_SENT = {"independent": 0, "collective_all_reduce": 0, "replicated": 354, "local_sgd": 357, "parameter_server": 506}


@pytest.mark.slow
@rotating(
    ("words", "sent"),
    [
        *(([f"--variable_update={manager}"], _SENT[manager]) for manager in IN_ONE_PROCESS),
        (["--variable_update=replicated", "--all_reduce_spec=nccl"], 0),
        (["--variable_update=parameter_server", "--staged_vars"], 506),
        # 9 more of each other GPU, such as the scale, and whether its gradients are finite; not one of each gradient.
        (["--variable_update=replicated", "--precision=fp16", "--fp16_enable_auto_loss_scale"], 381),
        (["--variable_update=parameter_server", "--nocross_replica_sync"], 506),
    ],
    first=2,
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_tensorflow_places_a_graph_strictly_and_sends_no_more(
    worker: gpu_worker.GpuWorker, words: list[str], sent: int
) -> None:
    assert worker.place(gpu_graphs.build("--model=resnet20", "--num_gpus=4", *words)) == sent
