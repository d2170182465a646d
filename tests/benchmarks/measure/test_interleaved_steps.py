"""Interleaved steps: two threads that stand for two runs, and a run in this process whose other side is a thread."""

from __future__ import annotations

import contextlib
import select
import threading
from collections.abc import Iterator

import pytest

from benchmarks.errors import OverdueError
from benchmarks.measure import interleaved_steps
from benchmarks.measure.interleaved_steps import TimeSlices
from benchmarks.process.deadlines import Deadlines
from tests.support.commands import Records, RunBench
from tests.support.settings import resolve

_JOIN_SECONDS = 60.0
STEPS, SHORTEST = Deadlines(step_timeout_seconds=600.0), Deadlines(step_timeout_seconds=0.0)


class Pair:
    """Two runs, whose steps are noted in the order in which they are taken."""

    def __init__(self) -> None:
        first, second = interleaved_steps.pair()
        self.sockets = {"a": first.socket, "b": second.socket}
        self.sides = {
            "a": TimeSlices(first.socket, begins=first.begins, deadlines=SHORTEST),
            "b": TimeSlices(second.socket, begins=second.begins, deadlines=SHORTEST),
        }
        self.taken: list[str] = []
        self._threads: list[threading.Thread] = []

    def start(self, name: str, steps: int, step_seconds: float = 0.01, *, dies: bool = False) -> None:
        """Lets a side run; one that dies does so after its steps, without a word."""

        def run() -> None:
            side = self.sides[name]
            side.begin(steps, step_seconds)
            for _ in range(steps):
                self.taken.append(name)
                side.after_step()
            side.leave() if dies else side.finish()
            self.taken.append(f"{name} is out")
            side.leave()

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def join(self) -> str:
        """Returns the steps, when both are out."""
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)
            assert not thread.is_alive(), self.taken
        return "".join(name for name in self.taken if "is out" not in name)


def test_steps_alternate_and_the_late_side_is_waited_for() -> None:
    pair = Pair()
    pair.start("b", 20, 0.1)
    assert select.select([pair.sockets["a"]], [], [], _JOIN_SECONDS)[0], "the second announces its steps"
    assert not pair.taken
    pair.start("a", 20, 0.1)
    assert pair.join() == "aabb" * 10  # a quarter of a second has two such steps
    assert pair.taken.index("a is out") >= 40, "the first waits until the other's last slice is over"


@pytest.mark.parametrize(
    ("steps", "seconds", "per_slice"),
    [
        ((1000, 1000), (0.01, 0.01), 25),
        ((1000, 1000), (0.01, 0.025), 10),
        ((50, 1000), (0.01, 0.01), 5),
        ((1000, 1000), (3.0, 0.01), 1),
        ((1, 1), (0.01, 0.01), 1),
    ],
    ids=["a quarter of a second", "of the slower side", "ten slices at least", "long steps", "one step"],
)
def test_both_sides_take_equally_many_steps_at_a_time(
    steps: tuple[int, int], seconds: tuple[float, float], per_slice: int
) -> None:
    pair = Pair()
    pair.start("a", steps[0], seconds[0])
    pair.start("b", steps[1], seconds[1])
    pair.join()
    assert {side.steps_per_slice for side in pair.sides.values()} == {per_slice}


@pytest.mark.parametrize(("steps", "taken"), [((25, 25), "aabb" * 12 + "ab"), ((10, 13), "ab" * 10 + "bbb")])
def test_a_last_slice_may_be_shorter_and_the_side_with_more_steps_takes_the_rest_alone(
    steps: tuple[int, int], taken: str
) -> None:
    pair = Pair()
    pair.start("a", steps[0])
    pair.start("b", steps[1])
    assert pair.join() == taken
    assert pair.taken.index("a is out") >= sum(steps), "what it does after its steps would disturb the other's"


def test_a_side_that_is_left_alone_goes_on() -> None:
    pair = Pair()
    pair.start("a", 100)
    pair.start("b", 15, dies=True)
    assert pair.join().endswith("a" * 85)


def test_without_the_other_side_there_are_no_slices() -> None:
    pair = Pair()
    pair.sides["b"].leave()
    pair.start("a", 30)
    assert pair.join() == "a" * 30
    assert pair.sides["a"].steps_per_slice is None


@pytest.mark.parametrize("comes_to", ["nothing", "begin", "the third slice", "its last step"])
def test_a_silent_side_ends_the_other(comes_to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LEAST_START_SECONDS", "_LEAST_SLICE_SECONDS"):
        monkeypatch.setattr(interleaved_steps, name, 0.5)
    pair = Pair()
    own, other = pair.sides["a"], pair.sides["b"]
    steps = {"the third slice": 4, "its last step": 19}.get(comes_to, 0)

    def silent() -> None:
        if comes_to == "nothing":
            return
        with contextlib.suppress(OverdueError):  # on a busy machine it may wait in vain, too
            other.begin(20, 0.001)
            for _ in range(steps):
                other.after_step()

    thread = threading.Thread(target=silent, daemon=True)
    thread.start()
    with pytest.raises(OverdueError, match=r"has not taken its time slice for 0\.5 s \(its process may be stopped\)"):
        own.begin(20, 0.001)
        for _ in range(20):
            own.after_step()
        own.finish()
    own.leave()
    thread.join(_JOIN_SECONDS)
    other.leave()


@pytest.mark.parametrize(("step_timeout", "waits"), [(5.0, [900.0, 60.0]), (600.0, [1800.0, 600.0])])
def test_how_long_the_other_side_is_waited_for(
    step_timeout: float, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = interleaved_steps.pair()
    own = TimeSlices(first.socket, begins=True, deadlines=Deadlines(step_timeout_seconds=step_timeout))
    waited: list[float] = []
    monkeypatch.setattr(own, "_wait_at_most", waited.append)
    second.socket.sendall(b"[20, 0.01]\n")
    own.begin(20, 0.01)
    assert waited == waits
    own.leave()
    second.socket.close()


@pytest.mark.parametrize("said", [None, "", "x:1:first", "99999:1:second", "0:1:first"])
def test_a_run_without_a_socket_takes_no_slices(said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CNN_BENCH_TIME_SLICES", raising=False)
    if said is not None:
        monkeypatch.setenv("CNN_BENCH_TIME_SLICES", said)
    assert interleaved_steps.inherited() is None
    with interleaved_steps.taken(True, STEPS) as own:
        assert own is None


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[TimeSlices]:
    """The other side of a run that finds its own in its environment."""
    own, other = interleaved_steps.pair()
    monkeypatch.setenv("CNN_BENCH_TIME_SLICES", own.variables()["CNN_BENCH_TIME_SLICES"])
    yield TimeSlices(other.socket, begins=other.begins)
    own.socket.detach()  # was closed by its new owner


def test_a_run_that_cannot_pause_leaves_the_other_alone(peer: TimeSlices) -> None:
    assert interleaved_steps.inherited() is not None
    with interleaved_steps.taken(False, STEPS) as mine:
        assert mine is None
        peer.begin(10, 0.01)  # would wait for ever
    assert peer.steps_per_slice is None


@pytest.mark.parametrize(
    ("words", "pauses"),
    [
        ("", True),
        ("--num_gpus=2 --variable_update=replicated", True),
        ("--data_name=synthetic_host", False),
        ("--num_gpus=2 --cross_replica_sync=false", False),
        ("--time_limit_seconds=60", False),
        ("--local_cluster=ps:1,worker:2 --variable_update=distributed_replicated", False),
        ("--device=gpu", False),
        ("--data_name=imagenet --data_dir=x", False),
    ],
)
def test_which_runs_pause_between_steps(words: str, pauses: bool) -> None:
    assert resolve("--model=trivial", "--device=cpu", *words.split(), gpus=1).can_interleave == pauses


def test_a_failure_does_not_wait_for_the_other(peer: TimeSlices) -> None:
    thread = threading.Thread(target=peer.begin, args=(10, 0.01))
    thread.start()
    with pytest.raises(ValueError, match="broken"), interleaved_steps.taken(True, STEPS) as mine:
        assert mine is not None
        mine.begin(10, 0.01)
        raise ValueError("broken")
    thread.join(_JOIN_SECONDS)
    assert not thread.is_alive(), "the other has been left"
    peer.leave()


def test_a_run_whose_other_side_is_gone_measures_alone(run_bench: RunBench, records: Records) -> None:
    first, second = interleaved_steps.pair()
    variables = second.variables()
    second.socket.detach()  # it belongs to the run
    first.socket.close()
    run_bench("--device=cpu", "--model=mlp", "--batch_size=4", "--num_batches=5", **variables).succeeded()
    (record,) = records()
    assert "steps_per_slice" not in record["environment"]
    assert len(record["measurement"]["step_seconds"]) == 5
