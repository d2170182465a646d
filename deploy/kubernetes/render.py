"""Prints manifests for one run on Kubernetes: `render.py jobset|tfjob --name=NAME --image=IMAGE -- --model=resnet50`.

What follows `--` are flags of run_bench; which task a pod is and where the others are is added here.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import jinja2

RESULTS_DIRECTORY = "/results"
# Flags of run_bench that the manifests set, or that contradict them.
RESERVED = (
    "job_name", "task_index", "ps_hosts", "worker_hosts", "controller_host", "cluster_spec", "cluster", "num_ps",
    "server_port", "local_cluster", "output_dir",
)  # fmt: skip
_USAGE_ERROR = 2
_LONGEST_NAME = 63
_NAME = "[a-z]([-a-z0-9]*[a-z0-9])?"
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_CPU = r"(?=.*[1-9])([0-9]+m|[0-9]+(\.[0-9]{1,3})?)"
_MEMORY = r"(?=.*[1-9])[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """The pods that have one task: `name` is ps or worker.

    Attributes:
        name: what the pods are in TensorFlow's cluster.
        count: how many there are.
        args: the arguments of each, as Kubernetes takes them: $(NAME) is expanded, $$ is a dollar.
        gpus: GPUs of each.
        results_claim: the volume claim for results; without one they go with the pod.
    """

    name: str
    count: int
    args: tuple[str, ...]
    gpus: int = 0
    results_claim: str | None = None


def main(argv: Sequence[str]) -> int:
    """Prints the manifests that the command line asks for, and returns the exit status."""
    options, bench_flags = parse(argv)
    print(render(options, bench_flags), end="")
    return 0


def render(options: argparse.Namespace, bench_flags: Sequence[str]) -> str:
    """Returns the manifests as YAML: the network policy first, so that it is there before the pods are."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # JSON is YAML, and leaves no doubt where a text ends.
    environment.filters["quoted"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.get_template(f"{options.kind}.yaml.j2")
    return template.render(
        vars(options),
        jobs=jobs(options, bench_flags),
        pod_labels=pod_labels(options.kind, options.name),
        results_directory=RESULTS_DIRECTORY,
    )


def pod_labels(kind: str, name: str) -> dict[str, str]:
    """Returns the labels that the controller gives to the pods of this run, and to no others of its kind."""
    if kind == "jobset":
        return {"jobset.sigs.k8s.io/jobset-name": name}
    # The operator's other kinds of jobs have the same label for their names.
    return {"training.kubeflow.org/job-name": name, "training.kubeflow.org/operator-name": "tfjob-controller"}


def jobs(options: argparse.Namespace, bench_flags: Sequence[str]) -> list[Job]:
    """Returns the jobs of a run, without those that have no pods."""
    # All tasks get the same flags; --num_gpus is said once, in --gpus_per_worker.
    flags = [flag.replace("$", "$$") for flag in bench_flags]
    if options.gpus_per_worker and not any(_flag_name(flag) == "num_gpus" for flag in flags):
        flags.append(f"--num_gpus={options.gpus_per_worker}")
    flags.append(f"--output_dir={RESULTS_DIRECTORY}")
    found = [
        Job(name="ps", count=options.ps, args=(*_place(options, "ps"), *flags)),
        Job(
            name="worker",
            count=options.workers,
            args=(*_place(options, "worker"), *flags),
            gpus=options.gpus_per_worker,
            results_claim=options.results_claim,
        ),
    ]
    return [job for job in found if job.count]


def hosts(name: str, job: str, count: int, port: int) -> list[str]:
    """Returns the addresses of a job's pods, as JobSet names them in DNS.

    JobSet documents <jobset>-<replicatedJob>-<job index>-<pod index>.<subdomain>. There is one job of each name here,
    and the subdomain is the name of the JobSet.
    """
    return [f"{name}-{job}-0-{pod}.{name}:{port}" for pod in range(count)]


def _place(options: argparse.Namespace, job: str) -> list[str]:
    """Returns the flags that say where all tasks are and which of them this is."""
    if options.kind == "tfjob":
        return []
    counts = {"ps": options.ps, "worker": options.workers}
    return [
        f"--job_name={job}",
        "--task_index=$(JOB_COMPLETION_INDEX)",
        *(
            f"--{name}_hosts={','.join(hosts(options.name, name, count, options.port))}"
            for name, count in counts.items()
            if count
        ),
    ]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Says what is wrong in a sentence."""
        print(f"{self.prog}: {message[0].upper()}{message[1:].rstrip('.')}.", file=sys.stderr)
        sys.exit(_USAGE_ERROR)


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Returns the options, and the flags of run_bench that follow `--`; exits with 2 on a bad argument."""
    own = list(argv)
    bench_flags: list[str] = []
    if "--" in own:
        cut = own.index("--")
        own, bench_flags = own[:cut], own[cut + 1 :]
    parser = _Parser(prog="render.py", description=__doc__, allow_abbrev=False)
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="jobset|tfjob", parser_class=_Parser)
    for kind, what in (("jobset", "a JobSet, jobset.x-k8s.io/v1alpha2"), ("tfjob", "a TFJob, kubeflow.org/v1: legacy")):
        _add_options(kinds.add_parser(kind, help=what, description=what, allow_abbrev=False))
    options = parser.parse_args(own)
    problem = _length_problem(options) or _flags_problem(bench_flags)
    if problem:
        parser.error(problem)
    return options, bench_flags


def _add_options(parser: argparse.ArgumentParser) -> None:
    name, label = _matching(_NAME, "lower-case letters, digits and -, a letter first"), _matching(_LABEL, "a DNS label")
    memory = _matching(_MEMORY, "a number with a unit, such as 8Gi")
    add = parser.add_argument
    add("--name", type=name, required=True, help="name of the run, new in its namespace")
    add("--image", type=_matching(r"\S+", "no spaces"), required=True, help="image with run_bench and what it needs")
    add("--command", type=_words, default=["run-bench"], help="how the image starts run_bench (default run-bench)")
    add("--namespace", type=label, default="default", help="where the run takes place (default default)")
    add("--workers", type=_number(1), default=2, help="worker pods (default 2)")
    add("--ps", type=_number(0), default=0, help="parameter server pods (default 0)")
    add("--gpus_per_worker", type=_number(0), default=0, help="nvidia.com/gpu of each worker (default 0)")
    add("--cpu", type=_matching(_CPU, "a number of cores, such as 8 or 500m"), default="4", help="of a pod (default 4)")
    add("--memory", type=memory, default="8Gi", help="of each pod (default 8Gi)")
    add("--shm_size", type=memory, default="2Gi", help="of /dev/shm of workers with GPUs, out of --memory")
    # Pods have no privileges, so lower ports may be closed to them.
    add("--port", type=_number(1024, 65535), default=2222, help="the servers' port (default 2222)")
    add("--nccl", action="store_true", help="admit every port among the run's pods: NCCL between hosts chooses its own")
    add("--results_claim", type=label, help="PersistentVolumeClaim for results (default: an emptyDir)")
    add("--user", type=_number(1), default=1000, help="user and group id in the pods (default 1000)")
    add("--deadline_seconds", type=_number(1), default=86400, help="the run is stopped after that (default 86400)")


def _matching(pattern: str, wanted: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"'{text}' does not fit; give {wanted}")
        return text

    return convert


def _number(low: int, high: int = 2**31 - 1) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not re.fullmatch("[0-9]{1,10}", text) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"'{text}' does not fit; give a whole number from {low} to {high}")
        return int(text)

    return convert


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' cannot be split into words ({error})") from error
    if not words:
        raise argparse.ArgumentTypeError("an empty text does not fit; give such as 'python run_bench.py'")
    # Kubernetes expands $(NAME) here as in arguments.
    return [word.replace("$", "$$") for word in words]


def _length_problem(options: argparse.Namespace) -> str | None:
    """Returns why Kubernetes would refuse the names made of --name; the suffix is what a Job appends to its pods'."""
    last = max(options.workers, options.ps) - 1
    suffix = f"-worker-0-{last}-abcde" if options.kind == "jobset" else f"-worker-{last}"
    if len(options.name) + len(suffix) <= _LONGEST_NAME:
        return None
    return (
        f"--name={options.name} is too long: at most {_LONGEST_NAME - len(suffix)} letters, since pods are named by it"
    )


def _flags_problem(bench_flags: Sequence[str]) -> str | None:
    for flag in bench_flags:
        if not flag.startswith("-"):
            return f"'{flag}' after -- is no flag of run_bench: write --name=value"
        if _flag_name(flag) in RESERVED:
            return f"{flag} cannot be given, since the manifest says that: leave it out"
    return None


def _flag_name(flag: str) -> str:
    return flag.lstrip("-").partition("=")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
