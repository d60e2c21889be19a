"""Devices and NUMA nodes of nodes: what drivers publish, and what pods request of it.

The terms follow the API group ``resource.k8s.io/v1``. A *pool* of a driver is published as ResourceSlices. A pod requests devices
by *claims*; kube-scheduler chooses the devices of a claim when it binds the pod. Names of attributes are
qualified here: where an object omits the domain, it is the name of the driver. Names of capacities are as they were written, because
kube-scheduler compares the name in a request with the name in a ResourceSlice character by character.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from typing import Final, TypeAlias

from queuectl.domain.fleet import SelectorTerm
from queuectl.domain.quantity import CPU, MEMORY, Resources
from queuectl.domain.request_rules import ContainerNeeds, PodNeeds, together

# ---- NUMA nodes
#
# The kubelet chooses the NUMA node of a pod, and it enforces the choice only with the policy ``single-numa-node`` of its topology
# manager. It gives a pod its own CPUs and memory only if the pod is Guaranteed and requests whole CPUs.

SINGLE_NUMA_NODE: Final = "single-numa-node"
"""The policy of the kubelet that enforces one NUMA node, and the value of the annotation that requests it."""
ONE_NUMA_NODE: Final = "one NUMA node"
OTHER_PODS: Final = "other Guaranteed pods"
"""Beginnings of the names of device rows."""
POD: Final = "pod"
CONTAINER: Final = "container"
_CPU_UNITS: Final = 1000  # millicores of one CPU
_GUARANTEED: Final = (CPU, MEMORY)


@dataclass(frozen=True, slots=True)
class NodeZones:
    """The NUMA nodes of one node.

    Attributes:
        zones: allocatable amounts of each, in the order of their names.
        policy: of the topology manager.
        scope: of the topology manager: it chooses a NUMA node for each ``pod``, or for each ``container``.
    """

    zones: tuple[Resources, ...] = ()
    policy: str = "none"
    scope: str = CONTAINER

    @property
    def aligns(self) -> bool:
        """Whether its kubelet enforces one NUMA node."""
        return self.policy == SINGLE_NUMA_NODE and bool(self.zones)

    def devices(self) -> frozenset[str]:
        """The extended resources of its NUMA nodes."""
        return frozenset(name for zone in self.zones for name in zone if "/" in name)


def not_aligned(needs: PodNeeds) -> str | None:
    """Why a kubelet gives such a pod no CPUs and memory of one NUMA node; None = it does."""
    if needs.requests or needs.limits:
        return "it sets resources for the pod as a whole"
    for kind, containers in (("containers", needs.containers), ("initContainers", needs.init)):
        for number, container in enumerate(containers):
            where = f"{kind}[{number}].resources"
            for name in _GUARANTEED:
                if not _guaranteed(container, name):
                    return f"{where}: the limit of {name} is not set, or differs from the request"
            if dict(container.limits)[CPU] % _CPU_UNITS:
                return f"{where}: {dict(container.limits)[CPU]}m is not a whole number of CPUs"
    return None if needs.containers else "it has no containers"


def _guaranteed(container: ContainerNeeds, name: str) -> bool:
    limit = dict(container.limits).get(name, 0)
    return limit > 0 and container.effective_requests[name] == limit


def of_one_numa_node(needs: PodNeeds) -> dict[str, int]:
    """The amounts that the kubelet takes from one NUMA node. Overhead and volumes are not among them."""
    asked = together(needs, lambda container: container.effective_requests)
    return {name: value for name, value in asked.items() if value and name != "ephemeral-storage"}


# ---- Devices and requests for them

MOST_RESULTS: Final = 32
"""The largest number of devices of one claim (``AllocationResultsMaxSize``)."""
MOST_SELECTOR_BYTES: Final = 10 * 1024
"""Of a selector, as in the API server, and of all selectors in the claims of a pod."""


IMPLICIT_RESOURCE: Final = "deviceclass.resource.kubernetes.io/"
"""A container requests devices of each DeviceClass by this prefix and the name of the class."""

DEVICE_ROW: Final = "~devices/"
"""Prefix of resources that only plans use: amounts that keep the devices of a node sure for all pods on it.

They are the last resources by name, and no message shows them.
"""

NOT_SURE: Final = (
    "the number of devices is enough, but kube-scheduler can choose devices for some pods "
    "that leave none for others"
)
_NO_NUMA_NODE: Final = (
    "the amounts are enough, but the kubelet can choose NUMA nodes for some pods that leave none "
    "for others"
)
_OF_ONE_SORT: Final = "nodes whose kubelet aligns pods are kept for pods that request one NUMA node"

CLAIM_PODSET: Final = "~claims/"
"""Prefix of the podsets that stand for shared claims, and of their groups; no podset of a user has such a name."""


def not_sure(devices: Iterable[str]) -> str:
    """The reason for which pods that request these devices fit by the amounts alone."""
    names = tuple(devices)
    for begin, why in ((ONE_NUMA_NODE, _NO_NUMA_NODE), (OTHER_PODS, _OF_ONE_SORT)):
        if any(name.startswith(begin) for name in names):
            return why
    return NOT_SURE


def stands_for_claims(podset: str) -> bool:
    """Whether the podset with this name stands for claims, so it has no pods."""
    return podset.startswith(CLAIM_PODSET)


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """The value of an attribute that is a semantic version, as text."""

    text: str


Scalar: TypeAlias = bool | int | str | Version
AttributeValue: TypeAlias = Scalar | tuple[Scalar, ...]
Amounts: TypeAlias = tuple[tuple[str, Fraction], ...]
"""By name of a capacity, sorted by name; exact values of quantities."""


class DeviceEffect(StrEnum):
    """Effects of a taint of a device. ``NONE`` only informs."""

    NONE = "None"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True)
class DeviceTaint:
    """``rule``: the name of the DeviceTaintRule; empty = it is in the ResourceSlice."""

    key: str
    effect: DeviceEffect
    value: str = ""
    rule: str = ""

    def __str__(self) -> str:
        """For people."""
        value = f"={self.value}" if self.value else ""
        rule = f" (DeviceTaintRule {self.rule})" if self.rule else ""
        return f"{self.key}{value}:{self.effect}{rule}"


@dataclass(frozen=True, slots=True)
class DeviceTaintRule:
    """A taint that an administrator puts on devices.

    Attributes:
        taint: with the name of the rule.
        driver, pool, device: the names of the devices; None = all.
    """

    taint: DeviceTaint
    driver: str | None = None
    pool: str | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceToleration:
    """``key`` empty with ``Exists`` tolerates each taint; ``effect`` None means each effect.

    ``seconds``: after which Kubernetes deletes a pod that uses the device; None = never. Only for ``NoExecute``.
    """

    key: str = ""
    operator: str = "Equal"  # Equal | Exists
    value: str = ""
    effect: DeviceEffect | None = None
    seconds: int | None = None

    def tolerates(self, taint: DeviceTaint) -> bool:
        """Whether a request with this toleration can use a device with the taint."""
        if self.effect not in (None, taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class CapacityPolicy:
    """How much of a capacity one allocation of a shared device consumes.

    Attributes:
        default: if the request names no amount; None = the whole capacity.
        valid_values: the amounts that can be allocated, ascending; a request is rounded up to the next one. Empty = no such list.
        least, most, step: the range of amounts; a request is rounded up to the range. None = no such bound.
    """

    default: Fraction | None = None
    valid_values: tuple[Fraction, ...] = ()
    least: Fraction | None = None
    most: Fraction | None = None
    step: Fraction | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DeviceKind:
    """The fields of a device that decide which requests it matches. Equal devices are one object: thousands share it.

    Attributes:
        driver: the name of its driver.
        attributes: by qualified name, sorted.
        capacity: by name as published.
        taints: a request uses the device only if it tolerates all that have an effect.
        shared: several claims can each consume a part of its capacity (``allowMultipleAllocations``).
        policies: by name of a capacity; only of shared devices.
    """

    driver: str
    attributes: tuple[tuple[str, AttributeValue], ...] = ()
    capacity: Amounts = ()
    taints: tuple[DeviceTaint, ...] = ()
    shared: bool = False
    policies: tuple[tuple[str, CapacityPolicy], ...] = ()

    def __eq__(self, other: object) -> bool:
        """Unlike for Python, the values True and 1 differ."""
        return (
            isinstance(other, DeviceKind)
            and self._fields == other._fields
            and repr(self.attributes) == repr(other.attributes)
        )

    def __hash__(self) -> int:
        return hash(self._fields)

    @property
    def _fields(self) -> tuple[object, ...]:
        taints = self.taints, self.shared, self.policies
        return self.driver, self.attributes, self.capacity, *taints


@dataclass(frozen=True, slots=True, order=True)
class DeviceId:
    """``driver/pool/device``, as a ResourceClaim names it."""

    driver: str
    pool: str
    name: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.name}"


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a node.

    Attributes:
        consumes: (counter set, counter) to the amount it takes of the shared counters of its pool while it is allocated, sorted.
    """

    id: DeviceId
    kind: DeviceKind
    consumes: tuple[tuple[tuple[str, str], int], ...] = ()


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """The devices that only one node can use, from the newest complete generation of each pool.

    Attributes:
        devices: sorted by id.
        counters: (driver, pool, counter set, counter) to its amount, sorted.
        unsupported: sentences about devices that are left out, for example those that several nodes share.
        left_out: kinds of the left-out devices that kube-scheduler can allocate.
        evaluated: kinds of devices that the node cannot use, but on which kube-scheduler evaluates the selectors of its pods.
    """

    devices: tuple[Device, ...] = ()
    counters: tuple[tuple[tuple[str, str, str, str], int], ...] = ()
    unsupported: tuple[str, ...] = ()
    left_out: tuple[DeviceKind, ...] = ()
    evaluated: tuple[DeviceKind, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass.

    Attributes:
        selectors: CEL expressions; a device of the class fulfills all.
        extended_resource: the extended resource that requests its devices; None = only the implicit one.
        created_at: unix seconds; of several classes for one extended resource the newest counts, then the first by name.
    """

    name: str
    selectors: tuple[str, ...] = ()
    extended_resource: str | None = None
    created_at: float = 0.0


@dataclass(frozen=True, slots=True)
class DeviceOption:
    """Devices of one class.

    Attributes:
        device_class: name of the DeviceClass.
        selectors: further CEL expressions, as the request has them.
        count: number of devices; None = all that match on the node (``allocationMode: All``).
        admin: access for administration: it takes no device from others.
        tolerations: taints of devices that it tolerates.
        capacity: the amounts that each device needs, and that the request consumes of a shared device.
    """

    device_class: str
    selectors: tuple[str, ...] = ()
    count: int | None = 1
    admin: bool = False
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: Amounts = ()


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """One request of a claim.

    Attributes:
        options: one (``exactly``), or several of which the first that can be allocated counts.
        subrequests: names of the options, where there are several.
    """

    name: str
    options: tuple[DeviceOption, ...]
    subrequests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceConstraint:
    """All devices of these requests (none named = of each request) have the same, or different, values of an attribute.

    Attributes:
        requests: names, also ``request/subrequest``.
        attribute: qualified name.
        distinct: the values differ; otherwise they are equal.
    """

    requests: tuple[str, ...]
    attribute: str
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """The request of one ResourceClaim or ResourceClaimTemplate. Hashable."""

    requests: tuple[DeviceRequest, ...]
    constraints: tuple[DeviceConstraint, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """One entry of ``spec.resourceClaims`` of a pod: the name of a ResourceClaimTemplate, or of a ResourceClaim."""

    name: str
    template: str | None = None
    claim: str | None = None


@dataclass(frozen=True, slots=True)
class PodDevices:
    """All devices that one pod requests. Pods with equal ones are interchangeable. Hashable.

    Attributes:
        claims: not shared: each pod has one ResourceClaim for each of them.
        shared: names of ResourceClaims that it shares with other pods.
    """

    claims: tuple[ClaimSpec, ...] = ()
    shared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One result of an allocation. ``share``: amounts that it consumes of a shared device."""

    id: DeviceId
    request: str
    admin: bool = False
    share: Amounts = ()
    tolerations: tuple[DeviceToleration, ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """One ResourceClaim of the cluster.

    Attributes:
        owner: uid of the pod that it was made for; None for a claim that a user made, and for one that only other pods use.
        allocated: None = not allocated.
        node: the nodes that its allocation can be used from; None = each node.
    """

    uid: str
    namespace: str
    name: str
    spec: ClaimSpec
    owner: str | None = None
    allocated: tuple[AllocatedDevice, ...] | None = None
    node: tuple[SelectorTerm, ...] | None = None


@dataclass(frozen=True, eq=False)
class DeviceInventory:
    """Devices and their classes at one revision. Compared by identity, so that derived data can be cached on it.

    Attributes:
        nodes: node name to its devices; nodes without devices are absent.
        classes: by name.
        zones: node name to the NUMA nodes that its NodeResourceTopology publishes.
        recovered: node name to its devices as they can be, where a pool that it had was deleted, or is not complete. A driver that starts
            again deletes its ResourceSlices, and publishes them again.
    """

    nodes: Mapping[str, NodeDevices] = field(default_factory=dict)
    classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    zones: Mapping[str, NodeZones] = field(default_factory=dict)
    recovered: Mapping[str, NodeDevices] = field(default_factory=dict)

    def with_nodes_like(self, like: str, names: Iterable[str]) -> DeviceInventory:
        """The same, with further nodes that have what a node has."""
        nodes, zones = dict(self.nodes), dict(self.zones)
        for name in names:
            if like in nodes:
                nodes[name] = nodes[like]
            if like in zones:
                zones[name] = zones[like]
        return replace(self, nodes=nodes, zones=zones)


NO_DEVICES: Final = DeviceInventory()
"""Of a cluster without any object of dynamic resource allocation, so that no gang can request devices."""


# ---- ResourceSlices


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """The nodes that can use devices: one ``node``, otherwise the nodes that match ``selector``, otherwise each node."""

    node: str | None = None
    selector: SelectorTerm | None = None


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """One device of a ResourceSlice.

    Attributes:
        consumes: (counter set, counter) to the amount, sorted.
        access: None = that of its ResourceSlice.
        unsupported: a field of the device for which no request can be planned with it; empty = none.
    """

    name: str
    kind: DeviceKind
    consumes: tuple[tuple[tuple[str, str], int], ...] = ()
    access: NodeAccess | None = None
    unsupported: str = ""


@dataclass(frozen=True, slots=True)
class PoolSlice:
    """One ResourceSlice.

    Attributes:
        slices: number of ResourceSlices in the pool's generation.
        access: None = each device has its own (``perDeviceNodeSelection``).
        counters: (counter set, counter) to the amount, sorted.
        repeated: name of a counter set that occurs twice in it; empty = none.
    """

    name: str
    driver: str
    pool: str
    generation: int = 1
    slices: int = 1
    access: NodeAccess | None = None
    devices: tuple[PublishedDevice, ...] = ()
    counters: tuple[tuple[tuple[str, str], int], ...] = ()
    repeated: str = ""
