"""Prints manifests for one run on Kubernetes: `render.py jobset|tfjob --name=NAME --image=IMAGE -- --model=resnet50`.

The words after `--` are flags of run_bench. The manifests add the flags of the cluster: the task and all addresses.
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
# Flags of run_bench that the manifests set, or that contradict these.
RESERVED = (
    "job_name", "task_index", "task_id", "ps_hosts", "worker_hosts", "controller_host", "cluster_spec", "cluster",
    "num_ps", "server_port", "local_cluster", "hosts", "ssh", "nossh", "output_dir",
)  # fmt: skip
_USAGE_ERROR = 2
_NO = ("false", "f", "0")  # of run_bench
# JSON writes them as two escapes, which YAML takes for two letters.
_BEYOND_YAML = re.compile("[\ud800-\udfff\U00010000-\U0010ffff]")
_LONGEST_NAME = 63
_NAME = "[a-z]([-a-z0-9]*[a-z0-9])?"
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_CPU = r"(?=.*[1-9])([0-9]+m|[0-9]+(\.[0-9]{1,3})?)"
_MEMORY = r"(?=.*[1-9])[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """The pods with one role in TensorFlow's cluster: `name` is ps or worker.

    Kubernetes expands `args`: $(NAME) is a variable, $$ is a dollar. Without a `results_claim` (a volume claim), the
    results are lost with the pod.
    """

    name: str
    count: int
    args: tuple[str, ...]
    gpus: int = 0
    results_claim: str | None = None


def main(argv: Sequence[str]) -> int:
    """Prints the manifests for a command line, and returns the exit status."""
    options, bench_flags = parse(argv)
    print(render(options, bench_flags), end="")
    return 0


def render(options: argparse.Namespace, bench_flags: Sequence[str]) -> str:
    """Returns the manifests as YAML: the network policy first, so that it exists before the pods."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # JSON is valid YAML, and quotes text without ambiguity.
    environment.filters["quoted"] = json.dumps
    if options.kind == "jobset":
        pod_labels = {"jobset.sigs.k8s.io/jobset-name": options.name}
    else:  # the operator's other kinds of jobs use the same label for their names
        operator = "training.kubeflow.org/operator-name"
        pod_labels = {"training.kubeflow.org/job-name": options.name, operator: "tfjob-controller"}
    return environment.get_template(f"{options.kind}.yaml.j2").render(
        vars(options),
        jobs=_jobs(options, bench_flags),
        pod_labels=pod_labels,
        results_directory=RESULTS_DIRECTORY,
    )


def _jobs(options: argparse.Namespace, bench_flags: Sequence[str]) -> list[Job]:
    """Returns the jobs that have pods."""
    # All tasks get the same flags; --gpus_per_worker sets --num_gpus, too.
    flags = [flag.replace("$", "$$") for flag in bench_flags]
    given = {_flag_name(flag) for flag in flags}
    if options.workers > 1 and not options.ps and "variable_update" not in given:
        # run_bench's default needs a server. A preset may override this, since the last value of a flag counts.
        flags.insert(0, "--variable_update=collective_all_reduce")
    if options.gpus_per_worker and "num_gpus" not in given:
        flags.append(f"--num_gpus={options.gpus_per_worker}")
    flags.append(f"--output_dir={RESULTS_DIRECTORY}")
    counts = {name: count for name, count in (("ps", options.ps), ("worker", options.workers)) if count}
    jobs = []
    for name, count in counts.items():
        task = []
        if options.kind == "jobset":
            hosts = [f"--{job}_hosts={_hosts(options, job, pods)}" for job, pods in counts.items()]
            task = [f"--job_name={name}", "--task_index=$(JOB_COMPLETION_INDEX)", *hosts]
        of_worker = {"gpus": options.gpus_per_worker, "results_claim": options.results_claim}
        jobs.append(Job(name=name, count=count, args=(*task, *flags), **(of_worker if name == "worker" else {})))
    return jobs


def _hosts(options: argparse.Namespace, job: str, pods: int) -> str:
    """Returns the addresses of a job's pods, as JobSet names them in DNS.

    JobSet documents <jobset>-<replicatedJob>-<job index>-<pod index>.<subdomain>. Here each name has one job, and the
    subdomain is the name of the JobSet.
    """
    return ",".join(f"{options.name}-{job}-0-{pod}.{options.name}:{options.port}" for pod in range(pods))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Prints the problem as a sentence."""
        if message.startswith("unrecognized arguments"):
            message += f". Flags of run_bench come after --, and those of render.py are listed by {self.prog} --help"
        print(f"{self.prog}: {message[0].upper()}{message[1:].rstrip('.')}.", file=sys.stderr)
        sys.exit(_USAGE_ERROR)


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Returns the options, and the flags of run_bench after `--`; exits with 2 on a bad argument."""
    cut = list(argv).index("--") if "--" in argv else len(argv)
    bench_flags = list(argv[cut + 1 :])
    parser = _Parser(prog="render.py", description=__doc__, allow_abbrev=False)
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="jobset|tfjob", parser_class=_Parser)
    for kind, what in (("jobset", "a JobSet, jobset.x-k8s.io/v1alpha2"), ("tfjob", "a TFJob, kubeflow.org/v1: legacy")):
        _add_options(kinds.add_parser(kind, help=what, description=what, allow_abbrev=False))
    if bad := next((word for word in argv if _BEYOND_YAML.search(word)), None):
        parser.error(f"{bad!a} has a letter beyond U+FFFF, or is not UTF-8")
    # Like run_bench, it takes dashes in names of flags.
    dashed = re.compile("(?<=^--)[^=]+")
    options = parser.parse_args([dashed.sub(lambda name: name[0].replace("-", "_"), word) for word in argv[:cut]])
    # Kubernetes refuses longer names of pods, which begin with --name; a Job appends five letters.
    last = max(options.workers, options.ps) - 1
    suffix = f"-worker-0-{last}-abcde" if options.kind == "jobset" else f"-worker-{last}"
    longest = _LONGEST_NAME - len(suffix)
    if len(options.name) > longest:
        parser.error(f"--name={options.name} is too long: at most {longest} letters, since names of pods begin with it")
    for flag in bench_flags:
        if not flag.startswith("-"):
            parser.error(f"'{flag}' after -- is not a flag of run_bench: write --name=value")
        if _flag_name(flag) == "flagfile":
            parser.error(f"{flag} may contain flags that the manifest sets: write those of the run behind -- instead")
        if _flag_name(flag) in RESERVED:
            parser.error(f"{flag} cannot be given, since the manifest sets it: leave it out")
    if _uses_nccl(options, bench_flags) and not options.nccl:
        parser.error(
            "gradients of workers with GPUs travel by NCCL, which chooses its own ports: add --nccl, which admits all "
            "ports among these pods, or --all_reduce_spec=collective after --"
        )
    return options, bench_flags


def _uses_nccl(options: argparse.Namespace, bench_flags: Sequence[str]) -> bool:
    """Returns whether NCCL connects the pods: run_bench's default for several workers with GPUs and no servers."""
    given = {_flag_name(flag): flag.partition("=")[2].lower() for flag in bench_flags}
    usual = "psgpu" if given.get("variable_update") == "distributed_all_reduce" else "nccl"
    several = options.workers > 1 and options.gpus_per_worker > 0 and options.ps == 0
    whole = given.get("device") != "cpu" and given.get("virtual_gpus", "1") == "1"
    trains = given.get("forward_only", "false") in _NO
    return several and whole and trains and "nccl" in given.get("all_reduce_spec", usual)


def _flag_name(flag: str) -> str:
    """Returns the name of a flag as run_bench spells it, which takes dashes for underscores."""
    return re.sub("^no-", "no", flag.lstrip("-").partition("=")[0]).replace("-", "_")


def _add_options(parser: argparse.ArgumentParser) -> None:
    name, label = _matching(_NAME, "lower-case letters, digits and -, a letter first"), _matching(_LABEL, "a DNS label")
    memory = _matching(_MEMORY, "a number with a unit, such as 8Gi")
    add = parser.add_argument
    add("--name", type=name, required=True, help="name of the run, new in its namespace")
    add("--image", type=_matching(r"\S+", "no spaces"), required=True, help="image with run_bench and what it needs")
    add("--command", type=_words, default=["run-bench"], help="how the image starts run_bench (default run-bench)")
    add("--namespace", type=label, default="default", help="namespace of the run (default default)")
    add("--workers", type=_number(1), default=2, help="worker pods (default 2)")
    add("--ps", type=_number(0), default=0, help="parameter server pods (default 0)")
    add("--gpus_per_worker", type=_number(0), default=0, help="nvidia.com/gpu of each worker (default 0)")
    add("--cpu", type=_matching(_CPU, "a number of cores, such as 8 or 500m"), default="4", help="of a pod (default 4)")
    add("--memory", type=memory, default="8Gi", help="of each pod (default 8Gi)")
    add("--shm_size", type=memory, default="2Gi", help="of /dev/shm of workers with GPUs, part of --memory")
    add(
        "--scratch_size",
        type=memory,
        default="10Gi",
        help="most in /tmp, and in results without a claim; more ends a pod",
    )
    # Pods are not privileged, so they may not open lower ports.
    add("--port", type=_number(1024, 65535), default=2222, help="the servers' port (default 2222)")
    add("--nccl", action="store_true", help="admit all ports among the run's pods: NCCL between hosts chooses its own")
    add("--results_claim", type=label, help="PersistentVolumeClaim for results (default: an emptyDir)")
    add("--user", type=_number(1), default=1000, help="user and group id in the pods (default 1000)")
    add("--deadline_seconds", type=_number(1), default=86400, help="the run is stopped after that (default 86400)")


def _matching(pattern: str, wanted: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"'{text}' is invalid; give {wanted}")
        return text

    return convert


def _number(low: int, high: int = 2**31 - 1) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not re.fullmatch("[0-9]{1,10}", text) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"'{text}' is invalid; give a whole number from {low} to {high}")
        return int(text)

    return convert


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' cannot be split into words ({error})") from error
    if not words:
        raise argparse.ArgumentTypeError("an empty text is invalid; give for example 'python run_bench.py'")
    # Kubernetes expands $(NAME) here as in arguments.
    return [word.replace("$", "$$") for word in words]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
