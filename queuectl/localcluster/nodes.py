"""GPU nodes that KWOK simulates, in blocks and racks, from a short description, with the devices that a driver would publish.

The devices are a DeviceClass and ResourceSlices for dynamic resource allocation (DRA). No driver runs: kube-scheduler and the
controllers of claims read only these objects, and KWOK starts the pods without the step in which a kubelet asks a driver to prepare
devices.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from queuectl.localcluster.client import START_SECONDS, Client, Document, wait_until
from queuectl.localcluster.errors import LocalClusterError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


# ---- Nodes

BLOCK = "topology.queuectl.dev/block"
RACK = "topology.queuectl.dev/rack"
HOSTNAME = "kubernetes.io/hostname"
_CLIQUE = "nvidia.com/gpu.clique"
PRODUCT = "nvidia.com/gpu.product"
GPU = "nvidia.com/gpu"
KUBELET = "kwok.queuectl.dev/kubelet"
"""Label of the nodes whose kubelets KWOK simulates."""
_FIELDS = {
    "blocks": "blocks",
    "racks": "racks_per_block",
    "hosts": "hosts_per_rack",
    "gpus": "gpus",
    "devices": "devices",
    "cpu": "cpu",
    "memory": "memory",
    "pods": "pods",
    "product": "product",
}
_AT_LEAST_ONE = ("blocks", "racks_per_block", "hosts_per_rack", "pods")


@dataclass(frozen=True)
class NodeTaint:
    """A taint; `effect` is NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    effect: str = "NoSchedule"
    value: str = ""


@dataclass(frozen=True)
class NodeSpec:
    """A regular set of nodes: `blocks` of `racks_per_block` racks of `hosts_per_rack` nodes.

    Attributes:
        blocks: Blocks of racks.
        racks_per_block: Racks in each block.
        hosts_per_rack: Nodes in each rack.
        gpus: GPUs of each node; 0 = nodes without the resource and its labels.
        devices: GPUs of each node that a driver publishes in ResourceSlices; they are not resources of the node.
        cpu: CPU of each node, as a Kubernetes quantity.
        memory: Memory of each node, as a Kubernetes quantity.
        pods: Pods that fit a node.
        product: Value of `nvidia.com/gpu.product`.
        prefix: First part of every name and label value, so that a cluster can have several sets.
        cliques_per_rack: NVLink domains in a rack, of equal size; 0 = no label `nvidia.com/gpu.clique`.
        labels: Further labels of every node.
        taints: Taints of every node.
    """

    blocks: int = 1
    racks_per_block: int = 2
    hosts_per_rack: int = 4
    gpus: int = 8
    devices: int = 0
    cpu: str = "96"
    memory: str = "1Ti"
    pods: int = 110
    product: str = "NVIDIA-H100-80GB-HBM3"
    prefix: str = ""
    cliques_per_rack: int = 1
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[NodeTaint, ...] = ()

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ValueError(f"NodeSpec.{name} must be at least 1, not {getattr(self, name)}")
        for name in ("gpus", "devices", "cliques_per_rack"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"NodeSpec.{name} must not be negative, but is {getattr(self, name)}"
                )

    @classmethod
    def parse(cls, text: str) -> NodeSpec:
        """Read `blocks=2,racks=4,hosts=8,gpus=8`. Other fields have their defaults.

        Names: blocks, racks (per block), hosts (per rack), gpus, devices, cpu, memory, pods, product.

        Raises:
            ValueError: A name is unknown, or a value is not a number.
        """
        fields: dict[str, Any] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, setting = part.partition("=")
            if not equals or name not in _FIELDS:
                raise ValueError(
                    f"nodes: {part!r} is not one of {', '.join(_FIELDS)} followed by =VALUE"
                )
            if name in {"cpu", "memory", "product"}:
                fields[_FIELDS[name]] = setting
            elif not re.fullmatch(r"\d+", setting):
                raise ValueError(f"nodes: {name} must be a whole number, not {setting!r}")
            elif int(setting) < 1 and _FIELDS[name] in _AT_LEAST_ONE:
                raise ValueError(f"nodes: {name} must be at least 1, not {setting}")
            else:
                fields[_FIELDS[name]] = int(setting)
        return cls(**fields)

    @property
    def count(self) -> int:
        """The number of nodes."""
        return self.blocks * self.racks_per_block * self.hosts_per_rack

    def documents(self) -> Iterator[Document]:
        """The Node objects, rack by rack."""
        for block in range(self.blocks):
            for rack in range(self.racks_per_block):
                for host in range(self.hosts_per_rack):
                    yield self._document(block, rack, host)

    def _document(self, block: int, rack: int, host: int) -> Document:
        block_name = f"{self.prefix}b{block}"
        rack_name = f"{block_name}-r{rack}"
        name = f"{rack_name}-h{host}"
        labels = {
            HOSTNAME: name,
            BLOCK: block_name,
            RACK: rack_name,
            "type": "kwok",
            KUBELET: "running",
        }
        labels |= {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        resources = {"cpu": self.cpu, "memory": self.memory, "pods": str(self.pods)}
        if self.gpus:
            resources[GPU] = str(self.gpus)
        if self.gpus or self.devices:
            labels[PRODUCT] = self.product
            if self.cliques_per_rack:
                labels[_CLIQUE] = (
                    f"{rack_name}-c{host * self.cliques_per_rack // self.hosts_per_rack}"
                )
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": labels | dict(self.labels),
                "annotations": {"kwok.x-k8s.io/node": "fake"},
            },
            "spec": {"taints": [asdict(taint) for taint in self.taints]},
            "status": {"capacity": resources, "allocatable": resources},
        }


class Nodes:
    """The nodes of a running cluster."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, spec: NodeSpec, *, wait_seconds: float = START_SECONDS) -> list[str]:
        """Create the nodes of a spec, and wait until all are Ready and schedulable.

        Returns:
            Their names.

        Raises:
            LocalClusterError: They are not ready in time (0 does not wait).
        """
        documents = list(spec.documents())
        self._client.each(lambda one: self._create(spec, one), documents)
        if spec.devices:
            self._client.apply(device_class())
        names = [one["metadata"]["name"] for one in documents]
        if wait_seconds:
            self.wait_ready(names, seconds=wait_seconds)
        return names

    def _create(self, spec: NodeSpec, document: Document) -> None:
        node = self._client.create("/api/v1/nodes", document)
        if spec.devices:
            published = gpus(spec.devices, spec.product)
            name = document["metadata"]["name"]
            Driver(self._client).publish(pool(name, published, owner=node))

    def names(self) -> list[str]:
        """The names of all nodes."""
        return [one["metadata"]["name"] for one in self._list()]

    def gpus(self) -> dict[str, int]:
        """The number of GPUs of each node with GPUs."""
        found = {one["metadata"]["name"]: one["status"]["capacity"] for one in self._list()}
        return {name: int(has[GPU]) for name, has in found.items() if GPU in has}

    def ready(self) -> set[str]:
        """The nodes that are Ready and have no taint of a lost node."""
        return {one["metadata"]["name"] for one in self._list() if _is_ready(one)}

    def wait_ready(self, names: Iterable[str], *, seconds: float = START_SECONDS) -> None:
        """Wait until these nodes are Ready and schedulable.

        Raises:
            LocalClusterError: They are not after `seconds`.
        """
        wanted = set(names)
        wait_until(lambda: wanted <= self.ready(), f"{len(wanted)} nodes to be ready", seconds)

    def delete(self, name: str) -> None:
        """Remove a node, like a removed machine. Its pods are then collected as orphans."""
        self._client.delete(_path(name))

    def cordon(self, name: str) -> None:
        """Cordon a node."""
        self._client.patch(_path(name), {"spec": {"unschedulable": True}})

    def uncordon(self, name: str) -> None:
        """Uncordon a node."""
        self._client.patch(_path(name), {"spec": {"unschedulable": None}})

    def lose(self, name: str) -> None:
        """Stop a node's kubelet: no lease, no heartbeat, and no progress of its pods.

        The control plane would set Ready = Unknown after the grace time of the lease. This method sets it at once, and
        the control plane adds the taints and the evictions.
        """
        self._client.patch(_path(name), {"metadata": {"labels": {KUBELET: "stopped"}}})
        conditions = self._client.get(_path(name))["status"].get("conditions") or []
        for one in conditions:
            if one["type"] == "Ready":
                one |= {
                    "status": "Unknown",
                    "reason": "NodeStatusUnknown",
                    "message": "the kubelet is silent",
                }
        self._client.patch(f"{_path(name)}/status", {"status": {"conditions": conditions}})

    def restore(self, name: str) -> None:
        """Start the kubelet of a lost node again."""
        self._client.patch(_path(name), {"metadata": {"labels": {KUBELET: "running"}}})

    def _list(self) -> list[Document]:
        # The current object, not an older one in the watch cache, from which the server answers.
        items: list[Document] = self._client.get("/api/v1/nodes")["items"]
        return items


def _path(name: str) -> str:
    if "/" in name or not name:
        raise LocalClusterError(f"{name!r} is not a valid node name")
    return f"/api/v1/nodes/{name}"


def _is_ready(node: Document) -> bool:
    conditions = {one["type"]: one["status"] for one in node["status"].get("conditions") or []}
    taints = {one["key"] for one in node["spec"].get("taints", [])}
    return conditions.get("Ready") == "True" and not any(
        key.startswith("node.kubernetes.io/") for key in taints
    )


# ---- Devices

API_VERSION = "resource.k8s.io/v1"
SLICES = f"/apis/{API_VERSION}/resourceslices"
DRIVER = "gpu.example.com"
"""Name of the driver and of its DeviceClass."""
EXTENDED_RESOURCE = "example.com/gpu"
"""Containers also request the devices by this name."""
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
        counters: `sharedCounters`, which have their own slice.
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
