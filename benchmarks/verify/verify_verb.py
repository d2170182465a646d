"""The verb `verify`: compares the arithmetic of every manager on these devices with references."""

from __future__ import annotations

import collections
import itertools
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.cluster import discovery, launch_plan
from benchmarks.cluster.cluster_spec import Cluster
from benchmarks.config import outside_models
from benchmarks.config.config import Config, resolve
from benchmarks.config.flag import Parsed
from benchmarks.config.run_flags import RUN_FLAGS, SEVERAL_DEVICES
from benchmarks.config.variable_update import refuse_reference_loop
from benchmarks.config.verb import Verb
from benchmarks.console import progress, say, warn
from benchmarks.devices import options
from benchmarks.devices.start_tensorflow import start
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.machine import hardware
from benchmarks.option import Flag, Groups, only
from benchmarks.process.deadlines import Deadlines
from benchmarks.process.watchdog import watched
from benchmarks.run import cluster_launch
from results.text import Table, counted

if TYPE_CHECKING:
    from benchmarks.verify.cases import Case, CaseResult

_TABLE = Table(("", "error", "may be", "against", "what"), numbers=("error", "may be"), widths=(4, 8, 8, 11, 0))
_AGAINST_REFERENCES = (
    "against NumPy (by the name of the optimizer), one device with the whole batch,\n"
    "and the variables before (no change). The error is the largest relative difference, absolute below 1."
)
_AGAINST_TOWERS = (
    "against gradients computed one tower at a time, and updates in NumPy.\n"
    "The error is the largest difference, relative to the change that a step should make to the variable."
)


def run_verify(config: Config, *, one_setting: bool = False, models: Sequence[Config] = ()) -> ExitStatus:
    """Prints a row per comparison and a closing line, or JSON.

    Args:
        config: the devices, the cluster and the format.
        one_setting: whether to compare only the configured manager, with its modifiers; else all.
        models: configurations with models to compare on, in one process, instead of the small networks.

    Raises:
        UsageError: the devices are not there.
        ClusterError: tasks are missing, or one has gone.
    """
    warn(*config.notices)
    with watched() as watchdog:
        deadlines = Deadlines(watchdog, config.processes.step_timeout_seconds)
        plan, _ = start(config.runtime, deadlines)
        from benchmarks.cluster.member import Alone
        from benchmarks.verify import cases, comparisons

        setting = config.variables if one_setting else None
        chosen = cases.of_setting(setting) if setting else None
        if config.processes.cluster:
            return _in_cluster(config, config.processes.cluster, chosen, deadlines.silent())
        if models:
            from benchmarks.verify import model_oracle

            of_models = [(each, cases.model_cases(each.workload.model, setting)) for each in models]
            number = sum(len(of_model) for _, of_model in of_models)
            results: Iterable[CaseResult] = itertools.chain.from_iterable(
                model_oracle.results(each, of_model, deadlines.silent()) for each, of_model in of_models
            )
            every, against = "Every manager", _AGAINST_TOWERS
        else:
            rule = cases.rule_of(config.training)
            number = len(list(cases.under(rule, chosen or cases.cases())))
            results = comparisons.results(config.devices, chosen, rule, team=Alone(deadlines.silent()))
            every, against = "Every manager, reduction and modifier", _AGAINST_REFERENCES
        what = setting.variable_update if setting else every
        with progress.counted("comparing", number):
            return _report(results, f"{what} on {plan.description}", config.output.output_format, against)


def _in_cluster(config: Config, cluster: Cluster, chosen: Sequence[Case] | None, deadlines: Deadlines) -> ExitStatus:
    """Does this task's part; the leader prints the table."""
    from benchmarks.cluster.member import ClusterTeam
    from benchmarks.run import cluster_run
    from benchmarks.verify import cases, comparisons

    status = ExitStatus.OK

    def work(team: ClusterTeam) -> None:
        nonlocal status
        results = comparisons.results(config.devices, chosen, cases.rule_of(config.training), team=team)
        if team.is_leader:
            what = config.variables.variable_update if chosen else "Every manager that works across processes"
            workers = counted(cluster.num_workers, "worker")
            status = _report(results, f"{what} on {workers}", config.output.output_format, _AGAINST_REFERENCES)
        else:
            collections.deque(results, maxlen=0)

    works = cluster.own.has_towers or cluster.own == cluster.leader
    cluster_run.take_part(config, cluster, deadlines, work if works else None)
    return status


def _report(results: Iterable[CaseResult], what: str, output_format: str, against: str) -> ExitStatus:
    """Prints a row per result as it arrives, and how many passed; or all at once as JSON."""
    as_text, rows = output_format == "text", []
    if as_text:
        say(f"{what}, {against}\n")
        say(_TABLE.line())
    counts = {"ok": 0, "FAIL": 0, "-": 0}
    for result in results:
        progress.advance()
        row = _row(result)
        counts[row["result"]] += 1
        rows.append(row)
        if as_text:
            error = "" if result.error is None else f"{result.error:.1e}"
            what = f"{row['what']}: {result.reason}" if result.reason else row["what"]
            say(_TABLE.line([row["result"], error, f"{row['may_be']:.0e}", row["against"], what]))
    if as_text:
        say(f"\n{counts['ok']} ok, {counts['FAIL']} failed, {counts['-']} cannot run here.")
    else:
        say(json.dumps({"what": what, "rows": rows, "counts": counts}))
    if counts["FAIL"]:
        warn("The failed rows compute wrongly on these devices, or not at all: do not trust their speed either.")
        return ExitStatus.RUN_FAILED
    return ExitStatus.OK


def _row(result: CaseResult) -> dict[str, Any]:
    """Returns a result as JSON can hold it; an error that is not finite is null."""
    return {
        "result": "-" if result.error is None else "ok" if result.passed else "FAIL",
        "error": result.error if result.error is not None and math.isfinite(result.error) else None,
        "may_be": result.case.tolerance,
        "against": result.case.reference,
        "what": result.case.title,
        "reason": result.reason,
    }


def _resolve_and_run(given: Parsed, command: Sequence[str]) -> ExitStatus:
    """Verifies on all devices if none are named; starts the cluster first if the flags say so.

    Products are computed in fp32, since TF32 is less exact than what the references allow.
    """
    values = {**given.values, "precision": "fp32"}
    refuse_reference_loop("verify", values["variable_update"])
    one_setting = any(values[flag.name] is not None for flag in SETTING_FLAGS)
    if values["model"]:
        models = _resolve_models(values)
        return run_verify(models[0], one_setting=one_setting, models=models)
    cluster, _ = discovery.resolve_cluster(values, os.environ)
    if cluster and not one_setting:
        values["variable_update"] = discovery.manager_for(cluster)
    if not cluster:
        values = options.default_to_all(values, hardware.count_gpus())
    resolved = resolve(values, hardware.count_gpus)
    if launch_plan.is_asked_for(values):
        return cluster_launch.launch_cluster(resolved, values, command, saves_record=False)
    return run_verify(resolved, one_setting=one_setting)


def _resolve_models(values: Mapping[str, Any]) -> list[Config]:
    """Returns the configuration with each model.

    Raises:
        UsageError: a model does not exist, or is not trained by towers of one process as a whole.
    """
    if launch_plan.is_asked_for(values) or discovery.resolve_cluster(values, os.environ)[0]:
        raise UsageError("--model is verified in one process: omit the cluster, or verify the cluster without --model.")
    for name in ("pipeline_stages", "fc_model_parallel"):
        if values[name]:
            raise UsageError(
                f"--{name} divides the model, and verify --model needs towers that each compute all of it: omit one."
            )
    given, names = options.default_to_all(values, hardware.count_gpus()), outside_models.names_in(values["model"])
    configs = [resolve({**given, "model": name}, hardware.count_gpus) for name in names]
    return list({config.workload.model: config for config in configs}.values())


_NO_RULE = "its updates are not compared under managers. Choose sgd, momentum, nesterov or lars"
# Any of these chooses one manager with its modifiers. The precision is fixed.
SETTING_FLAGS = tuple(flag for flag in RUN_FLAGS["Variables and gradients"] if flag.name != "keras_application")
UPDATE_FLAGS = (
    Flag(
        "optimizer",
        str,
        "optimizer of the comparison",
        ("sgd", "momentum", "nesterov", "lars"),
        default="sgd and momentum",
        gone=(("rmsprop", f"rmsprop: {_NO_RULE}."), ("adam", f"adam: {_NO_RULE}.")),
    ),
    *(flag for flag in RUN_FLAGS["Optimizer"] if flag.name in ("gradient_clip", "gradient_clip_norm")),
)
VERIFY_FLAGS: Groups = {
    "What is trained": (
        Flag(
            "model",
            str,
            "train these models instead of the small networks, such as resnet20,keras:MobileNetV2; also your own, "
            "as in run",
        ),
    ),
    "Devices": SEVERAL_DEVICES,
    "Variables and gradients": SETTING_FLAGS,
    "Updates": UPDATE_FLAGS,
    "Several processes": RUN_FLAGS["Several processes"],
    "Output": (
        Flag(
            "output_dir",
            str,
            "directory of the logs of the tasks, with --local_cluster or --hosts",
            default="out",
            path="directory",
        ),
        *only(RUN_FLAGS["Output"], "output_format"),
    ),
}
VERB = Verb(
    "verify",
    VERIFY_FLAGS,
    _resolve_and_run,
    details="Each manager trains two scalars, compared with NumPy, and a small network, compared with one device on "
    "the whole batch; and computing gradients alone must not change variables. With a flag on variables and gradients: "
    "only that manager with these modifiers. With --model, instead of these comparisons, each manager takes three "
    "steps of the model with 2 images per tower, and every loss, weight and moving average is compared with gradients "
    "computed one tower at a time, and updates in NumPy.",
    examples=(
        "verify",
        "verify --device=cpu --num_gpus=3",
        "verify --num_gpus=4 --variable_update=replicated --all_reduce_spec=xring",
        "verify --local_cluster=ps:2,worker:2",
        "verify --device=cpu --num_gpus=2 --optimizer=lars --gradient_clip=0.5",
        "verify --device=cpu --num_gpus=2 --model=resnet20,keras:MobileNetV3Small",
    ),
)
