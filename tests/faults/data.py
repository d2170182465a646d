"""Faults of data sets: lengths, sizes and compression that lie, records that are damaged."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

from PIL import Image

from tests.faults.catalog import fault
from tests.faults.harness import TINY, Scratch, in_shell, want

# Far more than a run of the trivial model needs, far less than the faults ask for.
_LIMITED = in_shell("ulimit -v 6000000")


def _imagenet(scratch: Scratch, *flags: str) -> Path:
    data = scratch.directory / "data"
    words = ("--train_images=20", "--images_per_shard=10", *flags)
    scratch.expect(scratch.bench("data", "make-imagenet", data, *words), 0)
    return data


def _with_length(scratch: Scratch, length: int) -> Path:
    """Makes a data set in which record 0 of the second file states an absurd length, with its right checksum.

    The file is as long as that if a disk can hold it: with a hole, so that it takes no place.
    """
    from tests.support import damage  # it imports TensorFlow

    data = _imagenet(scratch)
    damage.state_length(data / "train-00001-of-00002", length)
    if length < 2**40:
        os.truncate(data / "train-00001-of-00002", length + 16)
    return data


for _name, _length in (("63-bits", 2**63 - 1), ("40-bits", 2**40), ("33-bits", 2**33)):
    _sentence = "status 5, naming file, record 0 and byte 0"

    @fault(
        f"record-length-of-{_name}-check",
        "R9",
        injects=f"a TFRecord that states a length of {_length} bytes with its right checksum, data check",
        must=_sentence,
    )
    def _length_check(scratch: Scratch, length: int = _length) -> None:
        ended = scratch.bench("data", "check", _with_length(scratch, length), under=_LIMITED)
        scratch.expect(ended, 5, says=["train-00001-of-00002", "record 0", "byte 0"])

    @fault(
        f"record-length-of-{_name}-run",
        "R9",
        injects=f"a TFRecord that states a length of {_length} bytes with its right checksum, run",
        must=f"{_sentence}; one record",
    )
    def _length_run(scratch: Scratch, length: int = _length) -> None:
        data = _with_length(scratch, length)
        ended = scratch.bench("run", *TINY, "--num_batches=50", f"--data_dir={data}", under=_LIMITED)
        scratch.expect(ended, 5, records=["invalid"], says=["train-00001-of-00002", "record 0", "byte 0"])


for _damage in ("crc", "truncated", "not_jpeg", "cut_file"):

    @fault(
        f"damage-{_damage.replace('_', '-')}",
        "R9",
        injects=f"a data set with a damaged record ({_damage}), run",
        must="status 5, and one record that names file and record",
    )
    def _damaged(scratch: Scratch, kind: str = _damage) -> None:
        data = _imagenet(scratch)
        from tests.support import damage  # it imports TensorFlow

        damage.corrupt_middle(data, kind)
        ended = scratch.bench("run", *TINY, "--num_batches=100", f"--data_dir={data}")
        scratch.expect(ended, 5, records=["invalid"], says=["train-0000", "record "])


@fault(
    "giant-photo",
    "R9",
    injects="photos of 23000x23000 pixels, with 6 GB of address space",
    must="status 5, naming a file with the advice to make it smaller; one record",
)
def _giant(scratch: Scratch) -> None:
    folder = scratch.directory / "photos" / "train" / "a"
    folder.mkdir(parents=True)
    Image.new("L", (23000, 23000)).save(folder / "0.jpg", quality=1)
    for number in range(1, 4):
        os.link(folder / "0.jpg", folder / f"{number}.jpg")
    words = (*TINY, "--num_batches=3", f"--data_dir={scratch.directory / 'photos'}")
    ended = scratch.bench("run", *words, under=_LIMITED)
    scratch.expect(ended, 5, says=[".jpg", "smaller"])
    want(len(scratch.records()) == 1, f"{len(scratch.records())} records")


@fault(
    "compressed-bomb",
    "R9",
    injects="an MNIST file of some MB that unpacks to 4 GB, data check and run, with 6 GB of address space",
    must="status 5 each, naming the file",
)
def _bomb(scratch: Scratch) -> None:
    data = scratch.directory / "data"
    scratch.expect(scratch.bench("data", "make-mnist", data, "--gzip"), 0)
    (images,) = data.glob("train-images*.gz")
    with images.open("ab") as file:
        file.write(gzip.compress(bytes(2**26), 1) * 64)
    scratch.expect(scratch.bench("data", "check", data, "--data_name=mnist", under=_LIMITED), 5, says=[images.name])
    words = ("--device=cpu", "--model=mlp", "--batch_size=2", "--num_batches=3", f"--data_dir={data}")
    scratch.expect(scratch.bench("run", *words, under=_LIMITED), 5, says=[images.name])


@fault(
    "data-missing", "R9", injects="a --data_dir that does not exist", must="status 5 naming it, before the run starts"
)
def _missing(scratch: Scratch) -> None:
    ended = scratch.bench("run", *TINY, "--num_batches=3", "--data_dir=nowhere")
    scratch.expect(ended, 5, says=["nowhere"], never=["Model:  "])


@fault(
    "convert-twice-at-once",
    "R13",
    injects="two data convert into one directory, the second is killed with -9; then a third",
    must="the first ends with 0 or a sentence; after the third, data check finds every photo",
)
def _convert_twice(scratch: Scratch) -> None:
    count = 600
    folder, converted = scratch.directory / "photos" / "train" / "a", scratch.directory / "converted"
    folder.mkdir(parents=True)
    for number in range(count):
        Image.effect_noise((128, 128), 50).convert("RGB").save(folder / f"{number}.jpg")
    words = ("data", "convert", scratch.directory / "photos", converted, "--images_per_shard=50")
    first, second = scratch.start(*words), scratch.start(*words)
    first.wait_until(lambda: converted.is_dir() and len(list(converted.iterdir())) > 2, "written a file")
    second.process.kill()
    scratch.may_leave_temporary_files()
    second.end()
    scratch.expect(first.end(), 0, 2, 4, 5)
    scratch.expect(scratch.bench(*words), 0)
    scratch.expect(scratch.bench("data", "check", converted, "--decode"), 0, says=[f"{count} "])
