"""Clusters of real processes, as a user starts them: by hand in any order, or all by one command."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.process import private_network
from results import placement_tables
from tests.support import damage
from tests.support.clusters import SMALL, StartCluster, free_addresses, local, measuring, processes_in
from tests.support.commands import RUN_BENCH, USER_ENVIRONMENT, Records, RunBench, finished, wait_until
from tests.support.rotation import rotating
from variable_mgr.catalog import IN_GRAPH, MANAGERS, uses_servers

MLP_BYTES = 4 * (784 * 100 + 100 + 100 * 10 + 10)


@pytest.mark.row("G3.9")
@pytest.mark.slow
def test_the_guides_four_commands(start_cluster: StartCluster, records: Records) -> None:
    """Notes of 2017 on two hosts; here both are 127.0.0.1, and the model is small."""
    flags = (*SMALL, "--local_parameter_device=cpu", "--variable_update=distributed_replicated")
    tasks = start_cluster(*flags, "--num_gpus=2", ps=2, workers=2)
    assert set(tasks.statuses(300).values()) == {0}
    (record,) = records()
    assert record["status"] == "ok"
    assert record["measurement"]["images_per_step"] == 2 * 2 * 2
    assert record["derived"]["images_per_sec"] > 0
    assert len(record["measurement"]["worker_step_seconds"]) == 2
    assert record["measurement"]["replica_drift"] == 0
    assert tasks.text("worker 0").count("total images/sec") == 1
    assert "\tbase_loss of worker 0\n" in tasks.text("worker 0"), "the total loss would delay the other workers"
    assert "worker 0 has the total" in tasks.text("worker 1")
    assert "total images/sec" not in tasks.text("worker 1")
    for task, text in ((task, tasks.text(task)) for task in tasks.processes):
        assert all(address in text for address in tasks.addresses.values()), f"{task} prints no table:\n{text}"
        assert "Traceback" not in text
    links = record["placement"]["sent_per_step"]["links"]
    pairs = itertools.product(("ps 0", "ps 1"), ("worker 0", "worker 1"))
    assert set(links) == {f"{a} -> {b}" for pair in pairs for a, b in itertools.permutations(pair)}


@pytest.mark.rotates
def test_workers_that_infer_fetch_weights_and_do_not_wait(run_process: RunBench, records: Records) -> None:
    done = run_process(
        *SMALL, "--forward_only", *local("ps:1,worker:2"), "--variable_update=parameter_server"
    ).succeeded()
    (record,) = records()
    assert set(record["placement"]["sent_per_step"]["links"]) == {"ps 0 -> worker 0", "ps 0 -> worker 1"}
    assert len(record["measurement"]["tower_step_seconds"]) == 2
    assert record["measurement"]["staleness_counts"] == []
    assert "staleness" not in done.stdout


@pytest.mark.seldom
@pytest.mark.parametrize(
    ("manager", "tasks"),
    [
        ("parameter_server", "ps:2,worker:2"),
        ("distributed_replicated", "ps:1,worker:2"),
        ("collective_all_reduce", "worker:2"),
        ("distributed_all_reduce", "worker:2"),
        ("in_graph_parameter_server", "ps:1,worker:2"),
    ],
)
def test_workers_leave_out_the_same_updates(run_process: RunBench, records: Records, manager: str, tasks: str) -> None:
    """After an overflow in float16, all workers halve the loss scale, and weights stay finite and equal."""
    scaling = ("--use_fp16", "--fp16_enable_auto_loss_scale", "--fp16_loss_scale=4294967296")
    run_process(*SMALL, *scaling, *local(tasks), f"--variable_update={manager}", "--num_batches=30").succeeded()
    (record,) = records()
    scales = record["measurement"]["loss_scales"]
    assert scales[0] < 2**32 and scales == sorted(scales, reverse=True) and scales[-1] == scales[-2] >= 1
    assert record["measurement"]["replica_drift"] == (None if MANAGERS[manager].one_copy else 0.0)
    assert record["measurement"]["losses"][-1] < record["measurement"]["losses"][0]


@pytest.mark.row("S2.5")
@pytest.mark.slow
def test_mnist_on_two_servers_and_two_workers_in_any_order(
    start_cluster: StartCluster, run_process: RunBench, records: Records
) -> None:
    """In TensorFlow's classic example, connections fail until all tasks run, and only one worker completes."""
    run_process("data", "make_mnist", "mnist", "--train_images=600").succeeded()
    flags = ("--model=mlp", "--data_dir=mnist", "--device=cpu", "--batch_size=20", "--num_batches=30")
    order = ("worker 1", "ps 1", "worker 0", "ps 0")
    tasks = start_cluster(*flags, "--print_training_accuracy", ps=2, workers=2, order=order, await_first="Waiting for")
    assert set(tasks.statuses(300).values()) == {0}
    assert all("images/s in 30 steps" in tasks.text(f"worker {i}") or i == 0 for i in (0, 1))
    (record,) = records()
    assert record["config"]["data_name"] == "mnist" and record["status"] == "ok"
    assert len(record["measurement"]["top_1_accuracies"]) == 30
    losses = record["measurement"]["losses"]
    assert losses[-1] < losses[0]


@pytest.mark.row("S0.2", "S0.5", "S2.4")
@pytest.mark.slow
def test_asynchronous_workers_are_counted_in_a_common_window(run_process: RunBench, records: Records) -> None:
    done = run_process(*SMALL, *local("ps:1,worker:2"), "--nocross_replica_sync", "--num_batches=20").succeeded()
    (record,) = records()
    measurement = record["measurement"]
    steps = [len(seconds) for seconds in measurement["tower_step_seconds"]]
    assert sum(steps) == sum(measurement["staleness_counts"]) == 2 * len(measurement["step_seconds"])
    assert "staleness:" in done.stdout and "per worker" in done.stdout
    images = measurement["images_per_step"] * len(measurement["step_seconds"])
    assert record["derived"]["images_per_sec"] == pytest.approx(images / sum(measurement["step_seconds"]))
    for counted, own in zip(measurement["tower_step_seconds"], measurement["worker_step_seconds"], strict=True):
        slices = [own[begin : begin + len(counted)] for begin in range(len(own) - len(counted) + 1)]
        assert counted in slices, "the window contains whole steps only"


@pytest.mark.rotates
def test_one_client_drives_asynchronous_towers_of_all_workers(run_process: RunBench, records: Records) -> None:
    flags = ("--num_gpus=2", "--variable_update=in_graph_parameter_server", "--cross_replica_sync=false")
    run_process(*SMALL, *local("ps:1,worker:2"), *flags).succeeded()
    (record,) = records()
    steps = [len(seconds) for seconds in record["measurement"]["tower_step_seconds"]]
    assert len(steps) == 4
    assert sum(steps) == sum(record["measurement"]["staleness_counts"])


ALONE_OR_ABOVE = ("independent", "replicated", "parameter_server")


@pytest.fixture(scope="module")
def losses_under_parameter_server(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    directory = tmp_path_factory.mktemp("parameter_server")
    command = [*RUN_BENCH, *SMALL, *local("ps:2,worker:2"), "--variable_update=parameter_server", "--optimizer=adam"]
    finished(command, directory, USER_ENVIRONMENT).succeeded()
    (line,) = (directory / "out" / "results.jsonl").read_text().splitlines()
    losses = json.loads(line)["measurement"]["losses"]
    assert losses[-1] < losses[0]
    return losses


@pytest.mark.row("S0.4")
@pytest.mark.slow
@rotating("manager", [name for name in MANAGERS if name not in ALONE_OR_ABOVE], first=2)
def test_losses_do_not_depend_on_which_task_is_the_client(
    manager: str, losses_under_parameter_server: list[float], run_process: RunBench, records: Records
) -> None:
    """One client or one per worker, one copy of the weights or one per tower: equal images give equal losses.

    Every registered manager is tested; `verify`, below, tests the arithmetic.
    """
    cluster = "ps:2,worker:2" if uses_servers(manager) else "worker:2"
    done = run_process(*SMALL, *local(cluster), f"--variable_update={manager}", "--optimizer=adam").succeeded()
    (record,) = records()
    assert record["status"] == "ok" and record["config"]["num_workers"] == 2
    assert record["measurement"]["images_per_step"] == 4
    assert record["identity"]["command"][-1] == "--optimizer=adam", (
        "flags that the launcher adds are not part of the recorded command"
    )
    assert ("loss of worker 0\n" in done.stdout) == (manager not in IN_GRAPH), "one client has the losses of all"
    if manager == "local_sgd":  # averages weights, not gradients
        assert record["measurement"]["losses"][-1] < record["measurement"]["losses"][0]
    else:
        assert record["measurement"]["losses"] == pytest.approx(losses_under_parameter_server, rel=1e-5)


@pytest.mark.row("S1.1", "S2.4", "G3.1", "G3.4")
@pytest.mark.slow
@rotating(("cluster", "towers", "not_here"), [("ps:1,worker:2", 2, 1), ("ps:2,worker:3", 1, 2)], first=1)
def test_the_arithmetic_across_processes(cluster: str, towers: int, not_here: int, run_process: RunBench) -> None:
    """NCCL does not work on CPUs, nor `rechd` with three towers."""
    done = run_process("verify", *local(cluster), "--device=cpu", f"--num_gpus={towers}").succeeded()
    assert f"\n{60 - not_here} ok, 0 failed, {not_here} cannot run here." in done.stdout


@pytest.mark.fault(
    "R9",
    "a damaged record in the part of the data that one of two workers reads",
    survives="status 5, and a record of the leader that names worker, file and record",
)
@pytest.mark.rotates
@pytest.mark.parametrize(("manager", "cluster"), [("local_sgd", "worker:2"), ("parameter_server", "ps:1,worker:2")])
def test_the_leader_reports_why_another_task_ended(
    run_process: RunBench, records: Records, tmp_path: Path, manager: str, cluster: str
) -> None:
    """One of two files is damaged, and the seed decides which worker reads it.

    The deadline of the others is shorter than the search for a lost task, which precedes that for the record.
    """
    run_process("data", "make_imagenet", "data", "--train_images=16", "--images_per_shard=8")
    damage.corrupt_middle(tmp_path / "data", "crc")
    flags = ("--model=trivial", "--device=cpu", "--batch_size=8", "--data_dir=data", "--datasets_shuffle_records=0")
    for seed in range(1, 5):
        done = run_process(
            *flags,
            *local(cluster),
            f"--variable_update={manager}",
            f"--tf_random_seed={seed}",
            "--step_timeout_seconds=10",
        )
        assert done.status == 5, done.stdout + done.stderr
        record = records()[-1]
        assert record["status"] == "invalid" and "data/train-0000" in record["reason"]
        if record["reason"].startswith("worker 1 ("):
            return
    pytest.fail("no seed gave the damaged file to worker 1")


@pytest.mark.slow
@rotating(
    ("tasks", "manager", "copies", "network"),
    [
        # Each of two workers fetches 4 variables, and sends the gradients of all.
        ("ps:1,worker:2", "parameter_server", ["ps 0 CPU:0"], [16, 4 * MLP_BYTES]),
        # Around a ring of four towers, the last tower of each worker sends 2 * 3/4 to the next worker, in 6 chunks.
        (
            "worker:2",
            "collective_all_reduce",
            ["worker 0 CPU:0, CPU:1; worker 1 CPU:0, CPU:1"],
            [2 * 4 * 6, 3 * MLP_BYTES],
        ),
    ],
    first=1,
)
def test_the_placement_of_a_cluster_is_that_of_all_tasks(
    run_process: RunBench, tasks: str, manager: str, copies: list[str], network: list[int]
) -> None:
    flags = ("--model=mlp", "--device=cpu", "--num_gpus=2", "--batch_size=2", f"--variable_update={manager}")
    done = run_process("explain", "--placement", *flags, *local(tasks), "--output_format=json").succeeded()
    found = json.loads(done.stdout)
    assert [placement_tables.devices(group["devices"]) for group in found["variable_groups"]] == copies
    measured, by_formula = found["measured_per_step"], found["sent_per_step"]["by_kind"]
    assert measured["by_kind"]["network"] == network
    assert by_formula["network"][1] == network[1]
    assert by_formula["network"][0] in (network[0], None), "how a ring cuts its tensors is TensorFlow's choice"
    if manager == "parameter_server":
        assert measured["received"] > network[0] / 2, "gRPC reports some transfers too late"
    assert len(found["tower_devices"]) == 4


@pytest.mark.fault("R8", "one tower of a cluster is late in every step", survives="the tower and its worker are named")
@pytest.mark.rotates
def test_the_late_tower_of_a_cluster_is_named_and_its_worker(run_process: RunBench, records: Records) -> None:
    flags = ("--model=mlp", "--device=cpu", "--num_gpus=2", "--batch_size=2", "--num_batches=20")
    late = {"CNN_BENCH_SLOW_TOWER_FOR_TESTS": "3:0.1"}
    run_process(*flags, *local("ps:1,worker:2"), "--variable_update=parameter_server", **late).succeeded()
    (record,) = records()
    assert (record["derived"]["slowest_worker"], record["derived"]["slowest_tower"]) == (1, 3)
    assert len(record["measurement"]["tower_compute_seconds"]) == 4


# Runs a program and prints what the loopback of this network has carried.
_COUNTED = """
import subprocess, sys
status = subprocess.run([sys.executable, *sys.argv[1:]]).returncode
print(*(line.split()[1] for line in open("/proc/self/net/dev") if line.split()[0] == "lo:"))
sys.exit(status)
"""


@pytest.mark.row("S1.3")
@pytest.mark.rotates
def test_the_bytes_on_the_wire_are_those_of_the_formula(tmp_path: Path, records: Records) -> None:
    """Each run has a network of its own, whose loopback counts bytes; the difference of two runs is that of the steps.

    One tower per worker: with several, the number of traced steps depends on how long they take.
    """
    counted = tmp_path / "counted.py"
    counted.write_text(_COUNTED)
    flags = ("--model=trivial", "--device=cpu", "--batch_size=2", "--noprivate_network")
    sent = []
    for batches in (10, 40):
        alone = (sys.executable, private_network.__file__, counted, *RUN_BENCH[1:])
        words = (*alone, *flags, "--local_cluster=ps:1,worker:2", f"--num_batches={batches}")
        done = finished(words, tmp_path, USER_ENVIRONMENT).succeeded()
        sent.append(int(done.stdout.splitlines()[-1]))
    by_formula = records()[0]["placement"]["sent_per_step"]["total_bytes"]
    assert (sent[1] - sent[0]) / 30 == pytest.approx(by_formula, rel=0.1)


_SUM = """
import sys
import tensorflow as tf
with tf.Graph().as_default() as graph:
    total = 0.0
    for device in ('/job:ps/task:0', '/job:ps/task:1', '/job:wk/task:0', '/job:wk/task:1'):
        with tf.device(device):
            total = tf.constant(1.0) + total
    with tf.compat.v1.Session(sys.argv[1], graph=graph) as session:
        print(session.run(total))
"""


@pytest.mark.row("S2.1")
@pytest.mark.rotates
def test_servers_of_jobs_with_any_name_compute_for_any_client(tmp_path: Path) -> None:
    addresses = free_addresses(4)
    command = [*RUN_BENCH, "server", "--cluster_spec=wk|{};{},ps|{};{}".format(*addresses), "--device=cpu"]
    servers = []
    for job, index in [("wk", 0), ("wk", 1), ("ps", 0), ("ps", 1)]:
        with (tmp_path / f"{job} {index}.log").open("wb") as log:
            words = [*command, f"--job_name={job}", f"--task_id={index}"]
            servers.append(subprocess.Popen(words, cwd=tmp_path, env=USER_ENVIRONMENT, stdout=log, stderr=log))
    target = f"grpc://{addresses[0]}"
    try:
        said = subprocess.run(
            [sys.executable, "-c", _SUM, target], capture_output=True, text=True, timeout=300, check=True
        )
        assert said.stdout.split()[-1] == "4.0"
        assert [server.poll() for server in servers] == [None] * 4
        servers[0].send_signal(signal.SIGTERM)
        assert servers[0].wait(120) == 143
        text = (tmp_path / "wk 0.log").read_text()
        assert f"on {target}; Ctrl-C ends" in text and "docs/howto/several-hosts.md" in text
    finally:
        for server in servers:
            server.kill()
            server.wait(30)


@pytest.mark.fault("R12", "two workers at addresses of IPv6", survives="they train")
@pytest.mark.rotates
def test_a_cluster_of_ipv6_addresses(start_cluster: StartCluster, records: Records) -> None:
    """Servers listen on all addresses of both kinds."""
    with contextlib.ExitStack() as stack:
        try:
            trials = [stack.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6)) for _ in range(2)]
        except OSError as error:
            pytest.skip(f"no network can be made with IPv6: {error}")
        hosts = ",".join(f"[::1]:{trial.getsockname()[1]}" for trial in trials)
    tasks = start_cluster(
        *SMALL,
        "--variable_update=collective_all_reduce",
        f"--worker_hosts={hosts}",
        ps=0,
        hosts=False,
        variables={"worker 1": {"OMP_NUM_THREADS": "2"}},
    )
    assert set(tasks.statuses(300).values()) == {0}
    (record,) = records()
    assert record["status"] == "ok" and record["config"]["cluster"]["workers"] == hosts.split(",")
    assert any("environment variables (OMP_NUM_THREADS)" in warning for warning in record["warnings"])


@pytest.mark.fault("R7", "worker 1 is never started", survives="the others end with status 6 and name it")
@pytest.mark.slow
def test_a_missing_task_is_named(start_cluster: StartCluster) -> None:
    tasks = start_cluster(*SMALL, "--start_timeout_seconds=2", order=("worker 0", "ps 0"))
    assert set(tasks.statuses(300).values()) == {6}
    for task in tasks.processes:
        assert f"worker 1 ({tasks.addresses['worker 1']}): nothing listens there" in tasks.text(task)
        workers = f"worker = {tasks.addresses['worker 0']}, {tasks.addresses['worker 1']}."
        assert f"The lists of this task: ps = {tasks.addresses['ps 0']}; {workers}" in tasks.text(task)
        assert ("The network is not private: while the cluster" in tasks.text(task)) is (task == "worker 0")


@pytest.mark.rotates
def test_tasks_that_disagree_report_it(start_cluster: StartCluster) -> None:
    tasks = start_cluster(
        *SMALL, "--variable_update=collective_all_reduce", ps=0, per_task={"worker 1": ("--batch_size=3",)}
    )
    assert set(tasks.statuses(300).values()) == {2}
    for task in tasks.processes:
        assert "worker 1 and worker 0 differ in batch_per_device: 3 and 2." in tasks.text(task)


UNLIKE = {
    "a ps that one does not know": ("worker 1", {"ps": ["ps 0"]}, "--ps_hosts"),
    "fewer workers": ("ps 0", {"worker": ["worker 0"]}, "--worker_hosts"),
    "another address of the leader": ("worker 1", {"worker": ["elsewhere", "worker 1"]}, "--worker_hosts"),
    "another address of its own": ("worker 1", {"worker": ["worker 0", "elsewhere"]}, "--worker_hosts"),
    "another order": ("ps 1", {"worker": ["worker 1", "worker 0"]}, "--worker_hosts"),
}


@pytest.mark.row("S0.1")
@pytest.mark.slow
@rotating("how", UNLIKE, first=1)
def test_every_task_names_lists_that_differ(start_cluster: StartCluster, how: str) -> None:
    odd, lists, flag = UNLIKE[how]
    names = ("ps 0", "ps 1", "worker 0", "worker 1", "elsewhere")
    address = dict(zip(names, free_addresses(len(names)), strict=True))

    def words(task: str) -> tuple[str, ...]:
        of_job = {"ps": ["ps 0", "ps 1"], "worker": ["worker 0", "worker 1"], **(lists if task == odd else {})}
        return tuple(f"--{job}_hosts={','.join(address[name] for name in listed)}" for job, listed in of_job.items())

    tasks = start_cluster(
        *SMALL,
        "--variable_update=parameter_server",
        ps=2,
        per_task={task: words(task) for task in names[:4]},
        hosts=False,
    )
    assert tasks.statuses(300) == dict.fromkeys(names[:4], 2), tasks.text(odd)
    for task in tasks.processes:
        (sentence,) = [line for line in tasks.text(task).splitlines() if "Start all tasks with the same" in line]
        assert f"{odd} ({'' if how.endswith('its own') else address[odd]}" in sentence
        assert f"Start all tasks with the same {flag} " in sentence
        (job, listed), *_ = lists.items()
        assert f"has {job} = {', '.join(address[name] for name in listed)}" in sentence
        assert "Traceback" not in tasks.text(task)


@pytest.mark.fault(
    "R5", "Ctrl-C of a local cluster that measures", survives="status 130, one record, no process is left"
)
@pytest.mark.slow
def test_ctrl_c_leaves_a_record_and_no_process(tmp_path: Path, records: Records) -> None:
    flags = (*SMALL[:-1], "--num_batches=100000", "--display_every=1", *local("ps:1,worker:2"))
    process = measuring(tmp_path, *flags)
    # The launcher, its tasks, and the shell that ends them if it is killed.
    wait_until(lambda: len(processes_in(tmp_path)) == 5)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 130, text
    (record,) = records()
    assert record["status"] == "interrupted"
    assert processes_in(tmp_path) == []
