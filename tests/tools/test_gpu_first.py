"""The first half hour on a GPU, as far as it can be tested without one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cli.verbs import VERBS, flags_of
from benchmarks.config import config, flag, run_flags
from tests.support.commands import ROOT, RUN_BENCH, USER_ENVIRONMENT, finished
from tools import gpu_first
from tools.gpu_first import Step

pytestmark = pytest.mark.process
Records = Callable[[], list[dict[str, Any]]]


def test_every_command_that_is_listed_can_be_run_on_one_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gpu_first.main([str(tmp_path), "--list"]) == 0
    monkeypatch.delenv("TF_CONFIG", raising=False)
    runs = 0
    for line in capsys.readouterr().out.splitlines():
        words = shlex.split(line)
        if str(RUN_BENCH[-1]) not in words and "tools.gpu_first" not in words:
            continue
        changes = [word.partition("=")[2] for word in words if word.startswith("--change=")]
        assert all(change.partition(":")[0] in gpu_first.CHANGES for change in changes)
        rest = words[1 + words.index("--" if changes else str(RUN_BENCH[-1])) :]
        verb = "run" if rest[0].startswith("--") else rest.pop(0)
        values = flag.parse(rest, flags_of(VERBS[verb])).values
        if verb == "run":
            assert config.resolve(values, lambda: 1).devices.device == "gpu"
            runs += 1
    assert runs == sum(step.is_run for step in gpu_first.steps()) >= 16
    assert not list(tmp_path.iterdir())


def test_a_step_that_fails_or_takes_too_long_does_not_end_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = (sys.executable, "-c")
    steps = [
        Step("fails", ("raise SystemExit(3)",), program=python),
        Step("hangs", ("import time; time.sleep(60)",), 0.5, program=python),
        Step("missing", (), program=(str(tmp_path / "none"),)),
        Step("works", ("import os; print(os.environ['A'])",), program=python, variables={"A": "1"}),
    ]
    assert gpu_first.run(steps, tmp_path, minutes=1.0) == 4
    lines = [line.split()[:2] for line in (tmp_path / "table.txt").read_text().splitlines()]
    assert lines[2:4] == [["fails", "status"], ["hangs", "killed"]]
    assert lines[4][0] == "missing" and lines[5] == ["works", "ok"]
    assert (tmp_path / "works.out").read_text() == "1\n"
    assert (tmp_path / "table.txt").read_text() == capsys.readouterr().out
    assert gpu_first.run(steps[-1:], tmp_path, minutes=0.0) == 4
    assert "not run" in (tmp_path / "table.txt").read_text()


def test_what_no_flag_does_is_done(tmp_path: Path, records: Records) -> None:
    import tensorflow as tf

    raw = tmp_path / "step.pb"
    changes = ("--change=sync:0", f"--change=metadata:{raw}")
    flags = ("--device=cpu", "--model=mlp", "--batch_size=2", "--num_batches=2", f"--output_dir={tmp_path}/out")
    words = [*changes, "--", *flags, f"--trace_file={tmp_path}/trace.json"]
    done = finished([sys.executable, "-m", "tools.gpu_first", *words], ROOT, USER_ENVIRONMENT)
    assert done.status == 0, done.stderr
    assert records()[0]["environment"]["variables"]["TF_SYNC_ON_FINISH"] == "0"
    metadata = tf.compat.v1.RunMetadata.FromString(raw.read_bytes())
    assert metadata.step_stats.dev_stats and metadata.partition_graphs


def test_the_layout_optimizer_is_switched(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.graph import run_graph

    monkeypatch.setattr(run_graph, "session_config", run_graph.session_config)
    gpu_first.CHANGES["layout"]("off")
    chosen = config.resolve(flag.parse(["--device=cpu"], run_flags.RUN_FLAGS).values, int)
    rewriting = run_graph.session_config(chosen.devices, chosen.runtime).graph_options.rewrite_options
    assert rewriting.layout_optimizer == rewriting.OFF
