"""`--settings=recommended`: which stored answer fits a run, what it changes, and what a run without one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.config import config, flag, recommended, run_flags
from benchmarks.config.config import Config
from benchmarks.errors import UsageError
from benchmarks.sweep import grid
from benchmarks.system import cache
from benchmarks.system.provenance import of_this_run
from benchmarks.tune import batch_size

ON_CPU = ("--model=trivial", "--device=cpu")
CHOSEN = ("--data_format=NHWC", "--xla=jit", "--batch_size=64", "--variable_update=replicated", "--num_intra_threads=1")


@pytest.fixture(autouse=True)
def cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def _values(words: tuple[str, ...]) -> dict:
    return dict(flag.parse(words, run_flags.RUN_FLAGS).values)


def _resolve(*words: str) -> Config:
    return config.resolve(_values(words), lambda: 0, environ={})


def _recommended(*words: str) -> Config:
    return _resolve(*words, "--settings=recommended")


def _keep(name: str, fixed: tuple[str, ...], *chosen: str) -> None:
    """Stores an answer as `recommend` does."""
    asked = dict(word.removeprefix("--").split("=", 1) for word in fixed)
    about = recommended.stored(asked, [*fixed, *chosen], _resolve(*fixed).key_fields())
    identity = of_this_run((), on_gpus=False).identity({})
    cache.keep(cache.key(identity, {"name": name}), {"command": "", **about})


def test_a_run_gets_what_was_found_and_says_so() -> None:
    _keep("one", ON_CPU, *CHOSEN)
    usual, found = _resolve(*ON_CPU), _recommended(*ON_CPU)
    assert (found.xla, found.batch_per_device, found.variable_update) == ("jit", 64, "replicated")
    assert found.num_intra_threads == 1 and found.settings == "recommended"
    asked = "`run_bench.py recommend --model=trivial --device=cpu`"
    assert any(" ".join(CHOSEN) in notice and asked in notice for notice in found.notices)
    assert any("64 instead of 32 trains differently" in notice for notice in found.notices)
    assert "settings" not in usual.key_fields(), "records of before keep their key"


def test_equal_settings_given_by_hand_are_no_repeat() -> None:
    _keep("one", ON_CPU, *CHOSEN)
    by_hand, found = _resolve(*ON_CPU, *CHOSEN).key_fields(), _recommended(*ON_CPU).key_fields()
    assert found == {**by_hand, "settings": "recommended"}


def test_flags_that_are_given_win_with_those_that_belong_to_them() -> None:
    _keep("one", ON_CPU, *CHOSEN, "--all_reduce_spec=xring")
    found = _recommended(*ON_CPU, "--xla=off", "--variable_update=collective_all_reduce", "--batch_size=64")
    assert (found.xla, found.variable_update, found.num_intra_threads) == ("off", "collective_all_reduce", 1)
    assert found.modifiers.all_reduce_spec != "xring"
    assert any(
        "--all_reduce_spec=xring --variable_update=replicated --xla=jit was recommended" in notice
        for notice in found.notices
    )


@pytest.mark.parametrize(
    ("fixed", "chosen", "run", "differs"),
    [
        ((), CHOSEN, ("--batch_size=32",), "batch_per_device 64, not 32"),
        (("--batch_size=8",), (), (), "batch_per_device 8, not 32"),
        ((), CHOSEN, ("--num_gpus=2",), "num_devices 1, not 2"),
        ((), CHOSEN, ("--model=mlp",), "model trivial, not mlp"),
        ((), CHOSEN, ("--forward_only",), "forward_only False, not True"),
        ((), ("--precision=bf16",), ("--precision=fp32",), "precision bf16, not fp32"),
        ((), ("--xla=jit",), ("--precision=bf16",), "precision fp32, not bf16"),
        (("--precision=bf16",), ("--xla=jit",), (), "precision bf16, not fp32"),
        (("--xla=jit",), (), (), "xla jit, not None"),
    ],
)
def test_an_answer_to_another_question_is_refused_by_name(
    fixed: tuple[str, ...], chosen: tuple[str, ...], run: tuple[str, ...], differs: str
) -> None:
    _keep("one", (*ON_CPU, *fixed), *chosen)
    with pytest.raises(UsageError) as error:
        _recommended(*ON_CPU, *run)
    assert differs in str(error.value) and "run_bench.py recommend --model=" in str(error.value)


def test_without_an_answer_the_question_is_named() -> None:
    with pytest.raises(UsageError) as error:
        _recommended("--model=resnet20", "--batch_size=16", "--num_batches=5", "--output_dir=x")
    assert "no answer is stored for this machine and software" in str(error.value)
    assert "`run_bench.py recommend --model=resnet20 --batch_size=16`" in str(error.value)


def test_the_nearer_question_wins() -> None:
    adam = (*ON_CPU, "--optimizer=adam")
    _keep("adam", adam, "--num_intra_threads=3")
    found = _recommended(*ON_CPU)
    assert found.num_intra_threads == 3 and any(
        "other values of learning_rate, optimizer;" in notice for notice in found.notices
    )
    _keep("sgd", ON_CPU, "--num_intra_threads=2")
    assert (_recommended(*ON_CPU).num_intra_threads, _recommended(*adam).num_intra_threads) == (2, 3)


def test_other_arithmetic_is_announced() -> None:
    _keep("one", ON_CPU, "--precision=bf16")
    assert any("bf16 changes the arithmetic" in notice for notice in _recommended(*ON_CPU).notices)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ("--local_cluster=ps:1,worker:2", "--variable_update=distributed_replicated"),
            "searches settings for one process",
        ),
        (("--verify_first",), "pass --variable_update, too"),
    ],
)
def test_what_an_answer_cannot_be_of_is_refused(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        _recommended(*ON_CPU, *words)


def test_the_largest_batch_is_not_a_recommendation() -> None:
    values = _values((*ON_CPU, "--batch_size=auto", "--settings=recommended"))
    with pytest.raises(UsageError, match="both choose the batch size"):
        batch_size.resolve(values, (), lambda: 0)


def test_answers_of_other_machines_and_damaged_ones_are_not_used(capsys: pytest.CaptureFixture[str]) -> None:
    _keep("one", ON_CPU, *CHOSEN)
    (key,) = cache.FILE.entries()
    entry = cache.FILE.entries()[key]
    cache.FILE.keep(f"other {key.partition(' ')[2]}", entry)
    cache.FILE.keep(key, {"answer": {**entry["answer"], "chosen": 3}})
    with pytest.raises(UsageError, match="no answer is stored"):
        _recommended(*ON_CPU)
    assert "cannot be read" in capsys.readouterr().err


def test_a_grid_compares_both() -> None:
    _keep("one", ON_CPU, *CHOSEN)
    cells = grid.cells([{"model": ["trivial"], "device": ["cpu"], "settings": ["default", "recommended"]}], lambda: 0)
    assert [cell.config and cell.config.xla for cell in cells] == ["off", "jit"]


def test_as_a_library() -> None:
    _keep("one", ON_CPU, *CHOSEN)
    chosen = Config.from_flags(model="trivial", device="cpu", settings="recommended")
    assert chosen.xla == "jit" and "--settings=recommended" in (chosen.command or ())
