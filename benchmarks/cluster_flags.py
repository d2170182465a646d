"""The flags that make a run one of several processes."""

from __future__ import annotations

from benchmarks.flag_parsing import Flag, Groups

CLUSTER_FLAGS: Groups = {
    "Several processes": (
        Flag("local_cluster", str, "start them all on this host, such as ps:1,worker:2 (ps=1,worker=2 will do)"),
        Flag(
            "private_network",
            bool,
            "with --local_cluster: in a network that nothing else can reach (default, where the kernel permits it)",
        ),
        Flag("hosts", str, "with --ssh: start a worker on each, and where wanted a parameter server"),
        Flag("ssh", bool, "with --hosts: same directory and Python there as here, and no password asked for"),
        Flag("job_name", str, "what this process is", ("ps", "worker", "controller")),
        Flag("task_index", int, "which of its job's tasks this process is, from 0"),
        Flag("ps_hosts", str, "addresses of the parameter servers, such as host_0:50000,host_1:50000"),
        Flag("worker_hosts", str, "addresses of the workers, likewise"),
        Flag("controller_host", str, "distributed_all_reduce: the address of the client, if it is no worker"),
        Flag("cluster_spec", str, "all addresses in one, such as 'ps|h0:50000,worker|h0:50001;h1:50001'"),
        Flag("cluster", str, "slurm: addresses and role come from srun (default: from TF_CONFIG, if set)", ("slurm",)),
        Flag("num_ps", int, "with --cluster=slurm: how many of the tasks are parameter servers (default 0)"),
        Flag("server_port", int, "with --cluster=slurm or --hosts: of the first task of each (default 50000)"),
        Flag("server_protocol", str, "between processes; TensorFlow has one left (default grpc)", ("grpc",)),
        Flag("start_timeout_seconds", float, "wait so long for all processes to be there (default 300)"),
        Flag("step_timeout_seconds", float, "a step may take so long (default 600)"),
    ),
}
