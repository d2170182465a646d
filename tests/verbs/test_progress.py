"""Every verb reports what takes long on stderr, and nothing of it on stdout."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from benchmarks import console
from benchmarks.doctor import machine_checks
from benchmarks.microbench import device_peak
from benchmarks.process import subprocesses
from benchmarks.verify import cases
from tests.support.commands import RunBench
from tests.support.fake_runs import FakeRuns, record_of
from tests.support.rotation import rotating
from variable_mgr.modifiers import Modifiers

RUN = ("--device=cpu", "--num_gpus=1", "--model=mlp", "--batch_size=4", "--num_batches=2")
ON_CPU = ("--device=cpu", "--num_gpus=2")
# A command, and what it reports if every line of progress is printed at once.
COMMANDS = [
    ((*RUN, "--output_format=json"), "Measuring: 0 of 2."),
    (("data", "make_imagenet", "made", "--train_images=3"), "Writing train images to made: "),
    (("data", "convert", "photos", "made"), "Converting the photos to made: "),
    (("data", "check", "IMAGENET"), "Checking the files of IMAGENET: 1 of 4"),
    (("data", "check", "photos"), "Checking the files of photos: 2 of 2."),
    (("verify", *ON_CPU), "Comparing: 1 of 1."),
    (
        ("allreduce", *ON_CPU, "--all_reduce_spec=pscpu", "--model=none", "--max_bytes=2K", "--num_batches=3"),
        "Reducing messages: 1 of 2",
    ),
    (
        ("input", *RUN[:2], "--model=alexnet", "--batch_size=2", "--data_dir=IMAGENET", "--stage_seconds=0.05"),
        "Measuring the input's stages: 1 of 35",
    ),
    (("recommend", *ON_CPU, "--model=mlp"), "Trying as given, up to "),
    (("doctor", "--device=cpu", "--model=mlp"), "Compute: mlp, 100 images on 1 device"),
    (
        ("ab", "--base_command=sh a", "--candidate_command=sh b", *RUN, "--max_repeats=6"),
        "Repeat 1 of at most 6, mlp",
    ),
    (("sweep", *RUN, "--repeats=2"), "[2/2] "),
    (("track", "calibrate", *RUN, "--repeats=3"), "Repeat 2 of at most 3, mlp, "),
    ((*RUN, "--batch_size=auto"), "--batch_size=auto: trying 100 images."),
]


@pytest.fixture
def prepared(tmp_path: Path, fake_imagenet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the commands read, a short verification, and runs that start no process."""
    for name in ("one", "two"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(tmp_path / "photos" / name / "photo.jpg")
    (tmp_path / "IMAGENET").symlink_to(fake_imagenet)
    case = cases.Case("replicated", Modifiers(), "cpu", "sgd", "replicated")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cases, "cases", lambda: iter([case]))
    monkeypatch.setattr(subprocesses, "supervise", FakeRuns(record_of))
    monkeypatch.setattr(machine_checks, "look", list)
    monkeypatch.setattr(device_peak, "roofline_apart", lambda *_: (None, "there is none"))


@pytest.mark.usefixtures("prepared")
@rotating(("command", "line"), COMMANDS, first=7, ids=lambda value: value[0] if isinstance(value, tuple) else "")
def test_what_takes_long_is_reported(
    command: tuple[str, ...], line: str, run_bench: RunBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "_FIRST_LINE_SECONDS", 0.0)
    monkeypatch.setattr(console, "_NEXT_LINE_SECONDS", 0.0)
    done = run_bench(*command)
    assert f"run_bench: {line}" in done.stderr
    assert line not in done.stdout and "\x1b" not in done.stdout + done.stderr
