"""What becomes of errors that no verb expects."""

from __future__ import annotations

import errno
import os

import pytest

from benchmarks.cli import main
from benchmarks.errors import ExitStatus


def test_a_path_that_may_not_be_read_is_named_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/home/other/models")

    monkeypatch.setattr(main, "dispatch", refuse)
    assert main.main(["run"]) == ExitStatus.USAGE
    said = capfd.readouterr().err
    assert said.startswith("run_bench: /home/other/models: Permission denied. Choose another path")
    assert "Traceback" not in said
