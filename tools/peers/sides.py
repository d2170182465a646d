"""Both sides of a comparison: how a run of tf_cnn_benchmarks, or of this suite, is started, and what it measured."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cluster import launch_plan
from benchmarks.console import warn
from benchmarks.errors import BenchError, UsageError
from benchmarks.process import subprocesses
from benchmarks.process.subprocesses import Command, ExitInfo
from results.record import Record, Status
from results.text import one_line
from tools.peers import loaders
from tools.peers.comparison import Row
from tools.peers.loaders import LOADERS

_RUN_BENCH = (sys.executable, str(subprocesses.RUN_BENCH))
_SCRIPT = Path("scripts/tf_cnn_benchmarks/tf_cnn_benchmarks.py")
_ADDRESS = "https://github.com/tensorflow/benchmarks"
# tf_cnn_benchmarks needs Keras 2, and what its imports name; what tf_keras asks for beside that, it does not use.
_PACKAGES = ("tensorflow-cpu==2.21.0", "psutil", "pandas")
_PACKAGES_ALONE = ("tf_keras", "portpicker")
_PACKAGES_OF_LOADERS = ("tensorflow-cpu==2.21.0", "tensorflow-datasets", "torchvision", "spdl")
_VERSIONS = "import tensorflow, tf_keras, portpicker; print(tensorflow.__version__)"
_VARIABLES = {"TF_USE_LEGACY_KERAS": "1", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
_RUN_SECONDS, _INSTALL_SECONDS, _IMPORT_SECONDS = 900.0, 1800.0, 300.0
_FLAGS = ("--device=cpu", "--num_warmup_batches=3")
# Folders of images that flags name in braces, and the flags that make them.
_FOLDER = re.compile(r"\{(photos|pixels)\}")
_IMAGES = {"photos": (), "pixels": ("--resize=256", "--decoded")}
_RATE = re.compile(r"^total images/sec: ([0-9.]+)$", re.MULTILINE)


class RunFailedError(BenchError):
    """A run of one side has no number."""


@dataclasses.dataclass(frozen=True)
class Peer:
    """A checkout of tf_cnn_benchmarks and the Python that runs it.

    Attributes:
        script: its program.
        python: an interpreter with TensorFlow, tf_keras and portpicker.
        tensorflow: the version of TensorFlow there.
    """

    script: Path
    python: Path
    tensorflow: str


def find_peer(checkout: str, python: str, output_dir: Path) -> Peer:
    """Looks at a checkout and its Python, which is made below `output_dir` if none is named.

    Raises:
        UsageError: there is no such checkout, or its Python cannot import what it needs.
        RunFailedError: the environment cannot be made.
    """
    script = (Path(checkout).expanduser() / _SCRIPT).resolve()
    if not script.is_file():
        what = f"has no {_SCRIPT}" if Path(checkout).expanduser().is_dir() else "is no folder"
        raise UsageError(f"PEER={checkout} {what}. Clone {_ADDRESS} somewhere, and name that folder.")
    interpreter = (
        Path(python).expanduser().absolute()
        if python
        else _made_environment(output_dir, "peer", _PACKAGES, _PACKAGES_ALONE)
    )
    try:
        done = subprocess.run(
            [interpreter, "-c", _VERSIONS],
            env=_VARIABLES,
            capture_output=True,
            text=True,
            timeout=_IMPORT_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"PEER_PYTHON={interpreter} cannot be started: {error}.") from error
    if done.returncode:
        why = one_line((done.stderr.strip().splitlines() or ["it says nothing"])[-1])
        raise UsageError(
            f"PEER_PYTHON={interpreter} cannot run tf_cnn_benchmarks ({why}). Install {' '.join(_PACKAGES)} there, "
            f"then {' '.join(_PACKAGES_ALONE)} with --no-deps; or leave PEER_PYTHON out, and an environment is made."
        )
    return Peer(script, interpreter, done.stdout.split()[-1])


def _made_environment(output_dir: Path, name: str, packages: Sequence[str], alone: Sequence[str] = ()) -> Path:
    """Returns the Python of an environment, which is made unless it is there; `alone`: without what they ask for."""
    directory, log = output_dir / f"env-{name}", output_dir / f"env-{name}.log"
    python, complete = directory.absolute() / "bin/python", directory / "complete"
    if complete.exists():
        return python
    warn(f"making an environment for {name} in {directory}; this takes some minutes.")
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    steps = [[sys.executable, "-m", "venv", "--clear", str(directory)], [*pip, *packages]]
    for words in (*steps, *([[*pip, "--no-deps", *alone]] if alone else [])):
        ended = _run_one(words, log, seconds=_INSTALL_SECONDS)
        if ended.returncode:
            raise RunFailedError(f"The environment of {name} could not be made: {log} says why.")
    complete.touch()
    return python


@dataclasses.dataclass(frozen=True)
class Sides:
    """Runs both sides of rows, and keeps their output below a directory.

    Attributes:
        output_dir: gets logs, records, and a folder of photos.
        peer: what `theirs` is, unless a row compares this suite with itself, or with another loader of photos.
        ours: the words that start this suite.
    """

    output_dir: Path
    peer: Peer
    ours: Sequence[str] = _RUN_BENCH

    def run(self, row: Row, side: str, number: int) -> float:
        """Runs a side of a row once, and returns what it measured, in the row's unit.

        Raises:
            RunFailedError: it has no number; the message names its log.
        """
        log = self.output_dir / "logs" / f"{row.name}-{number}-{side}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        flags = [_FOLDER.sub(lambda found: str(self._images(found[1])), flag) for flag in row.flags(side)]
        if side == "theirs" and row.against in LOADERS:
            python = _made_environment(self.output_dir, "loaders", _PACKAGES_OF_LOADERS)
            return self._run_theirs(row, [str(python), loaders.__file__, row.against, *flags], log)
        if side == "theirs" and row.against != "ours":
            peer = [str(self.peer.python), str(self.peer.script)]
            return self._run_theirs(row, [*peer, *_FLAGS, "--data_format=NHWC", *flags], log)
        return self._run_ours(row, ["input", "--device=cpu", *flags] if row.is_of_input else [*_FLAGS, *flags], log)

    def _run_theirs(self, row: Row, command: Sequence[str], log: Path) -> float:
        if row.cluster:
            ended = _run_cluster([*command, "--local_parameter_device=cpu"], log)
        else:
            ended = _run_one(command, log, _VARIABLES)
        found = _RATE.search(log.read_text(encoding="utf-8", errors="replace"))
        if ended.returncode or not found:
            raise RunFailedError(f"A run of {row.against} {_how(ended)}: its log is {log}.")
        return float(found[1]) if row.unit == "images/s" else ended.seconds

    def _run_ours(self, row: Row, flags: Sequence[str], log: Path) -> float:
        output = log.with_suffix(".json")
        words = [*self.ours, *flags, f"--output_dir={self.output_dir / 'records'}", "--output_format=json"]
        if row.cluster:
            words.append("--local_cluster=ps:1,worker:2")
        ended = _run_one(words, log, output=output)
        try:
            record = Record.from_json(output.read_bytes().strip().rpartition(b"\n")[2])
        except ValueError as error:
            raise RunFailedError(f"A run of this suite {_how(ended)}, and left no record: its log is {log}.") from error
        if record.status is not Status.OK or not record.derived.images_per_sec:
            raise RunFailedError(f"A run of this suite is {record.status}: {one_line(record.reason)} Its log is {log}.")
        if row.is_of_input:
            return record.measurement.input_stages["batch"]
        if row.measure == "images_per_second":
            return record.derived.images_per_sec
        if row.measure == "process_seconds":
            return ended.seconds
        taken = record.measurement
        return (taken.startup_seconds or 0) + (taken.first_step_seconds or 0) + sum(taken.warmup_step_seconds)

    def _images(self, name: str) -> Path:
        """Returns a folder of `photos` or `pixels`, which is made unless it is there."""
        folder = (self.output_dir / name).absolute()
        if not folder.exists():
            warn(f"making {name} in {folder}.")
            partial = folder.with_name(f"{name}.partial")
            log = self.output_dir / f"{name}.log"
            words = [*self.ours, "data", "make_imagenet", str(partial), "--overwrite", *_IMAGES[name]]
            if _run_one(words, log).returncode:
                raise RunFailedError(f"The {name} could not be made: {log} says why.")
            partial.rename(folder)
        return folder


def _run_one(
    words: Sequence[str],
    log: Path,
    variables: dict[str, str] | None = None,
    *,
    seconds: float = _RUN_SECONDS,
    output: Path | None = None,
) -> ExitInfo:
    """Runs a command whose messages go to a log, and its results, too, unless they go to `output`."""
    with log.open("wb") as file, output.open("wb") if output else contextlib.nullcontext(file) as stdout:
        file.write(f"{shlex.join(words)}\n".encode())
        file.flush()
        command = Command(words=words, stdout=stdout, stderr=file, variables=variables or {})
        return subprocesses.supervise(command, timeout_seconds=seconds)[0]


def _run_cluster(words: Sequence[str], log: Path) -> ExitInfo:
    """Runs one parameter server and two workers of tf_cnn_benchmarks; returns how worker 0 ended, whose log it is."""
    cluster = launch_plan.with_free_ports(launch_plan.on_this_host("ps:1,worker:2"))
    hosts = (f"--ps_hosts={','.join(cluster.ps)}", f"--worker_hosts={','.join(cluster.workers)}")
    with log.open("wb") as first, log.with_suffix(".others.log").open("wb") as others:
        commands = [
            Command(
                words=[*words, *hosts, f"--job_name={job}", f"--task_index={index}"],
                stdout=output,
                stderr=output,
                variables=_VARIABLES,
                patience=(lambda status: 0.0) if output is first else (lambda status: math.inf),
            )
            for job, index, output in (("worker", 0, first), ("worker", 1, others), ("ps", 0, others))
        ]
        return subprocesses.supervise(*commands, timeout_seconds=_RUN_SECONDS)[0]


def _how(ended: ExitInfo) -> str:
    """Returns how a process without a result ended, in words."""
    if ended.timed_out:
        return f"took more than {_RUN_SECONDS:.0f} s"
    return ended.in_words() if ended.returncode else "printed no rate"
