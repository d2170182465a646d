"""The reference loop in PyTorch: the suite's model and images, and PyTorch's kernels, optimizer and update.

TensorFlow builds the model, its initial values and the images, on the host; PyTorch alone uses GPUs.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.cluster.cluster_spec import Cluster
from benchmarks.cluster.member import Team
from benchmarks.config.config import Config
from benchmarks.config.workload import Workload
from benchmarks.devices import device_plan
from benchmarks.errors import OutOfMemoryError, UsageError, headline, lack_of_memory
from benchmarks.graph import run_graph
from benchmarks.graph.stepper import Stepper
from benchmarks.measure import injected_delay
from benchmarks.measure.display import Display
from benchmarks.measure.run_log import RunLog
from benchmarks.measure.timing import TakeStep, timed
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.run import loop, pytorch_group, pytorch_step
from benchmarks.run.cluster_run import share_of_cores
from benchmarks.training import flop_count
from models import building, specs, to_torch
from models.convolutions import Kernels
from models.outside_code import UnusableModelError
from results.text import counted
from variable_mgr.place import HOST

_MOST_DIFFERENCE = 1e-3  # of logits, over the largest
# With these in the environment PyTorch compiles nothing, or goes on without after an error.
_NOT_COMPILING = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "TORCHDYNAMO_SUPPRESS_ERRORS")

# Images and labels of a step.
Batch = tuple[np.ndarray, np.ndarray]


def run_pytorch_loop(config: Config, log: RunLog, display: Display, team: Team) -> None:
    """Trains `config` in PyTorch and fills `log`.

    Raises:
        BenchError: as `benchmarks.run.train.run_loop`.
    """
    workload, limit_seconds = config.workload, config.processes.preparation_seconds
    uncompiled = [name for name in _NOT_COMPILING if os.environ.get(name, "0") != "0"]
    if config.variables.torch_compile and uncompiled:
        raise UsageError(
            f"--torch_compile: with {uncompiled[0]} in the environment the model may run without being compiled. Unset "
            "it, or leave --torch_compile out."
        )
    team.deadlines.preparation("Building the model")
    display.phase("building the model", None)
    device, cluster = find_device(config.devices), config.processes.cluster
    _set_threads(config.devices, cluster)
    pytorch_step.set_arithmetic(config.computing.precision)
    torch.manual_seed(config.training.seed + config.place.worker)
    model, initial, images, description = prepare(config)
    try:
        converted = to_torch.convert(model)
        if ":" in workload.model:  # not one of the suite's, whose counterparts are tested
            _require_same_logits(workload)
    except UnusableModelError as error:
        raise UsageError(
            f"--variable_update={config.variables.variable_update} cannot train {workload.model}: {error} Use another "
            "--model, or a variable manager of this suite."
        ) from None
    converted.load(initial)
    log.started("graph")
    group = pytorch_group.joined(cluster, team, device, limit_seconds) if cluster else contextlib.nullcontext()
    with _explained(), group:
        layout = torch.channels_last if workload.data_format == "NHWC" else torch.contiguous_format
        converted.module.to(device, memory_format=layout)
        batch = _on_device(images, workload.data_format, device)
        log.placement = _placement(config, model, device)
        shown = {"PyTorch": f"{torch.__version__}, {_how(config.variables.torch_compile)}"}
        display.start(shown | run_graph.shown_facts(config, description, log.placement))
        step = _make_step(config, converted, device, batch)
        loop.measure_reference(config, Stepper(timed(injected_delay.slowed(step))), log, display, team)
        if device.type == "cuda":  # of a step after the measured ones: the first one also tries cuDNN's algorithms
            torch.cuda.reset_peak_memory_stats(device)
            step()
            log.observe(peak_gpu_memory_bytes=torch.cuda.max_memory_allocated(device))
        log.weights_are_finite = _are_finite(converted.module)
        if cluster:
            log.observe(replica_drift=pytorch_group.drift(converted.module))
    team.deadlines.none()


def _make_step(
    config: Config, converted: to_torch.TorchModel, device: torch.device, batch: tuple[torch.Tensor, torch.Tensor]
) -> TakeStep:
    """Returns the training step of a model that is on its device; in a cluster the process group must exist."""
    training, computing = config.training, config.computing
    optimizer = pytorch_step.make_optimizer(
        converted.module,
        converted.decayed,
        learning_rate=training.learning_rate,
        momentum=training.momentum if training.optimizer == "momentum" else 0.0,
        weight_decay=training.weight_decay,
    )
    module: nn.Module = converted.module
    if config.processes.cluster:  # every worker gets the mean of all gradients
        device_ids = None if device.type == "cpu" else [device]
        module = DistributedDataParallel(module, device_ids=device_ids, gradient_as_bucket_view=True)
    return pytorch_step.make_step(
        torch.compile(module) if config.variables.torch_compile else module,
        optimizer,
        *batch,
        device=device,
        precision=computing.precision,
        loss_scaling=computing.loss_scaling,
        label_smoothing=training.label_smoothing,
    )


def find_device(devices: Devices) -> torch.device:
    """Returns the device of this process, which has one.

    Raises:
        UsageError: PyTorch does not see the GPU, or workers share one.
    """
    if not devices.on_gpu:
        return torch.device("cpu")
    if devices.gpu_memory_fraction is not None:  # no flag has set it, so each worker has a part of a GPU
        raise UsageError("Workers would share a GPU, and NCCL needs one for each: start fewer on this host.")
    if not torch.cuda.is_available():
        cause = "was built without CUDA" if torch.version.cuda is None else "sees none"
        raise UsageError(
            f"1 GPU wanted; PyTorch {torch.__version__} {cause}. Install a build of PyTorch for this driver "
            "(https://pytorch.org/get-started), or use --device=cpu."
        )
    tf.config.set_visible_devices([], "GPU")  # an input pipeline starts the eager runtime, which would take its memory
    return torch.device("cuda", 0)


def prepare(config: Config) -> tuple[building.Model, dict[str, np.ndarray], Batch, str]:
    """Builds the model, and computes its initial values and the images of this process, as the suite's own loops do.

    Returns:
        The model; the values of its variables, by name; images and labels of the first step; and what the images are.
    """
    workload, training = config.workload, config.training
    with tf.Graph().as_default():
        model = building.build(
            specs.find_model(workload.model),
            data_format=workload.data_format,
            num_classes=workload.num_classes,
            seed=training.seed,
            precision=config.computing.precision,
            kernels=Kernels(that_pad=True),  # as PyTorch's
        )
        model = building.decaying(model, training.weight_decay_on)
        spec = run_graph.input_spec(config)
        images = run_graph.build_input(workload, config.data, spec, [HOST])
        with tf.compat.v1.Session(config=device_plan.session_config(Devices())) as session:
            session.run([tf.compat.v1.global_variables_initializer(), *images.initializers])
            initial = session.run({v.name: v.initial_value() for v in model.variables if v.kind != "tower_state"})
            (tower,) = images.towers
            return model, initial, session.run((tower.images, tower.labels)), images.description


def _require_same_logits(workload: Workload) -> None:
    """Compares a model in fp32 with its counterpart in PyTorch.

    A layer whose weights are all 0, or all 1, would hide what others compute: they are varied.

    Raises:
        UnusableModelError: they compute different logits of random images, or PyTorch cannot compute any.
    """
    with tf.Graph().as_default():
        spec, data_format = specs.find_model(workload.model), workload.data_format
        model = building.build(spec, data_format=data_format, num_classes=workload.num_classes, seed=0)
        values = [variable.initial_value() for variable in model.variables]
        shape = (2, *model.image_shape)
        random = np.random.default_rng(0)
        images = random.standard_normal(shape, np.float32)
        with tf.compat.v1.Session(config=device_plan.session_config(Devices())) as session:
            logits, _ = model.call(values, tf.constant(images), training=False)
            initial = []
            for variable, value in zip(model.variables, session.run(values), strict=True):
                hides_others = variable.kind == "weight" and np.ptp(value) == 0
                noise = random.normal(0.0, 0.1, value.shape).astype(value.dtype)
                initial.append(value + noise if hides_others else value)
            wanted = session.run(logits, dict(zip(values, initial, strict=True)))
    converted = to_torch.convert(model)
    converted.load({variable.name: value for variable, value in zip(model.variables, initial, strict=True)})
    batch, _ = _on_device((images, np.zeros(2, np.int64)), data_format, torch.device("cpu"))
    try:
        with torch.no_grad():
            found = converted.module.eval()(batch).numpy()
        difference = float(np.abs(found - wanted).max() / np.abs(wanted).max())
        how = f"by {difference:.2g} of the largest"
    except (RuntimeError, ValueError) as error:
        difference, how = math.inf, headline(error)
    if not difference < _MOST_DIFFERENCE:
        raise UnusableModelError(
            f"its counterpart in PyTorch computes other logits ({how}): a layer has arguments that are not converted."
        )


def _set_threads(devices: Devices, cluster: Cluster | None) -> None:
    """Sets how many threads this process has: as flags say, else its share of the cores of its host."""
    share = share_of_cores(cluster) if cluster and not devices.on_gpu else 0
    if devices.num_intra_threads or share:
        torch.set_num_threads(devices.num_intra_threads or share)
    if devices.num_inter_threads:
        torch.set_num_interop_threads(devices.num_inter_threads)


def _on_device(batch: Batch, data_format: str, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies a batch to the device; images in NHWC become [batch, channels, height, width] in `channels_last`."""
    images, labels = map(torch.from_numpy, batch)
    return (images.permute(0, 3, 1, 2) if data_format == "NHWC" else images).to(device), labels.to(device)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turns a lack of memory, or of a compiler, into the error that says so."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise UsageError(
                f"--torch_compile: PyTorch cannot compile the model: {headline(error)} It needs a C++ compiler, and on "
                "GPUs Triton. Install it, or leave --torch_compile out."
            ) from error
        what = "Out of memory" if isinstance(error, torch.OutOfMemoryError) else lack_of_memory(error)
        if what:
            raise OutOfMemoryError(f"{what}: {headline(error).removesuffix('.')}.") from error
        raise


def _are_finite(module: nn.Module) -> bool:
    with torch.no_grad():
        return all(bool(tensor.isfinite().all()) for tensor in module.state_dict().values())


def _how(compiles: bool) -> str:
    return "compiled by torch.compile" if compiles else "eager"


def _placement(config: Config, model: building.Model, device: torch.device) -> dict[str, Any]:
    """Returns the placement for the record; see `benchmarks.training.placement_table`.

    The operations of a step are those of the same model in the suite's own loops.
    """
    batch = config.workload.batch_per_device
    work = flop_count.of_built(model, batch=batch, forward_only=False)
    kept = [variable for variable in model.variables if variable.kind != "tower_state"]
    weights = [variable for variable in kept if variable.kind == "weight"]
    (tower,) = config.place.towers
    name = tf.DeviceSpec.from_string(tower).to_string()
    size = sum(4 * math.prod(variable.shape) for variable in weights)
    threads = counted(torch.get_num_threads(), "thread")
    copies = "one copy per worker under DistributedDataParallel" if config.processes.cluster else "one copy"
    has_slots = config.training.optimizer == "momentum" and config.training.momentum > 0
    return {
        "devices": "1 GPU" if device.type == "cuda" else f"1 CPU, {threads}",
        "tower_devices": [name],
        "manager": f"PyTorch, {copies}, {_how(config.variables.torch_compile)}",
        "variables": len(kept),
        "weights": len(weights),
        "variable_bytes_per_device": {name: sum(4 * math.prod(variable.shape) for variable in kept)},
        "slot_bytes_per_device": {name: size} if has_slots else {},
        "gradient_bytes_per_device": {name: size},
        "sent_per_step": {},
        **work.per_image(batch),
    }
