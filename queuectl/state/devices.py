"""The copy of the objects about devices that the watch keeps, and the devices that pods outside gangs hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from queuectl.devices.pools import DevicePools, TaintedSlices, out_of_placement
from queuectl.domain.devices import (
    IMPLICIT_RESOURCE,
    NO_DEVICES,
    AllocatedDevice,
    Claim,
    ClaimSpec,
    Device,
    DeviceClass,
    DeviceId,
    DeviceInventory,
)
from queuectl.domain.fleet import Fleet
from queuectl.domain.records import (
    ClaimRecord,
    ClaimTemplateRecord,
    DeviceClassRecord,
    NodeTopologyRecord,
    SliceRecord,
    TaintRuleRecord,
)
from queuectl.domain.workload import PodShape

# ---- The copy of the objects

SLICES: Final = "resourceslices"
CLASSES: Final = "deviceclasses"
CLAIMS: Final = "resourceclaims"
TEMPLATES: Final = "resourceclaimtemplates"
TAINT_RULES: Final = "devicetaintrules"
TOPOLOGIES: Final = "noderesourcetopologies"
BY_RECORD: Final[Mapping[type, str]] = {
    SliceRecord: SLICES,
    DeviceClassRecord: CLASSES,
    ClaimRecord: CLAIMS,
    ClaimTemplateRecord: TEMPLATES,
    TaintRuleRecord: TAINT_RULES,
    NodeTopologyRecord: TOPOLOGIES,
}
RESOURCES: Final = frozenset(BY_RECORD.values())
BY_NAME: Final = RESOURCES - {CLAIMS, TEMPLATES}
"""Resources of which the key of an object is its name."""

DeviceRecord: TypeAlias = (
    SliceRecord
    | DeviceClassRecord
    | TaintRuleRecord
    | ClaimRecord
    | ClaimTemplateRecord
    | NodeTopologyRecord
)
ClaimName: TypeAlias = tuple[str, str, str]
"""Of a ResourceClaimTemplate, or of a ResourceClaim that a user made: its resource, namespace and name."""


class DeviceMirror:
    """Records by key, and marks for changes. The reader of a mark clears it.

    Attributes:
        plans_differ: a slice, a class, a taint, a NUMA node or an allocation changed, so plans can differ.
        requests_changed: templates and claims that were created or deleted, or request other devices than before.
        classes_named: a class was created or deleted, so that any claim can be valid or invalid now.
        classes: by name; the same object until one of them changes.
        backed: the extended resources for which containers get devices of a class.
        moved: uids of pods with a claim that changed or was deleted, and uids of such claims of no pod.
    """

    def __init__(self, in_queue: Callable[[str], bool]) -> None:
        """``in_queue``: whether the pod with a uid belongs to a job in a queue."""
        self._in_queue = in_queue
        self.classes: Mapping[str, DeviceClass] = {}
        self.backed: frozenset[str] = frozenset()
        self._slices: dict[str, SliceRecord] = {}
        self._classes: dict[str, DeviceClassRecord] = {}
        self._rules: dict[str, TaintRuleRecord] = {}
        self._claims: dict[str, ClaimRecord] = {}
        self._templates: dict[str, ClaimTemplateRecord] = {}
        self._topologies: dict[str, NodeTopologyRecord] = {}
        self._template_names: dict[tuple[str, str], ClaimTemplateRecord] = {}
        self._named: dict[tuple[str, str], ClaimRecord] = {}  # those that users made
        self._named_claims: Mapping[tuple[str, str], Claim] | None = {}  # None: one has changed
        self._by_holder: dict[str, dict[str, ClaimRecord]] = {}
        self._pools = DevicePools()
        self._tainted = TaintedSlices()
        self._out: tuple[DeviceInventory, Mapping[str, tuple[Device, ...]]] | None = None
        self._inventory: DeviceInventory | None = None
        self._fleet: Fleet | None = None
        self.plans_differ = False
        self.requests_changed: set[ClaimName] = set()
        self.classes_named = False
        self.moved: set[str] = set()

    def template(self, namespace: str, name: str) -> ClaimTemplateRecord | None:
        """A ResourceClaimTemplate; None if it does not exist."""
        return self._template_names.get((namespace, name))

    def named_claim(self, namespace: str, name: str) -> ClaimRecord | None:
        """A ResourceClaim that a user made; None if it does not exist."""
        return self._named.get((namespace, name))

    @property
    def named_claims(self) -> Mapping[tuple[str, str], Claim]:
        """By namespace and name, without the claims that were made for one pod; the same object until one changes."""
        if self._named_claims is None:
            self._named_claims = {key: one.content for key, one in self._named.items()}
        return self._named_claims

    def requests(self) -> Iterator[DeviceRecord]:
        """The objects from which the devices of the claims of pods follow."""
        yield from self._classes.values()
        yield from self._templates.values()
        yield from self._named.values()

    def claims_of(self, holder: str) -> Iterable[ClaimRecord]:
        """The claims of a pod by its uid, or the one claim of no pod by its own uid."""
        return self._by_holder.get(holder, {}).values()

    @property
    def holders(self) -> Collection[str]:
        """The keys of :meth:`claims_of`."""
        return self._by_holder.keys()

    def inventory(self, fleet: Fleet) -> DeviceInventory:
        """The devices of the nodes, and the classes; the same object until a slice, a class, a taint or a node changes."""
        known = (self._slices, self._classes, self._templates, self._claims, self._topologies)
        if not any(known):
            return NO_DEVICES
        if self._inventory is None or fleet is not self._fleet:
            published = (self._slices[name].content for name in sorted(self._slices))
            rules = [self._rules[name].content for name in sorted(self._rules)]
            slices = self._tainted.of(published, [rule for rule in rules if rule is not None])
            zones = {
                name: record.content
                for name, record in sorted(self._topologies.items())
                if name in fleet.by_name
            }
            nodes, recovered = self._pools.inventory(slices, fleet)
            self._inventory = DeviceInventory(nodes, self.classes, zones, recovered)
            self._fleet = fleet
        return self._inventory

    def out_of_placement(self, fleet: Fleet) -> Mapping[str, tuple[Device, ...]]:
        """The devices with a taint that has an effect, by node; the same object until the inventory changes."""
        inventory = self.inventory(fleet)
        if self._out is None or self._out[0] is not inventory:
            # The ResourceSlices of a deleted node can exist for a while.
            lost = out_of_placement(inventory)
            self._out = inventory, {name: lost[name] for name in lost if name in fleet.by_name}
        return self._out[1]

    def keys(self, resource: str) -> set[str]:
        """The keys of all records of a resource, as in deltas."""
        tables: dict[str, Mapping[str, DeviceRecord]] = {
            SLICES: self._slices,
            CLASSES: self._classes,
            TAINT_RULES: self._rules,
            CLAIMS: self._claims,
            TEMPLATES: self._templates,
            TOPOLOGIES: self._topologies,
        }
        return set(tables[resource])

    def upsert(self, record: DeviceRecord) -> None:
        """Keep a record, unless a newer one is known."""
        match record:
            case SliceRecord():
                old = self._slices.get(record.name)
                if old is None or record.version > old.version:
                    self._slices[record.name] = record
                    self._published(old is None or old.content != record.content)
            case DeviceClassRecord():
                known = self._classes.get(record.name)
                if known is None or record.version > known.version:
                    self._classes[record.name] = record
                    self.classes_named |= known is None
                    self._classified(known is None or known.content != record.content)
            case TaintRuleRecord():
                rule = self._rules.get(record.name)
                if rule is None or record.version > rule.version:
                    self._rules[record.name] = record
                    self._published(rule is None or rule.content != record.content)
            case ClaimTemplateRecord():
                self._upsert_template(record)
            case NodeTopologyRecord():
                before = self._topologies.get(record.name)
                if before is None or record.version > before.version:
                    self._topologies[record.name] = record
                    self._published(before is None or before.content != record.content)
            case ClaimRecord():
                self._upsert_claim(record)

    def delete(self, resource: str, key: str) -> None:
        """Forget a record."""
        if resource == SLICES:
            self._published(self._slices.pop(key, None) is not None)
        elif resource == TOPOLOGIES:
            self._published(self._topologies.pop(key, None) is not None)
        elif resource == CLASSES:
            known = self._classes.pop(key, None) is not None
            self.classes_named |= known
            self._classified(known)
        elif resource == TAINT_RULES:
            self._published(self._rules.pop(key, None) is not None)
        elif resource == TEMPLATES:
            template = self._templates.pop(key, None)
            if template is not None:
                place = (template.namespace, template.name)
                if self._template_names.get(place) is template:
                    del self._template_names[place]
                    self.requests_changed.add((TEMPLATES, *place))
        elif resource == CLAIMS:
            claim = self._claims.pop(key, None)
            if claim is not None:
                self._forget_claim(claim)

    def _published(self, changed: bool) -> None:
        if changed:
            self._inventory = None
            self.plans_differ = True

    def _classified(self, changed: bool) -> None:
        if changed:
            self.classes = {name: record.content for name, record in self._classes.items()}
            self.backed = frozenset(
                name for one in self.classes.values() for name in backed_resources(one)
            )
            self._published(changed)
            self.moved.update(self._by_holder)

    def _upsert_template(self, record: ClaimTemplateRecord) -> None:
        old = self._templates.get(record.uid)
        if old is not None and record.version <= old.version:
            return
        place = (record.namespace, record.name)
        named = self._template_names.get(place)
        self._templates[record.uid] = self._template_names[place] = record
        if named is None or (named.spec, named.error) != (record.spec, record.error):
            self.requests_changed.add((TEMPLATES, *place))

    def _upsert_claim(self, record: ClaimRecord) -> None:
        old = self._claims.get(record.uid)
        if old is not None and record.version <= old.version:
            return
        holder = _holder(record)
        if old is not None and _holder(old) != holder:
            self._forget_claim(old)
            old = None
        self._claims[record.uid] = record
        self._by_holder.setdefault(holder, {})[record.uid] = record
        self.moved.add(holder)
        if record.content.owner is None:
            place = (record.namespace, record.content.name)
            named = self._named.get(place)
            self._named[place] = record
            if named is None or named.content != record.content:
                self._named_claims = None
            asked = (record.content.spec, record.error)
            if named is None or (named.content.spec, named.error) != asked:
                self.requests_changed.add((CLAIMS, *place))
        held = old.content.allocated if old is not None else None
        if held != record.content.allocated:
            # The pods of a gang have their devices since it started. Planning waits for a released device only.
            self.plans_differ |= held is not None or not self._in_queue(holder)

    def _forget_claim(self, record: ClaimRecord) -> None:
        holder = _holder(record)
        self.moved.add(holder)
        own = self._by_holder.get(holder, {})
        own.pop(record.uid, None)
        if not own:
            self._by_holder.pop(holder, None)
        if record.content.owner is None:
            place = (record.namespace, record.content.name)
            if self._named.get(place) is record:
                del self._named[place]
                self._named_claims = None
                self.requests_changed.add((CLAIMS, *place))
        self.plans_differ |= record.content.allocated is not None


def backed_resources(device_class: DeviceClass) -> tuple[str, ...]:
    """The extended resources for which containers get devices of the class."""
    own = (device_class.extended_resource,) if device_class.extended_resource is not None else ()
    return (*own, IMPLICIT_RESOURCE + device_class.name)


def _holder(record: ClaimRecord) -> str:
    """The uid of the pod that the claim was made for; its own uid if a user made it."""
    return record.content.owner or record.uid


# ---- Devices held by pods outside gangs
#
# A slot of a gang counts with the request of its podset, whether or not kube-scheduler has allocated devices for its pod. Each other
# allocation takes its devices off the node: those of unmanaged pods, of pods of older attempts, of named claims, and of pods that have
# ended while their claims are not released yet.

SlotShape = Callable[[str], PodShape | None]
"""The request of the slot that the pod with a uid fills; None if it fills none."""


class DeviceUse:
    """Updated with each pod and each claim."""

    def __init__(self, devices: DeviceMirror, slot: SlotShape) -> None:
        self._devices = devices
        self._slot = slot
        self._taken: dict[str, tuple[AllocatedDevice, ...]] = {}
        self._by_node: dict[str, tuple[AllocatedDevice, ...]] | None = {}
        self._nodes: dict[DeviceId, str] = {}
        self._inventory: DeviceInventory | None = None
        self._shared: frozenset[str] = frozenset()

    @property
    def holders(self) -> Collection[str]:
        """The pods, and the claims of no pod, that held devices when they were judged last (by uid)."""
        return self._taken.keys()

    def refresh(self, holders: Iterable[str]) -> bool:
        """Judge the claims of these pods, and these claims of no pod, again (by uid, with deleted ones).

        Returns:
            Whether the held devices changed.
        """
        changed = False
        for holder in holders:
            claims = self._devices.claims_of(holder)
            held = tuple(_held(claims, self._slot(holder), self._devices)) if claims else ()
            if held != self._taken.get(holder, ()):
                self._by_node, changed = None, True
                if held:
                    self._taken[holder] = held
                else:
                    del self._taken[holder]
        return changed

    def by_node(
        self, inventory: DeviceInventory, shared: frozenset[str] = frozenset()
    ) -> Mapping[str, tuple[AllocatedDevice, ...]]:
        """Node name to the devices; the same object until one of them changes.

        Args:
            inventory: devices that it does not list are left out.
            shared: uids of claims that running gangs share; they count with these gangs.
        """
        if inventory is not self._inventory or shared != self._shared:
            self._follow(inventory)
            self._inventory, self._shared, self._by_node = inventory, shared, None
        if self._by_node is None:
            found: dict[str, list[AllocatedDevice]] = {}
            for holder in sorted(self._taken.keys() - shared):
                for device in self._taken[holder]:
                    node = self._nodes.get(device.id)
                    if node is not None:
                        found.setdefault(node, []).append(device)
            self._by_node = {node: tuple(devices) for node, devices in found.items()}
        return self._by_node

    def _follow(self, inventory: DeviceInventory) -> None:
        """Find the nodes of the devices again, of which the nodes changed: unchanged ones are the same objects."""
        before = self._inventory.nodes if self._inventory is not None else {}
        now = inventory.nodes
        changed = [n for n in before.keys() | now.keys() if before.get(n) is not now.get(n)]
        for name in changed:
            for device in before[name].devices if name in before else ():
                self._nodes.pop(device.id, None)
        for name in changed:
            for device in now[name].devices if name in now else ():
                self._nodes[device.id] = name


def _held(
    claims: Iterable[ClaimRecord], slot: PodShape | None, devices: DeviceMirror
) -> Iterable[AllocatedDevice]:
    for record in claims:
        claim = record.content
        if slot is None or not _requested(claim.spec, slot, devices.classes):
            yield from claim.allocated or ()


def _requested(spec: ClaimSpec, slot: PodShape, classes: Mapping[str, DeviceClass]) -> bool:
    """Whether the request of the slot includes the claim: a claim of its pod, or one that kube-scheduler made for an extended resource."""
    if slot.devices is not None and spec in slot.devices.claims:
        return True
    return bool(spec.requests) and all(
        _backs(classes.get(option.device_class), slot)
        for request in spec.requests
        for option in request.options
    )


def _backs(device_class: DeviceClass | None, slot: PodShape) -> bool:
    return device_class is not None and any(
        name in slot.requests for name in backed_resources(device_class)
    )
