"""The pictures of the documentation are shown, small, and what the code draws today."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs import pictures
from results import loading
from results.report import write
from tests.support import docs
from tests.support.commands import ROOT

_SHOWN = re.compile(r"!\[[^\]]+\]\(([^)\s]+)\)|\bsrc(?:set)?=\"([^\"\s]+)\"")
_LARGEST_BYTES = {".svg": 60_000, ".png": 250_000}


def _shown() -> set[Path]:
    """Returns the files that pages show, as Markdown or as HTML."""
    found = ((page, _SHOWN.findall(page.read_text(encoding="utf-8"))) for page in docs.pages(ROOT))
    targets = ((page, target) for page, pairs in found for pair in pairs for target in filter(None, pair))
    return {(page.parent / target).resolve() for page, target in targets if "://" not in target}


def test_pages_show_every_picture_and_no_other() -> None:
    made = {path for path in pictures.IMAGES.iterdir() if path.suffix in _LARGEST_BYTES}
    shown = _shown()
    assert len(made) >= 15
    assert {path for path in shown if not path.is_file()} == set()
    assert made - shown == set()


def test_pictures_are_small() -> None:
    for path in pictures.IMAGES.iterdir():
        assert path.stat().st_size <= _LARGEST_BYTES.get(path.suffix, 1_000_000), path.name


def test_diagrams_are_what_the_code_draws_today() -> None:
    for name, svg in pictures.diagrams().items():
        ElementTree.fromstring(svg)
        assert (pictures.IMAGES / name).read_text(encoding="utf-8") == svg, f"{name} is old: run `make pictures`"


def test_the_scaling_plot_is_made_of_the_committed_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loading.load(pictures.RESULTS)
    assert loaded.problems == [] and {record.status for record in loaded.records} == {"ok"}
    monkeypatch.setattr(pictures, "IMAGES", tmp_path)
    monkeypatch.setattr(write, "PLOTS", [plot for plot in write.PLOTS if plot.name == "scaling"])
    monkeypatch.setattr(shutil, "which", lambda _: None)  # the page is photographed only where there is a browser
    pictures.of_report()
    managers = {record.config["variable_update"] for record in loaded.records}
    drawn = (tmp_path / "scaling.svg").read_text(encoding="utf-8")
    assert all(f">{manager}" in drawn for manager in managers)
    assert not (tmp_path / "report.png").exists()
