"""Published records: what is left out of every field, and what stays comparable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from benchmarks.cli import publish_verb
from benchmarks.config import config, flag, run_flags
from benchmarks.machine.provenance import describe_software
from docs import generate
from results.exchange import publication
from results.exchange.public_record import public
from results.measurement import derive
from results.record import Record, flat
from results.summary import summarize
from results.text import one_line
from tests.support.records import fake_run

CANARIES = ("canaryhost", "canaryuser", "/home/canaryuser/data", "10.20.30.40", "canaryuser@canaryhost.corp.example")
WORDS, MACHINE = publish_verb._WORDS, "a box of ours"
SOFTWARE = {name: "9.1.0" for name in describe_software()}
GPU = {
    "index": 0,
    "uuid": "GPU-1234-5678",
    "slowed_shares": {"power limit": 0.5},
    "clock_mhz_by_half": [1400.0, 1410.0],
    "peak_memory_bytes": 10**9,
}


def run(**config: Any) -> Record:
    """A run as one on a real machine is recorded, with something in each field that may name a place."""
    record = fake_run(step_seconds=[0.1, 0.11, 0.12] * 4, **config)
    environment = {
        "cpu_model": "Intel(R) Xeon(R) Platinum 8480+ (6/143/8)",
        "cpu_cores_usable": 16,
        "memory_gib": 128,
        "load_1min_before": 8.0,
        "gpus": ["NVIDIA H100 80GB HBM3 80 GiB"],
        **SOFTWARE,
        "tensorflow_git_version": "v2.21.0-rc1-5-ga481b10260d",
        "operating_system": "Linux-6.1.0-canaryhost-x86_64-with-glibc2.36",
        "variables": {"OMP_NUM_THREADS": "4", "TF_CONFIG": '{"cluster": {"worker": ["canaryhost:1"]}}'},
        "another": "all of /home/canaryuser",
    }
    telemetry = [
        {
            "window_seconds": 1.0,
            "cpu_cores_used": 2.0,
            "cpu_cores_used_by_others": 3.0,
            "gpus": [GPU],
            "energy_of": "GPU only",
            "mean_watts": {"GPU-1234-5678": 300.0},
        }
    ]
    measurement = replace(record.measurement, telemetry=telemetry)
    command = ["run", "--model=resnet50", "--batch_size", "32", "--output_dir", "/home/canaryuser", "--nofused_bn"]
    return replace(
        record,
        identity=replace(record.identity, command=[*command, "--data_dir=/data"], session_id="5e551011"),
        config={
            **record.config,
            "data_dir": "/data",
            "data_set": "files of canaryuser",
            "notices": ["At 10.20.30.40."],
        },
        config_not_in_key=["output_dir", "data_dir", "notices"],
        environment=environment,
        measurement=measurement,
        derived=derive(measurement, record.config["num_devices"] * (record.config.get("num_workers") or 1)),
        warnings=["The machine was busy before the run (load 6.4 per core).", "canaryuser said so."],
    )


def published(*records: Record) -> list[Record]:
    kept, refused, _ = publication.selected(records, WORDS, MACHINE)
    assert not refused
    return kept


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of each string in nested lists and mappings."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths(item, (*path, key))


@pytest.mark.parametrize("canary", CANARIES)
@pytest.mark.parametrize("alone", [True, False])
def test_what_names_a_person_or_place_in_any_text_of_a_record_is_in_no_file(canary: str, alone: bool) -> None:
    whole_record = json.loads(run(cluster={"workers": ["a:1"]}).to_json())
    tried = 0
    for path in paths(whole_record):
        fields = json.loads(json.dumps(whole_record))
        part = fields
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = canary if alone else f"{part[path[-1]]} {canary}"
        try:
            record = Record.from_json(json.dumps(fields))
        except ValueError:
            continue
        kept, *_ = publication.selected([record], WORDS, MACHINE)
        for text in publication.files_of(kept).values() if kept else ():
            assert "canary" not in text and "10.20.30" not in text, path
        tried += bool(kept)
    assert tried > 40


def test_whether_an_unknown_field_is_public_follows_from_its_type() -> None:
    record = run()
    new = {"text": "10.20.30.40", "word": "resnet50", "number": 2, "yes": True, "list": ["canaryhost", 1], "/dev/x": 1}
    parts = {name: {**getattr(record, name), "new": new} for name in ("config", "environment", "model", "placement")}
    (kept,) = published(replace(record, **parts))
    for name in parts:
        wanted = {"text": "***", "word": "resnet50", "number": 2, "yes": True, "list": ["***", 1]}
        assert getattr(kept, name)["new"] == wanted


# The fields of a configuration whose text is private. Text of another field is a choice of its flag.
PRIVATE = {"config.data_dir", "config.output_dir", "config.train_dir", "config.session_id"}


def test_only_text_that_is_no_choice_of_a_flag_is_left_out_of_a_configuration() -> None:
    words = "--model=resnet50 --data_dir=/x/imagenet --train_dir=/x --session_id=mine --datasets_use_caching"
    chosen = config.resolve(flag.parse(words.split(), run_flags.RUN_FLAGS).values, lambda: 1, {}).to_dict()
    chosen |= {"notices": (), "num_devices": 1, "batch_per_device": 32}
    record = replace(run(), config={**chosen, "device": "gpu"})
    before, after = (flat({"config": one.config}) for one in (record, public(record, WORDS, MACHINE)))
    assert {name for name in before if json.dumps(before[name]) != json.dumps(after[name])} == PRIVATE


def test_a_published_record_groups_compares_and_is_valid() -> None:
    records = [run(), run(), run(variable_update="independent"), run(precision="fp16")]
    kept = published(*records)
    before, after = summarize(records), summarize(kept)
    for one, other in zip(before, after, strict=True):
        assert (one.images_per_sec, one.devices) == (other.images_per_sec, other.devices)
    schema = json.loads(generate.record_schema())
    for record, other in zip(records, kept, strict=True):
        jsonschema.validate(json.loads(other.to_json()), schema)
        keys = ("run_id", "config_key", "hardware_key", "software_key", "suite_commit", "time_utc")
        assert [getattr(record.identity, key) for key in keys] == [getattr(other.identity, key) for key in keys]
    first = kept[0]
    assert first.environment["gpus"] == ["NVIDIA H100 80GB HBM3 80 GiB"], "the suite has its data sheet"
    assert (first.environment["cpu_model"], first.environment["machine"]) == ("***", MACHINE)
    assert first.environment["operating_system"] == "Linux-6.1.0-x86_64-with-glibc2.36"
    assert first.environment["variables"] == {"OMP_NUM_THREADS": "4", "TF_CONFIG": "***"}
    assert first.measurement.telemetry[0]["mean_watts"] == {"device 0": 300.0}
    assert first.measurement.telemetry[0]["gpus"][0]["uuid"] == "device 0"
    command = "run --model=resnet50 --batch_size 32 --output_dir *** --nofused_bn --data_dir=***"
    assert first.identity.command == command.split()


def test_a_published_record_is_published_unchanged() -> None:
    kept = published(run(), run(model="/home/x/net.py:build", model_digest="0a1b2c3d4e"))
    assert kept[1].config["model"] == "own model" and kept[1].config["model_digest"] == "0a1b2c3d4e"
    assert published(*kept) == kept


def test_published_warnings_follow_from_the_numbers() -> None:
    kept = published(run(), run())
    assert [sentence[:24] for sentence in kept[0].warnings] == ["Other processes used 3.0", "The steps are unsteady ("]
    readme = publication.files_of(kept)["README.md"]
    assert "- 2 of 2 runs warned: Other processes used 3.0 of 16 cores during the measurement" in readme


def test_a_folder_that_cannot_be_written_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publication, "replace", full)
    with pytest.raises(OSError, match="No space"):
        publication.write(published(run()), tmp_path / "public")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("title", ["a \x1b box", "a\u202e\u2066  box ", "\x00a", "alice's box at /x, n17.ethz.ch"])
def test_a_title_is_published_as_it_is_given_without_controls(title: str, tmp_path: Path) -> None:
    kept, *_ = publication.selected([run()], WORDS, title)
    assert kept[0].environment["machine"] == one_line(title)
    assert publication.check(publication.write(kept, tmp_path / "public"), WORDS).refusals == []


def test_without_a_title_of_the_machine_nothing_is_published() -> None:
    kept, refused, _ = publication.selected([run()], WORDS)
    (why,) = refused
    assert not kept and "give --machine=TEXT, such as 'Intel(R) Xeon(R) Platinum 8480+" in why
    assert publication.selected(published(run()), WORDS)[0][0].environment["machine"] == MACHINE
