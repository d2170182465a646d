"""Whether a machine is quiet: made-up machines in folders, looked at without waiting, and `doctor` on this one."""

from __future__ import annotations

import os
import shutil
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pynvml
import pytest

from benchmarks.doctor import machine_checks
from benchmarks.doctor.machine_checks import UNSEEN, Observation, list_processes
from tests.support import nvidia

CORES = 4
SECONDS = 2.0
TICKS = os.sysconf("SC_CLK_TCK")
Seen = dict[str, Observation]
Process = tuple[int, str, float]  # its id, name and CPU seconds


def _stat(seconds: float, *, busy: float = 0.0, stolen: float = 0.0) -> str:
    """Returns /proc/stat after so many seconds, of which each core was busy and stolen for some."""
    ticks = [round(TICKS * part) for part in (busy, seconds - busy - stolen, stolen)]
    columns = f"{ticks[0]} 0 0 {ticks[1]} 0 0 0 {ticks[2]} 0 0"
    return "\n".join(["cpu  9999 9 9999 9 9 9 9 9999 0 0", *(f"cpu{n} {columns}" for n in range(8)), "ctxt 5"])


class Machine:
    """A quiet machine of 8 cores, 4 of which may be used, as files; tests make it less quiet."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._monkeypatch = monkeypatch
        self._now = 100.0
        self.later = {"proc/stat": _stat(100.0 + SECONDS, busy=0.01)}
        self.own_cpu_seconds = [5.0, 5.0]
        self.processes: list[Sequence[Process]] = [[], []]
        self.gpus: Sequence[Observation] = ()
        self.write("proc/stat", _stat(100.0))
        self.write("proc/vmstat", "nr_free_pages 5\npswpin 100\npswpout 200\n")
        self.write("proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:   8388608 kB\n")
        self.write("proc/self/cgroup", "0::/a.slice/b.scope\n")
        for cpu in range(8):
            self.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", "performance\n")
            self.write(f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle/core_throttle_count", "3\n")

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def limit(self, folder: str, cores: float, **stat: int) -> None:
        self.write(f"sys/fs/cgroup/{folder}/cpu.max", f"{round(cores * 100_000)} 100000\n")
        self.write(f"sys/fs/cgroup/{folder}/cpu.stat", "".join(f"{name} {value}\n" for name, value in stat.items()))

    def _sleep(self, seconds: float) -> None:
        self._now += seconds
        for path, text in self.later.items():
            self.write(path, text)

    def look(self, cpus: Sequence[int] = range(CORES)) -> Seen:
        own, processes = iter(self.own_cpu_seconds), iter(self.processes)
        clock = types.SimpleNamespace(monotonic=lambda: self._now, sleep=self._sleep, process_time=lambda: next(own))
        with self._monkeypatch.context() as patch:
            patch.setattr(machine_checks, "time", clock)
            patch.setattr(
                machine_checks, "list_processes", lambda: {(pid, 0.0): used for pid, *used in next(processes)}
            )
            patch.setattr(machine_checks, "look_at_gpus", lambda: self.gpus)
            observations = machine_checks.look(self.root, frozenset(cpus))
        assert all(bool(one.advice) == one.is_disturbing and one.value for one in observations)
        seen = {one.name: one for one in observations}
        assert len(seen) == len(observations), "each name once"
        return seen


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path / "machine", monkeypatch)


def _disturbing(seen: Seen) -> list[str]:
    return [one.name for one in seen.values() if one.is_disturbing]


def test_nothing_disturbs_on_a_quiet_machine(machine: Machine) -> None:
    seen = machine.look()
    assert {name: one.value for name, one in seen.items()} == {
        "CPU used by others": "0.02 of 4 cores",
        "CPU taken by the hypervisor": "0.0% of the time (steal)",
        "memory": "8.0 of 16.0 GiB available",
        "swapping": "0.0 MB/s",
        "frequency governor": "performance",
        "slowdowns by heat": "0 while looking, 12 since the start",
    }
    assert _disturbing(seen) == []


def test_processes_that_use_most_are_named(machine: Machine) -> None:
    machine.later["proc/stat"] = _stat(100.0 + SECONDS, busy=1.0)
    names = ["make", "cc1plus", "sshd", "idle", "ld"]
    machine.processes = [
        [(n, name, 10.0) for n, name in enumerate(names[:4])],
        [(n, name, 10.0 + s) for n, (name, s) in enumerate(zip(names, (0.5, 2.0, 0.1, 0, -9), strict=True))],
    ]
    seen = machine.look()
    assert seen["CPU used by others"].value == (
        "2.00 of 4 cores: 1.00 cc1plus (pid 1), 0.50 ld (pid 4), 0.25 make (pid 0)"
    ), "ld was started while looking"
    assert _disturbing(seen) == ["CPU used by others"]


@pytest.mark.parametrize(("cores", "disturbs"), [(0.09, False), (0.11, True)])
def test_others_may_use_as_much_as_daemons_need(machine: Machine, cores: float, disturbs: bool) -> None:
    machine.later["proc/stat"] = _stat(100.0 + SECONDS, busy=cores * SECONDS / CORES)
    assert (_disturbing(machine.look()) == ["CPU used by others"]) is disturbs


def test_cpu_time_of_unknown_processes_disturbs_too(machine: Machine) -> None:
    machine.later["proc/stat"] = _stat(100.0 + SECONDS, busy=1.0)
    assert "outside this container" in machine.look()["CPU used by others"].advice


def test_own_work_and_that_on_other_cores_do_not_disturb(machine: Machine) -> None:
    busy = _stat(100.0 + SECONDS, busy=SECONDS).splitlines()
    quiet = _stat(100.0 + SECONDS, busy=0.5).splitlines()
    machine.later["proc/stat"] = "\n".join(quiet[: CORES + 1] + busy[CORES + 1 :])
    machine.own_cpu_seconds = [5.0, 7.0]
    assert machine.look()["CPU used by others"].value == "0.00 of 4 cores"


def test_a_container_that_numbers_its_cores_anew(machine: Machine) -> None:
    machine.write("proc/stat", "cpu  0 0 0 800 0 0 0 0 0 0\ncpu0 0 0 0 800 0 0 0 0 0 0\n")
    machine.later["proc/stat"] = f"cpu  {TICKS} 0 0 900 0 0 0 0 0 0\ncpu0 {TICKS} 0 0 900 0 0 0 0 0 0\n"
    assert machine.look(cpus=[6])["CPU used by others"].value == "0.50 of 1 core"


GOVERNOR = "sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor"
HEAT = "sys/devices/system/cpu/cpu{}/thermal_throttle/core_throttle_count"
PAGES = round(4e6 / os.sysconf("SC_PAGE_SIZE"))


@pytest.mark.parametrize(
    ("name", "path", "later", "value"),
    [
        ("CPU taken by the hypervisor", "proc/stat", _stat(102.0, stolen=0.1), "5.0% of the time (steal)"),
        ("memory", "proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 1048576 kB\n", "1.0 of 16.0 GiB available"),
        ("swapping", "proc/vmstat", f"pswpin 100\npswpout {200 + PAGES}\n", "2.0 MB/s"),
        ("frequency governor", GOVERNOR.format(2), "powersave\n", "performance, powersave"),
        ("slowdowns by heat", HEAT.format(3), "4\n", "1 while looking, 13 since the start"),
    ],
)
def test_each_thing_disturbs_by_itself(machine: Machine, name: str, path: str, later: str, value: str) -> None:
    machine.later[path] = later
    seen = machine.look()
    assert seen[name].value == value
    assert _disturbing(seen) == [name]


@pytest.mark.parametrize("path", [GOVERNOR.format(7), HEAT.format(7)])
def test_cores_that_may_not_be_used_do_not_matter(machine: Machine, path: str) -> None:
    machine.later[path] = "99\n"
    assert _disturbing(machine.look()) == []


def test_the_tightest_limit_around_a_container_counts(machine: Machine) -> None:
    machine.limit("a.slice", 3, usage_usec=0, throttled_usec=500_000)
    machine.limit("a.slice/b.scope", 5, usage_usec=0, throttled_usec=0)
    machine.later["sys/fs/cgroup/a.slice/cpu.stat"] = "usage_usec 3000000\nthrottled_usec 700000\n"
    machine.own_cpu_seconds = [5.0, 6.0]
    seen = machine.look()
    assert seen["CPU limit of the container"].value == "3 cores' time on 4 cores"
    assert seen["CPU used by others in the container"].value == "1.00 of 3 cores' time"
    assert seen["stopped by the CPU limit"].value == "10.0% of the time"
    assert _disturbing(seen) == [
        "CPU limit of the container",
        "CPU used by others in the container",
        "stopped by the CPU limit",
    ]


def test_a_limit_of_all_cores_does_not_disturb(machine: Machine) -> None:
    machine.limit(".", CORES, usage_usec=7)
    machine.write("sys/fs/cgroup/a.slice/cpu.max", "max 100000\n")
    seen = machine.look()
    assert seen["CPU limit of the container"].value == "4 cores' time on 4 cores"
    assert "stopped by the CPU limit" not in seen
    assert _disturbing(seen) == []


def test_what_a_container_hides_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = Machine(tmp_path, monkeypatch)
    empty.later = {}
    for folder in ("proc", "sys"):
        shutil.rmtree(tmp_path / folder)
    seen = empty.look()
    assert len(seen) == 6
    assert {one.value for one in seen.values()} == {UNSEEN}
    assert _disturbing(seen) == []


@pytest.mark.parametrize("text", ["", "cpu0 1 2 3", "\x00\n\n", "some total=\n", "nan nan nan"])
def test_files_with_nonsense_are_no_error(machine: Machine, text: str) -> None:
    for path in [file for file in machine.root.rglob("*") if file.is_file()]:
        path.write_text(text)
    machine.later = {}
    machine.look()


def test_other_processes_of_this_machine_are_seen_and_this_one_is_not() -> None:
    pids = {pid for pid, _ in list_processes()}
    assert os.getpid() not in pids
    assert os.getppid() in pids


# What a quiet GPU answers.
QUIET = {
    "nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=0),
    "nvmlDeviceGetComputeRunningProcesses": [types.SimpleNamespace(pid=os.getpid())],
    "nvmlDeviceGetCurrentClocksThrottleReasons": pynvml.nvmlClocksThrottleReasonGpuIdle,
    "nvmlDeviceGetClockInfo": 345,
    "nvmlDeviceGetApplicationsClock": 1980,
    "nvmlDeviceGetTemperature": 31,
    "nvmlDeviceGetTemperatureThreshold": 90,
}


def driver(*refused: str, gpus: int = 1, **answers: Any) -> nvidia.Machine:
    """Returns a driver with quiet GPUs, unless they answer otherwise."""
    return nvidia.Machine(gpus, refused=refused, answers={**QUIET, **answers})


def _look_at_gpu(machine: Machine, gpus: nvidia.Machine) -> Seen:
    machine.gpus = machine_checks.look_at_gpus({}, gpus)
    return {name: one for name, one in machine.look().items() if name.startswith("GPU")}


def test_nothing_disturbs_on_a_quiet_gpu(machine: Machine) -> None:
    seen = _look_at_gpu(machine, driver())
    assert {name: one.value for name, one in seen.items()} == {
        "GPU 0 use": "0% busy, no other process is seen",
        "GPU 0 clock": "345 MHz of 1980 MHz, idle",
        "GPU 0 temperature": "31 °C, slows down at 90 °C",
    }
    assert _disturbing(seen) == []


HOT = pynvml.nvmlClocksThrottleReasonSwThermalSlowdown | pynvml.nvmlClocksThrottleReasonSwPowerCap


@pytest.mark.parametrize(
    ("name", "answer", "value"),
    [
        (
            "GPU 0 use",
            {"nvmlDeviceGetComputeRunningProcesses": [types.SimpleNamespace(pid=4131)]},
            "0% busy, used by pid 4131",
        ),
        (
            "GPU 0 use",
            {"nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=97)},
            "97% busy, no other process is seen",
        ),
        (
            "GPU 0 clock",
            {"nvmlDeviceGetCurrentClocksThrottleReasons": HOT, "nvmlDeviceGetClockInfo": 1979},
            "1979 MHz of 1980 MHz, held down by heat (driver)",
        ),
        ("GPU 0 clock", {"nvmlDeviceGetCurrentClocksThrottleReasons": 0}, "345 MHz of 1980 MHz"),
        ("GPU 0 temperature", {"nvmlDeviceGetTemperature": 84}, "84 °C, slows down at 90 °C"),
    ],
)
def test_each_thing_about_a_gpu_disturbs_by_itself(
    machine: Machine, name: str, answer: dict[str, Any], value: str
) -> None:
    seen = _look_at_gpu(machine, driver(**answer))
    assert seen[name].value == value
    assert _disturbing(seen) == [name]


def test_a_driver_that_tells_nothing_is_no_error(machine: Machine) -> None:
    seen = _look_at_gpu(machine, driver(*QUIET))
    assert {one.value for one in seen.values()} == {UNSEEN}
    for refused in ("nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"):
        (found,) = machine_checks.look_at_gpus({}, driver(refused))
        assert found.is_disturbing and "Not Supported" in found.value
        assert not machine_checks.look_at_gpus({"CUDA_VISIBLE_DEVICES": ""}, driver(refused))


def test_only_gpus_that_may_be_used_are_looked_at() -> None:
    seen = machine_checks.look_at_gpus({"CUDA_VISIBLE_DEVICES": "2,0"}, driver(gpus=4))
    assert list(dict.fromkeys(one.name[:5] for one in seen)) == ["GPU 2", "GPU 0"] and len(seen) == 6
