from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from benchmarks.cluster import step_losses
from benchmarks.cluster.step_losses import StepLosses
from benchmarks.measure.timing import Phase
from benchmarks.one_run.display import Display, TextDisplay
from benchmarks.topology.cluster import Task

LEADER, OTHER = Task("worker", 0), Task("worker", 1)


class Wire:
    """Carries texts from all tasks to the leader, in this process."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self.lock = threading.Lock()

    @contextlib.contextmanager
    def stream(self, what: str) -> Iterator[tuple[Callable[[str], None], Callable[[], Sequence[bytes]]]]:
        def send(text: str) -> None:
            with self.lock:
                self.texts.append(text.encode())

        def receive() -> Sequence[bytes]:
            with self.lock:
                taken, self.texts = self.texts, []
            return taken

        yield send, receive


def both(wire: Wire, every: int = 2) -> tuple[StepLosses, StepLosses]:
    leader, other = (StepLosses(wire, task, LEADER, workers=2, every=every) for task in (LEADER, OTHER))  # type: ignore[arg-type]
    return leader, other


def wait_for_mean(losses: StepLosses, step: int) -> list[float]:
    deadline = time.monotonic() + 60
    while (mean := losses.mean(step)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return mean


def test_the_leader_has_the_mean_of_each_printed_step_once() -> None:
    leader, other = both(Wire())
    with leader, other:
        for step in (1, 2, 3, 4):
            leader.put(step, [float(step), 0.5])
        assert leader.mean(1) is None, "the other has sent nothing"
        for step in (1, 2, 3, 4):
            other.put(step, [step + 1.0, 0.0])
        assert [wait_for_mean(leader, step) for step in (1, 2, 4)] == [[1.5, 0.25], [2.5, 0.25], [4.5, 0.25]]
    assert leader.mean(3) is None, "of other steps nothing is sent"
    assert leader.mean(1) is None


def test_what_is_still_on_its_way_arrives_before_the_end() -> None:
    leader, other = both(Wire())
    with other:
        other.put(1, [3.0])
    with leader:
        leader.put(1, [1.0])
    assert leader.mean(1) == [2.0]


def test_a_leader_does_not_wait_for_a_worker_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_losses, "_REST_SECONDS", 0.1)
    leader, _ = both(Wire())
    with leader:
        leader.put(1, [1.0])
    leader._thread.join(60)
    assert not leader._thread.is_alive()
    assert leader.mean(1) is None


def take_steps(display: Display, losses: Sequence[float]) -> None:
    display.phase("measuring", len(losses))
    phase = Phase()
    for loss in losses:
        phase.step_seconds.append(0.5)
        phase.losses.append(loss)
        display.after_step(phase)


def printed(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    """Returns the first and the last column of each line."""
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    return [(row[0], row[2] if len(row) == 3 else row[-1]) for row in rows]


def test_lines_of_the_leader_have_the_mean_and_those_of_others_name_the_worker(
    capsys: pytest.CaptureFixture[str],
) -> None:
    leader, other = both(Wire())
    with leader, other:
        shows_all = TextDisplay(display_every=2, images_per_step=8)
        shows_all.share(leader)
        take_steps(shows_all, [1.0, 2.0, 9.0, 4.0])
        assert printed(capsys) == [("Step", "base_loss")], "the line of a step waits for all losses"
        shows_own = TextDisplay(display_every=3, images_per_step=8)
        shows_own.share(other)
        take_steps(shows_own, [2.0, 3.0, 9.0, 6.0])
        assert printed(capsys) == [("Step", "base_loss of worker 1"), ("1", "2.000"), ("3", "9.000")]
    shows_all.stop()
    assert printed(capsys) == [("1", "1.500"), ("2", "2.500"), ("4", "5.000")]


def test_a_step_without_the_losses_of_others_is_printed_at_the_end_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step_losses, "_REST_SECONDS", 0.1)
    leader, _ = both(Wire())
    display = TextDisplay(display_every=1, images_per_step=8)
    display.share(leader)
    with leader:
        take_steps(display, [1.0])
    display.stop()
    assert printed(capsys) == [("Step", "base_loss"), ("1", "(of worker 0 alone)")]


def test_a_worker_that_prints_the_record_alone_sends_its_losses_too() -> None:
    leader, other = both(Wire())
    display = Display(8)
    display.share(other)
    with leader, other:
        take_steps(display, [3.0])
        leader.put(1, [1.0])
        assert wait_for_mean(leader, 1) == [2.0]


def test_asynchronous_workers_name_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    display = TextDisplay(display_every=1, images_per_step=8, accuracies=True)
    display.only_of("worker 1")
    display.phase("measuring", 1)
    heading = "Step\tImg/sec of worker 1\tbase_loss of worker 1\ttop_1_accuracy\ttop_5_accuracy\n"
    assert capsys.readouterr().out == heading
