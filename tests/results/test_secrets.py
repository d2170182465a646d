"""What looks like a secret, and what does not, in commands and records."""

from __future__ import annotations

import dataclasses

import pytest

from results.text import without_secrets
from tests.support.records import make_record


@pytest.mark.parametrize(
    ("word", "masked"),
    [
        ("--api_key=abc", "--api_key=***"),
        ("-password=a b", "-password=***"),
        ("env API_TOKEN=abc python x.py", "env API_TOKEN=*** python x.py"),
        ("MYSQL_PWD=abc mysql", "MYSQL_PWD=*** mysql"),
        ("run --auth 'a b' --model=x", "run --auth *** --model=x"),
        ("curl -H 'Authorization: Bearer abc.def'", "curl -H 'Authorization: Bearer ***"),
        ("https://me:secret@host/x", "https://***@host/x"),
        ("https://me:a/b@c@host/x", "https://***@host/x"),
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
        "--author=me",
        "https://host:80/x",
        "user@host:/path",
    ],
)
def test_what_moves_a_number_is_not_masked(word: str) -> None:
    assert without_secrets([word]) == [word]


def test_the_word_after_a_secret_flag_is_masked() -> None:
    assert without_secrets(["--token", "abc", "--model=x"]) == ["--token", "***", "--model=x"]


def test_no_text_of_a_saved_record_has_a_password() -> None:
    address = "https://me:secret@host/x"
    made = make_record(
        reason=f"{address} does not exist", warnings=[address], config={"data_dir": address, "n": [address]}
    )
    made = dataclasses.replace(made, identity=dataclasses.replace(made.identity, session_id=address))
    assert "secret" not in made.masked().to_json()
