"""MLPerf's log lines, read by MLPerf's own parser; times worked out by hand."""

from __future__ import annotations

from typing import Any

from mlperf_logging.compliance_checker import mlp_parser
from mlperf_logging.mllog import constants
from msgspec.structs import replace

from results.exchange import formats, step_times
from results.measurement import Measurement, derive
from results.record import Record, Status
from tests.support.records import fake_reduction, make_record

CONFIG = {"model": "resnet20", "seed": 7, "optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 1e-4}
EVALUATION = {"step": 3, "epochs": 0.5, "images": 40, "top_1_accuracy": 0.25, "loss": 2.0, "seconds": 4.0}


def trained(**changes: Any) -> Record:
    """Three steps, the last two measured, an evaluation after them and one more step; it ended at 1000 s after 1970."""
    taken = Measurement(
        images_per_step=8,
        startup_seconds=10.0,
        first_step_seconds=3.0,
        step_seconds=[1.0, 1.0, 2.0],
        evaluations=[EVALUATION],
    )
    made = make_record(config=CONFIG, measurement=taken, derived=derive(taken, 1), **changes)
    return replace(made, identity=replace(made.identity, time_utc="1970-01-01T00:16:40+00:00"))


def parsed(record: Record) -> list[tuple[str, float, Any, Any]]:
    """Returns key, time, value and metadata of each line, as MLPerf's parser reads them."""
    found, failed = mlp_parser.ruleset_410.parse_generator(list(formats.mllog_lines(record)))
    assert failed == []
    return [(line.key, line.timestamp, line.value["value"], line.value["metadata"]) for line in found]


def test_a_run_is_read_by_mlperfs_parser_with_times_that_follow_from_its_end() -> None:
    lines = parsed(trained())
    where = {"epoch_num": 0.5, "step_num": 3}
    assert [line for line in lines if line[0] in ("init_start", "run_start", "run_stop")] == [
        ("init_start", 979_000, None, {}),
        ("run_start", 989_000, None, {}),
        ("run_stop", 1_000_000, None, {"status": "success"}),
    ]
    assert ("eval_start", 994_000, None, where) in lines
    assert (constants.EVAL_ACCURACY, 998_000, 0.25, where) in lines
    assert [line[1] for line in lines] == sorted(line[1] for line in lines)


def test_a_run_has_the_facts_that_its_record_knows() -> None:
    values = {key: value for key, _, value, _ in parsed(trained())}
    assert values[constants.SUBMISSION_BENCHMARK] == "resnet20"
    assert (values[constants.GLOBAL_BATCH_SIZE], values[constants.SEED]) == (8, 7)
    assert (values[constants.OPT_NAME], values[constants.OPT_BASE_LR]) == ("sgd", 0.1)
    assert values["eval_samples"] == 40
    assert values["tracked_stats"]["throughput"] == 24 / 4.0


def test_what_the_record_does_not_know_is_not_written() -> None:
    lines = parsed(fake_reduction("psgpu", 1024, 0.1))
    assert not {"global_batch_size", "seed", "opt_name", "submission_benchmark", "submission_org"} & {
        k for k, *_ in lines
    }


def test_a_run_that_failed_is_aborted() -> None:
    assert parsed(trained(status=Status.CRASH, reason="It crashed."))[-1][3] == {"status": "aborted"}


def test_an_odd_record_has_lines_too() -> None:
    odd = replace(trained(), config={"model": {"a": [1]}, "seed": "x\n:::MLLOG {"})
    odd = replace(odd, identity=replace(odd.identity, time_utc="never"))
    assert all(line.count("\n") == 0 for line in formats.mllog_lines(odd)) and parsed(odd)


def test_steps_are_numbered_as_in_the_training() -> None:
    record = trained()
    taken = replace(record.measurement, steps_before=10, unmeasured_steps=[12], unmeasured_losses=[1.0], evaluations=[])
    times = step_times.of_record(replace(record, measurement=taken))
    assert times.numbers == [11, 13, 14, 15]
    assert times.step_ends == [996.0, 997.0, 998.0, 1000.0] and times.first_step == 993.0 and times.began == 983.0
