"""The devices that the class and the selectors of a request select."""

from __future__ import annotations

from math import isqrt

import pytest

from queuectl.devices.matching import Matching, NotMatched
from queuectl.devices.selectors import selector
from queuectl.domain.devices import (
    Device,
    DeviceClass,
    DeviceEffect,
    DeviceId,
    DeviceKind,
    DeviceOption,
    DeviceTaint,
    NodeDevices,
)
from tests.support.work import lines_run

GPU = DeviceClass("gpu", ('device.driver == "gpu.example"',))
SMALL = 'device.attributes["gpu.example"].size == "small"'
MATCHING = Matching({"gpu": GPU, "any": DeviceClass("any")})


def device(name: str, driver: str = "gpu.example", **attributes) -> Device:
    named = tuple((f"{driver}/{key}", value) for key, value in sorted(attributes.items()))
    return Device(DeviceId(driver, "p", name), DeviceKind(driver, named))


NODE = NodeDevices(
    (device("a", size="small"), device("b", size="large"), device("nic", "nic.example"))
)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        pytest.param(DeviceOption("gpu"), (0, 1), id="the class"),
        pytest.param(DeviceOption("gpu", (SMALL,)), (0,), id="the class, then the request"),
        pytest.param(DeviceOption("any"), (0, 1, 2), id="a class without selectors"),
        pytest.param(DeviceOption("gpu", (SMALL, "false")), (), id="all selectors of the request"),
        pytest.param(DeviceOption("gpu", (SMALL,), count=None), (0,), id="all devices"),
    ],
)
def test_a_device_is_selected_if_all_selectors_are_fulfilled(option, expected):
    assert MATCHING(option, NODE) == expected


def test_taints_do_not_count():
    kind = DeviceKind("gpu.example", taints=(DeviceTaint("broken", DeviceEffect.NO_EXECUTE),))
    tainted = NodeDevices((Device(DeviceId("gpu.example", "p", "a"), kind),))
    assert MATCHING(DeviceOption("gpu"), tainted) == (0,)


def test_an_error_on_any_device_of_the_node_excludes_the_node():
    with pytest.raises(NotMatched) as error:
        MATCHING(DeviceOption("any", (SMALL,)), NODE)
    assert "request: selectors[0]: error for a device of driver nic.example: " in str(error.value)
    assert SMALL in str(error.value)


def test_a_selector_behind_one_that_is_not_fulfilled_gives_no_error():
    assert MATCHING(DeviceOption("gpu", (SMALL,)), NODE) == (0,)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (DeviceOption("missing"), "DeviceClass missing does not exist"),
        (
            DeviceOption("gpu", ("1",)),
            "request: selectors[0]: CEL: must evaluate to bool or the unknown type: 1",
        ),
        (
            DeviceOption("gpu", ("true", "foo()")),
            "request: selectors[1]: CEL: undeclared reference to 'foo': foo()",
        ),
    ],
)
def test_a_request_that_no_node_can_serve_has_one_reason(option, message):
    assert MATCHING.check(option) == message
    with pytest.raises(NotMatched) as error:
        MATCHING(option, NODE)
    assert str(error.value) == message


def test_a_request_that_some_node_can_serve_has_no_reason():
    assert MATCHING.check(DeviceOption("gpu", (SMALL,))) is None


def test_a_request_that_selects_a_left_out_device_is_refused_on_the_node():
    shared = NodeDevices(
        NODE.devices, unsupported=("pool x: why",), left_out=(NODE.devices[2].kind,)
    )
    assert MATCHING(DeviceOption("gpu"), shared) == (0, 1)
    with pytest.raises(NotMatched, match="selects a device that is left out: pool x: why"):
        MATCHING(DeviceOption("any"), shared)


def test_an_error_on_a_device_of_another_node_counts_if_kube_scheduler_evaluates_it():
    seen = NodeDevices(NODE.devices[:2], evaluated=(NODE.devices[2].kind,))
    assert MATCHING(DeviceOption("any"), seen) == (0, 1)
    with pytest.raises(NotMatched, match=r"error for a device of driver nic\.example"):
        MATCHING(DeviceOption("any", (SMALL,)), seen)


def test_a_request_for_all_devices_is_refused_where_the_node_has_devices_that_do_not_count():
    incomplete = NodeDevices(NODE.devices, unsupported=("pool x: 1 of 2 ResourceSlices exist",))
    assert MATCHING(DeviceOption("gpu"), incomplete) == (0, 1)
    with pytest.raises(
        NotMatched, match="a request for all devices cannot be planned: pool x: 1 of 2"
    ):
        MATCHING(DeviceOption("gpu", count=None), incomplete)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('device.attributes["a.example.com"].model == "x"', {"model"}),
        ("device.attributes['a.example.com']['model'] == \"x\"", {"model"}),
        ('device.driver == "a.example.com" && device.allowMultipleAllocations', set()),
        ('device.capacity["a.example.com"].memory.isGreaterThan(quantity("1Gi"))', set()),
        ('"model" in device.attributes["a.example.com"]', None),
        ('device.attributes["a.example.com"].size() > 1', None),
        ('device.attributes["a.example.com"].exists(k, k == "x")', None),
        ('cel.bind(a, device.attributes["a.example.com"], a.model == "x")', {"model"}),
        ('device.attributes["a.example.com"].?model.orValue("x") == "x"', {"model"}),
        ('has(device.attributes["a.example.com"].model)', {"model"}),
        ("device.attributes.exists(d, device.attributes[d].size() > 1)", None),
        ('device.attributes["a.example.com"][device.driver] == "x"', None),
    ],
)
def test_attributes_that_a_selector_reads(source: str, names: set[str] | None) -> None:
    assert selector(source).attributes == names


def costing(operations: int) -> str:
    """A selector of so many operations, about."""
    items = f"[{', '.join('0' * isqrt(operations // 16))}]"
    return f"{items}.all(a, {items}.all(b, a <= b))"


def test_the_selectors_of_a_request_are_bounded_together():
    one = costing(30_000)
    assert selector(one).operations < 100_000
    option = DeviceOption("any", (one, f"{one} ", f"{one}  ", f"{one}   "))
    assert "can take" in (MATCHING.check(option) or "")
    with pytest.raises(NotMatched, match="operations, and at most 100000 are supported"):
        MATCHING(option, NODE)


def test_refused_selectors_are_refused_and_the_results_of_others_are_kept():
    unlimited = Matching({"any": DeviceClass("any")})
    refused, other = (DeviceOption("any", (f"device.driver != '{n}'",)) for n in range(2))
    matching = unlimited.without(frozenset({refused.selectors}))
    assert matching.check(other) is None
    assert matching.attributes(refused) == frozenset()
    assert not matching.selects(refused, NODE.devices[0].kind)
    for text in ("the different selectors of all requests of its namespace", "2083 selectors"):
        assert text in (matching.check(refused) or "")
        with pytest.raises(NotMatched, match=text):
            matching(refused, NODE)
    assert unlimited.check(refused) is None
    assert matching.without(frozenset()).selects(refused, NODE.devices[0].kind)
    assert lines_run(lambda: matching.check(refused)) < 20
