from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from benchmarks.machine import linux
from benchmarks.process import out_of_memory

# Where the counters lie, beside one of the whole host, and what /proc/self/cgroup says.
PLACES = {
    "version 1": ("sys/fs/cgroup/memory/mine/memory.oom_control", "4:cpu:/else\n3:hugetlb,memory:/mine\n0::/\n"),
    "version 1, in a container": ("sys/fs/cgroup/memory/memory.oom_control", "3:memory:/docker/on-the-host\n"),
    "version 2": ("sys/fs/cgroup/mine/inner/memory.events", "0::/mine/inner\n"),
    "version 2, in a container": ("sys/fs/cgroup/memory.events", "0::/\n"),
    "no group": ("proc/vmstat", ""),
}


@pytest.mark.parametrize(("path", "groups"), PLACES.values(), ids=PLACES.keys())
def test_the_counter_of_the_own_group_is_read(tmp_path: Path, path: str, groups: str) -> None:
    for name, text in {
        "proc/self/cgroup": groups,
        "proc/vmstat": "nr_free_pages 9\noom_kill 70\n",
        path: "under_oom 0\noom 3\noom_kill 2\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert out_of_memory.count_kills(tmp_path) == 2


def test_without_any_counter_there_are_no_kills(tmp_path: Path) -> None:
    assert out_of_memory.count_kills(tmp_path) == 0


def test_the_limit_is_the_smallest_of_all_around(tmp_path: Path) -> None:
    assert out_of_memory.limit_bytes(tmp_path) == psutil.virtual_memory().total
    for name, text in {
        "proc/self/cgroup": "3:memory:/mine\n0::/outer/own\n",
        "sys/fs/cgroup/outer/own/memory.max": "max\n",
        "sys/fs/cgroup/outer/memory.max": "5000\n",
        "sys/fs/cgroup/memory/mine/memory.stat": "cache 1\nhierarchical_memory_limit 4000\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert out_of_memory.limit_bytes(tmp_path) == 4000
    assert linux.memory_limits(tmp_path) == [4000, 5000]
    (tmp_path / "sys/fs/cgroup/memory/mine/memory.usage_in_bytes").write_text("3000\n")
    assert linux.available_bytes(tmp_path) == 1000
    (tmp_path / "sys/fs/cgroup/memory/mine/memory.stat").unlink()
    assert out_of_memory.limit_bytes(tmp_path) == 5000


@pytest.mark.parametrize(
    ("status", "kills", "held_kib", "is_out_of_memory"),
    [
        (-signal.SIGKILL, 1, 900, True),
        (137, 1, 900, True),
        (None, 2, 100, True),
        (-signal.SIGKILL, 0, 900, False),
        (-signal.SIGKILL, 1, 90, False),
        (-signal.SIGSEGV, 1, 900, False),
        (139, 1, 900, False),
        (0, 1, 900, False),
        (None, 0, 900, False),
    ],
)
def test_only_a_kill_while_the_counter_rose_is_for_want_of_memory(
    host: Host, status: int | None, kills: int, held_kib: int, is_out_of_memory: bool
) -> None:
    host.process(7, held_kib)
    looks = out_of_memory.Looks(7)
    host.kills = kills
    assert looks.was_killed(status) == is_out_of_memory


class Host:
    """Processes and a counter of kills that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kills = 0
        self._files: dict[str, str] = {}
        monkeypatch.setattr(out_of_memory, "count_kills", lambda: self.kills)
        monkeypatch.setattr(out_of_memory, "limit_bytes", lambda: 1000 * 1024)
        monkeypatch.setattr(out_of_memory.linux, "text", lambda path: self._files.get(str(path)))

    def process(self, number: int, held_kib: int | None, *children: int, state: str = "R (running)") -> None:
        held = "" if held_kib is None else f"VmHWM:\t 999 kB\nVmRSS:\t {held_kib} kB\n"
        self._files[f"/proc/{number}/status"] = f"Name:\tX\nState:\t{state}\n{held}Threads:\t1"
        self._files[f"/proc/{number}/task/{number}/children"] = " ".join(map(str, children))

    def looked(self, looks: out_of_memory.Looks, times: int) -> out_of_memory.Looks:
        for _ in range(times):
            looks.look()
        return looks


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


@pytest.mark.parametrize("dies_slowly", [7, 8], ids=["itself", "what it has started"])
def test_who_takes_long_to_give_its_memory_back_was_killed_nevertheless(host: Host, dies_slowly: int) -> None:
    host.process(7, 400, 8)
    host.process(8, 300)
    looks = host.looked(out_of_memory.Looks(7), 9)
    host.kills = 1
    looks.look()  # the kernel counts first
    host.process(dies_slowly, None, *([8] if dies_slowly == 7 else []))
    host.looked(looks, 50)
    assert looks.was_killed(-signal.SIGKILL) and looks.held_bytes == 700 * 1024
    assert not looks.was_killed(-signal.SIGSEGV)


@pytest.mark.fault(
    "R3", "the kernel kills another process of the same control group for memory", survives="the run is no row oom"
)
@pytest.mark.parametrize(("held_kib", "looks_since", "was_killed"), [(700, 9, False), (99, 1, False), (700, 1, True)])
def test_it_is_another_that_was_killed_if_this_one_held_little_or_lives_on(
    host: Host, held_kib: int, looks_since: int, was_killed: bool
) -> None:
    host.process(7, held_kib)
    looks = host.looked(out_of_memory.Looks(7), 9)
    host.kills = 1
    assert host.looked(looks, looks_since).was_killed(-signal.SIGKILL) == was_killed


def test_the_dead_children_of_a_process_do_not_hide_what_it_holds(host: Host) -> None:
    host.process(7, 20, 8, 9)  # and 9 is gone meanwhile
    host.process(8, None, state="Z (zombie)")
    looks = out_of_memory.Looks(7)
    host.process(7, 300, 8)
    assert host.looked(looks, 1).held_bytes == 300 * 1024
    host.process(7, 200, 8)
    assert host.looked(looks, 1).held_bytes == 300 * 1024, "the most of late"
    host.process(7, 300, 8)
    host.looked(looks, 1)
    host.process(7, None, state="Z (zombie)")
    assert host.looked(looks, 9).held_bytes == 300 * 1024
