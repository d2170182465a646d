"""Baselines on disk, and today's records against them."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from results import loading, store
from results.gate import baselines
from results.gate.baseline_check import check
from results.gate.comparison import UnlikeError, refuse_new_hardware
from results.gate.findings import Finding, Findings, Verdict
from results.gate.rounds import session_of, sessions
from results.record import Record, Status
from tests.support.records import MACHINE, fake_input, fake_reduction, night, nights


def run(day: int, rate: float = 100.0, *, session: str | None = None, minute: int = 0, **config: object) -> Record:
    """A run, by default of the session of its day."""
    (made,) = night(day, rate / 0.998, rounds=1, **config)
    time = f"2026-01-{day:02d}T00:{minute:02d}:00+00:00"
    name = made.identity.session_id if session is None else session
    return replace(made, identity=replace(made.identity, time_utc=time, session_id=name))


def ids(records: list[Record]) -> list[str]:
    return [record.identity.run_id for record in records]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "results" / "baselines"


class TestStore:
    def test_promoted_records_lie_whole_below_their_hardware_and_configuration(self, directory: Path) -> None:
        records = [run(1), run(1, model="vgg16"), run(1, hardware="another")]
        assert baselines.store_runs(directory, records) == (records, [], [])
        for record in records:
            path = directory / record.identity.hardware_key / f"{record.identity.config_key}.jsonl"
            assert path.read_text() == record.to_json() + "\n"
        assert len(loading.load(*baselines.paths(directory)).records) == 3

    def test_what_is_there_is_not_promoted_again(self, directory: Path) -> None:
        first, second = run(1), run(2)
        baselines.store_runs(directory, [first])
        assert baselines.store_runs(directory, [first, second]) == ([second], [first], [])
        assert ids(loading.load(*baselines.paths(directory)).records) == ids([first, second])

    @pytest.mark.parametrize(
        ("record", "why"),
        [
            *((run(1, status=status), f"its status is {status}") for status in Status if status is not Status.OK),
            (fake_reduction("pscpu", 1024, 0.1), "it is of kind allreduce"),
            (fake_input(), "it is of kind input"),
            (replace(run(1), environment={"slowed_down_by": 0.1}), "it was slowed down on purpose"),
            (
                replace(run(1), environment={"steps_per_slice": 5}),
                "it interleaved its steps",
            ),
        ],
    )
    def test_only_ok_runs_become_baselines(self, directory: Path, record: Record, why: str) -> None:
        added, _, (sentence,) = baselines.store_runs(directory, [record])
        assert not added and not directory.exists()
        assert record.identity.run_id in sentence and why in sentence

    @pytest.mark.parametrize("time_utc", ["2999-01-01T00:00:00+00:00", "31.01.2026 00:00"])
    def test_a_run_of_an_impossible_time_is_no_baseline(self, directory: Path, time_utc: str) -> None:
        """It would be the newest, or the oldest, for ever."""
        record = run(1)
        added, _, (sentence,) = baselines.store_runs(
            directory, [replace(record, identity=replace(record.identity, time_utc=time_utc))]
        )
        assert not added and time_utc in sentence

    @pytest.mark.parametrize("key", ["../../outside", "", "a/b", "."])
    def test_a_record_does_not_choose_where_it_is_written(self, directory: Path, key: str) -> None:
        record = run(1)
        strange = replace(record, identity=replace(record.identity, config_key=key))
        added, _, (sentence,) = baselines.store_runs(directory, [strange])
        assert not added and "cannot name a file" in sentence

    @pytest.mark.fault(
        "R13", "several promote records into one file of baselines at once", survives="all are stored, each once"
    )
    def test_several_that_promote_at_once_keep_all_and_each_once(self, directory: Path) -> None:
        all_of_them = [run(day, minute=minute) for minute in range(4) for day in range(1, 6)]
        with ThreadPoolExecutor(4) as pool:
            twice = [record for record in all_of_them for _ in range(2)]
            list(pool.map(lambda record: baselines.store_runs(directory, [record]), twice))
        loaded = loading.load(*baselines.paths(directory))
        (path,) = directory.glob("*/*.jsonl")
        assert len(path.read_text().splitlines()) == len(all_of_them)
        assert not loaded.problems and sorted(ids(loaded.records)) == sorted(ids(all_of_them))

    def test_a_record_that_is_promoted_while_others_are_pruned_is_kept(self, directory: Path) -> None:
        baselines.store_runs(directory, nights(3))
        (path,) = directory.glob("*/*.jsonl")
        late = run(9)
        with ThreadPoolExecutor(1) as pool:
            with store.locked(path):
                waiting = pool.submit(baselines.store_runs, directory, [late])
                time.sleep(0.2)  # it has the old file open
                store.replace(path, "")
            waiting.result()
        assert ids(loading.load(*baselines.paths(directory)).records) == ids([late])

    def test_pruning_keeps_the_last_sessions_whole(self, directory: Path) -> None:
        baselines.store_runs(directory, [*reversed(nights(5)), *night(1, model="vgg16")])
        taken = baselines.prune(directory, 2)
        assert list(taken.values()) == [3]
        loaded = loading.load(*baselines.paths(directory))
        left = [record for record in loaded.records if record.config["model"] == "resnet50"]
        assert [session_of(session.records[0]) for session in sessions(left)] == ["night 4", "night 5"] and len(
            left
        ) == 6
        assert baselines.prune(directory, 2) == {}


class TestSessions:
    def test_a_session_is_the_median_of_its_rounds(self) -> None:
        (session,) = sessions([run(1, rate, minute=index) for index, rate in enumerate((100.0, 50.0, 102.0))])
        assert session.images_per_sec == pytest.approx(100) and session.date == "2026-01-01 00:00"
        identity = replace(run(1).identity, suite_commit="0123456789ab+")
        assert sessions([replace(run(1), identity=identity)])[0].commit == "0123456+"

    def test_runs_without_a_session_id_are_sessions_of_their_own(self) -> None:
        found = sessions([run(2, 90.0, session=""), run(1, 100.0, session="")])
        assert [session.images_per_sec for session in found] == pytest.approx([100, 90])


def judged(today: list[Record], stored: list[Record], threshold: float | None = None) -> Findings:
    return check(today, stored, ("today.jsonl", "kept"), threshold)


def only(found: Findings) -> Finding:
    (finding,) = found.findings
    return finding


class TestCheck:
    @pytest.mark.parametrize(
        ("rate", "verdict"), [(100.0, Verdict.UNCHANGED), (85.0, Verdict.REGRESSED), (115.0, Verdict.IMPROVED)]
    )
    def test_today_is_judged_by_the_stored_sessions(self, rate: float, verdict: Verdict) -> None:
        found = judged(night(20, rate), nights(10))
        finding = only(found)
        assert finding.verdict is verdict
        assert finding.change == pytest.approx(rate / 100 - 1, abs=0.01)
        assert finding.base_images_per_sec == pytest.approx(100, rel=0.01)
        assert finding.candidate_images_per_sec == pytest.approx(rate)
        assert (finding.base_rounds, finding.candidate_rounds, finding.threshold) == (30, 3, 0.05)
        assert found.has_regressed == (verdict is Verdict.REGRESSED)
        assert found.base.name == "kept, 2026-01-01 to 2026-01-10" and "TensorFlow 2.21.0" in found.base.software
        assert found.hardware == "EPYC, 8 cores, 32 GiB"

    def test_the_software_of_baselines_is_that_of_the_last_session(self) -> None:
        stored = nights(10)
        stored[-3:] = [replace(one, environment={**one.environment, "tensorflow_version": "3"}) for one in stored[-3:]]
        found = judged(night(20), stored)
        assert found.base.software.startswith("last TensorFlow 3,")
        different = "tensorflow_version is 3 in the last stored session and 2.21.0 in today's runs."
        assert found.notes == [f"The software differs: {different}"]

    def test_a_configuration_without_enough_sessions_is_inconclusive(self) -> None:
        found = judged([*night(20), *night(20, model="vgg16")], nights(4))
        few, none = found.findings
        assert few.verdict is none.verdict is Verdict.INCONCLUSIVE
        assert none.base_images_per_sec is None and found.is_undecided

    def test_a_failure_before_the_newest_stored_session_is_history(self) -> None:
        stored = nights(10)
        crash = run(3, status=Status.CRASH, reason="Ended by signal 11.", minute=9)
        assert only(judged([*stored, crash], stored)).verdict is Verdict.UNCHANGED

    def test_what_failed_every_night_does_not_make_all_nights_todays(self) -> None:
        stored = nights(10)
        crashes = [
            replace(crash, identity=replace(crash.identity, session_id=f"night {day}"))
            for day in (*range(1, 11), 20)
            for crash in [run(day, model="vgg16", status=Status.CRASH, minute=9)]
        ]
        first, second = judged([*stored, *crashes, *night(20, 85.0)], stored).findings
        assert (first.verdict, second.verdict) == (Verdict.REGRESSED, Verdict.MISSING)
        assert (first.base_rounds, first.candidate_rounds) == (30, 3)

    def test_a_failed_run_where_baselines_are_is_a_failure(self) -> None:
        today = [*night(20), run(20, status=Status.CRASH, reason="Ended by signal 11.", minute=9)]
        finding = only(judged(today, nights(1)))
        assert finding.verdict is Verdict.FAILED
        assert "1 of today's 4 runs failed" in finding.reason and "Ended by signal 11." in finding.reason

    def test_a_run_that_was_skipped_is_missing(self) -> None:
        today = [run(20, status=Status.SKIPPED, reason="asks for 8 GPUs")]
        finding = only(judged(today, nights(10)))
        assert finding.verdict is Verdict.MISSING and "asks for 8 GPUs" in finding.reason

    @pytest.mark.parametrize(
        ("earlier", "is_stored"),
        [(0, False), (10, False), (10, True)],
        ids=["a file of today", "a file of all nights", "which are all stored"],
    )
    def test_what_the_compared_sessions_ran_and_today_did_not_is_missing(self, earlier: int, is_stored: bool) -> None:
        """Else a gate would pass after a change by which a configuration no longer runs."""
        stored = [*nights(10), *nights(10, model="vgg16")]
        today = [*stored[: 6 * earlier], *night(20)]
        found = judged(today, today if is_stored else stored)
        unchanged, missing = found.findings
        assert (unchanged.verdict, missing.verdict) == (Verdict.UNCHANGED, Verdict.MISSING) and found.is_undecided
        assert re.fullmatch("vgg16[^()]*", missing.title) and (missing.base_rounds, missing.candidate_rounds) == (30, 0)
        assert f"remove {stored[0].identity.hardware_key}/{missing.config_key}.jsonl" in missing.reason

    def test_configurations_of_one_title_are_told_apart(self) -> None:
        rates = [run(day, model="vgg16", learning_rate=0.1) for day in range(1, 9)]
        found = judged([run(9), run(9, model="vgg16", learning_rate=0.2)], [*nights(8), *rates])
        titles = [finding.title for finding in found.findings]
        assert titles[2] == f"{titles[1]} (learning_rate is 0.2 in today.jsonl and 0.1 in kept)"

    def test_what_only_other_sessions_ran_is_a_note(self) -> None:
        weekly = [run(day, model="vgg16", session="weekly") for day in range(1, 9)]
        for today, sentence in (
            ((), "Stored configurations without a run in today.jsonl: vgg16"),
            (weekly, "Not judged, since their runs in today.jsonl are stored or older: vgg16"),
        ):
            found = judged([*night(20), *today], [*nights(10), *weekly])
            assert only(found).verdict is Verdict.UNCHANGED
            (note,) = found.notes
            assert note.startswith(sentence)

    def test_what_another_machine_ran_is_not_missing(self) -> None:
        found = judged(night(20), [*nights(10), *nights(10, hardware="another")])
        assert only(found).verdict is Verdict.UNCHANGED and not found.notes

    def test_a_new_machine_beside_a_known_one_is_not_decided(self) -> None:
        known, new = judged([*night(20, 85.0), *night(20, hardware="another")], nights(10)).findings
        assert (known.verdict, new.verdict) == (Verdict.REGRESSED, Verdict.INCONCLUSIVE)
        assert "0 other stored sessions" in new.reason

    def test_only_the_last_twenty_sessions_judge(self) -> None:
        old = [record for day in range(1, 10) for record in night(day, 50.0)]
        new = [record for day in range(10, 30) for record in night(day, 100 + day % 3)]
        finding = only(judged(night(31, 101.0), [*old, *new]))
        assert finding.verdict is Verdict.UNCHANGED and finding.base_rounds == 60

    def test_what_is_stored_already_does_not_judge_itself(self) -> None:
        stored = nights(10)
        slow = night(20, 85.0)
        finding = only(judged(slow, [*stored, *slow]))
        assert finding.verdict is Verdict.REGRESSED and finding.base_rounds == 30
        assert only(judged([*stored, *slow], stored)).candidate_rounds == 3, "of a file, what is not stored is today's"
        everything = [*stored, *slow]
        assert only(judged(everything, everything)).verdict is Verdict.REGRESSED, "the latest session, by the others"

    def test_what_was_pruned_is_not_todays(self) -> None:
        everything = [*nights(12, 80.0), *(run for day in range(13, 21) for run in night(day, 100 + day % 3 / 4))]
        today, kept = [*everything, *night(21, 101.0)], everything[36:]
        finding = only(judged([*today, *nights(9, model="vgg16")], kept))
        assert (finding.verdict, finding.candidate_rounds) == (Verdict.UNCHANGED, 3)

    def test_an_id_that_every_session_has_is_named(self) -> None:
        stored = [run(day, session="nightly") for day in range(1, 9)]
        found = judged([run(9, 80.0, session="nightly")], stored)
        assert only(found).verdict is Verdict.INCONCLUSIVE
        (note,) = found.notes
        assert "8 stored runs with a session_id of today's runs (nightly)" in note

    @pytest.mark.parametrize(
        ("levels", "today", "verdict", "note"),
        [
            ([100] * 5 + [110] * 7 + [92] * 8, 92, Verdict.INCONCLUSIVE, "2026-01-13.*0.3 % slower.*--keep=8`"),
            ([100] * 12 + [120] * 8, 101, Verdict.UNCHANGED, "2026-01-13.*16.0 % slower.*--keep=8`"),
            ([100] * 9 + [80] * 3, 80, Verdict.INCONCLUSIVE, "store 2 more sessions.*--keep=5` keeps only"),
            ([120] * 8 + [100] * 12, 101, Verdict.UNCHANGED, None),
        ],
    )
    def test_a_level_that_changed_is_a_note_if_it_hides_a_drop(
        self, levels: list[int], today: float, verdict: Verdict, note: str | None
    ) -> None:
        stored = [record for day, rate in enumerate(levels, start=1) for record in night(day, rate + day % 3 / 4)]
        found = judged(night(25, today), stored)
        assert only(found).verdict is verdict and len(found.notes) == bool(note)
        assert all(re.search(str(note), each) for each in found.notes)

    def test_no_baselines_at_all_are_refused_with_the_way_to_have_some(self) -> None:
        with pytest.raises(UnlikeError, match="track store FILE"):
            judged(night(20), [])
        with pytest.raises(UnlikeError, match="no record of a run in today.jsonl"):
            judged([fake_input()], nights(10))


def test_the_nearest_hardware_is_that_with_the_fewest_differences() -> None:
    far = run(1, hardware="far")
    far = replace(far, environment={"cpu_model": "Xeon", "gpus": ["L4"]})
    near = run(1, hardware="near")
    near = replace(near, environment={**MACHINE, "cpu_cores_usable": 4})
    nearest = (
        r"this hardware \(EPYC, 8 cores, 32 GiB\) in kept. The nearest there is EPYC, 4 cores, 32 GiB: "
        "cpu_cores_usable is 8 in this run and 4 in the baselines. Only"
    )
    with pytest.raises(UnlikeError, match=nearest):
        refuse_new_hardware([run(1)], [far, near], "kept")
    same = run(1, hardware="as recorded by another version")
    with pytest.raises(UnlikeError, match="all recorded fields are equal"):
        refuse_new_hardware([run(1)], [same], "kept")
