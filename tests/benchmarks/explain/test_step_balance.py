from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.config import config
from benchmarks.explain import known_gpus, step_balance
from benchmarks.explain.known_gpus import Rate
from benchmarks.explain.step_balance import Balance, Rates, how_to_measure
from benchmarks.process.tensorflow_setup import Devices
from results.record import Record, Status
from tests.support.nvidia import MACHINES, stand_in
from tests.support.records import fake_reduction, fake_run
from tests.support.settings import resolve


def _config(*words: str) -> config.Config:
    return resolve(*words, gpus=16)


ON_GPUS = _config("--model=resnet50", "--num_gpus=4", "--batch_size=64", "--variable_update=replicated")
ON_CPU = _config("--model=resnet50", "--device=cpu", "--num_gpus=2", "--batch_size=8", "--variable_update=replicated")


def _reduction(spec: str, size_bytes: int, seconds: float, **fields: Any) -> Record:
    record = fake_reduction(spec, size_bytes, seconds)
    return replace(record, config={**record.config, "device": "gpu", **fields})


def _known(devices: Devices = ON_GPUS.devices, precision: str = "fp32", **given: Any) -> Rates:
    """Returns what is known with these flags alone."""
    values = dict.fromkeys(flag.name for flag in step_balance.RATE_FLAGS)
    return step_balance.known_rates({**values, **given}, devices, precision)


def _balance(rates: Rates, chosen: config.Config = ON_GPUS, sent_bytes: float | None = 150e6) -> Balance:
    return rates.balance(chosen, flops_per_image=20e9, gradient_bytes=100_000_000, sent_bytes=sent_bytes)


def test_a_step_by_hand() -> None:
    """64 images at 640 per s take 0.1 s; 1 GB at 5 GB/s takes 0.2 s, as long as 128 images."""
    step = Balance(
        batch_per_device=64, sent_bytes=1e9, images_per_sec=Rate(640.0, ""), link_bytes_per_sec=Rate(5e9, "")
    )
    assert (step.compute_seconds, step.exchange_seconds, step.ratio) == (0.1, 0.2, 2.0)
    assert (step.bound_by, step.compute_bound_batch) == ("communication", 128)
    at_the_limit = dataclasses.replace(step, batch_per_device=128)
    assert at_the_limit.ratio == 1.0
    assert (at_the_limit.bound_by, at_the_limit.compute_bound_batch) == ("compute", 128)
    assert dataclasses.replace(step, sent_bytes=1e6).compute_bound_batch == 1


def test_the_rate_to_expect_includes_what_is_not_known_of_computing() -> None:
    """64 images at 640 per s, or half or twice as many, take 0.1 s; 1 GB at 20 GB/s takes 0.05 s."""
    step = Balance(
        batch_per_device=64, sent_bytes=1e9, images_per_sec=Rate(640.0, "", 2.0), link_bytes_per_sec=Rate(2e10, "")
    )
    assert (step.ratio, step.bound_by, step.compute_bound_batch) == (0.5, "compute", 32)
    assert dataclasses.replace(step, sent_bytes=4e9).expected_images_per_sec == pytest.approx((64 / 0.4, 64 / 0.2))
    assert step.expected_images_per_sec == pytest.approx((64 / 0.25, 64 / 0.05))


def test_what_is_not_measured_is_unknown() -> None:
    for unknown in ("images_per_sec", "link_bytes_per_sec", "sent_bytes"):
        known = {"sent_bytes": 1e9, "images_per_sec": Rate(1.0, ""), "link_bytes_per_sec": Rate(1.0, "")}
        step = Balance(batch_per_device=1, **{**known, unknown: None})  # type: ignore[arg-type]
        assert (step.ratio, step.bound_by, step.compute_bound_batch) == (None, "unknown", None)
    alone = Balance(batch_per_device=1, sent_bytes=0, images_per_sec=Rate(1.0, ""), link_bytes_per_sec=None)
    assert (alone.exchange_seconds, alone.bound_by) == (0.0, "compute"), "nothing is sent, so no link is needed"


def test_rates_that_the_user_gives() -> None:
    """Half of 100 TFLOP/s is 2500 images/s of 20 GFLOP on each GPU; a CPU's devices share those of their host."""
    link = Rate(10e9, "--link_gbytes_per_second")
    rates = Rates(peak_flops_per_sec=100e12, hardware_is_given=True, assumed_mfu=0.5, link=link, link_is_given=True)
    step = _balance(rates)
    assert step.images_per_sec == Rate(2500.0, "50% of 100 TFLOP/s")
    assert step.exchange_seconds == pytest.approx(0.015)
    shared = _balance(dataclasses.replace(rates, assumed_mfu=0.2), ON_CPU).images_per_sec
    assert shared and shared.value == pytest.approx(1000.0 / 2)
    workers = _config("--device=cpu", "--local_cluster=worker:4", "--variable_update=collective_all_reduce")
    shared = _balance(dataclasses.replace(rates, assumed_mfu=0.2), workers).images_per_sec
    assert shared and shared.value == pytest.approx(1000.0 / 4), "workers of a host do, too"
    as_published = _balance(dataclasses.replace(rates, assumed_mfu=None, gpu=known_gpus.find_gpu("V100")))
    assert as_published.images_per_sec and "V100 SXM" in as_published.images_per_sec.source
    measured = fake_run(batch_per_device=64, step_seconds=0.064)
    assert _balance(dataclasses.replace(rates, records=[measured])).images_per_sec == step.images_per_sec
    of_record = _balance(dataclasses.replace(rates, records=[measured], hardware_is_given=False)).images_per_sec
    assert of_record == Rate(pytest.approx(1000.0), f"run {measured.identity.run_id}, batch 64")


def test_a_step_of_hardly_any_operations_is_not_expected_to_take_no_time() -> None:
    rates = Rates(gpu=known_gpus.find_gpu("A100"), peak_flops_per_sec=156e12)
    few = _balance(rates, _config("--model=mlp", "--num_gpus=4", "--batch_size=64"))
    assert few.images_per_sec and few.images_per_sec.value < 64e3, "20 GFLOP are many"
    few = rates.balance(_config("--model=mlp", "--batch_size=64"), flops_per_image=1e6, gradient_bytes=1, sent_bytes=0)
    assert few.images_per_sec and (few.images_per_sec.value, few.images_per_sec.factor) == (64e3, 3.0)
    assert "a step takes 1 ms at least" in few.images_per_sec.source


def test_of_runs_those_of_the_model_on_one_device_count_and_first_those_with_the_same_xla_and_batch() -> None:
    """The fastest of these has 1000 images/s; the faster ones are something else."""
    wanted = fake_run(batch_per_device=64, step_seconds=0.064, xla="off")
    fast = fake_run(batch_per_device=64, step_seconds=0.001, xla="off")
    records = [
        wanted,
        replace(fast, status=Status.INVALID),
        fake_run(batch_per_device=64, step_seconds=0.08, xla="off"),
        fake_run(batch_per_device=64, step_seconds=0.04, xla="jit"),
        fake_run(batch_per_device=128, step_seconds=0.064, xla="off"),
        *(
            fake_run(batch_per_device=64, step_seconds=0.001, xla="off", **other)
            for other in (
                {"model": "vgg16"},
                {"precision": "fp16"},
                {"forward_only": True},
                {"num_devices": 2},
                {"num_workers": 2},
                {"device": "cpu"},
                {"variable_update": "keras_fit"},
            )
        ),
    ]
    rate = _balance(Rates(records=records)).images_per_sec
    assert rate == Rate(pytest.approx(1000.0), f"run {wanted.identity.run_id}, batch 64")
    of_xla_or_another_batch = records[3:]
    fastest = _balance(Rates(records=of_xla_or_another_batch)).images_per_sec
    assert fastest and fastest.value == pytest.approx(2000.0)


def test_rates_of_two_machines_are_not_mixed() -> None:
    old = fake_run(batch_per_device=64, step_seconds=0.001, hardware="the old machine")
    new = fake_run(batch_per_device=64, step_seconds=0.064)
    rate = _balance(Rates(records=[old, new])).images_per_sec
    assert rate and rate.value == pytest.approx(1000.0)
    rate = _balance(Rates(records=[old, fake_run(model="vgg16")])).images_per_sec
    assert rate and rate.value == pytest.approx(64_000.0), "the newer machine has no run of the model"


def test_the_rate_of_the_links_is_that_of_the_nearest_all_reduce() -> None:
    """On two devices, xring sends 2 x 1/2 of the message from each, and pscpu 2 x 2/2; 0.1 s each."""
    psgpu = _reduction("psgpu", 50_000_000, 0.1, num_devices=2)
    wanted = _reduction("psgpu", 50_000_000, 0.1, num_devices=4)
    others = [_reduction("xring", 100_000_000, 0.1, num_devices=4), _reduction("psgpu", 4096, 0.1, num_devices=4)]
    assert ON_GPUS.variables.modifiers.all_reduce_spec == "psgpu"
    link = _balance(Rates(records=[wanted, psgpu, *others])).link_bytes_per_sec
    assert link and link.value == pytest.approx(2 * 3 / 4 * 50e6 / 0.1)
    assert link.source == f"allreduce {wanted.identity.run_id}, psgpu, 4 devices, {wanted.config['message']}"
    for spec, bytes_per_sec in (("xring#2", 1e9), ("pscpu", 2e9)):
        only = _balance(Rates(records=[_reduction(spec, 100_000_000, 0.1)])).link_bytes_per_sec
        assert only and only.value == pytest.approx(bytes_per_sec)
    compact = {"modifiers": {"all_reduce_spec": "psgpu", "compact_gradient_transfer": True}}
    unusable = [_reduction("pscpu:32K:xring", 4096, 0.1), _reduction("psgpu", 4096, 0.1, **compact)]
    assert _balance(Rates(records=unusable)).link_bytes_per_sec is None


def test_an_all_reduce_between_devices_says_nothing_of_a_network() -> None:
    cluster = _config("--model=resnet50", "--device=cpu", "--local_cluster=ps:1,worker:2", "--batch_size=8")
    measured = _reduction("pscpu", 100_000_000, 0.1, device="cpu")
    assert _balance(Rates(records=[measured]), ON_CPU).link_bytes_per_sec
    unknown = _balance(Rates(records=[measured], peak_flops_per_sec=1e12), cluster)
    assert unknown.link_bytes_per_sec is None
    assert (
        "doctor' with the same cluster measures it"
        in how_to_measure(cluster.devices, {"resnet50": unknown}, in_cluster=True)[0]
    )
    link = Rate(1e9, "--link_gbytes_per_second")
    assert _balance(Rates(link=link, link_is_given=True), cluster).link_bytes_per_sec == link
    assert _balance(Rates(link=link), cluster).link_bytes_per_sec is None, "that of the GPUs' data sheet"


def test_commands_are_named_that_measure_what_is_unknown() -> None:
    unknown, known = _balance(Rates()), _balance(Rates(peak_flops_per_sec=1e12, link=Rate(1e9, "")))
    compute, link = how_to_measure(
        ON_CPU.devices, {"alexnet": unknown, "mlp": known, "vgg16": unknown}, in_cluster=False
    )
    assert "'run_bench.py sweep --device=cpu --num_gpus=1 --model=alexnet,vgg16' measures it" in compute
    assert "'run_bench.py allreduce --device=cpu --num_gpus=2' measures it" in link
    assert how_to_measure(ON_GPUS.devices, {"mlp": known}, in_cluster=False) == []
    assert how_to_measure(ON_GPUS.devices, {"mlp": dataclasses.replace(known, sent_bytes=None)}, in_cluster=False) == [
        "How much this setting sends is unknown: it has no formula."
    ]


def test_flags_and_files_are_where_rates_come_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(step_balance, "_stored_peak", lambda *_: 3e12)
    assert _known() == Rates(peak_flops_per_sec=3e12)
    assert _known(link_gbytes_per_second=2.0, peak_tflops=4.0, assumed_mfu=0.25) == Rates(
        peak_flops_per_sec=4e12,
        hardware_is_given=True,
        assumed_mfu=0.25,
        link=Rate(2e9, "--link_gbytes_per_second"),
        link_is_given=True,
    )
    assumed = _known(precision="tf32", gpu="A100", link="pcie4")
    assert (assumed.peak_flops_per_sec, assumed.hardware_is_given, assumed.link_is_given) == (156e12, True, True)
    assert assumed.link and assumed.link.value == 32e9 * known_gpus.share_reached("pcie4")
    measured = fake_run()
    (tmp_path / "mine.jsonl").write_text(measured.to_json() + "\n")
    (record,) = _known(results="mine.jsonl").records
    assert record.identity == measured.identity
    mixed = {"gpus": ["NVIDIA A100-SXM4-40GB 40 GiB", "Tesla T4 15 GiB"]}
    on_second = replace(fake_run(visible_gpus=[1]), environment=mixed)
    (tmp_path / "mixed.jsonl").write_text(on_second.to_json() + "\n")
    for gpu, count in (("T4", 1), ("A100", 0)):
        assert len(_known(results="mixed.jsonl", gpu=gpu).records) == count


def test_records_of_a_gpu_count_before_those_of_one_with_another_memory(tmp_path: Any) -> None:
    h200 = replace(fake_run(rate=500.0), environment={"gpus": ["NVIDIA H200 140 GiB"]})
    h100 = replace(fake_run(rate=300.0, hardware="b"), environment={"gpus": ["NVIDIA H100 80GB HBM3 79 GiB"]})
    no_rates = [replace(h100, status=Status.CRASH), replace(h100, config={**h100.config, "device": "cpu"})]
    no_rates.append(replace(h100, config={**h100.config, "model": "vgg16"}))
    of_another = f"{h200.identity.run_id}, H200"
    for records, words in (([h100, h200], h100.identity.run_id), ([h200, *no_rates], of_another)):
        (tmp_path / "all.jsonl").write_text("".join(f"{record.to_json()}\n" for record in records))
        rate = _balance(_known(results=str(tmp_path / "all.jsonl"), gpu="H100")).images_per_sec
        assert rate and rate.source == f"run {words}, batch 32"


@pytest.mark.parametrize(("gpus", "peak_tflops", "count"), [("0", 312, 0), ("1", 65, 1), ("0,1", None, 0)])
def test_rates_are_of_the_gpus_that_are_chosen_of_a_mixed_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, gpus: str, peak_tflops: float | None, count: int
) -> None:
    monkeypatch.chdir(tmp_path)
    stand_in(monkeypatch, MACHINES["A100 and T4"])
    monkeypatch.setattr(step_balance, "_stored_peak", lambda *_: 3e12)
    mixed = {"gpus": ["NVIDIA A100-PCIE-40GB 40 GiB", "Tesla T4 15 GiB"]}
    on_second = replace(fake_run(visible_gpus=[1]), environment=mixed)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/results.jsonl").write_text(on_second.to_json() + "\n")
    chosen = _config("--model=trivial", f"--gpus={gpus}", f"--num_gpus={len(gpus) // 2 + 1}")
    rates = _known(chosen.devices, "fp16")
    assert len(rates.records) == count
    assert rates.peak_flops_per_sec == (peak_tflops and peak_tflops * 1e12)
