"""The sentence at the top of a report: made-up rates, for which it can be worked out by hand what they show."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from results.record import Record, Status
from results.report.contents import Report
from results.report.verdict import verdict
from results.summary import summarize
from tests.support.records import at_minutes, fake_run

NOISE = (0.99, 1.0, 1.01)
OTHERWISE = (1.01, 0.99, 1.0)
NO_RIVALS = "Nothing to rank: no two settings do the same work on equal hardware and software."


def _runs(rate: float, noise: Sequence[float] = NOISE, **config: object) -> list[Record]:
    return [fake_run(rate=rate * one, **config) for one in noise]


def _verdict(*runs: list[Record]) -> str:
    return verdict(summarize([one for each in runs for one in each]))


def test_a_difference_has_its_interval() -> None:
    slow, fast = _runs(100.0, variable_update="parameter_server"), _runs(112.0)
    assert _verdict(slow, fast) == "replicated psgpu is 12.0 % faster than parameter_server on gpu (8.1 to 16.0 %)."
    third = _runs(90.0, variable_update="collective_all_reduce")
    assert "is 12.0 % faster than parameter_server on gpu, the next of 3 settings (" in _verdict(third, slow, fast)


def test_what_only_pairs_show_has_the_interval_of_pairs() -> None:
    rounds = (1.0, 0.7, 1.4, 0.9)
    slow = [100 * r * n for r, n in zip(rounds, (1.001, 0.999, 1.002, 0.998), strict=True)]
    sides = _runs(1.0, slow, variable_update="parameter_server"), _runs(110.0, rounds)
    pairs = [at_minutes(side, range(number, 8, 2)) for number, side in enumerate(sides)]
    assert _verdict(*pairs) == "replicated psgpu is 10.00 % faster than parameter_server on gpu (9.68 to 10.32 %)."


def test_of_several_machines_each_is_named() -> None:
    here = [_runs(100.0, variable_update="parameter_server"), _runs(150.0)]
    there = [_runs(150.0, variable_update="parameter_server", hardware="b"), _runs(100.0, hardware="b")]
    said = _verdict(*here, *there)
    names = dict.fromkeys(
        row.distinct["machine"] for row in summarize([one for each in [*here, *there] for one in each])
    )
    first, second = (f"resnet50, machine {name}: " for name in names)
    assert said.startswith(f"{first}replicated psgpu is 50.0 % faster than parameter_server on gpu (")
    assert f" {second}parameter_server on gpu is 50.0 % faster than replicated psgpu (" in said


def test_a_single_process_beside_a_cluster_has_a_name() -> None:
    alone = _runs(100.0, num_devices=2, variable_update="collective_all_reduce")
    fast = _runs(200.0, num_workers=2, cluster="a host", variable_update="collective_all_reduce")
    assert _verdict(alone, fast) == "A cluster of 2 workers is 100.0 % faster than one process (93.1 to 107.2 %)."


def test_no_difference_is_the_result_where_none_is_shown() -> None:
    managers = [_runs(100.0, variable_update="parameter_server"), _runs(101.0, OTHERWISE)]
    assert _verdict(*managers) == "No difference shown between replicated psgpu and parameter_server on gpu."
    slow = _runs(50.0, variable_update="distributed_replicated")
    assert _verdict(*managers, slow).endswith(" and parameter_server on gpu, the fastest of 3 settings.")
    managers.append(_runs(100.2, variable_update="collective_all_reduce"))
    assert _verdict(*managers) == "No difference shown between the 3 settings."
    assert _verdict(*managers, slow) == "No difference shown between the fastest 3 of 4 settings."


def test_without_repeats_the_assumption_is_told() -> None:
    once = [_runs(rate, (1.0,), batch_per_device=batch) for batch, rate in ((16, 100.0), (32, 110.0))]
    assert _verdict(*once) == (
        "No difference shown between batch 32 and batch 16. "
        "(Nothing was repeated: equal runs are assumed to differ by 10%.)"
    )
    repeated = [_runs(rate, batch_per_device=batch, hardware="b") for batch, rate in ((16, 100.0), (32, 110.0))]
    assert "repeated" not in _verdict(*repeated)
    assert "(Nothing was repeated on some machines: equal runs are assumed" in _verdict(*once, *repeated)
    # Each side may be off by a factor of exp(0.2), so their ratio by exp(0.2 * sqrt(2)).
    once[1] = _runs(200.0, (1.0,), batch_per_device=32)
    assert _verdict(*once).startswith("batch 32 is 100 % faster than batch 16 (51 to 165 %).")


def test_what_trains_differently_is_not_ranked() -> None:
    fast = _runs(300.0, precision="bf16")
    assert _verdict(_runs(100.0), fast) == (
        "Nothing to rank: no two settings train the same. The rate is 3.00 (2.90 to 3.11) x with precision bf16 "
        "instead of fp32."
    )
    assert "bf16" not in _verdict(_runs(100.0), fast, _runs(50.0, variable_update="parameter_server"))


def test_more_devices_are_compared_with_one_and_models_apart() -> None:
    scaled = [_runs(rate, num_devices=n) for n, rate in ((1, 100.0), (4, 360.0))]
    assert _verdict(*scaled) == "4 devices are 3.60 (3.48 to 3.73) x as fast as one."
    other = [
        _runs(rate, num_devices=4, model="vgg16", variable_update=name)
        for name, rate in (("replicated", 40.0), ("parameter_server", 20.0))
    ]
    assert _verdict(*scaled, *other) == (
        "resnet50: 4 devices are 3.60 (3.48 to 3.73) x as fast as one. "
        "vgg16: replicated psgpu is 100.0 % faster than parameter_server on gpu (93.1 to 107.2 %)."
    )
    there = [_runs(rate, num_devices=n, hardware=name) for name in "bc" for n, rate in ((1, 100.0), (4, 360.0))]
    assert _verdict(*scaled, *other, *there).endswith("x as fast as one. And 1 more below."), "machines are no models"
    once = [_runs(rate, (1.0,), num_devices=n, hardware="d") for n, rate in ((1, 100.0), (4, 360.0))]
    assert " And 2 more below. (Nothing was repeated on some machines: " in _verdict(*scaled, *other, *there, *once)


def test_rivals_are_those_with_the_most_devices() -> None:
    rates = {("replicated", 1): 100.0, ("parameter_server", 1): 150.0, ("replicated", 2): 280.0}
    rates |= {("parameter_server", 2): 200.0, ("parameter_server", 4): 300.0}
    runs = [_runs(rate, num_devices=n, variable_update=name) for (name, n), rate in rates.items()]
    said = _verdict(*runs)
    assert said.startswith("2 devices: replicated psgpu is 40.0 % faster than parameter_server on gpu (")
    assert said.endswith(". With parameter_server on gpu, 4 devices are 2.000 (1.931 to 2.072) x as fast as one.")


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (_runs(100.0, (1.0,)), ", 1 GPU, batch 32: 100 (100 to 100) images/s; one run: nothing to compare."),
        (_runs(100.0), "images/s; 3 runs of one setting: nothing to compare."),
        ([fake_run(status=Status.CRASH)], "No run has a valid rate."),
        ([*_runs(100.0), *_runs(50.0, model="vgg16")], NO_RIVALS),
        ([*_runs(100.0), *_runs(50.0, hardware="b")], NO_RIVALS),
    ],
)
def test_there_may_be_nothing_to_compare(runs: list[Record], words: str) -> None:
    assert verdict(summarize(runs)).endswith(words)


def test_the_ends_of_runs_are_counted() -> None:
    one, warned = fake_run(), fake_run(warnings=("The machine was busy.",))
    crash = fake_run(status=Status.CRASH, batch_per_device=8)
    said = [Report(records).status for records in ([one], [warned], [one, warned], [one, one, crash, crash])]
    assert said == [
        "1 run: 1 ok.",
        "1 run: 1 ok, 1 with warnings.",
        "2 runs: 2 ok, 1 with warnings.",
        "4 runs of 2 settings: 2 ok, 2 crash.",
    ]
