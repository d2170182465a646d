"""Secrets, addresses that are options, networks that are open, and files from elsewhere."""

from __future__ import annotations

import copy
import shlex
import sys
from typing import Any

import psutil

from tests.faults.catalog import fault
from tests.faults.harness import TINY, Scratch, a_record, in_shell, want, write_records

_SECRETS = {
    "NVIDIA_API_KEY": "nvapi-secret-1",
    "TF_TOKEN_app_terraform_io": "secret-2",
    "TF_VAR_db_password": "secret-3",
    "NCCL_TOKEN": "secret-4",
    "CUDA_PASSWORD": "secret-5",
    "XLA_FLAGS_CREDENTIALS": "secret-6",
}
_ESCAPE = "\x1b]0;owned\x07\x1b[2J"
_RING = "--variable_update=collective_all_reduce"


def _hides(scratch: Scratch, secrets: list[str], texts: dict[str, str]) -> None:
    """Fails if a secret is in an output or in any file of the results, page and logs."""
    files = [
        path for path in scratch.directory.rglob("*") if path.is_file() and path.suffix not in (".stdout", ".stderr")
    ]
    texts = {**texts, **{path.name: path.read_text(errors="replace") for path in files}}
    found = sorted({(name, secret) for name, text in texts.items() for secret in secrets if secret in text})
    want(not found, f"secrets in {found}")


@fault(
    "secrets-of-the-environment",
    "R15",
    injects="six secrets in variables such as NVIDIA_API_KEY and TF_TOKEN_HOST",
    must="none is in results.jsonl, the report's page or an output; the run is ok",
)
def _environment(scratch: Scratch) -> None:
    ended = scratch.bench("run", *TINY, "--num_batches=5", variables=_SECRETS)
    scratch.expect(ended, 0, records=["ok"])
    page = scratch.bench("report", scratch.out, f"--output={scratch.directory / 'page'}", variables=_SECRETS)
    scratch.expect(page, 0)
    _hides(scratch, list(_SECRETS.values()), {"the run's output": ended.text, "the report's output": page.text})


@fault(
    "secret-in-a-command",
    "R15",
    injects="ab with a --base_command that sets API_TOKEN, and a GitHub summary",
    must="the token is in no file, summary or output",
)
def _command(scratch: Scratch) -> None:
    summary = scratch.directory / "summary.md"
    outputs = [f"--{name}={scratch.directory / name}" for name in ("json", "junit", "markdown")]
    base = f"--base_command=env API_TOKEN=secret-7 {sys.executable} -c 0"
    words = (*TINY, "--num_batches=5", "--nowarmup_round", "--max_rounds=6", f"--output_dir={scratch.out}")
    ended = scratch.bench("ab", base, *words, *outputs, variables={"GITHUB_STEP_SUMMARY": str(summary)})
    scratch.expect(ended, 3, 4)
    _hides(scratch, ["secret-7"], {"the output": ended.text})


@fault(
    "secret-in-a-flag",
    "R15",
    injects="run with a --data_dir that is an address with a password",
    must="the password is in no file and no output",
)
def _flag(scratch: Scratch) -> None:
    ended = scratch.bench("run", *TINY, "--num_batches=5", "--data_dir=https://me:secret-8@example.org/data")
    scratch.expect(ended, 2, 5)
    _hides(scratch, ["secret-8"], {"the output": ended.text})


for _name, _host in {
    "version": "-V",
    "command": "-oProxyCommand=touch pwned",
    "log": "-E/tmp/log",
    "second": "h0,-F/dev/null",
}.items():

    @fault(
        f"host-that-is-an-option-{_name}",
        "R16",
        injects=f"a host that is an option of ssh: {_host}",
        must="status 2, before ssh is started",
        needs=["ssh"],
    )
    def _hosts(scratch: Scratch, host: str = _host) -> None:
        ended = scratch.bench("run", *TINY, _RING, f"--hosts={host}", "--ssh", "--num_batches=5")
        scratch.expect(ended, 2, never=["OpenSSH", "ssh:", "Model:  "])
        want(not (scratch.directory / "pwned").exists(), "ssh has run a command")


@fault(
    "no-private-network",
    "R16",
    injects="a local cluster where the kernel refuses network namespaces",
    must="status 2 naming --noprivate_network, and no server is open to the network",
    needs=["user_namespaces"],
)
def _no_namespace(scratch: Scratch) -> None:
    words = ("run", *TINY, _RING, "--local_cluster=worker:2", "--num_batches=50")
    limit = ("unshare", "-Ur", *in_shell("echo 0 >/proc/sys/user/max_net_namespaces"))
    cluster = scratch.start(*words, under=limit)
    while not cluster.ended_within(0.5):
        pids = {process.pid for process in scratch.processes()}
        sockets = [each for each in psutil.net_connections("tcp") if each.pid in pids and each.status == "LISTEN"]
        want(all(each.laddr.ip in ("127.0.0.1", "::1") for each in sockets), f"open to the network: {sockets[:2]}")
    scratch.expect(cluster.end(), 2, says=["--noprivate_network"])


def _foreign(scratch: Scratch, **identity: Any) -> dict[str, Any]:
    record = copy.deepcopy(a_record())
    record["identity"] |= {"run_id": "f0f0f0f0f0f0", **identity}
    return record


for _verb, _words in {
    "ab": ["ab", "--base_command=sh -c 'touch pwned'", "--nowarmup_round", *TINY],
    "report": ["report", "out/results.jsonl", "--output=pwned"],
    "data": ["data", "make-mnist", "pwned"],
}.items():

    @fault(
        f"rerun-of-{_verb}",
        "R17",
        injects=f"rerun of a record from elsewhere whose command is: {shlex.join(_words)[:60].replace('|', '/')}",
        must="status 2, and nothing is executed",
    )
    def _rerun(scratch: Scratch, words: list[str] = _words) -> None:
        path = write_records(scratch.out, _foreign(scratch, command=words))
        ended = scratch.bench("rerun", "f0f0f0f0f0f0", path)
        want(not (scratch.directory / "pwned").exists(), "the command of the record was executed")
        scratch.expect(ended, 2)


@fault(
    "terminal-escapes",
    "R17",
    injects="a record whose model, reason and command have escapes of the terminal; report, diff, rerun --dry_run",
    must="no escape reaches the terminal",
)
def _escapes(scratch: Scratch) -> None:
    record = _foreign(scratch, command=["run", f"--model={_ESCAPE}"])
    record["config"] |= {"model": f"trivial{_ESCAPE}"}
    record |= {"warnings": [f"odd{_ESCAPE}"]}
    failed = copy.deepcopy(record) | {"status": "crash", "reason": f"why{_ESCAPE}"}
    failed["identity"]["run_id"] = "e0e0e0e0e0e0"
    path = write_records(scratch.out, a_record(), record, failed)
    own = a_record()["identity"]["run_id"]
    for words in (["report", path], ["diff", own, "f0f0", path], ["rerun", "f0f0", path, "--dry_run"]):
        ended = scratch.bench(*words)
        want(
            "\x1b" not in ended.text and "\x07" not in ended.text, f"{words[0]} prints an escape: {ended.text[:200]!r}"
        )


@fault(
    "formulas-in-the-csv",
    "R17",
    injects="a run whose --session_id begins with '=', and a record from elsewhere with such a model",
    must="no cell of results.csv begins with =, +, - or @ unless it is a number",
)
def _formulas(scratch: Scratch) -> None:
    record = _foreign(scratch)
    record["config"] |= {"model": "@SUM(1)"}
    write_records(scratch.out, record)
    ended = scratch.bench("run", *TINY, "--num_batches=5", "--session_id==HYPERLINK(1)")
    scratch.expect(ended, 0, records=["ok", "ok"])
    cells = (scratch.out / "results.csv").read_text().replace("\n", ",").replace('"', "").split(",")
    odd = [cell for cell in cells if cell.startswith(("=", "@", "+", "-")) and not cell[1:2].isdigit()]
    want(not odd, f"cells of results.csv: {odd}")


@fault(
    "markup-of-a-foreign-record",
    "R17",
    injects="a record whose reason has an image, a link and a script; report --output",
    must="report.md shows the text and loads no image, report.html has no such tag",
)
def _markup(scratch: Scratch) -> None:
    record = _foreign(scratch) | {"status": "crash", "reason": "![x](http://evil.example/x) <script>alert(1)</script>"}
    record["config"] |= {"model": "![y](http://evil.example/y)"}
    path = write_records(scratch.out, a_record(), record)
    scratch.expect(scratch.bench("report", path, f"--output={scratch.directory / 'page'}"), 0)
    markdown = (scratch.directory / "page" / "report.md").read_text()
    want("![x](" not in markdown and "![y](" not in markdown, "report.md loads an image from the record")
    want("<script>alert" not in markdown, "report.md has the script")
    want("<script>alert" not in (scratch.directory / "page" / "report.html").read_text(), "report.html has the script")
