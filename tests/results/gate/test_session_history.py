"""Where a series of rates changed its level, how often that is missed or made up, and how it is shown."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from msgspec.structs import replace

from results.gate.session_history import History, as_json, as_text, change_points, draw, histories
from results.record import Record, Status
from tests.support.records import fake_run, night

NOISE = 0.02
SERIES = 300


def series(seed: int, length: int, *, step_at: int | None = None, back_at: int | None = None) -> list[list[float]]:
    """Rates of sessions with normal noise, which drop by 5 % at `step_at` and come back at `back_at`."""
    logs = NOISE * np.random.default_rng(seed).normal(size=(SERIES, length))
    logs[:, step_at or length : back_at] += math.log(0.95)
    return np.exp(logs).tolist()


@pytest.mark.parametrize("length", [16, 30])
def test_steady_series_rarely_seem_to_change(length: int) -> None:
    assert sum(bool(change_points(rates)) for rates in series(1, length)) < 0.05 * SERIES


def test_a_step_between_eight_and_eight_sessions_is_found_where_it_is() -> None:
    found = [change_points(rates) for rates in series(2, 16, step_at=8)]
    assert sum(any(abs(point - 8) <= 2 for point in points) for points in found) >= 0.9 * SERIES


def test_a_drop_and_the_recovery_are_both_found() -> None:
    found = [change_points(rates) for rates in series(3, 30, step_at=10, back_at=20)]
    assert sum(len(points) == 2 for points in found) >= 0.85 * SERIES


def test_a_single_odd_session_is_no_level() -> None:
    rates = [100 + 0.5 * (index % 3) for index in range(20)]
    rates[9] = 70.0
    assert change_points(rates) == []


def test_odd_sessions_do_not_hide_a_step() -> None:
    rates = [level + 0.5 * (index % 3) for index, level in enumerate([100.0] * 23 + [93.0] * 23)]
    rates[9] = rates[40] = 60.0
    assert change_points(rates) == [23]


@pytest.mark.parametrize("rates", [[], [1.0], [1.0, 2.0, 1.0, 2.0, 1.0], [5.0] * 20])
def test_too_few_or_equal_sessions_have_no_change_point(rates: list[float]) -> None:
    assert change_points(rates) == []


@pytest.fixture
def found() -> list[History]:
    """Twelve nights of which the last six are 10 % slower, and another configuration of a single night."""
    rates = [100.0, 101.0, 99.0, 100.0, 101.0, 99.0, 90.0, 91.0, 89.0, 90.0, 91.0, 89.0]
    records = [record for day, rate in enumerate(rates, start=1) for record in night(day, rate)]
    return histories([*reversed(records), fake_run(status=Status.CRASH), *night(3, 50.0, model="vgg16")])


def test_a_title_has_no_version_of_software_since_sessions_may_differ_in_it() -> None:
    def of(run: Record, version: str) -> Record:
        environment = {**run.environment, "tensorflow_version": version}
        return replace(run, identity=replace(run.identity, software_key=version), environment=environment)

    before = [of(run, "2.20.0") for run in night(1)]
    after = [of(run, "2.21.0") for run in [*night(2), *night(2, model="vgg16")]]
    assert not [history.title for history in histories([*before, *after]) if "TensorFlow" in history.title]


def test_the_text_marks_the_session_of_a_new_level_with_both_levels(found: list[History]) -> None:
    lines = as_text(found)
    (marked,) = [line for line in lines if "<-" in line]
    assert marked.startswith("2026-01-07 00:00  abc    2.21.0         3     90.00      -9.1")
    assert marked.endswith("<- 10.0 % slower from here: 100.00 to 90.00")
    assert sum(line.startswith("2026-01-") for line in lines) == 13


def test_the_json_has_the_numbers_of_the_text(found: list[History]) -> None:
    first, _ = json.loads(as_json(found))
    session = first["sessions"][6]
    assert session["images_per_sec"] == pytest.approx(90) and session["change"] == pytest.approx(90 / 99 - 1)
    assert session["is_change_point"] and session["level_images_per_sec"] == pytest.approx(90)
    assert session["runs"] == 3 and first["sessions"][0]["change"] is None


@pytest.mark.parametrize("name", ["history.png", "history.svg"])
def test_the_picture_shows_levels_and_what_changed(found: list[History], tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert draw(found, path) == 2
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG") if name.endswith("png") else b"10.0 % slower" in content


def test_a_change_is_written_where_the_line_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    rates = [100] * 8 + [120] * 8 + [90] * 8
    draw(histories([run for day, rate in enumerate(rates, start=1) for run in night(day, rate)]), tmp_path / "x.png")
    ((axis,),) = (figure.axes for figure in drawn)
    found = {text.get_text().strip(): (text.get_position()[1], text.get_va()) for text in axis.texts}
    assert found == {"20.0 % faster": (0, "bottom"), "25.0 % slower": (1, "top")}


def test_a_picture_holds_the_longest_histories(found: list[History], tmp_path: Path) -> None:
    many = [*found, *(histories(night(1, 10.0, batch_per_device=batch))[0] for batch in range(1, 9))]
    assert draw(many, tmp_path / "history.svg") == 6
    text = (tmp_path / "history.svg").read_text()
    assert "resnet50, replicated psgpu, 1 GPU, batch 32" in text
    draw([*histories(night(1, 10.0, model="a model of some length, " * 5)), *found], tmp_path / "long.svg")
    texts = re.findall(r">([^<>]*)</text>", (tmp_path / "long.svg").read_text())
    assert 50 < max(map(len, texts)) <= 64, "beside each other, titles have as much room as their panels"
