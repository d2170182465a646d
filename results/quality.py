"""Quality warnings: sentences that say what was seen, why it makes the number less reliable, and what to try."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from results.input_bottleneck import LEAST_REPORTED_WAIT, advice
from results.measurement import POWER_LIMIT, Derived, Measurement, named_gpus
from results.step_statistics import MIN_STEPS_FOR_INTERVAL, rate, rate_jitter
from results.text import counted

OTHERS_SHARE = 0.10
# How the warning begins of a cluster of which the record has the facts of one task only.
UNLIKE_WORKERS = "Workers have unlike"
_UNSTEADY_SHARE = 0.10
_DRIFT_SHARE = 0.10
_MIN_STEPS_FOR_TREND = 10
# A step is a pause if it takes so many times the median, and has such a share of all.
_PAUSE_FACTOR = 10.0
_PAUSE_SHARE = 0.05
_LOSS_RISE = 1.5
_STRAGGLER_RATIO = 1.25
_THROTTLED_SHARE = 0.01
_CLOCK_FALL_SHARE = 0.05


def quality_warnings(
    measurement: Measurement, derived: Derived, config: Mapping[str, Any], environment: Mapping[str, Any]
) -> list[str]:
    """Returns a sentence for each reason not to rely on the number of a run, from the parts of its record."""
    is_training = not config.get("forward_only")
    averages_every = (config.get("modifiers") or {}).get("local_sgd_steps", 0) if is_training else 0
    return [
        *_of_conditions(measurement, config, environment, averages_every),
        *_of_workers(measurement, derived, config),
        *_of_gpus(measurement),
        *_of_input(measurement, derived, config),
        *_of_steps(measurement, derived, averages_every or 1, is_training=is_training),
        *_of_evaluations(measurement, config.get("stop_at_top_1_accuracy")),
    ]


def warnings_of_others(used: float | None, cores: int, when: str) -> Iterator[str]:
    """Warns of other processes that used so many cores on average; None: it is unknown."""
    if used is not None and used > OTHERS_SHARE * cores:
        yield (
            f"Other processes used {used:.1f} of {counted(cores, 'core')} {when}, which may have slowed it: repeat it "
            "on an idle machine ('run_bench.py doctor --nobreakdown' names them)."
        )


def warnings_of_shared_cores(cpu_devices: int, cores: int) -> Iterator[str]:
    """Warns of more logical CPU devices than cores."""
    if cpu_devices > cores:
        yield (
            f"{cpu_devices} logical CPU devices share {counted(cores, 'core')}: this shows that a setting works, not "
            "how it scales on as many real devices."
        )


def _hosts(config: Mapping[str, Any]) -> int:
    """Returns the number of hosts of the workers."""
    cluster = config.get("cluster") or {}
    addresses = ["one"] if cluster.get("local") else cluster.get("workers") or ["one"]
    return len({address.rpartition(":")[0] for address in addresses})


def _cpu_devices(config: Mapping[str, Any]) -> int:
    """Returns the number of logical CPU devices of a host."""
    devices = config.get("num_devices", 0) * config.get("num_workers", 1) // _hosts(config)
    return devices if config.get("device") == "cpu" else 0


def restart_warning(restarts: int) -> str:
    """Returns the warning about a run whose cluster was started again so often."""
    return f"The cluster was started again {counted(restarts, 'time')}; only steps after that are measured."


def _of_evaluations(measurement: Measurement, wanted: float | None) -> Iterator[str]:
    if wanted is not None and measurement.evaluations and measurement.seconds_to_accuracy is None:
        best = max(evaluation["top_1_accuracy"] for evaluation in measurement.evaluations)
        yield (
            f"No evaluation reached --stop_at_top_1_accuracy={wanted:g}: the best accuracy was {best:.4f}. "
            "Train longer with more --num_epochs, or change the learning rate."
        )
    if measurement.evaluations and (wrong := measurement.evaluations[-1].get("background_images")):
        yield (
            f"{wrong} of {measurement.evaluations[-1]['images']} validation images have label 0, the background class: "
            "if their labels count from 0, and those of training from 1, the accuracies are of the wrong classes."
        )


def _of_conditions(
    measurement: Measurement, config: Mapping[str, Any], environment: Mapping[str, Any], averages_every: int
) -> Iterator[str]:
    steps, cores = len(measurement.step_seconds), environment["cpu_cores_usable"]
    if averages_every and steps % averages_every:
        yield (
            f"{steps} steps are no whole rounds of {averages_every} (--local_sgd_steps), each with one "
            "averaging of the weights, so the rate has too many or too few: set --num_batches to "
            f"a multiple of {averages_every}."
        )
    if skipped := sum(measurement.skipped_updates):
        yield (
            f"{skipped:.0f} of {steps} measured steps updated nothing, since gradients overflowed in float16. Such a "
            "step is shorter, so the rate is too high: increase --num_warmup_batches or reduce --fp16_loss_scale."
        )
    # Of a cluster's processes on this host only those that measure are known. Interleaved runs load each other: they
    # have no telemetry.
    seen = measurement.telemetry
    during = seen[0].get("cpu_cores_used_by_others") if len(seen) == 1 and not config.get("cluster") else None
    if during is not None:
        yield from warnings_of_others(during, cores, "during the measurement")
    elif seen:
        yield from warnings_of_others(environment.get("cores_used_by_others_before"), cores, "directly before the run")
    yield from warnings_of_shared_cores(_cpu_devices(config), cores)
    if config.get("eval_only"):
        # The number of images decides on the number of steps.
        if steps == 1:
            yield "The images are too few to measure more, so the rate is that of one step: reduce --eval_batch_size."
    elif 0 < steps < MIN_STEPS_FOR_INTERVAL:
        yield (
            f"Only {counted(steps, 'step')} {'was' if steps == 1 else 'were'} measured, too few for an interval: "
            "increase --num_batches or --time_limit_seconds."
        )


def _of_workers(measurement: Measurement, derived: Derived, config: Mapping[str, Any]) -> Iterator[str]:
    if derived.slowest_tower_ratio is not None and derived.slowest_tower_ratio >= _STRAGGLER_RATIO:
        look_at = "its device's clock and temperature, and at what else runs on it"
        if _cpu_devices(config):
            look_at = "what else uses the cores, which all logical CPU devices share"
        yield (
            f"Tower {derived.slowest_tower} takes {derived.slowest_tower_ratio:.1f} x as long as the others: look at "
            f"{look_at}."
        )
    if derived.straggler_ratio is not None and derived.straggler_ratio >= _STRAGGLER_RATIO:
        what = "a step" if measurement.tower_step_seconds else "its gradients, and all others wait for it"
        yield (
            f"Worker {derived.slowest_worker} takes {derived.straggler_ratio:.1f} x as long as the others to {what}: "
            "look at its host's load, clock and temperature, and at its network."
        )


def _of_gpus(measurement: Measurement) -> Iterator[str]:
    """Warns of GPUs that were throttled for another reason than their power limit, which is usual under full load."""
    for name, gpu in named_gpus(measurement).items():
        reasons = [
            f"{why} in {share:.0%} of the samples"
            for why, share in gpu["slowed_shares"].items()
            if why != POWER_LIMIT and share > _THROTTLED_SHARE
        ]
        if reasons:
            yield (
                f"{name} was throttled by {', by '.join(reasons)}: its steps take longer than they should; look at its "
                "cooling and power."
            )
        before, after = gpu["clock_mhz_by_half"]
        if before and after and after < (1 - _CLOCK_FALL_SHARE) * before:
            yield (
                f"The clock of {name} fell from {before:.0f} MHz in the first half of the measurement to {after:.0f} "
                "MHz in the second: the machine was not in a steady state; increase --num_warmup_batches, and look at "
                "its cooling and power."
            )


def _of_input(measurement: Measurement, derived: Derived, config: Mapping[str, Any]) -> Iterator[str]:
    share = derived.input_wait_share
    if share is not None and share >= LEAST_REPORTED_WAIT:
        why = _why_it_waited(measurement, derived, config)
        yield f"The run is input-bound: {share:.0%} of the time it waited for images. {why}"
    if skipped := measurement.skipped_records:
        yield (
            f"{skipped} bad records were skipped: 'run_bench.py data check DIR --decode' with this run's --data_split "
            "and --num_classes lists them."
        )


def _why_it_waited(measurement: Measurement, derived: Derived, config: Mapping[str, Any]) -> str:
    """Returns sentences on why a run waited for images, and what to try."""
    stages, options, hosts = measurement.input_stages, config.get("input"), _hosts(config)
    if config.get("data_dir") is None:  # the host made the images once
        return "The host copies them to the devices in every step."
    if not stages or not derived.images_per_sec:
        return "'run_bench.py input' with the same flags measures each stage."
    # Stages are measured on one host, and a run without waiting would need so many images from each.
    needed = derived.images_per_sec / max(1e-3, 1 - (derived.input_wait_share or 0.0)) / hosts
    alone = list(stages.values())[-1]
    why = f"The input alone reaches {alone:.0f} images/s{' on a host' if hosts > 1 else ''}"
    if alone < needed:
        why += f", {needed:.0f} are needed"
    else:
        why += ", but it shares its cores with the steps, or its files were not yet in memory during the run"
    of_run = {**options, "pipelined_input": config.get("pipelined_input")} if options else {}
    return f"{why}; {advice(stages, of_run)}"


def _of_steps(measurement: Measurement, derived: Derived, round_steps: int, *, is_training: bool) -> Iterator[str]:
    seconds = measurement.step_seconds
    if (share := _jitter_share(measurement, derived)) > _UNSTEADY_SHARE:
        yield (
            f"The steps are unsteady (jitter {share:.0%} of the rate): look for other load, a limit of the container's "
            "CPU time, thermal throttling or slow input."
        )
    longest, typical, total = max(seconds, default=0.0), statistics.median(seconds or [0.0]), sum(seconds)
    # Averaging after a round may take long, and asynchronous towers may complete in beats.
    is_even = round_steps == 1 and not measurement.tower_step_seconds
    half = len(seconds) // (2 * round_steps) * round_steps  # one step of a round also averages
    if is_even and longest > _PAUSE_FACTOR * typical > 0 and longest > _PAUSE_SHARE * total:
        yield (
            f"Step {seconds.index(longest) + 1} took {longest:.3g} s, {longest / typical:.0f} times the median, "
            f"{longest / total:.0%} of the measured time: look for what stops the process or its host (suspending, "
            "swapping, compiling), and repeat the run."
        )
    elif len(seconds) >= _MIN_STEPS_FOR_TREND and half:
        change = sum(seconds[-half:]) / sum(seconds[:half]) - 1
        if abs(change) > _DRIFT_SHARE:
            yield (
                f"The second half of the steps was {abs(change):.0%} {'slower' if change > 0 else 'faster'} than the "
                "first: the machine was not in a steady state; increase --num_warmup_batches."
            )
    losses = [loss for loss in (*measurement.warmup_losses, *measurement.losses) if loss is not None]
    # The loss of one batch may be large by chance, as often after a checkpoint, where the first is small.
    if is_training and losses and min(losses[-min(10, (len(losses) + 1) // 2) :]) > _LOSS_RISE * losses[0]:
        yield (
            f"The loss rose from {losses[0]:.3g} to {losses[-1]:.3g}: the model does not learn. The rate may be right, "
            "but try a smaller --init_learning_rate."
        )


def _jitter_share(measurement: Measurement, derived: Derived) -> float:
    # The common steps of asynchronous towers are uneven, so the largest jitter of one tower counts.
    towers = [seconds for seconds in measurement.tower_step_seconds if len(seconds) >= MIN_STEPS_FOR_INTERVAL]
    if measurement.tower_step_seconds:
        return max((rate_jitter(seconds, 1) / rate(seconds, 1) for seconds in towers), default=0.0)
    if not derived.images_per_sec or not derived.images_per_sec_jitter:
        return 0.0
    return derived.images_per_sec_jitter / derived.images_per_sec
