"""`--verify_first`: compares a run's manager with the references before the run, in a process of its own.

So the run's own process starts as without it, and devices are free again. The model and precision are those of
`verify`, and so is the optimizer, unless it is one that `verify` can choose.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.config import run_flags
from benchmarks.config.config import Config
from benchmarks.console import progress, say
from benchmarks.errors import BenchError, ExitStatus, InvalidRunError
from benchmarks.measure.run_log import RunLog, leave_out
from benchmarks.process import subprocesses
from benchmarks.verify.verify_verb import SETTING_FLAGS, UPDATE_FLAGS
from results.text import counted

_SHARE_OF_WAIT = 0.8
_COMPARED = ("nesterov", "lars")  # instead of sgd and momentum
_ON_THESE_DEVICES = ("gpus", "gpu_memory_frac", "allow_growth")


def verify(config: Config, given: Mapping[str, Any], log: RunLog) -> None:
    """Runs `verify` for the manager of a run, and notes the result in its log.

    A run in a cluster is verified by its leader in a cluster of the same shape on the leader's host, with logical CPU
    devices, since the other devices are of other processes.

    Args:
        config: of the run.
        given: the values of its flags.
        log: of the run; receives `verified`. Its time does not include this.

    Raises:
        InvalidRunError: a comparison failed.
        BenchError: nothing could be compared.
    """
    words, begun = ["verify", *run_flags.words(_flags(config, given))], time.monotonic()
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        command = [sys.executable, str(subprocesses.RUN_BENCH), *words, "--output_format=json"]
        progress.begin("verifying the manager")
        child = subprocesses.Command(words=command, stdout=stdout, stderr=stderr)
        # Its steps have limits. The other tasks of a cluster wait for this one.
        limit_seconds = _SHARE_OF_WAIT * config.start_timeout_seconds if config.cluster else None
        (ended,) = subprocesses.run(child, timeout_seconds=limit_seconds)
        progress.end()
        stdout.seek(0)
        stderr.seek(0)
        report: dict[str, Any] = {}
        with contextlib.suppress(ValueError):
            report = json.loads(stdout.read())
        said = stderr.read().decode(errors="replace").strip().splitlines()
    leave_out(time.monotonic() - begun)
    repeat = f"`run_bench.py {shlex.join(words)}` repeats it."
    compared = [row for row in report.get("rows", []) if row["result"] != "-"]
    if ended.timed_out:
        raise BenchError(
            f"--verify_first: the comparisons took longer than {limit_seconds:g} s, while the other tasks wait: pass a "
            f"larger --start_timeout_seconds. {repeat}"
        )
    if not compared or ended.returncode not in (ExitStatus.OK, ExitStatus.RUN_FAILED):
        error = BenchError(
            f"--verify_first: nothing was compared (status {ended.returncode}): {(said or [''])[-1]} {repeat}"
        )
        if ended.returncode in set(ExitStatus):
            error.exit_status = ExitStatus(ended.returncode) or ExitStatus.RUN_FAILED
        raise error
    failed = [row for row in compared if row["result"] == "FAIL"]
    largest = max((row["error"] for row in compared if row["error"] is not None), default=None)
    log.verified = {
        "command": words,
        "comparisons": len(compared),
        "failed": len(failed),
        "largest_error": largest,
        "rows": compared,
    }
    if failed:
        worst = failed[0]
        differs = "not a number" if worst["error"] is None else f"{worst['error']:.1e}"
        differs = worst["reason"] or f"the error is {differs} and may be {worst['may_be']:g}"
        raise InvalidRunError(
            f"--verify_first: {len(failed)} of {counted(len(compared), 'comparison')} of {report['what']} failed, so "
            f"nothing was measured; the first against {worst['against']}: {differs}. {repeat}"
        )
    if config.output_format == "text":
        say(f"Verified:   {counted(len(compared), 'comparison')} of {report['what']}, largest error {largest:.1e}")


def _flags(config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flags of `verify` by name."""
    setting = {flag.name: given[flag.name] for flag in SETTING_FLAGS}
    setting["variable_update"] = given["variable_update"] or config.variable_update
    updates = {flag.name: given[flag.name] for flag in UPDATE_FLAGS}
    if updates["optimizer"] not in _COMPARED:
        updates["optimizer"] = None
    setting["micro_batches"] = None  # they divide the images of `verify`
    common = {
        "num_gpus": config.num_devices,
        **setting,
        **updates,
        "step_timeout_seconds": given["step_timeout_seconds"],
    }
    if config.cluster is None:
        same = {name: given[name] for name in _ON_THESE_DEVICES}
        split = config.virtual_gpus if config.virtual_gpus > 1 else None
        return {"device": config.device, "virtual_gpus": split, **same, **common}
    servers = f"ps:{config.num_ps}," if config.num_ps else ""
    return {
        "device": "cpu",
        "local_cluster": f"{servers}worker:{config.num_workers}",
        "private_network": given["private_network"],
        "output_dir": config.output_dir,
        **common,
    }
