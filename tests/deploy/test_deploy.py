"""What deploy/ holds: the batch file is run with a made-up srun, the manifests are read as Kubernetes would."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing
import yaml

from benchmarks.cluster import options as cluster_options
from benchmarks.cluster.cluster_spec import Task
from benchmarks.config import flag, run_flags
from deploy.kubernetes import render
from tests.benchmarks.cluster.test_discovery import made, srun
from tests.support.commands import ROOT

DEPLOY = ROOT / "deploy"
SBATCH = DEPLOY / "slurm" / "run_bench.sbatch"
SCHEMAS = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "schemas").glob("*.json")}
CLUSTER_FLAGS = {each.name for each in cluster_options.CLUSTER_FLAGS}
BASE = ("--name=rn50", "--image=registry.example/bench:1")
PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
KINDS = pytest.mark.parametrize("kind", ["jobset", "tfjob"])
SETTINGS = pytest.mark.parametrize(
    "options",
    [
        (),
        ("--workers=1",),
        ("--workers=3", "--ps=2", "--port=3333", "--namespace=bench"),
        ("--workers=2", "--ps=1", "--gpus_per_worker=8", "--memory=64Gi", "--shm_size=4Gi", "--nccl"),
        ("--results_claim=results", "--cpu=500m", "--command=python run_bench.py", "--user=2000"),
    ],
)


def given(args: list[str]) -> dict[str, Any]:
    """Returns the flags of a run that are given; any other word is an error."""
    parsed = flag.parse(args, run_flags.RUN_FLAGS)
    assert not parsed.words
    return {name: value for name, value in parsed.values.items() if value is not None}


# Slurm.

FAKE_SRUN = """#!/bin/bash
printf '%s\\0' "$@" > "$RECORDED/arguments"
env -0 > "$RECORDED/environment"
exit "${SRUN_STATUS:-0}"
"""


@pytest.fixture
def sbatch(tmp_path: Path) -> Callable[..., tuple[int, list[str], dict[str, str], str]]:
    """Runs the batch file as Slurm would; returns status, srun's arguments and environment, and stderr."""

    def run(*arguments: str, **environ: str) -> tuple[int, list[str], dict[str, str], str]:
        suite, programs = tmp_path / "a suite", tmp_path / "bin"
        suite.mkdir()
        programs.mkdir()
        (suite / "run_bench.py").touch()
        (programs / "srun").write_text(FAKE_SRUN)
        (programs / "srun").chmod(0o755)
        variables = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "RECORDED": str(tmp_path),
            "SLURM_SUBMIT_DIR": str(suite),
            **environ,
        }
        done = subprocess.run(["bash", SBATCH, *arguments], env=variables, capture_output=True, text=True, cwd=tmp_path)
        if not (tmp_path / "arguments").exists():
            return done.returncode, [], {}, done.stderr
        words, lines = ((tmp_path / name).read_text().split("\0")[:-1] for name in ("arguments", "environment"))
        return done.returncode, words, dict(line.split("=", 1) for line in lines), done.stderr

    return run


def test_the_header_asks_for_one_worker_per_node() -> None:
    lines = SBATCH.read_text().splitlines()
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert {"--nodes=2", "--ntasks-per-node=1", "--distribution=block", "--exclusive"} <= set(options)
    first_command = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first_command:]), "sbatch would not read these"


def test_the_batch_file_starts_run_bench_with_srun(sbatch: Any, tmp_path: Path) -> None:
    status, words, _, stderr = sbatch("--model=vgg16", "--session_id=two words")
    assert (status, stderr) == (0, "")
    start = words.index("run_bench.py")
    assert words[: start - 1] == ["--kill-on-bad-exit=1", "--export=ALL", "--distribution=block"]
    assert words[start - 1] == "python"
    assert given(words[start + 1 :]) == {
        "cluster": "slurm",
        "num_ps": 0,
        "variable_update": "collective_all_reduce",
        "output_dir": str(tmp_path / "a suite" / "out"),
        "model": "vgg16",
        "session_id": "two words",
    }
    assert (tmp_path / "a suite" / "out").is_dir()


def test_proxies_and_other_clusters_are_left_behind(sbatch: Any) -> None:
    _, _, environ, _ = sbatch(**dict.fromkeys(PROXIES, "http://proxy:1"), TF_CONFIG="{}", OMP_NUM_THREADS="3")
    assert not {*PROXIES, "TF_CONFIG"} & set(environ)
    assert environ["OMP_NUM_THREADS"] == "3"


def test_flags_of_the_command_line_win_and_tasks_have_cores_and_gpus(sbatch: Any) -> None:
    job = {"NUM_PS": "1", "SLURM_CPUS_PER_TASK": "8", "SLURM_GPUS_PER_TASK": "4", "PYTHON": "/opt/python"}
    status, words, _, _ = sbatch("--variable_update=distributed_replicated", "--output_dir=/x", **job, SRUN_STATUS="6")
    assert status == 6, "as srun ends"
    assert {"--cpus-per-task=8", "--gpus-per-task=4"} <= set(words[: words.index("/opt/python")])
    found = given(words[words.index("run_bench.py") + 1 :])
    assert (found["variable_update"], found["output_dir"]) == ("distributed_replicated", "/x")


def test_the_batch_file_says_where_it_should_be_submitted(sbatch: Any) -> None:
    status, words, _, stderr = sbatch(SUITE_DIR="/nowhere")
    assert (status, words) == (2, [])
    assert "no run_bench.py in /nowhere" in stderr


@pytest.mark.parametrize(
    ("num_ps", "tasks", "roles"),
    [
        ("0", "1(x2)", "worker 0, worker 1"),
        ("1", "2,1", "worker 0, ps 0, worker 1"),
        ("2", "2(x2)", "worker 0, ps 0, worker 1, ps 1"),
    ],
)
def test_every_rank_knows_its_task(sbatch: Any, num_ps: str, tasks: str, roles: str) -> None:
    _, words, _, _ = sbatch("--server_port=41000", NUM_PS=num_ps)
    found = given(words[words.index("run_bench.py") + 1 :])
    wanted = "collective_all_reduce" if num_ps == "0" else "parameter_server"
    assert found["variable_update"] == wanted
    ranks = roles.split(", ")
    for rank, role in enumerate(ranks):
        assert str(made(srun(rank, "node[1-2]", tasks, len(ranks)), **found).own) == role


# The images.


def instructions(name: str) -> list[str]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
    return [line.removeprefix(f"{name} ") for line in text.splitlines() if line.startswith(f"{name} ")]


def test_the_images_fit_the_manifests() -> None:
    options, _ = render.parse(["jobset", *BASE])
    assert [json.loads(words) for words in instructions("ENTRYPOINT")] == [options.command]
    assert set(instructions("USER")) == {f"{options.user}:{options.user}"}, "a number, or runAsNonRoot cannot check it"
    assert instructions("WORKDIR") == instructions("VOLUME") == [render.RESULTS_DIRECTORY]
    # With a read-only root, /tmp and the results are all that can be written.
    assert "HOME=/tmp" in instructions("ENV")


def test_every_stage_of_the_images_has_one_supported_python() -> None:
    stages = [words.split() for words in instructions("FROM")]
    assert [words[2] for words in stages if words[0] == "base"] == ["cuda", "cpu"], "the last is built by default"
    (image,) = {words[0] for words in stages} - {"base"}
    version = re.fullmatch(r"python:(3\.\d+)-slim-[a-z]+", image)
    assert version and f":: {version[1]}\n" in (ROOT / "setup.cfg").read_text()


# Kubernetes.


def manifests(kind: str, *options: str, bench: tuple[str, ...] = ("--model=resnet50",)) -> list[dict[str, Any]]:
    text = render.render(*render.parse([kind, *BASE, *options, "--", *bench]))
    return list(yaml.safe_load_all(text))


def pods(manifest: dict[str, Any]) -> dict[str, tuple[int, dict[str, Any]]]:
    if manifest["kind"] == "TFJob":
        replicas = manifest["spec"]["tfReplicaSpecs"]
        return {name.lower(): (spec["replicas"], spec["template"]) for name, spec in replicas.items()}
    found = {job["name"]: job["template"]["spec"] for job in manifest["spec"]["replicatedJobs"]}
    return {name: (spec["completions"], spec["template"]) for name, spec in found.items()}


def container(template: dict[str, Any]) -> dict[str, Any]:
    (only,) = template["spec"]["containers"]
    return only


def flags_of(template: dict[str, Any], pod: int = 0) -> dict[str, Any]:
    return given([arg.replace("$(JOB_COMPLETION_INDEX)", str(pod)) for arg in container(template)["args"]])


@functools.cache
def validator(kind: str) -> jsonschema.Draft202012Validator:
    registry = referencing.Registry().with_resources(
        (f"{stem}.json", referencing.Resource.from_contents(schema)) for stem, schema in SCHEMAS.items()
    )
    return jsonschema.Draft202012Validator(SCHEMAS[kind], registry=registry)


def problems(manifest: dict[str, Any]) -> list[str]:
    errors = validator(manifest["kind"].lower()).iter_errors(manifest)
    return [f"{error.json_path}: {error.message}" for error in errors]


@KINDS
@SETTINGS
def test_manifests_are_what_kubernetes_takes(kind: str, options: tuple[str, ...]) -> None:
    policy, run = manifests(kind, *options)
    assert (policy["kind"], run["kind"].lower()) == ("NetworkPolicy", kind)
    assert problems(policy) == []
    assert problems(run) == []
    assert policy["metadata"]["namespace"] == run["metadata"]["namespace"]


@SETTINGS
def test_every_pod_of_a_jobset_finds_itself_at_its_own_name(options: tuple[str, ...]) -> None:
    _, run = manifests("jobset", *options)
    name, subdomain = run["metadata"]["name"], run["spec"]["network"]["subdomain"]
    assert run["spec"]["network"]["enableDNSHostnames"]
    for job in run["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        assert (job["replicas"], spec["completionMode"]) == (1, "Indexed")
        assert spec["completions"] == spec["parallelism"]
        template = container(spec["template"])
        (port,) = template["ports"]
        (index,) = (variable for variable in template["env"] if variable["name"] == "JOB_COMPLETION_INDEX")
        where = index["valueFrom"]["fieldRef"]["fieldPath"]
        assert where == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        for pod in range(spec["completions"]):
            cluster = made(**flags_of(spec["template"], pod))
            assert cluster.own == Task(job["name"], pod)
            # As JobSet documents: <jobset>-<replicatedJob>-<job index>-<pod index>.<subdomain>
            assert cluster.address == f"{name}-{job['name']}-0-{pod}.{subdomain}:{port['containerPort']}"
            counts = {job: count for job, (count, _) in pods(run).items()}
            assert (cluster.num_ps, cluster.num_workers) == (counts.get("ps", 0), counts["worker"])


def test_the_operator_of_a_tfjob_says_where_the_others_are() -> None:
    assert render.render(*render.parse(["tfjob", *BASE])).startswith("# Legacy: ")
    _, run = manifests("tfjob", "--ps=1", "--port=3333")
    for _, template in pods(run).values():
        # What the operator looks for: a container and a port with these names.
        assert container(template)["name"] == "tensorflow"
        assert [(port["name"], port["containerPort"]) for port in container(template)["ports"]] == [
            ("tfjob-port", 3333)
        ]
        assert not flags_of(template).keys() & CLUSTER_FLAGS


@KINDS
@SETTINGS
def test_only_pods_of_the_run_reach_the_servers(kind: str, options: tuple[str, ...]) -> None:
    policy, run = manifests(kind, *options)
    name = run["metadata"]["name"]
    labels = {
        "jobset": {"jobset.sigs.k8s.io/jobset-name": name},
        "tfjob": {
            "training.kubeflow.org/job-name": name,
            "training.kubeflow.org/operator-name": "tfjob-controller",
        },
    }[kind]
    ports = {port["containerPort"] for _, pod in pods(run).values() for port in container(pod)["ports"]}
    (port,) = ports
    rule = {"from": [{"podSelector": {"matchLabels": labels}}], "ports": [{"protocol": "TCP", "port": port}]}
    if "--nccl" in options:
        del rule["ports"]
    assert policy["spec"] == {
        "podSelector": {"matchLabels": labels},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [rule],
        "egress": [
            {"to": rule["from"]} | {name: rule[name] for name in rule if name == "ports"},
            {"ports": [{"protocol": name, "port": dns} for dns in (53, 5353) for name in ("UDP", "TCP")]},
        ],
    }


@KINDS
@SETTINGS
def test_pods_have_no_privileges(kind: str, options: tuple[str, ...]) -> None:
    user = 2000 if "--user=2000" in options else 1000
    for _, template in pods(manifests(kind, *options)[1]).values():
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": user,
            "runAsGroup": user,
            "fsGroup": user,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert container(template)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)


@pytest.mark.parametrize(
    ("options", "bench"),
    [
        (("--nccl",), ()),
        (("--gpus_per_worker=1",), ("--device=CPU",)),
        (("--ps=1",), ()),
        (("--workers=1",), ()),
        ((), ("--all_reduce_spec=collective",)),
        ((), ("--variable_update=distributed_all_reduce",)),
    ],
)
def test_ports_are_opened_only_where_nccl_connects_pods(options: tuple[str, ...], bench: tuple[str, ...]) -> None:
    policy, _ = manifests("jobset", "--gpus_per_worker=8", *options, bench=bench)
    assert ("ports" in policy["spec"]["ingress"][0]) == ("--nccl" not in options)


def test_nothing_restarts_and_the_workers_decide() -> None:
    _, run = manifests("jobset", "--ps=1")
    assert run["spec"]["failurePolicy"] == {"maxRestarts": 0}
    assert run["spec"]["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["worker"]}
    for job in run["spec"]["replicatedJobs"]:
        assert job["template"]["spec"]["backoffLimit"] == 0
        assert job["template"]["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    _, run = manifests("tfjob", "--ps=1")
    assert (run["spec"]["runPolicy"]["backoffLimit"], run["spec"]["successPolicy"]) == (0, "AllWorkers")
    assert {spec["restartPolicy"] for spec in run["spec"]["tfReplicaSpecs"].values()} == {"Never"}


@KINDS
def test_workers_have_the_gpus(kind: str) -> None:
    found = pods(manifests(kind, "--ps=1", "--gpus_per_worker=8")[1])
    for name, (_, template) in found.items():
        bounds = container(template)["resources"]
        assert bounds["requests"] == bounds["limits"]
        assert bounds["limits"].get("nvidia.com/gpu") == (8 if name == "worker" else None)
        hidden = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container(template)["env"]
        assert hidden == (name == "ps")
        # Every task gets the same flags.
        assert flags_of(template)["num_gpus"] == 8


@KINDS
@pytest.mark.parametrize("claim", [(), ("--results_claim=disk",)])
def test_a_pod_writes_only_to_limited_volumes_and_results_to_the_claim(kind: str, claim: tuple[str, ...]) -> None:
    options = ("--ps=1", "--gpus_per_worker=1", "--scratch_size=3Gi", *claim)
    for name, (_, template) in pods(manifests(kind, *options)[1]).items():
        mounts = {mount["name"]: mount["mountPath"] for mount in container(template)["volumeMounts"]}
        scratch = {"emptyDir": {"sizeLimit": "3Gi"}}
        wanted = {"results": (flags_of(template)["output_dir"], scratch), "tmp": ("/tmp", scratch)}
        if name == "worker":
            wanted["shm"] = "/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}
            if claim:
                wanted["results"] = wanted["results"][0], {"persistentVolumeClaim": {"claimName": "disk"}}
        volumes = {each["name"]: (mounts.pop(each["name"]), each) for each in template["spec"]["volumes"]}
        assert volumes == {each: (path, {"name": each, **of_it}) for each, (path, of_it) in wanted.items()}
        assert not mounts


@KINDS
def test_flags_reach_run_bench_as_they_were_given(kind: str) -> None:
    bench = ("--num_gpus=2", "--session_id=a: \"b\" 'c' # $(HOME) $$ é \\ \x85\x7f\u2028", "--nodistortions")
    _, run = manifests(kind, "--gpus_per_worker=8", "--ps=1", bench=bench)
    for _, template in pods(run).values():
        # Kubernetes takes $$ as a dollar, so $$(HOME) is not expanded.
        args = [arg.replace("$$", "$") for arg in container(template)["args"]]
        assert [arg for arg in args if arg in bench] == list(bench)
        assert "--num_gpus=8" not in args


@KINDS
@pytest.mark.parametrize(
    ("options", "bench", "manager"),
    [
        ((), (), "collective_all_reduce"),
        ((), ("--variable_update=local_sgd",), "local_sgd"),
        (("--ps=1",), (), None),
        (("--workers=1",), (), None),
    ],
)
def test_workers_without_servers_get_a_manager_that_needs_none(
    kind: str, options: tuple[str, ...], bench: tuple[str, ...], manager: str | None
) -> None:
    _, run = manifests(kind, *options, bench=bench)
    assert flags_of(pods(run)["worker"][1]).get("variable_update") == manager


def test_flags_that_name_tasks_are_reserved() -> None:
    timeouts = {"start_timeout_seconds", "step_timeout_seconds"}
    assert CLUSTER_FLAGS - {*render.RESERVED} == {"private_network", "server_protocol", *timeouts}


def test_the_script_prints_to_stdout() -> None:
    command = [sys.executable, DEPLOY / "kubernetes" / "render.py", "jobset", *BASE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [manifest["kind"] for manifest in yaml.safe_load_all(done.stdout)] == ["NetworkPolicy", "JobSet"]


LONGEST = 63 - len("-worker-0-1-abcde")


def test_a_name_may_be_as_long_as_its_pods_allow() -> None:
    assert render.parse(["jobset", "--image=x", f"--name={'a' * LONGEST}"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "required"),
        (("jobset", "--image=x"), "--name"),
        (("jobset", "--image=x", "--name=Upper"), "'Upper'"),
        (("jobset", "--image=x", f"--name={'a' * (LONGEST + 1)}"), f"at most {LONGEST} letters"),
        (("jobset", *BASE, "--image=a b"), "'a b'"),
        (("jobset", *BASE, "--workers=0"), "from 1"),
        (("jobset", *BASE, "--ps=-1"), "'-1'"),
        (("jobset", *BASE, "--port=80"), "from 1024 to 65535"),
        (("jobset", *BASE, "--memory=8"), "such as 8Gi"),
        (("jobset", *BASE, "--cpu=0"), "such as 8 or 500m"),
        (("jobset", *BASE, "--command="), "python run_bench.py"),
        (("jobset", *BASE, "--command='"), "quotation"),
        (("tfjob", *BASE, "--worker=2"), "--worker=2"),
        (("jobset", *BASE, "--model=trivial"), "Flags of run_bench come after --"),
        (("tfjob", *BASE, "--", "resnet50"), "'resnet50'"),
        (("tfjob", *BASE, "--", "--num_ps=2"), "--num_ps=2"),
        (("jobset", *BASE, "--", "-worker_hosts=a:1"), "leave it out"),
        (("tfjob", *BASE, "--", "--nossh"), "leave it out"),
        (("jobset", *BASE, "--", "--output_dir=x"), "leave it out"),
        (("tfjob", *BASE, "--", "--flagfile=a.flags"), "behind -- instead"),
        (("tfjob", *BASE, "--", "--task-index=1"), "leave it out"),
        (("tfjob", *BASE, "--", "--no-ssh"), "leave it out"),
        (("jobset", *BASE, "--", "--model=\udcff"), "is not UTF-8"),
        (("jobset", *BASE, "--", "--note=\U0001f600"), "has a letter beyond U+FFFF"),
        (("jobset", *BASE, "--gpus_per_worker=8"), "add --nccl"),
        (("jobset", *BASE, "--gpus-per-worker=8"), "add --nccl"),
        (("jobset", *BASE, "--gpus_per_worker=1", "--", "--all_reduce_spec=psgpu/NCCL"), "add --nccl"),
        (("jobset", *BASE, "--gpus_per_worker=1", "--", "--forward_only=False"), "add --nccl"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        render.main(arguments)
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.startswith("render.py")
    assert printed.err.count("\n") == 1
    assert printed.err.endswith(".\n")
