"""What of secrets is left by runs, a report and a comparison."""

from __future__ import annotations

import sys

import pytest

from tests.support.scratch import TINY, Scratch

SECRETS = {
    "NVIDIA_API_KEY": "secret-1",
    "TF_TOKEN_app_terraform_io": "secret-2",
    "TF_VAR_db_password": "secret-3",
    "NCCL_TOKEN": "secret-4",
    "XLA_FLAGS_CREDENTIALS": "secret-5",
}
SHORT = (*TINY, "--num_batches=5")


@pytest.mark.fault(
    "R15",
    "secrets in variables such as NVIDIA_API_KEY and TF_TOKEN_HOST, in a --base_command of ab, and in an address that "
    "--data_dir names",
    survives="none is in a record, a report's page, a summary of GitHub, any other file, or an output",
)
def test_secrets_stay_inside(scratch: Scratch) -> None:
    outputs = [f"--{name}_file={scratch.directory / name}" for name in ("json", "junit", "markdown")]
    base = f"--base_command=env API_TOKEN=secret-7 {sys.executable} -c 0"
    ab = (*SHORT, base, "--nowarmup", "--max_repeats=6", f"--output_dir={scratch.directory / 'ab'}")
    summary = {"GITHUB_STEP_SUMMARY": str(scratch.directory / "summary.md")}
    scratch.expect(scratch.bench("run", *SHORT, **SECRETS), 0, records=["ok"])
    page = f"--output={scratch.directory / 'page'}"
    scratch.expect(scratch.bench("report", scratch.out, page, **SECRETS), 0)
    scratch.expect(scratch.bench("ab", *ab, *outputs, **summary), 3, 4)
    scratch.expect(scratch.bench("run", *SHORT, "--data_dir=https://me:secret-8@example.org/data"), 2, 5)
    texts = {path: path.read_bytes() for path in scratch.directory.rglob("*") if path.is_file()}
    assert not [path for path, text in texts.items() if b"secret-" in text]
