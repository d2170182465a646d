from __future__ import annotations

import json
import re
from typing import Any

import pytest

from benchmarks.cluster import discovery, ranks
from benchmarks.cluster.cluster_spec import Cluster, Task
from benchmarks.config import run_flags
from benchmarks.errors import UsageError

TWO_WORKERS = {"cluster": {"worker": ["h1:1", "h2:1"]}, "task": {"type": "worker", "index": 1}}
BY_SPEC = {"job_name": "worker", "cluster_spec": "ps|a:1,worker|b:1"}
SAME = {"job_name": "worker", "task_index": 0, "worker_hosts": "a:1,b:1"}
WITH_CHIEF = {"cluster": {"chief": ["c:1"], "ps": ["p:1"], "worker": ["w0:1", "w1:1"]}}


def resolve(environ: dict[str, str] | None = None, **flags: Any) -> tuple[Cluster | None, tuple[str, ...]]:
    """Returns what `resolve_cluster` does with these values of flags, and with these variables alone."""
    assert set(flags) <= run_flags.FLAGS.keys()
    return discovery.resolve_cluster(run_flags.unset(flags), environ or {})


def made(environ: dict[str, str] | None = None, **flags: Any) -> Cluster:
    cluster, notices = resolve(environ, **flags)
    assert cluster is not None
    assert notices == ()
    return cluster


def tf_config(content: Any, **task: Any) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({**content, **({"task": task} if task else {})})}


def srun(rank: int, nodes: str, tasks: str, count: int) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(count),
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": tasks,
    }


# Explicit flags.


def test_nothing_given_is_one_process() -> None:
    assert resolve() == (None, ())
    assert resolve(job_name="", worker_hosts="", task_index=0) == (None, ())


@pytest.mark.fault(
    "R16", "a host that is an option of ssh, or has a letter of a shell", survives="a sentence, before ssh is started"
)
@pytest.mark.parametrize("other", [{}, {"job_name": "worker", "worker_hosts": "a:1"}, {"local_cluster": "worker:2"}])
@pytest.mark.parametrize("hosts", ["-V", "a,-oProxyCommand=x", "a b", "a;id", "me@a", "::1", "a:22"])
def test_what_is_no_host_is_refused_whatever_else_is_given(hosts: str, other: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^--hosts={re.escape(hosts)}: '.*' is no host: "):
        resolve(hosts=hosts, ssh=True, variable_update="collective_all_reduce", **other)


def test_hosts_for_ssh() -> None:
    flags = {"hosts": "a.org, 10.0.0.2,[2001:db8::1]", "ssh": True, "variable_update": "collective_all_reduce"}
    assert made(**flags).workers == ("a.org:50001", "10.0.0.2:50001", "[2001:db8::1]:50001")
    assert made(**flags, server_port=65534).workers[0] == "a.org:65535"
    with pytest.raises(UsageError, match="^--server_port=65535: workers have the next port, so give at most 65534"):
        made(**flags, server_port=65535)
    for twice in ("a,A", "a,a.", "localhost,127.0.0.1", "[::2],[0::2]"):
        with pytest.raises(UsageError, match="name each host once"):
            made(**{**flags, "hosts": twice})
    for hosts, entry in (("a,b,", 3), ("a,,b", 2), (" ,a", 1)):
        with pytest.raises(UsageError, match=f"^--hosts={hosts}: entry {entry} is empty: give a host there, or drop"):
            made(**{**flags, "hosts": hosts})


@pytest.mark.row("S0.1")
@pytest.mark.parametrize(
    "hosts",
    [
        {"ps_hosts": "a:1,b:1", "worker_hosts": "a:2, b:2", "controller_host": "c:1"},
        {"cluster_spec": "ps|a:1;b:1,worker|a:2;b:2,controller|c:1"},
    ],
)
def test_hosts_by_flags(hosts: dict[str, str]) -> None:
    cluster = made(job_name="ps", task_index=1, **hosts)
    assert cluster == Cluster(
        ps=("a:1", "b:1"), workers=("a:2", "b:2"), controller="c:1", own=Task("ps", 1), local=False
    )


@pytest.mark.parametrize("job", ["ps", "worker", "controller"])
def test_the_only_task_of_its_job_needs_no_index(job: str) -> None:
    cluster = made(job_name=job, ps_hosts="a:1", worker_hosts="a:2", controller_host="a:3")
    assert cluster.own == Task(job, 0)


def test_a_cluster_that_one_command_started_is_local() -> None:
    hosts = {"job_name": "worker", "task_index": 0, "worker_hosts": "127.0.0.1:1,127.0.0.2:2"}
    assert made(**hosts, local_cluster="worker:2").local
    assert not made(**hosts).local


@pytest.mark.parametrize(
    "address", ["[::1]:2222", "[fe80::1%eth0]:1", "h-1.example.org:65535", "10.0.0.1:1", "h_1:1", "h1.:1"]
)
def test_addresses(address: str) -> None:
    assert made(job_name="worker", worker_hosts=address).address == address


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("h1", "worker 0: 'h1' is no address. Write host:port"),
        ("grpc://h1:2222", "is no address"),
        ("::1:2222", "is no address. Write host:port, such as node1:2222 or [::1]:2222."),
        ("[::1]", "is no address"),
        ("[h1]:2222", "has no IPv6 address in its brackets"),
        ("-h1:2222", "is no address: a host name has letters"),
        ("h$(id):2222", "is no address: a host name has letters"),
        ("h1\n:2222", "is no address: a host name has letters"),
        (f"{'h' * 254}:2222", "is no address: a host name has letters"),
        ("10.0.0.256:2222", "it is no IP address (Octet 256"),
        ("[::1::]:2222", "it is no IP address"),
        ("[::1%-a b]:2222", "has no IPv6 address in its brackets"),
        ("h1:0", "has port 0; a port is a number from 1 to 65535"),
        ("h1:65536", "has port 65536"),
        ("h2:1,,h1:1", "has an empty entry"),
    ],
)
def test_what_is_no_address_is_refused(address: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"^--worker_hosts.*{re.escape(words)}"):
        resolve(job_name="worker", task_index=0, worker_hosts=address)
    spec = "worker|" + address.replace(",", ";")
    with pytest.raises(UsageError, match=f"^--cluster_spec.*{re.escape(words)}"):
        resolve(job_name="worker", task_index=0, cluster_spec=spec)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"job_name": "worker"}, "--job_name=worker chooses a task .* there is none: name it with --worker_hosts"),
        ({"task_index": 2}, "--task_index=2 chooses a task"),
        ({"job_name": "ps", "local_cluster": "ps:1,worker:1"}, "--job_name=ps chooses a task"),
        ({"task_index": 0, "local_cluster": "worker:2"}, "--task_index=0: --local_cluster and --hosts start all tasks"),
        ({"worker_hosts": "a:1", "ps_hosts": "a:2"}, r"\(--ps_hosts, --worker_hosts\).*add --job_name"),
        ({"cluster_spec": "worker|a:1"}, r"\(--cluster_spec\).*add --job_name"),
        ({"job_name": "worker", "ps_hosts": "a:1"}, "^--ps_hosts: there is no worker: .*--worker_hosts"),
        ({"job_name": "ps", "cluster_spec": "ps|a:1"}, "^--cluster_spec: there is no worker: "),
        ({"job_name": "ps", "worker_hosts": "a:1"}, "--job_name=ps, and the cluster has no ps: add its address"),
        ({"job_name": "worker", "worker_hosts": "a:1,b:1"}, "--job_name=worker without --task_index: .*0 to 1"),
        ({"job_name": "worker", "task_index": 2, "worker_hosts": "a:1,b:1"}, "--task_index=2: there are worker 0 to 1"),
        ({"job_name": "worker", "task_index": 1, "worker_hosts": "a:1"}, "--task_index=1: there is only worker 0"),
        ({**SAME, "controller_host": "c:1,d:1"}, "--controller_host: the controller has 2 addresses"),
        ({"num_ps": 1}, "--num_ps=1 is for --cluster=slurm or mpi; elsewhere --local_cluster or --ps_hosts"),
        ({"num_ps": 1, "worker_hosts": "a:1", "job_name": "worker"}, "--num_ps=1 is for --cluster=slurm"),
        ({**BY_SPEC, "worker_hosts": "b:1"}, "--cluster_spec names all tasks: leave --worker_hosts out"),
        ({"job_name": "chief", "worker_hosts": "a:1"}, r"has no chief: add its address, or name one .*\(worker\)"),
        (
            {**SAME, "worker_hosts": "a:1,b:1,A:1"},
            "^--worker_hosts: worker 0 and worker 2 have the same address a:1 = A:1",
        ),
        ({**SAME, "worker_hosts": "a:1,b:1,a.:1"}, "worker 0 and worker 2 have the same address a:1 = a.:1. Give each"),
        ({**SAME, "worker_hosts": "localhost:1,[::1]:1"}, r"have the same address localhost:1 = \[::1\]:1"),
        ({**SAME, "worker_hosts": "[::1]:1,[0::1]:1"}, r"have the same address \[::1\]:1 = \[0::1\]:1"),
        ({**SAME, "ps_hosts": "b:1"}, "^--ps_hosts, --worker_hosts: ps 0 and worker 1 have the same address b:1"),
        ({**SAME, "worker_hosts": "0.0.0.0:1,b:1"}, "worker 0: '0.0.0.0:1' is no address: it stands for all interf"),
        ({**SAME, "worker_hosts": "[::]:1,b:1"}, "it stands for all interfaces"),
        ({**SAME, "worker_hosts": "localhost:1,b:1"}, "^--worker_hosts: localhost is another host for b than for its"),
        ({**SAME, "worker_hosts": "a:1,127.0.1.1:1"}, r"127\.0\.1\.1 is another host for a"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        resolve(**flags)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("wroker|a:1", "has the job 'wroker', and a run knows only ps, worker, controller. Did you mean 'worker'"),
        ("local|a:1", "has the job 'local', and a run knows only .* servers for sessions of your own with `server`"),
        ("2w|a:1", "cannot be read at '2w|a:1'"),
        ("worker", "cannot be read at 'worker'. Write it in quotes as 'ps|"),  # a shell takes | for a pipe
        ("worker|a:1,b:1", "cannot be read at 'b:1'. .*semicolon between addresses"),
        ("worker|a:1,worker|b:1", "has worker twice"),
        ("worker|a:1;", "has an empty entry"),
        ("ps|,worker|a:1", "has an empty entry"),
    ],
)
def test_a_cluster_spec_that_cannot_be_read(spec: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"^--cluster_spec.*{words.replace('|', '[|]')}"):
        resolve(job_name="worker", task_index=0, cluster_spec=spec)


# TF_CONFIG.


@pytest.mark.row("S0.1")
def test_tf_config_names_the_cluster() -> None:
    cluster = made(tf_config(TWO_WORKERS))
    assert (cluster.workers, cluster.own) == (("h1:1", "h2:1"), Task("worker", 1))
    assert made(tf_config(TWO_WORKERS), local_cluster="worker:2").local


@pytest.mark.parametrize(
    ("task", "own"),
    [
        ({"type": "chief", "index": 0}, Task("worker", 0)),
        ({"type": "chief"}, Task("worker", 0)),
        ({"type": "worker", "index": 0}, Task("worker", 1)),
        ({"type": "worker", "index": "1"}, Task("worker", 2)),
        ({"type": "ps", "index": 0}, Task("ps", 0)),
        ({"type": "ps"}, Task("ps", 0)),
    ],
)
def test_a_chief_is_worker_0(task: dict[str, Any], own: Task) -> None:
    cluster = made(tf_config(WITH_CHIEF, **task))
    assert (cluster.ps, cluster.workers, cluster.own) == (("p:1",), ("c:1", "w0:1", "w1:1"), own)


def test_addresses_may_be_listed_by_index() -> None:
    by_index = {"cluster": {"chief": {"0": "c:1"}, "worker": {"1": "w1:1", "0": "w0:1"}, "ps": ["p:1"]}}
    assert made(tf_config(by_index, type="worker", index=0)) == made(tf_config(WITH_CHIEF, type="worker", index=0))


def test_a_master_is_a_chief_and_an_evaluator_is_not_of_the_cluster() -> None:
    content = {"cluster": {"master": ["m:1"], "worker": ["w:1"], "evaluator": ["e:1"]}}
    cluster = made(tf_config(content, type="master", index=0))
    assert (cluster.workers, cluster.own) == (("m:1", "w:1"), Task("worker", 0))
    content = {"cluster": {"worker": ["w:1"], "controller": ["c:1"]}}
    assert made(tf_config(content, type="controller", index=0)).own == Task("controller", 0)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"cluster": {}},
        {"cluster": None},
        {"cluster": {"worker": []}},
        {"task": {"type": "worker", "index": 0}},
        {"cluster": {"chief": ["h1:1"]}, "task": {"type": "chief", "index": 0}},
        {"cluster": {"worker": ["h1:1"]}},
        {"environment": "cloud", "cluster": {"worker": ["h1:1"]}},
    ],
)
def test_a_tf_config_of_one_task_is_one_process(content: Any) -> None:
    assert resolve(tf_config(content)) == (None, ())
    assert resolve({"TF_CONFIG": ""}) == (None, ())


@pytest.mark.parametrize(
    ("name", "several", "no_others"),
    [
        ("SM_HOSTS", '["algo-1","algo-2"]', ('["algo-1"]', '{"hosts":"a"}', "{}", "a", "")),
        (
            "CLUSTER_SPEC",
            '{"cluster": {"workerpool0": ["a:2222"], "workerpool1": ["b:2222"]}, "task": {"type": "workerpool0"}}',
            ('{"cluster": {"workerpool0": ["a:2222"]}}',),
        ),
        ("KUNGFU_INIT_PEERS", "127.0.0.1:10000,127.0.0.1:10001", ("127.0.0.1:10000",)),
    ],
)
def test_lists_of_tasks_of_other_platforms_are_refused(name: str, several: str, no_others: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=f"{name}={re.escape(several)}: each task would measure alone"):
        resolve({name: several})
    with pytest.raises(UsageError, match="rank 0 of 2 .*: add --cluster=mpi"):
        resolve({name: several, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})
    assert {resolve({name: text}) for text in no_others} == {(None, ())}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "TF_CONFIG={ cannot be read .*unset it, or set it to {"),
        ("[1]", "cannot be read"),
        ('{"cluster": {"worker": "h1:1"}}', "cannot be read"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0.5}}', "cannot be read"),
        ('{"cluster": {"wroker": ["a:1"]}}', "there is no job 'wroker'. Did you mean 'worker'"),
        ('{"cluster": {"chief": ["a:1", "b:1"]}}', "TF_CONFIG has 2 chiefs"),
        ('{"cluster": {"chief": ["a:1"], "master": ["b:1"]}}', "TF_CONFIG has 2 chiefs"),
        ('{"cluster": {"ps": ["a:1"]}}', "^TF_CONFIG: there is no worker: "),
        ('{"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}}', "same address a:1"),
        (
            '{"cluster": {"worker": {"1": "a:1"}}}',
            "TF_CONFIG has no address of worker 0, and has one of worker 1: every",
        ),
        ('{"cluster": {"worker": {"99999999999": "a:1"}}}', "TF_CONFIG has no address of worker 0"),
        ('{"cluster": {"worker": {"a": "b:1"}}}', "cannot be read"),
        ('{"cluster": {"worker": ["a:1", "b"]}, "task": {"type": "worker", "index": 0}}', "TF_CONFIG, worker 1: 'b'"),
        ('{"clusters": {"worker": ["a:1", "b:1"]}}', "TF_CONFIG has 'clusters', which is not understood"),
        ('{"task": {"type": "worker", "index": 1}}', "makes this process worker 1 and names no cluster"),
        ('{"task": {"type": "ps"}}', "makes this process ps 0 and names no cluster"),
        ('{"sparseCluster": {"worker": {"1": "b:1"}, "ps": ["p:1"]}}', "lists of all tasks.*enableDynamicWorker"),
        pytest.param("[" * 100_000, "cannot be read", id="deep"),
        pytest.param('{"task": {"index": ' + "9" * 5000 + "}}", "cannot be read", id="long number"),
        pytest.param('{"task": {"index": "' + "9" * 400 + '"}}', "TF_CONFIG", id="large index"),
    ],
)
def test_a_tf_config_that_cannot_be_used(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        resolve({"TF_CONFIG": text})


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({}, "type '' for this process's task: set it to one of chief, ps, worker"),
        ({"type": "evaluator", "index": 0}, "type 'evaluator' .* one of chief, ps, worker, or leave"),
        ({"type": "worker"}, "TF_CONFIG, type worker without index: there are worker 0 to 1"),
        ({"type": "worker", "index": 2}, "TF_CONFIG, type worker index=2: there are worker 0 to 1"),
        ({"type": "worker", "index": -1}, "index=-1"),
        ({"type": "chief", "index": 1}, "index=1: there is only chief 0"),
    ],
)
def test_a_task_that_tf_config_does_not_have(task: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        resolve(tf_config(WITH_CHIEF, **task))


def test_flags_may_repeat_which_task_tf_config_says() -> None:
    assert made(tf_config(TWO_WORKERS), job_name="worker", task_index=1) == made(tf_config(TWO_WORKERS))
    with pytest.raises(UsageError, match="--job_name=ps, and TF_CONFIG makes this process worker 1"):
        resolve(tf_config(TWO_WORKERS), job_name="ps")
    with pytest.raises(UsageError, match="--task_index=0, and TF_CONFIG makes this process worker 1"):
        resolve(tf_config(TWO_WORKERS), task_index=0)


# Which source wins.


@pytest.mark.parametrize("environ", [tf_config(TWO_WORKERS), {"TF_CONFIG": "{"}], ids=["other hosts", "no JSON"])
def test_flags_win_over_tf_config_and_say_so(environ: dict[str, str]) -> None:
    cluster, notices = resolve(environ, job_name="worker", task_index=0, worker_hosts="h1:1,h3:1")
    assert cluster is not None and cluster.workers == ("h1:1", "h3:1")
    assert notices == ("TF_CONFIG is ignored, since flags name the hosts.",)
    with pytest.raises(UsageError, match="add --job_name"):
        resolve(environ, worker_hosts="h1:1,h2:1")


def test_slurm_is_asked_last() -> None:
    environ = {**tf_config(TWO_WORKERS), **srun(0, "n[1-2]", "1(x2)", 2)}
    cluster, (notice,) = resolve(environ, cluster="slurm")
    assert cluster is not None and cluster.workers == ("h1:1", "h2:1")
    assert "--cluster=slurm is ignored, since TF_CONFIG" in notice
    cluster, (notice,) = resolve(srun(0, "n[1-2]", "1(x2)", 2), cluster="slurm", job_name="worker", worker_hosts="a:1")
    assert cluster is not None and cluster.workers == ("a:1",)
    assert "--cluster=slurm is ignored, since flags" in notice
    assert made({**tf_config({}), **srun(0, "n[1-2]", "1(x2)", 2)}, cluster="slurm").num_workers == 2


# Slurm.


@pytest.mark.parametrize(
    ("tasks", "num_ps", "ps", "workers"),
    [
        ("2(x2)", 0, (), ("a:50000", "a:50001", "b:50000", "b:50001")),
        ("2(x2)", 1, ("a:50001",), ("a:50000", "b:50000", "b:50001")),
        ("2(x2)", 2, ("a:50001", "b:50001"), ("a:50000", "b:50000")),
        ("2(x2)", 3, ("a:50001", "b:50001", "a:50000"), ("b:50000",)),
        ("1,3", 3, ("a:50000", "b:50002", "b:50001"), ("b:50000",)),
        ("3,1", 2, ("a:50002", "b:50000"), ("a:50000", "a:50001")),
    ],
)
def test_ranks_become_tasks(tasks: str, num_ps: int, ps: tuple[str, ...], workers: tuple[str, ...]) -> None:
    clusters = [made(srun(rank, "a,b", tasks, 4), cluster="slurm", num_ps=num_ps) for rank in range(4)]
    assert {(cluster.ps, cluster.workers) for cluster in clusters} == {(ps, workers)}
    assert {cluster.own for cluster in clusters} == set(clusters[0].tasks)
    assert sorted(cluster.address for cluster in clusters) == [cluster.address for cluster in clusters]


def test_ports_begin_at_server_port() -> None:
    assert made(srun(1, "a", "2", 2), cluster="slurm", server_port=7000).address == "a:7001"
    with pytest.raises(UsageError, match="^Slurm, worker 3: 'b:65536' has port 65536; a port is a number from 1 to"):
        resolve(srun(1, "a,b", "1,3", 4), cluster="slurm", server_port=65534)


def test_the_variables_of_the_job_do_where_there_are_none_of_the_step() -> None:
    step = srun(1, "a,b", "1(x2)", 2)
    job = {
        "SLURM_PROCID": "1",
        "SLURM_NTASKS": "2",
        "SLURM_JOB_NODELIST": "a,b",
        "SLURM_TASKS_PER_NODE": "1(x2)",
    }
    assert made(job, cluster="slurm") == made(step, cluster="slurm")
    assert made({**job, **srun(0, "c", "2", 2)}, cluster="slurm").address == "c:50000"


@pytest.mark.parametrize("name", srun(0, "", "", 0))
def test_a_variable_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(UsageError, match=f"--cluster=slurm needs {name}( or SLURM_[A-Z_]+)? in .*srun"):
        resolve({**srun(0, "a,b", "1(x2)", 2), name: ""}, cluster="slurm")


def test_a_batch_script_without_srun_is_told_to_use_it() -> None:
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "a,b", "SLURM_TASKS_PER_NODE": "1(x2)"}
    with pytest.raises(UsageError, match="would wait for the others of the 2 tasks: write srun before the command"):
        resolve(batch, cluster="slurm")
    assert resolve(batch) == (None, ())


def test_a_shell_of_salloc_on_a_node_is_not_the_only_task() -> None:
    job = {"SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)"}
    shell = {**job, **srun(0, "n1", "1", 1), "SLURM_STEP_ID": "4294967290"}
    assert resolve(shell) == (None, ())
    with pytest.raises(UsageError, match="--cluster=slurm needs SLURM_PROCID in the environment: start .* with srun"):
        resolve(shell, cluster="slurm")


def test_one_task_under_slurm_is_one_process() -> None:
    assert resolve(srun(0, "a", "1", 1), cluster="slurm", job_name="worker", task_index=0) == (None, ())


@pytest.mark.parametrize(
    ("change", "flags", "words"),
    [
        ({}, {"num_ps": 4}, "--num_ps=4 leaves no worker among 4 tasks: start more"),
        ({}, {"hosts": "a,b"}, "--hosts starts tasks .*: leave it out, since Slurm names the hosts"),
        ({}, {"job_name": "ps"}, "--job_name=ps, and Slurm makes this process worker 1"),
        ({}, {"task_index": 2}, "--task_index=2, and Slurm makes this process worker 1"),
        ({"SLURM_PROCID": "4"}, {}, "contradict each other"),
        ({"SLURM_STEP_NUM_TASKS": "5"}, {}, "contradict each other"),
        ({"SLURM_STEP_NODELIST": "a"}, {}, "contradict each other"),
        ({"SLURM_STEP_NUM_TASKS": "four"}, {}, "SLURM_STEP_NUM_TASKS or SLURM_NTASKS is 'four'"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(3)"}, {}, r"tasks per node '2\(3\)' cannot be read"),
        ({"SLURM_STEP_NODELIST": "a,a"}, {}, "have the same address a:50000"),
        ({"SLURM_STEP_NODELIST": "a[1-9999999999]"}, {}, "name 9999999999 tasks or hosts, and a run has at most 1000"),
        ({"SLURM_STEP_NODELIST": "a[1-60000],b[1-60000]"}, {}, "name 120000 tasks or hosts"),
        ({"SLURM_STEP_NODELIST": "a[1-999][1-999]"}, {}, "name 998001 tasks or hosts"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x9999999999)"}, {}, "tasks per node '.*' cannot be read"),
        (
            {"SLURM_STEP_NODELIST": "a", "SLURM_STEP_TASKS_PER_NODE": "999999", "SLURM_STEP_NUM_TASKS": "999999"},
            {},
            "name 999999 tasks",
        ),
        ({"SLURM_NODEID": "1"}, {}, "SLURM_NODEID=1, and 0 was expected .*--distribution=block"),
        ({"SLURM_NODEID": "0", "SLURM_LOCALID": "0"}, {}, "SLURM_LOCALID=0, and 1 was expected"),
    ],
)
def test_what_slurm_cannot_mean(change: dict[str, str], flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        resolve({**srun(1, "a,b", "2(x2)", 4), **change}, cluster="slurm", **flags)


def test_a_place_that_is_as_expected_is_taken() -> None:
    place = {"SLURM_NODEID": "1", "SLURM_LOCALID": "0"}
    assert made({**srun(2, "a,b", "2(x2)", 4), **place}, cluster="slurm").own == Task("worker", 2)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("node[01-03,7],gpu-a", ["node01", "node02", "node03", "node7", "gpu-a"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[098-101]x", ["n098x", "n099x", "n100x", "n101x"]),
        ("r[1-2]n[1-2].org", ["r1n1.org", "r1n2.org", "r2n1.org", "r2n2.org"]),
        ("[1,3]", ["1", "3"]),
    ],
)
def test_node_lists(text: str, names: list[str]) -> None:
    assert ranks.expand_nodes(text) == names


@pytest.mark.parametrize("text", ["", "a,", "a[1-2", "a1-2]", "a[]", "a[3-1]", "a[x]", "a[1-2-3]", "a[1,]", "a[-1]"])
def test_node_lists_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError, match="node list .* cannot be read"):
        ranks.expand_nodes(text)


def test_localhost_does_among_tasks_of_one_host() -> None:
    assert made(job_name="worker", task_index=0, worker_hosts="localhost:1,127.0.0.1:2").num_workers == 2
    for name in ("localhost.localdomain", "localhost6", "ip6-localhost", "ip6-loopback", "LOCALHOST."):
        with pytest.raises(UsageError, match="is another host for b than for its own tasks"):
            resolve(job_name="worker", task_index=0, worker_hosts=f"{name}:1,b:1")
    with pytest.raises(UsageError, match="^--hosts=localhost,b: localhost is another host for b"):
        resolve(hosts="localhost,b", ssh=True, variable_update="collective_all_reduce")
