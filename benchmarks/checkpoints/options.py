"""Where the state of a training is saved, and what it begins with. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses

from benchmarks.option import option


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Where and when the state of a training is saved, and what it begins with."""

    train_dir: str | None = option(
        "directory of checkpoints and summaries; a run resumes from the latest checkpoint, and saves one at its "
        "end; also an address such as gs://bucket/x",
        default=None,
        path="directory",
        addresses=True,
        unset="",
    )
    save_model_steps: int = option("save a checkpoint every this many steps; 0: only at the end", default=0, at_least=0)
    save_model_secs: int = option(
        "save a checkpoint every this many seconds; 0: only at the end", default=0, at_least=0
    )
    max_ckpts_to_keep: int = option("number of checkpoints to keep; 0: all", default=5, at_least=0)
    initial_weights: str | None = option(
        "start training from the weights of a checkpoint, or of a .keras or .h5 file of Keras; without the "
        "optimizer's state",
        default=None,
        path="file",
        addresses=True,
        unset="",
    )
    max_restarts: int = option(
        "maximum restarts of the cluster after a task dies; each resumes from the latest checkpoint; only for a "
        "cluster that this command starts",
        default=0,
        at_least=0,
    )
