"""Published figures: each can stand beside a run of this suite."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.config import flag
from benchmarks.config.config import Config
from benchmarks.sweep import grid, sweep_verb
from results.environment import published_table
from results.exchange import public_table
from results.exchange.public_table import Figure
from results.intervals import Interval
from results.record import Record
from results.report import published
from results.report.plots import against
from results.report.side_tables import side_tables
from results.summary import Row, summarize
from results.text import counted
from tests.support.records import fake_run
from tests.support.settings import resolve

GUIDE = published_table("guide2017")
TABLE = published.table("guide2017")
MODELS = {
    "Inception v3": "inception3",
    "ResNet-50": "resnet50",
    "ResNet-152": "resnet152",
    "AlexNet": "alexnet",
    "VGG16": "vgg16",
}
MANAGERS = {
    "parameter_server cpu": ("parameter_server", "--local_parameter_device=cpu"),
    "parameter_server gpu": ("parameter_server", "--local_parameter_device=gpu"),
    "replicated": ("replicated",),
    "replicated nccl": ("replicated", "--all_reduce_spec=nccl"),
    "distributed_replicated": ("distributed_replicated",),
}
GPUS_OF_A_HOST = 8
SIMILAR = (("fp16", False, 800.0), ("bf16", False, 400.0), ("bf16", True, 600.0), ("bf16", False, 300.0))
STATED = {"model": "ResNet-50", "forward_only": False, "precision": "fp32", "data": "synthetic"}


def _configured(row: dict[str, str]) -> Config:
    """Returns the configuration of a row of the guide, on a machine with enough GPUs."""
    manager, *words = MANAGERS[row["variable_update"]]
    gpus = int(row["devices"])
    if manager == "distributed_replicated":
        hosts = max(1, gpus // GPUS_OF_A_HOST)
        gpus //= hosts
        words.append(f"--local_cluster=ps:{hosts},worker:{hosts}")
    words += [f"--variable_update={manager}", f"--num_gpus={gpus}", f"--batch_size={row['batch_per_device']}"]
    words += [f"--model={MODELS[row['model']]}", *(["--data_dir=imagenet"] if row["data"] == "real" else [])]
    return resolve(*words, gpus=64)


@pytest.mark.parametrize("model", MODELS)
def test_every_row_of_the_guide_stands_beside_a_run_with_its_settings(model: str) -> None:
    rows = [row for row in GUIDE if row["model"] == model]
    made = {}
    for row in rows:
        chosen = _configured(row)
        names = ("model", "variable_update", "num_devices", "num_workers", "batch_per_device", "data_name")
        made[chosen.workload.model, chosen.workload.batch_per_device, chosen.towers_in_total, row["data"]] = fake_run(
            **{name: chosen.to_dict()[name] for name in names}
        )
    records = list(made.values())
    (side,) = [side for side in side_tables(records, summarize(records), [TABLE]) if side.name == "published"]
    found = sorted((where, setting, rate) for _, _, _, where, setting, rate, *_ in side.table.rows)
    assert found == sorted(
        (
            row["machine"],
            f"{row['variable_update']}, {row['data']}, batch {row['batch_per_device']}, "
            + counted(int(row["devices"]), "device"),
            f"{float(row['images_per_sec']):g}",
        )
        for row in rows
    )


def test_every_model_that_is_compared_exists() -> None:
    assert {row["model"] for row in GUIDE} == {*MODELS}
    missing = published.why_none([], TABLE)
    for name in missing.partition("the models ")[2].split(", on")[0].split(", "):
        assert resolve(f"--model={name.split()[0]}", gpus=1)


def _cells(*words: str) -> list[grid.Cell]:
    parsed = flag.parse(["--preset=guide2017", *words], grid.sweep_groups(sweep_verb.SWEEP_FLAGS))
    return grid.cells([grid.of_flags(parsed.values)], lambda: 8)


def test_the_preset_has_the_guides_models_and_batches() -> None:
    runs = {
        (c.config.workload.model, c.config.workload.batch_per_device, c.config.devices.num_devices)
        for c in _cells("--device=gpu")
    }
    batches = {"alexnet": 512, "inception3": 64, "resnet50": 64, "resnet152": 64, "vgg16": 64}
    assert runs == {(model, batch, gpus) for model, batch in batches.items() for gpus in (1, 2, 4, 8)}
    published_runs = {(MODELS[row["model"]], int(row["batch_per_device"]), int(row["devices"])) for row in GUIDE}
    assert runs <= published_runs
    small = {
        (c.config.workload.model, c.config.workload.batch_per_device) for c in _cells("--device=gpu", "--batch_size=32")
    }
    assert small - {run[:2] for run in published_runs} == {("alexnet", 32)}


def test_on_a_cpu_the_preset_has_batches_that_fit_there() -> None:
    found = {
        c.config.workload.model: c.config.workload.batch_per_device for c in _cells("--device=cpu", "--num_gpus=1")
    }
    assert found.keys() == {*MODELS.values()} and max(found.values()) == 32


def _table(*figures: Figure) -> published.FigureTable:
    return published.FigureTable(name="t", source="made up", figures=figures)


def _figure(**changes: object) -> Figure:
    fields = {"machine": "M", "model": "resnet50", "devices": 1, "batch_per_device": 32, "images_per_sec": 320.0}
    return Figure(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "not_compared"),
    [
        ({}, ["inference, precision, data, XLA (not stated)"]),
        ({**STATED, "xla": False}, []),
        ({**STATED, "xla": True}, ["XLA (yours off, theirs on)"]),
        ({"model": "resnet-50", "precision": "FP32", "data": "Synthetic"}, ["inference, XLA (not stated)"]),
        ({**STATED, "xla": False, "batch_per_device": None}, ["batch per device (not stated)"]),
        ({"model": "resnet50_v1.5"}, None),
        ({"devices": 2}, None),
        ({"batch_per_device": 64}, None),
        ({"forward_only": True}, None),
        ({"precision": "fp16"}, None),
        ({"data": "real"}, None),
    ],
)
def test_figures_are_comparable_if_all_that_both_state_agrees(
    changes: dict[str, object], not_compared: list[str] | None
) -> None:
    (row,) = summarize([fake_run(xla="off")])
    figure = _figure(**changes)
    assert published.beside(row, _table(figure)) == ([] if not_compared is None else [figure])
    assert not_compared is None or published.differences(row, figure)[1] == not_compared


def test_a_ratio_of_repeats_has_the_interval_of_both() -> None:
    (row,) = summarize([fake_run(), fake_run()])
    row = dataclasses.replace(row, images_per_sec=Interval(320, 320 * math.exp(-0.03), 320 * math.exp(0.03)))
    theirs = {"images_per_sec_low": 200 * math.exp(-0.04), "images_per_sec_high": 200 * math.exp(0.04), "repeats": 2}
    figure = _figure(images_per_sec=200.0, **theirs)
    found = published.ratio(row, figure)
    assert (found.value, found.low, found.high) == pytest.approx((1.6, 1.6 * math.exp(-0.05), 1.6 * math.exp(0.05)))
    assert published.in_words(row, figure) == "faster, beyond what processes differ by"


@pytest.mark.parametrize(
    ("images_per_sec", "repeats", "words"),
    [
        (318.0, 3, "within what processes differ by"),
        (200.0, None, "faster, beyond what processes differ by"),
        (380.0, 1, "within what processes differ by"),
        (600.0, 3, "slower, beyond what processes differ by"),
    ],
)
def test_what_was_not_repeated_may_differ_by_chance(images_per_sec: float, repeats: int | None, words: str) -> None:
    (row,) = summarize([fake_run(step_seconds=seconds) for seconds in (0.1, 0.101, 0.099)])
    bounds = {"images_per_sec_low": 0.999 * images_per_sec, "images_per_sec_high": 1.001 * images_per_sec}
    assert published.in_words(row, _figure(images_per_sec=images_per_sec, repeats=repeats, **bounds)) == words


@pytest.mark.parametrize("between", [0.0, 0.02, 0.05])
@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_machines_of_equal_speed_are_seldom_told_apart(between: float, repeats: int) -> None:
    random = np.random.default_rng(4)

    def measured() -> Row:
        runs = [
            0.1 * np.exp(between * random.standard_normal() + 0.03 * random.standard_normal(10)) for _ in range(repeats)
        ]
        (row,) = summarize([fake_run(step_seconds=list(steps)) for steps in runs])
        return row

    pairs = [(measured(), *public_table.of_rows([measured()])) for _ in range(150)]
    assert sum(published.ratio(row, figure).side_of(1) != 0 for row, figure in pairs) <= 0.05 * 150


def test_the_rank_counts_the_figures_that_are_faster_beyond_chance() -> None:
    (row,) = summarize([fake_run(), fake_run()])
    rates = (100.0, 300.0, 330.0, 900.0)
    figures = [_figure(machine=name, images_per_sec=rate) for name, rate in zip("ABCD", rates, strict=True)]
    ((name, sentence),) = published.standings([row], [_table(*figures[:2]), _table(*figures[2:])])
    assert sentence.startswith("rank 2 to 4 of 5 (4 comparable machines and yours): 1.07 x the figure of B")
    assert "; 0.97 x the figure of C" in sentence and " A" not in sentence and " D" not in sentence
    known = [dataclasses.replace(f, repeats=2, images_per_sec_low=f.images_per_sec) for f in figures]
    ((_, sentence),) = published.standings([row], [_table(*known)])
    assert sentence.startswith("rank 3 of 5 (")
    managers = [dataclasses.replace(f, machine="A", variable_update=f.machine) for f in figures]
    ((_, sentence),) = published.standings([row], [_table(*managers)])
    assert sentence.startswith("rank 2 of 2 (1 comparable machine and yours): 0.356 x"), "its fastest manager counts"
    (half,) = summarize([fake_run(precision="bf16", xla="off")] * 2)
    alike = [_figure(precision=name, xla=xla, images_per_sec=rate) for name, xla, rate in SIMILAR]
    ((_, sentence),) = published.standings([half], [_table(*alike)])
    assert " 0.80 x the figure " in sentence and "precision" not in sentence, "the figure of its own precision"
    twice = [dataclasses.replace(figures[3], machine="A"), *figures[:2]]
    ((_, sentence),) = published.standings([row], [_table(*twice)])
    assert "1.07 x the figure of B" in sentence and "; 0.356 x the figure of A" in sentence
    assert published.standings([row], [_table(_figure(devices=3))]) == []


def _h100(gpus: int, batch: int, **config: object) -> Record:
    """A run at 2,500 images/s of each H100."""
    fields = {"model": "resnet50_v1.5", "precision": "fp16", "num_devices": gpus, "batch_per_device": batch}
    record = fake_run(rate=2500.0 * gpus, xla="off", **{**fields, **config})
    return replace(record, environment={**record.environment, "gpus": ["NVIDIA H100 80GB HBM3 80 GiB"] * gpus})


@pytest.mark.parametrize(
    ("gpus", "batch", "nearest"),
    [
        (1, 256, "0.896 x 2,791 images/s of 1 x H100 SXM 80GB"),
        (8, 256, "0.907 x 22,059 images/s of 8 x H100 SXM 80GB"),
        (8, 64, "0.907 x 22,059 images/s of 8 x H100 SXM 80GB"),
    ],
)
def test_an_owner_of_h100s_gets_the_nearest_figures_of_them(gpus: int, batch: int, nearest: str) -> None:
    modern = published.table("modern")
    ((_, sentence),) = published.standings(summarize([_h100(gpus, batch)]), [modern])
    assert f"earest figures, not compared: {nearest} (Lambda deeplearning-benchmark), PyTorch, which" in sentence
    assert f"differs in batch per device (yours {batch}, theirs 1280); " in sentence
    (row,) = summarize([_h100(gpus, batch)])
    assert published.why_none([row], modern) is None


def test_with_real_data_the_figure_of_mlperf_is_compared() -> None:
    rows = summarize([_h100(8, 400, data_name="imagenet")])
    ((_, sentence),) = published.standings(rows, [published.table("modern")])
    assert sentence.startswith("rank 2 to 3 of 4 (3 comparable machines and yours): 1.20 x the figure of A100 SXM 80")
    assert "not compared: batch per device (not stated); 0.36 x the figure of H100 SXM 80GB (DGX H100)" in sentence
    ((_, in_bf16),) = published.standings(
        summarize([_h100(8, 400, data_name="imagenet", precision="bf16")]), [published.table("modern")]
    )
    assert "precision (yours bf16, theirs fp16); 0.36 x the figure of H100 SXM 80GB (DGX H100)" in in_bf16
    ((_, synthetic),) = published.standings(summarize([_h100(8, 400)]), [published.table("modern")])
    assert "MXNet, which differs in data (yours synthetic, theirs real)" in synthetic
    ((_, without_software),) = published.standings(summarize([_h100(1, 4)]), [published.table("guide2017")])
    assert "x 219 images/s of 1 x DGX-1 8xP100, which differs in" in without_software


def test_figures_of_the_own_machine_are_left_out() -> None:
    """A second manager of the machine is no other machine, though its run is not among the records."""
    mine, other = fake_run(), fake_run(variable_update="independent")
    table = _table(*public_table.of_rows(summarize([mine, other])), _figure(machine="of others"))
    found = published.of_others(table, [mine])
    assert [figure.machine for figure in found.figures] == ["of others"]
    assert found.problems[0].startswith("t: this is your own result: its figures of hardware ")
    assert "(2 of 3) are not compared" in found.problems[0]
    assert published.of_others(table, [fake_run()]) == table


def test_the_plot_shows_the_intervals_of_both() -> None:
    records = [fake_run(step_seconds=[0.1, 0.12] * 10)]
    table = _table(_figure(images_per_sec_low=300.0, images_per_sec_high=350.0))
    figure = against(table).draw(summarize(records))
    assert figure is not None
    bars = [container.lines[2][0].get_segments()[0][:, 1] for container in figure.axes[0].containers]
    derived = records[0].derived
    assert [tuple(bar) for bar in bars] == [
        pytest.approx((300, 350)),
        pytest.approx((derived.images_per_sec_low, derived.images_per_sec_high)),
    ]
