"""The verb `data`: makes data sets. Imports TensorFlow late."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import process_environment
from benchmarks.errors import ExitStatus, UsageError, did_you_mean


def run(words: Sequence[str], given: Mapping[str, Any]) -> ExitStatus:
    """Does `data COMMAND ...`.

    Args:
        words: the command and its arguments.
        given: flag values by name; None is not given.

    Raises:
        UsageError: there is no such command, its arguments are wrong, or it would overwrite something.
    """
    if not words:
        raise UsageError(f"data: say what to do. Commands: {', '.join(_COMMANDS)}.")
    command, *arguments = words
    if command not in _COMMANDS:
        raise UsageError(
            f"data: there is no command '{command}'.{did_you_mean(command, _COMMANDS)} "
            f"Commands: {', '.join(_COMMANDS)}."
        )
    return _COMMANDS[command](arguments, given)


def _make_imagenet(arguments: Sequence[str], given: Mapping[str, Any]) -> ExitStatus:
    if len(arguments) != 1:
        raise UsageError(f"data make-imagenet: name one directory to write to, not {len(arguments)}.")
    directory = Path(arguments[0])
    if directory.is_file():
        raise UsageError(f"data make-imagenet: {directory} is a file: name a directory.")
    for name, smallest in (
        ("train_images", 0),
        ("validation_images", 0),
        ("images_per_shard", 1),
        ("seed", 0),
    ):
        if given[name] is not None and given[name] < smallest:
            raise UsageError(f"--{name}={given[name]} is too small: it must be at least {smallest}.")
    process_environment.prepare(device="cpu", visible_gpus=None)
    process_environment.import_tensorflow()
    from benchmarks.datasets import fake_imagenet

    per_shard = given["images_per_shard"] or 64
    counts = {
        "train": 512 if given["train_images"] is None else given["train_images"],
        "validation": given["validation_images"] or 0,
    }
    splits = [fake_imagenet.split(name, images, per_shard) for name, images in counts.items() if images]
    if not splits:
        raise UsageError("data make-imagenet: there is nothing to write; give --train_images or --validation_images.")
    if not given["overwrite"]:
        fake_imagenet.refuse_to_overwrite(directory, splits)
    try:
        for part in splits:
            seed = 1 if given["seed"] is None else given["seed"]
            fake_imagenet.write(directory, part, seed=seed, on_shard=_say_written)
    except fake_imagenet.WRITE_ERRORS as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UsageError(f"data make-imagenet: cannot write to {directory}: {reason}.") from error
    total = sum(part.images for part in splits)
    print(f"{total} images in {sum(part.shards for part in splits)} shards. Use them with --data_dir={directory}")
    return ExitStatus.OK


def _say_written(path: Path, images: int) -> None:
    print(f"{path}: {images} images, {path.stat().st_size / 1e6:.1f} MB", flush=True)


_COMMANDS: dict[str, Callable[[Sequence[str], Mapping[str, Any]], ExitStatus]] = {"make-imagenet": _make_imagenet}
