"""Published figures: each can stand beside a run of this suite."""

from __future__ import annotations

import pytest

from benchmarks.config import config, flag, run_flags
from benchmarks.config.config import Config
from benchmarks.sweep import grid, sweep_verb
from results.report import published
from results.report.side_tables import side_tables
from results.summary import published_table, summarize
from tests.support.records import fake_run

GUIDE = published_table("guide2017")
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


def _configured(row: dict[str, str]) -> Config:
    """Returns the configuration of a row of the guide, on a machine with enough GPUs."""
    manager, *words = MANAGERS[row["variable_update"]]
    gpus = int(row["gpus"])
    if manager == "distributed_replicated":
        hosts = max(1, gpus // GPUS_OF_A_HOST)
        gpus //= hosts
        words.append(f"--local_cluster=ps:{hosts},worker:{hosts}")
    words += [f"--variable_update={manager}", f"--num_gpus={gpus}", f"--batch_size={row['batch_per_gpu']}"]
    words += [f"--model={MODELS[row['model']]}", *(["--data_dir=imagenet"] if row["data"] == "real" else [])]
    return config.resolve(flag.parse(words, run_flags.RUN_FLAGS).values, lambda: 64, {})


@pytest.mark.parametrize("model", MODELS)
def test_every_row_of_the_guide_stands_beside_a_run_with_its_settings(model: str) -> None:
    rows = [row for row in GUIDE if row["model"] == model]
    made = {}
    for row in rows:
        chosen = _configured(row)
        names = ("model", "variable_update", "num_devices", "num_workers", "batch_per_device", "data_name")
        made[chosen.model, chosen.batch_per_device, chosen.towers_in_total] = fake_run(
            **{name: getattr(chosen, name) for name in names}
        )
    records = list(made.values())
    (table,) = [one for one in side_tables(records, summarize(records), "guide2017") if one.name == "published"]
    found = sorted((where, setting, rate) for _, _, where, setting, rate, _ in table.lines)
    assert found == sorted(
        (
            row["platform"],
            f"{row['variable_update']}, {row['data']}, batch {row['batch_per_gpu']}, {row['gpus']} devices",
            f"{float(row['images_per_sec']):g}",
        )
        for row in rows
    )


def test_the_guide_has_these_models_alone() -> None:
    assert {row["model"] for row in GUIDE} == {*MODELS}


def test_every_model_that_is_compared_exists() -> None:
    missing = published.why_none([], "guide2017")
    for name in missing.partition("(batches per device): ")[2].split("; on")[0].split("), "):
        assert config.resolve(flag.parse([f"--model={name.split()[0]}"], run_flags.RUN_FLAGS).values, lambda: 1, {})


def _cells(*words: str) -> list[grid.Cell]:
    parsed = flag.parse(["--preset=guide2017", *words], grid.sweep_groups(sweep_verb.SWEEP_FLAGS))
    return grid.cells([grid.of_flags(parsed.values)], lambda: 8)


def test_the_preset_has_the_guides_models_and_batches() -> None:
    runs = {(c.config.model, c.config.batch_per_device, c.config.num_devices) for c in _cells("--device=gpu")}
    batches = {"alexnet": 512, "inception3": 64, "resnet50": 64, "resnet152": 64, "vgg16": 64}
    assert runs == {(model, batch, gpus) for model, batch in batches.items() for gpus in (1, 2, 4, 8)}
    published_runs = {(MODELS[row["model"]], int(row["batch_per_gpu"]), int(row["gpus"])) for row in GUIDE}
    assert runs <= published_runs
    small = {(c.config.model, c.config.batch_per_device) for c in _cells("--device=gpu", "--batch_size=32")}
    assert small - {run[:2] for run in published_runs} == {("alexnet", 32)}


def test_on_a_cpu_the_preset_has_batches_that_fit_there() -> None:
    found = {c.config.model: c.config.batch_per_device for c in _cells("--device=cpu", "--num_gpus=1")}
    assert found.keys() == {*MODELS.values()} and max(found.values()) == 32
