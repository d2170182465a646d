"""Summaries, profiles, traces and graph files of whole runs."""

from __future__ import annotations

import csv
import errno
import gzip
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from benchmarks.graph.epochs import Epochs
from benchmarks.tracing import chrome_trace, graph_files, options, profiles
from benchmarks.tracing.profiles import table
from benchmarks.tracing.step_events import Work
from tests.benchmarks.tracing.test_chrome_trace import check
from tests.support.commands import Records, RunBench
from tests.support.rotation import rotating

RUN = ("--model=lenet", "--device=cpu", "--num_gpus=2", "--batch_size=2")
SUMMARIES = ("--train_dir=t", "--save_summaries_steps=3")


def summaries(directory: Path) -> dict[str, dict[int, Any]]:
    """Returns what all files of events have, by tag and step."""
    found: dict[str, dict[int, Any]] = {}
    for path in sorted(directory.glob("events.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            if event.WhichOneof("what") == "graph_def":
                found.setdefault("graph", {})[event.step] = event.graph_def
            if event.WhichOneof("what") == "session_log":
                found.setdefault("began", {})[event.step] = event.session_log.status
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value or value.histo
    return found


def curve(record: dict[str, Any]) -> dict[int, float]:
    """Returns the losses of a record by step, those of steps that were not measured in their place."""
    seen = record["measurement"]
    first = 1 + (seen.get("steps_before") or 0)
    losses = iter([*seen["warmup_losses"], *seen["losses"]])
    asides = dict(zip(seen["unmeasured_steps"], seen["unmeasured_losses"], strict=True))
    total = len(seen["warmup_losses"]) + len(seen["losses"]) + len(asides)
    return {step: asides[step] if step in asides else next(losses) for step in range(first, first + total)}


@pytest.mark.row("S3.12")
def test_summaries_are_those_of_the_steps_and_do_not_change_the_training(
    run_bench: RunBench, records: Records, tmp_path: Path
) -> None:
    words = (*RUN, "--num_batches=4", "--num_warmup_batches=2", "--print_training_accuracy")
    assert run_bench(*words, *SUMMARIES, "--summary_verbosity=3").status == 0
    assert run_bench(*words, "--num_batches=7").status == 0
    observed, plain = records()
    assert observed["measurement"]["unmeasured_steps"] == [3, 6, 9]
    losses = curve(observed)
    assert losses == pytest.approx(curve(plain), rel=1e-3)
    found = summaries(tmp_path / "t")
    assert found["loss"] == pytest.approx({step: losses[step] for step in (3, 6, 9)}, rel=1e-6)
    assert found["learning_rate"] == pytest.approx(dict.fromkeys((3, 6, 9), observed["config"]["learning_rate"]))
    assert found["images_per_sec"].keys() == found["top_1_accuracy"].keys() == {3, 6, 9}
    assert found["graph"].keys() == {0}
    weights, gradients = found["weights/fc3/kernel"][6], found["gradients/fc3/kernel"][6]
    assert weights.num == gradients.num > 1000
    assert found["norms/fc3/kernel"][6] == pytest.approx(weights.sum_squares**0.5, rel=1e-3)
    assert 0 < gradients.sum_squares < weights.sum_squares


@rotating(
    "words",
    [
        ("--variable_update=parameter_server", "--staged_vars"),
        ("--pipeline_stages=2",),
        ("--use_fp16", "--fp16_enable_auto_loss_scale"),
    ],
    first=1,
    ids=" ".join,
)
def test_histograms_of_gradients_come_from_every_kind_of_step(
    run_bench: RunBench, tmp_path: Path, words: tuple[str, ...]
) -> None:
    run_bench(*RUN, "--num_batches=2", *SUMMARIES, "--summary_verbosity=2", *words).succeeded()
    found = summaries(tmp_path / "t")
    assert {tag.split("/")[0] for tag in found if "/" in tag} == {"gradients"}
    assert found["gradients/fc3/kernel"][3].sum_squares > 0


def test_a_resumed_run_continues_the_events(run_bench: RunBench, tmp_path: Path) -> None:
    for _ in range(2):
        assert (
            run_bench(*RUN, "--num_batches=2", "--num_warmup_batches=1", *SUMMARIES, "--summary_verbosity=1").status
            == 0
        )
    found = summaries(tmp_path / "t")
    assert found["loss"].keys() == {3, 6}  # of either run
    assert not [tag for tag in found if "/" in tag], "there are no histograms"
    assert found["began"] == {4: tf.compat.v1.SessionLog.START}
    assert found["graph"].keys() == {0}


def test_a_profile_has_tensorflows_file_and_a_table(run_bench: RunBench, records: Records, tmp_path: Path) -> None:
    run = run_bench(*RUN, "--num_batches=3", "--num_warmup_batches=1", "--profile_steps=3:4").succeeded()
    assert records()[0]["measurement"]["unmeasured_steps"] == [3, 4, 5, 6]
    assert len(records()[0]["measurement"]["step_seconds"]) == 3
    (profile,) = (tmp_path / "out").glob("plugins/profile/*/*.xplane.pb")
    assert b"MatMul" in profile.read_bytes()
    with (tmp_path / "out" / "operations.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1)
    assert {row["kind"] for row in rows} == {"compute", "exchange", "input"}
    assert {row["device"] for row in rows} == {"/device:CPU:0", "/device:CPU:1"}
    assert next(float(row["per_step"]) for row in rows if row["type"].endswith("Conv2D")) > 0
    assert "Operations of step 5 to 6:" in run.stdout
    assert f"All {len(rows)} types: out/operations.csv" in run.stdout


@pytest.mark.parametrize(
    ("asked", "steps_before", "wanted"),
    [
        ((5, 5), 0, [5, 6]),  # the last step is one of those
        ((2, 6), 6, None),
        ((2, 7), 6, None),  # step 7 prepares the graph
        ((2, 8), 6, [8, 9, 10, 11, 12, 13, 14, 15]),
    ],
)
def test_steps_that_an_earlier_run_took_are_not_profiled(
    tmp_path: Path, asked: tuple[int, int], steps_before: int, wanted: list[int] | None
) -> None:
    config = SimpleNamespace(traces=options.Traces(profile_steps=asked))
    epochs, last_step = Epochs(1, 1, steps_before), steps_before + 5
    run: Any = SimpleNamespace(config=config, epochs=epochs, last_step=last_step, directory=tmp_path)
    profiled = profiles.profiled_steps(run)
    found = profiled and [step for step in range(steps_before + 2, steps_before + 20) if profiled.wants(step)]
    assert found == wanted


def test_a_table_of_launches_alone_is_explained(run_bench: RunBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.tracing.step_trace.lacks_kernels", lambda metadata: True)
    run = run_bench(*RUN, "--num_gpus=1", "--num_warmup_batches=1", "--num_batches=3", "--profile_steps=2:2")
    assert run.stderr.count("NVreg_RestrictProfilingToAdminUsers=0") == 1, "one tower is not traced otherwise"


def test_the_table_is_aligned() -> None:
    rows = [Work("/device:CPU:0", "compute", "MatMul", 12, 100.0, 0.995), Work("d", "input", "Get", 0.5, 1.5, 0.005)]
    assert table(rows) == [
        "ms/step   share  per step  kind     operation  device",
        "100.000  99.5 %        12  compute  MatMul     /device:CPU:0",
        "  1.500   0.5 %       0.5  input    Get        d",
    ]


@pytest.mark.row("U1.9")
def test_a_trace_and_graphs_are_written(run_bench: RunBench, tmp_path: Path) -> None:
    files = (
        "--trace_file=new/trace.json.gz",
        "--graph_file=g/graph.pbtxt",
        "--partitioned_graph_file_prefix=g/part.pb",
    )
    assert run_bench(*RUN, "--num_batches=2", *files).status == 0
    trace = json.loads(gzip.decompress((tmp_path / "new" / "trace.json.gz").read_bytes()))
    events = check(trace)
    assert {event["cat"] for event in events} == {"compute", "exchange", "input"}
    assert {event["pid"] for event in events} == {1, 2}
    assert any(event["args"]["name"].startswith("tower_1/") for event in events if event["cat"] == "exchange")
    assert 'op: "MatMul"' in (tmp_path / "g" / "graph.pbtxt").read_text()
    parts = sorted((tmp_path / "g").glob("part*.pb"))
    assert [path.name[-8:] for path in parts] == ["CPU_0.pb", "CPU_1.pb"]
    assert {node.op for node in tf.compat.v1.GraphDef.FromString(parts[1].read_bytes()).node} >= {"_Send", "_Recv"}


def test_one_tower_and_asynchronous_towers_have_traces(run_bench: RunBench, tmp_path: Path) -> None:
    alone = (*RUN, "--num_gpus=1", "--num_batches=2", "--trace_file=1.json", "--graph_file=graph.pb")
    assert run_bench(*alone).status == 0
    assert {event["pid"] for event in check(json.loads((tmp_path / "1.json").read_text()))} == {1}
    assert tf.compat.v1.GraphDef.FromString((tmp_path / "graph.pb").read_bytes()).node
    apart = (*RUN, "--variable_update=parameter_server", "--async", "--num_batches=4", "--trace_file=2.json")
    assert run_bench(*apart).status == 0
    assert {event["pid"] for event in check(json.loads((tmp_path / "2.json").read_text()))} == {1, 2}


def test_what_cannot_be_written_is_named_and_the_run_stays_valid(
    run_bench: RunBench, records: Records, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fill_the_disk(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for owner, name in (
        (tf.compat.v1.summary.FileWriter, "flush"),
        (chrome_trace, "write"),
        (graph_files, "write_graph"),
    ):
        monkeypatch.setattr(owner, name, fill_the_disk)
    files = ("--trace_file=trace.json", "--graph_file=graph.pb", "--partitioned_graph_file_prefix=part.pb")
    (tmp_path / "t" / "operations.csv").mkdir(parents=True)
    done = run_bench(*RUN, "--num_batches=3", *SUMMARIES, "--summary_verbosity=1", *files, "--profile_steps=2:2")
    (record,) = records()
    assert (done.status, record["status"]) == (4, "ok") and record["derived"]["images_per_sec"] > 0
    for what in ("Summaries", "The trace", "The graph", "The graph of each device", "The table of operations"):
        assert f"{what} could not be written to " in done.stderr
    assert "Operations of step 3:" in done.stdout and "types: " not in done.stdout
    assert "could not be written to graph.pb: No space left on device. Free space" in record["reason"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--profile_steps=5",), "give the first and the last step"),
        (("--profile_steps=1:2",), "no earlier than 2"),
        (("--profile_steps=7:6",), "give the first and the last step"),
        (("--profile_steps=90:91", "--num_batches=2"), "the training ends after step 5"),
        (("--trace_file=/proc/none/trace.json",), "--trace_file=/proc/none/trace.json cannot be written"),
        (("--graph_file=/",), "is a directory"),
        (("--train_dir=/dev/null",), "--train_dir=/dev/null cannot be written (a file has this name, or a link"),
        (("--profile_steps=3:4", "--output_dir=out", "--train_dir=/proc/none"), "--train_dir=/proc/none cannot be"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_is_a_sentence_before_training(
    run_bench: RunBench, words: tuple[str, ...], sentence: str
) -> None:
    run = run_bench(*RUN, *words)
    assert run.status == 2
    assert sentence in run.stderr
    assert "images/sec" not in run.stdout
