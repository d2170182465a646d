"""The check of a folder of published results: what it refuses, what it warns of, and what it lets pass."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from results import store
from results.exchange import public_record, publication
from results.record import Record
from tests.results.exchange.test_publication import MACHINE, WORDS, published, run


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
    "steps_per_turn: its steps were interleaved": changed(environment={"steps_per_turn": 5}),
    "slowed_down_by: its steps were delayed": changed(environment={"slowed_down_by": 0.1}),
    "suite_commit ends in +": changed(identity={"suite_commit": "abc+"}),
    "it has 4 steps, and an interval needs 8": changed(measurement={"step_seconds": [0.1] * 4}),
    "derived.images_per_sec is 1.0, and 290.909": changed(derived={"images_per_sec": 1.0}),
    "derived.images_per_sec_low is 1.0": changed(derived={"images_per_sec_low": 1.0}),
    "derived.step_ms_p99 is None, and 120 ": changed(derived={"step_ms_p99": None}),
    "derived.step_ms_p999 is 120.0, and 12 steps are too few": changed(derived={"step_ms_p999": 120.0}),
    "derived.power_watts is 1.0, and 300 follows from the measurement": changed(derived={"power_watts": 1.0}),
    "images_per_step is 64, and batch_per_device times all devices is 32": changed(measurement={"images_per_step": 64}),
    "what was observed are no numbers of a run": changed(measurement={"telemetry": [{"gpus": []}]}),
    "images_per_step is missing": changed(measurement={"images_per_step": None}),
    "environment lacks cpu_model": changed(environment={"cpu_model": None}),
    "environment lacks gpus": changed(environment={"gpus": []}),
    "config lacks batch_per_device": changed(config={"batch_per_device": None}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_run_that_is_not_whole_is_neither_published_nor_passed(words: str, tmp_path: Path) -> None:
    (good,) = published(run())
    assert list(public_record.why_not(good)) == []
    bad = REFUSED[words](good)
    assert words in " ".join(public_record.why_not(bad))
    assert publication.selected([bad], WORDS, MACHINE)[0] == []
    folder = publication.write([bad], tmp_path / "public")
    assert any(words in refusal for refusal in publication.check(folder, WORDS).refusals)


@pytest.mark.parametrize(
    ("part", "fields", "words"),
    [
        ("environment", {"memory_gib": 64}, "hardware_key and hardware contradict"),
        ("environment", {"numpy_version": "1.26.0"}, "software_key and software contradict"),
        ("config", {"precision": "fp16"}, "config_key and configuration contradict"),
        ("identity", {"software_key": "0" * 12}, "software_key is"),
        ("identity", {"config_key": "0" * 12}, "config_key is"),
    ],
)
def test_keys_that_contradict_what_records_state_are_refused(part: str, fields: dict[str, Any], words: str) -> None:
    first, second = published(*(changed(config={"data_set": None})(run()) for _ in range(2)))
    assert list(publication.contradictions([first, second])) == []
    (sentence,) = publication.contradictions([first, changed(**{part: fields})(second)])
    assert words in sentence and second.identity.run_id in sentence


def test_a_change_of_a_file_of_the_folder_is_found(tmp_path: Path) -> None:
    folder = publication.write(published(run(), run(model="vgg16")), tmp_path / "public")
    assert publication.check(folder, WORDS).refusals == []
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
    assert "notes.txt: this file is no part" in publication.check(folder, WORDS).refusals[0]


def test_damaged_and_repeated_lines_are_refused(tmp_path: Path) -> None:
    folder = publication.write(published(run()), tmp_path / "public")
    path = folder / store.JSONL_NAME
    line = path.read_text()
    for text, words in (
        (line + line, "two have the same run_id"),
        (line + line[:99], "skipped a damaged line"),
        (line.replace('"format_version":1', '"format_version":9'), "has format 9"),
        ("", "there is no record"),
    ):
        path.write_text(text)
        assert any(words in refusal for refusal in publication.check(folder, WORDS).refusals), words


def test_a_key_twice_in_a_line_hides_no_text(tmp_path: Path) -> None:
    folder = publication.write(published(run()), tmp_path / "public")
    path = folder / store.JSONL_NAME
    path.write_text(path.read_text().replace('"identity":', '"reason":"/home/alice","identity":', 1))
    assert any("results.jsonl:1: it was edited" in refusal for refusal in publication.check(folder, WORDS).refusals)


@pytest.mark.parametrize("name", [store.JSONL_NAME, "README.md", "table.csv", "folder"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to(path.parents[1] / "elsewhere")])
def test_what_is_not_a_regular_file_is_refused_and_not_read(
    name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    folder = publication.write(published(run()), tmp_path / "public")
    if (folder / name).exists():
        (folder / name).rename(tmp_path / "elsewhere")
    make(folder / name)
    (refusal,) = publication.check(folder, WORDS).refusals
    assert f"{name}: it is not a regular file" in refusal


def test_an_edited_warning_is_found(tmp_path: Path) -> None:
    (good,) = published(run())
    folder = publication.write([replace(good, warnings=[])], tmp_path / "public")
    (refusal,) = publication.check(folder, WORDS).refusals
    assert "not in a public form: warnings" in refusal


def test_a_record_with_private_fields_is_refused_with_their_names(tmp_path: Path) -> None:
    folder = publication.write([changed(environment={"machine": MACHINE})(run())], tmp_path / "public")
    text = " ".join(publication.check(folder, WORDS).refusals)
    assert "not in a public form" in text and "identity.command" in text
