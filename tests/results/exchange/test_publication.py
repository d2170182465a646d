"""Published records: what is left out of every field, and what stays comparable."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from benchmarks.cli import publish_verb
from benchmarks.config import config, flag, run_flags
from benchmarks.system.provenance import RECORDED_VARIABLES, describe_software
from benchmarks.trackers import catalog
from docs import generate
from results.exchange import public_fields, publication, publication_check
from results.exchange.public_record import Stripping, Vocabulary
from results.measurement import Derived, Measurement
from results.quality import Conditions, quality_warnings
from results.record import Record, flat
from results.summary import summarize
from tests.support.records import fake_run

CANARIES = ("canaryhost", "canaryuser", "/home/canaryuser/data", "10.20.30.40", "canaryuser@canaryhost.corp.example")
VOCABULARY = dataclasses.replace(publish_verb._vocabulary(), private=frozenset({"canaryhost", "canaryuser"}))
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
        "gpus": ["NVIDIA H100 80GB HBM3 80 GiB"],
        **SOFTWARE,
        "tensorflow_git_version": "v2.21.0-rc1-5-ga481b10260d",
        "operating_system": "Linux-6.1.0-canaryhost-x86_64-with-glibc2.36",
        "variables": {"OMP_NUM_THREADS": "4", "TF_CONFIG": '{"cluster": {"worker": ["canaryhost:1"]}}'},
        "another": "all of /home/canaryuser",
    }
    telemetry = [
        {"window_seconds": 1.0, "gpus": [GPU], "energy_of": "GPU only", "mean_watts": {"GPU-1234-5678": 300.0}}
    ]
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
        config_aside=["output_dir", "data_dir", "notices"],
        environment=environment,
        measurement=replace(record.measurement, telemetry=telemetry),
        warnings=["The machine was busy before the run (load 6.4 per core).", "canaryuser said so."],
    )


def published(*records: Record) -> list[Record]:
    kept, refused = publication.selected(records, Stripping(VOCABULARY))
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
        kept, _ = publication.selected([record], Stripping(VOCABULARY))
        for text in publication.files_of(kept).values() if kept else ():
            assert "canary" not in text and "10.20.30" not in text, path
        tried += bool(kept)
    assert tried > 40


def test_fields_that_nobody_knows_are_left_out() -> None:
    record = run()
    parts = {
        name: {**getattr(record, name), "new_field": "10.20.30.40", "new": {"deep": 1}, "canaryhost": 2}
        for name in ("config", "environment", "model", "placement")
    }
    measurement = replace(record.measurement, input_stages={"canaryhost": 1.0, "read": 2.0})
    (kept,) = published(replace(record, **parts, measurement=measurement))
    text = kept.to_json()
    assert "new" not in {name for part in parts for name in getattr(kept, part)} and "canaryhost" not in text
    assert "new_field" not in text and kept.measurement.input_stages == {"read": 2.0}


# Every field of the configuration is public or here. A new one belongs into `public_fields`, or here with its reason.
NOT_PUBLIC = {
    "data_dir": "a path",
    "output_dir": "a path",
    "output_format": "says nothing",
    "session_id": "says nothing",
    "notices": "free text that may quote paths",
    "trackers": "names servers, projects and paths",
}


def test_every_field_of_the_configuration_is_public_or_left_out_for_a_reason() -> None:
    chosen = config.resolve(flag.parse(["--model=trivial"], run_flags.RUN_FLAGS).values, lambda: 1, {})
    parts = {name.removeprefix("config.").partition(".")[0] for name in public_fields.PLAIN if name[:7] == "config."}
    assert {*chosen.to_dict()} - {*parts, *NOT_PUBLIC} == {"between"}, "of paths, and of what happens between steps"
    known = {name: value for name, value in chosen.to_dict().items() if name not in {"between", *NOT_PUBLIC}}
    names = {f"config.{name}" for name in flat(known)}
    parents = {name.rpartition(".")[0] for name in public_fields.PLAIN}
    assert names <= {*public_fields.PLAIN, *public_fields.FORMS, *parents}


def test_public_variables_are_recorded_ones() -> None:
    prefix = "environment.variables."
    assert {name.removeprefix(prefix) for name in public_fields.PLAIN if name.startswith(prefix)} <= RECORDED_VARIABLES


def test_a_published_record_groups_compares_and_is_valid() -> None:
    records = [run(), run(), run(variable_update="independent"), run(precision="fp16")]
    kept = published(*records)
    before, after = summarize(records), summarize(kept)
    for one, other in zip(before, after, strict=True):
        assert (one.images_per_sec, one.low, one.high, one.devices) == (
            other.images_per_sec,
            other.low,
            other.high,
            other.devices,
        )
    schema = json.loads(generate.record_schema())
    for record, other in zip(records, kept, strict=True):
        jsonschema.validate(json.loads(other.to_json()), schema)
        keys = ("run_id", "config_key", "hardware_key", "software_key", "suite_commit", "time_utc")
        assert [getattr(record.identity, key) for key in keys] == [getattr(other.identity, key) for key in keys]
    first = kept[0]
    assert first.environment["gpus"] == ["NVIDIA H100 80GB HBM3 80 GiB"]
    assert first.environment["operating_system"] == "Linux-6.1.0-x86_64-with-glibc2.36"
    assert first.environment["variables"] == {"OMP_NUM_THREADS": "4"}
    assert first.measurement.telemetry[0]["mean_watts"] == {"device 0": 300.0}
    assert first.measurement.telemetry[0]["gpus"][0]["uuid"] == "device 0"
    assert first.identity.command == ["run", "--model=resnet50", "--batch_size", "32", "--nofused_bn", "--data_dir=***"]
    assert first.warnings == ["The machine was busy before the run.", "A warning was left out."]


def test_a_published_record_is_published_unchanged() -> None:
    kept = published(run(), run(model="/home/x/net.py:build", model_digest="0a1b2c3d4e"))
    assert kept[1].config["model"] == "own model" and kept[1].config["model_digest"] == "0a1b2c3d4e"
    assert published(*kept) == kept


def test_every_warning_about_quality_has_a_public_form() -> None:
    measurement = Measurement(
        images_per_step=8, step_seconds=[0.1] * 6 + [0.5] * 6, losses=[1.0, 9.0], skipped_records=1
    )
    derived = Derived(images_per_sec=20.0, images_per_sec_jitter=9.0, slowest_tower=1, slowest_tower_ratio=2.0)
    conditions = Conditions(load_per_core=3.0, cpu_devices=9, cores=2)
    found = quality_warnings(measurement, derived, conditions)
    assert len(found) >= 6 and public_fields.OTHER_WARNING not in map(public_fields.warning, found)
    assert {
        words: public_fields.warning(text) for words, text in public_fields.WARNINGS.items()
    } == public_fields.WARNINGS


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("AMD EPYC (25/1/1)", True),
        ("AMD EPYC 7B13 (25/1/1)", True),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz (6/79/0)", True),
        ("Intel(R) Xeon(R) CPU E5-2699 v4 @ 2.20GHz (6/79/1)", True),
        ("12th Gen Intel(R) Core(TM) i7-12700H", True),
        ("AMD Ryzen Threadripper PRO 5995WX 64-Cores", True),
        ("Intel Xeon Processor (Skylake, IBRS)", True),
        ("Intel Core Processor (Haswell, no TSX, IBRS)", True),
        ("AMD EPYC-Rome Processor (with IBPB)", True),
        ("QEMU Virtual CPU version 2.5+", True),
        ("AMD Ryzen 7 7840HS w/ Radeon 780M Graphics", True),
        ("AMD Ryzen AI 9 HX 370 w/ Radeon 890M", True),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", True),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", True),
        ("NVIDIA TITAN Xp", True),
        ("NVIDIA RTX 4000 SFF Ada Generation", True),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", True),
        ("Jetson AGX Orin", True),
        ("AMD Ryzen 9 of node 7", False),  # unknown words are not kept
        ("Intel 10.20gb.example", False),
        ("NVIDIA A100-SXM4-40GB 40 GiB", True),
        ("NVIDIA H100 PCIe 80 GiB", True),
        ("NVIDIA GeForce RTX 4090 24 GiB", True),
        ("Tesla V100-SXM2-16GB 16 GiB", True),
        ("node17", False),
        ("Intel of alice", False),
        ("GPU 10.20.30.40", False),
    ],
)
def test_a_name_of_hardware_is_told_from_other_names(name: str, is_one: bool) -> None:
    assert public_fields.is_hardware(name) == is_one


@pytest.mark.parametrize("value", ["2024", "resnet50", "10.20.30.40:1", "/data"])
def test_a_published_command_names_no_path_host_or_tracker(value: str) -> None:
    places = ("data_dir", "train_dir", "hosts", "ps_hosts", "cluster_spec", "partitioned_graph_file_prefix")
    stripped = Stripping(VOCABULARY).command
    for name in places:
        assert stripped([f"--{name}={value}", "--batch_size=8"]) == [f"--{name}=***", "--batch_size=8"]
        assert stripped([f"--{name}", value, "--batch_size", "8"]) == [f"--{name}", "***", "--batch_size", "8"]
    for name in catalog.FLAGS:
        assert stripped([f"--{name}={value}", f"--{name}", value, "--batch_size=8"]) == ["--batch_size=8"]


def test_a_folder_that_cannot_be_written_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publication, "replace", full)
    with pytest.raises(OSError, match="No space"):
        publication.write(published(run()), tmp_path / "public")
    assert list(tmp_path.iterdir()) == []


def test_equal_records_give_equal_texts_in_every_process() -> None:
    warnings = [*public_fields.WARNINGS.values()]
    readme = publication.files_of([replace(run(), warnings=warnings)])["README.md"]
    assert sorted(warnings, key=readme.index) == warnings


@pytest.mark.parametrize(
    "title",
    [
        *("at /data/x", "10.1.2.3", "a@b", "see ~/x", "box.example.com", "Alice's box", "fe80:0:0:0:1::2", "fe80::1"),
        *("n17.hpc.ethz.ch", "gpu.acme.ai", "n1.lumi.eu", "$HOME/box", "C:\\x", "..\\x", "//server/share", "https://h"),
        *("(n17.hpc.ethz.ch)", "n17．hpc．ch", "me＠host", "%2Fhome%2Fx", "host:22", "a=b", "alice-box", "x/y/z"),
        *("[::1]", "1.2.3.4:80", "me[at]host.ch", "~alice", "${HOST}", "file:x"),
    ],
)
def test_a_title_with_another_form_than_plain_words_is_refused(title: str) -> None:
    known = Vocabulary(words=frozenset({"batch"}), flags=frozenset(), private=frozenset({"batch", "alice"}))
    assert known.private_in(title)


@pytest.mark.parametrize(
    "title",
    [
        "two cores of a cloud machine",
        "12.5 images/s, batch 32",
        "Xeon (6/79/0) @ 2.20 GHz",
        "8 x H100 SXM5 80GB, NVSwitch; driver 550.54.15",
        "Dell R750xa: 2.4GHz, 95 % of the AT&T rack",
        "C++ build at 12:30 & no turbo!",
    ],
)
def test_a_title_of_plain_words_is_not(title: str) -> None:
    known = Vocabulary(words=frozenset({"batch"}), flags=frozenset(), private=frozenset({"batch", "alice"}))
    assert known.private_in(title) is None


@pytest.mark.parametrize("title", ["a \x1b box", "a\u202e\u2066  box ", "\x00a"])
def test_a_title_with_controls_passes_its_own_check(title: str, tmp_path: Path) -> None:
    kept, _ = publication.selected([run()], Stripping(VOCABULARY, title))
    assert publication_check.check(publication.write(kept, tmp_path / "public"), VOCABULARY).refusals == []
