"""What looks like a secret, and what does not, in commands and records."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from results.masking import without_passwords, without_secrets
from tests.support.records import make_record


@pytest.mark.parametrize(
    ("word", "masked"),
    [
        ("--api_key=abc", "--api_key=***"),
        ("env API_TOKEN=abc python x.py", "env API_TOKEN=*** python x.py"),
        ("run --auth 'a b' --model=x", "run --auth *** --model=x"),
        ("curl -H 'Authorization: Bearer abc.def' h", "curl -H 'Authorization: ***' h"),
        ('curl -H "X-Api-Key: a b"', 'curl -H "X-Api-Key: ***"'),
        ("X-Auth-Key: abc", "X-Auth-Key: ***"),
        ("use Bearer abc.def now", "use Bearer *** now"),
        ("env PGPASSWORD=HUNTER2 python x.py", "env PGPASSWORD=*** python x.py"),
        ("WANDB_APIKEY=abc x", "WANDB_APIKEY=*** x"),
        ("authToken=abc", "authToken=***"),
        ("--accessTokens a,b --x=1", "--accessTokens *** --x=1"),
        ("clientSecret='a b' x", "clientSecret=*** x"),
        ("AWS_SECRET_ACCESS_KEY=abc", "AWS_SECRET_ACCESS_KEY=***"),
        ('{"password": "a b", "x": 1}', '{"password": ***, "x": 1}'),
        ("password: a b", "password: ***"),
        ("db_password = abc", "db_password = ***"),
        ('"client_secret" => "a b", "x" => 1', '"client_secret" => *** "x" => 1'),
        ("http://h/?token=X&run=1", "http://h/?token=***&run=1"),
        ("http://h/x?run=1&X-Amz-Signature=a%2Fb&y=2", "http://h/x?run=1&X-Amz-Signature=***&y=2"),
        ("--mlflow_uri=postgresql://u:p@h/db", "--mlflow_uri=postgresql://***@h/db"),
        ("--uri=http://u:p@h/,http://v:q@i/", "--uri=http://***@i/"),
        ("me:secret@host:/path", "***@host:/path"),
        ("--from=me:secret@host", "--from=***@host"),
        ("https://me:a/b@c@host/x", "https://***@host/x"),
        (f"push ghp_{'a1' * 18} to h", "push *** to h"),
        (f"(hf_{'aB' * 17})", "(***)"),
        (f"github_pat_{'1A' * 11}_{'b2' * 29}", "***"),
        (f"sk-proj-a-B_{'c3' * 9}", "***"),
        ("x AKIAIOSFODNN7EXAMPLE", "x ***"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.a_b-c", "***"),
        ("//token@host/x", "//***@host/x"),
        ("/data/x?sig=abc", "/data/x?sig=***"),
    ],
)
def test_a_secret_is_masked(word: str, masked: str) -> None:
    assert without_secrets([word]) == [masked]


@pytest.mark.parametrize(
    "word",
    [
        "--xla_disable_hlo_passes=algsimp,dce --xla_llvm_disable_expensive_passes=true",
        "--session_id=monkey=4",
        "--output_dir=/data/passes=3/x",
        "--worker_hosts=a:1,b:2",
        "--base_command=/opt/keys/bin/python run_bench.py --model=trivial",
        "user@host:/path",
        "git@github.com:owner/name.git",
        "http://host:80/x@y",
        "/job:ps/replica:0/task:0/device:CPU:0",
        "config_key: abc, hardware_key: def",
        "--tokenizer=bert",
        "--session_id=sk-learn-of-2026 --output_dir=hf_resnet50_runs",
        "a hotkey=x",
        "API_TOKEN= python x.py",
    ],
)
def test_what_moves_a_number_is_not_masked(word: str) -> None:
    assert without_secrets([word]) == [word]


@pytest.mark.fault("R15", "secrets in what is printed", survives="they are masked, and JSON stays JSON")
@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (
            '{"config_key": "abc", "reason": "no api_token=x\\"y"}',
            '{"config_key": "abc", "reason": "no api_token=***\\"y"}',
        ),
        ("sent to http://h/?token=X failed", "sent to http://h/?token=*** failed"),
        ("sent to http://u:p@h failed", "sent to http://***@h failed"),
        ("the model says password=a", "the model says password=***"),
        ("--where=config_key=abc", "--where=config_key=abc"),
    ],
)
def test_what_is_printed_is_masked_and_json_stays_json(text: str, printed: str) -> None:
    assert without_passwords(text) == printed


@pytest.mark.fault(
    "R15",
    "addresses with a password, and secrets in commands and variables",
    survives="no text of the saved record has them",
)
def test_no_text_of_a_saved_record_has_a_password() -> None:
    address = "https://me:secret@host/x"
    made = make_record(
        reason=f"{address} does not exist", warnings=[address], config={"data_dir": address, "n": [address]}
    )
    made = replace(
        made,
        identity=replace(made.identity, session_id=address, command=["--token", "secret"]),
        environment={"machine": address, "variables": {"XLA_FLAGS": "--password=secret -O"}},
    )
    assert "secret" not in made.cleaned().to_json()
