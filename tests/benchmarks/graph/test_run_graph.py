from __future__ import annotations

import collections

import pytest
import tensorflow as tf

from benchmarks.graph import run_graph
from tests.support.rotation import rotating
from tests.support.settings import resolve


@rotating(
    ("words", "kernels", "products"),
    [
        # Of 19 convolutions 2 have strides; the shortcuts are no convolutions. The last layer has two gradients.
        (["--model=resnet20"], 19, 3),
        (["--model=resnet20", "--filter_gradients_as_matmul"], 2, 3 + 3 * 17),
        # 36 of 53 look at one pixel, one of the others has strides.
        (["--model=resnet50", "--conv1x1_as_matmul"], 17, 3 + 3 * 36),
        (["--model=resnet50"], 53, 3),
        (["--model=resnet50", "--filter_gradients_as_matmul"], 37, 3 + 3 * 16),
    ],
    first=2,
)
def test_flags_decide_what_convolutions_are_computed_as(words: list[str], kernels: int, products: int) -> None:
    chosen = resolve("--device=cpu", *words)
    with tf.Graph().as_default() as built_in:
        run_graph.build(chosen, run_graph.plan_devices(chosen))
        types = collections.Counter(operation.type for operation in built_in.get_operations())
    assert (types["Conv2DBackpropFilter"], types["MatMul"]) == (kernels, products)


@pytest.mark.parametrize(("words", "kernels"), [([], 19), (["--nofused_bn"], 0)])
def test_a_flag_decides_whether_batch_normalisation_is_fused(words: list[str], kernels: int) -> None:
    chosen = resolve("--device=cpu", "--model=resnet20", "--forward_only", *words)
    with tf.Graph().as_default() as built_in:
        run_graph.build(chosen, run_graph.plan_devices(chosen))
        assert sum(operation.type == "FusedBatchNormV3" for operation in built_in.get_operations()) == kernels


_WORKERS = ("--worker_hosts=h0:1,h1:1", "--job_name=worker", "--task_index=0")


@pytest.mark.parametrize(
    "words", [("--data_name=synthetic_host",), (*_WORKERS, "--variable_update=collective_all_reduce")]
)
def test_a_deterministic_step_reads_no_clock(words: tuple[str, ...]) -> None:
    """TensorFlow would refuse it."""
    clocks = []
    for more in ((), ("--deterministic",)):
        chosen = resolve("--device=cpu", "--model=mlp", *words, *more)
        with tf.Graph().as_default() as built_in:
            run_graph.build(chosen, run_graph.plan_devices(chosen))
            clocks.append(sum(operation.type == "Timestamp" for operation in built_in.get_operations()))
    assert clocks[0] > 0 == clocks[1]


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (("--num_gpus=2",), None),
        ((*_WORKERS, "--variable_update=collective_all_reduce"), None),
        (
            (*_WORKERS, "--ps_hosts=h0:2", "--variable_update=parameter_server"),
            {"ps 0 -> worker 0", "ps 0 -> worker 1"},
        ),
    ],
    ids=["one process", "workers", "with a server"],
)
def test_inference_has_no_gradients_and_sends_only_weights(words: tuple[str, ...], sent: set[str] | None) -> None:
    chosen = resolve("--device=cpu", "--model=mlp", "--forward_only", *words)
    with tf.Graph().as_default():
        placement = run_graph.build(chosen, run_graph.plan_devices(chosen)).placement
    assert placement["gradient_bytes_per_device"] == {} and placement["aggregations"] == []
    assert placement["sent_per_step"] == {} if sent is None else set(placement["sent_per_step"]["links"]) == sent


@pytest.mark.parametrize(("towers", "passes"), [(1, []), (2, ["pruning", "remap"])])
def test_the_graph_is_optimised_once(towers: int, passes: list[str]) -> None:
    chosen = resolve("--device=cpu", "--model=trivial", f"--num_gpus={towers}")
    rewriting = run_graph.session_config(chosen.devices, chosen.runtime).graph_options.rewrite_options
    assert rewriting.meta_optimizer_iterations == rewriting.ONE
    assert (list(rewriting.optimizers), rewriting.disable_tfg_optimizer) == (passes, towers > 1)
