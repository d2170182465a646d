from __future__ import annotations

from typing import Any

from results import placement_tables

WEIGHT = ("conv/kernel", "weight", (3, 3, 2), 72)


def _worker(number: int) -> dict[str, Any]:
    """The placement of a cluster with one parameter server as one of its workers sees it."""
    own, server = f"/job:worker/replica:0/task:{number}/device:CPU:0", "/job:ps/replica:0/task:0/device:CPU:0"
    return {
        "tower_devices": [own],
        "variables": 2,
        "weights": 2,
        "variable_bytes_per_device": {server: 72, own: 72},
        "slot_bytes_per_device": {server: 72} if number == 0 else {},
        "variable_groups": placement_tables.grouped([(*WEIGHT, [own, server])]),
        "aggregations": placement_tables.aggregated({"conv/kernel": [("AddN", server if number == 0 else own)]}),
        "sent_per_step": {"by_kind": {"network": [4, 288]}},
        "measured_per_step": {
            "by_kind": {"network": [2, 144]},
            "scalars": [1, 4],
            "unknown": 0,
            "collectives": 0,
            "copies": {},
        },
    }


def test_the_placement_of_a_cluster_has_the_copies_of_all_workers() -> None:
    whole = placement_tables.merged([_worker(0), _worker(1)])
    assert placement_tables.variable_table(whole).rows == [
        ["conv/kernel", "weight", "3 x 3 x 2", "72 B", "3", "worker 0 CPU:0; ps 0 CPU:0; worker 1 CPU:0"]
    ]
    assert placement_tables.aggregation_table(whole).rows == [["conv/kernel", "AddN", "ps 0 CPU:0; worker 1 CPU:0"]]
    assert (whole["variables"], whole["weights"]) == (3, 3), "the server's copy counts once"
    assert list(whole["variable_bytes_per_device"].values()) == [72, 72, 72]
    assert placement_tables.device_table(whole).rows[0] == ["ps 0 CPU:0", "72 B", "72 B", "0 B", "0 B"]
    assert len(whole["tower_devices"]) == 2


def test_what_each_worker_sends_is_added_and_the_formula_is_of_all() -> None:
    whole = placement_tables.merged([_worker(0), _worker(1)])
    assert placement_tables.transfer_table(whole).rows == [
        ["network", "4", "288 B", "4", "288 B"],
        ["scalars and control", "", "", "2", "8 B"],
    ]
    (note,) = placement_tables.transfer_notes(whole)
    assert "docs/howto/placement.md" in note


def test_a_single_process_is_as_it_sees_itself() -> None:
    alone = _worker(0)
    assert placement_tables.merged([alone]) is alone


def test_what_the_trace_does_not_show_is_named() -> None:
    own = _worker(0) | {"sent_per_step": {"by_kind": {"host to device": [2, 100]}}}
    own["measured_per_step"] |= {"by_kind": {"host to device": [1, 150]}, "unknown": 1, "collectives": 2}
    assert placement_tables.transfer_table(own).rows[0] == ["host to device", "2", "100 B", "1", "150 B"]
    notes = " ".join(placement_tables.transfer_notes(own))
    for words in ("docs/howto/placement.md", "no size of 1", "2 collective operations"):
        assert words in notes


def test_what_is_unknown_is_not_zero() -> None:
    unknown = {"sent_per_step": {}, "measured_per_step": _worker(0)["measured_per_step"]}
    assert placement_tables.transfer_table(unknown).rows[0] == ["network", "unknown", "unknown", "2", "144 B"]
    assert (
        placement_tables.transfer_table({}).rows
        == placement_tables.variable_table({}).rows
        == placement_tables.aggregation_table({}).rows
        == []
    )
    assert "No step was traced" in placement_tables.transfer_notes({})[0]


def test_names_of_devices_are_short() -> None:
    assert placement_tables.devices(["/device:GPU:0", "/device:GPU:1"]) == "GPU:0, GPU:1"
    assert placement_tables.devices(["/job:localhost/replica:0/task:0/device:CPU:0", "/cpu:1"]) == "CPU:0, CPU:1"
    ps = "/job:ps/replica:0/task:"
    assert placement_tables.devices([f"{ps}0/device:CPU:0", f"{ps}1/device:CPU:0"]) == "ps 0 CPU:0; ps 1 CPU:0"
