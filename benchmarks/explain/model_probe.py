"""A process that builds a model which other code makes, and writes its facts as JSON; see `config.outside_models`.

python -m benchmarks.explain.model_probe NAME NUM_CLASSES
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import signal
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from benchmarks.config.outside_models import AROUND_ANSWER
from benchmarks.devices.start_tensorflow import start
from benchmarks.process.tensorflow_setup import Devices, Runtime
from models.outside_code import UnusableModelError


def main(name: str, num_classes: str) -> NoReturn:
    """Writes `{"facts": ...}` between marks, or why there are none: `{"refused": ...}` or `{"error": ...}`.

    Then it ends at once: a thread, or what the code wants to do at the end, may take for ever.
    """
    answer = os.dup(1)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # it takes too long
    start(Runtime(devices=Devices(onednn="on")))  # which has CPUs' kernels for channels first
    from benchmarks.explain import probed_model

    try:
        with ThreadPoolExecutor(1) as thread:  # a run does not build in its main thread either
            facts = thread.submit(probed_model.find_facts, name, int(num_classes)).result()
        result: dict[str, Any] = {"facts": dataclasses.asdict(facts)}
    except UnusableModelError as error:
        result = {"refused": str(error)}
    except Exception as error:
        traceback.print_exc()
        result = {"error": " ".join(traceback.format_exception_only(error)[-1].split())}
    sys.stderr.flush()
    with open(answer, "wb") as file:
        file.write(AROUND_ANSWER + json.dumps(result).encode() + AROUND_ANSWER)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
