"""The verb `verify`: is the arithmetic of every manager right on these devices? Imports TensorFlow late."""

from __future__ import annotations

from benchmarks import process_environment
from benchmarks.config import Config
from benchmarks.display import say, warn
from benchmarks.errors import ExitStatus


def run(config: Config) -> ExitStatus:
    """Prints a row per comparison and a closing line.

    Raises:
        UsageError: the devices are not there.
    """
    process_environment.prepare(device=config.device, visible_gpus=config.visible_gpus)
    process_environment.import_tensorflow()
    from benchmarks import devices, verify

    if config.device == "gpu":
        devices.require_gpus(config.num_devices, virtual_gpus=config.virtual_gpus)
    plan = devices.plan(config.device, config.num_devices, virtual_gpus=config.virtual_gpus, shared_on="cpu")
    say(f"Every manager, reduction and modifier on {plan.description}, against NumPy (sgd, momentum) and against one")
    say("device with the whole batch. The error is the largest relative difference, absolute below 1.\n")
    say(f"{'':4}  {'error':>8}  {'may be':>8}  {'against':<11}  what")
    counts = {"ok": 0, "FAIL": 0, "-": 0}
    for verdict in verify.verdicts(
        config.device,
        config.num_devices,
        config.virtual_gpus,
        lambda count: devices.session_config(config.device, count, **config.session_options()),
    ):
        word = "-" if verdict.error is None else "ok" if verdict.passed else "FAIL"
        counts[word] += 1
        error = "" if verdict.error is None else f"{verdict.error:.1e}"
        line = (
            f"{word:4}  {error:>8}  {verdict.case.tolerance:>8.0e}  {verdict.case.reference:<11}  {verdict.case.title}"
        )
        say(f"{line}: {verdict.reason}" if verdict.reason else line)
    say(f"\n{counts['ok']} ok, {counts['FAIL']} failed, {counts['-']} cannot run here.")
    if counts["FAIL"]:
        warn("The arithmetic of the failed rows is wrong on these devices: do not trust their speed either.")
        return ExitStatus.RUN_FAILED
    return ExitStatus.OK
