"""Which settings are the fastest: made-up rates, for which it can be worked out by hand what can be told apart."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from results.record import Record
from results.report import ranking
from results.report.side_tables import comparisons
from results.summary import summarize
from tests.support.records import at_minutes, fake_run
from variable_mgr.catalog import MANAGERS
from variable_mgr.modifiers import LOCAL_SGD_STEPS

Rates = Sequence[float]


def _runs(rates: Rates, *, batch: int = 32, **config: object) -> list[Record]:
    return [fake_run(rate=rate, batch_per_device=batch, **config) for rate in rates]


def _cluster(rates: Rates, workers: int, servers: int, manager: str) -> list[Record]:
    return _runs(rates, num_workers=workers, num_ps=servers, cluster="two hosts", variable_update=manager)


def _manager(name: str, by_workers: dict[int, Rates]) -> list[Record]:
    return [run for n, rates in by_workers.items() for run in _cluster(rates, n, 0, name)]


def _crossings(*records: list[Record]) -> list[str]:
    found = summarize([one for each in records for one in each])
    return [sentence for _, sentence in ranking.crossings(found)]


QUIET = [1.0, 1.01, 0.99]
TURN = itertools.count()


def _at(rate: float) -> Rates:
    """Repeats that differ by a percent, each time in another order."""
    turn = next(TURN) % 3
    return [rate * one for one in (QUIET[turn:] + QUIET[:turn])]


def test_the_winner_has_its_flags_and_what_is_within_its_noise() -> None:
    records = [
        *_runs(_at(100.0), batch=16),
        *_runs([130.0, 128.0, 131.0], batch=32),
        *_runs([129.0, 131.0, 129.0], batch=64),
        *_runs(_at(50.0), batch=32, model="vgg16"),
    ]
    (winner,) = ranking.winners(summarize(records))
    assert (winner.model, winner.devices) == ("resnet50", 1), "vgg16 has no rival"
    assert winner.flags == "--batch_per_device=32" or winner.flags == "--batch_per_device=64"
    assert len(winner.within_noise) == 1 and winner.within_noise[0] != "--batch_per_device=16"
    assert winner.best.measured.low < 130 < winner.best.measured.high
    (side,) = comparisons(summarize(records))
    assert "Nothing was repeated" not in side.note
    assert side.text()[-1].split()[:3] == ["resnet50", "1", winner.flags]


def test_flags_are_shown_in_every_spelling_that_is_taken() -> None:
    runs = [*_runs(_at(100.0), batch=16), *_runs(_at(200.0), batch=32)]
    for run, batch in zip(runs, [16] * 3 + [32] * 3, strict=True):
        run.identity.command[:] = ["-m", "resnet50", "--seed", "-1", "-b", f"{batch}"]
    (winner,) = ranking.winners(summarize(runs))
    assert winner.flags == "-b=32"


def test_of_many_settings_within_the_noise_three_are_named() -> None:
    (side,) = comparisons(summarize([run for batch in range(1, 6) for run in _runs(_at(100.0), batch=batch)]))
    ((*_, ties),) = side.table.rows
    assert ties.count("--batch_per_device=") == 3 and ties.endswith("; and 1 more")


def _winning(*runs: list[Record]) -> list[tuple[str, str]]:
    found = ranking.winners(summarize([one for each in runs for one in each]))
    return [(winner.model, winner.flags) for winner in found]


@pytest.mark.parametrize(
    "apart",
    [{"data_name": "imagenet"}, {"data_name": "synthetic_host"}, {"forward_only": True}, {"model_digest": "ab"}],
    ids=lambda fields: next(iter(fields.values())),
)
def test_other_work_is_no_rival(apart: dict[str, object]) -> None:
    assert _winning(_runs(_at(100.0)), _runs(_at(50.0), **apart)) == []


def test_each_data_set_has_its_winner_among_the_ways_to_read_it() -> None:
    def read(rate: float, threads: int, files: str) -> list[Record]:
        return _runs(
            _at(rate), data_name="imagenet", data_set=files, input={"private_threads": threads}, threads=threads
        )

    found = _winning(_runs(_at(900.0)), read(100.0, 2, "4 files"), read(200.0, 4, "4 files"), read(300.0, 2, "8 files"))
    assert found == [("resnet50, imagenet, data_set 4 files", "--threads=4")]


STALE = {"asynchronous": False, "staged_vars": False, "relaxed_consistency": False, "local_sgd_steps": 0}


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        ({"precision": "bf16"}, "precision bf16 instead of fp32"),
        ({"optimizer": "adam"}, "optimizer adam instead of sgd"),
        ({"gradient_clip_norm": 1.0}, "gradient_clip_norm 1.0 instead of off"),
        ({"label_smoothing": 0.1}, "label_smoothing 0.1 instead of off"),
        ({"weight_decay_on": "all"}, "weight_decay_on all instead of off"),
        ({"modifiers": {**STALE, "asynchronous": True}}, "asynchronous updates"),
        ({"modifiers": {**STALE, "staged_vars": True}}, "weights of the step before"),
        ({"modifiers": {**STALE, "relaxed_consistency": True}}, "gradients of the step before"),
        ({"modifiers": {**STALE, "local_sgd_steps": 4}}, "weights averaged every 4 steps"),
        ({"variable_update": "independent"}, "gradients not exchanged"),
    ],
    ids=str,
)
def test_what_trains_differently_is_not_ranked_with_the_rest(other: dict[str, object], differs: str) -> None:
    """Not even as the fastest, and wherever it stands among the records."""
    usual = {"num_devices": 2, "optimizer": "sgd", "gradient_clip_norm": None, "modifiers": STALE}
    fast = _runs(_at(300.0), batch=32, **{**usual, **other})
    records = [*fast, *_runs(_at(100.0), batch=16, **usual), *_runs(_at(200.0), batch=32, **usual)]
    same, apart = ranking.ranking_groups(summarize(records))
    assert (len(same.rows), same.differs, len(apart.rows), apart.differs) == (2, "", 1, differs)
    winner, alone = ranking.winners(summarize(records))
    assert "--batch_per_device=32" in winner.flags and winner.best.rate == pytest.approx(200, rel=0.01)
    assert not winner.differs and alone.differs == differs
    first, second = comparisons(summarize(records))[:2]
    assert len(first.table.rows) == 1 and second.table.rows[0][-1] == differs


def test_one_device_exchanges_nothing_and_inference_trains_nothing() -> None:
    alone = [
        *_runs(_at(100.0)),
        *_runs(_at(101.0), variable_update="independent"),
        *_runs(_at(102.0), modifiers={**STALE, "local_sgd_steps": 4}),
        *_runs(_at(103.0), modifiers={**STALE, "asynchronous": True}),
    ]
    assert len(ranking.ranking_groups(summarize(alone))) == 1
    inference = [
        *_runs(_at(100.0), num_devices=2, forward_only=True, optimizer="sgd"),
        *_runs(_at(101.0), num_devices=2, forward_only=True, optimizer="adam", variable_update="independent"),
    ]
    assert len(ranking.ranking_groups(summarize(inference))) == 1


@pytest.mark.parametrize("manager", MANAGERS)
def test_the_rule_agrees_with_the_catalog_of_managers(manager: str) -> None:
    steps = LOCAL_SGD_STEPS if "local_sgd_steps" in MANAGERS[manager].modifiers else 0
    runs = _runs(_at(100.0), num_devices=2, variable_update=manager, modifiers={**STALE, "local_sgd_steps": steps})
    groups = ranking.ranking_groups(summarize([*_runs(_at(90.0), num_devices=2, modifiers=STALE), *runs]))
    assert (len(groups) == 1) == MANAGERS[manager].exchanges_gradients


@pytest.mark.parametrize(("rate", "ties"), [(110.0, 1), (200.0, 0)])
def test_without_repeats_only_large_differences_count(rate: float, ties: int) -> None:
    rows = summarize([*_runs([100.0], batch=16), *_runs([rate], batch=32)])
    (winner,) = ranking.winners(rows)
    assert winner.flags == "--batch_per_device=32" and len(winner.within_noise) == ties
    (side,) = comparisons(rows)
    assert "Nothing was repeated: equal runs are assumed to differ by 10%." in side.note


def test_repeats_are_compared_in_pairs() -> None:
    """A disturbance of a whole round widens both intervals, and cancels between them."""
    rounds = [1.0, 0.7, 1.4, 0.9]
    noise = [1.001, 0.999, 1.002, 0.998]
    fast = at_minutes(_runs([100 * r for r in rounds], batch=16), (0, 3, 4, 7))
    slow = at_minutes(_runs([95 * r * n for r, n in zip(rounds, noise, strict=True)], batch=32), (1, 2, 5, 6))
    first, second = summarize([*fast, *slow])
    assert first.measured.low < second.measured.high, "the intervals overlap"
    assert ranking.beats(first, second) and not ranking.beats(second, first)
    assert ranking.beats(*summarize([*fast[::-1], *slow[::-1]])), "in whatever order a file has them"
    later = at_minutes(slow, range(10, 14))
    first, second = summarize([*fast, *later])
    assert not ranking.beats(first, second), "one ran after the other: a drift would make all pairs differ alike"
    failed = [*slow[:3], fake_run(step_seconds=0.1, batch_per_device=32, status="crash")]
    first, second = summarize([*fast, *failed])
    assert not ranking.beats(first, second), "then no pairs are left"


def test_a_difference_between_settings_that_ran_one_after_the_other_has_a_note() -> None:
    fast, slow = _runs([200.0, 202.0], batch=16), _runs([100.0, 101.0], batch=32)
    assert not ranking.notes_on_turns(summarize([*at_minutes(fast, (0, 3)), *at_minutes(slow, (1, 2))]))
    (note,) = ranking.notes_on_turns(summarize([*at_minutes(fast, (2, 3)), *at_minutes(slow, (0, 1))]))
    assert "batch 16 and resnet50" in note and "`sweep --repeats` and `ab` alternate" in note
    alike = [*at_minutes(fast, (2, 3)), *at_minutes(_runs([200.0, 202.0], batch=32), (0, 1))]
    assert not ranking.notes_on_turns(summarize(alike)), "no difference is shown"


def test_pairs_are_of_runs_at_one_time_in_a_sorted_file_too() -> None:
    """Sorted by their rates, any two settings seem to differ by the same in every pair."""
    runs = [
        *at_minutes(_runs([100.0, 140.0, 70.0, 91.0], batch=16), range(4)),
        *at_minutes(_runs([71.0, 92.0, 101.0, 141.5], batch=32), range(4)),
    ]
    for order in (runs, sorted(runs, key=lambda run: run.derived.images_per_sec or 0.0)):
        first, second = summarize(order)
        assert not ranking.beats(first, second) and not ranking.beats(second, first)


def test_each_number_of_devices_has_a_winner_and_so_have_all() -> None:
    records = [
        *_runs(_at(100.0), batch=16, num_devices=1),
        *_runs(_at(50.0), batch=32, num_devices=1),
        *_runs(_at(20.0), batch=16, num_devices=2),
        *_runs(_at(40.0), batch=32, num_devices=2),
    ]
    found = ranking.winners(summarize(records))
    named = {one.devices: (one.flags, list(one.within_noise)) for one in found}
    assert named == {
        1: ("--num_devices=1 --batch_per_device=16", []),
        2: ("--num_devices=2 --batch_per_device=32", []),
        None: ("--num_devices=1 --batch_per_device=16", []),
    }


IN_GRAPH, BETWEEN = "distributed_all_reduce", "collective_all_reduce"


@pytest.mark.row("S1.6")
def test_the_crossing_point_is_named() -> None:
    one = _manager(IN_GRAPH, {1: _at(100.0), 2: _at(180.0), 3: _at(200.0)})
    other = _manager(BETWEEN, {1: _at(80.0), 2: _at(180.0), 3: _at(240.0)})
    (sentence,) = _crossings(one, other)
    assert sentence == (
        f"{IN_GRAPH} is faster than {BETWEEN} with 1; {BETWEEN} overtakes from 3 workers on; with 2 they cannot be "
        f"told apart (rate over that of {IN_GRAPH}: 0.800 with 1, 1.00 with 2, 1.20 with 3 workers)."
    )


def test_managers_that_do_not_cross_or_cannot_be_told_apart() -> None:
    slow = _manager(IN_GRAPH, {1: _at(100.0), 2: _at(180.0)})
    (sentence,) = _crossings(slow, _manager(BETWEEN, {1: _at(130.0), 2: _at(200.0)}))
    assert sentence.startswith(
        f"{BETWEEN} is faster than {IN_GRAPH} with 1, 2 workers: they do not cross within what was measured (rate"
    )
    (sentence,) = _crossings(slow, _manager(BETWEEN, {1: _at(100.1), 2: _at(179.9)}))
    assert sentence.startswith(
        f"{BETWEEN} and {IN_GRAPH} cannot be told apart (rate over that of {IN_GRAPH}: 1.00 with 1"
    )
    assert _crossings(slow, _manager(BETWEEN, {2: _at(100.0), 3: _at(90.0)})) == [], "one common number is no line"
    (sentence,) = _crossings(slow, _manager(BETWEEN, {1: _at(130.0), 2: _at(180.0)}))
    assert f"{IN_GRAPH} with 1 worker: they do not cross" in sentence


def test_devices_of_one_process_cross_too_and_of_many_managers_only_those_that_do() -> None:
    def line(name: str, *rates: float) -> list[Record]:
        each = [_runs(_at(r), num_devices=n, variable_update=name) for n, r in enumerate(rates, start=1)]
        return [run for runs in each for run in runs]

    first, second = line("parameter_server", 100.0, 150.0), line("replicated", 80.0, 190.0)
    others = [*line("collective_all_reduce", 60.0, 80.0), *line("local_sgd", 50.0, 70.0)]
    (sentence,) = _crossings(first, second, others)
    assert "replicated psgpu overtakes from 2 devices on" in sentence


@pytest.mark.row("S0.6")
@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ([100.0, 160.0, 161.0], "from 2 ps on, more of them bring less than the noise"),
        ([100.0, 99.0, 101.0], "from 1 ps on, more of them bring less than the noise"),
        ([100.0, 99.0, 50.0], "from 1 ps on, more of them bring less than the noise; with 3 it is slower"),
        ([100.0, 60.0, 50.0], "from 1 ps on, more of them bring less than the noise; with 2, 3 it is slower"),
        ([100.0, 150.0, 220.0], "3 ps are still faster than 2, so they do not saturate within what was measured"),
    ],
)
def test_where_parameter_servers_saturate(rates: list[float], words: str) -> None:
    runs = [run for n, rate in enumerate(rates, start=1) for run in _cluster(_at(rate), 2, n, "parameter_server")]
    ((setting, sentence),) = ranking.saturation(summarize(runs))
    assert setting == "resnet50, batch 32 per device"
    assert sentence.startswith(f"parameter_server, 2 workers: {words} (with 1, 2, 3 ps: ")
    assert sentence.endswith("and unknown, unknown, unknown MB/s per ps).")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"hardware_key": "another"}, "machine anot"),
        ({"software_key": "another"}, "TensorFlow 2.21.0 anot"),
        ({"num_classes": 10}, "num_classes 10"),
    ],
    ids=str,
)
def test_what_is_not_compared_has_another_name_in_every_table(changed: dict[str, object], words: str) -> None:
    def elsewhere(run: Record) -> Record:
        keys = {name: value for name, value in changed.items() if name.endswith("_key")}
        keys |= {} if keys else {"config_key": f"{run.identity.config_key} changed"}
        config = {} if "config_key" not in keys else changed
        return replace(run, identity=replace(run.identity, **keys), config={**run.config, **config})

    managers = _manager(IN_GRAPH, {1: _at(100.0), 2: _at(150.0)}), _manager(BETWEEN, {1: _at(80.0), 2: _at(180.0)})
    servers = [_cluster(_at(100.0), 2, number, "parameter_server") for number in (1, 2)]
    runs = [run for each in (*managers, *servers) for run in each]
    rows = summarize([*runs, *map(elsewhere, runs)])
    winners, crossings = [winner.model for winner in ranking.winners(rows)], dict(ranking.crossings(rows))
    for names in (winners, crossings, dict(ranking.saturation(rows))):
        first, second = dict.fromkeys(names)
        assert first != second and second.startswith("resnet50, ") and f", {words}" in second


def test_lines_of_managers_that_differ_in_the_batch_are_named_by_it() -> None:
    rates = itertools.product((16, 32), (1, 2), ("replicated", "parameter_server"))
    runs = [_runs(_at(100.0 * n), batch=b, num_devices=n, variable_update=name) for b, n, name in rates]
    found = summarize([run for each in runs for run in each])
    assert [name for name, _ in ranking.crossings(found)] == [f"resnet50, batch {n} per device" for n in (16, 32)]


def test_nothing_to_compare_is_no_table() -> None:
    assert comparisons(summarize(_runs(_at(100.0)))) == []
    assert comparisons([]) == []
