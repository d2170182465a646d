"""What to do when a package that the suite needs is missing. Imports nothing that is installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

# What is imported, and the package that has it, for all requirements of the suite (setup.cfg).
PACKAGES = {
    "PIL": "pillow",
    "absl": "absl-py",
    "google_crc32c": "google-crc32c",
    "grpc": "grpcio",
    "jinja2": "jinja2",
    "keras": "keras",
    "matplotlib": "matplotlib",
    "msgspec": "msgspec",
    "numpy": "numpy",
    "pandas": "pandas",
    "psutil": "psutil",
    "pynvml": "nvidia-ml-py",
    "ruptures": "ruptures",
    "scipy": "scipy",
    "simpy": "simpy",
    "tensorflow": "tensorflow",
    "vl_convert": "vl-convert-python",
}
_HOME = Path(__file__).resolve().parents[2]


def missing(error: ModuleNotFoundError) -> str | None:
    """Returns what to run if the module that was not found is of a package that the suite needs; else None.

    A part of a package that is there, or a module of the suite, is not a package that is missing.
    """
    package = PACKAGES.get(error.name or "")
    if package is None:
        return None
    install = f"Run `{sys.executable} -m pip install {package}`."
    if (_HOME / "Makefile").is_file():  # else the suite was installed
        install = (
            "Run `make install`, then `.venv/bin/python run_bench.py ...`, or `source .venv/bin/activate` first and "
            "`python run_bench.py ...`."
        )
    return f"The package '{package}' is missing in {sys.executable}. {install}"


def require(module: str) -> None:
    """Raises ModuleNotFoundError if a module cannot be found, without importing it."""
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)
