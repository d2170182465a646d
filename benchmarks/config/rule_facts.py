"""The facts that rules on flags ask for besides flags. Their terms are explained in `rules`."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.config.rules import Fact
from benchmarks.data.sources.data_sets import SYNTHETIC, SYNTHETIC_HOST

FACTS: Mapping[str, Fact] = {
    "@cpu": Fact("a run on CPUs", lambda run: not run.devices.on_gpu),
    "@gpu": Fact("a run on GPUs", lambda run: run.devices.on_gpu),
    "@cluster": Fact("several processes", lambda run: run.cluster is not None),
    "@alone": Fact("a single process", lambda run: run.cluster is None),
    "@servers": Fact("parameter servers", lambda run: run.cluster is not None and run.cluster.num_ps > 0),
    "@controller": Fact("a controller", lambda run: run.cluster is not None and run.cluster.controller is not None),
    "@synthetic": Fact("synthetic images", lambda run: run.data_name == SYNTHETIC),
    "@synthetic_host": Fact("synthetic images that are made on the host", lambda run: run.data_name == SYNTHETIC_HOST),
    "@small_images": Fact("{data_name}, whose images are small", lambda run: run.data_name in ("cifar10", "mnist")),
    "@mnist": Fact("MNIST", lambda run: run.data_name == "mnist"),
    "@nchw": Fact("the layout NCHW", lambda run: run.data_format == "NCHW"),
    "@nhwc_only": Fact("{model}, whose code builds it for NHWC only", lambda run: not run.spec.nchw),
    "@fp32": Fact("arithmetic in fp32", lambda run: run.precision == "fp32"),
    "@no_conv1x1": Fact("{model}, which has no convolutions of one pixel", lambda run: not run.spec.has_conv1x1),
    "@no_larger_convolutions": Fact(
        "{model}, which has no larger convolutions", lambda run: not run.spec.has_larger_convolutions
    ),
    "@no_batch_norm": Fact("{model}, which has no batch normalisation", lambda run: not run.spec.has_batch_norm),
    "@not_resnet50": Fact("{model}", lambda run: run.spec.name != "resnet50"),
    "@no_resnet": Fact(
        "{model}, which is no ResNet for ImageNet",
        lambda run: not run.spec.name.startswith("resnet") or run.spec.data_name != "imagenet",
    ),
    "@workers": Fact("several workers", lambda run: run.cluster is not None and run.cluster.num_workers > 1),
    "@several_devices": Fact("several devices in a process", lambda run: run.devices.num_devices > 1),
    "@no_shared_devices": Fact("managers that share nothing within a process", lambda run: not run.shares_devices),
}
