"""Makes every picture of the documentation in docs/images: `python docs/pictures.py`.

Diagrams of managers and reductions are drawn from the graphs that the code builds. The scaling plot and the picture of
the report page are made of docs/images/results.jsonl.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.console import say  # noqa: E402 - after the path to it
from benchmarks.process.tensorflow_setup import Runtime  # noqa: E402
from benchmarks.topology.start import start  # noqa: E402
from results import loading  # noqa: E402
from results.report import write  # noqa: E402

IMAGES = ROOT / "docs" / "images"
RESULTS = IMAGES / "results.jsonl"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_WIDTH, _COLOURS = 1280, 256


def diagrams() -> dict[str, str]:
    """Returns the SVG of every diagram by its file name."""
    from docs import diagrams, timelines  # they import TensorFlow

    return {f"{made.__name__}.svg": made() for made in (*diagrams.DIAGRAMS, *timelines.DIAGRAMS)}


def of_report() -> None:
    """Draws the scaling plot, and photographs the report page if there is a browser."""
    records = loading.load(RESULTS).records
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder)
        write.write(records, [RESULTS.name], report)
        shutil.copy(report / "plots" / "scaling.svg", IMAGES / "scaling.svg")
        program = next(filter(None, map(shutil.which, _BROWSERS)), None)
        if program is None:
            say("There is no Chromium, so report.png stays as it is.")
        else:
            (IMAGES / "report.png").write_bytes(_photographed(report / "report.html", program))


def _photographed(page: Path, program: str) -> bytes:
    """Returns a report page, to the end of its scaling plot, as a PNG with few colours."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": _WIDTH, "height": _WIDTH}, color_scheme="light")
        view.goto(page.as_uri())
        view.locator("#chart canvas").wait_for()
        end = view.locator("#scaling figure").bounding_box()
        assert end is not None, "the scaling plot is on the page"
        height = end["y"] + end["height"]
        png = view.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": _WIDTH, "height": height})
        browser.close()
    few = Image.open(io.BytesIO(png)).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    small = io.BytesIO()
    few.save(small, "PNG", optimize=True)
    return small.getvalue()


def main() -> None:
    """Makes all pictures."""
    start(Runtime())
    for name, svg in diagrams().items():
        (IMAGES / name).write_text(svg, encoding="utf-8")
        say(f"docs/images/{name}")
    of_report()


if __name__ == "__main__":
    main()
