"""Runs the stages of the step-time breakdown, each in a process of its own and in limited time. No TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from benchmarks.config import config, run_flags
from benchmarks.config.config import Config
from benchmarks.config.output import Output
from benchmarks.console import in_words, progress, say
from benchmarks.data.sources.data_sets import DATA_SETS, SYNTHETIC, existing_directory
from benchmarks.devices import options
from benchmarks.doctor import advice
from benchmarks.doctor.breakdown import Breakdown, Part, Setting, Stage
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.microbench import device_peak
from benchmarks.process import subprocesses
from benchmarks.process.signals import until_stopped
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.sweep import grid
from benchmarks.sweep.isolated_run import PROGRAM, CellRunner, new_session
from benchmarks.training import computing
from models import specs
from results.gate.rounds import why_failed
from results.intervals import Interval, geometric_mean
from results.measurement import Measurement
from results.record import Record, Status
from results.step_statistics import MIN_STEPS_FOR_INTERVAL
from results.text import counted

DEFAULT_BUDGET_SECONDS = 300.0
# A process starts, measures the peak and counts the operations of a step, after the stages.
_ROOFLINE_SECONDS = 15.0
# The smallest step: one image and few weights. With `trivial`, whose weights are 17 MB, the update alone took 36 ms on
# two busy cores, where this took 0.6 ms.
_SMALLEST_STEP = {"model": "mlp", "batch_size": "1", "num_gpus": "1", "variable_update": "independent"}
_FIXED_STEPS = "1000"
# GPUs are chosen once, by what this process leaves visible to those that it starts.
_NOT_PASSED_ON = ("device", "num_gpus", "gpus", "log_device_placement")
# Every run gets at least this time.
_LEAST_SECONDS = 10.0
_MARGIN = 1.5  # the next run may start later, and its steps do more
# A run ends itself when its time is over; one that still runs so much later hangs.
_STUCK_SECONDS = 300.0
_FAKE_PHOTOS = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class BreakdownPlan:
    """What is broken down, on the devices of the last stage.

    `common` are the flags of every stage. The time is for all of them together, as far as runs can be shortened.
    """

    setting: Setting
    output: Output
    common: Mapping[str, str]
    budget_seconds: float


def breakdown_setting(values: Mapping[str, Any], count_gpus: Callable[[], int]) -> tuple[Config, BreakdownPlan]:
    """Turns flag values (None: not given) into the last stage and a plan of all.

    By default, the devices are all GPUs, or two logical devices on a CPU.

    Raises:
        UsageError: values that make no sense or do not go together.
    """
    gpus = 0 if values["device"] == "cpu" else count_gpus()
    # A single GPU is not split: training on two halves of one is not a real use.
    unsplit = {"virtual_gpus": 1} if gpus and values["virtual_gpus"] is None else {}
    chosen = config.resolve(options.default_to_all({**values, **unsplit}, gpus), count_gpus, environ={})
    names = [flag.name for flag in run_flags.RUN_FLAGS["Devices"] if flag.name not in _NOT_PASSED_ON]
    given = {name: str(values[name]).lower() for name in names if values[name] is not None}
    spec = specs.find_model(chosen.workload.model)
    setting = Setting(
        workload=chosen.workload,
        devices=chosen.devices,
        precision=chosen.computing.precision,
        manager=values["variable_update"] or chosen.variables.variable_update,
        photos=spec.data_name == "imagenet",
        in_16_bits=_in_16_bits(chosen.devices),
        takes_xla=_takes_xla(chosen.devices, chosen.computing.precision),
        as_matmul=computing.as_matmul_of(spec),
        lacks_onednn=chosen.devices.onednn is None and computing.onednn_mode(os.environ) == "off",
        data_dir=chosen.data.data_dir,
    )
    return chosen, BreakdownPlan(
        setting=setting,
        output=chosen.output,
        common={"device": chosen.devices.device, **given},
        budget_seconds=values["budget_seconds"] or DEFAULT_BUDGET_SECONDS,
    )


def _in_16_bits(devices: Devices) -> str | None:
    """Returns the precision of 16 bits for which the devices have tensor cores or instructions; None: none is known."""
    if not devices.on_gpu:
        return "bf16" if computing.has_instructions("bf16") else None
    known = [gpu.compute_capability for gpu in options.chosen_gpus(devices).gpus if gpu.compute_capability]
    return next((name for name in computing.IN_16_BITS if name in computing.tensor_core_precisions(known)), None)


def _takes_xla(devices: Devices, precision: str) -> bool:
    """Returns whether the devices are GPUs for which XLA compiles."""
    try:
        options.judge(options.chosen_gpus(devices), precision=precision, xla="jit")
    except UsageError:
        return False
    return devices.on_gpu


def _planned(plan: BreakdownPlan) -> Generator[tuple[Stage, Mapping[str, str]]]:
    """Yields all stages with their flags; one that is left out, or has failed, has its reason.

    Generated images exist from when the last one is asked for until the iterator is closed.
    """
    of = plan.setting
    name, batch, count, manager = of.workload.model, of.workload.batch_per_device, of.devices.num_devices, of.manager
    model = {"model": name, "batch_size": str(batch), "precision": of.precision}
    alone = {**model, "num_gpus": "1", "variable_update": "independent" if count > 1 else manager}
    independent = {**model, "num_gpus": str(count), "variable_update": "independent"}
    exchanging = {**independent, "variable_update": manager}
    images, left_out = f"{os.path.basename(name)}, {batch} images", _left_out(of)

    def stage(part: Part, what: str, failure: str = "") -> Stage:
        reason = left_out.get(part, failure)
        return Stage(part=part, what=what, images=of.images_of(part), failed=bool(failure), reason=reason)

    yield stage(Part.FIXED, "mlp, 1 image on 1 device"), {**_SMALLEST_STEP, "num_batches": _FIXED_STEPS}
    yield stage(Part.COMPUTE, f"{images} on 1 device"), alone
    yield stage(Part.DEVICES, f"{images} on each of {count} devices"), independent
    yield stage(Part.EXCHANGE, f"gradients are exchanged: {manager}"), exchanging
    yield stage(Part.HOST_COPY, "images come from the host"), {**exchanging, "data_name": "synthetic_host"}
    if of.data_dir:
        yield stage(Part.INPUT, "images are read: yours"), {**exchanging, "data_dir": of.data_dir}
        return
    with tempfile.TemporaryDirectory(prefix="run_bench_doctor_") as directory:
        failure = "" if Part.INPUT in left_out else _generate_images(specs.find_model(name).data_name, directory)
        yield stage(Part.INPUT, "images are read: generated", failure), exchanging | {"data_dir": directory}


def _left_out(of: Setting) -> dict[Part, str]:
    """Returns the stages that would show nothing or cannot be, with the reason."""
    reasons = {}
    if of.devices.num_devices == 1:
        reasons = dict.fromkeys((Part.DEVICES, Part.EXCHANGE), "there is one device")
    elif of.manager == "independent":
        reasons = {Part.EXCHANGE: "independent exchanges nothing"}
    spec = specs.find_model(of.workload.model)
    if not of.data_dir and (spec.data_name == SYNTHETIC or spec.classes != DATA_SETS[spec.data_name].classes):
        unlike = f"no data set that can be generated has the images and the {spec.usual_outputs} classes of the model"
        reasons[Part.INPUT] = unlike
    return reasons


def _generate_images(data_name: str, directory: str) -> str:
    """Returns why it failed; empty if it did not."""
    number = (f"--train_images={_FAKE_PHOTOS}",) if data_name == "imagenet" else ()
    progress.begin("making images to read", measured=True)
    words = [*PROGRAM, "data", f"make_{data_name}", directory, *number]
    ended, output = subprocesses.captured(words, _STUCK_SECONDS)
    lines = output.decode(errors="replace").strip().splitlines() or ["no message"]
    return "" if ended.returncode == 0 else f"images could not be made: {lines[-1]}"


def measure_breakdown(
    plan: BreakdownPlan, command: Sequence[str], disturbing: Sequence[str] = ()
) -> tuple[dict[str, Any], ExitStatus]:
    """Runs all stages; as text, prints the row of each as soon as it is known, then shares and advice.

    `disturbing` are the names of the checks of this machine that failed.

    Returns:
        Both under `breakdown` and `roofline`, in JSON's types; RUN_FAILED if a stage failed, or how it was stopped.

    Raises:
        UsageError: results cannot be saved.
        DataError: `--data_dir` is missing or empty.
    """
    of = plan.setting
    if of.data_dir is not None:  # reported before the first stage, not at the last one
        existing_directory(specs.find_model(of.workload.model).data_name, of.data_dir)
    show = say if plan.output.output_format == "text" else lambda *lines: None
    stages = _StageRunner(plan, command, show)
    longer = ", longer on a machine as busy as this" if disturbing else ""
    devices = counted(of.devices.num_devices, "GPU" if of.devices.on_gpu else "logical CPU device")
    show(
        f"\nWhere does the time go? {of.workload.model}, {of.precision}, {of.manager}, {devices}, "
        f"{of.workload.batch_per_device} images each; {_duration(plan)}{longer}.\n"
    )
    show(advice.TABLE.line())
    roofline, about_roofline = None, list[str]()

    def work() -> None:
        nonlocal roofline, about_roofline
        stages.run_all()
        (compute,) = [stage.images_per_sec for stage in stages.done if stage.part is Part.COMPUTE]
        if compute:
            progress.begin("measuring the roofline", measured=True)
            roofline, why_not = device_peak.roofline_apart(
                of.workload, of.devices.device, of.precision, compute.value, disturbing
            )
            lines = [*roofline.sentences(), why_not] if roofline else [f"No roofline: {why_not}"]
            progress.end()
            about_roofline = ["The stage compute, on one device, and its roofline:", *filter(None, lines)]

    status = until_stopped(work, "Stopped before the last stage: the results so far follow.")
    breakdown = Breakdown(stages.done)
    share = roofline.share_of_bound if roofline else None
    attained = share if share is not None and share <= 1 else None  # a roofline that is exceeded is no bound
    setting = dataclasses.replace(of, attained=attained, disturbing=disturbing)
    sentences = advice.sentences(breakdown, setting)
    records = [f"records: {stages.runner.store.jsonl_path}"]
    for section in (advice.shares(breakdown, setting), about_roofline, sentences, records):
        if section:
            show("", *section)
    if status is ExitStatus.OK and any(stage.failed for stage in breakdown.stages):
        status = ExitStatus.RUN_FAILED
    return {
        "breakdown": {**breakdown.to_dict(), "setting": dataclasses.asdict(setting), "sentences": sentences},
        "roofline": device_peak.to_dict(roofline) if roofline else None,
    }, status


def _duration(plan: BreakdownPlan) -> str:
    stages = len(Part) - len(_left_out(plan.setting))
    least = _LEAST_SECONDS * stages
    why = "" if plan.budget_seconds >= least else f", since each of {stages} stages needs {_LEAST_SECONDS:g} s"
    return f"about {in_words(max(least, plan.budget_seconds) + _ROOFLINE_SECONDS)}{why}"


class _StageRunner:
    """Runs stage after stage, and shows each row as soon as it is known; the results stay in `done` if interrupted."""

    def __init__(self, plan: BreakdownPlan, command: Sequence[str], show: Callable[[str], None]) -> None:
        directory, on_gpus = plan.output.output_dir, plan.setting.devices.on_gpu
        self.done: list[Stage] = []
        self.runner = CellRunner(
            output_dir=directory,
            provenance=new_session(command, on_gpus=on_gpus),
            timeout_seconds=plan.budget_seconds + _STUCK_SECONDS,
        )
        self._plan, self._show = plan, show
        self._end = time.monotonic() + plan.budget_seconds
        self._ran: dict[Part, Mapping[str, str]] = {}
        stages = len(Part) - len(_left_out(plan.setting))
        self._seconds = max(_LEAST_SECONDS, plan.budget_seconds / (2 * stages))  # each runs twice

    def run_all(self) -> None:
        """Runs all stages, and those of the model again if time is left."""
        with contextlib.closing(_planned(self._plan)) as planned:
            for stage, flags in planned:
                self._add(stage, flags)
            self._run_again()  # while generated images exist

    def _add(self, stage: Stage, flags: Mapping[str, str]) -> None:
        """Runs a stage; if it measured too few steps, again for as long as it needs, and so all later ones."""
        if not stage.reason:
            record = self._run_stage(stage, flags)
            if record.status is Status.OK and len(record.measurement.step_seconds) < MIN_STEPS_FOR_INTERVAL:
                self._seconds = max(self._seconds, _seconds_for_interval(record.measurement))
                record = self._run_stage(stage, flags)
            self._ran[stage.part] = flags
            derived, images_per_sec = record.derived, record.rate
            if images_per_sec is not None:
                interval = Interval.of(images_per_sec, derived.images_per_sec_low, derived.images_per_sec_high)
                stage = dataclasses.replace(stage, images_per_sec=interval)
            elif record.status is Status.SKIPPED:
                stage = dataclasses.replace(stage, reason=record.reason)
            else:
                stage = dataclasses.replace(stage, failed=True, reason=why_failed(record))
        self.done.append(stage)
        self._show(advice.row(Breakdown(self.done), stage.part))

    def _run_stage(self, stage: Stage, flags: Mapping[str, str]) -> Record:
        words = {**self._plan.common, **flags, "time_limit_seconds": f"{self._seconds:.0f}"}
        count_gpus = functools.partial(len, self.runner.provenance.inventory.gpus)
        (cell,) = grid.cells([{name: [value] for name, value in words.items()}], count_gpus)
        return self.runner.run_cell(cell, f"{stage.part}: {stage.what}") if cell.runs else self.runner.refuse(cell)

    def _run_again(self) -> None:
        """Runs the stages of the model once more while time is left: that shows by how much processes differ."""
        for number, stage in enumerate(self.done):
            if stage.failed:  # what comes after it is unknown
                break
            if stage.images_per_sec and stage.part is not Part.FIXED:
                if self._end - time.monotonic() < self._seconds:
                    break
                second = self._run_stage(stage, self._ran[stage.part]).rate
                if second is not None:
                    rates = [stage.images_per_sec.value, second]
                    middle = Interval(geometric_mean(rates))
                    self.done[number] = dataclasses.replace(stage, images_per_sec=middle, rates=rates)
        breakdown = Breakdown(self.done)
        if breakdown.degrees:
            self._show(f"\n{counted(breakdown.degrees, 'stage')} ran twice; with both runs of each:")
            for part in self._ran:
                self._show(advice.row(breakdown, part))


def _seconds_for_interval(measurement: Measurement) -> float:
    seconds = measurement.step_seconds
    if not seconds:
        return 0.0
    before = (measurement.startup_seconds or 0.0) + (measurement.first_step_seconds or 0.0)
    before += sum(measurement.warmup_step_seconds)
    return _MARGIN * (before + MIN_STEPS_FOR_INTERVAL * sum(seconds) / len(seconds))
