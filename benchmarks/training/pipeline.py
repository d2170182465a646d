"""A pipeline: the stages of a model on one device each, through which a step sends its images in micro-batches.

The schedule is GPipe's: every stage computes the forward passes of all micro-batches in order, then their backward
passes in reverse order, and then one update. Source: Huang et al. 2019, "GPipe: efficient training of giant neural
networks using pipeline parallelism", arXiv:1811.06965. Activations are kept and not computed again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from benchmarks.data.pipeline.tower_input import TowerInput
from benchmarks.errors import UsageError
from benchmarks.training import flop_count
from benchmarks.training.objectives import Objective, Score
from benchmarks.training.placement_table import size_bytes
from models.building import Model, ModelVariable
from models.parts import Part, balanced, cut, cut_points
from results.measurement import Observed
from results.text import counted
from variable_mgr.manager import TowerUpdate
from variable_mgr.managers.pipelined import Pipelined
from variable_mgr.place import HOST
from variable_mgr.reductions.kernels import mean
from variable_mgr.transfers import DEVICE, Transfer


class StageWork(NamedTuple):
    """What a stage does for one image: FLOPs of its forward and backward pass, and the size of its output."""

    forward_flops: int
    backward_flops: int
    output_bytes: int

    @property
    def flops(self) -> int:
        """The FLOPs of both passes."""
        return self.forward_flops + self.backward_flops


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A model in stages, one per device.

    The variables are in the order of the whole model. A step divides its images into `micro_batches` of equal size.
    """

    variables: Sequence[ModelVariable]
    stages: Sequence[Part]
    work: Sequence[StageWork]
    micro_batches: int

    def manager(self, devices: Sequence[str]) -> Pipelined:
        """Makes the manager of the variables, given the device of each stage."""
        pairs = zip(self.stages, devices, strict=True)
        return Pipelined({variable.name: device for stage, device in pairs for variable in stage.variables})

    def transfers(self, images: int) -> list[Transfer]:
        """Returns what all stages send in a step of that many images: activations forward, their gradients back."""
        number = 2 * self.micro_batches
        sizes = [2 * images * work.output_bytes for work in self.work[:-1]]
        return [Transfer(DEVICE, DEVICE, size, number, "activation") for size in sizes]

    def facts(self, devices: Sequence[str], images: int) -> dict[str, Any]:
        """Returns for the record what each stage has, and for which share of a step devices of equal ones are idle."""
        return {
            "micro_batches": self.micro_batches,
            "images_per_micro_batch": images // self.micro_batches,
            "stages": [
                {
                    "device": device,
                    "layers": " to ".join(dict.fromkeys(stage.layers)),
                    "flops_per_image": work.flops,
                    "variable_bytes": sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in stage.variables),
                    "output_bytes_per_image": work.output_bytes,
                }
                for stage, work, device in zip(self.stages, self.work, devices, strict=True)
            ],
            "idle_share_of_equal_stages": (len(devices) - 1) / (self.micro_batches + len(devices) - 1),
        }


def plan(model: Model, *, stages: int, micro_batches: int) -> Pipeline:
    """Cuts a model where one tensor crosses, so that the stage with most FLOPs has as few as possible.

    Raises:
        UsageError: the model cannot be cut into so many stages.
    """
    points = cut_points(model)
    pieces = _work(cut(model, points))
    costs = [piece.flops for piece in pieces]
    ends = balanced(costs, [piece.output_bytes for piece in pieces], stages)
    if ends is None:
        most = sum(cost > 0 for cost in costs)
        raise UsageError(
            f"--pipeline_stages={stages}: {model.keras_model.name} can be cut into at most {counted(most, 'stage')}, "
            "since only one tensor may cross a cut and every stage needs a convolution or dense layer. Use "
            f"--pipeline_stages={most} --num_gpus={most}, or fewer."
        )
    chosen = cut(model, [points[end] for end in ends])
    return Pipeline(model.variables, chosen, _work(chosen), micro_batches)


def _work(stages: Sequence[Part]) -> list[StageWork]:
    """Counts each stage in a graph of its own, with one image; the first stage needs no gradients of its input."""
    work: list[StageWork] = []
    with tf.Graph().as_default():
        inputs = tf.compat.v1.placeholder(tf.float32, (1, *stages[0].input_shape))
        for stage in stages:
            values = {v.name: tf.compat.v1.placeholder(v.dtype, v.shape) for v in stage.variables}
            outputs, _ = stage.call(values, inputs)
            targets = [values[name] for name in stage.weights] + ([inputs] if work else [])
            gradients = tf.gradients(outputs, targets) if targets else []
            forward = flop_count.count([outputs]).flops
            training = flop_count.count([outputs, *gradients]).flops
            work.append(StageWork(forward, training - forward, size_bytes(outputs)))
            inputs = tf.compat.v1.placeholder(outputs.dtype, outputs.shape)
    return work


class PassTimes(NamedTuple):
    """When the passes of a step ended, in seconds or any other unit.

    Attributes:
        began: when the images were on the first device, a scalar.
        forward, backward: the end of each pass, [stages, micro-batches].
        sent: when each backward pass had the gradient of its input, which it sends before it ends; the same shape.
    """

    began: Any
    forward: Any
    backward: Any
    sent: Any


_TOLERANCE = 0.02  # of a step


def idle_shares(ends: PassTimes) -> list[float] | None:
    """Returns for each stage the share of the time between the start and the last end in which it computed nothing.

    A pass starts when the one before it on its device has ended and its input has been computed; so the time that its
    input takes to arrive counts as computing. If ends contradict this, because passes are shorter than the delay with
    which the host sees their ends, the result is None.
    """
    began, none = float(ends.began), np.full((1, np.shape(ends.forward)[1]), ends.began)
    # Rows are stages, columns are passes in the order of the schedule.
    ended = np.hstack([ends.forward, np.fliplr(ends.backward)])
    ready = np.hstack([np.vstack([none, ends.forward[:-1]]), np.fliplr(np.vstack([ends.sent[1:], none]))])
    before = np.hstack([np.full((len(ended), 1), began), ended[:, :-1]])
    seconds, total = ended - np.maximum(before, ready), ended.max() - began
    if seconds.min() < -_TOLERANCE * total:
        return None
    return [max(0.0, float(1.0 - busy / total)) for busy in seconds.sum(axis=1)]


_STEPS = 3


def measured_idle_shares(
    session: tf.compat.v1.Session,
    times: PassTimes,
    operation: tf.Operation,
    options: tf.compat.v1.RunOptions | None = None,
) -> list[float] | None:
    """Takes some more steps and returns the medians of their idle shares; None if one has none, see `idle_shares`.

    TensorFlow prepares for new fetches in the first step, so that one does not count.
    """
    taken = [session.run([times, operation], options=options)[0] for _ in range(1 + _STEPS)]
    shares = [of_step for of_step in map(idle_shares, taken[1:]) if of_step is not None]
    return None if len(shares) < _STEPS else [statistics.median(of_stage) for of_stage in zip(*shares, strict=True)]


def stage_facts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Returns a line for a person about each stage, given what the record has."""
    stages = facts["stages"]
    total = sum(stage["flops_per_image"] for stage in stages)
    lines = {
        f"Stage {number}": f"{stage['layers']} on {stage['device']}, {stage['flops_per_image'] / total:.0%} of the "
        f"FLOPs, {stage['variable_bytes'] / 1e6:.3g} MB of variables"
        for number, stage in enumerate(stages)
    }
    for number, stage in enumerate(stages[:-1]):
        lines[f"Stage {number}"] += f", sends {stage['output_bytes_per_image'] / 1e6:.3g} MB per image"
    return {**lines, "Expected idle": f"{facts['idle_share_of_equal_stages']:.0%} of a step if all stages were equal"}


def train(
    pipeline: Pipeline,
    tower_input: TowerInput,
    devices: Sequence[str],
    values: Mapping[str, tf.Tensor],
    objective: Objective,
    loss_scale: tf.Tensor | None = None,
) -> tuple[Score, TowerUpdate, PassTimes]:
    """Returns the mean score of all images, the gradients of the mean loss with the new state, and when passes ended.

    Statistics and the state of dropout pass from one micro-batch to the next, as if each were a step. The batch is a
    multiple of the number of micro-batches; the value of each variable is on the device of its stage. The loss is
    multiplied by `loss_scale`, a scalar, and the gradients are divided by it.
    """
    with tf.device(devices[0]):
        images = _divided(tower_input.images, pipeline.micro_batches)
    with tf.device(devices[-1]):
        labels = _divided(tower_input.labels, pipeline.micro_batches)
        of_loss = (1.0 if loss_scale is None else loss_scale) * tf.constant(1.0 / pipeline.micro_batches)
    passes = _Passes(pipeline, devices, values, objective)
    for part in zip(images, labels, strict=True):
        passes.forward(*part)
    for number in reversed(range(len(images))):
        passes.backward(number, of_loss)
    gradients = {}
    for variable in pipeline.variables:
        if variable.kind == "weight":
            total = passes.gradients[variable.name]
            with tf.device(total.device):
                total = total if loss_scale is None else total / loss_scale
                gradients[variable.name] = objective.with_decay(variable, values[variable.name], total)
    with tf.device(devices[-1]):
        observed = {name: mean([score.observed[name] for score in passes.scores]) for name in passes.scores[0].observed}
        score = Score(mean([score.loss for score in passes.scores]), Observed(**observed))
    began = time_after([tf.group(*images)], images[:1])
    with tf.device(HOST):
        in_order = ([times[::-1] for times in of_stages] for of_stages in (passes.backward_ends, passes.sent))
        ends = PassTimes(began, tf.stack(passes.forward_ends), *map(tf.stack, in_order))
    return score, TowerUpdate(gradients=gradients, state=passes.state), ends


class _Passes:
    """The passes of a step, which are built in the order in which every device computes them.

    Attributes:
        scores: by micro-batch.
        state: new values of statistics and tower states, by name.
        gradients: added up over the micro-batches so far, by name.
        forward_ends, backward_ends, sent: see `PassTimes`, by stage, then in the order in which they are built.
    """

    def __init__(
        self, pipeline: Pipeline, devices: Sequence[str], values: Mapping[str, tf.Tensor], objective: Objective
    ) -> None:
        self._stages, self._devices, self._objective = pipeline.stages, devices, objective
        self._values = values
        self._before: list[list[tf.Operation]] = [[] for _ in devices]
        self._outputs: list[list[tf.Tensor]] = []  # by micro-batch, then by stage; the last is the loss
        self.scores: list[Score] = []
        self.state: dict[str, tf.Tensor] = {}
        self.gradients: dict[str, tf.Tensor] = {}
        self.forward_ends: list[list[tf.Tensor]] = [[] for _ in devices]
        self.backward_ends: list[list[tf.Tensor]] = [[] for _ in devices]
        self.sent: list[list[tf.Tensor]] = [[] for _ in devices]

    @contextlib.contextmanager
    def _pass(self, stage: int, ends: list[list[tf.Tensor]]) -> Iterator[list[tf.Tensor]]:
        """Inside it, operations of a stage run after its pass before. It yields a list for what the pass computes."""
        computed: list[tf.Tensor] = []
        with tf.device(self._devices[stage]), tf.control_dependencies(self._before[stage]):
            yield computed
            done = tf.group(*computed)
        self._before[stage] = [done]
        ends[stage].append(time_after([done], computed[:1]))

    def forward(self, images: tf.Tensor, labels: tf.Tensor) -> None:
        """Sends the next micro-batch forward through all stages."""
        outputs: list[tf.Tensor] = []
        for number, stage in enumerate(self._stages):
            with self._pass(number, self.forward_ends) as computed:
                output, state = stage.call({**self._values, **self.state}, outputs[-1] if outputs else images)
                if stage is self._stages[-1]:
                    self.scores.append(self._objective.score(output, labels))
                    output = self.scores[-1].loss
                    computed += self.scores[-1].observed.values()
                outputs.append(output)
                computed += [output, *state.values()]
            self.state |= state
        self._outputs.append(outputs)

    def backward(self, number: int, of_loss: tf.Tensor) -> None:
        """Sends gradients of a micro-batch back through all stages: those of `of_loss` times its mean loss."""
        gradient, outputs = of_loss, self._outputs[number]
        for index, stage in reversed(list(enumerate(self._stages))):
            with self._pass(index, self.backward_ends) as computed:
                inputs = outputs[index - 1 : index]  # none of the first stage
                weights = [self._values[name] for name in stage.weights]
                gradient, *rest = tf.gradients(outputs[index], [*inputs, *weights], grad_ys=gradient)
                of_weights = rest if inputs else [gradient, *rest]
                for name, own in zip(stage.weights, of_weights, strict=True):
                    own = tf.convert_to_tensor(own)  # that of a table is of the rows that were looked up
                    self.gradients[name] = self.gradients[name] + own if name in self.gradients else own
                computed += [gradient, *(self.gradients[name] for name in stage.weights)]
            self.sent[index].append(time_after([gradient.op], [gradient]))


def _divided(batch: tf.Tensor, parts: int) -> list[tf.Tensor]:
    size = batch.shape[0] // parts
    return [batch[number * size : (number + 1) * size] for number in range(parts)]


def time_after(work: Sequence[tf.Operation], values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns when devices have finished all work, in seconds since the epoch, given a value on the device of each.

    The host may consider work done that a device still has in its queue. So each device computes a number after its
    work, and the time depends on the numbers: without a use, TensorFlow would reduce them to an order of launches.
    """
    last = []
    for done, value in zip(work, values, strict=True):
        with tf.device(value.device), tf.control_dependencies([done]):
            first = value if value.shape.rank == 0 else tf.reshape(value, [-1])[0]
            last.append(tf.square(tf.cast(first, tf.float32)))
    with tf.device(HOST):
        squared = tf.square(tf.add_n(last))  # on the host, also of one device
        with tf.control_dependencies([squared]):
            now = tf.timestamp()
        return tf.where(squared >= 0.0, now, tf.zeros_like(now))  # always true, unless a value is NaN
