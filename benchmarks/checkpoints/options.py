"""Where the state of a training is saved, and what it begins with. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses

from benchmarks.option import option


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Where and when the state of a training is saved, and what it begins with."""

    train_dir: str | None = option(
        "where checkpoints and summaries are; a run continues from the newest, and saves one at its end; also an "
        "address such as gs://bucket/x",
        default=None,
        path="directory",
        addresses=True,
        unset="",
    )
    save_model_steps: int = option("save a checkpoint after every so many steps; 0: at the end", default=0, at_least=0)
    save_model_secs: int = option("the same in seconds", default=0, at_least=0)
    max_ckpts_to_keep: int = option("how many checkpoints stay; 0: all", default=5, at_least=0)
    initial_weights: str | None = option(
        "begin a training with the weights of a checkpoint, or of Keras' .keras or .h5; the optimizer begins afresh",
        default=None,
        path="file",
        addresses=True,
        unset="",
    )
    max_restarts: int = option(
        "of a cluster that this command starts: start all tasks again, from the newest checkpoint, up to so many "
        "times after one has died",
        default=0,
        at_least=0,
    )
