"""What happened in a step, from traces made by hand, and one of a GPU."""

from __future__ import annotations

import lzma
from collections import Counter
from pathlib import Path

import pytest
import tensorflow as tf

from benchmarks.tracing import step_trace
from benchmarks.tracing.step_events import Event, by_type, events
from tests.support.traces import Trace

HOST = "/job:localhost/replica:0/task:0/device:"


def test_operations_have_kinds_and_types() -> None:
    trace = Trace()
    trace.ran(f"{HOST}CPU:0", "_SOURCE", 1, 1)
    trace.ran(f"{HOST}CPU:0", "tower_0/fc", 10, 5, label="tower_0/fc = MatMul(a, b)")
    trace.ran(f"{HOST}CPU:0", "fused", 20, 5, label="fused = AddN(a)")
    trace.holds(f"{HOST}CPU:0", "fused", "_Fused")
    trace.ran(f"{HOST}CPU:0", "sum", 30, 5, label="sum = CollectiveReduceV2(a)")
    trace.ran(f"{HOST}CPU:0", "input/next", 40, 5, label="input/next = IteratorGetNext(a)")
    trace.ran(f"{HOST}CPU:0", "synthetic_1/read", 50, 5, label="synthetic_1/read = ReadVariableOp(a)")
    trace.ran("/job:ps/replica:0/task:0/device:CPU:0", "RecvTensor", 60, 5)
    found = [(event.device, event.kind, event.type) for event in events(trace.metadata)]
    assert found == [
        ("/device:CPU:0", "compute", "MatMul"),
        ("/device:CPU:0", "compute", "_Fused"),
        ("/device:CPU:0", "exchange", "CollectiveReduceV2"),
        ("/device:CPU:0", "input", "IteratorGetNext"),
        ("/device:CPU:0", "input", "ReadVariableOp"),
        ("/job:ps/replica:0/task:0/device:CPU:0", "exchange", "RecvTensor"),
    ]


def test_a_transfer_ends_when_its_first_user_could_start() -> None:
    trace, sender, receiver = Trace(), f"{HOST}CPU:0", f"{HOST}CPU:1"
    trace.ran(sender, "gradient", 100, 20)
    trace.sent("gradient", sender, receiver)
    for name, ready in (("late", 170), ("early", 150)):
        trace.holds(receiver, name, "AddN", "gradient_R")
        trace.ran(receiver, name, 200, 1, ready=ready)
    found = next(event for event in events(trace.metadata) if event.kind == "exchange")
    assert found == Event("/device:CPU:1", "exchange", "transfer or wait", "gradient", 120, 30)


def test_of_a_step_of_two_virtual_gpus() -> None:
    """ResNet-20 on an H200 with TensorFlow 2.21: a traced step without attributes and most of its memory figures."""
    metadata = tf.compat.v1.RunMetadata()
    packed = Path(__file__).with_name("step_on_two_virtual_gpus.pb.xz").read_bytes()
    metadata.ParseFromString(lzma.decompress(packed))
    found = events(metadata)
    on_gpus = [event for event in found if "GPU" in event.device]
    of_type = Counter((event.device, event.type) for event in on_gpus if event.kind == "compute")
    kernels = {(f"/device:GPU:{tower}", "ResourceApplyGradientDescent") for tower in (0, 1)}
    assert kernels & of_type.keys() and of_type["/device:GPU:1", "Conv2DBackpropFilter"] > 20
    assert not [event for event in on_gpus if ":" in event.name or ":" in event.type]
    exchanged = [event for event in found if event.kind == "exchange"]
    assert {event.type for event in exchanged} == {"MemcpyD2D", "MemcpyD2H"}
    inside = [event for event in on_gpus if event.type == "MemcpyD2D" and event.kind == "compute"]
    assert {event.name.rpartition("/")[2] for event in inside} == {"FusedBatchNormV3"}, "they copy their statistics"
    assert len(inside) == 38 and len(exchanged) == 196
    assert not step_trace.lacks_kernels(metadata)
    assert step_trace.tower_seconds(metadata, 2) == pytest.approx([0.0161, 0.0112], rel=0.01)


# The traces of GPUs below are made as TensorFlow's source makes them (core/profiler/convert/xplane_to_step_stats.cc,
# core/nccl/nccl_manager.cc, core/common_runtime/copy_tensor.cc).
def test_of_a_gpu_its_own_reports_count_once_by_the_type_of_their_operation() -> None:
    trace = Trace()
    for stream in ("stream:all", "stream:13"):
        trace.ran(f"/device:GPU:0/{stream}", "tower_0/conv:Conv2D", 10, 300, label="sm90_xmma_fprop regs:255 grid:1,1")
        trace.ran(f"/device:GPU:0/{stream}", "tower_0/conv:Conv2D", 310, 5, label="splitKreduce_kernel regs:32")
        trace.ran(f"/device:GPU:0/{stream}", "tower_0/fc:MatMul", 320, 2, label="ampere_sgemm regs:128")
        trace.ran(f"/device:GPU:0/{stream}", "ncclAllReduce", 330, 9, label="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
        trace.ran(f"/device:GPU:0/{stream}", "ncclDevKernel_Broadcast_RING_LL(int)", 340, 1, label="ncclDevKernel")
        trace.ran(f"/device:GPU:0/{stream}", "void cudnn::ops::scale<float>(int)", 350, 1, label="void cudnn regs:8")
    trace.ran("/device:GPU:0/memcpy", "tower_0/images:_Recv", 5, 7, label="MemcpyH2D kind_src:pinned size:4 dest:0")
    trace.ran("/device:GPU:0/sync", "cuStreamSynchronize", 1, 999, label="ThreadId 7")
    trace.ran(f"{HOST}GPU:0", "tower_0/conv", 1, 1)  # the launch
    trace.holds(f"{HOST}GPU:0", "tower_0/conv", "_FusedConv2D")
    assert events(trace.metadata) == [
        Event("/device:GPU:0", "exchange", "MemcpyH2D", "tower_0/images", 5, 7),
        Event("/device:GPU:0", "compute", "_FusedConv2D", "tower_0/conv", 10, 300),
        Event("/device:GPU:0", "compute", "_FusedConv2D", "tower_0/conv", 310, 5),
        Event("/device:GPU:0", "compute", "MatMul", "tower_0/fc", 320, 2),
        Event("/device:GPU:0", "exchange", "ncclAllReduce", "ncclAllReduce", 330, 9),
        *(
            Event("/device:GPU:0", kind, name, name, begin, 1)
            for kind, name, begin in (
                ("exchange", "ncclDevKernel_Broadcast_RING_LL(int)", 340),
                ("compute", "void cudnn::ops::scale<float>(int)", 350),
            )
        ),
    ]


def test_gpus_of_processes_and_parts_of_a_split_gpu_are_kept_apart() -> None:
    trace, workers = Trace(), [f"/job:worker/replica:0/task:{task}" for task in range(2)]
    reports = trace.metadata.step_stats.dev_stats
    for worker, towers in zip(workers, (("tower_0/fc", "tower_1/fc"), ("tower_2/fc", "tower_3/fc")), strict=True):
        # A process lists what its GPUs report, of which the driver knows no parts, and then its devices.
        kernels, copies = reports.add(device="/device:GPU:0/stream:all"), reports.add(device="/device:GPU:0/memcpy")
        copies.node_stats.add(node_name="images", timeline_label="MemcpyH2D size:4")
        for part, name in enumerate(towers):
            kernels.node_stats.add(node_name=f"{name}:MatMul")
            reports.add(device=f"{worker}/device:GPU:{part}").node_stats.add(node_name=name)  # the launch
            trace.holds(f"{worker}/device:GPU:{part}", name, "MatMul")
    assert sorted((event.device, event.type) for event in events(trace.metadata)) == [
        (f"{worker}/device:GPU:{part}", of_type)
        for worker in workers
        for part, of_type in ((0, "MatMul"), (0, "MemcpyH2D"), (1, "MatMul"))
    ]


def test_the_table_adds_by_type_and_divides_by_steps() -> None:
    add = Event("d", "compute", "Add", "a", 0, 1000)
    matmul = Event("d", "compute", "MatMul", "b", 0, 3000)
    longest, other = by_type([[add, matmul], [matmul, Event("e", "compute", "Add", "a", 0, 1000)]])[:2]
    assert (longest.type, longest.per_step, longest.ms_per_step) == ("MatMul", 1.0, 3.0)
    assert longest.share == pytest.approx(0.75)
    assert (other.per_step, other.ms_per_step) == (0.5, 0.5), "other devices count apart"
