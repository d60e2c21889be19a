"""CEL selectors, against values that kube-scheduler 1.36 gave for the same expressions and devices."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from queuectl.devices.selectors import outcome, selector
from queuectl.domain.devices import DeviceKind
from queuectl.domain.errors import BadInput
from queuectl.objects.kubernetes.resource_slices import read_resource_slice
from queuectl.objects.kubernetes.resource_wire import WireResourceSlice

FACTS = Path(__file__).parents[1] / "fixtures" / "device_selectors.yaml"


def _groups() -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = yaml.safe_load(FACTS.read_text())
    return groups


def _kind(group: dict[str, Any]) -> DeviceKind:
    spec = {
        "driver": group["driver"],
        "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1},
        "nodeName": "node",
        "devices": [group["device"]],
    }
    wire = msgspec.convert({"metadata": {"name": "slice"}, "spec": spec}, WireResourceSlice)
    return read_resource_slice(wire).content.devices[0].kind


def _cases(*outcomes: str) -> list[Any]:
    return [
        pytest.param(group, expression, name, id=f"{group['name']}-{name}-{i}")
        for group in _groups()
        for name in outcomes
        for i, expression in enumerate(group.get(name, ()))
    ]


@pytest.mark.parametrize(("group", "expression", "expected"), _cases("true", "false"))
def test_a_selector_has_the_value_that_kube_scheduler_finds(group, expression, expected):
    assert outcome(expression, _kind(group)) is (expected == "true"), expression


@pytest.mark.parametrize(("group", "expression", "expected"), _cases("error"))
def test_an_evaluation_that_fails_in_kube_scheduler_is_an_error(group, expression, expected):
    found = outcome(expression, _kind(group))
    assert isinstance(found, str), (expression, found)
    assert found


@pytest.mark.parametrize(("group", "expression", "expected"), _cases("invalid", "refused"))
def test_an_expression_that_is_invalid_or_not_supported_is_refused(group, expression, expected):
    with pytest.raises(BadInput, match=r"^CEL: ") as refused:
        selector(expression)
    assert "\n" not in str(refused.value)


def test_the_reason_of_a_refusal_names_the_function_and_the_expression():
    with pytest.raises(BadInput) as refused:
        selector("[2, 1].sort() == [1, 2]")
    assert str(refused.value) == "CEL: undeclared reference to 'sort': [2, 1].sort() == [1, 2]"


def test_an_attribute_with_the_value_true_differs_from_one_with_the_value_1():
    truth = DeviceKind("d.example", (("d.example/a", True),))
    number = DeviceKind("d.example", (("d.example/a", 1),))
    assert truth != number
    source = 'device.attributes["d.example"].a == 1'
    assert [outcome(source, kind) for kind in (truth, number)] == [False, True]


@pytest.mark.parametrize(
    ("amount", "integral"), [(80 << 30, True), (99 << 40, True), (100 << 40, False)]
)
def test_kube_scheduler_reads_large_binary_amounts_of_a_device_as_no_integer(amount, integral):
    kind = DeviceKind("d.example", capacity=(("memory", Fraction(amount)),))
    assert outcome('device.capacity["d.example"].memory.isInteger()', kind) is integral
