"""The pages of documentation against the program: what they name exists, and their generated tables are up to date."""

from __future__ import annotations

import configparser
import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from benchmarks.checkpoints import export_model_verb
from benchmarks.cli import main
from benchmarks.cli.verbs import NAMES, chosen, commands, flags_of, load
from benchmarks.cluster import server_verb
from benchmarks.compare import ab_verb, calibration
from benchmarks.config import config, flag, outside_models, run_flags, variable_update
from benchmarks.config.outside_models import Facts
from benchmarks.data import input_verb
from benchmarks.devices import devices_verb
from benchmarks.doctor import doctor_verb
from benchmarks.errors import BenchError, ExitStatus
from benchmarks.explain import data_flow, explain_verb, model_table
from benchmarks.machine import hardware
from benchmarks.microbench import allreduce_verb
from benchmarks.option import Groups
from benchmarks.run import cluster_launch, runner
from benchmarks.sweep import grid, scaling_verb, sweep_verb
from benchmarks.tune import batch_size, recommend_verb
from benchmarks.verify import verify_verb
from deploy.kubernetes import render
from docs import generate, hooks, tables
from results import loading
from results.summary import summarize
from tests.support import docs, promises
from tests.support.commands import ROOT
from variable_mgr import catalog
from variable_mgr.reductions.algorithm_catalog import ALGORITHMS

PAGES = docs.pages(ROOT)
PROGRAMS = ("run_bench.py", "run-bench")
PLACEHOLDERS = {"VERB": "run", "MANAGER": "parameter_server"}
# Verbs that take files: only their flags are parsed.
READING = ("report", "rerun", "diff", "compare", "track", "publish", "predict")
# Flags in inline code that are not of run_bench, by the program that they belong to.
OF_OTHERS = {
    "sbatch": ("exclusive", "distribution", "cpus-per-task", "gpus-per-task", "kill-on-bad-exit", "nodes"),
    "docker": ("target", "gpus", "ipc", "shm-size"),
    "mpirun": ("bind-to", "map-by", "tag-output"),
    "numactl": ("cpunodebind", "membind"),
    "pip": ("no-deps",),
    "pytest, in tests/conftest.py": ("share",),
    "tools.peers": ("again", "keep", "python", "repeats"),
    "the way flags are written": ("name", "noname", "flagfile", "preset", "help", "helpfull"),
}
OTHER_PROGRAMS = ("docker", "gh", "git", "iptables", "kubectl", "nft", "python3.11")
OF_SBATCH = (*OF_OTHERS["sbatch"], "ntasks-per-node")
OF_RENDER = ("command", "deadline_seconds", "results_claim", "scratch_size", "image", "port", "nccl")
# Variables of the Makefile, with the verb whose flags they contain.
OF_MAKE = {"ARGS": "run", "GATE_FLAGS": "ab", "NIGHTLY_FLAGS": "sweep"}
# Hosts that addresses may name, all real or placeholders; of GitHub also the repository.
HOSTS = (
    "arxiv.org",
    "bencher.dev",
    "jobset.sigs.k8s.io",
    "pandas.pydata.org",
    "ui.perfetto.dev",
    "user:password@host",
)
REPOSITORIES = (
    "huggingface/pytorch-image-models",
    "mlcommons/training",
    "NVIDIA/nccl-tests",
    "prometheus/node_exporter",
    "tensorflow/benchmarks",
)
ADDRESS = re.compile(r"https?://([^\s/()<>`'\"]+)/?([\w.-]+/[\w.-]+)?")
SOURCE_FILE = re.compile(r"(?:benchmarks|deploy|docs|models|results|tests|tools|variable_mgr)/[a-z0-9_/.-]+\.[a-z0-9]+")


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands are resolved and not run, on a machine that appears to have 16 GPUs."""
    jobs = {
        runner: "run",
        cluster_launch: "launch_cluster",
        sweep_verb: "run_sweep",
        scaling_verb: "run_scaling",
        ab_verb: "run_ab",
        recommend_verb: "run_recommend",
        verify_verb: "run_verify",
        doctor_verb: "run_doctor",
        server_verb: "run_server",
        export_model_verb: "run_export",
        allreduce_verb: "run_allreduce",
        input_verb: "run_input",
        model_table: "show_models",
        devices_verb: "run_devices",
        explain_verb: "show_placement",
    }
    for module, job in jobs.items():
        monkeypatch.setattr(module, job, lambda *_, **__: ExitStatus.OK)
    monkeypatch.setattr(calibration, "run_calibrate", lambda *_, **__: ExitStatus.OK)
    monkeypatch.setattr(explain_verb, "start", lambda *_: None)
    monkeypatch.setattr(data_flow, "show_data_flow", lambda *_: None)
    monkeypatch.setattr(
        batch_size, "resolve_batch_size", lambda values, *_: config.resolve({**values, "batch_size": 1}, int)
    )
    gpus = (hardware.Gpu("GPU", 2**36),) * 16
    monkeypatch.setattr(hardware, "gpu_inventory", lambda *_: hardware.Inventory(gpus))
    facts = Facts(image_size=64, channels=3, outputs=1000, takes_classes=True)
    monkeypatch.setattr(outside_models, "_facts", lambda *_: facts)
    monkeypatch.setattr(variable_update, "_torch_version", lambda *_: "2.6.0")  # it may not be installed
    for name in ("my_net.py", "out/recommend/recommended.flags"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ("TF_CONFIG", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


class WrongPageError(Exception):
    """A page names what does not exist."""


def _check_run_bench(words: Sequence[str]) -> None:
    """Resolves a command of run_bench, given without the program.

    Raises:
        WrongPageError: there is no such verb or flag, or the flags contradict each other.
    """
    # `help VERB` is `VERB --help`, which only prints, so words that the verb requires may be missing.
    words = [PLACEHOLDERS.get(word, word) for word in words if word != "--help"]
    try:
        if words[:1] == ["help"]:
            main.dispatch(words)
            return
        verb, rest = chosen(words)
        if verb.name.split()[0] in READING and verb.takes != "lists":
            flag.parse(rest, flags_of(verb))
        elif words[:1] == ["data"]:
            _check_data(words[1:])
        else:
            main.dispatch(words)
    except BenchError as error:
        raise WrongPageError(str(error)) from error


def _check_data(words: Sequence[str]) -> None:
    try:
        main.dispatch(["data", words[0], *(word for word in words[1:] if word.startswith("-"))])
    except BenchError as error:
        if not re.match(rf"data {words[0].replace('-', '_')}( SRC DIR)?: name ", str(error)):
            raise


def _check_make(words: Sequence[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        name, given, value = word.partition("=")
        if not re.search(rf"^{re.escape(name)} \?=" if given else rf"^{re.escape(name)}:", makefile, re.MULTILINE):
            raise WrongPageError(f"the Makefile has no {'variable' if given else 'target'} '{name}'")
        if name in OF_MAKE:
            # The Makefile's own command names what `ab` compares with.
            base = ["--base=HEAD"] if OF_MAKE[name] == "ab" else []
            _check_run_bench([OF_MAKE[name], *shlex.split(value), *base])


def _check_sbatch(words: Sequence[str]) -> None:
    cut = next(number for number, word in enumerate(words) if not word.startswith("--"))
    for word in words[:cut]:
        if _name_of(word) not in OF_SBATCH:
            raise WrongPageError(f"{word} is not in the list of sbatch's options")
    if not (ROOT / words[cut]).is_file():
        raise WrongPageError(f"there is no {words[cut]}")
    _check_run_bench(["run", "--local_cluster=worker:2", "--variable_update=collective_all_reduce", *words[cut + 1 :]])


def _check_render(words: Sequence[str]) -> None:
    try:
        options, bench_flags = render.parse(words)
    except SystemExit as error:
        raise WrongPageError("render.py refuses it") from error
    worker = render._jobs(options, bench_flags)[-1]
    _check_tasks(
        f"ps:{options.ps},worker:{options.workers}" if options.ps else f"worker:{options.workers}", worker.args
    )


def _check_mpirun(words: Sequence[str]) -> None:
    _check_tasks("worker:2", words[next(number for number, word in enumerate(words) if word in PROGRAMS) + 1 :])


def _check_tasks(cluster: str, words: Sequence[str]) -> None:
    """Resolves the command of one task as that of a local cluster."""
    of_task = ("cluster", "hosts", "job_name", "task_index", "ps_hosts", "worker_hosts")
    _check_run_bench(["run", f"--local_cluster={cluster}", *(word for word in words if _name_of(word) not in of_task)])


def _check_pip(words: Sequence[str]) -> None:
    """Checks that pip installs this checkout, with extras that it has, or packages that it requires."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = dict(setup["options.extras_require"])
    lines = "\n".join([setup["options"]["install_requires"], *extras.values()]).split("\n")
    known = {".", "pre-commit", *(re.split(r"[^\w.-]", line)[0] for line in lines)}
    for word in words:
        package, _, extra = re.split("[=<>~!;]", word)[0].rstrip("]").partition("[")
        if not word.startswith("-") and (package not in known or extra and extra not in extras):
            raise WrongPageError(f"pip cannot install {word}: no such package, or extra of it, is known here")


def _check_command(text: str) -> bool:
    """Checks a command line and returns whether its program is one that can be checked."""
    words = docs.words_of(text)
    while words and re.match(r"[A-Z_]+=", words[0]):
        words.pop(0)
    if "install" in words[1:4] and any(word.rsplit("/", 1)[-1] == "pip" for word in words[:3]):
        _check_pip(words[words.index("install") + 1 :])
        return True
    for number, word in enumerate(words[:3]):
        name = word.rsplit("/", 1)[-1]
        if name in PROGRAMS and (number == 0 or words[number - 1].rsplit("/", 1)[-1].startswith("python")):
            _check_run_bench(words[number + 1 :])
            return True
    checks: dict[str, Callable[[Sequence[str]], None]] = {
        "make": _check_make,
        "mpirun": _check_mpirun,
        "sbatch": _check_sbatch,
    }
    if words and words[0] in checks:
        checks[words[0]](words[1:])
        return True
    if words[:2] == ["python", "deploy/kubernetes/render.py"]:
        _check_render(words[2:])
        return True
    return False


def _check_output(text: str) -> None:
    if text.split(maxsplit=1)[:1] and text.split(maxsplit=1)[0] not in OTHER_PROGRAMS:
        for flag in re.findall(r"(?<![\w-])--[a-z]\w+", text):
            _check_flags([flag])


def _name_of(word: str) -> str:
    return word.removeprefix("--").partition("=")[0]


def _check_inline(text: str) -> None:
    """Checks inline code: a command with or without its program, a manager with flags, or flags alone."""
    first = text.split(maxsplit=1)[0]
    if _check_command(text):
        return
    if first.partition("=")[0] in OF_MAKE:
        _check_make(docs.words_of(text))
    elif first in NAMES and " " in text:
        _check_run_bench(docs.words_of(text))
    elif first in (*catalog.MANAGERS, *catalog.REFERENCE_LOOPS) and " --" in text:
        _check_run_bench([f"--variable_update={first}", *docs.words_of(text)[1:]])
    elif text.removeprefix("'").startswith("--"):
        _check_flags(docs.words_of(text))
    elif text.startswith("-- "):
        _check_flags(docs.words_of(text.removeprefix("-- ")))


def _check_flags(words: Sequence[str]) -> None:
    """Checks that some verb takes these flags, with values that it accepts; a preset, that it is one of a sweep."""
    for word in words:
        if word.startswith("--preset="):
            _check_run_bench(["sweep", word, *docs.also_given(word.removeprefix("--preset="))])
    known = {name for names in OF_OTHERS.values() for name in names} | {*OF_RENDER}
    named = [word for word in words if _name_of(word) not in known]
    names = {_name_of(word) for word in named if word.startswith("--")} - {""}
    # For an unknown flag, absl searches for similar ones, which is slow.
    knowing = [groups for groups in map(flags_of, commands().values()) if names <= _spellings(groups)]
    problem = ""
    for groups in knowing or [flags_of(load("run"))]:
        try:
            flag.parse(list(_with_values(named, groups)), groups)
        except BenchError as error:
            problem = str(error)
        else:
            return
    raise WrongPageError(problem)


def _spellings(groups: Groups) -> set[str]:
    return {prefix + each.name for group in groups.values() for each in group for prefix in ("", "no")}


def _with_values(words: Sequence[str], groups: Groups) -> Iterator[str]:
    """Yields flags, with a value added to each that needs one and has none."""
    kinds = {each.name: each for group in groups.values() for each in group}
    for word in words:
        flag = kinds.get(_name_of(word))
        if "=" in word or flag is None or flag.kind is bool or flag.boolean:
            yield word
        else:
            yield f"{word}={flag.choices[0] if flag.choices else flag.at_least or 1}"


def _problems(page: Path) -> list[str]:
    """Returns what is wrong with a page, each with its place."""
    found = []
    for code in docs.code_of(page):
        # The brackets of `.[cuda]` are not a pattern.
        for text in [code.text] if "pip install" in code.text else docs.spellings(code.text):
            try:
                if code.inline:
                    _check_inline(text)
                elif not _check_command(text):
                    _check_output(text)
            except WrongPageError as error:
                found.append(f"{code.place}: {text}: {error}")
        if code.inline and SOURCE_FILE.fullmatch(code.text) and not (ROOT / code.text).is_file():
            found.append(f"{code.place}: there is no {code.text}")
    for line, suite in docs.blocks_of(page, "[[grid]]"):
        Path("suite.toml").write_text(suite)
        try:
            cells = grid.cells(grid.of_suite(Path("suite.toml")), lambda: 16)
            found += [f"{page}:{line}: {cell.arguments}: {cell.why_not}" for cell in cells if not cell.config]
        except BenchError as error:
            found.append(f"{page}:{line}: {error}")
    wrong = [*_wrong_links(page), *_unknown_addresses(page), *_rows_without_header(page)]
    return found + [f"{page}:{line}: {problem}" for line, problem in wrong]


def _unknown_addresses(page: Path) -> Iterator[tuple[int, str]]:
    for line, text in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        for host, path in ADDRESS.findall(text):
            if not (path in REPOSITORIES if host == "github.com" else host in HOSTS):
                yield line, f"no list has the address {host}/{path}"


def _rows_without_header(page: Path) -> Iterator[tuple[int, str]]:
    """Yields rows of tables that an empty line separates from their header, so that they are shown as text."""
    lines = ["", *page.read_text(encoding="utf-8").splitlines(), ""]
    for number in range(1, len(lines) - 1):
        before, line, after = lines[number - 1 : number + 2]
        if line.startswith("| ") and not before.startswith("|") and not after.startswith(("|-", "| -", "|:")):
            yield number, f"a row of a table without a header: {line}"


def _wrong_links(page: Path) -> Iterator[tuple[int, str]]:
    for line, target in docs.links_of(page):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        linked = page.parent / path if path else page
        if not linked.exists():
            yield line, f"the link to {target} leads nowhere"
        elif anchor and anchor not in docs.anchors_of(linked):
            yield line, f"{linked.name} has no heading for #{anchor}"


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_names_exists(page: Path) -> None:
    assert not (problems := _problems(page)), "\n".join(problems)


@pytest.mark.parametrize("name", ["mkdocs.yml", "setup.cfg"])
def test_addresses_in_metadata_exist(name: str) -> None:
    assert not list(_unknown_addresses(ROOT / name))


def test_the_commands_of_all_pages_are_found() -> None:
    """If the code of a page were no longer recognised, nothing of it would be checked."""
    lines = [code for page in PAGES for code in docs.code_of(page)]
    blocks = [code for code in lines if not code.inline and any(program in code.text for program in PROGRAMS)]
    assert len(blocks) >= 30
    assert len([code for code in lines if code.inline and "--" in code.text]) >= 300
    continued = next(code for code in blocks if code.page.name == "several-hosts.md" and "--ps_hosts" in code.text)
    assert continued.text.startswith("python run_bench.py --local_parameter_device=gpu") and "\\" not in continued.text


@pytest.mark.parametrize("page", generate.marked_pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_generated_tables_of_a_page_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == generate.filled(text), "run: python -m docs.generate"


@pytest.mark.parametrize("path", generate.SCHEMAS, ids=lambda path: path.name)
def test_a_schema_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == generate.SCHEMAS[path](), "run: python -m docs.generate"


def test_every_field_of_the_configuration_is_a_flag_or_has_a_row() -> None:
    page = (ROOT / "docs" / "reference" / "record.md").read_text(encoding="utf-8")
    _, _, section = page.partition("\n## config\n")
    rows = re.findall(r"`(\w+)`", section.partition("\n## ")[0])
    given = flag.parse(["--device=cpu"], run_flags.RUN_FLAGS).values
    assert config.resolve(given, int).to_dict().keys() <= {*run_flags.FLAGS, *rows}


def test_every_reduction_has_a_row() -> None:
    page = (ROOT / "docs" / "background" / "reductions.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/]+)` \|", page, re.MULTILINE)
    assert rows == [*ALGORITHMS, "a/b"]


def test_every_generated_table_is_on_a_page() -> None:
    texts = [page.read_text(encoding="utf-8") for page in generate.marked_pages()]
    marks = [name for text in texts for name in re.findall(r"<!-- generated by docs/generate\.py: (.+?) -->", text)]
    assert sorted(marks) == sorted(generate.TABLES)


def test_the_result_that_is_shown_was_repeated_without_warnings() -> None:
    records = loading.load(tables.RESULTS).records
    assert not [warning for record in records for warning in record.warnings]
    assert all(len(row.valid) >= 3 for row in summarize(records))


def test_every_promise_and_every_row_is_tested() -> None:
    rows = [row["id"] for subject in promises.subjects() for row in subject["row"]]
    assert len(set(rows)) == len(rows) == 66
    arguments = {name: [mark.arguments for mark in promises.marks() if mark.name == name] for name in ("fault", "row")}
    assert {promise for promise, _, _ in arguments["fault"]} == set(promises.PROMISES)
    assert set(itertools.chain.from_iterable(arguments["row"])) == set(rows)


def test_the_site_has_every_page_once() -> None:
    def pages_of(entry: object) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for part in entry.values() if isinstance(entry, dict) else entry:
                yield from pages_of(part)

    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(pages_of(nav)) == sorted(str(page.relative_to(ROOT / "docs")) for page in generate.pages())


@pytest.mark.parametrize("page", generate.pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_the_site_stay_in_it(page: Path) -> None:
    targets = [target.partition("#")[0] for _, target in docs.links_of(page) if "://" not in target]
    assert all((page.parent / target).resolve().is_relative_to(ROOT / "docs") for target in targets), targets


def test_a_bar_in_a_table_has_no_backslash_on_the_site() -> None:
    page = r"<td><code>on\|off</code></td><p>\|</p>"
    assert hooks.on_page_content(page) == r"<td><code>on|off</code></td><p>\|</p>"


def test_a_flag_is_not_broken_after_its_dashes_on_the_site() -> None:
    page = '<a href="x--y.html">a</a> <code>sweep --repeats=3</code> <!-- a comment -->'
    shown = '<a href="x--y.html">a</a> <code>sweep <span class="flag">--repeats</span>=3</code> <!-- a comment -->'
    assert hooks.on_page_content(page) == shown


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("`--num_gpu=2`", "There is no flag --num_gpu"),
        ("`--resize_method=lanczos`", "there is no 'lanczos'"),
        ("`--preset=quickly`", "Presets: "),
        ("`--data_format=NCHW\\|NHCW`", "there is no 'NHCW'"),
        ("`run_bench.py --model=resnet51 ...`", "no model 'resnet51'"),
        ("`track check out --output_format=jsom`", "there is no 'jsom'"),
        ("`replicated --all_reduce_spec=ring`", "ring"),
        ("`run_bench.py help swep`", "Did you mean 'sweep'"),
        ("`track stor FILE`", "no subcommand 'stor'"),
        ("`data make_cifar10 DIR --resize=3`", "data make_cifar10 has no flag --resize"),
        ("```\nTry --num_batch, or wait.\n```", "There is no flag --num_batch"),
        ('`ARGS="--modle=vgg16"`', "There is no flag --modle"),
        ("`make tests`", "no target 'tests'"),
        ("`make bench ARG=--model=vgg16`", "no variable 'ARG'"),
        ("```\nrun_bench.py verify \\\n    --local_cluster=ps:2,wroker:2\n```", "wroker"),
        ("```\n$ python run_bench.py sweep --nmu_gpus=1,2; echo $?\n```", "There is no flag --nmu_gpus"),
        ("```\nsbatch --node=4 deploy/slurm/run_bench.sbatch\n```", "--node=4 is not in the list"),
        ("```\npython deploy/kubernetes/render.py jobset --nam=x --image=y\n```", "render.py refuses it"),
        (
            "`python deploy/kubernetes/render.py jobset --name=x --image=y -- --variable_update=replicated`",
            "replicated works in one process",
        ),
        ("`mpirun -np 2 python run_bench.py --cluster=mpi --model=resnet50`", "this cluster has none"),
        ('```\n[[grid]]\nmodel = "vgg61"\n```', "vgg61"),
        ("`benchmarks/flagz.py`", "there is no benchmarks/flagz.py"),
        ("| a row | of no table |", "without a header"),
        ("[a page](docs/nowhere.md)", "leads nowhere"),
        ("[a part](#nothing)", "no heading for #nothing"),
        ("[a host](https://example.com/page)", "no list has the address example.com"),
        ("```\ngit clone https://github.com/nobody/nothing\n```", "no list has the address github.com/nobody/nothing"),
        ("`pip install cnn-train-bench`", "pip cannot install cnn-train-bench"),
        ("`python -m pip install -e '.[cudda]'`", "pip cannot install .[cudda]"),
    ],
)
def test_a_mistake_in_a_page_is_found_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\nThese are right: `--num_gpus=2`, [here](#a-page).\n{text}\n")
    (problem,) = _problems(page)
    assert words in problem
    assert int(problem.removeprefix(f"{page}:").partition(":")[0]) in (4, 5)
