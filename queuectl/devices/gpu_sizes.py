"""The GPUs of pods, gangs and nodes, in parts: device plugins and devices of ResourceSlices together. All sizes that users see come from here.

A pod that is placed has the GPUs that its requests get on its node. Before that, the nodes of the flavors that its ClusterQueue has
for a resource decide, if the request gets the same on all of them. Otherwise the name of the resource decides, and of
devices the largest.

Devices are GPUs if the name of their driver begins with ``gpu.``, or if the charged resource of their DeviceClass is a GPU. A
weight that the configuration gives that resource is the size of each of its devices. Otherwise the attributes of the device state it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Final, TypeAlias, TypeVar

from queuectl.devices.matching import Matching, NotMatched
from queuectl.devices.needs import consumed
from queuectl.devices.requests import DeviceClasses
from queuectl.domain.bounded import BoundedCache
from queuectl.domain.devices import (
    AllocatedDevice,
    Claim,
    Device,
    DeviceId,
    DeviceInventory,
    DeviceKind,
    DeviceOption,
    DeviceRequest,
    NodeDevices,
    PodDevices,
)
from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.gpus import (
    NO_LABELS,
    ZERO_GPUS,
    GpuWeights,
    PodGpus,
    amd_part,
    in_parts,
    label_keys,
    mig_part,
    of_parts,
)
from queuectl.domain.quantity import Resources
from queuectl.domain.queues import ClusterQueue, QueueConfig
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import PodSet, PodShape

# ---- Pods, gangs and nodes

_Gang = TypeVar("_Gang", Pending, Admitted)
Claims: TypeAlias = Mapping[tuple[str, str], Claim]
"""By namespace and name."""
_Labels: TypeAlias = Mapping[str, str]
_NO_DEVICES: Final = NodeDevices()


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """GPUs of a node that pods can hold, and the failed ones."""

    gpus: Fraction
    failed: Fraction


class GpuSizes:
    """For the nodes, devices and configuration of one time; see :meth:`of`.

    Attributes:
        basis: the same object as long as the sizes of pods without a node are the same.
    """

    def __init__(
        self, fleet: Fleet, inventory: DeviceInventory, config: QueueConfig, matching: Matching
    ) -> None:
        """``matching``: over the classes of the inventory."""
        self._fleet = fleet
        self._inventory = inventory
        self._config = config
        self._matching = matching
        self._weights = config.rules.accounting.gpus
        self.classes = DeviceClasses(inventory.classes, config.rules.device_classes)
        self.devices = DeviceGpus(self.classes, self._weights, matching)
        self._units: dict[str, Mapping[str, float]] = {}
        self._of_nodes: dict[str, NodeGpus] = {}
        self._known = BoundedCache[tuple[str, str | DeviceRequest], Fraction]()
        self._pods = BoundedCache[tuple[Resources, PodDevices | None, str], Fraction]()
        self.basis = object()

    @classmethod
    def of(
        cls,
        fleet: Fleet,
        inventory: DeviceInventory,
        config: QueueConfig,
        last: GpuSizes | None = None,
    ) -> GpuSizes:
        """The sizes; the same object as ``last`` if nothing has changed since but amounts of quota."""
        if last is None or last._inventory.classes is not inventory.classes:
            return cls(fleet, inventory, config, Matching(inventory.classes))
        alike = _sizes_alike(config, last._config)
        if alike and (last._fleet, last._inventory) == (fleet, inventory):
            last._config = config  # the next comparison is one of identities
            return last
        found = cls(fleet, inventory, config, last._matching)
        if alike and found._has_kinds_of(last):
            found.basis, found._known, found._pods = last.basis, last._known, last._pods
        return found

    def _has_kinds_of(self, last: GpuSizes) -> bool:
        """Whether the nodes differ at most in fields on which no size of a pod without a node depends."""
        if self._inventory.nodes != last._inventory.nodes:
            return False
        before, now = last._fleet.nodes, self._fleet.nodes
        if len(before) == len(now) and all(map(_same_kind, before, now)):
            return True
        return not self._inventory.nodes and self._by_kind.keys() == last._by_kind.keys()

    # -- before a pod has a node

    def sized(
        self, podsets: tuple[PodSet, ...], namespace: str, queue: str, claims: Claims
    ) -> tuple[PodSet, ...]:
        """The podsets with the sizes of their pods in a ClusterQueue; the same objects where their resources have the size as a name."""
        return tuple(self._with_size(podset, namespace, queue, claims) for podset in podsets)

    def unit(self, resource: str, flavor: str) -> Fraction:
        """GPUs of one unit of a resource in a flavor; as its name states it if units of the flavor have several sizes."""
        key = (f"/{flavor}", resource)
        size = self._known.get(key)
        if size is None:
            known = self._config.flavors.get(flavor)
            labels = [dict(known.node_labels)] if known is not None else []
            size = self._known.keep(key, self._of_resource(resource, labels))
        return size

    def _with_size(self, podset: PodSet, namespace: str, queue: str, claims: Claims) -> PodSet:
        key = (podset.shape.requests, podset.shape.devices, queue)
        own = self._pods.get(key)
        if own is None:
            amounts = (gpus for _, gpus in self._requested(podset.shape, queue))
            own = self._pods.keep(key, of_parts(in_parts(sum(amounts, ZERO_GPUS))))
        of_claims = ((name, claims.get((namespace, name))) for name in podset.shared_claims)
        size = PodGpus(
            own, tuple((name, self.of_claim(claim, queue)) for name, claim in of_claims if claim)
        )
        plain = replace(podset, sized=None) if podset.sized is not None else podset
        return plain if plain.gpus == size else replace(podset, sized=size)

    def of_claim(self, claim: Claim, queue: str = "") -> Fraction:
        """GPUs of a ResourceClaim: of its devices if it is allocated."""
        if claim.allocated is not None:
            return of_parts(in_parts(self.allocated(claim.allocated)))
        found = (self._request(request, queue)[1] for request in claim.spec.requests)
        return of_parts(in_parts(sum(found, ZERO_GPUS)))

    def _requested(self, shape: PodShape, queue: str) -> Iterator[tuple[str, Fraction]]:
        for resource in self._resources(shape.requests):
            each = self._of_queue(resource, queue)
            yield self._charged(resource), each * shape.requests[resource]
        for claim in shape.devices.claims if shape.devices is not None else ():
            for request in claim.requests:
                yield self._request(request, queue)

    def _request(self, request: DeviceRequest, queue: str) -> tuple[str, Fraction]:
        """The charged resource of a request, and its GPUs."""
        name = self.classes.charged(request.options[0].device_class)
        key = (queue, request)
        largest = self._known.get(key)
        if largest is None:
            nodes = self._nodes(list(self._flavors(queue, name)))
            sizes = (self._on_node(request, node) for node in nodes)
            found = {size for size in sizes if size is not None}
            largest = self._known.keep(key, max(found) if found else self._named(request))
        return name, largest

    def _named(self, request: DeviceRequest) -> Fraction:
        options = (option for option in request.options if not option.admin)
        return max(map(self.devices.by_name, options), default=ZERO_GPUS)

    def _of_queue(self, resource: str, queue: str) -> Fraction:
        size = self._known.get((queue, resource))
        if size is None:
            of_flavors = self._of_resource(resource, list(self._flavors(queue, resource)))
            size = self._known.keep((queue, resource), of_flavors)
        return size

    def _of_resource(self, resource: str, flavors: Sequence[_Labels]) -> Fraction:
        """A unit on the nodes with the labels of one of the flavors, if it is the same on all; without nodes, on such a node."""
        nodes = [node for node in self._by_kind.values() if node.allocatable[resource]]
        units = {
            self._weights.of(resource, node.labels)
            for wanted in flavors
            for node in nodes
            if wanted.items() <= node.labels.items()
        }
        backing = self.classes.backing.get(resource)
        if backing is not None:
            option = DeviceOption(backing)
            devices = map(self._devices_of, self._nodes(flavors))
            sizes = (self.devices.requested(option, each) for each in devices)
            units |= {size for size in sizes if size is not None}
            if not units:
                return self.devices.by_name(option)
        if not units:
            units = {self._weights.of(resource, wanted) for wanted in flavors}
        return units.pop() if len(units) == 1 else self._weights.of(resource)

    # -- on a node

    def on(self, shape: PodShape, node: Node) -> Fraction:
        """GPUs of a pod on a node, without claims that it shares."""
        if shape.devices is None and self.classes.backing.keys().isdisjoint(shape.requests):
            return self._weights.counted(shape.requests, node.labels)
        found = (gpus for _, gpus in self.by_resource(shape, node, lambda _: node.labels))
        return sum(found, ZERO_GPUS)

    def by_resource(
        self, shape: PodShape, node: Node | None, labels: Callable[[str], _Labels]
    ) -> Iterator[tuple[str, Fraction]]:
        """The resources that a pod is charged for on a node, with the GPUs of each, without claims that it shares.

        Args:
            shape: of the pod.
            node: None = it does not exist.
            labels: of the nodes on which the pod is charged for a resource.
        """
        for resource in self._resources(shape.requests):
            amount = shape.requests[resource]
            backing = self.classes.backing.get(resource)
            if node is not None and backing is not None and not node.allocatable[resource]:
                option = DeviceOption(backing, count=amount)
                found = self.devices.requested(option, self._devices_of(node))
                yield self._charged(resource), found or self.devices.by_name(option)
            else:
                charged = self._charged(resource)
                yield charged, self._weights.of(resource, labels(charged)) * amount
        for claim in shape.devices.claims if shape.devices is not None else ():
            yield from self._requests(claim.requests, node)

    def by_claim(self, claim: Claim, node: Node | None) -> Iterator[tuple[str, Fraction]]:
        """The same for a claim that pods share. The devices count once it is allocated, and while their node exists."""
        if claim.allocated is None or not claim.spec.requests or node is None:
            yield from self._requests(claim.spec.requests, node)
            return
        for request in claim.spec.requests:
            own = (d for d in claim.allocated if d.request.partition("/")[0] == request.name)
            yield self.classes.charged(request.options[0].device_class), self.allocated(own)

    def _requests(
        self, requests: Iterable[DeviceRequest], node: Node | None
    ) -> Iterator[tuple[str, Fraction]]:
        for request in requests:
            size = self._on_node(request, node) if node is not None else None
            if size is None:
                yield self._request(request, "")
            else:
                yield self.classes.charged(request.options[0].device_class), size

    def is_gpu(self, resource: str) -> bool:
        """Whether units of a resource are GPUs, or are charged for devices that can be GPUs."""
        return bool(self._weights.of(resource)) or resource in self._classes_of

    def unit_on(self, resource: str, node: Node) -> Fraction:
        """GPUs of one unit of a resource on a node, also of one that is charged for devices."""
        each = self._weights.of(resource, node.labels)
        if each or resource not in self._classes_of:
            return each
        options = map(DeviceOption, self._classes_of[resource])
        sizes = (self.devices.requested(option, self._devices_of(node)) for option in options)
        return max((size for size in sizes if size is not None), default=ZERO_GPUS)

    def units(self, resource: str) -> Mapping[str, float]:
        """Node name to the GPUs of one unit of a resource there."""
        known = self._units.get(resource)
        if known is None:
            nodes = self._fleet.nodes
            known = {node.name: float(self.unit_on(resource, node)) for node in nodes}
            self._units[resource] = known
        return known

    @cached_property
    def with_devices(self) -> tuple[Node, ...]:
        """The nodes with a device that is a GPU."""
        return tuple(filter(self.has_devices, self._fleet.nodes))

    @cached_property
    def _classes_of(self) -> Mapping[str, list[str]]:
        """Charged resource to its DeviceClasses."""
        found: dict[str, list[str]] = {}
        for name in sorted(self.classes.names):
            found.setdefault(self.classes.charged(name), []).append(name)
        return found

    def of_node(self, node: Node) -> NodeGpus:
        """GPUs of a node: those of its device plugins and of its devices."""
        known = self._of_nodes.get(node.name)
        if known is None:
            known = self._of_nodes[node.name] = self._of_node(node)
        return known

    def _of_node(self, node: Node) -> NodeGpus:
        devices, tainted = self.devices.on_node(self._devices_of(node))
        plugin = self._weights.counted(node.allocatable, node.labels)
        failed = self._weights.counted(node.failed, node.labels)
        return NodeGpus(plugin + devices - tainted, failed + tainted)

    def has_devices(self, node: Node) -> bool:
        """Whether a device of the node is a GPU."""
        return any(map(self.devices.of, self._devices_of(node).devices))

    def plugins(self, amounts: Resources, node: Node) -> Fraction:
        """GPUs of the device plugins of a node in these amounts."""
        if not self.classes.backing.keys().isdisjoint(amounts):
            amounts = Resources({name: n for name, n in amounts.items() if node.allocatable[name]})
        return self._weights.counted(amounts, node.labels)

    def allocated(self, devices: Iterable[AllocatedDevice]) -> Fraction:
        """GPUs of allocated devices. Access for administration takes none."""
        return sum((self._allocated(one) for one in devices if not one.admin), ZERO_GPUS)

    def count_of(self, devices: Iterable[AllocatedDevice]) -> int:
        """The number of allocated devices that are GPUs or parts of GPUs. Exporters report each separately."""
        return sum(not one.admin and self._allocated(one) > 0 for one in devices)

    def _allocated(self, allocated: AllocatedDevice) -> Fraction:
        device = self._by_id.get(allocated.id)
        if device is None:
            return ZERO_GPUS
        totals = dict(device.kind.capacity)
        parts = [amount / totals[name] for name, amount in allocated.share if totals.get(name)]
        return self.devices.of(device) * max(parts, default=Fraction(1))

    # -- the nodes

    @cached_property
    def _by_id(self) -> Mapping[DeviceId, Device]:
        nodes = self._inventory.nodes.values()
        return {device.id: device for node in nodes for device in node.devices}

    @cached_property
    def _by_kind(self) -> Mapping[tuple[object, ...], Node]:
        """One node of each kind, as far as flavors and weights read nodes. A kind is what nodes offer, and labels with their values."""
        resources = {name for node in self._fleet.nodes for name in node.allocatable}
        units = {
            name for name in resources if self._weights.of(name) or name in self.classes.backing
        }
        of_flavors = {key for f in self._config.flavors.values() for key, _ in f.node_labels}
        keys = sorted(of_flavors.union(*map(label_keys, units)))
        kinds: dict[tuple[object, ...], Node] = {}
        for node in self._fleet.nodes:
            offered = frozenset(name for name in node.allocatable if name in units)
            kinds.setdefault((offered, *zip(keys, map(node.labels.get, keys), strict=True)), node)
        return kinds

    def _nodes(self, flavors: Iterable[_Labels]) -> Iterator[Node]:
        """The nodes with devices and the labels of one of the flavors."""
        for wanted in flavors:
            for name in self._inventory.nodes:
                node = self._fleet.by_name.get(name)
                if node is not None and wanted.items() <= node.labels.items():
                    yield node

    def _flavors(self, cluster_queue: str, resource: str) -> Iterator[_Labels]:
        """The node labels of each flavor of a resource in a ClusterQueue; no labels if it has none."""
        queue = self._config.cluster_queues.get(cluster_queue)
        names = [
            quotas.flavor
            for group in (queue.groups if queue is not None else ())
            if resource in group.covered
            for quotas in group.flavors
        ]
        for name in names:
            if name in self._config.flavors:
                yield dict(self._config.flavors[name].node_labels)
        if not names:
            yield NO_LABELS

    def _resources(self, requests: Resources) -> list[str]:
        """The resources that are GPUs, or that a DeviceClass backs."""
        return [name for name in requests if self._weights.of(name) or name in self.classes.backing]

    def _charged(self, resource: str) -> str:
        """The resource that is charged for an extended resource."""
        backing = self.classes.backing.get(resource)
        return self.classes.charged(backing) if backing is not None else resource

    def _devices_of(self, node: Node) -> NodeDevices:
        return self._inventory.nodes.get(node.name, _NO_DEVICES)

    def _on_node(self, request: DeviceRequest, node: Node) -> Fraction | None:
        """GPUs of a request on a node; None if no device of the node can serve it. Of alternatives, the largest counts."""
        devices = self._devices_of(node)
        options = (option for option in request.options if not option.admin)
        sizes = [self.devices.requested(option, devices) for option in options]
        return max((size for size in sizes if size is not None), default=None)


def _sizes_alike(config: QueueConfig, before: QueueConfig) -> bool:
    """Whether sizes are the same: they depend on the flavors, and on which of them a ClusterQueue has for a resource."""
    if config is before:
        return True
    rules, earlier_rules = config.rules, before.rules
    queues, earlier = config.cluster_queues, before.cluster_queues
    return (
        config.flavors == before.flavors
        and rules.accounting.gpus == earlier_rules.accounting.gpus
        and rules.device_classes == earlier_rules.device_classes
        and queues.keys() == earlier.keys()
        and all(
            queue is earlier[name] or _offered_by(queue) == _offered_by(earlier[name])
            for name, queue in queues.items()
        )
    )


def _offered_by(queue: ClusterQueue) -> list[tuple[tuple[str, ...], list[str]]]:
    return [(group.covered, [one.flavor for one in group.flavors]) for group in queue.groups]


def _same_kind(before: Node, now: Node) -> bool:
    """Whether a node has its labels and offers its resources as before. This is faster than its kind."""
    if before is now:
        return True
    same = (before.name, before.labels) == (now.name, now.labels)
    return same and before.allocatable.keys() == now.allocatable.keys()


def with_sizes(snapshot: Snapshot) -> Snapshot:
    """The snapshot with the sizes of all gangs; gangs that have them remain the same objects."""
    sizes = GpuSizes.of(snapshot.fleet, snapshot.devices, snapshot.config)

    def sized(gang: _Gang) -> _Gang:
        workload = gang.workload
        queue = snapshot.queue_of(workload)
        name = queue.name if queue is not None else ""
        podsets = sizes.sized(workload.podsets, workload.namespace, name, snapshot.claims)
        if podsets == workload.podsets:
            return gang
        return replace(gang, workload=replace(workload, podsets=podsets))

    pending, admitted = map(sized, snapshot.pending), map(sized, snapshot.admitted)
    return replace(snapshot, pending=tuple(pending), admitted=tuple(admitted))


# ---- Devices

GPU_DRIVER: Final = "gpu."
_AMD: Final = "gpu.amd.com"


class DeviceGpus:
    """The GPUs of devices and of requests for devices, on the nodes that publish them."""

    def __init__(self, classes: DeviceClasses, weights: GpuWeights, matching: Matching) -> None:
        self._classes = classes
        self._weights = weights
        self._matching = matching
        self._kinds: dict[int, tuple[DeviceKind, Fraction]] = {}
        self._options = BoundedCache[
            tuple[int, DeviceOption], tuple[NodeDevices, Fraction | None]
        ]()

    def of(self, device: Device) -> Fraction:
        """GPUs of a device; 0 if it is not a GPU."""
        known = self._kinds.get(id(device.kind))
        if known is None:
            known = self._kinds[id(device.kind)] = device.kind, self._of_kind(device.kind)
        return known[1]

    def on_node(self, node: NodeDevices) -> tuple[Fraction, Fraction]:
        """Physical GPUs behind the devices of a node, and those of them that a taint takes out of use.

        Devices that consume the same counters are different divisions of one GPU, so the largest of them counts.
        """
        whole, tainted = ZERO_GPUS, ZERO_GPUS
        divided: dict[tuple[str, str, str], Fraction] = {}
        for device in node.devices:
            gpus = self.of(device)
            if device.consumes:
                key = (device.id.driver, device.id.pool, device.consumes[0][0][0])
                divided[key] = max(divided.get(key, ZERO_GPUS), gpus)
            else:
                whole += gpus
                tainted += (
                    gpus if any(t.effect != "None" for t in device.kind.taints) else ZERO_GPUS
                )
        return sum(divided.values(), whole), tainted

    def requested(self, option: DeviceOption, node: NodeDevices) -> Fraction | None:
        """GPUs that an option gets on a node; None if it selects no device there. Of devices of several sizes the largest counts."""
        key = (id(node), option)
        known = self._options.get(key)
        if known is None:
            known = self._options.keep(key, (node, self._requested(option, node)))
        return known[1]

    def by_name(self, option: DeviceOption) -> Fraction:
        """GPUs of an option that selects no known device: as the name of the charged resource, or of the class, states it."""
        each = self._weights.of(self._classes.charged(option.device_class))
        if not each and option.device_class.startswith(GPU_DRIVER):
            each = Fraction(1)
        return each * (option.count or 1)

    def _requested(self, option: DeviceOption, node: NodeDevices) -> Fraction | None:
        try:
            selected = self._matching(option, node)
        except NotMatched:
            return None
        sizes = [self._share(node.devices[at], option) for at in selected]
        if not sizes:
            return None
        return sum(sizes, ZERO_GPUS) if option.count is None else max(sizes) * option.count

    def _share(self, device: Device, option: DeviceOption) -> Fraction:
        """The part of a shared device is the largest part of one of its capacities."""
        gpus = self.of(device)
        if not device.kind.shared or not gpus:
            return gpus
        amounts = consumed(device, option) or ()
        totals = (total for _, total in device.kind.capacity)
        parts = [amount / total for amount, total in zip(amounts, totals, strict=False) if total]
        return gpus * max(parts, default=Fraction(1))

    def _of_kind(self, kind: DeviceKind) -> Fraction:
        charged = [
            self._classes.charged(name)
            for name in sorted(self._matching.classes)
            if self._matching.selects(DeviceOption(name), kind)
        ]
        given = dict(self._weights.configured)
        for resource in charged:
            if resource in given:
                return given[resource]
        if kind.driver.startswith(GPU_DRIVER) or any(map(self._weights.of, charged)):
            return _part(kind)
        return ZERO_GPUS


def _part(kind: DeviceKind) -> Fraction:
    """By the attributes that the drivers of NVIDIA and AMD publish."""
    values = {name.rpartition("/")[2]: value for name, value in kind.attributes}
    product = str(values.get("productName", ""))
    if kind.driver == _AMD:
        return amd_part(str(values.get("partitionProfile", "")), product)
    return mig_part(str(values.get("profile", "")), product) or Fraction(1)
