"""Damaged checkpoints, two trainings in one directory, and models whose code misbehaves."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from tests.faults.catalog import fault
from tests.faults.harness import ENDLESS, MEASURES, TINY, Scratch, want

_SAVES = ("--save_model_steps=2", "--max_ckpts_to_keep=0")
_MODEL = """
import os, sys, keras

IS_RUN = "model_probe" not in " ".join(sys.orig_argv)


def net():
    images = keras.Input((8, 8, 3))
    return keras.Model(images, keras.layers.Dense(10)(keras.layers.Flatten()(images)))


def exits():
    return sys.exit(0) if IS_RUN else net()


def exits_hard():
    return os._exit(0) if IS_RUN else net()


def raises():
    if IS_RUN:
        raise BaseException("odd")
    return net()
"""


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _flip(path: Path) -> None:
    path.write_bytes(bytes(byte ^ 255 for byte in path.read_bytes()))


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


_DAMAGES: dict[str, Callable[[Path], None]] = {"cut": _cut, "flipped": _flip, "fifo": _fifo}


def _newest(train: Path) -> Path:
    return max(train.glob("model.ckpt-*.index"), key=lambda path: int(path.stem.rpartition("-")[2]))


for _name, _damage in _DAMAGES.items():
    for _part in ("index", "data"):

        @fault(
            f"checkpoint-{_part}-{_name}",
            "R10",
            injects=f"the {_part} of the newest checkpoint is damaged ({_name}); the training continues",
            must="status 0 from the checkpoint before, with a warning that names the damaged one",
        )
        def _damaged(scratch: Scratch, damage: Callable[[Path], None] = _damage, part: str = _part) -> None:
            train = scratch.directory / "train"
            words = ("run", *TINY, "--num_batches=7", "--num_warmup_batches=1", f"--train_dir={train}", *_SAVES)
            scratch.expect(scratch.bench(*words), 0)
            newest = _newest(train)
            damage(newest if part == "index" else newest.with_suffix(".data-00000-of-00001"))
            ended = scratch.bench(*words)
            scratch.expect(ended, 0, says=[f"{newest.stem} is damaged", "is used instead"], records=["ok", "ok"])


@fault(
    "checkpoint-damaged-before-a-restart",
    "R10",
    injects="kill -9 of worker 1 of a cluster with --max_restarts=1, and the newest checkpoint is cut off",
    must="the cluster starts again from a whole checkpoint, and names the damaged one",
)
def _restart(scratch: Scratch) -> None:
    train = scratch.directory / "train"
    cluster = ("--local_cluster=worker:2", "--variable_update=collective_all_reduce", "--max_restarts=1")
    launcher = scratch.start("run", *ENDLESS, *cluster, f"--train_dir={train}", *_SAVES)
    launcher.wait_for(MEASURES)
    (worker,) = scratch.processes("--job_name=worker ", "--task_index=1 ")
    worker.send_signal(signal.SIGKILL)
    launcher.wait_for("Restart 1 of 1")
    _cut(_newest(train).with_suffix(".data-00000-of-00001"))
    launcher.wait_for("is used instead", 120)
    launcher.send(signal.SIGINT)
    scratch.expect(launcher.end(60), 130)


@fault(
    "two-trainings-in-one-directory",
    "R13",
    injects="a training is killed with -9 while a second begins in its --train_dir, then a third begins there",
    must="the second ends with status 2 and names the first; the third continues",
)
def _two(scratch: Scratch) -> None:
    train = scratch.directory / "train"
    first = scratch.start("run", *ENDLESS, f"--train_dir={train}", *_SAVES)
    first.wait_for(MEASURES)
    words = ("run", *TINY, "--num_batches=3", f"--train_dir={train}")
    scratch.expect(scratch.bench(*words), 2, says=[str(train), str(first.process.pid)])
    first.process.kill()
    first.end()
    scratch.may_leave_temporary_files()
    scratch.expect(scratch.bench(*words), 0, says=["Checkpoints: "])


for _function in ("exits", "exits_hard", "raises"):

    @fault(
        f"model-that-{_function.replace('_', '-')}",
        "R10",
        injects=f"an own model whose code ends the run's process ({_function})",
        must="status 4, a sentence that names --model, a record crash",
    )
    def _ends(scratch: Scratch, function: str = _function) -> None:
        (scratch.directory / "net.py").write_text(_MODEL)
        ended = scratch.bench("run", "--device=cpu", f"--model=net.py:{function}", "--batch_size=2", "--num_batches=3")
        scratch.expect(ended, 4, says=[f"--model=net.py:{function}: its code would end"], records=["crash"])


@fault(
    "record-of-another-that-names-code",
    "R17",
    injects="rerun of a record from elsewhere whose command names a model file that lies beside it",
    must="status 2 with a sentence; the file was not executed",
)
def _rerun(scratch: Scratch) -> None:
    (scratch.directory / "net.py").write_text(f"{_MODEL}\nopen('executed', 'w').close()\n")
    words = ("run", "--device=cpu", "--model=net.py:net", "--batch_size=2", "--num_batches=3")
    scratch.expect(scratch.bench(*words), 0, records=["ok"])
    (scratch.directory / "executed").unlink()
    (record,) = scratch.records()
    ended = scratch.bench("rerun", record["identity"]["run_id"], scratch.out / "results.jsonl")
    scratch.expect(ended, 2, says=["--model"])
    want(not (scratch.directory / "executed").exists(), "the file was executed")
