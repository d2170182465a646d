"""The trackers that a record can be sent to, and the flags that name where. Imports none of their libraries."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from benchmarks.errors import UsageError, writing

# W&B takes no project with one of these in its name.
_NOT_IN_A_PROJECT = re.compile(r"[/\\#?%:]")
_WITHOUT_SCHEME = re.compile(r"[\w.-]+:[0-9]+(/.*)?")


@dataclasses.dataclass(frozen=True)
class Tracker:
    """A tracker. To add one is to write its module, and to add a line to `TRACKERS`.

    Attributes:
        flag: the flag that names where.
        title: its name in sentences.
        package: what is imported and installed. `send(run, target)` of the module `to_PACKAGE` sends
            a `TrackedRun` and returns where it can be seen. A complete run of the same id is replaced or stays; a
            partial one is replaced.
        help: of the flag.
        path: what sort of path the flag's value is.
        variables: of the environment of the process that sends, unless they are set.
    """

    flag: str
    title: str
    package: str
    help: str
    path: Literal["directory"] | None = None
    variables: tuple[tuple[str, str], ...] = ()


TRACKERS = (
    Tracker(
        "tensorboard_dir",
        "TensorBoard",
        "tensorboard",
        "write the settings, rates and steps of a finished run for TensorBoard into a subdirectory of this directory",
        path="directory",
    ),
    Tracker(
        "wandb_project",
        "Weights & Biases",
        "wandb",
        "send the settings, rates and steps of a finished run to this Weights & Biases project",
    ),
    Tracker(
        "mlflow_uri",
        "MLflow",
        "mlflow",
        "send the settings, rates and steps of a finished run to this MLflow server or database, such as "
        "sqlite:///mlflow.db",
        # With MLflow's own 7 retries, a server that is down takes longer than the deadline.
        variables=(("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3"),),
    ),
)
FLAGS = tuple(tracker.flag for tracker in TRACKERS)


# Where a record is sent: the values of the flags in `TRACKERS` that are given.
Targets = Mapping[str, str]


def targets_of(given: Mapping[str, Any]) -> Targets:
    """Returns where flag values (None: not given) send a record.

    Raises:
        UsageError: a value cannot be what the tracker wants.
    """
    targets = {name: given[name] for name in FLAGS if given[name] is not None}
    project, directory = targets.get("wandb_project", ""), targets.get("tensorboard_dir", "")
    if _WITHOUT_SCHEME.fullmatch(server := targets.get("mlflow_uri", "")):
        raise UsageError(f"--mlflow_uri={server}: an address needs its scheme, as in http://{server}.")
    if found := _NOT_IN_A_PROJECT.search(project):
        raise UsageError(
            f"--wandb_project={project}: the name of a project has no '{found[0]}'. Give the name alone; the "
            "environment variable WANDB_ENTITY names the team."
        )
    if "://" in directory:
        raise UsageError(f"--tensorboard_dir={directory}: give a directory of this machine, no address.")
    return targets


def named(targets: Targets) -> dict[Tracker, str]:
    """Returns the trackers that get a record, each with its target."""
    return {tracker: targets[tracker.flag] for tracker in TRACKERS if tracker.flag in targets}


def require(targets: Targets) -> None:
    """Checks before a run that its record can be sent from this machine, as far as that is known without sending.

    Raises:
        UsageError: a library is not installed, or a directory cannot be written.
    """
    for tracker, target in named(targets).items():
        if importlib.util.find_spec(tracker.package) is None:
            raise UsageError(
                f"--{tracker.flag} needs the package '{tracker.package}', which is not installed: "
                f"run {sys.executable} -m pip install {tracker.package}, or omit the flag."
            )
        if tracker.path == "directory":
            existing = next(path for path in (Path(target), *Path(target).absolute().parents) if path.exists())
            with writing(f"--{tracker.flag}={target}: {existing}", "directory that can be written"):
                tempfile.TemporaryFile(dir=existing).close()
