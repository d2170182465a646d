"""Three hosts, each a network namespace with an address of its own, on one bridge; ssh is replaced by entering them."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.clusters import SMALL, measuring
from tests.support.commands import Records, RunBench

ADDRESSES = [f"10.77.0.{number}" for number in (1, 2, 3)]
ON_HOSTS = (f"--hosts={','.join(ADDRESSES)}", "--ssh")
# Takes the place of ssh, which has the host and the command as its last words.
FAKE_SSH = '#!/bin/sh\nfor word; do host=$last; last=$word; done\nexec ip netns exec "{prefix}-$host" sh -c "$last"\n'
# The kernel takes a deleted namespace down in its own time, so no name is used twice.
_numbers = itertools.count()


@dataclass(frozen=True)
class Hosts:
    """The PATH with which `ssh` reaches the hosts, and the bridge's end of each host's cable."""

    path: str
    cables: list[str]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=60, capture_output=True)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Makes the hosts, and takes them down."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("making network namespaces needs root and the program ip")
    prefix = f"rb{os.getpid()}-{next(_numbers)}"
    bridge, cables = f"{prefix}b", [f"{prefix}v{number}" for number in range(len(ADDRESSES))]
    try:
        _ip("link", "add", bridge, "type", "bridge")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network can be made here: {error.stderr.decode().strip()}")
    try:
        _ip("link", "set", bridge, "up")
        for cable, address in zip(cables, ADDRESSES, strict=True):
            name = f"{prefix}-{address}"
            _ip("netns", "add", name)
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", cable, "master", bridge, "up")
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        ssh = tmp_path / "bin" / "ssh"
        ssh.parent.mkdir()
        ssh.write_text(FAKE_SSH.format(prefix=prefix))
        ssh.chmod(0o755)
        yield Hosts(f"{ssh.parent}:{os.environ['PATH']}", cables)
    finally:
        for link in (*cables, bridge):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("link", "delete", link)
        for address in ADDRESSES:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", f"{prefix}-{address}")


@pytest.mark.row("S2.3")
@pytest.mark.slow
def test_one_command_for_three_hosts(hosts: Hosts, run_process: RunBench, records: Records) -> None:
    done = run_process(*SMALL, "--variable_update=collective_all_reduce", *ON_HOSTS, PATH=hosts.path).succeeded()
    (record,) = records()
    assert record["status"] == "ok"
    assert record["config"]["num_workers"] == record["config"]["num_hosts"] == 3
    assert len(record["measurement"]["worker_step_seconds"]) == 3
    assert record["identity"]["command"][-1] == "--ssh"
    assert all(f"{address}:50001" in done.stdout + done.stderr for address in ADDRESSES)


@pytest.mark.rotates
def test_a_host_that_is_cut_off(hosts: Hosts, tmp_path: Path, records: Records) -> None:
    """No process dies, and no connection is closed: packets just do not arrive any more."""
    flags = (*SMALL[:-1], "--num_batches=100000", "--display_every=1", "--variable_update=parameter_server")
    process = measuring(tmp_path, *flags, *ON_HOSTS, PATH=hosts.path)
    _ip("link", "set", hosts.cables[2], "down")
    # Its process is past our telling; that of `ssh` would be, too, so what is left of it is ended at last.
    text, _ = process.communicate(timeout=100)
    assert process.returncode == 6, text
    logs = {path.name.split("-", 1)[1]: path.read_text() for path in (tmp_path / "out" / "logs").iterdir()}
    named = f"({ADDRESSES[2]}:5000"
    for name, log in (("worker 0", text), *((name, logs[f"{name}.log"]) for name in ("ps-0", "ps-1", "worker-1"))):
        assert f"{named}0) does not answer" in log or f"{named}1) does not answer" in log, f"{name}: {log[-1000:]}"
    (record,) = records()
    assert record["status"] == "crash" and named in record["reason"]
