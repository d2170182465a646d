from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import ROOT, RunBench

SECONDS = 30
ENTER = """
import os, socket, subprocess, sys, threading
sys.path.insert(0, {root!r})
from benchmarks.process import private_network
{before}
why_not = private_network.enter()
{after}
"""
LISTEN = "server = socket.create_server(('127.0.0.1', 0)); port = server.getsockname()[1]"
CONNECT = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)"
# Makes the kernel refuse, as it does without rights, what lacks a flag.
REFUSE = """
import ctypes, errno
class Refusing:
    def unshare(self, flags):
        if flags & {unless}:
            return really.unshare(flags)
        ctypes.set_errno(errno.EPERM)
        return -1
really = private_network._libc
private_network._libc = Refusing()
"""
REFUSE_ALL = REFUSE.format(unless=0)
# A network namespace is refused, unless it comes with a user namespace.
REFUSE_ALONE = REFUSE.format(unless=0x10000000)


# Then user namespaces are given, but the process may not say who it is in there, as under AppArmor.
FORBID_MAPPING = """
import pathlib
class Forbidding(type(pathlib.Path())):
    def write_bytes(self, *arguments):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
private_network._PROC = Forbidding("/proc/self")
"""


def program(after: str, before: str = "") -> list[str]:
    return [sys.executable, "-c", ENTER.format(root=str(ROOT), before=before, after=after)]


def output(after: str, before: str = "") -> str:
    done = subprocess.run(program(after, before), capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.fixture(scope="module")
def permitted() -> None:
    why_not = output("print(why_not)")
    if why_not != "None":
        pytest.skip(f"no network can be made here: {why_not}")


@pytest.fixture(params=["", REFUSE_ALONE], ids=["network", "user and network"])
def way(request: pytest.FixtureRequest, permitted: None) -> str:
    if request.param:
        why_not = output("print(why_not)", request.param)
        if why_not != "None":
            pytest.skip(f"no network can be made here: {why_not}")
    return str(request.param)


@pytest.mark.fault("R16", "a connection from outside to a server of a local cluster", survives="it is refused")
def test_what_listens_inside_is_reached_by_children_only(way: str) -> None:
    inside = f"{LISTEN}; subprocess.run([sys.executable, '-c', {CONNECT!r}, str(port)], check=True, timeout=10)"
    with subprocess.Popen(
        program(f"{inside}; print(port, flush=True); sys.stdin.read()", way),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", port), 2)
        process.communicate(timeout=SECONDS)


def test_nothing_outside_is_reached_from_inside(way: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect = f"print(socket.socket().connect_ex(('127.0.0.1', {port})))"
        before, after = output(connect, f"{connect}\n{way}").split()
    assert before == "0"
    assert after != "0"


def test_the_process_stays_who_it_was(way: str, tmp_path: Path) -> None:
    ids = "print(os.getuid(), os.getgid(), os.geteuid(), os.getegid())"
    before, after = output(f"{ids}; open({str(tmp_path / 'new')!r}, 'w').close()", f"{ids}\n{way}").splitlines()
    assert before == after
    made = (tmp_path / "new").stat()
    assert (made.st_uid, made.st_gid) == (os.geteuid(), os.getegid())


# What main does: SHOW takes the place of run_bench.
SHOW = "import sys\nprint(sys.argv[1:], 'cnn_bench_private_network' in sys._xoptions)"


def main(tmp_path: Path, before: str, *flags: str) -> subprocess.CompletedProcess[str]:
    show = tmp_path / "show.py"
    show.write_text(SHOW)
    after = f"sys.argv = ['private_network.py', {str(show)!r}, *{list(flags)!r}]; private_network.main()"
    command = [sys.executable, "-c", ENTER.format(root=str(ROOT), before=f"{before}\n{after}", after="")]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)


def test_a_process_that_was_moved_gets_its_own_words_and_knows_it(way: str, tmp_path: Path) -> None:
    done = main(tmp_path, way, "--model=trivial")
    assert (done.returncode, done.stdout, done.stderr) == (0, "['--model=trivial'] True\n", "")


@pytest.mark.fault(
    "R16",
    "a local cluster where the kernel refuses network namespaces",
    survives="status 2 naming --noprivate_network, and no server is started",
)
@pytest.mark.parametrize(
    ("refusal", "why"),
    [(REFUSE_ALL, "Operation not permitted"), (REFUSE_ALONE + FORBID_MAPPING, "Permission denied")],
    ids=["whole", "halfway"],
)
def test_nothing_runs_without_a_private_network(permitted: None, tmp_path: Path, refusal: str, why: str) -> None:
    if FORBID_MAPPING in refusal and (why_not := output("print(why_not)", REFUSE_ALONE)) != "None":
        pytest.skip(f"no user namespace can be made here: {why_not}")
    done = main(tmp_path, refusal, "--model=trivial")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"the kernel permits no new network namespace: {why}" in done.stderr
    assert "--noprivate_network" in done.stderr and done.stderr.count("\n") == 1


def test_a_python_that_cannot_be_started_in_there_is_named(way: str, tmp_path: Path) -> None:
    done = main(tmp_path, f"{way}\nsys.executable = '/nonexistent/python'")
    assert (done.returncode, done.stdout) == (2, "")
    assert "(/nonexistent/python cannot be started in it: No such file" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_record_of_a_cluster_in_a_private_network_is_sent_from_outside(
    run_process: RunBench, tmp_path: Path
) -> None:
    network = Path("/proc/self/ns/net").readlink()
    (tmp_path / "wandb.py").write_text("import os\nraise OSError(os.readlink('/proc/self/ns/net'))\n")
    small = ("--model=trivial", "--device=cpu", "--batch_size=2", "--num_batches=2", "--num_warmup_batches=0")
    tasks = ("--local_cluster=worker:1", "--variable_update=collective_all_reduce", "--wandb_project=demo")
    done = run_process(*small, *tasks, PYTHONPATH=str(tmp_path))
    if "There is no private network" in done.stderr:
        pytest.skip("no network can be made here: the kernel permits none")
    assert done.status == 0 and done.stderr.count("was not sent") == 1
    assert f"the run was not sent: OSError: {network}." in done.stderr
