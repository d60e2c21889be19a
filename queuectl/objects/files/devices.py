"""The objects about devices in a file: devices, classes, claims with their templates, and NUMA nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from queuectl.devices.pools import node_devices
from queuectl.devices.taints import TaintedSlices
from queuectl.domain.devices import (
    NO_DEVICES,
    AllocatedDevice,
    Claim,
    DeviceClass,
    DeviceId,
    DeviceInventory,
    DeviceTaintRule,
)
from queuectl.domain.fleet import Fleet
from queuectl.domain.numa import NodeZones
from queuectl.domain.pod_claims import KnownClaims, resolved
from queuectl.domain.pool_slices import PoolSlice
from queuectl.domain.records import ClaimRecord, ClaimTemplateRecord
from queuectl.domain.words import counted
from queuectl.objects.documents import Document
from queuectl.objects.errors import RequestError
from queuectl.objects.files.gangs import Gang
from queuectl.objects.kubernetes import taint_rules
from queuectl.objects.kubernetes.node_topologies import WireNodeTopology, read_node_topology
from queuectl.objects.kubernetes.resource_claims import (
    read_claim,
    read_claim_template,
    read_device_class,
)
from queuectl.objects.kubernetes.resource_slices import read_resource_slice
from queuectl.objects.kubernetes.resource_wire import (
    WireClaimTemplate,
    WireDeviceClass,
    WireResourceClaim,
    WireResourceSlice,
    WireTaintRule,
)

API_VERSION = "resource.k8s.io/v1"


@dataclass
class GivenDevices:
    """The objects of a file. It is the :class:`~queuectl.domain.pod_claims.KnownClaims` of its gangs."""

    slices: list[PoolSlice] = field(default_factory=list)
    classes: dict[str, DeviceClass] = field(default_factory=dict)
    taint_rules: dict[str, DeviceTaintRule] = field(default_factory=dict)
    claims: dict[tuple[str, str], ClaimRecord] = field(default_factory=dict)
    templates: dict[tuple[str, str], ClaimTemplateRecord] = field(default_factory=dict)
    zones: dict[str, NodeZones] = field(default_factory=dict)

    def template(self, namespace: str, name: str) -> ClaimTemplateRecord | None:
        """A ResourceClaimTemplate; None if the file does not have it."""
        return self.templates.get((namespace, name))

    def named_claim(self, namespace: str, name: str) -> ClaimRecord | None:
        """A ResourceClaim that a user made; None if the file does not have it."""
        record = self.claims.get((namespace, name))
        return record if record is not None and record.content.owner is None else None

    @property
    def named_claims(self) -> dict[tuple[str, str], Claim]:
        """The ResourceClaims that users made."""
        known = sorted(self.claims.items())
        return {key: record.content for key, record in known if record.content.owner is None}

    def add(self, document: Document) -> None:
        """Read one object.

        Raises:
            DocumentError: naming file, document and field.
        """
        try:
            match document.kind:
                case "ResourceSlice":
                    slice_ = read_resource_slice(document.convert(WireResourceSlice))
                    self.slices.append(slice_.content)
                case "DeviceClass":
                    chosen = read_device_class(document.convert(WireDeviceClass))
                    self.classes[chosen.name] = chosen.content
                case taint_rules.KIND:
                    newest = document.api_version == taint_rules.VERSION
                    read = (
                        taint_rules.read_taint_rule if newest else taint_rules.read_older_taint_rule
                    )
                    rule = read(document.convert(WireTaintRule))
                    if rule.content is not None:
                        self.taint_rules[rule.name] = rule.content
                case "ResourceClaimTemplate":
                    template = read_claim_template(document.convert(WireClaimTemplate))
                    self.templates[template.namespace, template.name] = template
                case "NodeResourceTopology":
                    topology = read_node_topology(document.convert(WireNodeTopology))
                    self.zones[topology.name] = topology.content
                case _:
                    claim = read_claim(document.convert(WireResourceClaim))
                    self.claims[claim.namespace, claim.content.name] = claim
        except RequestError as error:
            raise document.error("", str(error)) from None

    def inventory(self, fleet: Fleet) -> DeviceInventory:
        """The devices of the nodes, and the classes."""
        if not (self.slices or self.classes or self.claims or self.templates or self.zones):
            return NO_DEVICES
        zones = {name: own for name, own in sorted(self.zones.items()) if name in fleet.by_name}
        rules = [rule for _, rule in sorted(self.taint_rules.items())]
        slices = TaintedSlices().of(self.slices, rules)
        return DeviceInventory(node_devices(slices, fleet), self.classes, zones)

    def held_by_others(
        self,
        devices: DeviceInventory,
        counted_pods: Collection[str],
        shared: Collection[tuple[str, str]],
    ) -> dict[str, tuple[AllocatedDevice, ...]]:
        """Node name to the devices of claims that do not count with a gang.

        Args:
            devices: of the nodes.
            counted_pods: uids of the pods whose own claims count with their gang.
            shared: (namespace, name) of the claims that admitted gangs share.
        """
        nodes = {device.id: node for node, all_ in devices.nodes.items() for device in all_.devices}
        held: dict[str, list[AllocatedDevice]] = defaultdict(list)
        for key, record in sorted(self.claims.items()):
            claim = record.content
            if claim.owner in counted_pods or key in shared:
                continue
            for one in claim.allocated or ():
                node = nodes.get(one.id)
                if node is not None:
                    held[node].append(one)
        return {node: tuple(found) for node, found in sorted(held.items())}

    def strangers(self, devices: DeviceInventory) -> Iterator[str]:
        """One warning for each device of a claim that no node of the input has."""
        known: set[DeviceId] = {d.id for all_ in devices.nodes.values() for d in all_.devices}
        for (namespace, name), record in sorted(self.claims.items()):
            for one in record.content.allocated or ():
                if one.id not in known and self.slices:
                    text = f"device {one.id} is on no node of the input"
                    yield f"ResourceClaim {namespace}/{name}: {text}"


def claiming(gang: Gang, known: KnownClaims) -> Gang:
    """The gang with the devices of its claims, or with the reason for which they cannot be planned."""
    if not any(podset.claims for podset in gang.podsets):
        return gang
    found = [resolved(gang.namespace, podset, known) for podset in gang.podsets]
    reasons = [reason for _, each in found for reason in each]
    podsets = tuple(podset for podset, _ in found)
    return replace(gang, podsets=podsets, forbidden=gang.forbidden or next(iter(reasons), None))


def left_out(devices: DeviceInventory) -> Iterator[str]:
    """One warning for each sentence about devices that are left out, with the nodes."""
    nodes: dict[str, list[str]] = defaultdict(list)
    for node, all_ in devices.nodes.items():
        for sentence in all_.unsupported:
            nodes[sentence].append(node)
    for sentence, names in nodes.items():
        first, *others = names
        where = (
            f"Node {first} and {counted(len(others), 'other Node')}" if others else f"Node {first}"
        )
        yield f"{where}: {sentence}"


def named_by(gangs: Iterable[Gang]) -> set[tuple[str, str]]:
    """(namespace, name) of the claims that gangs share."""
    return {
        (gang.namespace, reference.claim)
        for gang in gangs
        for podset in gang.podsets
        for reference in podset.claims
        if reference.claim is not None
    }
