"""What is done first on a GPU, in half an hour: `python -m tools.gpu_first FOLDER`.

Everything is written into the folder: the records of all runs to `results.jsonl`, the output of each step to
`NAME.out` and `NAME.err`, the trace of a step as TensorFlow made it to `step.pb`, and a table of the steps to
`table.txt`. A step that fails does not end the others. `--list` prints the commands and runs none.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.console import warn
from benchmarks.errors import ExitStatus
from benchmarks.process import subprocesses, tensorflow_setup
from benchmarks.process.signals import until_stopped
from results.record import Record
from results.store import Store
from results.text import Table

_RUN_BENCH = (sys.executable, str(subprocesses.RUN_BENCH))
_PERSISTENT = "TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT"
_GPU = ("--device=gpu", "--num_gpus=1", "--num_warmup_batches=10", "--num_batches=30")
_RESNET50 = ("--model=resnet50", "--batch_size=128", *_GPU)
_SPLIT = ("--device=gpu", "--num_gpus=2", "--virtual_gpus=2")
_LIST_GPUS = "import tensorflow as tf; print(tf.__version__, tf.config.list_physical_devices('GPU'))"
_GPU_TESTS = ("pytest", "-q", "-n", "0", str(subprocesses.RUN_BENCH.with_name("tests") / "processes" / "test_gpu.py"))


@dataclasses.dataclass(frozen=True)
class Step:
    """A command.

    Attributes:
        name: of the step, and of its record.
        words: of the command, after the program; `{folder}` in one of them is the folder.
        seconds: after which it is killed.
        program: what is started.
        changes: what is changed in this suite before it runs; see `CHANGES`.
        variables: of the environment.
    """

    name: str
    words: Sequence[str]
    seconds: float = 120.0
    program: Sequence[str] = _RUN_BENCH
    changes: Sequence[str] = ()
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def command(self, folder: Path) -> list[str]:
        """Returns the words that are started."""
        changes = [f"--change={change}" for change in self.changes]
        program = (sys.executable, "-m", "tools.gpu_first", *changes, "--") if changes else self.program
        of_run = (f"--output_dir={folder}", f"--session_id={self.name}") if self.is_run else ()
        return [word.replace("{folder}", str(folder)) for word in (*program, *self.words, *of_run)]

    @property
    def is_run(self) -> bool:
        """Whether it leaves a record."""
        return self.program == _RUN_BENCH and self.words[0].startswith("--")


def steps() -> list[Step]:
    """Returns the steps, those first that decide whether the others can work."""
    layouts = [
        Step(
            f"fp16-{layout}-persistent{persistent}-optimizer_{optimizer}",
            (*_RESNET50, "--precision=fp16", f"--data_format={layout}"),
            changes=(f"layout:{optimizer}",),
            variables={_PERSISTENT: persistent},
        )
        for layout in ("NCHW", "NHWC")
        for persistent in ("0", "1")
        for optimizer in ("on", "off")
    ]
    return [
        Step("driver", (), 30.0, program=("nvidia-smi",)),
        Step("devices", ("devices", "--output_format=json"), 60.0),
        Step(
            "tensorflow",
            ("-c", _LIST_GPUS),
            60.0,
            program=(sys.executable,),
            variables={"TF_CPP_MIN_LOG_LEVEL": "0"},
        ),
        *(Step(each, (*_RESNET50, f"--precision={each}"), 180.0) for each in ("fp32", "tf32", "bf16", "fp16")),
        Step(
            "trace",
            (*_RESNET50, "--precision=fp16", "--trace_file={folder}/trace.json"),
            changes=("metadata:{folder}/step.pb",),
        ),
        Step("tests", _GPU_TESTS, 420.0, program=(sys.executable, "-m")),
        Step("verify", ("verify", *_SPLIT), 240.0),
        *layouts,
        *(
            Step(f"mobilenet-{layout}", ("--model=mobilenet", *_GPU, f"--data_format={layout}"))
            for layout in ("NCHW", "NHWC")
        ),
        Step("xla", (*_RESNET50, "--precision=fp16", "--xla=jit"), 240.0),
        Step("awaited", ("--model=resnet20", *_GPU)),
        Step("enqueued", ("--model=resnet20", *_GPU), changes=("sync:0",)),
    ]


def _set_layout_optimizer(value: str) -> None:
    from benchmarks.graph import run_graph

    made = run_graph.session_config

    def session_config(devices: Any, runtime: Any) -> Any:
        options = made(devices, runtime)
        rewriting = options.graph_options.rewrite_options
        rewriting.layout_optimizer = rewriting.ON if value == "on" else rewriting.OFF
        return options

    run_graph.session_config = session_config


def _keep_metadata(path: str) -> None:
    from benchmarks.tracing import traced_steps

    take = traced_steps.traced_step

    def metadata(*arguments: Any, **named: Any) -> Any:
        taken = take(*arguments, **named)
        if not Path(path).exists():  # the first has the graphs, too
            Path(path).write_bytes(taken.SerializeToString())
        return taken

    traced_steps.traced_step = metadata


# By name, what no flag does, once TensorFlow is imported; what follows the colon of a change is the argument.
CHANGES: Mapping[str, Callable[[str], None]] = {
    "layout": _set_layout_optimizer,
    "metadata": _keep_metadata,
    "sync": lambda value: os.environ.update(TF_SYNC_ON_FINISH=value),  # read when a session is made
}


def run_changed(changes: Sequence[str], words: Sequence[str]) -> int:
    """Runs a command line of `run_bench.py` in this process with some changes, and returns its status."""
    from benchmarks.cli.main import main as run_command_line

    imported = tensorflow_setup.import_tensorflow

    def import_and_change() -> None:
        imported()
        for change in changes:
            name, _, value = change.partition(":")
            CHANGES[name](value)

    with mock.patch.object(tensorflow_setup, "import_tensorflow", import_and_change):
        return run_command_line(words)


def run(chosen: Sequence[Step], folder: Path, minutes: float) -> int:
    """Runs steps for so many minutes at most, prints and writes the table, and returns an exit status."""
    folder.mkdir(parents=True, exist_ok=True)
    ends, until = dict.fromkeys((step.name for step in chosen), ("not run", "")), time.monotonic() + 60 * minutes

    def run_all() -> None:
        for step in chosen:
            left = until - time.monotonic()
            if left <= 0:
                return
            warn(f"{step.name}: {shlex.join(step.command(folder))}")
            ends[step.name] = _run(step, folder, min(step.seconds, left))

    status = until_stopped(run_all)
    records = {record.identity.session_id: record for record in Store(folder).load().records}
    rows = [_row(name, end, records.get(name)) for name, end in ends.items()]
    lines = Table(("step", "result", "seconds", "images/s"), rows, ("seconds", "images/s")).text()
    (folder / "table.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    return status or (ExitStatus.RUN_FAILED if any(result != "ok" for result, _ in ends.values()) else ExitStatus.OK)


def _run(step: Step, folder: Path, seconds: float) -> tuple[str, str]:
    """Runs a step, and returns how it ended and its seconds, in words."""
    # The driver compiles what TensorFlow has no machine code of for this GPU; it is kept for the steps that follow.
    variables = {"CUDA_CACHE_PATH": str(folder / "cuda_cache"), "CUDA_CACHE_MAXSIZE": str(2**32), **step.variables}
    with (folder / f"{step.name}.out").open("wb") as out, (folder / f"{step.name}.err").open("wb") as err:
        command = subprocesses.Command(words=step.command(folder), stdout=out, stderr=err, variables=variables)
        try:
            (ended,) = subprocesses.supervise(command, timeout_seconds=seconds)
        except OSError as error:
            return str(error), ""
    result = "ok" if ended.returncode == 0 else f"status {ended.returncode}"
    return f"killed after {seconds:.0f} s" if ended.timed_out else result, f"{ended.seconds:.0f}"


def _row(name: str, end: tuple[str, str], record: Record | None) -> tuple[str, str, str, str]:
    rate = record.derived.images_per_sec if record else None
    return name, *end, "" if rate is None else f"{rate:.1f}"


def main(words: Sequence[str]) -> int:
    """Runs the steps, or one command line with changes."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_first", description=__doc__)
    parser.add_argument("words", nargs="+", metavar="FOLDER", help="where everything goes")
    parser.add_argument("--list", action="store_true", help="print the commands and stop")
    parser.add_argument("--minutes", type=float, default=30.0, help="of all steps together (default 30)")
    parser.add_argument("--change", action="append", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.change:
        return run_changed(given.change, given.words)
    folder = Path(given.words[0]).absolute()
    if given.words[1:]:
        parser.error("name one folder")
    if not given.list:
        return run(steps(), folder, given.minutes)
    for step in steps():
        variables = [f"{name}={value}" for name, value in step.variables.items()]
        print(shlex.join([*(("env", *variables) if variables else ()), *step.command(folder)]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
