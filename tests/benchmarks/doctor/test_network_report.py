"""What the measured links of a cluster mean."""

from __future__ import annotations

import itertools

from benchmarks.doctor import network_report
from benchmarks.doctor.network_report import Link

HOSTS = {"ps 0": "h0", "worker 0": "h1", "worker 1": "h2"}


def test_links_that_stand_out_are_named() -> None:
    links = [
        Link("ps 0", "worker 0", 0.4e-3, 1.2e9, 1.1e9),
        Link("ps 0", "worker 1", 3.1e-3, 1.3e9, 0.3e9),
        Link("worker 0", "worker 1", 0.4e-3, 1.2e9, 1.2e9),
    ]
    check = "check the network between h{} and h{} (which interfaces, their speed), and what else runs there."
    assert network_report.quality_warnings(links, HOSTS) == [
        "worker 1 -> ps 0 carries 0.3 GB/s, others 1.2: " + check.format(2, 0),
        "A round trip ps 0 -> worker 1 -> ps 0 takes 3.1 ms, others 0.4: " + check.format(0, 2),
    ]
    assert network_report.bottleneck(links) == (
        "One step's gradients of ResNet-50 v1 (102 MB) take at least 0.341 s over the slowest link, worker 1 -> ps 0 "
        "with 0.3 GB/s."
    )


def test_what_slow_links_have_in_common_is_named() -> None:
    tasks = [f"worker {index}" for index in range(4)]
    host_of = {task: f"h{index}" for index, task in enumerate(tasks)}
    links = [Link(a, b, 1e-3, 0.2e9 if a == "worker 0" else 1e9, 1e9) for a, b in itertools.combinations(tasks, 2)]
    *each, common = network_report.quality_warnings(links, host_of)
    assert [sentence.split(" carries")[0] for sentence in each] == [f"worker 0 -> {task}" for task in tasks[1:]]
    assert common == "All of them have worker 0 in common (h0): check it first."


def test_links_within_a_host_are_not_compared_with_those_between_hosts() -> None:
    host_of = {"ps 0": "h0", "worker 0": "h0", "worker 1": "h1"}
    links = [
        Link("ps 0", "worker 0", 0.1e-3, 5e9, 5e9),
        Link("ps 0", "worker 1", 1e-3, 1e9, 1e9),
        Link("worker 0", "worker 1", 1e-3, 1e9, 1e9),
    ]
    assert network_report.quality_warnings(links, host_of) == []
    assert (
        "check what else runs on h0."
        in network_report.quality_warnings([Link("ps 0", "worker 0", 1e-3, 1e9, 9e9)], host_of)[0]
    )


def test_a_lone_task_has_no_links() -> None:
    assert network_report.quality_warnings([], {}) == []
    assert network_report.to_dict([], [])["slowest"] is None
