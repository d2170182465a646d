"""Calibrating with runs whose rounds have a known noise."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.cli import main
from benchmarks.compare import calibration
from benchmarks.errors import DataError, ExitStatus, UsageError
from benchmarks.measure import injected_delay
from benchmarks.process import subprocesses
from results.gate.noise import Noise
from results.loading import load
from results.record import Record
from tests.support.fake_runs import Failure, FakeRun, FakeRuns
from tests.support.records import fake_run

Calibrate = Callable[..., ExitStatus]


@pytest.fixture
def calibrate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calibrate:
    """Runs the verb on runs with that noise, of which those of one model fail."""

    def run(*arguments: str, of: float = 0.001, broken: str = "") -> ExitStatus:
        numbers: Counter[str] = Counter()

        def behave(one: FakeRun) -> Record | Failure:
            directory, model = one.flags["output_dir"], one.flags["model"]
            if model == broken:
                return Failure(returncode=9)
            numbers[directory] += 1
            swing = of * (-1) ** numbers[directory] * (1 if Path(directory).name == "base" else -1)
            return fake_run(model=model, step_seconds=32 / (100 * (1 + swing)))

        monkeypatch.setattr(subprocesses, "supervise", FakeRuns(behave))
        places = [f"--output_dir={tmp_path / 'out'}", f"--baselines_dir={tmp_path / 'baselines'}"]
        words = ["--model=trivial", *arguments] if not any("--model" in word for word in arguments) else arguments
        return main.dispatch(["track", "calibrate", "--device=cpu", "--nointerleave_steps", *places, *words])

    return run


def _kept(tmp_path: Path) -> dict[str, dict[str, object]]:
    """Returns what is kept of this machine, by model."""
    path = tmp_path / "baselines" / fake_run().identity.hardware_key / "noise.json"
    models = {fake_run(model=model).identity.config_key: model for model in ("trivial", "mlp", "vgg16")}
    return {models[key]: entry for key, entry in json.loads(path.read_text()).items()}


def test_a_quiet_machine_supports_five_percent(
    calibrate: Calibrate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate() == ExitStatus.OK
    entry = _kept(tmp_path)["trivial"]
    assert entry["rounds"] == 10 and entry["title"].startswith("trivial") and entry["suite_commit"] == "abc"
    # Both swing by 0.1 %, against each other: log ratios of +-0.2 %, over the root of 2.
    assert entry["noise"] == pytest.approx(0.002 * (10 / 9 / 2) ** 0.5, rel=0.01)
    shown = capsys.readouterr()
    assert "noise of one repeat: 0.15 % (95 % interval" in shown.out
    assert "threshold that this machine supports: 5.0 %" in shown.out
    assert "a drop of 7.5 % is found in 95 % of the cases with up to 7 repeats" in shown.out
    assert "repeat 10 of at most 10" in shown.err
    for side in ("base", "candidate"):
        assert len(load(tmp_path / "out" / side / "results.jsonl").records) == 10


def test_each_configuration_has_its_noise_and_one_that_fails_none(
    calibrate: Calibrate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = calibrate("--repeats=3", "--model=trivial,mlp,vgg16", broken="mlp")
    assert status == ExitStatus.RUN_FAILED
    assert sorted(_kept(tmp_path)) == ["trivial", "vgg16"]
    assert "mlp" in (said := capsys.readouterr().err) and "is not calibrated. The base did not run in repeat 1" in said
    calibrate("--repeats=3", "--model=mlp")
    assert sorted(_kept(tmp_path)) == ["mlp", "trivial", "vgg16"]


def test_noise_as_json_is_what_is_stored(
    calibrate: Calibrate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate("--repeats=3", "--output_format=json") == ExitStatus.OK
    (printed,) = json.loads(capsys.readouterr().out)
    assert printed["threshold"] == 0.05 and printed["hardware_key"] == fake_run().identity.hardware_key
    assert _kept(tmp_path)["trivial"].items() <= printed.items()


def test_noise_in_words() -> None:
    lines = calibration.noise_lines(Noise(noise=0.08, low=0.05, high=0.1, rounds=5))
    assert "threshold that this machine supports: 16.0 %" in lines[2]
    words = calibration.noise_lines(Noise(noise=0.3, low=0.2, high=0.5, rounds=5))
    assert any("a drop of 90.0 % is found in 95 % of the cases" in line for line in words)
    words = calibration.noise_lines(Noise(noise=0.4, low=0.2, high=0.6, rounds=5))
    assert "  a drop of 100.0 % is not found reliably with 60 repeats" in words


def test_a_damaged_file_is_not_overwritten(calibrate: Calibrate, tmp_path: Path) -> None:
    path = tmp_path / "baselines" / fake_run().identity.hardware_key / "noise.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(DataError, match="run `track calibrate` again"):
        calibrate("--repeats=3")
    assert path.read_text() == "{"


def test_a_directory_that_cannot_be_written_is_refused_before_the_runs(calibrate: Calibrate, tmp_path: Path) -> None:
    (tmp_path / "baselines").touch()
    with pytest.raises(UsageError, match=r"--baselines_dir=.*/baselines: .* Name a directory that can be written"):
        calibrate()
    assert not (tmp_path / "out").exists()


def test_a_deliberate_slow_down_is_that_share_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def step() -> str:
        return "done"

    monkeypatch.setattr(injected_delay, "busy", slept.append)
    assert injected_delay.slowed(step) is step
    assert not injected_delay.warnings() and not injected_delay.environment()
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(injected_delay.time, "perf_counter", lambda: next(clock))
    monkeypatch.setenv("CNN_BENCH_SLOW_DOWN_FOR_TESTS", "0.10")
    assert injected_delay.slowed(step)() == "done"
    assert slept == [pytest.approx(0.2)]
    assert injected_delay.environment() == {"slowed_down_by": 0.1}
    (warning,) = injected_delay.warnings()
    assert "10% longer on purpose" in warning


@pytest.mark.parametrize("text", ["abc", "-0.5", "nan", "inf"])
def test_a_delay_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("CNN_BENCH_SLOW_DOWN_FOR_TESTS", text)
    monkeypatch.setenv("CNN_BENCH_SLOW_TOWER_FOR_TESTS", f"1:{text}")
    for read in (injected_delay.share, lambda: injected_delay.of_tower(1)):
        with pytest.raises(UsageError, match=f"FOR_TESTS has '{text}', and needs a number"):
            read()
