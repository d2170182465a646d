from __future__ import annotations

import datetime
import itertools
import subprocess
import sys
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from results.gate.comparison import UnlikeError, compare
from results.gate.findings import Finding, Findings, Verdict
from results.record import STEPS_PER_SLICE, Kind, Record, Status
from tests.support.commands import ROOT
from tests.support.records import fake_input, fake_reduction, fake_run

NOISE = (1.0, 1.004, 0.997, 1.002, 0.999, 1.003, 0.998, 1.001)
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def at(record: Record, minute: float, session: str = "") -> Record:
    time = (START + datetime.timedelta(minutes=minute)).isoformat(timespec="seconds")
    return replace(record, identity=replace(record.identity, time_utc=time, session_id=session))


def with_rate(record: Record, rate: float | None) -> Record:
    return replace(record, derived=replace(record.derived, images_per_sec=rate))


def apart(speed: float = 1.0, number: int = 8, *, start: float = 0.0, **config: object) -> list[Record]:
    """One side's rounds, one after the other."""
    return [at(fake_run(step_seconds=0.1 / speed * NOISE[n], **config), start + n) for n in range(number)]


def interleaved(
    speed: float = 1.0, number: int = 8, *, order: str = "ABBA", drift: float = 0.0, session: str = ""
) -> tuple[list[Record], list[Record]]:
    """Both sides' rounds in such an order; each process takes `drift` longer than the one before."""
    sides: dict[str, list[Record]] = {"A": [], "B": []}
    for n in range(2 * number):
        side = order[n % len(order)]
        seconds = 0.1 * (1 + drift) ** n / (speed if side == "B" else 1.0) * NOISE[(n * 3) % 8]
        sides[side].append(at(fake_run(step_seconds=seconds), n, session))
    return sides["A"], sides["B"]


def within(keys: dict[str, str], **facts: object) -> list[Record]:
    """One side's rounds in another environment, with other keys of what they ran on."""
    return [
        replace(run, environment={**run.environment, **facts}, identity=replace(run.identity, **keys))
        for run in apart()
    ]


def judged(base: Sequence[Record], candidate: Sequence[Record], threshold: float = 0.05) -> Findings:
    return compare(base, candidate, ("main", "branch"), threshold)


def only(base: Sequence[Record], candidate: Sequence[Record], threshold: float = 0.05) -> Finding:
    (finding,) = judged(base, candidate, threshold).findings
    return finding


@pytest.mark.parametrize(
    ("speed", "verdict"), [(0.9, Verdict.REGRESSED), (1.12, Verdict.IMPROVED), (0.995, Verdict.UNCHANGED)]
)
@pytest.mark.parametrize("order", ["ABBA", "ABAB", "BAAB", "apart"])
def test_a_change_of_speed_is_judged(speed: float, verdict: Verdict, order: str) -> None:
    sides = (apart(), apart(speed, start=60)) if order == "apart" else interleaved(speed, order=order)
    findings = judged(*sides)
    (finding,) = findings.findings
    assert finding.verdict is verdict
    assert finding.change == pytest.approx(speed - 1, abs=0.01)
    assert finding.change_low < finding.change < finding.change_high
    assert finding.candidate_images_per_sec / finding.base_images_per_sec == pytest.approx(1 + finding.change)
    assert (finding.base_rounds, finding.candidate_rounds, finding.threshold) == (8, 8, 0.05)
    assert any("were not interleaved" in note and "`ab`" in note for note in findings.notes) == (order == "apart")
    assert findings.has_regressed == (verdict is Verdict.REGRESSED)


def test_drift_does_not_matter_if_rounds_were_interleaved() -> None:
    assert only(*interleaved(drift=0.01)).verdict is Verdict.UNCHANGED
    assert only(*interleaved(0.8, 3, drift=0.04)).verdict is Verdict.REGRESSED, "which the rates alone do not show"
    before, after = apart(), apart(start=60)
    drifted = [with_rate(r, r.derived.images_per_sec * 0.99 ** (8 + n)) for n, r in enumerate(after)]
    assert only(before, drifted).change < -0.05, "which is what the note warns of"


def test_a_drop_that_the_later_pairs_do_not_show_again_is_no_regression() -> None:
    base, candidate = interleaved()
    shares = [0.85] * 4 + [0.97] * 4
    slower = [with_rate(r, r.derived.images_per_sec * share) for r, share in zip(candidate, shares, strict=True)]
    finding = only(base, slower)
    assert finding.verdict is Verdict.INCONCLUSIVE and "the last 4 repeats alone did not show" in finding.reason


def test_rounds_in_any_order_are_ordered_by_time_in_any_zone() -> None:
    base, candidate = interleaved(0.9, drift=0.01)
    zones = itertools.cycle(datetime.timezone(datetime.timedelta(hours=hours)) for hours in (0, 2))
    times = [datetime.datetime.fromtimestamp(record.ended, next(zones)).isoformat() for record in candidate]
    elsewhere = [
        replace(record, identity=replace(record.identity, time_utc=time))
        for record, time in zip(candidate, times, strict=True)
    ]
    assert judged(base[::-1], elsewhere) == judged(base, candidate)
    assert not judged(base[::-1], elsewhere).notes


def test_an_interleaved_run_that_was_broken_off_is_interleaved() -> None:
    base, candidate = interleaved(0.9)
    findings = judged(base, candidate[:-1])
    assert not findings.notes
    assert findings.findings[0].verdict is Verdict.REGRESSED
    assert judged(base, candidate[:-2]).notes


def test_rounds_of_one_second_are_interleaved_only_within_a_session() -> None:
    sides = interleaved(session="0123456789ab")
    assert not judged(*([at(record, 0, "0123456789ab") for record in side] for side in sides)).notes
    assert judged(*([at(record, 0) for record in side] for side in sides)).notes


def test_a_pair_that_lost_a_base_round_is_left_out() -> None:
    base, candidate = interleaved(drift=0.02)
    base[3] = replace(base[3], status=Status.INVALID, reason="Losses are NaN.")
    finding = only(base, candidate)
    assert (finding.verdict, finding.base_rounds, finding.candidate_rounds) == (Verdict.UNCHANGED, 7, 8)
    assert "over 7 repeats" in finding.reason


@pytest.mark.parametrize("status", [Status.CRASH, Status.OUT_OF_MEMORY, Status.TIMEOUT, Status.INVALID])
@pytest.mark.parametrize("failing", [1, 8])
def test_a_failure_where_the_base_ran_is_one(status: Status, failing: int) -> None:
    candidate = apart(2.0)
    candidate[:failing] = [fake_run(status=status, reason="It went wrong.") for _ in range(failing)]
    findings = judged(apart(), candidate)
    (finding,) = findings.findings
    assert finding.verdict is Verdict.FAILED
    assert finding.reason == f"{failing} of 8 runs failed where the base ran. {status}: It went wrong."
    assert findings.has_regressed
    assert finding.candidate_rounds == 8 - failing


def test_a_run_without_a_rate_does_not_count_as_one() -> None:
    broken = [with_rate(record, None) for record in apart()]
    finding = only(apart(), broken)
    assert (finding.verdict, finding.candidate_rounds, finding.change) == (Verdict.FAILED, 0, None)
    assert only(broken, apart()).verdict is Verdict.INCONCLUSIVE


def test_a_base_that_did_not_run_decides_nothing() -> None:
    crashed, also = ([fake_run(status=Status.CRASH, reason="Ended by SIGSEGV.")] for _ in range(2))
    for candidate in (apart(), also):
        finding = only(crashed, candidate)
        assert finding.verdict is Verdict.INCONCLUSIVE
        assert "crash: Ended by SIGSEGV." in finding.reason
        assert finding.base_rounds == 0


def test_what_fails_now_and_then_on_both_sides_is_not_decided() -> None:
    flaky, also = ([*apart(), fake_run(status=Status.CRASH, reason="Ended by SIGBUS.")] for _ in range(2))
    assert only(flaky, also).verdict is Verdict.INCONCLUSIVE
    assert only(flaky, [also[-1]]).verdict is Verdict.FAILED
    assert only(flaky, apart(start=60)).verdict is Verdict.UNCHANGED


@pytest.mark.parametrize("status", [Status.SKIPPED, Status.INTERRUPTED])
def test_what_the_candidate_did_not_run_is_missing(status: Status) -> None:
    base = [*apart(), *apart(model="vgg16")]
    assert [f.verdict for f in judged(base, apart()).findings] == [Verdict.UNCHANGED, Verdict.MISSING]
    assert only(apart(), [*apart(), fake_run(status=status, reason="It was stopped.")]).verdict is Verdict.UNCHANGED
    left_out = fake_run(model="vgg16", status=status, reason="It asks for 8 GPUs.")
    finding = judged(base, [*apart(), left_out]).findings[1]
    assert finding.verdict is Verdict.MISSING
    assert f"{status}: It asks for 8 GPUs." in finding.reason
    assert judged(base, apart()).is_undecided


@pytest.mark.parametrize(("of_base", "of_candidate"), [(1, 8), (2, 2), (8, 1)])
def test_fewer_than_three_rounds_decide_nothing(of_base: int, of_candidate: int) -> None:
    assert only(apart(number=3), apart(0.5, number=3)).verdict is Verdict.REGRESSED
    finding = only(apart(number=of_base), apart(0.5, number=of_candidate))
    assert finding.verdict is Verdict.INCONCLUSIVE
    assert finding.change == pytest.approx(-0.5, abs=0.01)
    assert f"Valid runs: {of_base} of the base and {of_candidate} of the candidate" in finding.reason


def test_the_threshold_is_the_given_one_else_five_percent() -> None:
    base, candidate = [*apart(), *apart(model="vgg16")], [*apart(0.92), *apart(0.92, model="vgg16")]

    def verdicts(**threshold: float) -> list[tuple[Verdict, float]]:
        found = compare(base, candidate, ("a", "b"), **threshold).findings
        return [(finding.verdict, finding.threshold) for finding in found]

    assert verdicts() == [(Verdict.REGRESSED, 0.05)] * 2
    assert verdicts(threshold=0.2) == [(Verdict.UNCHANGED, 0.2)] * 2


def test_only_runs_are_compared() -> None:
    others = [fake_input(), fake_reduction("psgpu", 1024, 1e-4)]
    assert len(judged([fake_input(), *apart()], [*apart(), *others]).findings) == 1
    for sides in ((others, apart()), (apart(), others), ([], apart()), (apart(), [])):
        with pytest.raises(UnlikeError, match=r"no record of a run in (main|branch)\. Name a file"):
            judged(*sides)
    assert {record.kind for record in others} == {Kind.INPUT, Kind.ALL_REDUCE}


def test_runs_that_both_sides_have_are_those_of_the_base() -> None:
    """New runs were appended to a copy of the base; counted twice, the old ones would hide a regression."""
    base, new = apart(), apart(0.9, number=3, start=60)
    found = judged(base, [*base, *new])
    assert [finding.verdict for finding in found.findings] == [Verdict.REGRESSED]
    assert found.findings[0].candidate_rounds == 3
    assert found.notes[0] == "8 runs of branch also in main: counted as the base's only."
    with pytest.raises(UnlikeError, match="All runs of branch are in main, too, so there is nothing to compare"):
        judged(base, base)


def test_a_name_stays_the_same_beside_other_configurations() -> None:
    """Otherwise the history of github-action-benchmark, GitLab or Jenkins would begin anew."""
    (alone,) = judged(apart(optimizer="sgd"), apart(optimizer="sgd")).findings
    sides = [[*apart(optimizer="adam"), *apart(optimizer="sgd"), *apart(hardware="another")] for _ in range(2)]
    others = judged(*sides).findings
    assert [finding.name == alone.name for finding in others] == [False, True, False]
    assert others[1].title != alone.title


def test_findings_are_in_the_order_of_the_base() -> None:
    models = ["vgg16", "alexnet", "resnet50"]
    base = [record for model in models for record in apart(model=model)]
    candidate = [record for model in sorted(models) for record in apart(model=model)]
    findings = judged(base, [*candidate, *apart(model="trivial")])
    assert [finding.title.split(",")[0] for finding in findings.findings] == models
    (note,) = (note for note in findings.notes if "Only the candidate" in note)
    assert "trivial" in note and "vgg16" not in note


def test_what_only_one_side_has_differs_in_words_from_what_the_other_has() -> None:
    same = [fake_run() for _ in range(3)]
    sides = [[*same, fake_run(model="vgg16", learning_rate=rate)] for rate in (0.1, 0.2)]
    sides[1][:3] = [fake_run() for _ in range(3)]
    (note,) = (note for note in compare(*sides, ("a", "b")).notes if note.startswith("Only the candidate has vgg16, "))
    assert note.endswith(", batch 32 (learning_rate is 0.1 in a and 0.2 in b).")


@pytest.mark.parametrize("field", ["cpu_cores_usable", "container_cores"])
def test_other_hardware_is_refused_by_the_field_that_differs(field: str) -> None:
    def on(cores: int) -> list[Record]:
        facts = {"cpu_model": "Xeon", "cpu_cores_usable": 8, field: cores}
        return within({"hardware_key": f"with {cores}"}, **facts)

    with pytest.raises(UnlikeError) as refused:
        judged(on(8), on(16))
    assert f"{field} is 8 in main and 16 in branch" in str(refused.value)
    assert "cpu_model" not in str(refused.value)
    assert "run both on one of them" in str(refused.value)
    assert judged(on(8), on(8)).hardware.startswith("Xeon, 8 cores")
    with pytest.raises(UnlikeError, match="all recorded fields are equal"):
        judged(apart(hardware="one"), apart(hardware="another"))


def test_unlike_configurations_are_refused_by_the_fields_of_the_nearest() -> None:
    base = [*apart(model="vgg16", precision="fp16", batch_per_device=8), *apart(output_dir="here")]
    modifiers = {"all_reduce_spec": "xring"}
    with pytest.raises(UnlikeError) as refused:
        judged(base, apart(batch_per_device=64, modifiers=modifiers, output_dir="there"))
    message = str(refused.value)
    assert "batch_per_device is 32 in main and 64 in branch" in message
    assert "modifiers.all_reduce_spec is psgpu in main and xring in branch" in message
    assert "precision" not in message and "output_dir" not in message
    assert "same flags" in message


def test_the_nearest_are_of_equal_hardware() -> None:
    candidate = [*apart(hardware="one", batch_per_device=64), *apart(hardware="another")]
    with pytest.raises(UnlikeError, match="batch_per_device is 32 in main and 64 in branch"):
        judged(apart(hardware="one"), candidate)


def test_software_may_differ_and_is_named() -> None:
    def under(version: str, commit: str = "abc") -> list[Record]:
        keys = {"software_key": version, "suite_commit": commit}
        kernel = f"Linux-6.{version}"
        return within(keys, tensorflow_version=version, keras_version="3.12", operating_system=kernel)

    findings = judged(under("2.20.0"), under("2.21.0"))
    assert findings.findings[0].verdict is Verdict.UNCHANGED
    assert findings.base.software.startswith("TensorFlow 2.20.0, suite ")
    assert findings.candidate.software.startswith("TensorFlow 2.21.0, suite ")
    assert "(commit abc)" in findings.base.software
    (note,) = (note for note in findings.notes if "software differs" in note)
    assert "tensorflow_version is 2.20.0 in main and 2.21.0 in branch" in note and "keras" not in note
    assert "operating_system is Linux-6.2.20.0 in main" in note
    assert not any("mixes" in note for note in findings.notes)
    mixed = judged(under("2.20.0") + under("2.21.0"), under("2.21.0", commit="x") + under("2.21.0", commit="y"))
    assert any("main mixes 2 sets of software versions;" in note for note in mixed.notes)
    assert any("branch mixes 2 commits of the suite;" in note for note in mixed.notes)


def test_variables_of_the_environment_that_differ_are_named() -> None:
    def under(**variables: str) -> list[Record]:
        return within({}, variables=variables)

    def notes(base: Sequence[Record], candidate: Sequence[Record]) -> list[str]:
        return [note for note in judged(base, candidate).notes if "software differs" in note]

    (note,) = notes(under(CUDA_VISIBLE_DEVICES="0"), under(CUDA_VISIBLE_DEVICES="1", TF_ENABLE_ONEDNN_OPTS="0"))
    assert "TF_ENABLE_ONEDNN_OPTS is not recorded in main and 0 in branch" in note and "VISIBLE" not in note
    assert not notes(under(NCCL_ALGO="Ring"), under(NCCL_ALGO="Ring"))


def test_that_only_some_runs_interleaved_their_steps_is_noted() -> None:
    def sliced(records: Sequence[Record]) -> list[Record]:
        return [replace(r, environment={**r.environment, STEPS_PER_SLICE: 3}) for r in records]

    def told(base: Sequence[Record], candidate: Sequence[Record]) -> bool:
        return any("interleaved their steps with another run" in note for note in judged(base, candidate).notes)

    assert told(sliced(apart()), apart()) and told(apart(), [*sliced(apart(number=1)), *apart(start=1.0)])
    assert not told(apart(), apart()) and not told(sliced(apart()), sliced(apart()))
    failed = [with_rate(record, None) for record in sliced(apart(number=2))]
    assert not told(apart(), [*apart(), *failed])


def test_nothing_that_is_slow_to_import_is_imported() -> None:
    slow = "{'scipy.stats', 'matplotlib', 'pandas'}"
    script = f"import sys, results.gate.comparison, results.gate.trial; print(*({slow} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_killed_run_is_one_of_the_data_set_that_it_could_not_name() -> None:
    read = {"data_name": "imagenet", "input": {"crop": "distorted"}}
    killed = [at(fake_run(status=Status.CRASH, reason="Ended by signal 9.", **read), 20 + n) for n in range(3)]
    (finding,) = compare(apart(data_set="8 files", **read), killed, ("a", "b")).findings
    assert finding.verdict is Verdict.FAILED
