"""From flags to what a run does between its steps: checkpoints, evaluation, summaries, profiles. No TensorFlow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from benchmarks.config.flag import Flag, Groups
from benchmarks.errors import UsageError
from benchmarks.outside_text import whole_number
from benchmarks.topology.cluster import Cluster
from variable_mgr.catalog import IN_GRAPH, REFERENCE_LOOPS


@dataclasses.dataclass(frozen=True, kw_only=True)
class BetweenSteps:
    """What a run does between its measured steps. None of it is in their times.

    Attributes:
        train_dir: where checkpoints and summaries are; None: neither is saved or loaded.
        save_model_steps: a checkpoint is saved after every so many steps; 0: only at the end.
        save_model_secs: the same in seconds.
        max_ckpts_to_keep: older checkpoints are removed; 0: all are kept.
        initial_weights: a checkpoint, or a file of Keras, with the weights to begin with.
        max_restarts: how often the tasks of a cluster are started again after one has died.
        eval_every_steps, eval_every_epochs: an evaluation follows so many steps, or passes over the data; 0: none does.
        eval_at_steps, eval_at_epochs: an evaluation follows these.
        eval_batch_size: images per device and step of an evaluation; 0: as in training.
        stop_at_top_1_accuracy: training ends when an evaluation reaches this share; None: it does not.
        summary_verbosity: 0: no summaries; 1: numbers; 2: also histograms of gradients; 3: also of weights.
        save_summaries_steps: summaries are written every so many steps.
        profile_steps: the first and the last step that is profiled, from 1.
        trace_file, graph_file: where a trace of a step, and the graph, are written.
        partitioned_graph_file_prefix: begins the names of the files of each device's graph.
    """

    train_dir: str | None = None
    save_model_steps: int = 0
    save_model_secs: float = 0.0
    max_ckpts_to_keep: int = 5
    initial_weights: str | None = None
    max_restarts: int = 0
    eval_every_steps: int = 0
    eval_every_epochs: float = 0.0
    eval_at_steps: tuple[int, ...] = ()
    eval_at_epochs: tuple[float, ...] = ()
    eval_batch_size: int = 0
    stop_at_top_1_accuracy: float | None = None
    summary_verbosity: int = 0
    save_summaries_steps: int = 0
    profile_steps: tuple[int, int] | None = None
    trace_file: str | None = None
    graph_file: str | None = None
    partitioned_graph_file_prefix: str | None = None

    @property
    def evaluates(self) -> bool:
        """Whether training is evaluated; if so, at least at its end."""
        return bool(self.eval_every_steps or self.eval_every_epochs or self.eval_at_steps or self.eval_at_epochs)

    @property
    def pauses(self) -> dict[str, Any] | None:
        """What interrupts training again and again, by the names of the fields; None: nothing does."""
        names = ["eval_every_steps", "eval_every_epochs", "eval_at_steps", "eval_at_epochs"]
        names += ["save_model_steps", "save_model_secs"] if self.train_dir else []
        names += ["save_summaries_steps"] if self.summary_verbosity else []
        return {name: getattr(self, name) for name in names if getattr(self, name)} or None


BETWEEN_FLAGS: Groups = {
    "Checkpoints": (
        Flag(
            "train_dir",
            str,
            "where checkpoints and summaries are; a run continues from the newest, and saves one at its end; also an "
            "address such as gs://bucket/x",
            path="directory",
            addresses=True,
            unset="",
        ),
        Flag("save_model_steps", int, "save a checkpoint after every so many steps; 0: at the end", at_least=0),
        Flag("save_model_secs", int, "the same in seconds", default=0, at_least=0),
        Flag(
            "max_ckpts_to_keep",
            int,
            "how many checkpoints stay; 0: all",
            default=BetweenSteps.max_ckpts_to_keep,
            at_least=0,
        ),
        Flag(
            "initial_weights",
            str,
            "begin a training with the weights of a checkpoint, or of Keras' .keras or .h5; the optimizer "
            "begins afresh",
            path="file",
            addresses=True,
            unset="",
        ),
        Flag(
            "max_restarts",
            int,
            "of a cluster that this command starts: start all tasks again, from the newest checkpoint, up to so many "
            "times after one has died",
            default=BetweenSteps.max_restarts,
            at_least=0,
        ),
    ),
    "Evaluation": (
        Flag(
            "eval_during_training_every_n_steps",
            int,
            "evaluate on the validation set after every so many steps, counted from the first; and at the end",
            at_least=1,
            unset=0,
        ),
        Flag("eval_during_training_every_n_epochs", float, "the same in passes over the data set", above=0, unset=0),
        Flag("eval_during_training_at_specified_steps", str, "evaluate after these, such as 100,200", unset=""),
        Flag("eval_during_training_at_specified_epochs", str, "evaluate after these, such as 1,2.5", unset=""),
        Flag(
            "stop_at_top_1_accuracy",
            float,
            "end training when an evaluation reaches this share of correct images, such as 0.75",
            above=0,
            at_most=1,
            unset=0,
        ),
        Flag(
            "eval",
            bool,
            "do not train: evaluate the latest checkpoint of --train_dir once, and print accuracy and images/s",
        ),
        Flag(
            "eval_batch_size",
            int,
            "images per device and step of an evaluation",
            default="as in training",
            at_least=1,
            unset=0,
        ),
    ),
    "Summaries and profiles": (
        Flag(
            "summary_verbosity",
            int,
            "what is written for TensorBoard into --train_dir; 0: nothing; 1: the graph, loss, learning rate, "
            "images/sec, accuracies; 2: also histograms of gradients; 3: also histograms and norms of weights",
            default=BetweenSteps.summary_verbosity,
            at_least=0,
            at_most=3,
        ),
        Flag(
            "save_summaries_steps",
            int,
            "write it every so many steps; 0: never",
            default=BetweenSteps.save_summaries_steps,
            at_least=0,
        ),
        Flag(
            "profile_steps",
            str,
            "profile these steps, such as 20:25, for TensorBoard into --train_dir or --output_dir; print which "
            "operations took longest, and write all to operations.csv there; they are not measured",
        ),
        Flag(
            "trace_file",
            str,
            "write what all devices did in one step after the measured ones, for chrome://tracing or Perfetto; "
            "compressed if the name ends in .gz",
            path="file",
            unset="",
        ),
        Flag(
            "graph_file",
            str,
            "write the graph to this file; as text if the name ends in txt, else binary",
            path="file",
            unset="",
        ),
        Flag(
            "partitioned_graph_file_prefix",
            str,
            "write the optimised graph of each device to a file that begins like this; as text if it ends in txt",
            path="file",
            unset="",
        ),
    ),
}


# Flags that a trial of other settings does not get.


def resolve(given: Mapping[str, Any], variables: Mapping[str, Any], cluster: Cluster | None) -> BetweenSteps:
    """Decides on what happens between steps.

    Args:
        given: flag values by name; None is not given.
        variables: what is decided on these, such as the manager.
        cluster: the tasks; None for a single process.

    Raises:
        UsageError: a value is not possible, or a flag needs another one.
    """
    checkpoints = _checkpoints(given, variables, cluster.num_workers if cluster else 1)
    evaluation = _evaluation(given, variables, in_cluster=cluster is not None)
    summaries = _summaries(given, variables)
    return BetweenSteps(**checkpoints, **evaluation, **summaries)


def _checkpoints(given: Mapping[str, Any], variables: Mapping[str, Any], workers: int) -> dict[str, Any]:
    manager = variables["variable_update"]
    if given["max_restarts"] and not given["train_dir"]:
        raise UsageError("--max_restarts needs checkpoints to resume from: pass --train_dir, or omit it.")
    every = [name for name in ("save_model_steps", "save_model_secs") if given[name]]
    named = [*every, *(name for name in ("train_dir", "initial_weights") if given[name])]
    if named and manager in REFERENCE_LOOPS:
        raise UsageError(f"--{named[0]}: {manager} is measured as it is, without checkpoints. Use a variable manager.")
    if given["check_precision"] and named:
        raise UsageError(f"--{named[0]}: --check_precision trains again from the start: omit one of them.")
    for name in every:
        if not given["train_dir"]:
            raise UsageError(f"--{name} needs a directory for the checkpoints: pass --train_dir, or omit it.")
        if given["forward_only"]:
            raise UsageError(f"--{name}: with --forward_only nothing is trained that could be saved: omit one of them.")
        if variables["modifiers"].asynchronous:
            raise UsageError(f"--{name}: asynchronous towers never pause, so they save only at the end: omit it.")
    if given["save_model_secs"] and workers > 1 and manager not in IN_GRAPH:
        raise UsageError("--save_model_secs: the workers save at a common step. Use --save_model_steps.")
    return {
        "train_dir": given["train_dir"],
        "save_model_steps": given["save_model_steps"] or 0,
        "save_model_secs": float(given["save_model_secs"] or 0),
        "max_ckpts_to_keep": (
            BetweenSteps.max_ckpts_to_keep if given["max_ckpts_to_keep"] is None else given["max_ckpts_to_keep"]
        ),
        "max_restarts": given["max_restarts"] or 0,
        "initial_weights": given["initial_weights"],
    }


_WHEN = "eval_during_training_"
WHEN_TO_EVALUATE = tuple(flag.name for flag in BETWEEN_FLAGS["Evaluation"] if flag.name.startswith(_WHEN))


def _evaluation(given: Mapping[str, Any], variables: Mapping[str, Any], *, in_cluster: bool) -> dict[str, Any]:
    scheduled = [name for name in WHEN_TO_EVALUATE if given[name] is not None]
    if scheduled:
        _refuse_evaluation(given, variables, f"--{scheduled[0]}")
    if given["eval"]:
        _refuse_evaluation_alone(given, variables, in_cluster=in_cluster)
    for name in ("stop_at_top_1_accuracy", "eval_batch_size"):
        if given[name] is not None and not scheduled and not (name == "eval_batch_size" and given["eval"]):
            raise UsageError(
                f"--{name}={given[name]:g} is about an evaluation, and there is none: add "
                f"--{_WHEN}every_n_steps or --{_WHEN}every_n_epochs, or leave it out."
            )
    return {
        "eval_every_steps": given[f"{_WHEN}every_n_steps"] or 0,
        "eval_every_epochs": given[f"{_WHEN}every_n_epochs"] or 0.0,
        "eval_at_steps": tuple(int(step) for step in _numbers(given, f"{_WHEN}at_specified_steps", int)),
        "eval_at_epochs": tuple(_numbers(given, f"{_WHEN}at_specified_epochs", float)),
        "eval_batch_size": given["eval_batch_size"] or 0,
        "stop_at_top_1_accuracy": given["stop_at_top_1_accuracy"],
    }


def _refuse_evaluation(given: Mapping[str, Any], variables: Mapping[str, Any], flag: str) -> None:
    """Refuses an evaluation during training where it is not possible."""
    manager = variables["variable_update"]
    if manager in REFERENCE_LOOPS:
        raise UsageError(f"{flag}: {manager} is measured as it is, without evaluation. Use a variable manager.")
    if variables["modifiers"].asynchronous:
        raise UsageError(
            f"{flag}: asynchronous towers never pause for an evaluation. Save checkpoints with --train_dir, and run "
            "--eval after it, or leave out what makes the towers asynchronous."
        )
    if given["forward_only"]:
        raise UsageError(f"{flag}: --forward_only trains nothing: leave it out, or evaluate a checkpoint with --eval.")
    _require_images(given, flag)


def _refuse_evaluation_alone(given: Mapping[str, Any], variables: Mapping[str, Any], *, in_cluster: bool) -> None:
    """Refuses what contradicts `--eval`."""
    if given["train_dir"] is None:
        raise UsageError("--eval evaluates a checkpoint: name the directory where training saved it with --train_dir.")
    if given["forward_only"]:
        raise UsageError("--eval and --forward_only exclude each other: --eval only evaluates a checkpoint. Drop one.")
    if in_cluster:
        raise UsageError(
            "--eval takes one process, which can have several devices: leave out the cluster. Checkpoints of a cluster "
            "are like those of one process."
        )
    if variables["variable_update"] in REFERENCE_LOOPS or given["pipeline_stages"] or given["fc_model_parallel"]:
        raise UsageError("--eval gives each device the whole model: leave out what is about training loops and parts.")
    _require_images(given, "--eval")


def _require_images(given: Mapping[str, Any], flag: str) -> None:
    if given["data_dir"] is None:
        raise UsageError(f"{flag} needs a validation set, and synthetic images have none: add --data_dir.")


def _numbers(given: Mapping[str, Any], flag: str, kind: type[float]) -> list[float]:
    """Returns the numbers of a list; an empty entry is none.

    Raises:
        UsageError: an entry is no such number, or not above 0.
    """
    try:
        found = [kind(entry) for entry in (given[flag] or "").split(",") if entry.strip()]
    except ValueError:
        found = [-1]
    if not all(0 < number < math.inf for number in found):
        wanted = "whole numbers" if kind is int else "numbers"
        raise UsageError(f"--{flag}={given[flag]}: give {wanted} above 0 with commas between them, such as 1,2,5.")
    return found


def _summaries(given: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    named = [flag.name for flag in BETWEEN_FLAGS["Summaries and profiles"] if given[flag.name]]
    if named and variables["variable_update"] in REFERENCE_LOOPS:
        raise UsageError(
            f"--{named[0]}: {variables['variable_update']} is measured as it is, without summaries, profiles and "
            "traces. Use a variable manager."
        )
    verbosity, every = given["summary_verbosity"] or 0, given["save_summaries_steps"] or 0
    if every and not verbosity:
        raise UsageError(f"--save_summaries_steps={every}: add --summary_verbosity=1, 2 or 3; at 0 nothing is written.")
    if verbosity:
        _refuse_summaries(given, f"--summary_verbosity={verbosity}")
    if variables["modifiers"].asynchronous and (verbosity or given["profile_steps"]):
        raise UsageError(
            f"--{'summary_verbosity' if verbosity else 'profile_steps'}: asynchronous towers never pause. Omit it; "
            "--trace_file shows one step of each, taken after they have been measured."
        )
    return {
        "summary_verbosity": verbosity,
        "save_summaries_steps": every,
        "profile_steps": _step_range(given["profile_steps"]),
        **{name: given[name] for name in ("trace_file", "graph_file", "partitioned_graph_file_prefix")},
    }


def _refuse_summaries(given: Mapping[str, Any], flag: str) -> None:
    """Refuses summaries that nothing could be written of, or to."""
    if not given["train_dir"]:
        raise UsageError(f"{flag} needs a directory for the summaries: add --train_dir, or omit it.")
    if not given["save_summaries_steps"]:
        raise UsageError(f"{flag}: add --save_summaries_steps=N to write a summary every N steps, or omit it.")
    if given["forward_only"]:
        raise UsageError(f"{flag}: with --forward_only nothing is trained that could be summarised: omit one of them.")
    if given["summary_verbosity"] > 1 and given["save_summaries_steps"] == 1:
        raise UsageError(
            f"{flag}: steps with histograms of gradients are not measured, and with --save_summaries_steps=1 those are "
            "all. Pass 2 or more, or --summary_verbosity=1."
        )


def _step_range(text: str | None) -> tuple[int, int] | None:
    """Returns the first and the last step of a range; None without one."""
    if text is None:
        return None
    first, last = (whole_number(word) or 0 for word in text.partition(":")[::2])
    if not 2 <= first <= last:
        raise UsageError(
            f"--profile_steps={text}: give the first and the last step to profile, such as 20:25. Steps count from 1, "
            "warm-up included, and the first can be no earlier than 2, since step 1 prepares the graph."
        )
    return first, last
