from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.data import data_verb, input_verb
from benchmarks.data.options import InputOptions
from results.input_bottleneck import advice, costs, synthetic_ratio
from results.record import Kind, Status
from results.store import Store
from tests.support.records import fake_run, golden_records


def test_a_stage_costs_what_it_adds() -> None:
    read, decode, batch = costs({"read": 1000.0, "decode": 250.0, "batch": 200.0})
    assert [1000 * cost.seconds_per_image for cost in (read, decode, batch)] == pytest.approx([1.0, 3.0, 1.0])
    assert [cost.share for cost in (read, decode, batch)] == pytest.approx([0.2, 0.6, 0.2])


def test_a_stage_that_seems_to_save_time_costs_nothing() -> None:
    decode, augment, batch = costs({"decode": 100.0, "augment": 110.0, "batch": 80.0})
    assert augment.seconds_per_image == 0.0
    assert decode.share + batch.share == pytest.approx(1.0)
    assert batch.seconds_per_image == pytest.approx(1 / 80 - 1 / 100)


def test_without_measurements_there_is_no_advice() -> None:
    assert advice({}) == ""


def stages_of_a_run() -> Mapping[str, float]:
    (measured,) = (record for record in golden_records() if record.kind is Kind.INPUT)
    return measured.measurement.input_stages


@pytest.mark.parametrize("stage", stages_of_a_run())
def test_advice_on_every_stage_that_is_measured_names_flags_that_exist(stage: str) -> None:
    sentence = advice({"read": 900.0, stage: 100.0})
    share = 100 if stage == "read" else 89
    assert sentence.startswith(f"{share}% of the pipeline's time goes into ") and sentence.endswith(".")
    assert f" {stage}." not in sentence, "more is known of it than its name"
    named = set(re.findall(r"--(\w+)", sentence))
    groups = (input_verb.INPUT_FLAGS, *(part.flags for part in data_verb.VERB.parts))
    assert named <= {flag.name for table in groups for group in table.values() for flag in group}
    others = {advice({other: 100.0}).split("into ")[1] for other in stages_of_a_run() if other != stage}
    assert sentence.split("into ")[1] not in others


@pytest.mark.parametrize(
    ("stage", "so_already", "flag"),
    [
        ("read", {"cache": "records"}, "--datasets_use_caching"),
        ("decode", {"decode_scaling": True}, "--decode_scaling"),
        ("augment", {"distortions": False}, "--distortions"),
        ("copy", {"pipelined_input": True}, "--pipelined_input"),
    ],
)
def test_what_is_already_so_is_not_advised(stage: str, so_already: dict, flag: str) -> None:
    (name,) = so_already
    assert flag not in advice({stage: 100.0}, so_already)
    assert flag in advice({stage: 100.0}, {name: "something else"}) and flag in advice({stage: 100.0})


def test_advice_is_a_sentence_when_little_is_left_to_try() -> None:
    usual = vars(InputOptions())
    share = "100% of the pipeline's time goes into "
    assert (
        advice({"augment": 100.0}, usual) == f"{share}resizing and distorting: use a host with more cores per device."
    )
    assert set(usual) >= {"cache", "decode_scaling", "fuse_decode_and_crop", "distortions", "resize_method"}


ROUNDS = {"read": [1000.0, 1100.0, 900.0], "parse": [990.0, 1120.0, 880.0], "decode": [250.0, 270.0, 230.0]}


def test_rounds_tell_a_cost_from_noise() -> None:
    read, parse, decode = costs({"read": 1000.0, "parse": 996.0, "decode": 250.0}, ROUNDS)
    assert (read.is_clear, parse.is_clear, decode.is_clear) == (True, False, True)
    for rate, value in ((parse.images_per_sec, 996.0), (decode.images_per_sec, 250.0)):
        assert rate.value == value and rate.low < value < rate.high
    assert advice({"read": 1000.0, "parse": 996.0, "decode": 250.0}, {}, ROUNDS).startswith(
        "75% of the pipeline's time"
    )


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Results of a synthetic run of 0.1 s steps, of others that must not count, and of a line that is no record."""
    store = Store(tmp_path)
    others = [
        fake_run(step_seconds=0.1),
        fake_run(step_seconds=0.01, model="vgg16"),
        fake_run(step_seconds=0.01, hardware="another"),
        fake_run(status=Status.CRASH, step_seconds=0.01),
    ]
    store.append(*others)
    with store.jsonl_path.open("a") as file:
        file.write('{"data_name":"synthetic"\n')
    return store.jsonl_path


def test_the_synthetic_run_of_the_same_configuration_is_the_measure(results: Path) -> None:
    real = fake_run(
        step_seconds=0.125,
        data_name="imagenet",
        pipelined_input=True,
        input={"crop": "distorted"},
        gpu_thread_mode="gpu_private",
        force_gpu_compatible=True,
    )
    assert synthetic_ratio(real, results) == pytest.approx(0.8)


@pytest.mark.parametrize(
    "changes", [{"batch_per_device": 16}, {"data_name": "synthetic"}, {"status": Status.CRASH}], ids=str
)
def test_without_a_sibling_there_is_no_ratio(results: Path, changes: dict) -> None:
    real = fake_run(**{"step_seconds": 0.125, "data_name": "imagenet"} | changes)
    assert synthetic_ratio(real, results) is None
    assert synthetic_ratio(fake_run(data_name="imagenet"), results / "none") is None
