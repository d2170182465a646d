"""The largest batch that fits into memory: doubling until one does not, then halving what is between. Runs nothing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

MOST_IMAGES = 4096
_MULTIPLE = 8


@dataclasses.dataclass(frozen=True)
class Probed:
    """What came of trying a batch: whether it fits, the host memory that it took at most, and why it does not fit."""

    fits: bool
    peak_bytes: int | None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Found:
    """The end of a search.

    Attributes:
        largest: images that fit; 0 if not even one does.
        limit: why it is not more, as a sentence.
        peak_bytes: host memory that the largest took at most; None if that is not known.
    """

    largest: int
    limit: str
    peak_bytes: int | None = None


def largest_that_fits(
    first: int,
    probe: Callable[[int], Probed],
    *,
    room_bytes: float | None = None,
    most: int = MOST_IMAGES,
    headroom: float = 0.0,
) -> Found:
    """Looks for the largest batch, a multiple of 8 if that many fit.

    Args:
        first: images to begin with.
        probe: tries a batch of so many images.
        room_bytes: host memory that a batch may take; where earlier peaks, drawn on in a straight line, lead above it,
            nothing is tried, since the host might not survive it. None if the host's memory is not at stake.
        most: images that are tried at most, unless `first` is more.
        headroom: share of the images that is left out in the end, if one more would not fit.
    """
    search = _Search(probe, math.inf if room_bytes is None else room_bytes)
    fits, too_many = 0, first
    if search.fits(first):
        fits, too_many = first, min(2 * first, most)
        while fits < most and search.fits(too_many):
            fits, too_many = too_many, min(2 * too_many, most)
        if fits >= most:
            return Found(fits, f"More than {fits} images are not tried.", search.peaks.get(fits))
    while not fits and too_many > 1:
        middle = too_many // 2
        fits, too_many = (middle, too_many) if search.fits(middle) else (0, middle)
    while middle := _between(fits, too_many):
        fits, too_many = (middle, too_many) if search.fits(middle) else (fits, middle)
    return _spared(Found(fits, search.limits[too_many], search.peaks.get(fits)), headroom)


def _spared(found: Found, headroom: float) -> Found:
    """Returns less than was found, to leave a run some room: a multiple of 8 if that many are left, and at least 1."""
    images = int(found.largest * (1 - headroom))
    images -= images % _MULTIPLE if images >= _MULTIPLE else 0
    if found.largest < 2 or images == found.largest:
        return found
    why = f"{found.limit} {found.largest} fit, and {headroom:.0%} is left free at least."
    return dataclasses.replace(found, largest=max(1, images), limit=why)


def _between(fits: int, too_many: int) -> int:
    """Returns the middle one of the numbers between that come into question; 0 if there are none."""
    choices = [images for images in range(fits + 1, too_many) if images < _MULTIPLE or images % _MULTIPLE == 0]
    return choices[len(choices) // 2] if fits and choices else 0


class _Search:
    """Tries batches, and remembers what they took and why they did not fit."""

    def __init__(self, probe: Callable[[int], Probed], room_bytes: float) -> None:
        self._probe = probe
        self._room_bytes = room_bytes
        self.peaks: dict[int, int] = {}
        self.limits: dict[int, str] = {}

    def fits(self, images: int) -> bool:
        """Tries a batch, unless it is foreseen not to fit."""
        if self._is_too_much(images) and len(self.peaks) == 1 and (smaller := min(self.peaks) // 2):
            self._try(smaller)  # what does not grow with the batch shows only in two peaks
        if self._is_too_much(images):
            self.limits[images] = (
                f"{images} would take about {self._expected_bytes(images) / 2**30:.1f} GiB of host memory, and "
                f"{self._room_bytes / 2**30:.1f} GiB may be used."
            )
            return False
        return self._try(images)

    def _try(self, images: int) -> bool:
        probed = self._probe(images)
        if not probed.fits:
            self.limits[images] = f"{images} do not fit: {probed.reason}"
        elif probed.peak_bytes is not None:
            self.peaks[images] = probed.peak_bytes
        return probed.fits

    def _is_too_much(self, images: int) -> bool:
        return self._expected_bytes(images) > self._room_bytes

    def _expected_bytes(self, images: int) -> float:
        """Returns the peak by the two largest batches that were tried; from one alone, as if all of it grew."""
        if not self.peaks:
            return 0.0
        *before, last = sorted(self.peaks)
        if not before:
            return self.peaks[last] * images / last
        slope = (self.peaks[last] - self.peaks[before[-1]]) / (last - before[-1])
        return self.peaks[last] + max(0.0, slope) * (images - last)
