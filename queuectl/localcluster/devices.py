"""Devices of simulated nodes as a driver publishes them for dynamic resource allocation (DRA): a DeviceClass and ResourceSlices.

No driver runs. kube-scheduler and the controllers of claims read only these objects, and KWOK starts the pods without the step in
which a kubelet asks a driver to prepare devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queuectl.localcluster.client import Client, Document

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

API_VERSION = "resource.k8s.io/v1"
SLICES = f"/apis/{API_VERSION}/resourceslices"
DRIVER = "gpu.example.com"
"""Name of the driver and of its DeviceClass."""
EXTENDED_RESOURCE = "example.com/gpu"
"""Containers request the devices by this name, too."""
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
_GPUS_PER_ROOT = 4


def device_class(
    name: str = DRIVER,
    *selectors: str,
    extended_resource: str | None = EXTENDED_RESOURCE,
) -> Document:
    """A DeviceClass. `selectors`: CEL expressions; without one, all devices of the driver."""
    chosen = selectors or (f"device.driver == '{DRIVER}'",)
    spec: Document = {"selectors": [{"cel": {"expression": one}} for one in chosen]}
    if extended_resource is not None:
        spec["extendedResourceName"] = extended_resource
    return {
        "apiVersion": API_VERSION,
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": spec,
    }


def device(
    name: str,
    attributes: Mapping[str, bool | int | str] | None = None,
    capacity: Mapping[str, str] | None = None,
    **fields: Any,
) -> Document:
    """One device. `fields`: further fields in their API form, for example `taints` and `consumesCounters`."""
    document: Document = {"name": name, **fields}
    if attributes:
        document["attributes"] = {key: _attribute(value) for key, value in attributes.items()}
    if capacity:
        document["capacity"] = {key: {"value": value} for key, value in capacity.items()}
    return document


def gpus(count: int, product: str, memory: str = "80Gi") -> list[Document]:
    """Equal GPUs; four of them share a PCIe root complex and a NUMA node."""
    return [
        device(
            f"gpu-{index}",
            {
                "index": index,
                "productName": product,
                "numaNode": index // _GPUS_PER_ROOT,
                PCIE_ROOT: f"pci0000:{index // _GPUS_PER_ROOT:02x}",
            },
            {"memory": memory},
        )
        for index in range(count)
    ]


def pool(
    node: str,
    devices: Sequence[Document] = (),
    *,
    generation: int = 1,
    per_slice: int = 64,
    counters: Sequence[Document] = (),
    driver: str = DRIVER,
    owner: Document | None = None,
) -> list[Document]:
    """The ResourceSlices of one pool, which has the name of its node.

    Args:
        node: the node of the devices.
        devices: the devices.
        generation: the generation of the pool. The names of slices contain it, so two generations can exist together.
        per_slice: the largest number of devices in a slice.
        counters: `sharedCounters`, which have a slice of their own.
        driver: name of the driver.
        owner: the Node object; the slices are deleted with it.
    """
    parts: list[Document] = [{"sharedCounters": list(counters)}] if counters else []
    parts += [
        {"devices": list(devices[first : first + per_slice])}
        for first in range(0, len(devices), per_slice)
    ]
    metadata: Document = {} if owner is None else {"ownerReferences": [_owned_by(owner)]}
    return [
        {
            "apiVersion": API_VERSION,
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node}-{driver}-{generation}-{number}", **metadata},
            "spec": {
                "driver": driver,
                "nodeName": node,
                "pool": {"name": node, "generation": generation, "resourceSliceCount": len(parts)},
                **part,
            },
        }
        for number, part in enumerate(parts)
    ]


class Driver:
    """Publishes the pools of nodes on a running cluster."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def publish(self, slices: Iterable[Document]) -> None:
        """Create ResourceSlices, or replace those with the same names."""
        self._client.each(self._client.apply, slices)

    def withdraw(self, slices: Iterable[Document]) -> None:
        """Delete ResourceSlices."""
        names = [one["metadata"]["name"] for one in slices]
        self._client.each(
            lambda name: self._client.delete(f"{SLICES}/{name}", missing_ok=True), names
        )

    def replace(self, old: Iterable[Document], new: Iterable[Document]) -> None:
        """Publish the slices of a newer generation, then delete the older ones, as drivers do."""
        self.publish(new)
        self.withdraw(old)


def _attribute(scalar: bool | int | str) -> Document:
    if isinstance(scalar, bool):
        return {"bool": scalar}
    return {"int": scalar} if isinstance(scalar, int) else {"string": scalar}


def _owned_by(node: Document) -> Document:
    metadata = node["metadata"]
    return {"apiVersion": "v1", "kind": "Node", "name": metadata["name"], "uid": metadata["uid"]}
