from __future__ import annotations

import dataclasses

import pytest

from benchmarks.tracing.step_trace import Crossings, crossings, lacks_kernels, peak_gpu_memory_bytes, tower_seconds
from results.placement_tables import added
from tests.support.traces import Trace

WORKER, PS = "/job:worker/replica:0/task:0/device:", "/job:ps/replica:0/task:0/device:"


def test_transfers_are_counted_once_by_kind_of_link() -> None:
    trace = Trace()
    for device, name, shape in (
        (f"{WORKER}CPU:0", "weights", [6, 2]),
        (f"{WORKER}GPU:1", "gradient", [3]),
        (f"{WORKER}GPU:0", "part", [5]),
        (f"{PS}CPU:0", "read", [100]),
        (f"{WORKER}GPU:0", "loss", []),
        (f"{WORKER}GPU:0", "order", [0]),
    ):
        trace.ran(device, name, shape=shape)
    trace.sent("weights", f"{WORKER}CPU:0", f"{WORKER}GPU:0")
    trace.sent("weights", f"{WORKER}CPU:0", f"{WORKER}GPU:1")
    trace.sent("weights", f"{WORKER}CPU:0", f"{WORKER}GPU:1")  # for a second user there
    trace.sent("gradient", f"{WORKER}GPU:1", f"{WORKER}CPU:0")
    trace.sent("part", f"{WORKER}GPU:0", f"{WORKER}GPU:1")
    trace.sent("read", f"{PS}CPU:0", f"{WORKER}CPU:0")
    trace.sent("loss", f"{WORKER}GPU:0", f"{WORKER}CPU:0")
    trace.sent("order", f"{WORKER}GPU:0", f"{WORKER}CPU:0")
    trace.sent("weights", f"{WORKER}CPU:0", f"{WORKER}CPU:0", to_client=True)
    trace.sent("untraced", f"{WORKER}GPU:0", f"{WORKER}GPU:1")
    trace.ran(f"{WORKER}CPU:0", "RecvTensor")
    found = crossings(trace.metadata, cpu_is_host=True)
    assert found == Crossings(
        by_kind={
            "host to device": (2, 2 * 48),
            "device to host": (1, 12),
            "device to device": (2, 20),
            "network": (1, 400),
        },
        scalars=(2, 4),
        unknown=1,
        received=1,
    )
    as_a_tower = crossings(trace.metadata, cpu_is_host=False)
    assert as_a_tower.by_kind == {"device to device": (5, 96 + 12 + 20), "network": (1, 400)}
    assert added([dataclasses.asdict(one) for one in (found, as_a_tower)])["by_kind"]["network"] == [2, 800]


def test_what_came_from_another_process_and_goes_on_keeps_its_size() -> None:
    trace = Trace()
    trace.ran(f"{PS}CPU:0", "read", shape=[100])
    trace.sent("read", f"{PS}CPU:0", f"{WORKER}CPU:1")
    received = trace.metadata.partition_graphs.add().node.add(op="_Recv", name="read_received")
    received.CopyFrom(trace.metadata.partition_graphs[0].node[0])
    received.op, received.name = "_Recv", "read_received"
    trace.sent("read_received", f"{WORKER}CPU:1", f"{WORKER}CPU:2")
    found = crossings(trace.metadata, cpu_is_host=True)
    assert found == Crossings(by_kind={"network": (1, 400), "device to device": (1, 400)})


def test_collectives_count_as_rings() -> None:
    trace = Trace()
    for tower in range(2):
        trace.ran(f"{WORKER}CPU:{tower}", "sum", shape=[30])
        trace.holds(f"{WORKER}CPU:{tower}", "sum", "CollectiveReduceV2")
    # Each of 4 towers sends 3/2 of 120 bytes in 6 chunks; one of a worker's two sends to the other worker.
    found = crossings(trace.metadata, cpu_is_host=False, towers_in_total=4, workers=2)
    assert found.by_kind == {"network": (6, 180), "device to device": (6, 180)}
    assert found.collectives == 2
    assert crossings(trace.metadata, cpu_is_host=False, towers_in_total=2).by_kind == {"device to device": (4, 240)}


def test_the_copies_that_a_gpu_reports_are_added_by_kind() -> None:
    trace = Trace()
    for label in ("MemcpyH2D kind_src:pageable size:100 dest:0", "MemcpyH2D size:28 dest:0", "MemcpyD2D size:7"):
        trace.ran("/device:GPU:0/memcpy", "tower_0/images", label=label)
    assert crossings(trace.metadata, cpu_is_host=True).copies == {"H2D": (2, 128), "D2D": (1, 7)}


def test_a_tower_takes_from_its_first_operation_to_its_last() -> None:
    trace = Trace()
    trace.ran(f"{WORKER}CPU:0", "tower_0/conv", begin=100, micros=50)
    trace.ran(f"{WORKER}CPU:0", "tower_0/gradients/conv", begin=400, micros=200)
    trace.ran(f"{WORKER}CPU:1", "tower_1/conv", begin=50, micros=450)
    trace.ran(f"{WORKER}CPU:1", "AddN", begin=900, micros=900)
    trace.ran(f"{WORKER}CPU:1", "tower_10/conv", begin=0, micros=9000)
    assert tower_seconds(trace.metadata, 2) == pytest.approx([500e-6, 450e-6])
    assert tower_seconds(trace.metadata, 3) is None


def test_on_gpus_kernels_count_and_not_their_launches() -> None:
    trace = Trace()
    trace.ran(f"{WORKER}CPU:0", "input/next")
    assert not lacks_kernels(trace.metadata), "there is no GPU"
    trace.ran(f"{WORKER}GPU:0", "tower_0/conv", begin=0, micros=1)
    assert tower_seconds(trace.metadata, 1) is None, "without CUPTI there are launches alone"
    assert lacks_kernels(trace.metadata)
    trace.ran("/device:GPU:0/stream:all", "tower_0/conv:Conv2D", begin=10, micros=300)
    assert tower_seconds(trace.metadata, 1) == pytest.approx([300e-6])
    assert not lacks_kernels(trace.metadata)


def test_the_memory_of_gpus_is_what_their_allocators_had_in_use_at_most() -> None:
    trace = Trace()
    assert peak_gpu_memory_bytes(trace.metadata) is None
    trace.ran(f"{WORKER}GPU:0", "tower_0/conv")
    trace.ran(f"{WORKER}GPU:0", "tower_0/fc")
    conv, fc = trace.metadata.step_stats.dev_stats[0].node_stats
    conv.memory.add(allocator_name="gpu_host_bfc", allocator_bytes_in_use=9000)
    assert peak_gpu_memory_bytes(trace.metadata) is None, "that is memory of the host"
    # The first has used 500 bytes, of which 100 are left; then 1,000 were in use.
    conv.memory.add(allocator_name="GPU_0_bfc", allocator_bytes_in_use=1000, peak_bytes=500, live_bytes=100)
    fc.memory.add(allocator_name="GPU_0_bfc", allocator_bytes_in_use=1300, peak_bytes=40, live_bytes=40)
    assert peak_gpu_memory_bytes(trace.metadata) == 1400
    fc.memory.add(allocator_name="gpu_async_1", allocator_bytes_in_use=1500)
    assert peak_gpu_memory_bytes(trace.metadata) == 1500
