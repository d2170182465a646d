"""Weights & Biases: a run of its own for each record, with the same id."""

from __future__ import annotations

import wandb

from benchmarks.trackers.tracked_run import TrackedRun

# The machine, the program and the files that send are not those that were measured.
_ONLY_WHAT_IS_SENT = {
    "console": "off",
    "disable_git": True,
    "save_code": False,
    "silent": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}
_FAILED = 1
# Longer names are rejected by the server. Their ends, such as the run id, distinguish them.
_LONGEST_NAME = 128


def send(run: TrackedRun, target: str) -> str:
    """Sends a run to the project `target`.

    If that has it, its configuration, summary and notes are replaced, and its steps stay.
    WANDB_MODE, WANDB_ENTITY and the library's other variables apply.
    """
    sent = wandb.init(
        project=target,
        id=run.run_id,
        name=run.name[-_LONGEST_NAME:],
        group=run.group[-_LONGEST_NAME:] or None,
        tags=[label[:64] for label in run.labels],
        notes=run.notes or None,
        config={**run.parameters, "facts": dict(run.tags)},
        allow_val_change=True,
        resume="allow",
        settings=wandb.Settings(**_ONLY_WHAT_IS_SENT),
    )
    if sent.disabled:
        raise ValueError("WANDB_MODE or WANDB_DISABLED says that nothing is sent")
    try:
        for point in run.points:
            sent.log({**point.values, "seconds_since_start": point.at - run.began}, step=point.step)
        sent.summary.update(dict(run.metrics))
    except Exception:
        sent.finish(exit_code=_FAILED)  # the next run would be part of it
        raise
    where = sent.url or sent.settings.sync_dir
    sent.finish(exit_code=0 if run.is_ok else _FAILED)
    return str(where)
