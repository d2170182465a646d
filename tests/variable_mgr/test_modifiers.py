"""Every pair of modifiers under every manager either runs, with the arithmetic of the references, or is refused."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import pytest

from benchmarks.cluster.cluster_spec import place
from tests.support.arithmetic import scalar_error, weights_error
from tests.support.rotation import rotating
from variable_mgr import expected, factory
from variable_mgr.catalog import MANAGERS, REFERENCE_LOOPS
from variable_mgr.modifiers import Modifiers, why_not

MODIFIERS: dict[str, Any] = {
    "asynchronous": True,
    "staged_vars": True,
    "relaxed_consistency": True,
    "all_reduce_spec": "xring",
    "gradient_repacking": 2,
    "agg_small_grads_max_bytes": 100,
    "compact_gradient_transfer": True,
    "local_sgd_steps": 2,
    "fc_model_parallel": True,
}
PLACE = place("cpu", 2)
CHOICES = [
    (manager, Modifiers(**{name: MODIFIERS[name] for name in names}))
    for manager in MANAGERS
    for count in range(3)
    for names in itertools.combinations(MODIFIERS, count)
]
RUN = [choice for choice in CHOICES if why_not(*choice, PLACE) is None]
REFUSED = [choice for choice in CHOICES if choice not in RUN]


def _title(value: object) -> str:
    if isinstance(value, Modifiers):
        return "+".join(name for name in MODIFIERS if getattr(value, name)) or "none"
    return str(value)


def _describe(manager: str, modifiers: Modifiers) -> str:
    return factory.make(manager, PLACE, shared_devices=(PLACE.host,), modifiers=modifiers).describe()


@rotating(("manager", "modifiers"), RUN, first=12, ids=_title)
def test_pairs_that_run_do_the_arithmetic(manager: str, modifiers: Modifiers) -> None:
    if modifiers.fc_model_parallel:
        error, most = weights_error(manager, 2, modifiers), expected.AFTER_CONVOLUTIONS
    else:
        error, most = scalar_error(manager, 2, "momentum", modifiers=modifiers), expected.EXACT
    assert error <= max(most, expected.tolerance(modifiers))


@pytest.mark.parametrize(("manager", "modifiers"), REFUSED, ids=_title)
def test_pairs_that_cannot_run_are_refused(manager: str, modifiers: Modifiers) -> None:
    sentence = why_not(manager, modifiers, PLACE)
    assert sentence is not None and sentence.endswith(".") and "--" in sentence
    with pytest.raises(ValueError) as error:
        factory.make(manager, PLACE, shared_devices=(PLACE.host,), modifiers=modifiers)
    assert str(error.value) == sentence


@pytest.mark.parametrize("name", MODIFIERS)
def test_a_reference_loop_has_no_modifiers(name: str) -> None:
    for loop in REFERENCE_LOOPS:
        assert f"not with {loop}: " in str(why_not(loop, Modifiers(**{name: MODIFIERS[name]}), PLACE))


def test_as_many_pairs_run_as_make_sense() -> None:
    """Alone, and with one or two modifiers; 6 modifiers are of `replicated`, and 2 of its 15 pairs make no sense."""
    assert collections.Counter(manager for manager, _ in RUN) == {
        "collective_all_reduce": 1 + 5 + 10 - 2,
        "independent": 1,
        "local_sgd": 1 + 1,
        "parameter_server": 1 + 3,
        "replicated": 1 + 6 + 15 - 2,
    }


@pytest.mark.parametrize(("manager", "modifiers"), RUN, ids=_title)
def test_a_description_shows_every_modifier(manager: str, modifiers: Modifiers) -> None:
    others = {_describe(manager, other) for name, other in RUN if name == manager and other != modifiers}
    assert _describe(manager, modifiers) not in others
