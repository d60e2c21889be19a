"""Nodes whose devices are the same for all requests."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from queuectl.devices.cluster import NodeCache
from queuectl.devices.needs import atoms_of
from queuectl.devices.reading import needs_of
from queuectl.devices.table import AlikeNodes, read_by
from queuectl.domain.devices import AllocatedDevice, AttributeValue, Device, NodeDevices, PodDevices
from tests.devices.build import DRIVER, HAS_ROOT, ROOT, TYPE, matching, option, pod
from tests.devices.test_rows import ONE, PAIR, gpus
from tests.devices.test_verify import PODS, devices_of

OF_MODEL = option(selectors=(f"device.attributes['{DRIVER}'].model == 'a'",))


def alike(*pods: PodDevices) -> AlikeNodes:
    atoms = [atom for one in pods for atom in atoms_of(one).counts]
    return AlikeNodes(read_by(atoms, matching))


def elsewhere(on: NodeDevices, node: str, **attributes: AttributeValue) -> NodeDevices:
    """The same devices on another node, with other values of some attributes."""

    def moved(device: Device) -> Device:
        values = dict(device.kind.attributes) | {
            f"{DRIVER}/{name}": value for name, value in attributes.items()
        }
        kind = replace(device.kind, attributes=tuple(sorted(values.items())))
        identity = replace(device.id, pool=node, name=f"{node}-{device.id.name}")
        return replace(device, id=identity, kind=kind)

    counters = tuple(
        ((driver, node, counters, name), amount)
        for (driver, _, counters, name), amount in on.counters
    )
    return NodeDevices(tuple(map(moved, on.devices)), counters)


@pytest.mark.parametrize(
    ("pods", "attributes", "same"),
    [
        pytest.param((ONE,), {"uuid": "u"}, True, id="no request reads the attribute"),
        pytest.param((pod(OF_MODEL),), {"model": "b"}, False, id="a selector reads it"),
        pytest.param((pod(OF_MODEL),), {"uuid": "u"}, True, id="a selector reads another one"),
        pytest.param((ONE,), {"type": "nic"}, False, id="the selector of a class reads it"),
        pytest.param((PAIR,), {"root": "r"}, False, id="a constraint compares more equal values"),
    ],
)
def test_nodes_are_alike_if_they_differ_in_names_and_in_attributes_that_no_request_reads(
    pods: tuple[PodDevices, ...], attributes: dict[str, str], same: bool
) -> None:
    nodes = alike(*pods)
    here = elsewhere(devices_of(Random(1), 6), "m", uuid="v", model="a")
    there = elsewhere(here, "n", **attributes)
    assert (nodes.of(here) is nodes.of(there)) is same


def test_the_values_of_an_attribute_that_is_only_compared_can_differ() -> None:
    nodes = alike(PAIR)
    left, right = (elsewhere(NodeDevices(tuple(gpus(4))), name) for name in "lr")

    def on_roots(on: NodeDevices, *roots: str) -> NodeDevices:
        devices = (
            replace(one, kind=replace(one.kind, attributes=((ROOT, root), (TYPE, "gpu"))))
            for one, root in zip(on.devices, roots, strict=True)
        )
        return replace(on, devices=tuple(devices))

    first = nodes.of(on_roots(left, "a", "a", "b", "b"))
    assert nodes.of(on_roots(right, "x", "x", "y", "y")) is first
    assert nodes.of(on_roots(right, "x", "y", "x", "y")) is not first


@pytest.mark.parametrize("seed", range(40))
def test_each_pod_has_the_same_choices_on_the_node_that_stands_for_others(seed: int) -> None:
    random = Random(seed)
    on = devices_of(random, 6)
    pods = (*random.sample(PODS, 3), pod(option(selectors=(HAS_ROOT,))))
    nodes = alike(*pods)
    atoms = [atom for one in pods for atom in atoms_of(one).counts]
    held = tuple(AllocatedDevice(d.id, "r") for d in random.sample(on.devices, 2))
    there = needs_of(nodes.of(on), nodes.held(on, held), atoms, matching)
    assert there == needs_of(on, held, atoms, matching)


def test_an_option_that_reads_other_attributes_is_matched_on_the_node_itself() -> None:
    nodes = alike(ONE)
    first, *others = elsewhere(NodeDevices(tuple(gpus(3))), "n", model="b").devices
    kind = replace(first.kind, attributes=((f"{DRIVER}/model", "a"), (TYPE, "gpu")))
    on = NodeDevices((replace(first, kind=kind), *others))
    assert nodes.selected(matching, OF_MODEL, on) == (0,)


def test_nodes_that_no_longer_exist_are_forgotten() -> None:
    nodes = alike(ONE)
    here, there = devices_of(Random(1), 6), devices_of(Random(2), 6)
    known, _ = nodes.of(here), nodes.of(there)
    nodes.keep([here])
    assert nodes.of(here) is known
    assert nodes.of(elsewhere(here, "n")) is known


def test_an_attribute_that_a_request_read_once_does_not_distinguish_nodes_permanently() -> None:
    cache = NodeCache(matching)
    here = elsewhere(devices_of(Random(1), 6), "m", model="a")
    there = elsewhere(here, "n", model="b")

    def alike_for(one: PodDevices) -> bool:
        cache.ask(tuple(atoms_of(one).counts), ())
        return cache.alike.of(here) is cache.alike.of(there)

    assert alike_for(ONE)
    assert not alike_for(pod(OF_MODEL))
    changes = [alike_for((ONE, PAIR)[i % 2]) for i in range(20)]
    assert not any(changes[:10]), "requests come and go"
    assert changes[-1]
