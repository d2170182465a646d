"""What is published of GPUs: peaks and links of their data sheets, and the rates at which others trained on them.

The tables are `results/data/peaks.csv`, `links.csv`, `modern.csv` and `guide2017.csv`. A GPU of which no rate is
published is taken to use as large a share of its peak (MFU) as the nearest one. Imports no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence

from benchmarks.errors import UsageError, did_you_mean
from benchmarks.machine.hardware import Connection, Gpu, Inventory
from benchmarks.training import computing
from models import specs
from results.environment import data_sheet, data_sheet_peak, published_table
from results.exchange.public_table import Figure
from results.report.published import PUBLISHED_NAMES, table

# Compute capabilities by chip, from the oldest: of data centres with fast memory, and for graphics and inference.
# Source: NVIDIA, "CUDA GPUs" (developer.nvidia.com/cuda-gpus).
_LINES = (
    {"GK210": "3.7", "GP100": "6.0", "GV100": "7.0", "GA100": "8.0", "GH100": "9.0", "GB10x": "10.0"},
    {"TU10x": "7.5", "GA10x": "8.6", "AD10x": "8.9", "GB20x": "12.0"},
)
# Error correction takes a sixteenth of GDDR memory. It is on by default in GPUs for servers, but not in these.
_WITHOUT_ECC = ("GeForce", "Quadro", "RTX", "TITAN")
_USUAL_MODEL = "ResNet-50"
_JOINED = re.compile(r"(?<=rtx)(?=\d)|(?<=\d)(?=ti\b)")
_GIGABYTES = re.compile(r"(?<=\d) ?g(?:i?b)?\b")
_NEWER_MODULE = re.compile(r"\bsxm[56]\b")  # which no name states
_WORD = re.compile(r"[^\W_]+")
_IMPLIED = frozenset({"nvidia", "tesla"})
_PASSES = 3  # forward, and twice as many operations backward
# By which a rate differs at least from what is published. Two sources of one model on one GPU, or one and this suite on
# an H200, were 1.08 to 2.5 times apart, 6 of 9 at most 1.5 times. Of 61 published rates of a model on a GPU, 53 are at
# most 2 times away from what the rates of other GPUs suggest.
_OTHER_SOFTWARE, _OTHER_GPU_OR_MODEL = 1.5, 2.0
LINKS: Mapping[str, Mapping[str, str]] = {row["link"]: row for row in published_table("links")}
NAMES = tuple(row["gpu"] for row in published_table("peaks"))


@dataclasses.dataclass(frozen=True)
class KnownGpu:
    """A GPU of the table of peaks: its name, chip, link to others (empty: unknown), and memory in 2**30 bytes."""

    name: str
    chip: str
    link: str
    memory_gb: int

    def machine(self, count: int, link: str) -> Inventory:
        """Returns a machine with some of them, all linked to each other; `link` is of `LINKS`, or empty: unknown."""
        capability = next(line[self.chip] for line in _LINES if self.chip in line)
        each = Connection(nvlinks=int(link.startswith("nvlink")), path=None, has_peer_access=None)
        pairs = itertools.combinations(range(count), 2) if link else ()
        keeps_codes = self.chip in _LINES[1] and not self.name.startswith(_WITHOUT_ECC)
        gpu = Gpu(self.name, self.memory_gb * 2**30 * (15 if keeps_codes else 16) // 16, capability)
        return Inventory((gpu,) * count, connections=dict.fromkeys(pairs, each))

    def is_like(self, other: KnownGpu) -> bool:
        """Returns whether their data sheets have equal peaks and links; they may differ in memory."""
        return _facts(self.name) == _facts(other.name)

    def peak_flops_per_sec(self, precision: str) -> float:
        """Returns the peak without sparsity.

        Raises:
            UsageError: the GPU does not compute in this precision.
        """
        peak = data_sheet_peak(self.name, precision)
        if peak is None:
            row = data_sheet(self.name)
            usable = ", ".join(name.removesuffix("_tflops") for name in row if name.endswith("_tflops") and row[name])
            raise UsageError(f"{self.name} has no rate for --precision={precision}: use {usable}.")
        return 1e12 * peak


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedRate:
    """A figure of `modern` or `guide2017`, its GPU, that one's peak, and operations per image, forward and backward."""

    figure: Figure
    gpu: KnownGpu
    peak_flops_per_sec: float
    flops_per_image: float

    @property
    def mfu(self) -> float:
        """Returns the model FLOP utilisation: operations per second over the peak of all its GPUs."""
        figure = self.figure
        return figure.images_per_sec * self.flops_per_image / (figure.devices * self.peak_flops_per_sec)

    @property
    def title(self) -> str:
        """Returns what was measured and who published it, in words."""
        figure = self.figure
        return f"{figure.devices} x {figure.machine}: {figure.model}, {figure.setting} ({figure.source})"


@dataclasses.dataclass(frozen=True)
class Rate:
    """A rate and, in words, where it comes from.

    Attributes:
        factor: by which it may be higher or lower.
        of_this_batch: another batch would have another rate.
    """

    value: float
    source: str
    factor: float = 1.0
    of_this_batch: bool = False


def link_bytes_per_sec(link: str) -> float:
    """Returns what the data sheet states of a link, in one direction."""
    return 1e9 * float(LINKS[link]["gbytes_per_second"])


def share_reached(link: str) -> float:
    """Returns the share of a link's data sheet that training usually reaches, see `results/data/reached.csv`."""
    name = "gpu_link" if link.startswith("nvlink") else "pcie"
    return next(float(row["usual"]) for row in published_table("reached") if row["name"] == name)


def find_gpu(text: str) -> KnownGpu:
    """Returns the GPU that a part of its name means, such as `H100`, `a100 pcie` or `4090`.

    A name that others continue means the shortest (H200, not H200 NVL); of modules and cards the module (SXM) is meant.

    Raises:
        UsageError: no GPU has such a name, or several that differ.
    """
    words = _words(text) - _IMPLIED
    asked = words - {"sxm"}
    fitting = [name for name in NAMES if asked and asked <= _words(name) | {f"{gpu_of(name).memory_gb}gb"}]
    shortest = [name for name in fitting if all(_words(name) <= _words(other) for other in fitting)]
    modules = [name for name in fitting if gpu_of(name).link.startswith("nvlink")]
    for group in (modules if "sxm" in words else shortest[:1], modules, fitting):
        if group and len(set(map(_facts, group))) == 1:
            return gpu_of(group[0])
    if fitting:
        raise UsageError(f"'{text}' may be several GPUs: {', '.join(fitting)}. Add a word of one of them.")
    raise UsageError(
        f"'{text}' is no known GPU.{did_you_mean(text, NAMES)} Name one of {', '.join(NAMES)}; or pass "
        "--peak_tflops and --link_gbytes_per_second instead."
    )


def gpu_of(name: str) -> KnownGpu:
    """Returns the GPU with this name, which is the driver's; it must be in the table."""
    row = data_sheet(name)
    return KnownGpu(row["gpu"], row["chip"], row["link"], int(row["memory_gb"]))


def _facts(name: str) -> tuple[str, ...]:
    return tuple(value for field, value in data_sheet(name).items() if field not in ("gpu", "memory_gb", "source"))


def _words(text: str) -> frozenset[str]:
    """Returns the words of a name; `RTX3090Ti`, `SXM5` and `80 GB` mean `rtx 3090 ti`, `sxm` and `80gb`."""
    apart = _JOINED.sub(" ", text.lower())
    return frozenset(_WORD.findall(_NEWER_MODULE.sub("sxm", _GIGABYTES.sub("gb", apart))))


@functools.cache
def published_rates() -> tuple[PublishedRate, ...]:
    """Returns the published rates of training on known GPUs, in the order of the tables, the guide's last."""
    models = {published: ours for ours, published in PUBLISHED_NAMES.items()}
    rates = []
    for figure in (*table("modern").figures, *map(_of_guide, table("guide2017").figures)):
        gpu, spec = gpu_of(figure.gpu), specs.find_model(models[figure.model])
        rates.append(
            PublishedRate(
                figure=figure,
                gpu=gpu,
                peak_flops_per_sec=gpu.peak_flops_per_sec(figure.precision),
                flops_per_image=_PASSES * 1e9 * spec.gflop_per_image,
            )
        )
    return tuple(rates)


def _of_guide(figure: Figure) -> Figure:
    """Returns a figure of the guide with what its table leaves out, and the name of its GPU before the machine's."""
    gpu = "P100-SXM2-16GB" if "P100" in figure.machine else "K80"
    return dataclasses.replace(
        figure,
        gpu=gpu,
        machine=f"{gpu.partition('-')[0]} ({re.sub(' 8x.*', '', figure.machine)})",
        software="TensorFlow 1.1, tf_cnn_benchmarks",
        precision="fp32",
        xla=False,
        source="TensorFlow performance guide, 2017",
    )


def expected_rate(
    gpu: KnownGpu | None, model: str, precision: str, *, peak_flops_per_sec: float, flops_per_image: float
) -> Rate | None:
    """Returns the images/s of one device to expect from what is published; None if nothing is for this precision.

    Of several sources it is the geometric middle of the lowest and the highest, and the factor covers both.

    Args:
        gpu: on which the model would be trained; None: any.
        model: its name in this suite.
        precision: of the arithmetic; fp16 and bf16 have equal peaks, and are not told apart.
        peak_flops_per_sec: of one device in this precision.
        flops_per_image: forward and backward.
    """
    alike = computing.IN_16_BITS if precision in computing.IN_16_BITS else (precision,)
    published = [rate for rate in published_rates() if rate.figure.precision in alike]
    chosen, why = _nearest(gpu, PUBLISHED_NAMES.get(model, model), published)
    if not chosen:
        return None

    def images_per_sec(rate: PublishedRate) -> float:
        same = rate.figure.model == PUBLISHED_NAMES.get(model)  # as many operations, however they are counted
        work = 1.0 if same else rate.flops_per_image / flops_per_image
        return rate.figure.images_per_sec / rate.figure.devices * work * peak_flops_per_sec / rate.peak_flops_per_sec

    slowest, fastest = min(chosen, key=images_per_sec), max(chosen, key=images_per_sec)
    low, high = images_per_sec(slowest), images_per_sec(fastest)
    named = dict.fromkeys(
        f"{rate.figure.images_per_sec:,.0f} images/s of {rate.title}, MFU {100 * rate.mfu:.{int(rate.mfu < 0.1)}f} %"
        for rate in (slowest, fastest)
    )
    source = f"{why}{', geometric middle' if len(named) > 1 else ''}: {'; '.join(named)}"
    if fastest.mfu > 1:
        source += ", since convolutions may need fewer multiplications than are counted (Winograd)"
    is_of_both = why == "published" and fastest.figure.model == PUBLISHED_NAMES.get(model)
    least = _OTHER_SOFTWARE if is_of_both else _OTHER_GPU_OR_MODEL
    return Rate(math.sqrt(low * high), source, max(math.sqrt(high / low), least))


def _nearest(
    gpu: KnownGpu | None, model: str, published: Sequence[PublishedRate]
) -> tuple[Sequence[PublishedRate], str]:
    """Returns the rates of the nearest GPU and model, and of whom; of each source the fastest of fewest devices."""
    if gpu is None:
        tries = [("published for any GPU", published, wanted) for wanted in (model, _USUAL_MODEL)]
    else:
        own = [rate for rate in published if rate.gpu.is_like(gpu)]
        tries = []
        for chip in _nearest_chips(gpu.chip):
            of_chip = [rate for rate in published if rate.gpu.chip == chip]
            for wanted in (model, _USUAL_MODEL):
                groups = (own, of_chip) if chip == gpu.chip else (of_chip,)
                tries += [("published" if group is own else "nearest published", group, wanted) for group in groups]
    for why, group, wanted in tries:
        if found := [rate for rate in group if rate.figure.model == wanted]:
            by_source = {}
            for rate in sorted(found, key=lambda rate: (-rate.figure.devices, rate.figure.images_per_sec)):
                figure = rate.figure
                by_source[figure.source, figure.software, figure.machine] = rate
            return list(by_source.values()), why
    return [], ""


def _nearest_chips(chip: str) -> list[str]:
    """Returns all chips: those of the same line first, by their distance in age."""
    lines = [list(line) for line in sorted(_LINES, key=lambda line: chip not in line)]
    age = lines[0].index(chip)
    return [name for line in lines for name in sorted(line, key=lambda other: abs(line.index(other) - age))]
