"""The verb `scaling`: measures 1, 2, 4, ... devices or workers, and predicts how many more pay. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster import launch_plan
from benchmarks.config.run_flags import DEFAULTS
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.machine import hardware
from benchmarks.option import Flag, Groups
from benchmarks.outside_text import whole_number
from benchmarks.sweep import grid, sweep_verb
from benchmarks.sweep.grid import Cell
from results.record import Record
from results.report import headline, scalability
from results.summary import summarize
from results.text import counted

_REPEATS = 3
_NOT_HERE = ("repeats", "suite", "output_format")
_ONE_THREAD = {"num_intra_threads": ["1"], "num_inter_threads": ["1"]}


def run_scaling(values: Mapping[str, Any], command: Sequence[str]) -> ExitStatus:
    """Runs different numbers of devices or workers, fits a curve to each combination of the other flags, and draws it.

    Raises:
        UsageError: a value is out of range, fewer than two numbers of devices have hardware of their own, or results
            cannot be stored.
    """
    noun = "worker" if values["local_cluster"] or values["hosts"] else "device"
    cells = grid.runnable([_grid(values)], hardware.count_gpus)
    _refuse_one_number(cells, noun)

    def show(finished: Sequence[Record]) -> None:
        rows = summarize(finished)
        curves = list(scalability.curves(rows, [noun], least=1))
        for curve in curves:
            say(curve.title, *scalability.table(curve).text(), "", *scalability.verdict(curve), "")
        say(*headline.reasons(rows))
        _draw(curves, Path(values["output_dir"] or DEFAULTS["output_dir"]))

    return sweep_verb.run_cells(cells, {**values, "repeats": values["repeats"] or _REPEATS}, command, show)


def _grid(values: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """Returns the values of each flag, with several ones for the flag that sets the number of devices or workers.

    Raises:
        UsageError: a flag names no possible cluster or number.
    """
    given: dict[str, Sequence[str]] = dict(grid.of_flags(values))
    if values["hosts"]:
        names = launch_plan.host_names(values["hosts"])
        return {**given, "hosts": [",".join(names[:number]) for number in grid.doublings(len(names))]}
    gpus = hardware.count_gpus()
    is_without = not gpus and not hardware.gpu_inventory().problem
    on_cpu = given.get("device") == ["cpu"] or is_without and "device" not in given
    kind = {"device": ["cpu"]} if on_cpu else {}
    if clusters := given.get("local_cluster"):
        if len(clusters) == 1:
            largest = launch_plan.on_this_host(clusters[0])
            servers = f"ps:{largest.num_ps}," if largest.num_ps else ""
            clusters = [f"{servers}worker:{number}" for number in grid.doublings(largest.num_workers)]
        if on_cpu and not set(_ONE_THREAD) & set(given):
            warn("Each task has one thread (--num_intra_threads=1 --num_inter_threads=1), so that each has a core.")
            kind |= _ONE_THREAD
        return {**given, **kind, "local_cluster": clusters}
    numbers = given.get("num_gpus", [])
    if len(numbers) < 2:
        here = len(values["gpus"].split(",")) if values["gpus"] else gpus
        most = numbers[0] if numbers else str(hardware.usable_cores() if on_cpu else max(1, here))
        if not (largest_number := whole_number(most)):
            raise UsageError(f"--num_gpus={most}: give the largest number of devices, or a list such as 1,2,4.")
        numbers = [str(number) for number in grid.doublings(largest_number)]
    return {**given, **kind, "num_gpus": numbers}


def _refuse_one_number(cells: Sequence[Cell], noun: str) -> None:
    """Raises a `UsageError` unless cells of different numbers of devices can run that do not share hardware."""
    configs = {
        config.devices.num_devices if noun == "device" else config.processes.num_workers: config
        for cell in cells
        if (config := cell.config)
    }
    cores = hardware.usable_cores()
    on_hosts = any(config.processes.num_hosts > 1 for config in configs.values())  # whose devices may be others
    shared = [n for n, config in configs.items() if not on_hosts and scalability.shares(config.to_dict(), noun, cores)]
    if len(configs) - len(shared) >= 2:
        return
    if shared:
        what, instead = scalability.sharing(configs[max(configs)].to_dict(), noun)
        raise UsageError(f"scaling: {what}, and nothing could be predicted from them. Instead, {instead}.")
    others = "Use several GPUs, several hosts (--hosts=host_0,host_1 --ssh), or --device=cpu --local_cluster=worker:2."
    why = next((cell.why_not for cell in cells if cell.config is None), "") or others
    what = f"only {counted(min(configs), noun)} can be run here, and different numbers of {noun}s are compared"
    raise UsageError(f"scaling: {what}. {why}")


def _draw(curves: Sequence[scalability.Curve], output: Path) -> None:
    """Writes the curves as `scaling.svg` and `scaling.png`."""
    try:
        from results.report import figures, plots  # with matplotlib, which takes its time

        plot = figures.Plot("scaling", "Scaling", "", lambda _: plots.of_curves(curves))
        for _ in figures.drawn([plot], [], output):
            say(f"{output / 'scaling.svg'} and scaling.png")
    except OSError as error:
        warn(f"{output / 'scaling.svg'} could not be written: {error.strerror or error}.")


SCALING_FLAGS: Groups = {
    "The measurement": (
        Flag("repeats", int, "runs of each combination, each in a fresh process", default=_REPEATS, at_least=1),
        *(flag for flag in sweep_verb.SWEEP_FLAGS["The sweep"] if flag.name not in _NOT_HERE),
    )
}
VERB = Verb(
    "scaling",
    SCALING_FLAGS,
    lambda given, command: run_scaling(given.values, command),
    takes="lists",
    details="Runs 1, 2, 4, ... devices up to all GPUs or --num_gpus; with --local_cluster=worker:N or --hosts, "
    "workers. A list such as --num_gpus=1,3,6 sets the numbers. Each combination of other flags is a curve.",
    examples=(
        "scaling --model=resnet50 --variable_update=replicated,independent",
        "scaling --model=resnet20 --device=cpu --local_cluster=worker:2 --variable_update=collective_all_reduce",
    ),
)
