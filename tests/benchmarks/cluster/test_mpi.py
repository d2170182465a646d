"""Ranks of mpirun become tasks; the variables are those that Open MPI 4.1 and MPICH 4.0 set."""

from __future__ import annotations

import os
from typing import Any

import psutil
import pytest

from benchmarks.cluster import ranks
from benchmarks.cluster.cluster_spec import Task
from benchmarks.config import config, flag, run_flags
from benchmarks.errors import UsageError
from benchmarks.machine import hardware
from tests.benchmarks.cluster.test_discovery import made, resolve, srun


def open_mpi(rank: int, size: int, local_size: int | None = None) -> dict[str, str]:
    local_size = local_size or size
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % local_size),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
        "PMIX_RANK": str(rank),
    }


def byteps(host: int, hosts: int, rank: int, size: int) -> dict[str, str]:
    """The variables of a process on a host."""
    of_host = {"DMLC_WORKER_ID": str(host), "DMLC_NUM_WORKER": str(hosts)}
    return of_host | {"BYTEPS_LOCAL_RANK": str(rank), "BYTEPS_LOCAL_SIZE": str(size)}


def hydra(rank: int, size: int, local_size: int | None = None) -> dict[str, str]:
    local_size = local_size or size
    local = {"MPI_LOCALRANKID": str(rank % local_size), "MPI_LOCALNRANKS": str(local_size)}
    return {"PMI_RANK": str(rank), "PMI_SIZE": str(size), **local}


@pytest.mark.parametrize("started", [open_mpi, hydra])
def test_ranks_of_one_host_are_workers_there(started: Any) -> None:
    for rank in range(3):
        cluster = made(started(rank, 3), cluster="mpi", server_port=7000)
        assert cluster.workers == ("127.0.0.1:7000", "127.0.0.1:7001", "127.0.0.1:7002")
        assert cluster.own == Task("worker", rank)
        assert cluster.number_on_this_host == rank


def test_the_last_ranks_are_parameter_servers() -> None:
    clusters = [made(open_mpi(rank, 3), cluster="mpi", num_ps=1) for rank in range(3)]
    assert clusters[0].ps == ("127.0.0.1:50002",)
    assert [cluster.own for cluster in clusters] == [Task("worker", 0), Task("worker", 1), Task("ps", 0)]


def test_ranks_fill_the_hosts_in_order() -> None:
    clusters = [made(open_mpi(rank, 4, 2), cluster="mpi", hosts="a,b") for rank in range(4)]
    assert clusters[0].workers == ("a:50000", "a:50001", "b:50000", "b:50001")
    assert [cluster.own.index for cluster in clusters] == [0, 1, 2, 3]
    assert [cluster.number_on_this_host for cluster in clusters] == [0, 1, 0, 1]
    servers = made(hydra(3, 4, 2), cluster="mpi", hosts="a,b", num_ps=2)
    assert (servers.ps, servers.workers, servers.own) == (
        ("a:50001", "b:50001"),
        ("a:50000", "b:50000"),
        Task("ps", 1),
    )


@pytest.mark.parametrize("environ", [open_mpi(3, 4, 2), hydra(3, 4, 2), {"PMIX_RANK": "3"}])
def test_addresses_of_flags_go_to_ranks_workers_first(environ: dict[str, str]) -> None:
    flags = {"cluster": "mpi", "worker_hosts": "a:1,b:1", "ps_hosts": "a:2,b:2"}
    assert made(environ, **flags).own == Task("ps", 1)
    assert made({**environ, **{name: "0" for name in environ if name.endswith("_RANK")}}, **flags).own.job == "worker"


def test_a_job_by_flags_wins() -> None:
    given = {"cluster": "mpi", "worker_hosts": "a:1,b:1", "job_name": "worker", "task_index": 1}
    cluster, notices = resolve(open_mpi(0, 2), **given)
    assert cluster and cluster.own == Task("worker", 1)
    assert notices == ("--cluster=mpi is ignored, since flags name the hosts.",)


@pytest.mark.parametrize("environ", [open_mpi(0, 1), hydra(0, 1)])
def test_one_rank_is_one_process(environ: dict[str, str]) -> None:
    assert resolve(environ) == resolve(environ, cluster="mpi") == (None, ())


@pytest.mark.parametrize(
    ("environ", "flags", "words"),
    [
        ({}, {}, r"^--cluster=mpi needs a rank in the environment \(OMPI_COMM_WORLD_RANK, .*\): start"),
        ({}, {"worker_hosts": "a:1"}, "^--cluster=mpi needs a rank"),
        ({"PMIX_RANK": "0"}, {}, "PMIX_RANK is set, but not the number of ranks: under srun use --cluster=slurm"),
        ({"PMI_RANK": "x", "PMI_SIZE": "2"}, {}, "^PMI_RANK is 'x' and should be a number"),
        (open_mpi(2, 2), {}, "^--cluster=mpi: OMPI_COMM_WORLD_RANK is 2 of 2: start every task with mpirun"),
        (open_mpi(0, 4, 2), {}, "^--cluster=mpi: 2 of 4 ranks are on this host, .* add --hosts=host_0,host_1"),
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, {}, "^--cluster=mpi: not all of 4 ranks"),
        (open_mpi(0, 4, 2), {"hosts": "a,b,c"}, "4 ranks cannot be divided evenly over 3 hosts"),
        (open_mpi(0, 2, 1), {"hosts": "a,b,c"}, "2 ranks cannot be divided evenly over 3 hosts"),
        (byteps(1, 2, 3, 4), {"hosts": "a,b"}, "rank 1 is number 3 of 4 on its host"),
        (open_mpi(1, 4, 1), {"hosts": "a,b"}, "number 1 of 2 if ranks filled the hosts in order: .* -H a:2,b:2"),
        (open_mpi(0, 2, 2), {"worker_hosts": "a:1,b:1,c:1"}, "name 3 tasks, and this is rank 0 of 2: start as many"),
        ({"PMIX_RANK": "3"}, {"worker_hosts": "a:1"}, "name 1 task, and this is rank 3 of an unknown number"),
        (open_mpi(1, 2), {"job_name": "ps"}, "--job_name=ps, and mpirun makes this process worker 1: leave"),
        (open_mpi(1, 2), {"worker_hosts": "a:1,b:1", "task_index": 0}, "--task_index=0, and mpirun makes this"),
        (open_mpi(1, 2), {"num_ps": 2}, "--num_ps=2 leaves no worker among 2 tasks: start more"),
        (open_mpi(1, 10**12), {}, "name 1000000000000 tasks or hosts, and a run has at most 100000"),
        (open_mpi(1, 2), {"server_port": 65535}, "mpirun, worker 1: '127.0.0.1:65536' has port 65536"),
    ],
)
def test_what_cannot_be_is_refused(environ: dict[str, str], flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        resolve(environ, cluster="mpi", **flags)


def of(prefix: str, rank: int, size: int, of_size: str = "SIZE") -> dict[str, str]:
    """The variables of other launchers, in the forms of their own manuals."""
    return {f"{prefix}RANK": str(rank), f"{prefix}{of_size}": str(size)}


LAUNCHED = [
    open_mpi(1, 4),
    hydra(1, 4),
    of("MV2_COMM_WORLD_", 1, 4),
    of("MVP_COMM_WORLD_", 1, 4),
    of("HOROVOD_", 1, 4),
    of("JSM_NAMESPACE_", 1, 4),
    of("", 1, 4, "WORLD_SIZE"),
    of("WORLD_", 1, 4),
    {"PALS_RANKID": "1", "PMI_SIZE": "4", "PMI_RANK": "1"},
    {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "4"},
    {"PET_NODE_RANK": "1", "PET_NNODES": "4"},
    {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "4"},
    {"AWS_BATCH_JOB_NODE_INDEX": "1", "AWS_BATCH_JOB_NUM_NODES": "4"},
    {"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "4"},
    {"VC_TASK_INDEX": "1", "VC_WORKER_NUM": "4"},
    {"DSTACK_NODE_RANK": "1", "DSTACK_NODES_NUM": "4"},
    {"NODE_RANK": "1", "NUM_NODES": "4"},
    {"NODE_RANK": "1", "NNODES": "4"},
    {"LEPTON_JOB_WORKER_INDEX": "1", "LEPTON_JOB_TOTAL_WORKERS": "4"},
    {"ANY_OTHER_NODE_RANK": "1", "ANY_OTHER_NUM_NODES": "4"},
    {"_CONDOR_PROCNO": "1", "_CONDOR_NPROCS": "4"},
    {"MP_CHILD": "1", "MP_PROCS": "4"},
    byteps(1, 4, 0, 8),
    byteps(0, 1, 1, 4),
    # Each of one task, in which torchrun has started four.
    hydra(0, 1) | of("", 1, 4, "WORLD_SIZE"),
    open_mpi(0, 1) | of("", 1, 4, "WORLD_SIZE"),
    srun(0, "n1", "1", 1) | hydra(0, 1) | of("", 1, 4, "WORLD_SIZE"),
]


@pytest.mark.parametrize("environ", LAUNCHED, ids=lambda environ: next(iter(environ)))
def test_ranks_that_would_each_run_alone_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="rank 1 of 4 .*: add --cluster=mpi .* or remove the variable"):
        resolve(environ)
    with pytest.raises(UsageError, match="rank 1 of 4 .*: start one process, or remove the variable"):
        resolve(environ, local_cluster="worker:2", variable_update="collective_all_reduce")
    with pytest.raises(UsageError, match="rank 1 of 4 .*: start one process"):
        resolve({**environ, "TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'})
    with pytest.raises(UsageError, match="rank 1 of 4 .*: start one process"):
        ranks.refuse_copies(environ, can_join=False)


def test_nodes_whose_processes_have_no_rank_are_told_to_name_them() -> None:
    lightning = {"NODE_RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "n0"}
    for environ in (lightning, {**lightning, "NODE_RANK": "1"}):
        with pytest.raises(UsageError, match=r"^This is node . of 8 processes \(NODE_RANK.*: name all tasks with"):
            resolve(environ)
        assert resolve(environ, job_name="worker", task_index=0, worker_hosts="a:1,b:1")[0]
    assert resolve({**lightning, "WORLD_SIZE": "1"}) == (None, ())
    ranks.refuse_copies(lightning, can_join=False)  # it launches on the other hosts


def test_a_rank_of_an_unknown_number_is_refused_too() -> None:
    with pytest.raises(UsageError, match=r"rank 3 of an unknown number \(PMIX_RANK\)"):
        resolve({"PMIX_RANK": "3"})
    with pytest.raises(UsageError, match=r"rank 0 of an unknown number \(PMIX_RANK\)"):
        resolve({"PMIX_RANK": "0"})
    head = {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "2"}
    ranks.refuse_copies(head, can_join=False)  # it launches on the other hosts
    with pytest.raises(UsageError, match="rank 0 of 2"):
        resolve(head)
    assert resolve({"PET_NODE_RANK": "0", "PET_NNODES": "1:1"}) == (None, ())
    array = {"AWS_BATCH_JOB_ARRAY_INDEX": "1", "AWS_BATCH_JOB_ARRAY_SIZE": "4", "BATCH_TASK_INDEX": "1"}
    array |= {"BATCH_TASK_COUNT": "4", "CI_NODE_INDEX": "2", "CI_NODE_TOTAL": "4"}
    assert resolve(array) == (None, ()), "each of an array runs alone on purpose"
    others = {"TASK_INDEX": "1", "NPROCS": "8", "MY_WORKER_INDEX": "w1", "MY_GROUP_SIZE": "4"}
    assert resolve(others) == (None, ()), "no platform numbers a node so"
    for name in ("RANK", "WORLD_RANK", "MP_CHILD", "PET_NODE_RANK", "SKYPILOT_NODE_RANK"):
        assert resolve({name: "captain"}) == (None, ()), "without the number of ranks, it may mean anything"
    assert resolve({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "-1"}) == (None, ()), "as some programs set it"


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("JOB_COMPLETION_INDEX", 0),
        ("ALPS_APP_PE", 0),
        ("LSF_PM_TASKID", 1),
        ("PBS_VNODENUM", 0),
        ("PBS_NODENUM", 0),
        ("PSSH_NODENUM", 0),
        ("NOMAD_ALLOC_INDEX", 0),
        ("TPU_WORKER_ID", 0),
        ("NODE_RANK", 0),
    ],
)
def test_a_number_without_a_count_has_a_notice_from_the_second_process_on(name: str, first: int) -> None:
    _, (notice,) = resolve({name: str(first + 1)})
    assert notice.startswith(f"{name}={first + 1}: there may be others like this process, and each measures alone.")
    assert resolve({name: str(first)}) == resolve({name: ""}) == resolve({name: "x"}) == (None, ())
    assert resolve({name: "1"}, job_name="worker", task_index=1, worker_hosts="a:1,b:1")[1] == ()
    assert resolve({name: str(first + 1)}, local_cluster="worker:2")[1] == (notice,)


PALS = {"PALS_RANKID": "1", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "4", "PMI_RANK": "1", "PMI_SIZE": "4"}
TORCHRUN = {**of("", 2, 8, "WORLD_SIZE"), "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}
STEP = srun(0, "n[1-2]", "1(x2)", 2)
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "4"}


@pytest.mark.parametrize(
    ("environ", "rank", "size"),
    [
        *((BATCH | own, 0, 4) for own in (hydra(0, 4), of("", 0, 4, "WORLD_SIZE"), open_mpi(0, 4))),
        (STEP | open_mpi(0, 4, 2), 0, 4),
        (STEP | open_mpi(1, 4, 2), 1, 4),
        (STEP | hydra(1, 2), 1, 2),
        (STEP | of("HOROVOD_", 0, 2), 0, 2),
        # In every task of srun or mpirun, torchrun has started four.
        (STEP | hydra(0, 2) | TORCHRUN, 2, 8),
        (STEP | open_mpi(0, 2) | TORCHRUN, 2, 8),
    ],
)
def test_ranks_of_another_launcher_in_a_job_of_slurm_are_not_slurms(
    environ: dict[str, str], rank: int, size: int
) -> None:
    with pytest.raises(UsageError, match=f"rank {rank} of {size} .*: add --cluster=mpi for one run"):
        resolve(environ)
    with pytest.raises(UsageError, match=f"^--cluster=slurm: another launcher .* as rank {rank} .* use --cluster=mpi"):
        resolve(environ, cluster="slurm")


@pytest.mark.parametrize(("environ", "own"), [(PALS, 1), (STEP | hydra(0, 2) | TORCHRUN, 2)])
def test_a_rank_is_that_of_the_innermost_launcher(environ: dict[str, str], own: int) -> None:
    assert made(environ, cluster="mpi", hosts="n1,n2" if own == 2 else None).own == Task("worker", own)


@pytest.mark.parametrize("own", [{}, hydra(1, 2), {"PMIX_RANK": "1"}, of("", 1, 2, "WORLD_SIZE")])
def test_ranks_of_srun_are_told_to_use_slurm(own: dict[str, str]) -> None:
    environ = {**srun(1, "n[1-2]", "1(x2)", 2), **own}
    with pytest.raises(UsageError, match=r"rank 1 of 2 \(SLURM_PROCID\).*: add --cluster=slurm"):
        resolve(environ)
    cluster, _ = resolve(environ, cluster="slurm")
    assert cluster and cluster.own == Task("worker", 1)


def test_each_worker_of_a_host_has_gpus_of_its_own() -> None:
    def chosen(rank: int, *words: str, gpus: int = 4, **environ: str) -> config.Config:
        return _chosen(open_mpi(rank, 2) | environ, "--cluster=mpi", *words, gpus=gpus)

    second = chosen(1, "--num_gpus=2")
    assert second.devices.visible_gpus == (2, 3)
    assert "--cluster=mpi: this worker has --gpus=2,3, since others are on its host." in second.notices
    assert chosen(0, "--num_gpus=2").devices.visible_gpus == (0, 1)
    assert chosen(1, "--gpus=3").devices.visible_gpus == (3,)
    assert chosen(1, gpus=1, CUDA_VISIBLE_DEVICES="1").devices.visible_gpus is None
    assert chosen(1, "--num_gpus=2", CUDA_VISIBLE_DEVICES="4,5,6,7").devices.visible_gpus == (2, 3), "all have all"
    assert chosen(1, "--device=cpu").devices.visible_gpus is None
    assert chosen(1, gpus=0).devices.device == "cpu"
    assert chosen(1, "--hosts=a,b", **open_mpi(1, 2, 1)).devices.visible_gpus is None, "it is alone on its host"
    with pytest.raises(UsageError, match=r"--gpus=2,3 names GPU 3; the host .* \(worker 1\) has 3 NVIDIA GPUs"):
        chosen(1, "--num_gpus=2", gpus=3)


@pytest.mark.parametrize(
    ("visible", "gpus", "own"),
    [
        (None, 4, (2, 3)),  # Slurm has divided nothing
        ("0,1,2,3", 4, (2, 3)),
        ("2,3", 2, None),  # Slurm has given this task its own
        (None, 2, None),  # too few: they share
    ],
)
def test_tasks_of_srun_that_see_enough_gpus_for_all_divide_them(
    visible: str | None, gpus: int, own: tuple[int, ...] | None
) -> None:
    environ = srun(1, "n1", "2", 2) | ({"CUDA_VISIBLE_DEVICES": visible} if visible else {})
    found = _chosen(environ, "--cluster=slurm", "--num_gpus=2", gpus=gpus)
    assert found.devices.visible_gpus == own


def test_a_worker_that_its_launcher_binds_to_one_core_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)  # two threads of each core
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 8)
    monkeypatch.setattr(hardware, "usable_cores", lambda: 2)
    start = "this worker may use 1 of 8 cores, which may limit its rate: pass"
    by_mpirun, by_srun = (open_mpi(1, 2), "--cluster=mpi"), (srun(1, "n1", "2", 2), "--cluster=slurm")
    assert f"--cluster=mpi: {start} --bind-to none to mpirun." in _chosen(*by_mpirun, gpus=0).notices
    assert f"--cluster=slurm: {start} --cpus-per-task to srun." in _chosen(*by_srun, gpus=0).notices
    assert not _chosen(open_mpi(1, 8), "--cluster=mpi", gpus=0).notices, "a core each"
    monkeypatch.setattr(hardware, "usable_cores", lambda: 4)
    assert not _chosen(*by_mpirun, gpus=0).notices


def _chosen(environ: dict[str, str], *words: str, gpus: int) -> config.Config:
    values = flag.parse(["--variable_update=collective_all_reduce", *words], run_flags.RUN_FLAGS).values
    return config.resolve(values, lambda: gpus, environ)
