"""The verb `predict`: what it prints, what it refuses, and how far its predictions are from published rates."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.errors import ExitStatus
from benchmarks.predict import judge
from results.report import published
from tests.support.commands import RunBench
from tests.support.nvidia import Card, Machine, stand_in
from tests.support.records import fake_reduction, fake_run

Predict = Callable[..., dict[str, Any]]


@pytest.fixture
def predict(run_bench: RunBench) -> Predict:
    """Predicts, and returns what is printed as JSON."""

    def printed(*words: str) -> dict[str, Any]:
        return json.loads(run_bench("predict", *words, "--output_format=json").succeeded().stdout.splitlines()[-1])

    return printed


@pytest.fixture(scope="module")
def judged() -> list[judge.Judged]:
    """All published rates that are predicted."""
    return judge.judge()


def test_predictions_of_published_rates_meet_their_targets(judged: list[judge.Judged]) -> None:
    found = judge.targets(judged)
    assert [target for target in found if not target.is_met] == []
    assert {row.testbed for row in judged} == {"", "dgx-1-p100", "gce-k80", "ec2-p2.8xlarge"}
    assert len(judged) == 156 + 31, "all rows of the guide with several devices, and eight A100 or H100"
    assert {row.rate.figure.devices for row in judged} == {2, 4, 8, 16, 32, 64}


def test_predictions_are_better_than_no_loss(judged: list[judge.Judged]) -> None:
    """A model that says less than 'n devices are n times as fast' is not worth its lines."""
    guide = [row for row in judged if row.testbed]
    mine = sum(abs(judge.error(row.left_out.images_per_sec, row)) for row in guide)
    assert mine < 0.6 * sum(abs(judge.error(row.linear, row)) for row in guide)


def test_targets_that_are_missed_are_told_by_the_status(
    run_bench: RunBench, judged: list[judge.Judged], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "judge", lambda: judged)
    done = run_bench("predict", "--judge")
    assert done.status == ExitStatus.OK and "MISSED" not in done.stdout
    assert "P100 (DGX-1)" in done.stdout and "AlexNet" in done.stdout, "misses are in the table"
    monkeypatch.setattr(judge, "_CLOSE", 0.001)
    done = run_bench("predict", "--judge")
    assert done.status == ExitStatus.RUN_FAILED and "MISSED" in done.stdout


def test_a_table_from_one_to_a_thousand_devices(run_bench: RunBench, tmp_path: Path) -> None:
    slow = ("--assumed_mfu=0.000002", f"--plot={tmp_path / 'rates'}")
    done = run_bench("predict", "--model=trivial", "--hardware=H100", "--explain", *slow).succeeded()
    lines = done.stdout.splitlines()
    assert "trivial, batch" in lines[0] and "NVIDIA DGX H100" in lines[0]
    numbers = [line.split()[:2] for line in lines[-60:] if line.split()[:1] and line.split()[0].isdecimal()]
    assert numbers == [[str(d), str(h)] for d, h in ((1, 1), (2, 1), (4, 1), (8, 1))] + [
        [str(8 * hosts), str(hosts)] for hosts in (2, 4, 8, 16, 32, 64, 125)
    ]
    assert "A step of one of 1000 devices" in done.stdout and "device " in done.stdout
    assert " ms" in done.stdout and "e+0" not in done.stdout
    picture = (tmp_path / "rates.svg").read_text()
    assert (tmp_path / "rates.png").exists()
    assert ">1000</text>" in picture and "e+0" not in picture, "numbers of devices, and not powers of two"

    hosts = ",".join(map(str, range(1, 21)))
    run_bench("predict", "--model=trivial", "--hardware=H100", f"--hosts={hosts}", slow[1]).succeeded()
    picture = (tmp_path / "rates.svg").read_text()
    numbers = [8 * host for host in range(1, 21) if f">{8 * host}</text>" in picture]
    assert numbers == [8, 16, 24, 32, 40, 56, 72, 88, 112, 144], "those that have room"


def test_a_manager_of_one_host_ends_there_and_hosts_do_not_change_the_rate_of_one_device(predict: Predict) -> None:
    words = ("--model=trivial", "--hardware=H100")
    one_host = predict(*words, "--variable_update=replicated")
    many = predict(*words, "--variable_update=distributed_replicated", "--hosts=8")
    assert [point["devices"] for point in one_host["points"]] == [1, 2, 4, 8]
    assert one_host["images_per_sec_of_one"] == many["images_per_sec_of_one"]


def test_flags_that_no_other_manager_takes_leave_the_one_that_is_predicted(run_bench: RunBench) -> None:
    words = ("predict", "--model=trivial", "--hardware=H100", "--num_gpus=8")
    done = run_bench(*words, "--variable_update=local_sgd", "--local_sgd_steps=2")
    assert done.status == ExitStatus.OK and "local_sgd (" in done.stdout, done.stderr


def test_json_has_a_point_for_each_number(predict: Predict) -> None:
    words = ("--model=vgg16", "--hardware=dgx-1-p100", "--precision=fp32", "--hosts=1,4", "--num_gpus=8")
    one, four = predict(*words, "--variable_update=parameter_server")["points"]
    assert (one["devices"], four["devices"]) == (8, 32)
    assert four["images_per_sec_low"] < four["images_per_sec"] < four["images_per_sec_high"]
    assert one["images_per_sec_by_manager"].keys() > {"replicated", "parameter_server"}
    assert "replicated" not in four["images_per_sec_by_manager"], "works on one host only"


def test_a_host_without_gpus_computes_before_it_sends(run_bench: RunBench, predict: Predict, tmp_path: Path) -> None:
    (path := tmp_path / "core.toml").write_text(
        'title = "one core"\ncpu = {copies_gbytes_per_second = 1e6, source = "a test"}\n'
        'memory = {gbytes_per_second = 10, source = "a test"}\n'
        'network = {gbytes_per_second = 1, latency_microseconds = 0, source = "a test"}\n'
    )
    words = ("--model=alexnet", "--batch_size=32", f"--hardware={path}", "--hosts=1,2")
    rate = ("--peak_tflops=0.1", "--assumed_mfu=0.5", "--network_gbytes_per_second=0.125")
    one, two = predict(*words, *rate, "--num_ps=1", "--variable_update=parameter_server")["points"]
    # Worker 1 sends 250 MB to the one server, after it computed; reading overlaps the forward pass in part.
    assert two["step_seconds"] - one["step_seconds"] > 250e6 / 125e6
    done = run_bench("predict", *words)
    assert done.status == ExitStatus.USAGE and "Nothing is known of the rate of one CPU in fp32" in done.stderr


def test_links_that_were_measured_replace_those_of_data_sheets(predict: Predict) -> None:
    def rate(*flags: str) -> float:
        found = predict("--model=vgg16", "--hardware=dgx-1-p100", "--precision=fp32", "--hosts=8", *flags)
        return float(found["points"][0]["images_per_sec"])

    assert rate("--network_gbytes_per_second=0.1") < 0.5 * rate()
    assert rate("--link_gbytes_per_second=0.1") < 0.5 * rate()


def test_without_hardware_this_machine_is_meant_with_rates_of_its_records(
    predict: Predict, keep: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two H200; a run of one took 0.1 s for 32 images, and an all-reduce of two sent 1e8 bytes in 0.01 s."""
    stand_in(monkeypatch, Machine(2))
    reduction = fake_reduction("xring", 10**8, 0.01)
    records = [
        fake_run(model="vgg16", precision="tf32", device="gpu"),
        replace(reduction, config={**reduction.config, "device": "gpu"}),
    ]
    words = ("--model=vgg16", f"--results={keep('mine.jsonl', records)}", "--batch_size=32", "--num_gpus=1,2")
    found = predict(*words, "--variable_update=replicated", "--all_reduce_spec=xring")
    assert "H200" in found["hardware"] and records[0].identity.run_id in found["source"]
    assert found["images_per_sec_of_one"] == pytest.approx(320)
    # 553 MB at 1e10 bytes/s take 0.055 s: most of it while the convolutions go back.
    assert 0.8 < found["points"][1]["efficiency"] < 0.99


def test_a_gpu_without_a_data_sheet_is_named(run_bench: RunBench, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, Machine([Card("NVIDIA Z9")]))
    done = run_bench("predict", "--model=vgg16")
    assert done.status == ExitStatus.USAGE and "no data sheet of NVIDIA Z9" in done.stderr


def test_a_table_can_be_compared_with_in_a_report(run_bench: RunBench, predict: Predict, tmp_path: Path) -> None:
    path = tmp_path / "predicted.csv"
    words = ("--model=trivial", "--hardware=H100", "--variable_update=replicated")
    points = predict(*words, f"--table={path}")["points"]
    rates = [point["images_per_sec"] for point in points]
    figures = published.table(str(path)).figures
    assert [(f.devices, f.images_per_sec) for f in figures] == [
        (devices, pytest.approx(rate, rel=1e-5)) for devices, rate in zip((1, 2, 4, 8), rates, strict=True)
    ]
    for figure, point in zip(figures, points, strict=True):
        rate = point["images_per_sec"]  # the table has 95 % intervals, wider by 1.96 / 1.645 than these of 90 %
        ends = [rate * (point[f"images_per_sec_{end}"] / rate) ** (1.96 / 1.645) for end in ("low", "high")]
        assert [figure.images_per_sec_low, figure.images_per_sec_high] == pytest.approx(ends, rel=1e-5)
    assert figures[-1].variable_update == "replicated nccl small 4194304", "as a run on such a host records it"
    assert figures[-1].gpu == "H100 80GB HBM3"
    nowhere = run_bench("predict", *words, f"--table={tmp_path}/none/predicted.csv")
    assert nowhere.status == ExitStatus.USAGE and "Name a file that can be written" in nowhere.stderr
