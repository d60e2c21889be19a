"""Random devices of nodes: the shapes of pools that drivers publish."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final

from queuectl.localcluster.client import Document
from queuectl.localcluster.nodes import (
    EXTENDED_RESOURCE,
    PCIE_ROOT,
    device,
    device_class,
    gpus,
    pool,
)

PRODUCTS: Final = ("A100", "H100")
PARTITION: Final = "partition.example.com"
SHARED: Final = "shared.example.com"
RESOURCES: Final = (
    "cpu",
    EXTENDED_RESOURCE,
    *(f"deviceclass.resource.kubernetes.io/{name}" for name in ("h100", PARTITION, SHARED)),
)
"""The resources that the claims of all classes here are charged to."""
_LETTERS: Final = "abcdef"


def classes() -> list[Document]:
    """The DeviceClasses of all devices here."""
    return [
        device_class(),
        device_class("h100", _is("productName", "H100"), extended_resource=None),
        device_class(PARTITION, f"device.driver == '{PARTITION}'", extended_resource=None),
        device_class(SHARED, f"device.driver == '{SHARED}'", extended_resource=None),
    ]


def _is(attribute: str, value: str) -> str:
    return f"device.attributes['gpu.example.com'].{attribute} == '{value}'"


def pools(nodes: Sequence[str], random: Random) -> Iterator[list[Document]]:
    """The slices of each node: one or two of these kinds of pool."""
    kinds: tuple[Callable[[str, Random], list[Document]], ...] = (_equal, _mixed, _lettered)
    for number, node in enumerate(nodes):
        yield kinds[number % len(kinds)](node, random)
        if number % 4 == 1:
            yield _partitionable(node, random)
        elif number % 4 == 3:
            yield _shared(node, random)


def _equal(node: str, random: Random) -> list[Document]:
    """Eight equal GPUs, four at each PCIe root complex."""
    return pool(node, gpus(8, random.choice(PRODUCTS)), per_slice=random.choice((3, 8)))


def _mixed(node: str, random: Random) -> list[Document]:
    """GPUs of two products with different memory. One can have a taint."""
    found = []
    for index in range(random.randint(3, 6)):
        root = f"pci0000:{random.randint(0, 2):02x}"
        product = random.choice(PRODUCTS)
        attributes: dict[str, bool | int | str] = {
            "index": index,
            "productName": product,
            PCIE_ROOT: root,
        }
        memory = {"memory": random.choice(("40Gi", "80Gi"))}
        found.append(device(f"gpu-{index}", attributes, memory))
    if random.random() < 0.5:
        found[-1]["taints"] = [{"key": "example.com/old", "effect": "NoSchedule"}]
    return pool(node, found)


def _lettered(node: str, random: Random) -> list[Document]:
    """GPUs of which each letter selects another, overlapping part."""
    found = []
    for index in range(random.randint(3, 5)):
        attributes: dict[str, bool | int | str] = {"index": index, "productName": "H100"}
        attributes |= {"odd": bool(index % 2)}
        attributes |= {letter: random.random() < 0.5 for letter in _LETTERS}
        found.append(device(f"gpu-{index}", attributes, {"memory": "80Gi"}))
    return pool(node, found)


def _partitionable(node: str, random: Random) -> list[Document]:
    """Two GPUs of four memory slices: each is published whole, as two halves and as four quarters."""
    parts, counters = [], []
    for gpu in range(2):
        name = f"gpu-{gpu}"
        counters.append({"name": name, "counters": {"slices": {"value": "4"}}})
        for size, count in ((4, 1), (2, 2), (1, 4)):
            for index in range(count):
                consumed = {"counterSet": name, "counters": {"slices": {"value": str(size)}}}
                parts.append(
                    device(
                        f"{name}-{size}-{index}",
                        {"size": size, "parent": name},
                        consumesCounters=[consumed],
                    )
                )
    random.shuffle(parts)
    return pool(node, parts, counters=counters, driver=PARTITION)


def _shared(node: str, random: Random) -> list[Document]:
    """Devices of which claims consume a part of the memory."""
    found = []
    for index in range(random.randint(1, 3)):
        shared = device(f"nic-{index}", {"index": index}, allowMultipleAllocations=True)
        policy = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}
        shared["capacity"] = {"memory": {"value": "8Gi", "requestPolicy": policy}}
        found.append(shared)
    return pool(node, found, driver=SHARED)
