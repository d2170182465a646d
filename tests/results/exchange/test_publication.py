"""Published records: what is left out of every field, and what stays comparable."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.cli import publish_verb
from benchmarks.machine.provenance import describe_software
from results import store
from results.exchange import public_record, publication
from results.exchange.public_record import public
from results.measurement import derive
from results.quality import UNLIKE_WORKERS, restart_warning
from results.record import Kind, Record, flat
from results.summary import summarize
from results.text import one_line
from tests.support.records import fake_run, paths, with_field
from tests.support.settings import resolve

CANARIES = ("canaryhost", "canaryuser", "/home/canaryuser/data", "10.20.30.40", "canaryuser@canaryhost.corp.example")
WORDS, MACHINE = publish_verb._WORDS, "a box of ours"
SOFTWARE = {name: "9.1.0" for name in describe_software()}
GPU = {
    "index": 0,
    "uuid": "GPU-1234-5678",
    "slowed_shares": {"power limit": 0.5},
    "clock_mhz_by_half": [1400.0, 1410.0],
    "energy_joules": 300.0,
    "peak_memory_bytes": 10**9,
}


def run(**config: Any) -> Record:
    """A run as one on a real machine is recorded, with something in each field that may name a place."""
    record = fake_run(step_seconds=[0.1, 0.11, 0.12] * 4, **config)
    environment = {
        "cpu_model": "Intel(R) Xeon(R) Platinum 8480+ (6/143/8)",
        "cpu_cores_usable": 16,
        "memory_gib": 128,
        "cores_used_by_others_before": 6.4,
        "gpus": ["NVIDIA H100 80GB HBM3 80 GiB"],
        **SOFTWARE,
        "tensorflow_git_version": "v2.21.0-rc1-5-ga481b10260d",
        "operating_system": "Linux-6.1.0-canaryhost-x86_64-with-glibc2.36",
        "variables": {
            "OMP_NUM_THREADS": "4",
            "TF_CONFIG": '{"cluster": {"worker": ["canaryhost:1"]}}',
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            "ONEDNN_DEFAULT_FPMATH_MODE": "BF16",
        },
        "another": "all of /home/canaryuser",
    }
    telemetry = [
        {
            "window_seconds": 1.0,
            "cpu_cores_used": 2.0,
            "cpu_cores_used_by_others": 3.0,
            "gpus": [GPU],
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
        warnings=["Other processes used 6.4 of 8 cores directly before the run.", "canaryuser said so."],
    )


def published(*records: Record) -> list[Record]:
    kept, refused, _ = publication.selected(records, WORDS, MACHINE)
    assert not refused
    return kept


def folder_of(records: Sequence[Record], directory: Path) -> Path:
    """Writes the files of a folder, whatever the records are."""
    folder = directory / "public"
    folder.mkdir()
    for name, text in publication.files_of(records).items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("canary", CANARIES)
@pytest.mark.parametrize("alone", [True, False])
def test_what_names_a_person_or_place_in_any_text_of_a_record_is_in_no_file(canary: str, alone: bool) -> None:
    whole_record = run(cluster={"workers": ["a:1"]})
    texts = {path: text for path, text in paths(json.loads(whole_record.to_json())) if isinstance(text, str)}
    tried = 0
    for path, original in texts.items():
        try:
            record = Record.from_json(with_field(whole_record, path, canary if alone else f"{original} {canary}"))
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
    chosen = resolve(*words.split(), gpus=1).to_dict()
    chosen |= {"reasons": {}, "notices": (), "num_devices": 1, "batch_per_device": 32}
    record = replace(run(), config={**chosen, "device": "gpu"})
    before, after = (flat({"config": one.config}) for one in (record, public(record, WORDS, MACHINE)))
    assert {name for name in before if json.dumps(before[name]) != json.dumps(after[name])} == PRIVATE


def test_a_published_record_groups_and_compares() -> None:
    records = [run(), run(), run(variable_update="independent"), run(precision="fp16")]
    kept = published(*records)
    before, after = summarize(records), summarize(kept)
    for one, other in zip(before, after, strict=True):
        assert (one.images_per_sec, one.devices) == (other.images_per_sec, other.devices)
    keys = ("run_id", "config_key", "hardware_key", "software_key", "suite_commit", "time_utc")
    for record, other in zip(records, kept, strict=True):
        assert [getattr(record.identity, key) for key in keys] == [getattr(other.identity, key) for key in keys]
    first = kept[0]
    assert first.environment["gpus"] == ["NVIDIA H100 80GB HBM3 80 GiB"], "the suite has its data sheet"
    assert (first.environment["cpu_model"], first.environment["machine"]) == ("***", MACHINE)
    assert first.environment["operating_system"] == "Linux-6.1.0-x86_64-with-glibc2.36"
    set_by_a_run = {"TORCH_CPP_LOG_LEVEL": "ERROR", "ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}
    assert first.environment["variables"] == {"OMP_NUM_THREADS": "4", "TF_CONFIG": "***", **set_by_a_run}
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
    (restarted,) = published(changed(measurement={"restarts": 2})(run()))
    assert restarted.warnings == [*kept[0].warnings, restart_warning(2)]
    readme = publication.files_of(kept)["README.md"]
    assert "- 2 of 2 runs warned: Other processes used 3.0 of 16 cores during the measurement" in readme
    assert f"- Machine: {MACHINE}, 16 cores" in readme, "the title stands for the name of the CPU"
    assert (
        "\nEnvironment variables: OMP_NUM_THREADS=4, ONEDNN_DEFAULT_FPMATH_MODE=BF16, TF_CONFIG=\\*\\*\\*, TORCH"
        in readme
    )


def test_a_folder_that_cannot_be_written_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publication, "replace", full)
    with pytest.raises(OSError, match="No space"):
        publication.write(published(run()), tmp_path / "public", WORDS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("title", ["a \x1b box", "a\u202e\u2066  box ", "\x00a", "alice's box at /x, n17.ethz.ch"])
def test_a_title_is_published_as_it_is_given_without_controls(title: str, tmp_path: Path) -> None:
    kept, *_ = publication.selected([run()], WORDS, title)
    assert kept[0].environment["machine"] == one_line(title)
    assert publication.write(kept, tmp_path / "public", WORDS).refusals == []


def test_without_a_title_of_the_machine_nothing_is_published() -> None:
    kept, refused, _ = publication.selected([run()], WORDS)
    (why,) = refused
    assert not kept and "give --machine=TEXT, such as 'Intel(R) Xeon(R) Platinum 8480+" in why
    for title in ("", "another"):
        kept, *_ = publication.selected(published(run()), WORDS, title)
        assert kept[0].environment["machine"] == MACHINE, "it was published with this title"


def changed(**parts: Any) -> Callable[[Record], Record]:
    """Returns what replaces fields of parts of a record: `derived={...}`."""

    def change(record: Record) -> Record:
        for part, fields in parts.items():
            now = getattr(record, part)
            new = {**now, **fields} if isinstance(now, dict) else replace(now, **fields)
            record = replace(record, **{part: new})
        return record

    return change


REFUSED = {
    "it is not a completed run: its verb is allreduce": lambda record: replace(record, kind=Kind.ALL_REDUCE),
    "steps_per_slice: its steps were interleaved": changed(environment={"steps_per_slice": 5}),
    "slowed_down_by: its steps were delayed": changed(environment={"slowed_down_by": 0.1}),
    "suite_commit ends in +": changed(identity={"suite_commit": "abc+"}),
    "it has 4 steps, and an interval needs 8": changed(measurement={"step_seconds": [0.1] * 4}),
    "derived.images_per_sec is 291.0, and 290.909": changed(derived={"images_per_sec": 291.0}),
    "derived.images_per_sec_low is 1.0": changed(derived={"images_per_sec_low": 1.0}),
    "derived.step_ms_p99 is None, and 120 ": changed(derived={"step_ms_p99": None}),
    "derived.step_ms_p999 is 120.0, and 12 steps are too few": changed(derived={"step_ms_p999": 120.0}),
    "derived.power_watts is 1.0, and 300 follows from the measurement": changed(derived={"power_watts": 1.0}),
    "images_per_step is 64, and batch_per_device times all devices is 32": changed(measurement={"images_per_step": 64}),
    "images_per_step is 32, and batch_per_device times all devices is 64": changed(config={"num_workers": 2}),
    "its measurement has values that no run writes": changed(measurement={"telemetry": [{"gpus": []}]}),
    "images_per_step is missing": changed(measurement={"images_per_step": None}),
    "its workers were unlike": lambda record: replace(record, warnings=[f"{UNLIKE_WORKERS} devices (worker 0: GPU)."]),
    "MFU unknown: ": changed(environment={"gpus": ["NVIDIA A2 15 GiB"]}),  # whose peak is 4.5 TFLOP/s, below this rate
    "environment lacks cpu_model": changed(environment={"cpu_model": None}),
    "environment lacks gpus": changed(environment={"gpus": []}),
    "config lacks batch_per_device": changed(config={"batch_per_device": None}),
}


def test_as_many_steps_as_an_interval_needs_are_enough() -> None:
    (record,) = published(run())
    measurement = replace(record.measurement, step_seconds=[0.1, 0.2] * 4)
    eight = replace(record, measurement=measurement, derived=derive(measurement, 1))
    assert list(public_record.reasons_not_to_publish(eight)) == []


@pytest.mark.parametrize("words", REFUSED)
def test_a_run_that_is_not_whole_is_neither_published_nor_passed(words: str, tmp_path: Path) -> None:
    (good,) = published(run())
    assert list(public_record.reasons_not_to_publish(good)) == []
    bad = REFUSED[words](good)
    assert words in " ".join(public_record.reasons_not_to_publish(bad))
    assert publication.selected([bad], WORDS, MACHINE)[0] == []
    assert publication.check(folder_of([bad], tmp_path), WORDS).refusals


@pytest.mark.parametrize(
    ("part", "fields", "words"),
    [
        ("environment", {"memory_gib": 64}, "hardware_key and hardware contradict"),
        ("environment", {"numpy_version": "1.26.0"}, "software_key and software contradict"),
    ],
)
def test_keys_that_contradict_what_records_state_are_refused(part: str, fields: dict[str, Any], words: str) -> None:
    first, second = published(*(changed(config={"data_set": None})(run()) for _ in range(2)))
    assert list(publication.contradictions([first, second])) == []
    (sentence,) = publication.contradictions([first, changed(**{part: fields})(second)])
    assert words in sentence and second.identity.run_id in sentence


def test_a_change_of_a_file_of_the_folder_is_found(tmp_path: Path) -> None:
    folder = folder_of(published(run(), run(), run(model="vgg16"), run(model="alexnet")), tmp_path)
    checked = publication.check(folder, WORDS)
    assert checked.refusals == [] and checked.warnings[-1].startswith("2 rows of 3: one run only, so its ")
    for name, old, new, line in (
        ("table.csv", "290.909", "390.909", 2),
        ("table.csv", "images_per_sec,", "rate,", 1),
        ("table.csv", "\n", "", 1),
        ("README.md", "## Files", "Seen on n17.", None),
        ("results.jsonl", "\n", "\n\n", 2),
    ):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace(old, new, 1))
        (refusal,) = publication.check(folder, WORDS).refusals
        assert f"{name}:{line or ''}" in refusal and "it was edited: it has '" in refusal
        (folder / name).write_text(text)
    (folder / "notes.txt").touch()
    (folder / "plots").mkdir()
    (folder / "table.csv").rename(tmp_path / "table.csv")
    (folder / "table.csv").symlink_to(tmp_path / "table.csv")
    (refusal,) = publication.check(folder, WORDS).refusals
    assert "no file of a publication: notes.txt, plots, table.csv. Move" in refusal


def test_a_changed_line_of_a_record_is_refused(tmp_path: Path) -> None:
    folder = folder_of(published(run()), tmp_path)
    path = folder / store.JSONL_NAME
    line = path.read_text()
    private = changed(environment={"machine": MACHINE})(run()).to_json() + "\n"
    for text, words in (
        (line + line, "results.jsonl:2: it was edited"),
        (line + line[:99], "skipped a damaged line"),
        (line.replace('"format_version":1', '"format_version":9'), "has format 9"),
        ("", "there is no record"),
        (line.replace('"identity":', '"reason":"/home/alice","identity":', 1), "results.jsonl:1: it was edited"),
        (replace(Record.from_json(line), warnings=[]).to_json() + "\n", "results.jsonl:1: it was edited"),
        (private, "/home/canaryuser"),
    ):
        path.write_text(text)
        assert any(words in refusal for refusal in publication.check(folder, WORDS).refusals), words


@pytest.mark.parametrize("name", [store.JSONL_NAME, "README.md", "table.csv"])
def test_a_fifo_is_refused_and_not_read(name: str, tmp_path: Path) -> None:
    folder = folder_of(published(run()), tmp_path)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(OSError, match="it is not a regular file"):
        publication.check(folder, WORDS)
