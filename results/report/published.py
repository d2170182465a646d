"""Figures of other people: which are comparable with the user's rows, and where a row stands among them.

A row is compared with a figure if all that both state agrees, software and XLA aside. Where no figure is comparable,
the nearest ones of the same model and number of devices are named with what differs.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
from collections.abc import Sequence
from pathlib import Path

from results import loading, store
from results.exchange import public_table
from results.exchange.public_table import Figure, TableError
from results.intervals import ASSUMED_SPREAD, Interval
from results.record import Record
from results.summary import Row, grouped, manager_of, summarize
from results.text import counted, first_few, one_line, rounded

# The tables of the suite, in `results/data`.
SOURCES = {
    "guide2017": "TensorFlow benchmarks, tensorflow.org/performance/benchmarks, 2017: DGX-1, Google Compute Engine, "
    "Amazon EC2, with tf_cnn_benchmarks",
    "modern": "GPUs from V100 to B200, since 2020: NVIDIA DeepLearningExamples, Lambda, MLPerf; each figure names its "
    "own source",
}
# The published names of our models. Version 1.5 of a ResNet takes 2 to 6 % more operations, and is compared.
PUBLISHED_NAMES = {
    "inception3": "Inception v3",
    "resnet50": "ResNet-50",
    "resnet50_v1.5": "ResNet-50",
    "resnet152": "ResNet-152",
    "resnet152_v1.5": "ResNet-152",
    "alexnet": "AlexNet",
    "vgg16": "VGG16",
}
_MOST_NEAREST = 3
_16_BITS = {"fp16", "bf16"}
_MUST_AGREE = ("model", "devices", "inference")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FigureTable:
    """Figures with the name that the user gave, a sentence on their source, and sentences on what could not be read."""

    name: str
    source: str
    figures: tuple[Figure, ...]
    problems: tuple[str, ...] = ()


def table(name: str) -> FigureTable:
    """Reads a table: a key of `SOURCES`, a public table (CSV), or records (a JSONL file, or the directory of one).

    Raises:
        TableError: it is no such table, or has no figure.
        OSError: there is no such file, or it cannot be read.
    """
    if name in SOURCES:
        text = importlib.resources.files("results").joinpath("data", f"{name}.csv").read_text(encoding="utf-8")
        return FigureTable(name=name, source=SOURCES[name], figures=public_table.parsed(text, name))
    path = Path(name)
    if path.is_dir() or path.suffix == ".jsonl":
        return _of_records(name, path / store.JSONL_NAME if path.is_dir() else path)
    try:
        with loading.open_file(path) as file:
            figures = public_table.parsed(file.read().decode("utf-8-sig"), name)
    except UnicodeDecodeError as error:
        raise TableError(f"{name}: it is not UTF-8: {error}. Save it as CSV in UTF-8.") from error
    if not figures:
        raise TableError(f"{name}: there is no figure below its first line. Add lines, or name another table.")
    name = one_line(name)
    return FigureTable(name=name, source=f"{counted(len(figures), 'figure')} in {name}", figures=figures)


def _of_records(name: str, path: Path) -> FigureTable:
    if not path.exists():
        raise TableError(f"{name}: there is no {path.name} in it. Name a directory that runs or `publish` wrote.")
    loaded = loading.load(path)
    figures = public_table.of_rows(summarize(loaded.records))
    if not figures:
        raise TableError(f"{path}: there is no valid run in it. Name a directory with valid runs.")
    machines = first_few(list(dict.fromkeys(figure.machine for figure in figures)))
    sentence = f"{counted(len(figures), 'configuration')} in {one_line(name)}, measured on {machines}"
    return FigureTable(name=one_line(name), source=sentence, figures=figures, problems=tuple(loaded.problems))


def of_others(table: FigureTable, records: Sequence[Record]) -> FigureTable:
    """Returns a table without the figures of the machines of these records; a problem says so if it had some."""
    mine = {record.identity.run_id for record in records}
    machines = {figure.machine for figure in table.figures if mine & {*figure.run_ids.split()}}
    if not machines:
        return table
    others = tuple(figure for figure in table.figures if figure.machine not in machines)
    problem = (
        f"{table.name}: this is your own result: its figures of {first_few(sorted(machines))} ("
        f"{len(table.figures) - len(others)} of {len(table.figures)}) are not compared. Name results of other machines."
    )
    return dataclasses.replace(table, figures=others, problems=(*table.problems, problem))


def differences(row: Row, figure: Figure) -> tuple[list[str], list[str]]:
    """Returns in what a row and a figure differ, with both values, and what is not compared, and why."""
    config = row.config
    xla = None if config.get("xla") is None else config["xla"] == "jit"
    compared = {
        "model": (config.get("model"), figure.model),
        "batch per device": (config.get("batch_per_device"), figure.batch_per_device),
        "devices": (row.devices, figure.devices),
        "inference": (config.get("forward_only") or False, figure.forward_only),
        "precision": (config.get("precision"), figure.precision or None),
        "data": (config.get("data_name"), figure.data or None),
        "XLA": (xla, figure.xla),
    }
    different: list[str] = []
    unknown: list[str] = []
    unlike: list[str] = []
    for name, (mine, theirs) in compared.items():
        if theirs is None or mine is None:
            unknown.append(name)
        elif not _is_alike(name, str(mine), str(theirs)):
            words = f"{name} (yours {mine}, theirs {theirs})".replace("True", "on").replace("False", "off")
            is_remark = name == "XLA" or (name == "precision" and {mine, str(theirs).lower()} == _16_BITS)
            (unlike if is_remark else different).append(words)
    return different, [*([f"{', '.join(unknown)} (not stated)"] if unknown else []), *unlike]


def _is_alike(name: str, mine: str, theirs: str) -> bool:
    """Returns whether two values are the same, in any case of letters."""
    mine, theirs = mine.lower(), theirs.lower()
    if name == "model":
        return theirs in (mine, PUBLISHED_NAMES.get(mine, "").lower())
    return mine == theirs or (name == "data" and theirs == "real" and not mine.startswith("synthetic"))


def beside(row: Row, table: FigureTable) -> list[Figure]:
    """Returns the figures that are comparable with a row.

    Model, batch per device, number of devices, training or inference, precision and data are the same, unless one of
    the two does not state them. Tensor cores compute fp16 and bf16 at one rate, so these count as the same.
    """
    figures = table.figures if row.images_per_sec is not None else ()
    return [figure for figure in figures if not differences(row, figure)[0]]


def with_devices(row: Row, devices: int, table: FigureTable) -> list[Figure]:
    """Returns the figures under the same variable manager that are comparable with a row of so many devices."""
    manager = manager_of(row.config)
    figures = [f for f in table.figures if f.devices == devices and f.variable_update.lower() == manager.lower()]
    return [f for f in figures if all(different.startswith("devices ") for different in differences(row, f)[0])]


def _nearest(row: Row, tables: Sequence[FigureTable]) -> list[tuple[Figure, list[str]]]:
    """Returns the nearest figures of the same model and number of devices, with what differs: first of the same GPU."""
    figures = [figure for table in tables for figure in table.figures if row.images_per_sec is not None]
    found = [(figure, differences(row, figure)[0]) for figure in figures]
    found = [(f, different) for f, different in found if not any(d.startswith(_MUST_AGREE) for d in different)]
    found.sort(key=lambda pair: (not row.gpu or pair[0].gpu != row.gpu, len(pair[1])))
    return found[:_MOST_NEAREST]


def why_none(rows: Sequence[Row], table: FigureTable) -> str | None:
    """Returns a sentence if no row with a rate has a figure that is comparable or near, with what the table has."""
    if not table.figures or any(_nearest(row, [table]) for row in rows):
        return None
    ours = {published: name for name, published in PUBLISHED_NAMES.items()}
    models = sorted({ours.get(figure.model, figure.model) for figure in table.figures})
    devices = ", ".join(map(str, sorted({figure.devices for figure in table.figures})))
    return (
        f"No row has a figure in {table.name}: the model and the number of devices must be the same. It has the models "
        f"{', '.join(models)}, on {devices} devices."
    )


def ratio(row: Row, figure: Figure) -> Interval:
    """Returns a row's rate over a figure. Where one is not of repeats, equal processes may differ by 10 %."""
    mine, theirs = row.measured.bounded, figure.measured.bounded
    if len(row.valid) == 1:
        mine = mine.widened(ASSUMED_SPREAD)
    if figure.images_per_sec_low is None or (figure.repeats or 1) < 2:
        theirs = theirs.widened(ASSUMED_SPREAD)
    return mine.over(theirs)


def in_words(row: Row, figure: Figure) -> str:
    """Returns whether a row is faster than a figure by more than processes differ by."""
    beyond = {1: "faster, beyond", 0: "within", -1: "slower, beyond"}[ratio(row, figure).side_of(1)]
    return f"{beyond} what processes differ by"


def standings(rows: Sequence[Row], tables: Sequence[FigureTable]) -> list[tuple[str, str]]:
    """Returns for each row its title, and a sentence: its rank and the figures around it.

    Of the figures of one machine that differ least, the fastest counts. If none is of the row's GPU, the nearest
    figures are named.
    """
    sentences = []
    for row in rows:
        if row.images_per_sec is None:
            continue
        comparable = [figure for table in tables for figure in beside(row, table)]
        comparable.sort(key=lambda figure: (-len(differences(row, figure)[1]), figure.images_per_sec))  # the best last
        theirs = sorted({figure.where: figure for figure in comparable}.values(), key=lambda each: each.images_per_sec)
        own_gpu = [figure.gpu for figure in theirs if figure.gpu == row.gpu]
        near = [] if own_gpu else [pair for pair in _nearest(row, tables) if not theirs or row.gpu == pair[0].gpu != ""]
        nearest = f"nearest figures, not compared: {'; '.join(_near(row, *pair) for pair in near)}." if near else ""
        if not theirs:
            sentences += [(row.title, nearest)] if nearest else []
            continue
        slower = [figure for figure in theirs if figure.images_per_sec <= row.rate]
        around = [*slower[-1:], *theirs[len(slower) :][:1]]
        words = "; ".join(_compared(row, figure) for figure in around)
        signs = [ratio(row, figure).side_of(1) for figure in theirs]
        ranks = " to ".join(map(str, sorted({signs.count(-1) + 1, len(theirs) + 1 - signs.count(1)})))
        standing = (
            f"rank {ranks} of {len(theirs) + 1} ({counted(len(theirs), 'comparable machine')} and yours): {words}."
        )
        sentences.append((row.title, f"{standing} {nearest[:1].upper()}{nearest[1:]}".rstrip()))
    return sentences


def _near(row: Row, figure: Figure, different: Sequence[str]) -> str:
    of = ", ".join(filter(None, (f"{figure.devices} x {figure.where}", figure.software)))
    times = f"{rounded(row.rate / figure.images_per_sec)} x {figure.images_per_sec:,.0f} images/s"
    return f"{times} of {of}, which differs in {', '.join(different)}"


def _compared(row: Row, figure: Figure) -> str:
    over, (_, unlike) = ratio(row, figure), differences(row, figure)
    marks = [in_words(row, figure), *([f"not compared: {', '.join(unlike)}"] if unlike else [])]
    return f"{over.rounded()} x the figure of {figure.where} ({over.range()}), {'; '.join(marks)}"


def lines_of(table: FigureTable, model: str) -> dict[str, list[Figure]]:
    """Returns, for each machine and setting, the figures of one of our models in training by number of devices."""
    training = [f for f in table.figures if _is_alike("model", model, f.model) and not f.forward_only]
    lines = grouped(training, lambda figure: f"{figure.where}, {figure.setting}")
    return {name: sorted(line, key=lambda figure: figure.devices) for name, line in lines.items()}
