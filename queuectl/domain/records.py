"""Every object that the watch reports, as small frozen records, and the changes of the watch.

``version`` is the integer resourceVersion: a record never replaces one with a higher version.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from queuectl.domain.admission import NodeSelectors, RuntimeClass
from queuectl.domain.devices import (
    Claim,
    ClaimSpec,
    DeviceClass,
    DeviceTaintRule,
    NodeZones,
    PoolSlice,
)
from queuectl.domain.fleet import Node
from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.domain.limits import Allowance, LimitRange
from queuectl.domain.provisioning import ProvisioningRecord


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A Node.

    Attributes:
        conditions: type, status and reason of those that the kubelet does not set itself.
        cordoned: ``spec.unschedulable``. ``node`` is also unschedulable while it is unhealthy.
        uid: of the object; a new node of the same name has another.
    """

    node: Node
    version: int
    conditions: tuple[tuple[str, str, str], ...] = ()
    cordoned: bool = False
    uid: str = ""


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """``selectors``: of nodes, which some plugins of the API server add to its pods. ``deleting``: no object can be created in it.

    Records that differ only in their versions are equal.
    """

    name: str
    version: int = field(compare=False)
    labels: tuple[tuple[str, str], ...] = ()
    selectors: NodeSelectors = ()
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class PriorityClassRecord:
    """``default``: pods that name no class get this one's value. ``preempts``: its pods can evict others.

    Records that differ only in their versions are equal.
    """

    name: str
    version: int = field(compare=False)
    value: int
    default: bool = False
    preempts: bool = True


@dataclass(frozen=True, slots=True)
class ResourceQuotaRecord:
    """``counted``: the API server has reported the use; a file can leave that out."""

    namespace: str
    uid: str
    version: int
    counted: bool
    allowance: Allowance


@dataclass(frozen=True, slots=True)
class LimitRangeRecord:
    namespace: str
    uid: str
    version: int
    limit_range: LimitRange


@dataclass(frozen=True, slots=True)
class RuntimeClassRecord:
    name: str
    version: int
    content: RuntimeClass


@dataclass(frozen=True, slots=True)
class SliceRecord:
    """A ResourceSlice."""

    name: str
    version: int
    content: PoolSlice


@dataclass(frozen=True, slots=True)
class DeviceClassRecord:
    name: str
    version: int
    content: DeviceClass


@dataclass(frozen=True, slots=True)
class TaintRuleRecord:
    """A DeviceTaintRule. ``content``: None = it selects no device."""

    name: str
    version: int
    content: DeviceTaintRule | None


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """A ResourceClaim. ``error``: why queuectl cannot plan its request, or None; its allocation counts in each case."""

    namespace: str
    uid: str
    version: int
    content: Claim
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimTemplateRecord:
    """A ResourceClaimTemplate. ``error``: why queuectl cannot plan its request, or None."""

    namespace: str
    name: str
    uid: str
    version: int
    spec: ClaimSpec
    error: str | None = None


@dataclass(frozen=True, slots=True)
class NodeTopologyRecord:
    """A NodeResourceTopology. ``name``: of its node."""

    name: str
    version: int
    content: NodeZones


@dataclass(frozen=True, slots=True)
class ConfigurationRecord:
    """An object of the cluster that is configuration (:mod:`queuectl.ownership`). No mirror has it.

    Attributes:
        kind: of configuration.
        namespace: empty for a kind without one.
        name: of the object.
        uid: of the object; a new object of the same name has another.
        version: the resourceVersion; each write raises it.
        generation: only a write of the content raises it, and no write of the status or of the metadata.
        deleting: it has a deletionTimestamp, and waits for finalizers.
        content: the JSON of the object.
        status: the JSON of its status; empty = it has none.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    version: int
    generation: int
    deleting: bool
    content: bytes
    status: bytes = b""


Record = (
    JobRecord
    | PodRecord
    | NodeRecord
    | NamespaceRecord
    | PriorityClassRecord
    | ResourceQuotaRecord
    | LimitRangeRecord
    | RuntimeClassRecord
    | SliceRecord
    | DeviceClassRecord
    | TaintRuleRecord
    | ClaimRecord
    | ClaimTemplateRecord
    | NodeTopologyRecord
    | ProvisioningRecord
    | ConfigurationRecord
)


@dataclass(frozen=True, slots=True)
class Upserted:
    """``record`` is at least as new as any seen before for its key, unless its version shows otherwise."""

    record: Record


@dataclass(frozen=True, slots=True)
class Deleted:
    """``resource``: plural as in the API path (``pods``, ``jobs``, ``pytorchjobs``...); ``key`` is the uid for namespaced objects, otherwise the name."""

    resource: str
    key: str
    version: int


@dataclass(frozen=True, slots=True)
class ListCompleted:
    """A (re)list of one resource is complete: objects that are not among ``keys`` are deleted."""

    resource: str
    keys: frozenset[str]
    version: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object that exists and that no reader can decode: it is not deleted, and what it holds stays charged.

    Attributes:
        resource, key: as in :class:`Deleted`.
        namespace, name: empty if the object has none.
        version: of the object.
        node: to which a pod is bound; empty for other objects, and before.
        terminal: whether a pod has ended.
        terminating: whether it is being deleted.
        suspended: whether a job is suspended; None = not known.
    """

    resource: str
    key: str
    version: int
    namespace: str = ""
    name: str = ""
    node: str = ""
    terminal: bool = False
    terminating: bool = False
    suspended: bool | None = None

    @property
    def ref(self) -> str:
        """``resource/namespace/name``, without parts that it does not have."""
        return "/".join(filter(None, (self.resource, self.namespace, self.name or self.key)))


Delta = Upserted | Deleted | ListCompleted | Unreadable


def key_of(record: Record) -> str:
    """The key of an object in deltas: the uid of a namespaced object, the name of each other object."""
    match record:
        case (
            JobRecord()
            | PodRecord()
            | ResourceQuotaRecord()
            | LimitRangeRecord()
            | ClaimRecord()
            | ClaimTemplateRecord()
            | ProvisioningRecord()
            | ConfigurationRecord()
        ):
            return record.uid
        case NodeRecord():
            return record.node.name
        case _:
            return record.name


def unit_of(resource: str, key: str, *, by_uid: bool) -> str:
    """The key of an object among those of all resources. Objects of several resources can have one name, but not one uid.

    Args:
        resource: its plural name.
        key: of the object in deltas.
        by_uid: whether this is its uid, and not its name.
    """
    return key if by_uid else f"{resource}/{key}"


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """The Lease as read.

    Attributes:
        holder: name of the process that holds it; empty = none does.
        epoch: of its leadership.
        renewed: unix seconds, by the clock of the holder.
        duration: seconds.
        version: resourceVersion.
        accounted: unix seconds until which the usage ledger of the holder is complete, rounded down; 0 = not known.
    """

    holder: str
    epoch: int
    renewed: float
    duration: float
    version: str
    accounted: int = 0
