"""Everything that training changes in a graph, as arrays by canonical names, and the way back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import tensorflow as tf

from benchmarks.errors import DataError
from models.model_spec import BACKGROUND_CLASSES, IMAGENET_CLASSES
from variable_mgr.manager import Optimizer, StagedValue, VariableManager, VariableSpec

IN_FLIGHT = "in_flight/"
_OF_RULE = "optimizer/"
_OF_THE_SAME = "Pass a checkpoint of the same model, with as many classes (--num_classes)."
Values = Mapping[str, np.ndarray]


class TrainingState:
    """The state of a training. Entries have the same names under every manager.

    `NAME` is a weight, a moving average, or the seed of dropout of tower 0; `NAME/SLOT` is an optimizer's slot;
    `optimizer/NAME` is what it keeps besides. All else, such as gradients that are staged, is `in_flight/NAME` and fits
    only a graph that was built alike.

    Args:
        specs: the model's variables.
        manager: that has created them.
        rule: updates them; None in inference.
        variables: all that a step may change.
        first_tower: the number of this process' first tower among those of all workers.
        alone: whether this process drives all towers; otherwise it knows only a part of what is in flight.
    """

    def __init__(
        self,
        specs: Sequence[VariableSpec],
        manager: VariableManager,
        rule: Optimizer | None,
        variables: Sequence[tf.Variable],
        *,
        first_tower: int = 0,
        alone: bool = True,
    ) -> None:
        self._first_tower = first_tower
        self._kinds = {spec.name: spec.kind for spec in specs}
        copies = manager.copies()
        self._entries = {**copies, **_state_of(rule, copies)} if rule else copies
        covered = {
            part.op.name
            for name, of_it in self._entries.items()
            for copy in (of_it[:1] if manager.copies_differ and self._kinds.get(name) != "tower_state" else of_it)
            for part in copy
        }
        others = [variable for variable in variables if variable.op.name not in covered] if alone else []
        self._others = {f"{IN_FLIGHT}{other.op.name}": StagedValue(other, _initial(other)) for other in others}
        staged = manager.staged_values() if alone else {}
        self._staged = {f"{IN_FLIGHT}{name}": value for name, value in staged.items()}

    @property
    def size_bytes(self) -> int:
        """Returns the size of the entries, without what is in flight."""
        parts = [part for copies in self._entries.values() for part in copies[0]]
        return sum(part.shape.num_elements() * part.dtype.base_dtype.size for part in parts)

    def fetch(self, session: tf.compat.v1.Session) -> dict[str, np.ndarray]:
        """Returns the values of all entries, between two steps."""
        whole = {name: list(copies[0]) for name, copies in self._entries.items()}
        between = {name: staged.value for name, staged in {**self._others, **self._staged}.items()}
        parts, values = session.run((whole, between))
        joined = {name: np.concatenate(of_it, -1) if len(of_it) > 1 else of_it[0] for name, of_it in parts.items()}
        return {**joined, **values}

    def feeds(
        self, values: Values, *, weights_only: bool = False, without: Collection[str] = ()
    ) -> dict[tf.Tensor, np.ndarray]:
        """Returns what to feed while variables are initialised, so that they get the values of another run.

        Args:
            values: of entries, by name. What is in flight may be missing, and an optimizer's state too: it starts as in
                a new training.
            weights_only: leave the optimizer's state, and the seeds of dropout, as in a new training.
            without: names of weights to leave so, too.

        Raises:
            DataError: a weight is missing, or has another shape.
        """
        fed: dict[tf.Tensor, np.ndarray] = {}
        for name, copies in self._entries.items():
            kind = self._kinds.get(name)
            may_be_left = kind not in ("weight", "statistic") and (weights_only or name not in values)
            if name in without or may_be_left:
                continue
            for number, copy in enumerate(copies, start=self._first_tower):
                value = _fitting(name, values, copy)
                if kind == "tower_state":  # as `variable_mgr.variables.create_tower_state`
                    value = value + np.asarray(number, value.dtype)
                sizes = [part.shape[-1] for part in copy[:-1]] if len(copy) > 1 else []
                parts = np.split(value, np.cumsum(sizes), axis=-1) if sizes else [value]
                fed.update((_initial(part), of_it) for part, of_it in zip(copy, parts, strict=True))
        for name, staged in {**self._others, **self._staged}.items():
            if name in values and staged.put.shape.is_compatible_with(values[name].shape):
                fed[staged.put] = values[name]
        return fed

    def resumes(self, values: Values) -> bool:
        """Returns whether the values include all that is staged between steps."""
        return all(name in values for name in self._staged)


def of_other_classes(values: Values, specs: Sequence[VariableSpec]) -> Collection[str]:
    """Returns the names of the last layer's weights if the values have another number of classes; else none.

    A model for ImageNet needs the values of its last layer: 1000 and 1001 classes are easily mixed up.
    """
    last = [spec.name for spec in specs if spec.kind == "weight"][-1].rpartition("/")[0]
    shapes = {spec.name: tuple(spec.shape) for spec in specs if spec.name.startswith(f"{last}/")}
    found = {name: values[name].shape for name in shapes if name in values}
    if found == shapes or any({*shape[-1:]} & {IMAGENET_CLASSES, BACKGROUND_CLASSES} for shape in shapes.values()):
        return ()
    inputs, of_found = ({name: shape[:-1] for name, shape in of_it.items()} for of_it in (shapes, found))
    return shapes.keys() if inputs == of_found else ()


def _state_of(
    rule: Optimizer, copies: Mapping[str, list[Sequence[tf.Variable]]]
) -> dict[str, list[Sequence[tf.Variable]]]:
    """Returns the state of an update rule by the names of entries, as the manager's `copies`."""
    entries: dict[str, list[Sequence[tf.Variable]]] = {}
    for name, of_it in copies.items():
        for copy in of_it:
            slots = [rule.slots_of(part) for part in copy]
            for slot in slots[0]:
                entries.setdefault(f"{name}/{slot}", []).append([of_part[slot] for of_part in slots])
    return {**entries, **{f"{_OF_RULE}{name}": [[each] for each in kept] for name, kept in rule.shared_state().items()}}


def _fitting(name: str, values: Values, copy: Sequence[tf.Variable]) -> np.ndarray:
    """Returns the value of an entry that fits a copy of a variable."""
    if name not in values:
        raise DataError(f"The checkpoint has no value of {name}. {_OF_THE_SAME}")
    value = values[name]
    shape = tuple(copy[0].shape)
    if len(copy) > 1:
        shape = (*shape[:-1], sum(part.shape[-1] for part in copy))
    if value.shape != shape:
        raise DataError(
            f"{name} has the shape {list(value.shape)} in the checkpoint, and {list(shape)} in this run. {_OF_THE_SAME}"
        )
    return value


def _initial(variable: tf.Variable) -> tf.Tensor:
    value: tf.Tensor = variable.initializer.inputs[1]
    return value
