"""Where the result of a run goes, and what its lines show. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from benchmarks.cluster.cluster_spec import Cluster
from benchmarks.config.variable_update import Variables
from benchmarks.option import Flag, filled, flags_of, option
from benchmarks.trackers.tracker_list import TRACKERS, Targets, targets_of
from variable_mgr.catalog import IN_GRAPH, MANAGERS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
    """The part of a configuration on output. None of it can change the result."""

    output_dir: str = option("directory of results.jsonl and results.csv", default="out", path="directory", unset="")
    output_format: Literal["text", "json"] = option("format of the result on stdout", default="text")
    display_every: int = option("print a line every this many steps", default=10, at_least=1)
    loss_type_to_report: Literal["base_loss", "total_loss"] = option(
        "loss to print; total_loss includes weight decay; the record has the base loss",
        default_text="total_loss, where one process takes all steps together and all copies of the weights are equal",
    )
    session_id: str = option("name that the records of several runs share; a sweep sets one", default="")
    trackers: Targets = dataclasses.field(default_factory=dict, hash=False)  # a dict has none


OUTPUT_FLAGS = (
    *flags_of(Output),
    *(Flag(tracker.flag, str, tracker.help, path=tracker.path) for tracker in TRACKERS),
    Flag("print_config", bool, "print the resolved configuration as JSON and stop"),
)


def decide(
    given: Mapping[str, Any], variables: Variables, cluster: Cluster | None, *, num_devices: int
) -> tuple[Output, tuple[str, ...]]:
    """Returns where the result goes, and a sentence if the lines have another loss than a flag requests.

    The penalty of the total loss is computed between steps, by the process that takes them. It is left out where a
    worker would wait for another one's penalty within a step, or where there is not one set of weights to penalise.
    """
    asked, manager = given["loss_type_to_report"], variables.variable_update
    problem = None
    if given["forward_only"]:
        problem = "--forward_only minimises nothing"
    elif manager not in MANAGERS:
        problem = "a reference loop reports its own loss"
    elif variables.modifiers.asynchronous:
        problem = "asynchronous towers never pause"
    elif cluster and cluster.num_workers > 1 and manager not in IN_GRAPH:
        problem = "workers would wait for each other's penalty"
    elif num_devices > 1 and not MANAGERS[manager].exchanges_gradients:
        problem = f"under {manager} every tower has its own weights"
    loss = "base_loss" if problem or asked == "base_loss" else "total_loss"
    output = filled(Output, given, loss_type_to_report=loss, trackers=targets_of(given))
    if problem and asked == "total_loss":
        return output, (f"--loss_type_to_report=total_loss: {problem}, so lines have base_loss.",)
    return output, ()
