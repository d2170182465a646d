"""The tasks that `devices` prints, and the names of jobs and tasks in a run and a server."""

from __future__ import annotations

import json

import pytest

from benchmarks.cluster import server_verb
from benchmarks.cluster.cluster_spec import Task
from benchmarks.config import flag, run_flags
from tests.support.commands import RunBench

SPEC = "--cluster_spec=ps|tf1:2222;tf1:2223,worker|w0:2222;w1:2222"
SHOW = ("devices", "--notensorflow")
TASKS = [
    ("ps", "0", "tf1:2222", "/job:ps/replica:0/task:0"),
    ("ps", "1", "tf1:2223", "/job:ps/replica:0/task:1"),
    ("worker", "0", "w0:2222", "/job:worker/replica:0/task:0"),
    ("worker", "1", "w1:2222", "/job:worker/replica:0/task:1"),
]


@pytest.mark.row("S2.2")
def test_the_tasks_of_a_specification(run_bench: RunBench) -> None:
    done = run_bench(*SHOW, SPEC)
    spec, header, *rows = done.stdout.rpartition("\n\n")[2].splitlines()
    assert done.status == 0 and done.stderr == "" and done.stdout.startswith("CPU: ")
    assert spec == "--cluster_spec='ps|tf1:2222;tf1:2223,worker|w0:2222;w1:2222'"
    assert header.split() == ["job", "task", "address", "name", "in", "TensorFlow"]
    assert [tuple(row.split()) for row in rows] == TASKS, "no task has to be named"


def test_json(run_bench: RunBench) -> None:
    done = run_bench(*SHOW, "--cluster_spec=local|localhost:2222", "--job_name=local", "--output_format=json")
    assert json.loads(done.stdout)["cluster"] == {
        "hosts": {"local": ["localhost:2222"]},
        "tasks": [
            {"job": "local", "index": 0, "address": "localhost:2222", "device": "/job:local/replica:0/task:0"},
        ],
        "own": {"job": "local", "index": 0},
        "notices": [],
    }


@pytest.mark.parametrize(
    ("flags", "spec"),
    [
        (["--worker_hosts=a:1,b:1", "--ps_hosts=c:1"], "ps|c:1,worker|a:1;b:1"),
        (["--local_cluster=ps:1,worker:2"], "ps|127.0.0.1:PORT,worker|127.0.0.1:PORT;127.0.0.1:PORT"),
        (["--hosts=a,b", "--ssh", "--variable_update=collective_all_reduce"], "worker|a:50001;b:50001"),
        (["--hosts=a,b", "--ssh"], "ps|a:50000;b:50000,worker|a:50001;b:50001"),
    ],
)
def test_every_way_to_name_a_cluster(run_bench: RunBench, flags: list[str], spec: str) -> None:
    done = run_bench(*SHOW, *flags)
    assert done.status == 0 and f"\n\n--cluster_spec='{spec}'\n" in done.stdout


@pytest.mark.row("S2.3")
def test_tf_config_and_slurm_need_not_name_the_own_task(run_bench: RunBench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"JOB_NODELIST": "n[1-2]", "NTASKS": "4", "TASKS_PER_NODE": "2(x2)"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    spec = "ps|n1:50001,worker|n1:50000;n2:50000;n2:50001"
    assert f"\n--cluster_spec='{spec}'\n" in run_bench(*SHOW, "--cluster=slurm", "--num_ps=1").stdout
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"chief": ["c:1"], "worker": ["a:1"]}}))
    assert "\n--cluster_spec='worker|c:1;a:1'\n" in run_bench(*SHOW).stdout


def test_a_machine_is_described_whatever_the_environment_says_of_a_cluster(
    run_bench: RunBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", "{bad")
    done = run_bench(*SHOW)
    assert done.status == 0 and done.stdout.startswith("CPU: ")
    assert "No tasks of a cluster are shown. TF_CONFIG={bad cannot be read" in done.stderr
    assert json.loads(run_bench(*SHOW, "--output_format=json").stdout)["cluster"] is None
    assert run_bench(*SHOW, "--cluster=slurm").status == 2, "it was asked for"


@pytest.mark.parametrize(
    ("flags", "own", "device", "devices"),
    [
        (["--cluster_spec=local|localhost:2222", "--job_name=local", "--num_gpus=2"], Task("local", 0), "cpu", 2),
        (
            ["--cluster_spec=ps|tf1:2222;tf1:2223", "--job_name=ps", "--task_id=1", "--num_gpus=2"],
            Task("ps", 1),
            "cpu",
            1,
        ),
        (["--cluster_spec=Wk|a:1", "--job_name=wk"], Task("Wk", 0), "cpu", 1),
    ],
)
def test_a_server_is_a_task_of_any_job(flags: list[str], own: Task, device: str, devices: int) -> None:
    parsed = flag.parse([*flags, "--device=cpu"], server_verb.VERB.flags)
    found, task, runtime = server_verb.server_options(run_flags.unset(parsed.values), lambda: 0)
    assert (task, runtime.devices.device, runtime.devices.num_devices) == (own, device, devices)
    assert runtime.peers == tuple(address for addresses in found.hosts.values() for address in addresses)


def test_a_sweep_takes_other_spellings_as_lists(run_bench: RunBench) -> None:
    words = ("sweep", "--model=trivial", "--device=cpu", "--variable_update=parameter_server", "--dry_run")
    by_alias, by_name = (run_bench(*words, f"--{name}=true,false") for name in ("async", "cross_replica_sync"))
    assert by_alias.status == by_name.status == 0, by_alias.stderr
    assert by_alias.stdout.count("\n") == by_name.stdout.count("\n")
